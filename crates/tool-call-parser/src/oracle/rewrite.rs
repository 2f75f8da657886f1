//! Writing a turn back: its calls in the dialect in which they were read are, read again, the same calls.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::run;
use super::writers::{self, Writer};
use crate::event::{Note, Parsed};
use crate::{Options, Tools, schema};

/// A call as the writers take it.
pub(crate) type Call = (String, Map<String, Value>);

/// Checks the calls of a turn with every writer of the dialects that were found in it.
pub(super) fn calls_written_back_are_the_same(tools: &Arc<Tools>, turn: &Parsed) {
    let Some(calls) = exact_calls(turn).filter(|calls| have_plain_names(calls)) else { return };
    let read_as = |dialect: &str| turn.notes.iter().any(|note| *note == Note::Dialect(name_of(dialect)));
    for writer in writers::all().iter().filter(|writer| read_as(writer.dialect)) {
        if !is_writable(writer, &calls) || (writer.untyped || writer.tags) && !are_declared(tools, &calls) {
            continue;
        }
        let text = (writer.write)(&calls);
        let again = run(tools, Options::default(), &[&text], false, false);
        assert_eq!(exact_calls(&again).as_ref(), Some(&calls), "{}: {text:?}", writer.dialect);
        assert_eq!(again.content.trim(), "", "{}: {text:?}", writer.dialect);
    }
}

/// Returns the table's own name, which lives as long as the table.
fn name_of(dialect: &str) -> &'static str {
    let row = crate::dialects::TABLE.iter().find(|row| row.name == dialect);
    row.map_or("", |row| row.name)
}

/// Returns the calls of a turn; `None` without calls, or when a number in them would be rounded.
fn exact_calls(turn: &Parsed) -> Option<Vec<Call>> {
    let calls = turn.calls.iter().map(|call| {
        let arguments: Map<String, Value> = serde_json::from_str(&call.arguments).ok()?;
        let is_exact = crate::digits::find_big_integers(&call.arguments).is_empty();
        is_exact.then(|| (call.name.clone(), arguments))
    });
    calls.collect::<Option<Vec<Call>>>().filter(|calls| !calls.is_empty())
}

/// Only JSON quotes the names of arguments.
fn have_plain_names(calls: &[Call]) -> bool {
    let is_plain = |name: &String| name.chars().all(|char| char.is_alphanumeric() || "_-.$ ".contains(char));
    calls.iter().flat_map(|(_, arguments)| arguments.keys()).all(is_plain)
}

/// Without quotes only the schema tells what a value is, and where a name ends.
fn are_declared(tools: &Tools, calls: &[Call]) -> bool {
    calls.iter().all(|(name, arguments)| {
        let declared = tools.get(name).and_then(|tool| schema::properties(tool.schema()));
        arguments.keys().all(|key| declared.is_some_and(|declared| declared.contains_key(key)))
    })
}

/// Values that a dialect without quotes cannot tell from its own marks or from space around them.
pub(crate) fn is_writable(writer: &Writer, calls: &[Call]) -> bool {
    let plain = |value: &Value| match value {
        Value::String(text) => {
            // Unquoted text with another dialect's marks is no value.
            let marks = crate::dialects::holds_mark(text)
                || text.contains("</")
                || text.contains("<parameter")
                || text.contains("<arg_");
            let spaced = writer.flat
                && (text.trim() != text
                    || text.is_empty()
                    || text.contains(['|', '[', ']'])
                    || text.starts_with(['"', '\'']));
            !marks && !spaced
        }
        _ => true,
    };
    // Texts of these have types, but no quotes.
    let own_mark = match writer.dialect {
        "kimi_k3" => Some("<|close|>"),
        "minimax_m3" => Some("]<]minimax[>["),
        _ => None,
    };
    let closes = |value: &Value| own_mark.is_some_and(|mark| value.to_string().contains(mark));
    // A marker without arguments is text.
    if writer.dialect == "marker" && calls.iter().any(|(_, arguments)| arguments.is_empty()) {
        return false;
    }
    let mut values = calls.iter().flat_map(|(_, arguments)| arguments.values());
    values.all(|value| !closes(value) && (!writer.untyped || plain(value)))
}
