//! `<tool_call>NAME` with the arguments as a JSON object: GLM-5.3 Flash and Step-Audio 2.

use super::{Dialect, MarkAt, Opens, Step, View, Wait, named_json};

/// The line that Step-Audio writes before the name.
const TYPE: &str = "function\n";
/// The longest name of a tool.
const NAME: usize = 128;

pub(super) static DIALECT: Dialect = Dialect {
    name: "named_tag",
    models: "GLM-5.3 Flash, Step-Audio 2.",
    families: &["glm53", "stepaudio"],
    grammar: "`<tool_call>`, perhaps `function` on a line of its own, a declared name, `>` or a line break, a JSON object, and \
              `</tool_call>`, if it comes.",
    example: "<tool_call>read>{\"path\": \"a.txt\"}</tool_call>",
    opens: Opens::Anywhere(&["<tool_call>"]),
    read: read_call,
};

fn read_call(view: &View<'_>) -> Step {
    let mut start = view.skip_space(view.mark);
    match view.mark_at(start, &[TYPE]) {
        MarkAt::Here(length) => start = view.skip_space(start + length),
        MarkAt::Perhaps => return Step::More(Wait::Any),
        MarkAt::No => {}
    }
    let rest = &view.text[start..];
    let Some(length) = rest.find(['>', '\n', '<', '{']) else {
        return view.await_end_within(start, NAME);
    };
    let name = without_category(rest[..length].trim(), view);
    let ends = rest[length..].starts_with(['>', '\n']);
    if length > NAME || !ends || view.tools.resolve(name).is_none() {
        return Step::Not(start + length.min(NAME));
    }
    let body = view.skip_space(start + length + 1);
    named_json::read_object(view, name, body, &["</tool_call>"])
}

/// Removes the category that GLM-5.3 Flash writes before a tool's name: `Files/read`.
fn without_category<'a>(name: &'a str, view: &View<'_>) -> &'a str {
    match name.rsplit_once('/') {
        Some((_, bare)) if view.tools.resolve(name).is_none() => bare,
        _ => name,
    }
}
