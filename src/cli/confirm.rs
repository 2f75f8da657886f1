//! Asks the person at the terminal for consent.

use std::io::{BufRead as _, IsTerminal as _};

use super::say::say_piece_on_stderr;

/// Asks a question that only `yes` consents to. Without a terminal there is no consent.
pub(super) fn confirm(question: &str) -> bool {
    let input = std::io::stdin();
    if !input.is_terminal() {
        return false;
    }
    say_piece_on_stderr(&format!("{question} [yes/no] "));
    let mut answer = String::new();
    input.lock().read_line(&mut answer).is_ok() && answer.trim() == "yes"
}
