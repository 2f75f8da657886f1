//! Wraps a line that has styles and signs of scripts without spaces between words. Pure.

use wire::visible::char_width;

/// No line begins with these signs.
const CLOSING: &str = "、。，．・：；！？）」』】〕〉》ー々…’”,.;:!?)]}%";
/// No line ends with these.
const OPENING: &str = "（「『【〔〈《‘“([{";

/// Wraps a line at `width` columns: at spaces, and before and after signs of double width. Further rows of an
/// item of a list are indented as its text.
pub(super) fn wrap_styled(line: &str, width: usize) -> String {
    let indent = " ".repeat(text_column(line).min(width / 2));
    let (mut out, mut used, mut before, mut is_style) = (String::new(), 0, ' ', false);
    // The last place for a break, and the columns before it.
    let mut place = None;
    for c in line.chars() {
        if is_style || c == '\u{1b}' {
            is_style = c != 'm';
            out.push(c);
            continue;
        }
        let columns = char_width(c);
        if used > indent.len() && is_break(before, c) {
            place = Some((out.len(), used));
        }
        before = c;
        if used + columns > width {
            if c == ' ' {
                continue;
            }
            let (at, columns_before) = place.take().unwrap_or((out.len(), used));
            let rest = out.split_off(at);
            out.extend(["\n", &indent, &rest]);
            used = indent.len() + used - columns_before;
        }
        out.push(c);
        used += columns;
    }
    out
}

fn is_break(before: char, after: char) -> bool {
    let is_wide = char_width(before) > 1 || char_width(after) > 1;
    (before == ' ' && after != ' ')
        || (is_wide && after != ' ' && !CLOSING.contains(after) && !OPENING.contains(before))
}

/// Returns the columns before the text of an item of a list; those before the text of another line.
fn text_column(line: &str) -> usize {
    let mut is_style = false;
    let visible = line.chars().filter(|&c| {
        let is_text = !is_style && c != '\u{1b}';
        is_style = !is_text && c != 'm';
        is_text
    });
    let visible: String = visible.collect();
    let text = visible.trim_start_matches(' ');
    let number = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let mark = match number {
        _ if text.starts_with("• ") => 2,
        _ if number.len() < text.len() && [". ", ") "].iter().any(|mark| number.starts_with(mark)) => {
            text.len() - number.len() + 2
        }
        _ => 0,
    };
    visible.len() - text.len() + mark
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_beside_wide_signs_and_at_spaces() {
        for (line, width, expected) in [
            ("ab 漢字仮名", 7, "ab 漢字\n仮名"),
            ("漢字。仮名", 4, "漢\n字。\n仮名"),
            ("漢（字）", 6, "漢\n（字）"),
            ("• 漢字仮名", 6, "• 漢字\n  仮名"),
            ("12. a 漢字", 8, "12. a 漢\n    字"),
            ("one two ✅", 7, "one two\n✅"),
            ("\u{1b}[1m漢字\u{1b}[0m仮", 4, "\u{1b}[1m漢字\u{1b}[0m\n仮"),
            ("abcdefgh漢", 4, "abcd\nefgh\n漢"),
        ] {
            assert_eq!(wrap_styled(line, width), expected, "{line}");
        }
    }
}
