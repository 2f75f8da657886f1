//! The text that the person types while no prompt is shown: what they finished with Enter, and what they have
//! begun. Pure; `terminal` reads the keys, `session` sends the text.

use super::command;

/// Ctrl-D as typed text.
pub(super) const END: &str = "\u{4}";

/// More typed bytes than this are a long paste, in which no command is looked for.
const MOST_SEARCHED: usize = 2_048;

/// The text typed while no prompt was shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TypedText {
    pub(super) text: String,
    /// The ends of the inputs in it that Enter finished: a command is an input of its own, other lines that
    /// follow each other are one message. The text behind the last one is begun.
    pub(super) ends: Vec<usize>,
}

impl TypedText {
    /// Returns a text that was only begun.
    pub(super) fn draft(text: String) -> Self {
        Self { text, ends: Vec::new() }
    }

    /// Returns a message that is finished.
    pub(super) fn message(text: String) -> Self {
        Self { ends: vec![text.len()], text }
    }

    /// Returns the length of the part that is finished.
    pub(super) fn finished_length(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Returns true if all of it is finished.
    pub(super) fn is_finished(&self) -> bool {
        self.finished_length() == self.text.len()
    }

    /// Takes the first finished input.
    pub(super) fn take_input(&mut self) -> Option<String> {
        let end = *self.ends.first()?;
        let rest = self.text.split_off(end);
        self.ends.remove(0);
        self.ends.iter_mut().for_each(|later| *later -= end);
        Some(std::mem::replace(&mut self.text, rest))
    }

    /// Adds what was typed after it.
    pub(super) fn append(&mut self, later: &Self) {
        self.ends.extend(later.ends.iter().map(|end| self.text.len() + end));
        self.text.push_str(&later.text);
    }
}

/// Returns the text of typed keys: without marks of pasting and special keys, with deletions made. Ctrl-D
/// alone is [`END`]; text behind it takes it back. In a paste, and behind Alt or a backslash, Enter begins a
/// further line.
pub(super) fn clean_typed(keys: &[u8]) -> TypedText {
    let typed = String::from_utf8_lossy(keys).replace("\r\n", "\n");
    let (mut text, mut enters, mut is_pasted) = (String::new(), vec![0], false);
    let mut chars = typed.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\u{7f}' | '\u{8}' => {
                text.pop();
                enters.retain(|end| *end <= text.len());
            }
            '\u{1b}' if chars.next_if(|c| ['[', 'O'].contains(c)).is_some() => {
                let is_last = |c: &char| c.is_ascii_alphabetic() || *c == '~';
                let code: String = std::iter::from_fn(|| chars.next_if(|c| !is_last(c))).collect();
                chars.next();
                is_pasted = code == "200" || (is_pasted && code != "201");
            }
            '\u{1b}' => text.extend(chars.next_if(|c| ['\n', '\r'].contains(c)).map(|_| '\n')),
            '\u{4}' if text.is_empty() && chars.peek().is_none() => return TypedText::draft(END.to_owned()),
            '\n' | '\r' => {
                let is_enter = !is_pasted && !text.ends_with('\\');
                text.push('\n');
                enters.extend(is_enter.then_some(text.len()));
            }
            c if c.is_control() && c != '\t' => {}
            c => text.push(c),
        }
    }
    TypedText { ends: input_ends(&text, &enters), text }
}

/// Returns the ends of the inputs. `enters`: the beginning of the text, and where Enter ended something.
fn input_ends(text: &str, enters: &[usize]) -> Vec<usize> {
    let mut ends: Vec<usize> = Vec::new();
    let mut joins = false;
    for pair in enters.windows(2) {
        let line = &text[pair[0]..pair[1]];
        let is_command = command::is_for_the_chat(line);
        match ends.last_mut() {
            Some(end) if joins && !is_command => *end = pair[1],
            _ if line.trim().is_empty() => continue,
            _ => ends.push(pair[1]),
        }
        joins = !is_command;
    }
    ends
}

