//! Functionary v3.2: `>>>`, the recipient, a line break, and JSON for a tool or text for the user.

use super::{Dialect, Found, Opens, Step, View, Wait, named_json};

/// The longest name of a tool.
const NAME: usize = 128;
/// The recipient of an answer.
const ALL: &str = "all";

pub(super) static DIALECT: Dialect = Dialect {
    name: "functionary",
    models: "Functionary v3.2.",
    families: &["functionary"],
    grammar: "`>>>`, a declared name, a line break and a JSON object. (The first `>>>` is the chat template's: `bare_name`.) \
              `>>>all` and a line break, at the start of the answer or behind a call, begin text and are dropped.",
    example: ">>>read\n{\"path\": \"a.txt\"}",
    opens: Opens::Anywhere(&[">>>"]),
    read: read_call,
};

fn read_call(view: &View<'_>) -> Step {
    let body = view.body();
    let is_name = |char: char| char.is_alphanumeric() || "_-.:/".contains(char);
    let Some(length) = body.find(|char| !is_name(char)) else {
        return if body.len() > NAME { Step::Not(view.mark + 1) } else { view.wait_or_reject(Wait::Any) };
    };
    let (name, after) = body.split_at(length);
    if !after.starts_with('\n') || length > NAME {
        return Step::Not(view.mark + 1);
    }
    let start = view.mark + length + 1;
    if name == ALL && (view.first || view.after_call) {
        return Step::Read(Found::Skip, start);
    }
    if view.tools.resolve(name).is_none() {
        return Step::Not(start);
    }
    named_json::read_object(view, name, start, &["<|eot_id|>", "<|eom_id|>"])
}
