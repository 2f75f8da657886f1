//! Reads tool calls out of what language models write: [`parse`] takes a whole reply, [`Engine`] a stream.
//!
#![expect(clippy::doc_markdown, reason = "the README names model families as their makers write them")]
#![doc = include_str!("../README.md")]

mod aliases;
#[cfg(test)]
mod behaviour;
mod calls;
#[cfg(test)]
mod cases;
#[cfg(test)]
mod classes;
mod coerce;
mod command_words;
pub mod dialects;
mod digits;
mod echo;
mod engine;
mod event;
mod formats;
mod input;
mod json_span;
mod ledger;
mod lenient_json;
#[cfg(test)]
mod lookalikes;
mod marks;
mod namesakes;
mod objects;
mod openers;
#[cfg(any(test, fuzzing))]
pub mod oracle;
mod preferred_dialects;
#[cfg(test)]
mod properties;
mod quotation;
mod repairs;
mod scanner;
mod schema;
mod settle;
mod space;
pub mod templates;
mod tools;
mod unquoted;

use std::sync::Arc;

pub use dialects::has_reasoning_end;
pub use engine::Engine;
pub use event::{Dropped, Event, Note, Parsed, ToolCall};
pub use input::{End, Field, NativeCall, Options};
pub use preferred_dialects::PreferredDialects;
pub use repairs::describe_repair;
pub use tools::{Resolved, Tool, Tools, ToolsError, portable_name};

/// Reads a whole reply that nothing cut, with [`Options::for_whole_reply`].
///
/// ```
/// use tool_call_parser::{Tools, parse};
///
/// let tools = Tools::from_json(
///     r#"[{"type": "function", "function": {"name": "read", "parameters": {"type": "object",
///         "required": ["path"], "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}}}}}]"#,
/// )?;
/// let text = "I look.\n<function=read>\n<parameter=path>\na.txt\n</parameter>\n<parameter=limit>\n10\n</parameter>\n</function>";
/// let parsed = parse(text, tools);
/// assert_eq!(parsed.content, "I look.");
/// assert_eq!(parsed.calls[0].name, "read");
/// assert_eq!(parsed.calls[0].arguments, r#"{"path":"a.txt","limit":10}"#);
/// # Ok::<(), tool_call_parser::ToolsError>(())
/// ```
pub fn parse(text: &str, tools: impl Into<Arc<Tools>>) -> Parsed {
    let mut engine = Engine::new(tools.into(), Options::for_whole_reply());
    let mut events: Vec<Event> = Vec::new();
    engine.push(Field::Content, text, &mut events);
    engine.finish(End::default(), &mut events);
    events.into_iter().collect()
}

/// Mends a text that was meant to be a JSON object; `None` when it is unreadable or incomplete.
pub fn mended_object(text: &str) -> Option<String> {
    let read = lenient_json::read(text).ok()?;
    read.value.is_object().then(|| read.value.to_string())
}
