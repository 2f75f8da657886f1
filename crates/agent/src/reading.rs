//! Finds the calls in one reply of the model, by the agent's parsers in their order.
//!
//! What the relay read (the server's own calls, and its engine's on the text of a request with tools) is
//! taken as it is; other forms are read here by the same engine. Pure. Used by `run`.

use std::sync::Arc;

use serde_json::Value;

use super::call::RequestedCall;

use super::event::ModelReply;

use super::setup::Setup;
use tool_call_parser::{End, Engine, Field, Options, Tools, mended_object};
use translate::Ids;
use wire::turn::{Dropped, Note, ToolCall, Turn, TurnEvent};

/// The calls of a reply.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Reading {
    /// The calls, in order, each with an id.
    pub(super) calls: Vec<RequestedCall>,
    /// How they were found.
    pub(super) parser: Option<String>,
    /// Calls that cannot be made: the name as written, and why.
    pub(super) refused: Vec<(String, String)>,
    /// The final answer, where the form of the reply wraps it.
    pub(super) answer: Option<String>,
}

/// Reads a reply.
pub(super) fn read_reply(reply: &ModelReply, setup: &Setup, ids: &mut Ids) -> Reading {
    let tools = Arc::new(declare_tools(setup));
    let mut reading = Reading { refused: reply.refused.clone(), ..Reading::default() };
    for parser in &setup.style.parsers {
        let (calls, name) = match parser.as_str() {
            "native" if setup.style.reasoning_first && reply.calls.is_empty() => {
                calls_in_reasoning(reply, &tools)
            }
            "native" => (reply.calls.clone(), parser_name(reply)),
            "guided_json" => {
                let (calls, answer) = read_guided(&reply.content, &tools);
                reading.answer = answer;
                (calls, parser.clone())
            }
            name if reply.dialects.iter().any(|read| *read == dialect_name(name)) => {
                (reply.calls.clone(), name.to_owned())
            }
            name => (
                calls_in_text(reply, setup, &tools, dialect_name(name), &mut reading.refused),
                name.to_owned(),
            ),
        };
        if !calls.is_empty() {
            return with_calls(reading, calls, name, ids);
        }
    }
    // The relay took these out of the text, so they count whatever the parsers are.
    with_calls(reading, reply.calls.clone(), parser_name(reply), ids)
}

fn with_calls(mut reading: Reading, mut calls: Vec<RequestedCall>, parser: String, ids: &mut Ids) -> Reading {
    for call in calls.iter_mut().filter(|call| call.id.is_empty()) {
        call.id = ids.choose_id(None);
    }
    reading.parser = (!calls.is_empty()).then_some(parser);
    reading.calls = calls;
    reading
}

fn parser_name(reply: &ModelReply) -> String {
    reply.dialects.first().cloned().unwrap_or_else(|| "native".to_owned())
}

/// Returns the calls that the reasoning of a turn without any holds, in whatever dialect: the agent's
/// settings say that it is read.
fn calls_in_reasoning(reply: &ModelReply, tools: &Arc<Tools>) -> (Vec<RequestedCall>, String) {
    let options = Options { read_reasoning: true, ..Options::for_whole_reply() };
    let turn = parse_text(&reply.reasoning, reply.cut, tools, options);
    let dialect = turn.notes.iter().find_map(dialect_of).map_or_else(|| parser_name(reply), str::to_owned);
    (turn.calls.into_iter().map(requested_call).collect(), dialect)
}

/// Returns the engine's name of a parser.
fn dialect_name(parser: &str) -> &str {
    if parser == "markers" { "marker" } else { parser }
}

/// Returns the offered tools as the engine knows them.
pub(super) fn declare_tools(setup: &Setup) -> Tools {
    let tools = setup.tools.iter().map(|tool| (tool.name.clone(), tool.parameters.to_string()));
    let tools: Vec<(String, String)> = tools.collect();
    Tools::from_parts(tools.iter().map(|(name, schema)| (name.clone(), Some(schema.as_str()))))
}

