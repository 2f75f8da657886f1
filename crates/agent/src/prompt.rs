//! The prompt: the transcript as messages, the tools as declarations or in words.
//!
//! Where the form has no role for results they go back as `[TOOL_RESULT: name] …` and `[TOOL_ERROR: name] …`.
//! Pure. Used by `run`.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::call::RequestedCall;
use super::neutralize::MarkEscaper;
use super::setup::{CallForm, OfferedTool, Setup};
use super::transcript::{Entry, Exchange, ToolResult};

const REACT: &str = include_str!("prompts/react.md");
const MARKERS: &str = include_str!("prompts/markers.md");
const GUIDED_JSON: &str = include_str!("prompts/guided_json.md");
const PLAIN: &str = include_str!("prompts/plain.md");

/// No entry is cut to less for a summary, in bytes.
const SHORTEST: usize = 200;

/// Stands before the message behind a summary.
const NEXT_MESSAGE: &str = "[respool] Now the person writes:\n";

/// Ends results that are sent as text.
const GO_ON: &str = "Continue with the next step, or give the final answer.";

/// Returns the messages of the next model call. `neutral` breaks what others wrote and only looks like a
/// message.
pub(super) fn messages(
    setup: &Setup,
    entries: &[Entry],
    with_tools: bool,
    neutral: MarkEscaper,
) -> Vec<Value> {
    let form = setup.style.form;
    let mut out = Vec::with_capacity(entries.len() + 2);
    let system = system_text(setup, with_tools, neutral);
    let mut is_behind_summary = false;
    for entry in entries {
        match entry {
            Entry::ClientMessage(message) if form == CallForm::Native => {
                out.push(neutral.client_message(message));
            }
            Entry::ClientMessage(message) => out.push(without_roles(message, neutral)),
            Entry::UserTurn(message) => {
                let mut content = message["content"].clone();
                if is_behind_summary && let Some(text) = first_text(&mut content) {
                    // Both are messages of the user: the summary must not seem to go on.
                    text.insert_str(0, NEXT_MESSAGE);
                }
                push_user(content, &mut out);
            }
            Entry::Exchange(exchange) if form == CallForm::Native => push_native(exchange, neutral, &mut out),
            Entry::Exchange(exchange) => push_textual(exchange, form, neutral, &mut out),
            Entry::Note(text) => push_user(format!("[respool] {}", neutral.escape_text(text)), &mut out),
            Entry::Summary(text) => {
                let text = neutral.own_words(text);
                push_user(format!("[respool] What has been done so far, in short:\n{text}"), &mut out);
            }
        }
        is_behind_summary =
            matches!(entry, Entry::Summary(_)) || is_behind_summary && matches!(entry, Entry::Note(_));
    }
    put_system(&system, &mut out);
    out
}

/// Returns the request's `tools`; empty where the form has none.
pub(super) fn tools(setup: &Setup, neutral: MarkEscaper) -> Vec<Value> {
    if setup.style.form != CallForm::Native {
        return Vec::new();
    }
    let declared = |tool: &OfferedTool| {
        json!({"type": "function", "function": {
            "name": tool.name, "description": neutral.escape_text(&tool.description),
            "parameters": neutral.escape_schema(&tool.parameters)}})
    };
    setup.tools.iter().map(declared).collect()
}

/// Returns the request's `response_format`, where the server's grammar forces the form.
pub(super) fn response_format(setup: &Setup) -> Option<Value> {
    (setup.style.form == CallForm::GuidedJson && !setup.tools.is_empty()).then(|| {
        let names: Vec<&str> = setup.tools.iter().map(|tool| tool.name.as_str()).collect();
        let call = json!({"type": "object", "required": ["name", "arguments"],
            "properties": {"name": {"enum": names}, "arguments": {"type": "object"}}});
        let schema = json!({"anyOf": [
            {"type": "object", "required": ["tool_calls"], "additionalProperties": false,
             "properties": {"tool_calls": {"type": "array", "minItems": 1, "items": call}}},
            {"type": "object", "required": ["answer"], "additionalProperties": false,
             "properties": {"answer": {"type": "string"}}}]});
        json!({"type": "json_schema", "json_schema": {"name": "step", "schema": schema}})
    })
}

