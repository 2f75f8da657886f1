//! A copy of a native call's arguments in the text: vLLM 0.10 repeats them in `content`. It is dropped.

use serde_json::Value;

use super::{Dialect, Found, Opens, Step, View, Wait};
use crate::event::Dropped;
use crate::json_span::{JsonSpan, Span, Style};

pub(super) static DIALECT: Dialect = Dialect {
    name: "native_copy",
    models: "gpt-oss on vLLM 0.10 (vllm#25560): the server extracts the call and leaves its arguments in the content too.",
    families: &[],
    grammar: "A JSON object equal to the arguments of a native call of the same reply. Dropped.",
    example: "",
    opens: Opens::Anywhere(&["{"]),
    read: drop_copy,
};

fn drop_copy(view: &View<'_>) -> Step {
    if view.native.is_empty() {
        return Step::Not(1);
    }
    match JsonSpan::new(0, Style::Json).advance(view.text, view.eof) {
        Span::More => view.wait_or_reject(Wait::Json(0)),
        Span::Stopped(at) => Step::Not(at),
        Span::Complete(end) => match serde_json::from_str::<Value>(&view.text[..end]) {
            Ok(value) if view.native.contains(&value) => {
                Step::Read(Found::Drop(String::new(), Dropped::Duplicate), end)
            }
            _ => Step::Not(1),
        },
    }
}
