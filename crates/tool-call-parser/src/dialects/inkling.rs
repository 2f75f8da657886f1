//! Inkling's messages: `<|message_model|>NAME<|content_invoke_tool_json|>{…}<|end_message|>`, with text and
//! thinking between.
//!
//! The header's name is not needed, because the JSON has it too. A call in free text names no tool, so it
//! cannot leave.

use super::{Dialect, Found, Lane, Opens, Step, View, Wait, envelope};
use crate::event::Dropped;
use crate::marks::find_earliest;

const MESSAGE: &str = "<|message_model|>";
const JSON: &str = "<|content_invoke_tool_json|>";
const TEXT: &str = "<|content_invoke_tool_text|>";
const THINKING: &str = "<|content_thinking|>";
const END: &[&str] = &["<|end_message|>"];
/// Marks that may follow a header, or a body that cannot be read.
const NEXT: &[&str] =
    &[JSON, TEXT, "<|content_text|>", THINKING, "<|end_message|>", MESSAGE, "<|content_model_end_sampling|>"];
/// The longest header.
const HEADER: usize = 160;

pub(super) static DIALECT: Dialect = Dialect {
    name: "inkling",
    models: "Inkling.",
    families: &["inkling"],
    grammar: "`<|message_model|>NAME<|content_invoke_tool_json|>`, a JSON object with `name` and `args`, `<|end_message|>`. \
              `<|content_text|>` begins text, `<|content_thinking|>` reasoning; both end with `<|end_message|>`.",
    example: "<|message_model|>read<|content_invoke_tool_json|>{\"name\":\"read\",\"args\":{\"path\":\"a.txt\"}}<|end_message|>",
    opens: Opens::Anywhere(NEXT),
    read: read_call,
};

fn read_call(view: &View<'_>) -> Step {
    match &view.text[..view.mark] {
        MESSAGE => read_header(view),
        JSON => read_body(view, view.mark),
        TEXT => view.dropped_until(view.mark, NEXT, "", Dropped::Unreadable),
        THINKING => Step::Read(Found::Lane(Lane::Reasoning(END, &[])), view.mark),
        _ => Step::Read(Found::Skip, view.mark),
    }
}

/// Reads a header. The name before a call belongs to it; all other text after the token is content.
fn read_header(view: &View<'_>) -> Step {
    let window = view.text.floor_char_boundary(HEADER);
    let rest = &view.text[view.mark..window];
    match find_earliest(rest, NEXT) {
        Some((at, length)) if rest[at..].starts_with(JSON) => read_body(view, view.mark + at + length),
        Some((at, _)) if rest[at..].starts_with(TEXT) => {
            view.dropped_until(view.mark + at + TEXT.len(), NEXT, "", Dropped::Unreadable)
        }
        None if view.text.len() < HEADER && !view.eof => Step::More(Wait::Any),
        _ => Step::Read(Found::Skip, view.mark),
    }
}

fn read_body(view: &View<'_>, from: usize) -> Step {
    let start = view.skip_space(from);
    match view.text.as_bytes().get(start) {
        None => view.wait_or_reject(Wait::Any),
        Some(b'{') => match envelope::read_json(view, from, END) {
            Step::Not(_) => view.broken_until(from, NEXT, "", Dropped::Unreadable),
            step => step,
        },
        Some(_) => view.broken_until(from, NEXT, "", Dropped::Unreadable),
    }
}
