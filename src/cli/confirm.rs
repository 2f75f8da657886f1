//! Asks the person at the terminal for consent.

use std::io::{BufRead, IsTerminal as _};

use rustix::termios::{QueueSelector, tcflush};

use super::say::say_piece_on_stderr;

/// Asks a question until the answer is yes or no. Without a terminal there is no consent, and keys that were
/// typed before the question do not answer it.
pub(super) fn confirm(question: &str) -> bool {
    let input = std::io::stdin();
    if !input.is_terminal() {
        return false;
    }
    let _ = tcflush(&input, QueueSelector::IFlush);
    ask(question, &mut input.lock())
}

/// Asks until the answer is yes or no; the end of the input means no.
fn ask(question: &str, input: &mut impl BufRead) -> bool {
    loop {
        say_piece_on_stderr(&format!("{question} [yes/no] "));
        let mut answer = String::new();
        if !input.read_line(&mut answer).is_ok_and(|length| length > 0) {
            return false;
        }
        match answer.trim().to_ascii_lowercase().as_str() {
            "y" | "yes" => return true,
            "n" | "no" => return false,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_asks_until_the_answer_is_yes_or_no() {
        for (answers, expected) in [
            ("yes\n", true),
            ("Y\n", true),
            (" YES \n", true),
            ("maybe\n\ny", true),
            ("n\ny\n", false),
            ("No\n", false),
            ("yess\n", false),
            ("", false),
        ] {
            assert_eq!(ask("Write it?", &mut answers.as_bytes()), expected, "{answers:?}");
        }
    }
}
