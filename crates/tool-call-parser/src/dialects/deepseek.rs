//! `DeepSeek`'s tool tokens, V3 and R1 (with a fence), V3.1 (without), and their misspellings.

use super::{Dialect, Found, Opens, Step, View, Wait, named_json};
use crate::marks::find_earliest;

const CALL: [&str; 4] =
    ["<｜tool▁call▁begin｜>", "<｜tool_call_begin｜>", "<｜tool call begin｜>", "<|tool▁call▁begin|>"];
const SEPARATORS: [&str; 4] = ["<｜tool▁sep｜>", "<｜tool_sep｜>", "<｜tool sep｜>", "<|tool▁sep|>"];
const ENDS: &[&str] = &[
    "<｜tool▁call▁end｜>",
    "<｜tool_call_end｜>",
    "<｜tool call end｜>",
    "<|tool▁call▁end|>",
    "```<｜tool▁call▁end｜>",
    "```\n<｜tool▁call▁end｜>",
];

pub(super) static DIALECT: Dialect = Dialect {
    name: "deepseek",
    models: "DeepSeek V3, R1, V3.1 and their distillations. (V3.2's and V4's DSML is under `invoke`.)",
    families: &["deepseek"],
    grammar: "`<｜tool▁calls▁begin｜>`, then per call `<｜tool▁call▁begin｜>`, the name (V3: `function` and the separator \
              first), `<｜tool▁sep｜>`, the arguments (V3: in a `json` fence), `<｜tool▁call▁end｜>`; `<｜tool▁calls▁end｜>`.",
    example: "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>read<｜tool▁sep｜>{\"path\": \"a.txt\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    opens: Opens::Anywhere(&[
        "<｜tool▁call▁begin｜>",
        "<｜tool_call_begin｜>",
        "<｜tool call begin｜>",
        "<|tool▁call▁begin|>",
        "<｜tool▁calls▁begin｜>",
        "<｜tool_calls_begin｜>",
        "<｜tool calls begin｜>",
        "<|tool▁calls▁begin|>",
        "<｜tool▁calls▁end｜>",
        "<｜tool_calls_end｜>",
        "<｜tool calls end｜>",
        "<|tool▁calls▁end|>",
        "<｜tool▁outputs▁begin｜>",
        "<｜tool▁outputs▁end｜>",
    ]),
    read: read_call,
};

fn read_call(view: &View<'_>) -> Step {
    if !CALL.contains(&&view.text[..view.mark]) {
        return Step::Read(Found::Skip, view.mark);
    }
    let body = view.body();
    let window = body.floor_char_boundary(256);
    let found = find_earliest(&body[..window], &SEPARATORS);
    let Some((length, mark)) = found else {
        let long = body.len() > 256;
        return if view.cut && !long {
            named_json::truncated_call(view, body)
        } else if long {
            Step::Not(256)
        } else {
            view.wait_or_reject(Wait::Any)
        };
    };
    let after = view.mark + length + mark;
    if body[..length].trim() == "function" {
        return read_typed(view, after);
    }
    read_arguments(view, body[..length].trim(), after)
}

/// Reads V3's form, in which the name follows the separator, up to the end of the line.
fn read_typed(view: &View<'_>, from: usize) -> Step {
    let rest = &view.text[from..];
    match rest.find(['\n', '{', '`']) {
        Some(length) if length <= 256 => read_arguments(view, rest[..length].trim(), from + length),
        None if rest.len() > 256 => Step::Not(from),
        None if view.cut => named_json::truncated_call(view, rest.trim()),
        None => view.wait_or_reject(Wait::Any),
        Some(_) => Step::Not(from),
    }
}

fn read_arguments(view: &View<'_>, name: &str, from: usize) -> Step {
    let fence = view.text[from..].trim_start_matches(|char: char| char.is_whitespace() || char == '`');
    let json = fence.strip_prefix("json").unwrap_or(fence).trim_start();
    let start = view.text.len() - json.len();
    match json.as_bytes().first() {
        Some(b'{') => named_json::read_arguments(view, name, start, ENDS),
        Some(_) if !"json".starts_with(fence) => Step::Not(start),
        _ if view.cut => named_json::truncated_call(view, name),
        _ => view.wait_or_reject(Wait::Any),
    }
}
