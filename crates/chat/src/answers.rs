//! Where the model's words go: onto the screen, to standard output as they come (`-p`), or into events of one
//! line each (`--json`). Everything else about a turn is for `screen`.

use std::io::{self, Write};

use serde_json::{Value, json};

use super::screen::Shown;
use wire::visible::{EMOJI_LOOK, is_keycap, make_visible};

/// The destination of the model's words.
pub(super) enum Answers {
    /// The screen, rendered.
    Screen,
    /// Standard output, as the model writes them.
    Plain(PlainText),
    /// Standard output, one event a line.
    Events(EventLines),
}

impl Answers {
    /// Returns true if they cannot be written any more.
    pub(super) fn has_failed(&self) -> bool {
        match self {
            Self::Screen => false,
            Self::Plain(text) => text.out.error.is_some(),
            Self::Events(lines) => lines.0.error.is_some(),
        }
    }
}

/// Text that is written as it comes, safe for a terminal. Each reply ends with one line break, and an empty
/// line stands between two.
pub(super) struct PlainText {
    out: Output,
    /// The incomplete last line, and how much of it is written in its visible form.
    line: String,
    written: usize,
    /// White space that waits for more text.
    space: String,
    is_begun: bool,
    has_replies: bool,
}

impl PlainText {
    pub(super) fn new(out: Box<dyn Write + Send>) -> Self {
        let (line, space, out) = (String::new(), String::new(), Output::new(out));
        Self { out, line, written: 0, space, is_begun: false, has_replies: false }
    }

    /// Writes a piece of a reply.
    pub(super) fn push(&mut self, piece: &str) {
        self.line.push_str(piece);
        // It may be the first half of a line break, or of a keycap.
        let whole = self.line.trim_end_matches('\r');
        let whole = whole.strip_suffix(EMOJI_LOOK).filter(|text| text.ends_with(is_keycap)).unwrap_or(whole);
        let new = make_visible(whole).split_off(self.written);
        self.written += new.len();
        if let Some(end) = whole.rfind('\n') {
            self.line.drain(..=end);
            self.written = make_visible(self.line.trim_end_matches('\r')).len();
        }
        let new = if self.is_begun { new.as_str() } else { new.trim_start() };
        let text = new.trim_end();
        if !text.is_empty() {
            let between = if self.has_replies { "\n" } else { "" };
            let before = if self.is_begun { std::mem::take(&mut self.space) } else { between.to_owned() };
            (self.is_begun, self.has_replies) = (true, true);
            self.out.write(&format!("{before}{text}"));
        }
        self.space.push_str(&new[text.len()..]);
    }

    /// Ends a reply.
    pub(super) fn end_reply(&mut self) {
        if std::mem::take(&mut self.is_begun) {
            self.out.write("\n");
        }
        self.line.clear();
        self.space.clear();
        self.written = 0;
    }

    /// Returns true if something of the current reply is written.
    pub(super) fn is_begun(&self) -> bool {
        self.is_begun
    }

    /// Returns true once something was written.
    pub(super) fn has_replies(&self) -> bool {
        self.has_replies
    }

    /// Takes the error that ended the output.
    pub(super) fn take_error(&mut self) -> Option<io::Error> {
        self.out.take_error()
    }
}

/// Events as JSON, one a line.
pub(super) struct EventLines(Output);

impl EventLines {
    pub(super) fn new(out: Box<dyn Write + Send>) -> Self {
        Self(Output::new(out))
    }

    /// Writes what happened, if there is an event for it.
    pub(super) fn push(&mut self, shown: &Shown) {
        if let Some(event) = event_of(shown) {
            self.write(&event);
        }
    }

    pub(super) fn write(&mut self, event: &Value) {
        self.0.write(&format!("{event}\n"));
    }

    /// Takes the error that ended the output.
    pub(super) fn take_error(&mut self) -> Option<io::Error> {
        self.0.take_error()
    }
}

