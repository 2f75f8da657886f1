//! `[name]{json}[END_TOOL_REQUEST]`: the form that OpenClaw itself recognises.

use super::{Dialect, Found, Opens, Step, View, Wait, envelope, named_json};

const END: &[&str] = &["[END_TOOL_REQUEST]", "[/END_TOOL_REQUEST]", "[END_TOOL_CALL]"];

pub(super) static DIALECT: Dialect = Dialect {
    name: "bracket",
    models: "Models that imitate transcripts of OpenClaw and LM Studio.",
    families: &[],
    grammar: "A declared name in brackets (or `[tool]` with a JSON call), a JSON object, `[END_TOOL_REQUEST]`. Without the \
              end mark only at the start of a line, with nothing but calls after it.",
    example: "[read]{\"path\": \"a.txt\"}[END_TOOL_REQUEST]",
    opens: Opens::Anywhere(&["["]),
    read: read_call,
};

fn read_call(view: &View<'_>) -> Step {
    let rest = view.body();
    let Some(length) = rest.find(|char: char| !(char.is_alphanumeric() || "_-.:".contains(char))) else {
        return if rest.len() > 128 { Step::Not(128 + 1) } else { view.wait_or_reject(Wait::Any) };
    };
    let name = &rest[..length];
    if length == 0 || length > 128 || !rest[length..].starts_with(']') {
        return Step::Not(length.min(128) + 1);
    }
    let generic = matches!(name, "tool" | "TOOL" | "tool_call" | "TOOL_CALL");
    if !generic && view.tools.resolve(name).is_none() {
        return Step::Not(length + 1);
    }
    let start = view.skip_space(length + 2);
    match view.text.as_bytes().get(start) {
        None => return view.wait_or_reject(Wait::Any),
        Some(b'{') if start <= length + 66 => {}
        Some(_) => return Step::Not(start),
    }
    let step = if generic {
        envelope::read_json(view, start, END)
    } else {
        named_json::read_arguments(view, name, start, END)
    };
    match step {
        Step::Read(Found::Calls { calls, firm }, end) => {
            let ended = END.iter().any(|mark| view.text[..end].ends_with(mark));
            if !ended && !view.line_start {
                return Step::Not(end);
            }
            Step::Read(Found::Calls { calls, firm: firm && ended }, end)
        }
        step => step,
    }
}
