//! The reasoning of the model in a turn, for the status line and for `/thinking`. Pure.

/// The most bytes that are kept.
const MOST: usize = 256 << 10;

/// The reasoning of a turn: that of its replies, with an empty line between.
#[derive(Debug, Default)]
pub(super) struct Reasoning {
    text: String,
    /// Where that of the current reply begins.
    start: usize,
    /// Whether the person knows that it can be shown.
    is_known: bool,
}

impl Reasoning {
    pub(super) fn begin_turn(&mut self) {
        self.text.clear();
        self.start = 0;
    }

    /// Begins a reply, or what follows it.
    pub(super) fn begin_reply(&mut self) {
        self.text.truncate(self.text.trim_end().len());
        if !self.text.is_empty() {
            self.text.push_str("\n\n");
        }
        self.start = self.text.len();
    }

    /// Adds a piece.
    pub(super) fn push(&mut self, piece: &str) {
        self.text.push_str(piece);
        let surplus = self.text.ceil_char_boundary(self.text.len().saturating_sub(MOST));
        self.text.drain(..surplus);
        self.start = self.start.saturating_sub(surplus);
    }

    /// Ends a reply with this reasoning, which did not come in pieces from every server.
    pub(super) fn end_reply(&mut self, whole: &str) {
        if self.reply_text().is_empty() {
            self.push(whole);
        }
    }

    /// Sets that of the last turn of a conversation that is resumed.
    pub(super) fn set_earlier(&mut self, text: &str) {
        self.begin_turn();
        self.push(text);
    }

    /// Returns the reasoning of the turn.
    pub(super) fn turn_text(&self) -> &str {
        self.text.trim()
    }

    /// Returns that of the current reply alone.
    pub(super) fn reply_text(&self) -> &str {
        &self.text[self.start..]
    }

    /// Returns true once, after the first turn with some.
    pub(super) fn take_news(&mut self) -> bool {
        !self.turn_text().is_empty() && !std::mem::replace(&mut self.is_known, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_has_the_reasoning_of_its_replies() {
        let mut reasoning = Reasoning::default();
        reasoning.begin_turn();
        assert!(!reasoning.take_news());
        reasoning.begin_reply();
        ["First ", "I look.\n"].iter().for_each(|piece| reasoning.push(piece));
        reasoning.end_reply("First I look.");
        assert_eq!(reasoning.reply_text(), "First I look.\n");
        reasoning.begin_reply();
        assert_eq!(reasoning.reply_text(), "", "a call runs");
        reasoning.begin_reply();
        reasoning.end_reply("Then I write.");
        assert_eq!(reasoning.turn_text(), "First I look.\n\nThen I write.");
        assert!(reasoning.take_news() && !reasoning.take_news());
        reasoning.push(&"ä".repeat(MOST));
        assert!(reasoning.turn_text().len() <= MOST && reasoning.reply_text().len() <= MOST);
        reasoning.begin_turn();
        assert_eq!(reasoning.turn_text(), "");
    }
}
