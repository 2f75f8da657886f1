//! Prints what `respool check` finds.

use super::say::{flat_text, say_sentences};

/// Prints findings, and counts the failures and warnings among them.
#[derive(Default)]
pub(super) struct Findings {
    pub(super) failures: usize,
    pub(super) warnings: usize,
}

impl Findings {
    pub(super) fn ok(&mut self, text: &str) {
        say_sentences(&format!("  ok    {}", flat_text(text)));
    }

    pub(super) fn warn(&mut self, text: &str, todo: &str) {
        self.warnings += 1;
        say_sentences(&format!("  warn  {}\n        → {}", flat_text(text), indent_lines(todo)));
    }

    pub(super) fn fail(&mut self, text: &str, todo: &str) {
        self.failures += 1;
        say_sentences(&format!("  FAIL  {}\n        → {todo}", flat_text(text)));
    }
}

/// Aligns further lines below the first.
fn indent_lines(text: &str) -> String {
    text.replace('\n', "\n          ")
}
