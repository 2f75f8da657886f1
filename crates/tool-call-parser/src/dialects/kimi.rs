//! Kimi K2's tool tokens. The id (`functions.NAME:IDX`) carries the name.

use serde_json::{Map, Value};

use super::{Dialect, Found, Opens, Step, View, named_json};
use crate::calls::RawCall;
use crate::schema::{properties, required_names};
use crate::tools::Tool;

const CALL: [&str; 1] = ["<|tool_call_begin|>"];
const ARGUMENTS: &str = "<|tool_call_argument_begin|>";

pub(super) static DIALECT: Dialect = Dialect {
    name: "kimi",
    models: "Kimi K2.",
    families: &["kimik2"],
    grammar: "`<|tool_calls_section_begin|>`, then per call `<|tool_call_begin|>`, the id `functions.NAME:IDX`, \
              `<|tool_call_argument_begin|>`, a JSON object, `<|tool_call_end|>`; `<|tool_calls_section_end|>`.",
    example: "<|tool_calls_section_begin|><|tool_call_begin|>functions.read:0<|tool_call_argument_begin|>{\"path\": \
              \"a.txt\"}<|tool_call_end|><|tool_calls_section_end|>",
    opens: Opens::Anywhere(&[
        "<|tool_call_begin|>",
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_section_begin|>",
        "<|tool_call_section_end|>",
    ]),
    read: read_call,
};

fn read_call(view: &View<'_>) -> Step {
    if !CALL.contains(&&view.text[..view.mark]) {
        return Step::Read(Found::Skip, view.mark);
    }
    let body = view.body();
    let window = body.floor_char_boundary(256);
    let Some(length) = body[..window].find(ARGUMENTS) else {
        return named_json::unended_name(view, view.mark, 256, body);
    };
    let id = body[..length].trim();
    let start = view.skip_space(view.mark + length + ARGUMENTS.len());
    let name = name_in_id(view, id, start);
    with_id(named_json::read_object(view, name, start, &["<|tool_call_end|>"]), id)
}

/// Returns the name in the id. A bare counter means the only tool, or the only one that takes such arguments.
fn name_in_id<'a>(view: &'a View<'_>, id: &'a str, start: usize) -> &'a str {
    let is_counter = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit());
    if !is_counter {
        return id;
    }
    let mut objects =
        serde_json::Deserializer::from_str(&view.text[start..]).into_iter::<Map<String, Value>>();
    let takes = |tool: &&Tool, fields: &Map<String, Value>| {
        let declared = properties(tool.schema());
        let known = |key: &String| declared.is_some_and(|declared| declared.contains_key(key));
        fields.keys().all(known) && required_names(tool.schema()).all(|key| fields.contains_key(key))
    };
    let by_arguments = || {
        let fields = objects.next()?.ok().filter(|fields| !fields.is_empty())?;
        let mut fitting = view.tools.iter().filter(|tool| takes(tool, &fields));
        fitting.next().filter(|_| fitting.next().is_none())
    };
    view.tools.only_tool().or_else(by_arguments).map_or(id, |tool| tool.name.as_str())
}

fn with_id(step: Step, id: &str) -> Step {
    let Step::Read(Found::Calls { calls, firm }, end) = step else { return step };
    let calls = calls.into_iter().map(|call| RawCall { id: Some(id.to_owned()), ..call }).collect();
    Step::Read(Found::Calls { calls, firm }, end)
}
