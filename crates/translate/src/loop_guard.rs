//! Detects an agent in a loop, warns the model first, and ends the run if it goes on.
//!
//! It counts in the request's conversation since the last real user message, so a long healthy conversation
//! is never stopped. OpenClaw appends its own user message after tool results, which does not count as one.
//! `repetition` recognises the loops; `additions` puts the warning into the request.

use std::collections::HashMap;

use super::repetition::{AnsweredCall, count_cycles, count_drifting, count_missing_tools};
use wire::Message;
use wire::turn::ToolCall;

/// The beginning of OpenClaw's own trailing user message.
const INTERNAL_CONTEXT: &str = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>";
/// The longest cycle that is looked for, in calls.
const LONGEST_CYCLE: usize = 3;
/// A search in other places may go on for longer than a repeated question: this multiple of
/// [`GuardLimits::max_repeats`].
const DRIFT_PATIENCE: usize = 4;

/// The limits that end a run.
#[derive(Clone, Copy, Debug)]
pub struct GuardLimits {
    /// The most tool results since the last real user message.
    pub max_tool_results: usize,
    /// This number of identical consecutive calls or cycles ends the run; for one tool with other arguments,
    /// four times this number.
    pub max_repeats: usize,
}

/// The shape of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopKind {
    /// Too many tool results since the last real user message.
    TooManyResults,
    /// The same call with the same result.
    Repeated,
    /// Two or three calls that alternate, each with the same result every time.
    Alternating,
    /// One tool, other arguments, the same useless result.
    Drifting,
    /// Calls of tools that the client does not have.
    UnknownTool,
}

impl LoopKind {
    /// Returns a stable name for logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TooManyResults => "too_many_results",
            Self::Repeated => "repeated",
            Self::Alternating => "alternating",
            Self::Drifting => "drifting",
            Self::UnknownTool => "unknown_tool",
        }
    }
}

/// A loop that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopFound {
    /// Its shape.
    pub kind: LoopKind,
    /// The tools that were called, for people; empty if they do not matter.
    pub tools: String,
    /// The count: tool results, identical calls, cycles, or useless calls.
    pub count: usize,
    /// The count that ends the run.
    pub limit: usize,
}

impl LoopFound {
    /// Returns true when the run must end; otherwise the model is warned.
    pub fn ends_run(&self) -> bool {
        self.count >= self.limit
    }

    /// Writes the answer that ends the run, in place of the model's.
    pub fn final_answer(&self) -> String {
        let limit = match self.kind {
            LoopKind::TooManyResults => "limits.max_tool_results",
            _ => "limits.max_repeats",
        };
        format!(
            "I stopped: {}. This is respool's loop guard (`{limit}`), not the model. Tell me how to go on, or ask for a \
             smaller step.",
            self.what_happened()
        )
    }

    /// Writes the warning that the model gets before that.
    pub fn warning(&self) -> String {
        let advice = match self.kind {
            LoopKind::UnknownTool => "Call only tools that are declared in this conversation",
            _ => "Do something else; if you are waiting for something, wait longer before you look again",
        };
        format!(
            "[Note from respool, the relay before this model; no part of the tool's result: {}. The same again will bring \
             nothing new. {advice}, or answer the user with what you have and say what is missing. At {} the run is ended.]",
            self.what_happened(),
            self.limit
        )
    }

    fn what_happened(&self) -> String {
        let Self { kind, tools, count, .. } = self;
        match kind {
            LoopKind::TooManyResults => {
                format!("{count} tool calls have been made since your last message without a final answer")
            }
            LoopKind::Repeated => format!(
                "the tool {tools} was called {count} times in a row with the same arguments and the same result"
            ),
            LoopKind::Alternating => format!(
                "the calls of {tools} were made {count} times in turns, with the same arguments and the same results"
            ),
            LoopKind::Drifting => {
                format!(
                    "the tool {tools} was called {count} times in a row and gave the same result each time"
                )
            }
            LoopKind::UnknownTool => {
                format!("{count} calls in a row were of tools that do not exist here (the last one: {tools})")
            }
        }
    }
}

