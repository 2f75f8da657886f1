//! Colours, if the terminal has any. Pure.

/// Colours text, or leaves it unchanged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Paint(pub(super) bool);

impl Paint {
    fn with(self, code: &str, text: &str) -> String {
        if self.0 && !text.is_empty() { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }

    pub(super) fn dim(self, text: &str) -> String {
        self.with("2", text)
    }

    pub(super) fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    pub(super) fn red(self, text: &str) -> String {
        self.with("31", text)
    }

    pub(super) fn green(self, text: &str) -> String {
        self.with("32", text)
    }

    /// For what needs attention: yellow is hard to read on a light terminal.
    pub(super) fn magenta(self, text: &str) -> String {
        self.with("35", text)
    }

    pub(super) fn cyan(self, text: &str) -> String {
        self.with("36", text)
    }
}
