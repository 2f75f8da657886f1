//! Prints what clap answers in place of a command: help, the version, or what is wrong with the arguments. On
//! a terminal it is wrapped between words, which clap does only with one more dependency.

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};

use super::say::{WIDEST, columns_of, has_colours, say_help};
use wire::visible::wrap_text;

/// Commands that people know from other programs, and those that they mean.
const KNOWN_ELSEWHERE: [(&str, &str); 3] =
    [("status", "service status"), ("logs", "service logs"), ("log", "service logs")];
/// An old name of `serve`, which is not proposed.
const OLD_NAME: &str = "start";

/// Proposes the right command for an unknown one.
pub(super) fn correct_tip(answer: &mut clap::Error, command: &str) {
    let Some(ContextValue::String(name)) = answer.get(ContextKind::InvalidSubcommand) else { return };
    if name != command {
        return;
    }
    let meant = KNOWN_ELSEWHERE.iter().find(|(known, _)| known == name).map(|(_, meant)| *meant);
    let meant: Vec<String> = match (meant, answer.get(ContextKind::SuggestedSubcommand)) {
        (Some(meant), _) => vec![meant.to_owned()],
        (None, Some(ContextValue::Strings(found))) => {
            found.iter().filter(|name| *name != OLD_NAME).cloned().collect()
        }
        _ => return,
    };
    if meant.is_empty() {
        answer.remove(ContextKind::SuggestedSubcommand);
    } else {
        answer.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(meant));
    }
}

/// Prints the answer and returns the exit code that belongs to it.
pub(super) fn print_answer(answer: &clap::Error) -> ExitCode {
    let is_error = answer.use_stderr();
    let columns = if is_error { columns_of(std::io::stderr()) } else { columns_of(std::io::stdout()) };
    match columns {
        None => drop(answer.print()),
        Some(columns) => {
            let text = answer.render();
            let text = if has_colours() { text.ansi().to_string() } else { text.to_string() };
            say_help(&wrap_styled(&text, columns.min(WIDEST)), is_error);
        }
    }
    ExitCode::from(u8::try_from(answer.exit_code()).unwrap_or(2))
}

/// Wraps text with SGR escapes, which take no room.
fn wrap_styled(styled: &str, columns: usize) -> String {
    let mut rest = styled;
    let mut plain = String::new();
    while let Some((before, escape)) = split_escape(rest) {
        plain.push_str(before);
        rest = &rest[before.len() + escape.len()..];
    }
    plain.push_str(rest);
    // Only spaces and line ends differ from here on.
    let mut out = String::new();
    let mut rest = copy_escapes(styled, &mut out);
    for c in wrap_text(&plain, columns).chars() {
        if !c.is_whitespace() {
            while let Some(more) = rest.strip_prefix(char::is_whitespace) {
                rest = copy_escapes(more, &mut out);
            }
            rest = rest.strip_prefix(c).unwrap_or(rest);
        }
        out.push(c);
        if !c.is_whitespace() {
            rest = copy_escapes(rest, &mut out);
        }
    }
    out
}

/// Copies the escapes at the beginning of a text, and returns what follows them.
fn copy_escapes<'a>(mut text: &'a str, out: &mut String) -> &'a str {
    while let Some(("", escape)) = split_escape(text) {
        out.push_str(escape);
        text = &text[escape.len()..];
    }
    text
}

/// Returns the text before the first SGR escape, and the escape.
fn split_escape(text: &str) -> Option<(&str, &str)> {
    let start = text.find("\u{1b}[")?;
    let end = start + text[start..].find('m')? + 1;
    Some((&text[..start], &text[start..end]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_wraps_between_words() {
        let bold = |text: &str| format!("\u{1b}[1m{text}\u{1b}[0m");
        let text = |gap: &str| {
            let [usage, list, run] = ["Usage:", "list", "run"].map(bold);
            format!("{usage} respool\n\n  {list}    List the upstreams{gap}and models\n  {run}     Run\n")
        };
        assert_eq!(wrap_styled(&text(" "), 28), text("\n          "));
        for columns in 1..60 {
            let of = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert_eq!(of(&wrap_styled(&text(" "), columns)), of(&text(" ")), "{columns}");
        }
    }
}