/// Looks for a loop in the conversation.
pub fn check_loops(messages: &[Message<'_>], limits: GuardLimits) -> Option<LoopFound> {
    let calls = answered_calls(&messages[loop_start(messages)..]);
    if calls.len() > limits.max_tool_results {
        let (count, limit) = (calls.len(), limits.max_tool_results + 1);
        return Some(LoopFound { kind: LoopKind::TooManyResults, tools: String::new(), count, limit });
    }
    let found = repeated_cycles(&calls, limits.max_repeats);
    found.iter().find(|found| found.ends_run()).or(found.first()).cloned()
}

/// Finds loops that are worth a warning: at least half of the limit, and more than one call.
fn repeated_cycles(calls: &[AnsweredCall<'_>], max_repeats: usize) -> Vec<LoopFound> {
    let found = |kind, period: usize, count, limit: usize| {
        let worth = count >= (limit / 2).max(2) || count >= limit;
        worth.then(|| LoopFound { kind, tools: list_tools(&calls[calls.len() - period..]), count, limit })
    };
    let longer = (2..=LONGEST_CYCLE).map(|period| {
        found(LoopKind::Alternating, period.min(calls.len()), count_cycles(calls, period), max_repeats)
    });
    if calls.is_empty() {
        return vec![];
    }
    std::iter::once(found(LoopKind::Repeated, 1, count_cycles(calls, 1), max_repeats))
        .chain(longer)
        .chain([
            found(LoopKind::UnknownTool, 1, count_missing_tools(calls), max_repeats),
            found(LoopKind::Drifting, 1, count_drifting(calls), max_repeats * DRIFT_PATIENCE),
        ])
        .flatten()
        .collect()
}

/// Lists the tools of these calls, for people.
fn list_tools(calls: &[AnsweredCall<'_>]) -> String {
    let names: Vec<String> = calls.iter().map(|call| format!("`{}`", call.call.name)).collect();
    names.join(", ")
}

/// Counts the model's replies with calls since the last real user message. They are lost if the turn fails.
pub fn count_steps(messages: &[Message<'_>]) -> u32 {
    let since_user = &messages[loop_start(messages)..];
    let has_calls = |message: &&Message<'_>| {
        message.has_role("assistant") && message.object.get("tool_calls").is_some_and(|calls| calls != "null")
    };
    u32::try_from(since_user.iter().filter(has_calls).count()).unwrap_or(u32::MAX)
}

/// Returns the beginning of the current tool loop, after the last real user message.
pub(super) fn loop_start(messages: &[Message<'_>]) -> usize {
    messages.iter().rposition(is_real_user).map_or(0, |index| index + 1)
}

/// Returns true for a user's own message, not one that OpenClaw added.
pub(super) fn is_real_user(message: &Message<'_>) -> bool {
    message.has_role("user") && !message.content_starts_with(INTERNAL_CONTEXT)
}

fn answered_calls<'a>(messages: &'a [Message<'_>]) -> Vec<AnsweredCall<'a>> {
    let mut asked = HashMap::new();
    let mut answered = Vec::new();
    for message in messages {
        let calls = message.tool_calls().iter();
        asked.extend(calls.filter_map(|call| Some((call.id.clone()?, call))));
        if message.has_role("tool") {
            let id = message.object.string("tool_call_id").unwrap_or_default();
            // A result without a known call repeats nothing, so its id replaces the call.
            let unknown = || ToolCall { arguments: id.clone(), ..ToolCall::default() };
            let call = asked.get(&id).copied().cloned().unwrap_or_else(unknown);
            answered.push(AnsweredCall::new(call, message.object.get("content").unwrap_or_default()));
        }
    }
    answered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_counted_from_the_start() {
        let kinds = [
            LoopKind::TooManyResults,
            LoopKind::Repeated,
            LoopKind::Alternating,
            LoopKind::Drifting,
            LoopKind::UnknownTool,
        ];
        assert_eq!(kinds.map(LoopKind::as_str), telemetry::metrics::LOOP_KINDS);
    }
    use wire::{ChatRequest, encode_string};

    const LIMITS: GuardLimits = GuardLimits { max_tool_results: 200, max_repeats: 8 };

    /// One call of a conversation: tool, arguments, result.
    type Call = (String, String, String);

    fn call(name: &str, arguments: &str, result: &str) -> Call {
        (name.into(), arguments.into(), result.into())
    }

    fn texts(calls: &[Call]) -> Vec<String> {
        let text = |(id, (name, arguments, result)): (usize, &Call)| {
            let (arguments, result) = (encode_string(arguments), encode_string(result));
            format!(
                r#"{{"role":"assistant","content":null,"tool_calls":[{{"id":"c{id}","type":"function","function":{{"name":"{name}","arguments":{arguments}}}}}]}},
                {{"role":"tool","tool_call_id":"c{id}","content":{result}}},
                {{"role":"user","content":[{{"type":"text","text":"<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>> x"}}]}}"#
            )
        };
        calls.iter().enumerate().map(text).collect()
    }

    fn check_messages(messages: &[String], limits: GuardLimits) -> Option<LoopFound> {
        let body = format!(r#"{{"messages":[{}]}}"#, messages.join(","));
        let request = ChatRequest::parse(body.as_bytes()).unwrap();
        check_loops(&request.messages, limits)
    }

    /// The verdicts on the conversation as it grows call by call: the kind, and the calls at which the model
    /// was first warned and the run was ended.
    fn verdicts(calls: &[Call]) -> (Option<LoopKind>, Option<usize>, Option<usize>) {
        let texts = texts(calls);
        let found: Vec<(usize, LoopFound)> = (1..=calls.len())
            .filter_map(|length| Some((length, check_messages(&texts[..length], LIMITS)?)))
            .collect();
        let first = |stops| found.iter().find(|(_, found)| found.ends_run() == stops).map(|(at, _)| *at);
        (found.last().map(|(_, found)| found.kind), first(false), first(true))
    }

    fn repeated(calls: &[Call], times: usize) -> Vec<Call> {
        calls.iter().cycle().take(calls.len() * times).cloned().collect()
    }

    fn numbered(count: usize, call: impl Fn(usize) -> Call) -> Vec<Call> {
        (0..count).map(call).collect()
    }

    #[test]
    fn loops_are_warned_of_and_then_ended() {
        let poll = call("process", r#"{"action":"poll"}"#, "still running");
        let log = call("process", r#"{"action":"log"}"#, "(no output)");
        let list = call("ls", "{}", "a b");
        let grep = |at: usize| call("grep", &format!(r#"{{"pattern":"p{at}"}}"#), "No matches found");
        let page = |at: usize| call("fetch", &format!(r#"{{"page":{at}}}"#), &"the same page ".repeat(100));
        let unknown = |at: usize| call(["a", "b"][at % 2], "{}", &format!("Tool x{at} not found"));
        for (calls, kind, warned, ended) in [
            (repeated(std::slice::from_ref(&poll), 9), LoopKind::Repeated, 4, 8),
            (repeated(&[poll.clone(), log.clone()], 9), LoopKind::Alternating, 8, 16),
            (repeated(&[poll, log, list], 9), LoopKind::Alternating, 12, 24),
            (numbered(33, grep), LoopKind::Drifting, 16, 32),
            (numbered(33, page), LoopKind::Drifting, 16, 32),
            (numbered(9, unknown), LoopKind::UnknownTool, 4, 8),
        ] {
            assert_eq!(verdicts(&calls), (Some(kind), Some(warned), Some(ended)), "{kind:?}");
        }
        let spaced = [r#"{"a":1,"b":2}"#, r#"{"b":2, "a":1.0}"#, r#"{"a":1,"b":2}"#, r#"{"b":2,"a":1}"#];
        let spaced = spaced.map(|arguments| call("ls", arguments, "r"));
        assert_eq!(verdicts(&spaced).0, Some(LoopKind::Repeated));
    }

    #[test]
    fn healthy_work_is_neither_warned_of_nor_ended() {
        let edit = |at: usize| call("edit", &format!(r#"{{"path":"{at}"}}"#), "ok");
        let script = |at: usize| call("exec", &format!(r#"{{"command":"mv {at} x"}}"#), "(no output)");
        let poll = |at: usize| call("process", r#"{"action":"poll"}"#, &format!("{at} % done"));
        let page = |at: usize| call("read", &format!(r#"{{"offset":{at}}}"#), &format!("line {at}"));
        let grep = |at: usize| call("grep", &format!(r#"{{"pattern":"p{at}"}}"#), "No matches found");
        // Each failed search is followed by another that finds something.
        let search = |at: usize| if at % 15 == 14 { page(at) } else { grep(at) };
        let test = |at: usize| match at % 2 {
            0 => call("edit", &format!(r#"{{"path":"a","text":"{at}"}}"#), "ok"),
            _ => call("exec", r#"{"command":"cargo test"}"#, "error: test failed"),
        };
        let lint = |at: usize| call("lint", &format!(r#"{{"file":"{at}"}}"#), "no errors");
        for (name, calls) in [
            ("bulk edits", numbered(150, edit)),
            ("bulk commands", numbered(150, script)),
            ("polling with progress", numbered(150, poll)),
            ("pages", numbered(150, page)),
            ("searches", numbered(150, search)),
            ("edit and test", numbered(150, test)),
            ("lint file by file", numbered(150, lint)),
            ("three polls alike", repeated(&[poll(0)], 3)),
            ("three cycles alike", repeated(&[poll(0), page(0)], 3)),
        ] {
            assert_eq!(verdicts(&calls), (None, None, None), "{name}");
        }
    }

    #[test]
    fn only_calls_since_the_users_message_count() {
        let user = || r#"{"role":"user","content":"go on"}"#.to_owned();
        let mut messages = Vec::new();
        for text in texts(&numbered(200, |_| call("ls", "{}", "same"))).chunks(3) {
            messages.extend_from_slice(text);
            messages.push(user());
        }
        assert_eq!(check_messages(&messages, LIMITS), None);
        let limits = GuardLimits { max_tool_results: 20, ..LIMITS };
        let many = texts(&numbered(21, |at| call("ls", &at.to_string(), "r")));
        let found = check_messages(&many, limits).unwrap();
        assert_eq!((found.kind, found.count, found.ends_run()), (LoopKind::TooManyResults, 21, true));
        assert_eq!(check_messages(&many[..20], limits), None);
    }

    #[test]
    fn steps_are_replies_with_calls() {
        let calls = texts(&numbered(3, |at| call("ls", &at.to_string(), "r")));
        let user = || r#"{"role":"user","content":"go on"}"#.to_owned();
        let said = || r#"{"role":"assistant","content":"done","tool_calls":null}"#.to_owned();
        for (messages, expected) in [
            (vec![user()], 0),
            (calls.clone(), 3),
            ([&calls[..], &[said(), user()]].concat(), 0),
            ([&calls[..], &[said(), user()], &calls[1..]].concat(), 2),
        ] {
            let body = format!(r#"{{"messages":[{}]}}"#, messages.join(","));
            let request = ChatRequest::parse(body.as_bytes()).unwrap();
            assert_eq!(count_steps(&request.messages), expected, "{body}");
        }
    }

    #[test]
    fn the_smallest_limit_ends_at_the_first_repetition() {
        let limits = GuardLimits { max_repeats: 2, ..LIMITS };
        let calls = texts(&repeated(&[call("ls", "{}", "r")], 2));
        assert!(check_messages(&calls, limits).unwrap().ends_run());
        assert_eq!(check_messages(&calls[..1], limits), None);
    }

    #[test]
    fn the_texts_say_what_happened() {
        let found = check_messages(&texts(&repeated(&[call("ls", "{}", "r")], 5)), LIMITS).unwrap();
        let warning = found.warning();
        assert!(
            warning.contains("`ls` was called 5 times in a row") && warning.contains("At 8 "),
            "{warning}"
        );
        let answer = LoopFound { count: 8, ..found }.final_answer();
        assert!(answer.contains("8 times in a row") && answer.contains("limits.max_repeats"), "{answer}");
    }
}
