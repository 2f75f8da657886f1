//! Solar Open's tokens: version 2 writes arguments one by one, version 1 a JSON object.

use super::argument_pairs::{self, Tags};
use super::{Dialect, MarkAt, Opens, Step, View, Wait, named_json};

const START: &str = "<|tool_call:start|>";
const ENDS: &[&str] = &["<|tool_call:end|>", START];

pub(super) static SECOND: Dialect = Dialect {
    name: "solar",
    models: "Solar Open 2.",
    families: &["solaropen2"],
    grammar: "`<|tool_call:start|>`, the name, a line break, per argument \
              `<|tool_arg:start|>KEY<|tool_arg:value|>VALUE<|tool_arg:end|>`, `<|tool_call:end|>`.",
    example: "<|tool_call:start|>read\n<|tool_arg:start|>path<|tool_arg:value|>a.txt<|tool_arg:end|>\n<|tool_call:end|>",
    opens: Opens::Anywhere(&[START]),
    read: |view| {
        let none = String::new;
        let tags = Tags {
            call: START.to_owned(),
            end: ENDS[0].to_owned(),
            separator: none(),
            key: ("<|tool_arg:start|>".to_owned(), "<|tool_arg:value|>".to_owned()),
            kind: (none(), none()),
            value: (none(), "<|tool_arg:end|>".to_owned()),
        };
        argument_pairs::read_call(view, view.mark, &tags, ENDS)
    },
};

const CALLS: &str = "<|tool_calls|>";
const BEGIN: &str = "<|tool_call:begin|>";
const NAME: &str = "<|tool_call:name|>";
const ARGUMENTS: &str = "<|tool_call:args|>";
/// The longest id or name.
const WINDOW: usize = 160;

pub(super) static FIRST: Dialect = Dialect {
    name: "solar_1",
    models: "Solar Open 1.",
    families: &["solaropen"],
    grammar: "`<|tool_calls|>`, then per call `<|tool_call:begin|>`, an id, `<|tool_call:name|>`, the name, \
              `<|tool_call:args|>`, a JSON object, `<|tool_call:end|>`.",
    example: "<|tool_calls|><|tool_call:begin|>0<|tool_call:name|>read<|tool_call:args|>{\"path\": \"a.txt\"}<|tool_call:end|>",
    opens: Opens::Anywhere(&[CALLS, BEGIN]),
    read: read_first,
};

fn read_first(view: &View<'_>) -> Step {
    let mut from = view.mark;
    if view.text[..view.mark] == *CALLS {
        let start = view.skip_space(from);
        from = match view.mark_at(start, &[BEGIN]) {
            MarkAt::Here(length) => start + length,
            MarkAt::Perhaps => return Step::More(Wait::Any),
            MarkAt::No => return Step::Not(view.text.len().min(start + 1)),
        };
    }
    let (_, after_id) = match read_part(view, from, NAME) {
        Ok(part) => part,
        Err(step) => return step,
    };
    let (name, after_name) = match read_part(view, after_id, ARGUMENTS) {
        Ok(part) => part,
        Err(step) => return step,
    };
    let start = view.skip_space(after_name);
    named_json::read_object(view, name, start, &["<|tool_call:end|>"])
}

/// Returns the text up to a mark, and the end of that mark.
fn read_part<'a>(view: &'a View<'_>, from: usize, mark: &str) -> Result<(&'a str, usize), Step> {
    let text = &view.text[from..];
    let window = &text[..text.floor_char_boundary(WINDOW)];
    match window.find(mark) {
        Some(length) => Ok((text[..length].trim(), from + length + mark.len())),
        None if text.len() > WINDOW => Err(Step::Not(from + WINDOW)),
        None if view.cut => Err(named_json::truncated_call(view, "")),
        None => Err(view.wait_or_reject(Wait::Any)),
    }
}
