//! RWKV's `**Tool Call:**` above a call: the heading belongs to the call.

use super::{Dialect, Found, Opens, Step, View, envelope};

const FENCE: &[&str] = &["```"];

pub(super) static DIALECT: Dialect = Dialect {
    name: "headed",
    models: "RWKV-7.",
    families: &["rwkv"],
    grammar: "A line `**Tool Call:**`, then a JSON call, perhaps in a fence. Nothing but calls may follow.",
    example: "**Tool Call:**\n```json\n{\"name\": \"read\", \"arguments\": {\"path\": \"a.txt\"}}\n```",
    opens: Opens::Line(&["**Tool Call:**", "**Tool Call**:", "**Tool call:**"]),
    read: read_call,
};

fn read_call(view: &View<'_>) -> Step {
    if view.is_quoted() {
        return Step::Not(view.mark);
    }
    match envelope::read_json(view, view.mark, FENCE) {
        Step::Read(Found::Calls { calls, .. }, end) => match view.find_closer(end, FENCE) {
            Ok(end) => Step::Read(Found::Calls { calls, firm: false }, end),
            Err(step) => step,
        },
        step => step,
    }
}