fn event_of(shown: &Shown) -> Option<Value> {
    Some(match shown {
        Shown::Asks { summary } => {
            json!({"type": "model_asked", "for": if *summary { "summary" } else { "reply" }})
        }
        Shown::ServerAwaited(Some(why)) => json!({"type": "server_awaited", "reason": why}),
        Shown::Reasoning(text) => json!({"type": "reasoning", "text": text}),
        Shown::Content(text) => json!({"type": "text", "text": text}),
        Shown::Replied { content, calls, refused, .. } => {
            json!({"type": "reply", "text": content, "calls": calls, "refused": refused})
        }
        Shown::ModelFailed { text, again } => {
            json!({"type": "model_failed", "reason": text, "is_retried": again})
        }
        Shown::Begins { tool, arguments, .. } => {
            json!({"type": "tool_started", "tool": tool, "arguments": arguments})
        }
        Shown::Output(tail) => json!({"type": "tool_output", "text": tail.take()}),
        Shown::Ended { tool, ended, display } => json!({
            "type": "tool_finished",
            "tool": tool,
            "outcome": ended.outcome.as_str(),
            "exit_code": ended.exit_code,
            "text": ended.text,
            "change": display,
            "took_ms": ended.took,
        }),
        Shown::Note(text) | Shown::Warning(text) => json!({"type": "note", "text": text}),
        Shown::NotKept => json!({"type": "note", "text": "the conversation cannot be kept on disk"}),
        Shown::ServerAwaited(None) | Shown::Asking(_) => return None,
    })
}

/// Standard output. The first error ends it.
struct Output {
    out: Box<dyn Write + Send>,
    error: Option<io::Error>,
}

impl Output {
    fn new(out: Box<dyn Write + Send>) -> Self {
        Self { out, error: None }
    }

    fn write(&mut self, text: &str) {
        if self.error.is_none() {
            self.error = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush()).err();
        }
    }

    /// A reader that has enough is no error.
    fn take_error(&mut self) -> Option<io::Error> {
        self.error.take().filter(|error| error.kind() != io::ErrorKind::BrokenPipe)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex, PoisonError};

    use super::*;
    use proptest::prelude::*;

    /// Regression: behind `| head`, the turn went on to its end, with its commands.
    #[test]
    fn a_reader_that_has_gone_is_known() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut plain = PlainText::new(Box::new(Closed));
        plain.push("words");
        let mut answers = Answers::Plain(plain);
        assert!(answers.has_failed() && !Answers::Screen.has_failed());
        let Answers::Plain(plain) = &mut answers else { unreachable!() };
        assert!(plain.take_error().is_none(), "it has enough");
    }

    /// The written text, for assertions.
    #[derive(Clone, Default)]
    struct Paper(Arc<Mutex<Vec<u8>>>);

    impl Write for Paper {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Paper {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    fn written(replies: &[&[&str]]) -> String {
        let paper = Paper::default();
        let mut plain = PlainText::new(Box::new(paper.clone()));
        for reply in replies {
            reply.iter().for_each(|piece| plain.push(piece));
            plain.end_reply();
        }
        paper.text()
    }

    #[test]
    fn words_leave_at_once_and_replies_are_apart() {
        let paper = Paper::default();
        let mut plain = PlainText::new(Box::new(paper.clone()));
        plain.push("\n\nHel");
        assert_eq!(paper.text(), "Hel");
        plain.push("lo\n\n");
        plain.push("you\r");
        assert_eq!(paper.text(), "Hello\n\nyou");
        plain.push("\n ");
        plain.end_reply();
        assert_eq!(paper.text(), "Hello\n\nyou\n");
        plain.end_reply();
        plain.push("Next.");
        plain.end_reply();
        assert_eq!(paper.text(), "Hello\n\nyou\n\nNext.\n");
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(text in "[a-z \r\n\t\u{1b}é👩\u{200d}💻]{0,40}", cut in 0..80_usize) {
            let cut = text.floor_char_boundary(cut.min(text.len()));
            prop_assert_eq!(written(&[&[&text]]), written(&[&[&text[..cut], &text[cut..]]]));
            prop_assert!(written(&[&[&text]]).chars().all(|c| c == '\n' || !c.is_control()));
        }
    }

    #[test]
    fn an_event_is_a_line() {
        let paper = Paper::default();
        let mut events = EventLines::new(Box::new(paper.clone()));
        events.push(&Shown::Content("a\nb".into()));
        events.push(&Shown::ServerAwaited(None));
        events.push(&Shown::Replied {
            content: "a\nb".into(),
            reasoning: String::new(),
            calls: 0,
            refused: Vec::new(),
        });
        assert_eq!(
            paper.text(),
            "{\"type\":\"text\",\"text\":\"a\\nb\"}\n{\"type\":\"reply\",\"text\":\"a\\nb\",\"calls\":0,\"refused\":[]}\n"
        );
    }
}
