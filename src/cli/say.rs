//! Prints everything that the command line prints. On a terminal, text is made [`visible`], so text from
//! servers, models and files cannot act on it. In a file or a pipe it stays byte for byte. Nothing else in
//! `cli` prints; a lint enforces this.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;

use wire::visible::{make_visible, wrap_text};

/// Sentences on a wide terminal are no longer than this.
pub(super) const WIDEST: usize = 110;
/// A space at which no line is wrapped.
const NO_BREAK: &str = "\u{a0}";

/// Prints a line on standard output.
pub(super) fn say(text: &str) {
    write_line(io::stdout(), &format!("{text}\n"));
}

/// Prints sentences on standard output, wrapped between words on a terminal.
pub(super) fn say_sentences(text: &str) {
    write_line(io::stdout(), &wrap_for(io::stdout(), text));
}

/// Prints sentences on standard error, wrapped between words on a terminal.
pub(super) fn say_sentences_on_stderr(text: &str) {
    write_line(io::stderr(), &wrap_for(io::stderr(), text));
}

/// Prints a row of a list on standard output, wrapped between words on a terminal that is narrower.
pub(super) fn say_row(text: &str) {
    let row = flat_text(text);
    say(&columns_of(io::stdout()).map_or_else(|| row.clone(), |columns| wrap_text(&row, columns)));
}

/// Prints text with its own line ends on standard output.
pub(super) fn say_piece(text: &str) {
    write_line(io::stdout(), text);
}

/// Prints a line on standard error.
pub(super) fn say_on_stderr(text: &str) {
    write_line(io::stderr(), &format!("{text}\n"));
}

/// Prints a piece of text on standard error, as it arrives.
pub(super) fn say_piece_on_stderr(text: &str) {
    write_line(io::stderr(), text);
}

/// Holds the words of a command together where sentences are wrapped: with line ends in it, it could not be
/// copied.
pub(super) fn unbroken(command: &str) -> String {
    command.replace(' ', NO_BREAK)
}

/// Returns the width of a terminal in columns; `None` for other streams.
pub(super) fn columns_of(stream: impl AsFd) -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(stream).ok()?;
    Some(size.ws_col.into()).filter(|columns| *columns > 0)
}

/// Puts foreign text on one line, so that it cannot look like respool's own lines.
pub(super) fn flat_text(text: &str) -> String {
    text.replace("\r\n", " ").replace(['\n', '\r'], " ")
}

/// Ends the text with a line end, and wraps it if the stream is a terminal.
fn wrap_for(stream: impl AsFd, text: &str) -> String {
    let wrapped = match columns_of(stream) {
        Some(columns) => wrap_text(text, columns.min(WIDEST)),
        None => text.to_owned(),
    };
    wrapped.replace(NO_BREAK, " ") + "\n"
}

/// Prints help with its own escapes, on standard output or standard error.
pub(super) fn say_help(text: &str, on_stderr: bool) {
    let mut stream: Box<dyn Write> = if on_stderr { Box::new(io::stderr()) } else { Box::new(io::stdout()) };
    let _ = stream.write_all(text.as_bytes()).and_then(|()| stream.flush());
}

/// Prints a line on standard output.
///
/// # Errors
/// When standard output is closed.
pub(super) fn try_say(text: &str) -> io::Result<()> {
    try_say_in_own_colours(&visible_text(text, io::stdout().is_terminal()))
}

/// Prints a line that is visible already and has colours of its own on standard output.
///
/// # Errors
/// When standard output is closed.
pub(super) fn try_say_in_own_colours(text: &str) -> io::Result<()> {
    let mut stream = io::stdout();
    stream.write_all(format!("{text}\n").as_bytes()).and_then(|()| stream.flush())
}

/// Returns true if colours are wanted on a terminal.
pub(super) fn has_colours() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
        && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Prints a line, or several, each in the colour that `colour_of` gives as an SGR code; only on a terminal.
pub(super) fn say_in_colours(text: &str, colour_of: impl Fn(&str) -> &'static str) {
    if !(io::stdout().is_terminal() && has_colours()) {
        return say(text);
    }
    let text = make_visible(text);
    let lines = text.lines().map(|line| match colour_of(line) {
        "" => format!("{line}\n"),
        colour => format!("\u{1b}[{colour}m{line}\u{1b}[0m\n"),
    });
    let _ = io::stdout().write_all(lines.collect::<String>().as_bytes()).and_then(|()| io::stdout().flush());
}

fn write_line(mut stream: impl Write + IsTerminal, text: &str) {
    let text = visible_text(text, stream.is_terminal());
    // The reader is gone, so there is nowhere to report an error.
    let _ = stream.write_all(text.as_bytes()).and_then(|()| stream.flush());
}

fn visible_text(text: &str, is_terminal: bool) -> String {
    if is_terminal { make_visible(text) } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Escapes in a server's model name acted on the terminal of `respool check`.
    #[test]
    fn only_on_a_terminal_is_anything_written_out() {
        let evil = "m\u{1b}]52;c;ZXZpbA==\u{7}\u{9b}2J\u{202e}\n\tx";
        assert_eq!(visible_text(evil, true), "m\\u{1b}]52;c;ZXZpbA==\\u{7}\\u{9b}2J\\u{202e}\n    x");
        assert_eq!(visible_text(evil, false), evil);
        assert_eq!(flat_text("m\n  ok    all is well\r\nx"), "m   ok    all is well x");
    }
}
