//! Long texts in the prompt: a short mark stands for each of them, such as `[pasted: 200 lines]`. Pure.

use super::figures::format_count;
use wire::visible::one_line;

/// A text with more lines or more characters is replaced by a mark.
const MOST_LINES: usize = 8;
const MOST_CHARS: usize = 800;
/// The columns of the first words of an earlier input.
const FIRST_WORDS: usize = 32;

/// The long texts of a session, each with its mark.
#[derive(Debug, Default)]
pub(super) struct Pastes(Vec<Paste>);

#[derive(Debug)]
struct Paste {
    mark: String,
    text: String,
}

impl Pastes {
    /// Returns the mark of a pasted text that is long; another one stays as it is.
    pub(super) fn shorten(&mut self, text: String) -> String {
        match size_of(&text) {
            Some(size) => self.add(text, "pasted", &size),
            None => text,
        }
    }

    /// Returns the mark of a long input of an earlier session, with its first words.
    pub(super) fn shorten_earlier(&mut self, text: String) -> String {
        let Some(size) = size_of(&text) else { return text };
        let first = text.trim_start().lines().next().unwrap_or_default();
        // Brackets mark its ends.
        let words = one_line(first, FIRST_WORDS).replace(['[', ']'], "");
        self.add(text, "earlier", &format!("{words}, {size}"))
    }

    fn add(&mut self, text: String, origin: &str, what: &str) -> String {
        if let Some(same) = self.0.iter().find(|paste| paste.text == text && paste.mark.contains(origin)) {
            return same.mark.clone();
        }
        let mark = match self.0.iter().filter(|paste| paste.mark.starts_with(&format!("[{origin}"))).count() {
            0 => format!("[{origin}: {what}]"),
            others => format!("[{origin} {}: {what}]", others + 1),
        };
        self.0.push(Paste { mark: mark.clone(), text });
        mark
    }

    /// Returns the line with its texts in the places of their marks.
    pub(super) fn expand(&self, line: &str) -> String {
        self.replace_marks(line, |paste| paste.text.clone())
    }

    /// Returns the line with `paint` applied to its marks.
    pub(super) fn paint_marks(&self, line: &str, paint: impl Fn(&str) -> String) -> String {
        self.replace_marks(line, |paste| paint(&paste.mark))
    }

    fn replace_marks(&self, line: &str, replacement: impl Fn(&Paste) -> String) -> String {
        let (mut out, mut rest) = (String::new(), line);
        while let Some(at) = rest.find('[') {
            out.push_str(&rest[..at]);
            rest = &rest[at..];
            let length = if let Some(paste) = self.find_mark(|mark| rest.starts_with(mark)) {
                out.push_str(&replacement(paste));
                paste.mark.len()
            } else {
                out.push('[');
                1
            };
            rest = &rest[length..];
        }
        out + rest
    }

    /// Returns true if a text ends with a mark.
    pub(super) fn has_mark_at_end(&self, text: &str) -> bool {
        self.find_mark(|mark| text.ends_with(mark)).is_some()
    }

    /// Returns true if a text begins with a mark.
    pub(super) fn has_mark_at_start(&self, text: &str) -> bool {
        self.find_mark(|mark| text.starts_with(mark)).is_some()
    }

    fn find_mark(&self, is_it: impl Fn(&str) -> bool) -> Option<&Paste> {
        self.0.iter().find(|paste| is_it(&paste.mark))
    }
}

/// Returns the size of a long text in words; `None` for one that is not long.
fn size_of(text: &str) -> Option<String> {
    let (lines, chars) = (text.trim_end().lines().count(), text.chars().count());
    match (lines > MOST_LINES, chars > MOST_CHARS) {
        (false, false) => None,
        (_, true) if lines < 3 => Some(format_count(chars, "character")),
        _ => Some(format_count(lines, "line")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(count: usize, word: &str) -> String {
        format!("{word}\n").repeat(count)
    }

    #[test]
    fn a_long_paste_is_a_mark_and_sent_whole() {
        let mut pastes = Pastes::default();
        assert_eq!(pastes.shorten("one\ntwo".into()), "one\ntwo");
        let (first, second, long) = (lines(200, "a"), lines(9, "b"), "x".repeat(2_000));
        assert_eq!(pastes.shorten(first.clone()), "[pasted: 200 lines]");
        assert_eq!(pastes.shorten(second.clone()), "[pasted 2: 9 lines]");
        assert_eq!(pastes.shorten(first.clone()), "[pasted: 200 lines]", "the same text has one mark");
        assert_eq!(pastes.shorten(long.clone()), "[pasted 3: 2000 characters]");
        let line = "see [this] [pasted: 200 lines]and [pasted 2: 9 lines] [pasted: 7 lines]";
        assert_eq!(pastes.expand(line), format!("see [this] {first}and {second} [pasted: 7 lines]"));
        assert!(pastes.has_mark_at_end("see [pasted: 200 lines]") && !pastes.has_mark_at_end("lines]"));
        assert!(pastes.has_mark_at_start("[pasted 2: 9 lines] x") && !pastes.has_mark_at_start("[pasted"));
        assert_eq!(
            pastes.paint_marks("a [pasted: 200 lines]", |mark| format!("<{mark}>")),
            "a <[pasted: 200 lines]>"
        );
    }

    /// A text that contains the mark of another one is sent as it is.
    #[test]
    fn marks_within_a_text_stay() {
        let mut pastes = Pastes::default();
        let first = lines(10, "a");
        pastes.shorten(first);
        let quoting = lines(10, "[pasted: 10 lines]");
        let mark = pastes.shorten(quoting.clone());
        assert_eq!(pastes.expand(&mark), quoting);
    }

    #[test]
    fn an_earlier_input_is_known_by_its_first_words() {
        let mut pastes = Pastes::default();
        let input = format!("Why does this fail?\n{}", lines(20, "trace"));
        assert_eq!(pastes.shorten_earlier(input.clone()), "[earlier: Why does this fail?, 21 lines]");
        assert_eq!(pastes.expand("[earlier: Why does this fail?, 21 lines]"), input);
        assert_eq!(pastes.shorten_earlier("short".into()), "short");
    }
}
