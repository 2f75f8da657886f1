//! Prints what `respool check` finds.

use super::say::{flat_text, say_sentences};

/// Prints findings, and counts the failures and warnings among them.
#[derive(Default)]
pub(super) struct Findings {
    pub(super) failures: usize,
    pub(super) warnings: usize,
    /// The lines that are printed later; `None`: all are printed at once.
    held_back: Option<Vec<String>>,
}

impl Findings {
    /// Returns findings that are printed when they are added to others.
    pub(super) fn held_back() -> Self {
        Self { held_back: Some(Vec::new()), ..Self::default() }
    }

    /// Prints findings that were held back, and counts them here.
    pub(super) fn add(&mut self, other: Self) {
        self.failures += other.failures;
        self.warnings += other.warnings;
        other.held_back.into_iter().flatten().for_each(|text| say_sentences(&text));
    }

    /// Begins a part of the report.
    pub(super) fn heading(&mut self, text: &str) {
        self.print(format!("\n{text}"));
    }

    fn print(&mut self, text: String) {
        match &mut self.held_back {
            Some(held_back) => held_back.push(text),
            None => say_sentences(&text),
        }
    }

    pub(super) fn ok(&mut self, text: &str) {
        self.print(format!("  ok    {}", flat_text(text)));
    }

    pub(super) fn warn(&mut self, text: &str, todo: &str) {
        self.warnings += 1;
        self.print(format!("  warn  {}\n        → {}", flat_text(text), indent_lines(todo)));
    }

    pub(super) fn fail(&mut self, text: &str, todo: &str) {
        self.failures += 1;
        self.print(format!("  FAIL  {}\n        → {todo}", flat_text(text)));
    }
}

/// Aligns further lines below the first.
fn indent_lines(text: &str) -> String {
    text.replace('\n', "\n          ")
}