/// Returns the messages that ask for a summary of exchanges, which have about this many bytes at most.
pub(super) fn summary_messages(
    setup: &Setup,
    entries: &[Entry],
    bytes: usize,
    neutral: MarkEscaper,
) -> Vec<Value> {
    let share = (bytes / entries.len().max(1)).max(SHORTEST);
    let cut = |text: &str| super::context::head_and_tail(text, share).0;
    let mut text = String::from(
        "Summarise the following work of an assistant for the assistant itself, which will go on from your summary alone: \
         what was asked of tools, what came out, which facts, names, paths and numbers matter, what is still open. At most \
         400 words, no introduction.\n",
    );
    if let Some(Entry::ClientMessage(task)) =
        setup.messages.iter().rev().find(|it| it["role"] == "user").cloned().map(Entry::ClientMessage)
    {
        let _ = write!(
            text,
            "\nThe task: {}\n",
            super::context::head_and_tail(&plain_content(&task["content"]), 2_000).0
        );
    }
    for entry in entries {
        let _ = match entry {
            Entry::ClientMessage(_) => Ok(()),
            Entry::UserTurn(message) => {
                writeln!(text, "\nThe person: {}", cut(&plain_content(&message["content"])))
            }
            Entry::Note(note) | Entry::Summary(note) => {
                writeln!(text, "\n{}", cut(&neutral.escape_text(note)))
            }
            Entry::Exchange(exchange) => writeln!(text, "\n{}", cut(&exchange_text(exchange, neutral))),
        };
    }
    vec![json!({"role": "user", "content": text})]
}

/// Returns an exchange as text.
fn exchange_text(exchange: &Exchange, neutral: MarkEscaper) -> String {
    let mut text = format!("Assistant: {}", neutral.escape_text(exchange.content.trim()));
    for call in &exchange.calls {
        let _ = write!(text, "\nCalled {} with {}", call.name, neutral.escape_text(&call.arguments));
        if let Some(result) = result_of(exchange, call) {
            let _ = write!(text, "\n{}", label_result(&call.name, result, neutral));
        }
    }
    text
}

fn system_text(setup: &Setup, with_tools: bool, neutral: MarkEscaper) -> String {
    let how = match setup.style.form {
        _ if setup.tools.is_empty() || !with_tools => "",
        CallForm::Native => "",
        CallForm::GuidedJson => GUIDED_JSON,
        CallForm::React => REACT,
        CallForm::Markers => MARKERS,
        CallForm::Plain => PLAIN,
    };
    let how = match how {
        "" => String::new(),
        how => how.replace("{tools}", &describe_tools(&setup.tools, neutral)),
    };
    let own = setup.system.as_deref().unwrap_or_default();
    [own.trim(), how.trim()].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n\n")
}

fn describe_tools(tools: &[OfferedTool], neutral: MarkEscaper) -> String {
    let tool = |tool: &OfferedTool| {
        let (description, schema) =
            (neutral.escape_text(tool.description.trim()), neutral.escape_schema(&tool.parameters));
        format!("### {}\n{description}\nArguments (JSON Schema): {schema}", tool.name)
    };
    tools.iter().map(tool).collect::<Vec<_>>().join("\n\n")
}

/// Puts the agent's words before the client's system message: many templates allow one, at the beginning.
fn put_system(text: &str, messages: &mut Vec<Value>) {
    if text.is_empty() {
        return;
    }
    let first =
        messages.first_mut().filter(|first| matches!(first["role"].as_str(), Some("system" | "developer")));
    let Some(first) = first else { return messages.insert(0, json!({"role": "system", "content": text})) };
    match &mut first["content"] {
        Value::Array(parts) => parts.insert(0, json!({"type": "text", "text": text})),
        content => *content = format!("{text}\n\n{}", content.as_str().unwrap_or_default()).into(),
    }
}

fn push_native(exchange: &Exchange, neutral: MarkEscaper, out: &mut Vec<Value>) {
    let mut message = json!({"role": "assistant", "content": neutral.own_words(&exchange.content)});
    if exchange.calls.is_empty() {
        return out.push(message);
    }
    if exchange.content.is_empty() {
        message["content"] = Value::Null;
    }
    if !exchange.reasoning.is_empty() {
        message["reasoning_content"] = neutral.own_words(&exchange.reasoning).into();
    }
    let call = |call: &RequestedCall| {
        let arguments = neutral.escape_arguments(&call.arguments);
        json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}})
    };
    message["tool_calls"] = exchange.calls.iter().map(call).collect();
    out.push(message);
    for call in &exchange.calls {
        let Some(result) = result_of(exchange, call) else { continue };
        let text = neutral.escape_result(&result.text);
        let text = if result.ok { text } else { format!("Error: {text}") };
        out.push(json!({"role": "tool", "tool_call_id": call.id, "content": text}));
    }
}