/// Takes a finished line out of the keys, if it is `wanted`. `is_fresh`: nothing was begun before the keys.
pub(super) fn take_line(keys: &mut Vec<u8>, is_fresh: bool, wanted: impl Fn(&str) -> bool) -> Option<String> {
    // Each Enter has all before it read again.
    if keys.len() > MOST_SEARCHED {
        return None;
    }
    let (mut start, mut before) = (0, TypedText::default());
    let enters: Vec<usize> = (0..keys.len()).filter(|at| [b'\r', b'\n'].contains(&keys[*at])).collect();
    for end in enters.into_iter().map(|at| at + 1) {
        let (all, line) = (clean_typed(&keys[..end]), clean_typed(&keys[start..end]));
        // Not in a paste, and nothing of an earlier line was deleted.
        let is_line = all.is_finished() && format!("{}{}", before.text, line.text) == all.text;
        if is_line && (is_fresh || start > 0) && wanted(line.text.trim()) {
            keys.drain(start..end);
            return Some(line.text.trim().to_owned());
        }
        if all.is_finished() {
            (start, before) = (end, all);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The finished inputs, and the rest.
    fn inputs(keys: &str) -> (Vec<String>, String) {
        let mut typed = clean_typed(keys.as_bytes());
        let inputs = std::iter::from_fn(|| typed.take_input()).collect();
        (inputs, typed.text)
    }

    #[test]
    fn enter_sends_and_a_paste_does_not() {
        for (keys, expected) in [
            ("and then\n", "and then\n"),
            ("one\rtwo\r", "one\ntwo\n"),
            ("\u{1b}[200~one\ntwo\n\u{1b}[201~", ""),
            ("\u{1b}[200~one\n\u{1b}[201~\n", "one\n\n"),
            // Regression: a text that was begun kept back what Enter had ended.
            ("and\nthen", "and\n"),
            ("and\nthen\u{7f}\u{7f}\u{7f}\u{7f}\u{7f}", ""),
            ("x\u{7f}\n", ""),
            ("one\u{1b}\n", ""),
            ("one\\\n", ""),
            ("\n", ""),
        ] {
            let typed = clean_typed(keys.as_bytes());
            assert_eq!(&typed.text[..typed.finished_length()], expected, "{keys:?}");
        }
    }

    #[test]
    fn a_paste_during_a_turn_stays_whole() {
        let text = |keys: &str| clean_typed(keys.as_bytes()).text;
        assert_eq!(text("\u{1b}[200~one\rtwo\r\n\tthree\u{1b}[201~"), "one\ntwo\n\tthree");
        assert_eq!(text("teh\u{7f}\u{7f}he\u{1b}[A\u{1b}OB\u{4}"), "the");
        assert_eq!(text("x\u{7f}\u{4}"), END);
        assert_eq!(text("\u{4}wait"), "wait", "it is taken back");
    }

    /// Regression: `/undo` behind a message was sent to the model as a part of it.
    #[test]
    fn a_queued_command_is_no_message() {
        let check = |keys: &str, expected: &[&str], rest: &str| {
            assert_eq!(inputs(keys), (expected.iter().map(ToString::to_string).collect(), rest.to_owned()));
        };
        check(
            "fix it\rand test\r/undo\r!ls\rgo on\rthe",
            &["fix it\nand test\n", "/undo\n", "!ls\n", "go on\n"],
            "the",
        );
        check("\r\r/undo\r\rmore\r", &["\n\n/undo\n", "\nmore\n"], "");
        check("see\r/etc/hosts is it\r", &["see\n/etc/hosts is it\n"], "");
        check("\u{1b}[200~a\r/undo\r\u{1b}[201~\r", &["a\n/undo\n\n"], "");
        let mut typed = clean_typed(b"/clear\rwhat");
        typed.append(&clean_typed(b" now\r/undo\r"));
        assert_eq!((typed.ends, typed.text.as_str()), (vec![7, 16, 22], "/clear\nwhat now\n/undo\n"));
    }

    #[test]
    fn only_a_finished_line_is_taken() {
        let check = |keys: &str, is_fresh: bool, rest: Option<&str>| {
            let mut left = keys.as_bytes().to_vec();
            let taken = take_line(&mut left, is_fresh, |line| line == "/cost");
            assert_eq!(taken.is_some(), rest.is_some(), "{keys:?}");
            assert_eq!(String::from_utf8(left).unwrap(), rest.unwrap_or(keys));
        };
        check("/cost\r", true, Some(""));
        check("/cost", true, None);
        check("/cots\u{7f}\u{7f}st\rand", true, Some("and"));
        check("fix it\r/cost\r", false, Some("fix it\r"));
        check("/cost\r", false, None);
        check("fix it\r\u{7f} /cost\r", true, None);
        check("\u{1b}[200~/cost\r\u{1b}[201~", true, None);
        check("/undo\r/cost\rmore", true, Some("/undo\rmore"));
        check(&format!("/cost\r{}", "/\r".repeat(MOST_SEARCHED / 2)), true, None);
    }
}
