//! Calls in a Markdown fence: `json` or unlabelled with nothing but calls in it and after it, or labelled
//! `tool_call`.
//!
//! Every other fence is text: the scanner skips it.

use super::{Dialect, Found, Opens, Step, View, Wait, envelope, pythonic};
use crate::calls::{self, RawCall, Trust};
use crate::json_span::{JsonSpan, Span, Style};

const EXPLICIT: [&str; 8] = [
    "tool_call",
    "tool_calls",
    "tool",
    "tool_use",
    "tool_code",
    "function_call",
    "function_calls",
    "toolcall",
];

pub(super) static DIALECT: Dialect = Dialect {
    name: "fenced",
    models: "Qwen2.5-Coder, xLAM, Gemma 3 (`tool_code`), and most models when they forget their own dialect.",
    families: &[],
    grammar: "A fence labelled `json` or not at all that holds only JSON calls of declared tools, with nothing but calls \
              after it and no words before it that announce an example; or a fence labelled `tool_call` or alike.",
    example: "```json\n{\"name\": \"read\", \"arguments\": {\"path\": \"a.txt\"}}\n```",
    opens: Opens::Line(&["```", "~~~"]),
    read: read_call,
};

fn read_call(view: &View<'_>) -> Step {
    let line = view.text.floor_char_boundary(65);
    let Some(length) = view.text[..line].find('\n') else {
        return if view.text.len() > 64 { Step::Not(64) } else { view.wait_or_reject(Wait::Any) };
    };
    let mark = view.text.as_bytes()[0];
    let fence = view.text.bytes().take_while(|byte| *byte == mark).count();
    let label = view.text[fence..length].trim().to_ascii_lowercase();
    let explicit = EXPLICIT.contains(&label.as_str());
    let plain = matches!(label.as_str(), "" | "json" | "json5" | "jsonl");
    let may_call = explicit || plain && !view.json_wanted && !view.is_quoted();
    if !may_call {
        return Step::Not(length);
    }
    let start = view.skip_space(length);
    match view.text.as_bytes().get(start) {
        None => view.wait_or_reject(Wait::Any),
        Some(b'{' | b'[') => read_values(view, start, &view.text[..fence], explicit),
        Some(_) if label == "tool_code" => read_code(view, start, &view.text[..fence]),
        Some(_) => Step::Not(start),
    }
}

fn read_values(view: &View<'_>, start: usize, fence: &str, explicit: bool) -> Step {
    let trust = if explicit { Trust::Marked } else { Trust::Bare };
    let mut calls: Vec<RawCall> = Vec::new();
    let mut at = start;
    loop {
        let mut span = JsonSpan::new(at, Style::Json);
        let end = match span.advance(view.text, view.eof) {
            Span::Complete(end) | Span::Stopped(end) => end,
            Span::More if !view.eof => return Step::More(Wait::Json(at)),
            Span::More if view.cut || span.is_in_text() => return cut_call(view, at),
            Span::More => view.text.len(),
        };
        let found = calls::read_calls(&view.text[at..end], trust, view.tools).unwrap_or_default();
        if found.is_empty() || !found.iter().all(|call| view.tools.resolve(&call.name).is_some()) {
            return Step::Not(end);
        }
        calls.extend(found);
        let rest =
            view.text[end..].trim_start_matches(|char: char| char.is_whitespace() || ",;".contains(char));
        let next = view.text.len() - rest.len();
        if rest.starts_with(['{', '[']) {
            at = next;
        } else {
            return close_fence(view, next, fence, Found::Calls { calls, firm: explicit });
        }
    }
}

fn close_fence(view: &View<'_>, at: usize, fence: &str, found: Found) -> Step {
    let rest = &view.text[at..];
    let run = rest.len() - rest.trim_start_matches(&fence[..1]).len();
    match rest.find('\n') {
        Some(line) if run >= fence.len() && rest[run..line].trim().is_empty() => Step::Read(found, at + run),
        None if view.eof && rest[run..].trim().is_empty() => Step::Read(found, view.text.len()),
        None if !view.eof && rest[run..].trim().is_empty() && rest.len() < 64 => Step::More(Wait::Any),
        _ => Step::Not(at),
    }
}

fn cut_call(view: &View<'_>, at: usize) -> Step {
    let name = envelope::written_name(&view.text[at..]);
    match name.filter(|name| view.tools.resolve(name).is_some()) {
        Some(_) => envelope::truncated_call(view, at),
        None => Step::Not(view.text.len()),
    }
}

/// Reads Gemma 3's `tool_code`: Python calls, perhaps printed.
fn read_code(view: &View<'_>, start: usize, fence: &str) -> Step {
    let Some(length) = view.text[start..].find(&format!("\n{fence}")) else {
        return if fence == "```" {
            view.wait_or_reject(Wait::Mark(start, &["\n```"]))
        } else {
            Step::Not(start)
        };
    };
    let body = view.text[start..start + length].trim();
    let body = body.strip_prefix("print(").and_then(|body| body.strip_suffix(')')).unwrap_or(body);
    let calls = pythonic::read_list(body).unwrap_or_default();
    if calls.is_empty() {
        return Step::Not(start + length);
    }
    close_fence(view, start + length + 1, fence, Found::Calls { calls, firm: true })
}
