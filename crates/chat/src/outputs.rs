//! The results of the calls of a session, whole, for `/output`. Pure.

use std::collections::VecDeque;

use agent::Entry;
use tools::named_subject;

/// The results that are kept.
const MOST: usize = 100;

/// The latest results, each with its number.
#[derive(Debug, Default)]
pub(super) struct Outputs {
    all: VecDeque<CallOutput>,
    /// The number of the last call.
    last: usize,
}

/// The result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CallOutput {
    /// The tool.
    pub(super) tool: String,
    /// The command, the file or what else it was called with.
    pub(super) subject: String,
    /// The result, or the change that it made.
    pub(super) text: String,
    /// Whether the text is a change.
    pub(super) is_change: bool,
}

/// A result that cannot be shown.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoOutput {
    #[error("no tool has run yet")]
    NothingRan,
    #[error(
        "there is no output {number}: the outputs {first} to {last} are kept, /output shows the last one"
    )]
    NotKept { number: String, first: usize, last: usize },
}

impl Outputs {
    /// Adds a result and returns its number.
    pub(super) fn add(&mut self, output: CallOutput) -> usize {
        if self.all.len() >= MOST {
            self.all.pop_front();
        }
        self.all.push_back(output);
        self.last += 1;
        self.last
    }

    /// Adds the results of a conversation that is resumed.
    pub(super) fn add_earlier(&mut self, entries: &[Entry]) {
        let exchanges = entries.iter().filter_map(|entry| match entry {
            Entry::Exchange(exchange) => Some(exchange),
            _ => None,
        });
        for exchange in exchanges {
            for result in &exchange.results {
                let Some(call) = exchange.calls.iter().find(|call| call.id == result.id) else { continue };
                let arguments = serde_json::from_str(&call.arguments).unwrap_or_default();
                let subject = named_subject(&arguments).unwrap_or_default().to_owned();
                let (tool, text) = (call.name.clone(), result.text.clone());
                self.add(CallOutput { tool, subject, text, is_change: false });
            }
        }
    }

    /// Returns the result with this number, or the last one.
    ///
    /// # Errors
    /// [`NoOutput`], with the results that there are.
    pub(super) fn find(&self, number: Option<&str>) -> Result<&CallOutput, NoOutput> {
        let first = self.last - self.all.len() + 1;
        let at = match number {
            None => self.all.len().checked_sub(1),
            Some(number) => number.parse::<usize>().ok().and_then(|number| number.checked_sub(first)),
        };
        at.and_then(|at| self.all.get(at)).ok_or_else(|| match self.last {
            0 => NoOutput::NothingRan,
            last => NoOutput::NotKept { number: number.unwrap_or_default().to_owned(), first, last },
        })
    }
}

/// Appends to a text and keeps its last `most` bytes.
pub(super) fn keep_end(text: &mut String, more: &str, most: usize) {
    text.push_str(more);
    let surplus = text.ceil_char_boundary(text.len().saturating_sub(most));
    text.drain(..surplus);
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent::{Exchange, RequestedCall, ToolResult};

    fn output(text: &str) -> CallOutput {
        CallOutput { tool: "shell_command".into(), subject: "ls".into(), text: text.into(), is_change: false }
    }

    #[test]
    fn results_are_found_by_number() {
        let mut outputs = Outputs::default();
        assert_eq!(outputs.find(None).unwrap_err(), NoOutput::NothingRan);
        assert_eq!((outputs.add(output("a")), outputs.add(output("b"))), (1, 2));
        let text = |outputs: &Outputs, number| outputs.find(number).map(|found| found.text.clone());
        assert_eq!(text(&outputs, None).unwrap(), "b");
        assert_eq!(text(&outputs, Some("1")).unwrap(), "a");
        for wrong in ["0", "3", "x"] {
            assert!(text(&outputs, Some(wrong)).unwrap_err().to_string().contains("1 to 2"));
        }
        (3..=102).for_each(|number| assert_eq!(outputs.add(output("c")), number));
        assert!(text(&outputs, Some("2")).unwrap_err().to_string().contains("3 to 102"));
        assert!(text(&outputs, Some("3")).is_ok());
    }

    #[test]
    fn a_resumed_conversation_has_its_results() {
        let call = RequestedCall {
            id: "1".into(),
            name: "read_file".into(),
            arguments: r#"{"file_path":"a.txt"}"#.into(),
            ..RequestedCall::default()
        };
        let result = ToolResult { id: "1".into(), ok: true, text: "one".into() };
        let exchange = Exchange { calls: vec![call], results: vec![result], ..Exchange::default() };
        let mut outputs = Outputs::default();
        outputs.add_earlier(&[Entry::Note("n".into()), Entry::Exchange(exchange)]);
        let found = outputs.find(None).unwrap();
        assert_eq!((found.subject.as_str(), found.text.as_str()), ("a.txt", "one"));
    }
}
