//! A declared name at the start of a line with its arguments right after it: `read{"path": …}`,
//! `functions.read({…})`, `read(path="…")`. The calls of Mistral and others look like this without their
//! tokens.

use super::{Dialect, MarkAt, Opens, Step, View, Wait, named_json, pythonic};
use crate::json_span::{JsonSpan, Span, Style};

pub(super) static DIALECT: Dialect = Dialect {
    name: "bare_name",
    models: "Mistral behind a server that strips special tokens, gpt-oss (`functions.NAME(…)`), Olmo, GLM-4.",
    families: &[],
    grammar: "At the start of a line a declared name, exactly, perhaps with `functions.` before it, and without a space \
              its arguments: a JSON object, `[ARGS]` and one, or Python keyword arguments or one JSON object in \
              parentheses. At the start of the answer the object may stand on the next line. Nothing but calls may follow.",
    example: "functions.read({\"path\": \"a.txt\"})",
    opens: Opens::Name,
    read: read_call,
};

fn read_call(view: &View<'_>) -> Step {
    let text = view.text;
    let end = text
        .find(|char: char| !(char.is_ascii_alphanumeric() || "_.-:".contains(char)))
        .unwrap_or(text.len());
    // The offset must not depend on the part of the name that has arrived, which depends on the split of the
    // text.
    if end == 0 || end > 128 {
        return Step::Not(1);
    }
    let bare = text[..end].strip_prefix("functions.").unwrap_or(&text[..end]);
    let Some(next) = text.as_bytes().get(end) else {
        let name = bare.split(':').next().unwrap_or(bare);
        let may = view.tools.begins_name(name) || "functions.".starts_with(bare);
        return if may { view.wait_or_reject(Wait::Any) } else { Step::Not(1) };
    };
    let bare = match bare.rsplit_once(':') {
        Some((name, index)) if index.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => bare,
    };
    if !b"({[\n".contains(next) || view.tools.get(bare).is_none() || view.is_quoted() {
        return Step::Not(1);
    }
    let step = match next {
        b'\n' => read_next_line(view, bare, end + 1),
        b'{' => named_json::read_arguments(view, bare, end, &[]),
        b'[' => match view.mark_at(end, &["[ARGS]{"]) {
            MarkAt::Here(length) => named_json::read_arguments(view, bare, end + length - 1, &[]),
            MarkAt::Perhaps => Step::More(Wait::Any),
            MarkAt::No => Step::Not(end),
        },
        _ => read_parentheses(view, bare, end),
    };
    // Text around it would make it a quotation.
    step.without_firmness()
}

/// Reads GLM-4's own form, only at the beginning of an answer.
fn read_next_line(view: &View<'_>, name: &str, at: usize) -> Step {
    match view.text.as_bytes().get(at) {
        _ if !view.first => Step::Not(at),
        None => view.wait_or_reject(Wait::Any),
        Some(b'{') => named_json::read_arguments(view, name, at, &[]),
        Some(_) => Step::Not(at),
    }
}

fn read_parentheses(view: &View<'_>, name: &str, at: usize) -> Step {
    let end = match JsonSpan::new(at, Style::Python).advance(view.text, view.eof) {
        Span::Complete(end) => end,
        Span::More if view.cut => return named_json::truncated_call(view, name),
        _ => return view.wait_or_reject(Wait::Python(at)),
    };
    match pythonic::read_call(&view.text[..end]) {
        Some((call, length)) if length == end => named_json::single_call(view, call, end),
        _ => Step::Not(end),
    }
}
