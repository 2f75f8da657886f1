//! Makes text of models, tools, servers and files safe for a terminal: nothing in it moves the cursor,
//! changes colours or hides other text. Pure. Used for all output: the chat, the command line, previews of
//! changes.

use unicode_width::UnicodeWidthChar as _;

/// Writes out control characters and invisible format characters (`\u{1b}`). Line breaks stay, and tabs
/// become spaces.
pub fn make_visible(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    let mut before = None;
    while let Some(c) = chars.next() {
        let is_shown = !c.is_control()
            && (!is_invisible(c)
                || joins_previous(before, c)
                || (c == EMOJI_LOOK && before.is_some_and(is_keycap) && chars.peek() == Some(&KEYCAP)));
        match c {
            '\n' => out.push(c),
            '\t' => out.push_str("    "),
            '\r' if chars.peek() == Some(&'\n') => {}
            c if is_shown => out.push(c),
            c => out.extend(c.escape_unicode()),
        }
        before = Some(c).filter(|_| is_shown);
    }
    out
}

/// Selects the look of an emoji for the sign before it.
pub const EMOJI_LOOK: char = '\u{fe0f}';
const KEYCAP: char = '\u{20e3}';
const JOINER: char = '\u{200d}';

/// Returns true for a sign that, with [`EMOJI_LOOK`] behind it, may begin a keycap such as 1️⃣.
pub fn is_keycap(c: char) -> bool {
    c.is_ascii_digit() || matches!(c, '#' | '*')
}

/// Writes each joined emoji, such as a woman with a laptop, as its first one: terminals do not agree on the
/// columns of the whole.
pub fn without_joined_emoji(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    // The last sign that was kept, the last sign, and whether it was left out.
    let (mut kept, mut last, mut is_left_out) = (' ', ' ', false);
    for c in text.chars() {
        let is_part = match c {
            JOINER | '\u{1f3fb}'..='\u{1f3ff}' => is_emoji(kept) || kept == EMOJI_LOOK,
            EMOJI_LOOK => is_left_out,
            c => is_left_out && last == JOINER && is_emoji(c),
        };
        if !is_part {
            out.push(c);
            kept = c;
        }
        (last, is_left_out) = (c, is_part);
    }
    out
}

/// Makes text visible on one line of at most `width` columns.
pub fn one_line(text: &str, width: usize) -> String {
    cut_line(&make_visible(&text.trim().replace(['\n', '\r', '\t'], " ")), width)
}

/// Cuts a line that is visible already to `width` columns.
pub fn cut_line(line: &str, width: usize) -> String {
    if line.chars().map(char_width).sum::<usize>() <= width {
        return line.to_owned();
    }
    let mut room = width.saturating_sub(1);
    let fits = |c: &char| {
        let fits = char_width(*c) <= room;
        room = room.saturating_sub(char_width(*c));
        fits
    };
    let kept: String = line.chars().take_while(fits).collect();
    format!("{kept}…")
}

/// Wraps text that is visible already at `width` columns, between words. What continues a line is indented as
/// the line is, or as the second column of a list. The terminal breaks longer words.
pub fn wrap_text(text: &str, width: usize) -> String {
    text.split('\n').map(|line| wrap_line(line, width)).collect::<Vec<_>>().join("\n")
}

fn wrap_line(line: &str, width: usize) -> String {
    let indent = " ".repeat(continuation_indent(line, width));
    let (mut out, mut used) = (String::new(), 0);
    for word in line.split_inclusive(' ') {
        let of_word: usize = word.trim_end().chars().map(char_width).sum();
        if used > indent.len() && used + of_word > width {
            out.truncate(out.trim_end_matches(' ').len());
            out.push('\n');
            out.push_str(&indent);
            used = indent.len();
        }
        used += of_word + word.len() - word.trim_end().len();
        out.push_str(word);
    }
    out
}

/// Returns the columns before the text of a line, after its arrow if it begins with one, or before its second
/// column after a gap of two spaces.
fn continuation_indent(line: &str, width: usize) -> usize {
    let text = line.trim_start_matches(' ');
    let text = text.strip_prefix("→ ").unwrap_or(text);
    let indent = line.len() - text.len();
    let gap = text.find("  ").map(|gap| indent + gap);
    let column = gap.map(|gap| gap + line[gap..].len() - line[gap..].trim_start_matches(' ').len());
    let columns = |bytes: usize| line[..bytes].chars().map(char_width).sum();
    [column, Some(indent)].into_iter().flatten().map(columns).find(|&at| at <= width / 2).unwrap_or(0)
}

/// Returns the columns of a character.
pub fn char_width(c: char) -> usize {
    c.width().unwrap_or(0)
}

