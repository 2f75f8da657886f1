//! Checks calls of custom tools against the tools' regular expressions. OpenAI's servers write only matching
//! text; a model here may write any.
//!
//! Grammars in Lark's notation are not checked, and neither is an expression that this library cannot read.
//! Called by `responses`, which declares the tools, by `relay` once a whole reply has been read, and by
//! `live` for each call.

use std::sync::{Arc, LazyLock};

use regex::{Regex, RegexBuilder};

use super::reply::Reply;
use wire::Object;
use wire::turn::{Dropped, Note, ToolCall, TurnEvent};

/// The most expressions of a request that are checked. Each takes memory until the request is answered.
const MOST: usize = 32;
/// The largest compiled expression, in bytes.
const LARGEST: usize = 1 << 20;

/// The field of a custom tool's function that takes the text.
pub(super) const FREE_TEXT: &str = "input";

/// The expressions that the free text of some functions must match.
#[derive(Clone, Debug, Default)]
pub struct FreeTextPatterns(Vec<(String, Regex)>);

impl FreeTextPatterns {
    /// Returns the patterns of a request without such tools, which all of them share.
    pub fn none() -> Arc<Self> {
        static NONE: LazyLock<Arc<FreeTextPatterns>> = LazyLock::new(Arc::default);
        Arc::clone(&NONE)
    }

    /// Adds the expression that the whole text of this function must match.
    pub(super) fn add_pattern(&mut self, function: &str, definition: &str) {
        let whole = format!(r"\A(?:{definition})\z");
        if self.0.len() < MOST
            && let Ok(pattern) = RegexBuilder::new(&whole).size_limit(LARGEST).build()
        {
            self.0.push((function.to_owned(), pattern));
        }
    }

    /// Removes the calls whose text does not match.
    pub fn remove_mismatches(&self, reply: &mut Reply) {
        for turn in reply.choices.iter_mut().map(|choice| &mut choice.turn).filter(|_| !self.0.is_empty()) {
            for call in std::mem::take(&mut turn.calls) {
                turn.apply_event(self.check_call(call));
            }
        }
    }

    /// Returns the call, or a note in its place if its text does not match.
    pub(super) fn check_call(&self, call: ToolCall) -> TurnEvent {
        if self.permits_call(&call) {
            return TurnEvent::ToolCall(call);
        }
        TurnEvent::Note(Note::Dropped {
            name: call.name,
            why: Dropped::Unreadable,
            arguments: Some(call.arguments),
        })
    }

    fn permits_call(&self, call: &ToolCall) -> bool {
        let pattern = self.0.iter().find(|(name, _)| *name == call.name);
        pattern.is_none_or(|(_, pattern)| pattern.is_match(&free_text(&call.arguments)))
    }
}

/// Finds the free text among a call's arguments. If the model named the field differently, the only text
/// counts. A value of another type stays JSON.
pub(super) fn free_text(arguments: &str) -> String {
    let Ok(object) = Object::parse(arguments) else { return arguments.to_owned() };
    let texts: Vec<String> = object.iter().filter_map(|(_, value)| wire::decode_string(value)).collect();
    match (object.string(FREE_TEXT), texts.as_slice(), object.get(FREE_TEXT)) {
        (Some(text), ..) => text,
        (None, [text], _) => text.clone(),
        (None, _, Some(value)) => value.to_owned(),
        _ if object.iter().next().is_none() => String::new(),
        _ => arguments.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fault, ReplyChoice};
    use wire::turn::Turn;

    #[test]
    fn the_text_of_a_custom_call() {
        for (arguments, text) in [
            (r#"{"input":"a\nb"}"#, "a\nb"),
            (r#"{"patch":"a"}"#, "a"),
            (r#"{"patch":"a","why":"b"}"#, r#"{"patch":"a","why":"b"}"#),
            (r#"{"input":{"a":1}}"#, r#"{"a":1}"#),
            (r#"{"input":7,"why":8}"#, "7"),
            ("{}", ""),
            ("text", "text"),
        ] {
            assert_eq!(free_text(arguments), text, "{arguments}");
        }
    }

    #[test]
    fn mismatching_free_text_is_a_bad_call() {
        let mut patterns = FreeTextPatterns::default();
        patterns.add_pattern("when", r"\d+");
        patterns.add_pattern("unreadable", r"(?=x)");
        let check = |name: &str, arguments: &str| {
            let call =
                ToolCall { id: None, name: name.into(), arguments: arguments.into(), problems: vec![] };
            let choice =
                ReplyChoice { turn: Turn { calls: vec![call], ..Turn::default() }, ..ReplyChoice::default() };
            let mut reply = Reply { choices: vec![choice], ..Reply::default() };
            patterns.remove_mismatches(&mut reply);
            Fault::find_in_reply(&reply)
        };
        let bad = Fault::BadCall("when".into(), Dropped::Unreadable);
        assert_eq!(check("when", r#"{"input":"42"}"#), None);
        for arguments in [r#"{"input":"abc"}"#, r#"{"input":"42 "}"#, r#"{"input":"42\n"}"#, "{}"] {
            assert_eq!(check("when", arguments), Some(bad.clone()), "{arguments}");
        }
        assert_eq!(check("unreadable", r#"{"input":"abc"}"#), None);
        assert_eq!(check("other", r#"{"input":"abc"}"#), None);
    }
}
