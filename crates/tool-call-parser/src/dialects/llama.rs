//! Llama's tool marks: `<|python_tag|>` and `<|python_start|>…<|python_end|>`, around JSON or Python calls.

use super::{Dialect, Opens, Step, View, Wait, envelope, pythonic};

const CLOSERS: &[&str] = &["<|python_end|>", "<|eom_id|>", "<|eot_id|>", "<|eot|>"];

pub(super) static DIALECT: Dialect = Dialect {
    name: "llama",
    models: "Llama 3.1, 3.2, 3.3 (`<|python_tag|>`) and 4 (`<|python_start|>`).",
    families: &["llama3", "llama4"],
    grammar: "The mark, then JSON calls separated by `;`, or a Python list of calls, or `name.call(key=value)`; then \
              the closing mark, if it comes.",
    example: "<|python_tag|>{\"name\": \"read\", \"parameters\": {\"path\": \"a.txt\"}}",
    opens: Opens::Anywhere(&["<|python_tag|>", "<|python_start|>"]),
    read: read_call,
};

fn read_call(view: &View<'_>) -> Step {
    let start = view.skip_space(view.mark);
    let rest = &view.text[start..];
    let json = rest.starts_with('{')
        || rest.starts_with('[') && {
            let next = view.skip_space(start + 1);
            match view.text.as_bytes().get(next) {
                None => return view.wait_or_reject(Wait::Any),
                Some(byte) => *byte == b'{',
            }
        };
    if json { envelope::read_json(view, start, CLOSERS) } else { pythonic::read_marked(view, start, CLOSERS) }
}
