//! Tool output as plain text: no terminal escapes, no control characters. Pure.

/// Removes escape sequences and control characters; a lone carriage return ends a line, as on a terminal.
pub fn plain_text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\r' if chars.peek() == Some(&'\n') => {}
            '\r' => out.push('\n'),
            '\n' | '\t' => out.push(c),
            '\u{1b}' => skip_escape(&mut chars),
            c if c.is_control() => {}
            c => out.push(c),
        }
    }
    out
}

/// Skips the rest of an escape sequence (ECMA-48): `[` to a final byte, `]` and its like to a terminator,
/// else one character.
fn skip_escape(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    match chars.peek() {
        Some('[') => {
            chars.next();
            while chars.next_if(|c| ('\u{20}'..='\u{3f}').contains(c)).is_some() {}
            chars.next_if(|c| ('\u{40}'..='\u{7e}').contains(c));
        }
        Some(']' | 'P' | '_' | '^' | 'X') => {
            while chars.next_if(|c| !matches!(c, '\u{7}' | '\u{1b}' | '\n')).is_some() {}
            if chars.next_if_eq(&'\u{1b}').is_some() {
                chars.next_if_eq(&'\\');
            }
        }
        Some('(' | ')') => {
            chars.next();
            chars.next_if(char::is_ascii_alphanumeric);
        }
        Some(c) if c.is_ascii_graphic() => drop(chars.next()),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn escapes_and_controls_go() {
        for (text, expected) in [
            ("plain\ttext\n", "plain\ttext\n"),
            ("\u{1b}[1;31mred\u{1b}[0m", "red"),
            ("\u{1b}]0;title\u{7}x", "x"),
            ("\u{1b}]8;;http://x\u{1b}\\link\u{1b}]8;;\u{1b}\\", "link"),
            ("\u{1b}(Bx\u{1b}Mx", "xx"),
            ("10%\r20%\r\ndone", "10%\n20%\ndone"),
            ("a\0b\u{8}c\u{9b}d\u{7f}", "abcd"),
            ("\u{1b}", ""),
            ("\u{1b}[", ""),
            ("\u{1b}]open\nnext", "\nnext"),
            ("grün 🦞", "grün 🦞"),
        ] {
            assert_eq!(plain_text(text), expected, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn nothing_but_text_is_left(text: String, noise in "[\u{1b}\\[\\]0-9;mab\r\n\u{7}]{0,40}") {
            let out = plain_text(&format!("{text}{noise}"));
            prop_assert!(out.chars().all(|c| !c.is_control() || c == '\n' || c == '\t'));
            prop_assert_eq!(plain_text(&out), out);
        }

        #[test]
        fn text_without_controls_stays(text in "[^\\p{Cc}]{0,60}") {
            prop_assert_eq!(plain_text(&text), text);
        }
    }
}
