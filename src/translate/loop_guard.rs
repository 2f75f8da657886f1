//! Notices an agent that goes in circles: too many tool results, or the same call with the same result again and again.
//!
//! Counted since the last real user message, so a long healthy conversation is never stopped. OpenClaw appends a user
//! message of its own after tool results (field notes, fact 5); it is no real one.

use std::collections::HashMap;

use crate::wire::{Message, Object, array, decode_string};

/// How OpenClaw's own trailing user message starts.
const INTERNAL_CONTEXT: &str = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>";

/// When to stop.
#[derive(Clone, Copy, Debug)]
pub struct GuardLimits {
    /// More tool results than this since the last real user message.
    pub max_tool_results: usize,
    /// This many identical consecutive calls.
    pub max_repeats: usize,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoopFound {
    /// So many tool results since the last real user message.
    TooManyResults(usize),
    /// The same call of this tool, so many times in a row.
    Repeated(String, usize),
}

impl LoopFound {
    /// The answer that ends the run, in the model's place.
    pub fn answer(&self) -> String {
        match self {
            Self::TooManyResults(count) => format!(
                "I stopped: {count} tool calls have been made since your last message without a final answer. This is \
                 respool's loop guard (`limits.max_tool_results`), not the model. Tell me how to go on, or ask for a smaller step."
            ),
            Self::Repeated(tool, count) => format!(
                "I stopped: the tool `{tool}` was called {count} times in a row with the same arguments and the same \
                 result. This is respool's loop guard (`limits.max_repeats`), not the model. Tell me how to go on."
            ),
        }
    }
}

/// Looks at the conversation; `None` when all is well.
pub fn check_loops(messages: &[Message<'_>], limits: GuardLimits) -> Option<LoopFound> {
    let start = messages.iter().rposition(is_real_user).map_or(0, |index| index + 1);
    let calls = answered_calls(&messages[start..]);
    if calls.len() > limits.max_tool_results {
        return Some(LoopFound::TooManyResults(calls.len()));
    }
    let last = calls.last()?;
    let repeats = calls.iter().rev().take_while(|call| call.repeats(last)).count();
    (repeats >= limits.max_repeats).then(|| LoopFound::Repeated(last.asked.name.clone(), repeats))
}

/// A call that a message of the conversation makes.
#[derive(Clone, Default)]
pub(super) struct Asked {
    pub(super) name: String,
    arguments: String,
}

struct Answered<'a> {
    asked: Asked,
    result: &'a str,
}

impl Answered<'_> {
    fn repeats(&self, other: &Self) -> bool {
        self.result == other.result
            && self.asked.name == other.asked.name
            && (self.asked.arguments == other.asked.arguments
                || normalised(&self.asked.arguments) == normalised(&other.asked.arguments))
    }
}

pub(super) fn is_real_user(message: &Message<'_>) -> bool {
    message.is_from("user") && !message.starts_with(INTERNAL_CONTEXT)
}

fn answered_calls<'a>(messages: &'a [Message<'_>]) -> Vec<Answered<'a>> {
    let mut asked = HashMap::new();
    let mut answered = Vec::new();
    for message in messages {
        asked.extend(message.object.get("tool_calls").map(calls_of).unwrap_or_default());
        if message.is_from("tool") {
            let id = message.object.string("tool_call_id").unwrap_or_default();
            // A result whose call is not known repeats nothing: its id stands in for the call.
            let unknown = || Asked { name: String::new(), arguments: id.clone() };
            let asked = asked.get(&id).cloned().unwrap_or_else(unknown);
            answered.push(Answered { asked, result: message.object.get("content").unwrap_or_default() });
        }
    }
    answered
}

/// The calls in a message's `tool_calls`, by id.
pub(super) fn calls_of(text: &str) -> Vec<(String, Asked)> {
    let call = |text: &&str| {
        let call = Object::parse(text).ok()?;
        let function = Object::parse(call.get("function")?).ok()?;
        let raw = function.get("arguments").unwrap_or_default();
        let arguments = decode_string(raw).unwrap_or_else(|| raw.to_owned());
        let asked = Asked { name: function.string("name")?, arguments };
        Some((call.string("id")?, asked))
    };
    array(text).unwrap_or_default().iter().filter_map(call).collect()
}

/// The same arguments, however they are spaced or ordered.
fn normalised(arguments: &str) -> String {
    let Ok(mut value) = serde_json::from_str::<serde_json::Value>(arguments) else {
        return arguments.to_owned();
    };
    value.sort_all_objects();
    value.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ChatRequest;

    const LIMITS: GuardLimits = GuardLimits { max_tool_results: 20, max_repeats: 3 };

    fn call(id: usize, arguments: &str, result: &str) -> String {
        let arguments = crate::wire::encode_string(arguments);
        format!(
            r#"{{"role":"assistant","content":null,"tool_calls":[{{"id":"c{id}","type":"function","function":{{"name":"ls","arguments":{arguments}}}}}]}},
            {{"role":"tool","tool_call_id":"c{id}","content":"{result}"}},
            {{"role":"user","content":[{{"type":"text","text":"<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>> x"}}]}}"#
        )
    }

    fn check(messages: &[String]) -> Option<LoopFound> {
        let body = format!(r#"{{"messages":[{}]}}"#, messages.join(","));
        let request = ChatRequest::parse(body.as_bytes()).unwrap();
        check_loops(&request.messages, LIMITS)
    }

    fn user() -> String {
        r#"{"role":"user","content":"go on"}"#.to_owned()
    }

    #[test]
    fn the_same_call_with_the_same_result_is_a_loop() {
        let same = [r#"{"a":1,"b":2}"#, r#"{"b":2, "a":1}"#, r#"{"a":1,"b":2}"#];
        let calls: Vec<_> = same.iter().enumerate().map(|(id, arguments)| call(id, arguments, "r")).collect();
        assert_eq!(check(&calls), Some(LoopFound::Repeated("ls".into(), 3)));
        assert_eq!(check(&calls[..2]), None);
        let polling: Vec<_> = (0..6).map(|id| call(id, "{}", &format!("r{id}"))).collect();
        assert_eq!(check(&polling), None, "other results mean progress");
    }

    #[test]
    fn a_long_healthy_conversation_is_never_stopped() {
        let mut messages = Vec::new();
        for id in 0..200 {
            messages.push(call(id, "{}", "same"));
            if id % 2 == 1 {
                messages.push(user());
            }
        }
        assert_eq!(check(&messages), None);
    }

    #[test]
    fn too_many_results_since_the_last_user_message() {
        let many: Vec<_> =
            std::iter::once(user()).chain((0..21).map(|id| call(id, &id.to_string(), "r"))).collect();
        assert_eq!(check(&many), Some(LoopFound::TooManyResults(21)));
        assert_eq!(check(&many[..21]), None);
    }
}
