//! `nc://NAME {…}`: a declared name as the address of a URL, and its arguments as JSON.

use super::{Dialect, Opens, Step, View, Wait, named_json};

/// The longest name of a tool.
const NAME: usize = 128;

pub(super) static DIALECT: Dialect = Dialect {
    name: "tool_url",
    models: "Small models in OpenClaw.",
    families: &[],
    grammar: "At the start of a line `nc://`, a declared name, and a JSON object. Nothing but calls may follow.",
    example: "nc://read {\"path\": \"a.txt\"}",
    opens: Opens::Line(&["nc://"]),
    read: read_call,
};

fn read_call(view: &View<'_>) -> Step {
    let body = view.body();
    let Some(length) = body.find([' ', '\n', '{', '\t']) else {
        return if body.len() > NAME { Step::Not(view.mark + NAME) } else { view.wait_or_reject(Wait::Any) };
    };
    let name = &body[..length];
    if length > NAME || view.tools.resolve(name).is_none() || view.is_quoted() {
        return Step::Not(view.mark + length.min(NAME));
    }
    let start = view.skip_space(view.mark + length);
    match view.text.as_bytes().get(start) {
        None => view.wait_or_reject(Wait::Any),
        Some(b'{') => named_json::read_arguments(view, name, start, &[]).without_firmness(),
        Some(_) => Step::Not(start),
    }
}
