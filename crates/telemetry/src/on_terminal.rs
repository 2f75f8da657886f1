//! A log on a terminal: text from requests, servers and tools cannot control the terminal. The formatter's
//! own colours stay; it escapes its input, so no other escape sequences remain.

use std::io::{self, Write};

use wire::visible::make_visible;

/// Takes whole lines and writes them in a form that is safe for a terminal.
#[derive(Debug)]
pub(super) struct TerminalWriter<W>(pub(super) W);

impl<W: Write> Write for TerminalWriter<W> {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        self.0.write_all(escape_lines(&String::from_utf8_lossy(lines)).as_bytes())?;
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Makes text visible, but for its colours.
pub(super) fn escape_lines(lines: &str) -> String {
    let mut parts = lines.split("\u{1b}[");
    let mut out = make_visible(parts.next().unwrap_or_default());
    for part in parts {
        let end = part.find(|c: char| !c.is_ascii_digit() && c != ';').unwrap_or(part.len());
        match part[end..].strip_prefix('m') {
            Some(rest) => out.extend(["\u{1b}[", &part[..end], "m", &make_visible(rest)]),
            None => out.extend([r"\u{1b}[", &make_visible(part)]),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything that is printed on a terminal is text.
    #[test]
    fn colours_stay_and_all_else_is_written_out() {
        for (line, expected) in [
            (
                "\u{1b}[2mtime\u{1b}[0m \u{1b}[1;32mINFO\u{1b}[0m ready\n",
                "\u{1b}[2mtime\u{1b}[0m \u{1b}[1;32mINFO\u{1b}[0m ready\n",
            ),
            ("a\u{1b}[2Jb\u{1b}]0;x\u{7}c", "a\\u{1b}[2Jb\\u{1b}]0;x\\u{7}c"),
            ("a\u{202e}b\u{9b}c\u{1b}[", "a\\u{202e}b\\u{9b}c\\u{1b}["),
        ] {
            let mut out = Vec::new();
            TerminalWriter(&mut out).write_all(line.as_bytes()).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }
}