fn push_textual(exchange: &Exchange, form: CallForm, neutral: MarkEscaper, out: &mut Vec<Value>) {
    let content = match exchange.content.trim() {
        "" => exchange.calls.iter().map(|call| write_call(call, form)).collect::<Vec<_>>().join("\n"),
        _ => exchange.content.clone(),
    };
    out.push(json!({"role": "assistant", "content": neutral.own_words(&content)}));
    let result = |call: &RequestedCall| Some(label_result(&call.name, result_of(exchange, call)?, neutral));
    let results = exchange.calls.iter().filter_map(result);
    let results: Vec<String> = results.collect();
    if !results.is_empty() {
        push_user(format!("Tool results:\n{}\n\n{GO_ON}", results.join("\n")), out);
    }
}

/// Returns a call as the model should have written it.
fn write_call(call: &RequestedCall, form: CallForm) -> String {
    match form {
        CallForm::GuidedJson | CallForm::Native => {
            format!(r#"{{"tool_calls":[{{"name":"{}","arguments":{}}}]}}"#, call.name, call.arguments)
        }
        CallForm::React | CallForm::Plain => {
            format!("Action: {}\nAction Input: {}", call.name, call.arguments)
        }
        CallForm::Markers => {
            let arguments =
                serde_json::from_str::<serde_json::Map<String, Value>>(&call.arguments).unwrap_or_default();
            let arguments = arguments.iter().map(|(key, value)| format!("|{key}={}", plain_content(value)));
            format!("[TOOL:{}{}]", call.name, arguments.collect::<String>())
        }
    }
}

fn label_result(tool: &str, result: &ToolResult, neutral: MarkEscaper) -> String {
    let mark = if result.ok { "TOOL_RESULT" } else { "TOOL_ERROR" };
    format!("[{mark}: {tool}] {}", neutral.escape_result(&result.text))
}

fn result_of<'a>(exchange: &'a Exchange, call: &RequestedCall) -> Option<&'a ToolResult> {
    exchange.results.iter().find(|result| result.id == call.id)
}

/// Adds words of the user, or parts. They join a message of the same role before them: some templates insist
/// on turns.
fn push_user(content: impl Into<Value>, out: &mut Vec<Value>) {
    let content = content.into();
    let Some(last) = out.last_mut().filter(|last| last["role"] == "user") else {
        return out.push(json!({"role": "user", "content": content}));
    };
    match (&mut last["content"], content) {
        (Value::String(before), Value::String(text)) => {
            before.push_str("\n\n");
            before.push_str(&text);
        }
        (before, content) => *before = [before.take(), content].into_iter().flat_map(into_parts).collect(),
    }
}

fn into_parts(content: Value) -> Vec<Value> {
    match content {
        Value::Array(parts) => parts,
        text => vec![json!({"type": "text", "text": plain_content(&text)})],
    }
}

/// Returns the words of a content, or those before its pictures.
fn first_text(content: &mut Value) -> Option<&mut String> {
    let text = match content {
        Value::Array(parts) => parts.first_mut()?.get_mut("text")?,
        text => text,
    };
    if let Value::String(text) = text { Some(text) } else { None }
}

/// Returns a client's message for a model that knows no tool role.
fn without_roles(message: &Value, neutral: MarkEscaper) -> Value {
    if message["role"] == "tool" {
        let text = neutral.escape_result(&plain_content(&message["content"]));
        return json!({"role": "user", "content": format!("[TOOL_RESULT: {}] {text}", message["name"].as_str().unwrap_or("tool"))});
    }
    let Some(calls) = message["tool_calls"].as_array() else { return message.clone() };
    let call = |call: &Value| {
        let function = &call["function"];
        format!("I call {} with {}.", plain_content(&function["name"]), plain_content(&function["arguments"]))
    };
    let words = plain_content(&message["content"]);
    let lines: Vec<String> =
        [words].into_iter().filter(|text| !text.is_empty()).chain(calls.iter().map(call)).collect();
    json!({"role": "assistant", "content": lines.join("\n")})
}

/// Returns the text of a content: a string, the text parts of an array, or JSON.
pub(super) fn plain_content(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        Value::Array(parts) => parts.iter().map(part_text).collect::<Vec<_>>().join("\n"),
        other => other.to_string(),
    }
}

fn part_text(part: &Value) -> String {
    let left_out = || format!("[a part of type {} was left out]", part["type"].as_str().unwrap_or("unknown"));
    part["text"].as_str().map_or_else(left_out, str::to_owned)
}