/// Returns the calls of one dialect in the text. The reasoning is looked into first, or only where there is
/// no content.
fn calls_in_text(
    reply: &ModelReply,
    setup: &Setup,
    tools: &Arc<Tools>,
    dialect: &str,
    refused: &mut Vec<(String, String)>,
) -> Vec<RequestedCall> {
    let (content, reasoning) = (reply.content.as_str(), reply.reasoning.as_str());
    let fields = match setup.style.reasoning_first {
        true => vec![reasoning, content],
        false if content.trim().is_empty() => vec![reasoning],
        false => vec![content],
    };
    for text in fields {
        let read_reasoning = setup.style.reasoning_first;
        let options = Options { fuzzy: dialect == "fuzzy", read_reasoning, ..Options::for_whole_reply() };
        let turn = parse_text(text, reply.cut, tools, options);
        let dialects: Vec<&str> = turn.notes.iter().filter_map(dialect_of).collect();
        if dialects.first() == Some(&dialect) {
            return turn.calls.into_iter().map(requested_call).collect();
        }
        refused.extend(turn.notes.iter().filter_map(refusal_of));
    }
    Vec::new()
}

fn parse_text(text: &str, cut: bool, tools: &Arc<Tools>, options: Options) -> Turn {
    let mut engine = Engine::new(Arc::clone(tools), options);
    let mut events: Vec<TurnEvent> = Vec::new();
    engine.push(Field::Content, text, &mut events);
    engine.finish(End { cut }, &mut events);
    events.into_iter().collect()
}

fn dialect_of(note: &Note) -> Option<&'static str> {
    match note {
        Note::Dialect(name) => Some(name),
        _ => None,
    }
}

/// Returns a call that was held back, as [`Reading::refused`] has it.
pub(super) fn refusal_of(note: &Note) -> Option<(String, String)> {
    match note {
        Note::Dropped {
            name,
            why:
                why @ (Dropped::Undeclared
                | Dropped::Truncated
                | Dropped::Unclosed
                | Dropped::Unreadable
                | Dropped::MissingRequired),
            ..
        } => Some((name.clone(), why.as_str().to_owned())),
        _ => None,
    }
}

/// Returns a call as the run keeps it.
pub(super) fn requested_call(call: ToolCall) -> RequestedCall {
    RequestedCall {
        id: call.id.unwrap_or_default(),
        name: call.name,
        arguments: call.arguments,
        problems: call.problems,
    }
}

/// Reads `{"tool_calls":[…]}` or `{"answer":"…"}`.
fn read_guided(content: &str, tools: &Arc<Tools>) -> (Vec<RequestedCall>, Option<String>) {
    let start = content.find('{').unwrap_or_default();
    let object = mended_object(content[start..].trim().trim_end_matches('`').trim());
    let Some(object) = object.and_then(|text| serde_json::from_str::<Value>(&text).ok()) else {
        return (Vec::new(), None);
    };
    let answer = object["answer"].as_str().map(str::to_owned);
    if object["tool_calls"].as_array().is_none_or(Vec::is_empty) {
        return (Vec::new(), answer);
    }
    let turn = parse_text(&object.to_string(), false, tools, Options::default());
    (turn.calls.into_iter().map(requested_call).collect(), answer)
}

/// Returns true when a text that holds no call looks as if one was meant. An answer may quote one as code.
pub(super) fn looks_like_a_call(text: &str) -> bool {
    const SIGNS: [&str; 9] = [
        "[TOOL:",
        "[TOOL_CALL",
        "<tool_call",
        "<function=",
        "<|tool_call",
        "\"tool_calls\"",
        "Action Input:",
        "to=functions.",
        "[TOOL_CALLS]",
    ];
    let prose = without_code(text);
    let text = if prose.trim().is_empty() { text } else { &prose };
    SIGNS.iter().any(|sign| text.contains(sign))
}

/// Returns a Markdown text without its code spans and closed code blocks.
fn without_code(text: &str) -> String {
    let (mut prose, mut rest) = (String::new(), text);
    while let Some(start) = rest.find('`') {
        let (before, code) = rest.split_at(start);
        let marks = code.len() - code.trim_start_matches('`').len();
        let (mark, code) = code.split_at(marks);
        let is_end = |at: &usize| !code[at + marks..].starts_with('`') && !code[..*at].ends_with('`');
        let end = code.match_indices(mark).map(|(at, _)| at).find(is_end);
        prose.push_str(before);
        // An open mark of code is text.
        rest = end.map_or(code, |end| &code[end + marks..]);
    }
    prose + rest
}
