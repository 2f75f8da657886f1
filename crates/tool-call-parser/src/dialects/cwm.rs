//! CWM's `<tool: LABEL>`: the tool's name is the body's first word, its arguments the rest of the body.

use super::{Dialect, Opens, Step, View, Wait, named_json};
use crate::calls::RawCall;

const END: &[&str] = &["</tool>"];
/// A label, or a name, is never longer.
const WINDOW: usize = 128;

pub(super) static DIALECT: Dialect = Dialect {
    name: "cwm",
    models: "CWM.",
    families: &["cwm"],
    grammar: "`<tool: LABEL>`, a declared name, its arguments as a JSON object or as text for a tool that has one required \
              string argument, `</tool>`.",
    example: "<tool: function>\nread {\"path\": \"a.txt\"}\n</tool>",
    opens: Opens::Anywhere(&["<tool:"]),
    read: read_call,
};

fn read_call(view: &View<'_>) -> Step {
    let body = view.body();
    let Some(label) = body.find(['>', '\n', '<']) else {
        return view.await_end_within(view.mark, WINDOW);
    };
    if label > WINDOW || !body[label..].starts_with('>') {
        return Step::Not(view.mark + label.min(WINDOW));
    }
    let start = view.skip_space(view.mark + label + 1);
    let text = &view.text[start..];
    let Some(length) = text.find(|char: char| char.is_whitespace() || char == '<') else {
        return view.await_end_within(start, WINDOW);
    };
    let name = &text[..length];
    if length > WINDOW || view.tools.resolve(name).is_none() {
        return Step::Not(start + length.min(WINDOW));
    }
    let from = start + length;
    match view.text[from..].find(END[0]) {
        Some(length) => {
            let call = RawCall::from_text(name, view.text[from..from + length].trim());
            named_json::single_call(view, call, from + length + END[0].len())
        }
        None if view.eof => named_json::truncated_call(view, name),
        None => Step::More(Wait::Mark(from, END)),
    }
}