/// Returns true for characters that are invisible, or that only change the look of their neighbours:
/// Unicode's `Default_Ignorable_Code_Point` (zero widths, fillers, variation selectors, tags), direction
/// marks, separators of lines and paragraphs, annotations, the blank Braille pattern. Reserved ones count
/// too.
fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{2800}' | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// Returns true for a joiner or a selector of emoji and letter forms that follows a character with which such
/// a sequence can begin. There it is visible; after plain letters it only hides text.
fn joins_previous(before: Option<char>, c: char) -> bool {
    let joins = matches!(c, '\u{200c}' | '\u{200d}' | '\u{fe0e}' | '\u{fe0f}');
    let is_joined_script = |c: char| matches!(c, '\u{600}'..='\u{8ff}' | '\u{900}'..='\u{dff}' | '\u{fe0f}');
    joins
        && before.is_some_and(|before| {
            is_emoji(before) || (is_joined_script(before) && matches!(c, '\u{200c}' | '\u{200d}'))
        })
}

fn is_emoji(c: char) -> bool {
    matches!(c, '\u{2190}'..='\u{2bff}' | '\u{3030}' | '\u{303d}' | '\u{1f000}'..='\u{1faff}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_would_act_is_written_out() {
        for (text, expected) in [
            ("plain\n\ttext\r\n", "plain\n    text\n"),
            ("\u{1b}[2J\u{1b}]0;x\u{7}", "\\u{1b}[2J\\u{1b}]0;x\\u{7}"),
            ("10%\rrm", "10%\\u{d}rm"),
            ("a\u{202e}b\u{9b}c", "a\\u{202e}b\\u{9b}c"),
            ("grün 👩‍💻 ❤️ नमस्ते می‌خواهم", "grün 👩‍💻 ❤️ नमस्ते می‌خواهم"),
            (
                "1\u{fe0f}\u{20e3} #\u{fe0f}\u{20e3} 2\u{fe0f}x",
                "1\u{fe0f}\u{20e3} #\u{fe0f}\u{20e3} 2\\u{fe0f}x",
            ),
            ("r\u{200d}m a\u{fe0f} 💻\u{200d}\u{200d}x", "r\\u{200d}m a\\u{fe0f} 💻\u{200d}\\u{200d}x"),
            (
                "a\u{e0041}\u{3164}\u{115f}\u{2800}b\u{61c}\u{85}",
                "a\\u{e0041}\\u{3164}\\u{115f}\\u{2800}b\\u{61c}\\u{85}",
            ),
            ("x\u{2028}y\u{180e}\u{1d173}\u{e0fff}", "x\\u{2028}y\\u{180e}\\u{1d173}\\u{e0fff}"),
        ] {
            assert_eq!(make_visible(text), expected);
        }
        assert_eq!(one_line("  a\nbc\u{8}", 80), "a bc\\u{8}");
        assert_eq!(one_line("abcdef", 4), "abc…");
        assert_eq!((one_line("漢字漢字", 8), one_line("漢字漢字", 7)), ("漢字漢字".into(), "漢字漢…".into()));
    }

    #[test]
    fn joined_emoji_are_their_first() {
        for (text, expected) in [
            ("👩‍💻 👩‍👩‍👧‍👦. 🙂🙂", "👩 👩. 🙂🙂"),
            ("👍🏽🙂 👩🏽‍💻x 🏃‍♂️x 👩‍❤️‍👨x ❤️‍🔥x ❤️x", "👍🙂 👩x 🏃x 👩x ❤️x ❤️x"),
            ("می‌خواهم क्‍ष 🇩🇪 1\u{fe0f}\u{20e3}", "می‌خواهم क्‍ष 🇩🇪 1\u{fe0f}\u{20e3}"),
        ] {
            assert_eq!(without_joined_emoji(text), expected);
        }
    }

    #[test]
    fn lines_break_between_words() {
        for (text, expected) in [
            ("one two three", "one two\nthree"),
            ("  one\ntwo", "  one\ntwo"),
            ("abcdefghijkl m", "abcdefghijkl\nm"),
            ("漢字 漢字 x", "漢字 漢字\nx"),
            (" /a  one two", " /a  one\n     two"),
            ("  one three", "  one\n  three"),
            ("→ one three", "→ one\n  three"),
            ("  abcdefghijkl", "  abcdefghijkl"),
        ] {
            assert_eq!(wrap_text(text, 10), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn nothing_acts(text: String) {
            prop_assert!(make_visible(&text).chars().all(|c| c == '\n' || !c.is_control()));
        }

        /// Behind plain letters nothing is hidden.
        #[test]
        fn nothing_hides(
            text in "[a-z ]{0,3}[\\p{Cc}\u{ad}\u{61c}\u{200b}-\u{200f}\u{2028}-\u{202e}\u{2060}-\u{206f}\u{3164}\u{fe00}-\u{fe0f}\u{e0000}-\u{e0fff}]{1,3}[a-z]{0,3}"
        ) {
            let out = make_visible(&text);
            prop_assert!(out.chars().all(|c| c == '\n' || c.is_ascii_graphic() || c == ' '), "{:?}", out);
        }
    }
}
