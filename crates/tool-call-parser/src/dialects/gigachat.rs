//! `GigaChat` 3: a JSON call after `<|function_call|>`, or in a message of the role `function call`.

use super::{Dialect, Opens, Step, View, Wait, envelope};

const END: &[&str] = &["</s>", "<|message_sep|>"];
const ROLE: &str = "function call<|role_sep|>";

pub(super) static DIALECT: Dialect = Dialect {
    name: "gigachat",
    models: "GigaChat 3 (`<|message_sep|>`, the role, `<|role_sep|>`) and 3.1 (`<|function_call|>`).",
    families: &["gigachat"],
    grammar: "`<|function_call|>`, or `<|message_sep|>`, `function call<|role_sep|>`; then one JSON call and perhaps `</s>`.",
    example: "<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"read\", \"arguments\": {\"path\": \"a.txt\"}}",
    opens: Opens::Anywhere(&["<|function_call|>", "<|message_sep|>"]),
    read: read_call,
};

pub(super) static ROLE_ONLY: Dialect = Dialect {
    name: "gigachat_role",
    models: "GigaChat 3 behind a server that strips `<|message_sep|>`.",
    families: &["gigachat"],
    grammar: "`function call<|role_sep|>` at the start of a line, then one JSON call.",
    example: "function call<|role_sep|>\n{\"name\": \"read\", \"arguments\": {\"path\": \"a.txt\"}}",
    opens: Opens::Line(&[ROLE]),
    read: |view| envelope::read_exact_json(view, view.mark, END),
};

fn read_call(view: &View<'_>) -> Step {
    if view.text.starts_with("<|function_call|>") {
        return envelope::read_exact_json(view, view.mark, END);
    }
    let start = view.skip_space(view.mark);
    let rest = &view.text[start..];
    if rest.starts_with(ROLE) {
        return envelope::read_exact_json(view, start + ROLE.len(), END);
    }
    if ROLE.starts_with(rest) { view.wait_or_reject(Wait::Any) } else { Step::Not(start + 1) }
}
