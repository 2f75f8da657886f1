//! Calls as JSON between their own marks: `<tool_call>{…}</tool_call>` and everything of this form.
//!
//! One reader serves all of them: one or more JSON values after the opening mark, then the closing mark, if
//! it comes.

use super::{Dialect, Found, MarkAt, Opens, Step, View, Wait};
use crate::calls::{self, RawCall, Trust};
use crate::event::Dropped;
use crate::json_span::{JsonSpan, Span, Style};
use crate::lenient_json::Unreadable;

pub(super) static HERMES: Dialect = Dialect {
    name: "hermes",
    models: "Hermes, Qwen 2.5 and 3, Reka, Granite 3, xLAM, Sarashina, Apriel, MiniCPM-V, and most fine-tunes. Qwen2.5-Coder writes `<tools>`, Nemotron \
             Nano 2 `<TOOLCALL>`, LongCat `<longcat_tool_call>`, dots `<dots_function_call>`, InternLM `<|action_start|><|plugin|>`.",
    families: &[
        "hermes",
        "qwen2",
        "qwen3",
        "granite",
        "reka",
        "longcat",
        "internlm",
        "nemotronnano",
        "jamba",
        "ernie",
        "trinity",
        "sarashina",
        "apriel",
        "minicpmv",
    ],
    grammar: "`<tool_call>` (or `<tools>`, `<function_call>`, `<|tool_call|>`, …), then one JSON call, several, or an array \
              of them, on one line or many, perhaps in a fence, then the closing tag. A missing closing tag or brace and \
              doubled braces are forgiven.",
    example: "<tool_call>\n{\"name\": \"read\", \"arguments\": {\"path\": \"a.txt\"}}\n</tool_call>",
    opens: Opens::Anywhere(&[
        "<tool_call>",
        "<tools>",
        "<function_call>",
        "<toolcall>",
        "<tool_calls>",
        "<function_calls>",
        "<tool_use>",
        "<|tool_call|>",
        "<|tool_calls|>",
        "<TOOLCALL>",
        "<longcat_tool_call>",
        "<dots_function_call>",
        "<|action_start|><|plugin|>",
        "<|action_start|> <|plugin|>",
    ]),
    read: |view| {
        read_json(
            view,
            view.mark,
            &[
                "</tool_call>",
                "</tools>",
                "</function_call>",
                "</toolcall>",
                "</tool_calls>",
                "</function_calls>",
                "</tool_use>",
                "<|/tool_call|>",
                "<|/tool_calls|>",
                "<|end_of_text|>",
                "</TOOLCALL>",
                "</longcat_tool_call>",
                "</dots_function_call>",
                "<|action_end|>",
            ],
        )
    },
};

/// Reads JSON calls from `from` on, up to one of `closers` or as far as JSON goes.
pub(super) fn read_json(view: &View<'_>, from: usize, closers: &'static [&'static str]) -> Step {
    read_values(view, from, closers, Trust::Marked)
}

/// Reads JSON calls that have exactly a call's form.
pub(super) fn read_exact_json(view: &View<'_>, from: usize, closers: &'static [&'static str]) -> Step {
    read_values(view, from, closers, Trust::Bare)
}

fn read_values(view: &View<'_>, from: usize, closers: &'static [&'static str], trust: Trust) -> Step {
    let mut read = Calls::default();
    let mut from = match skip_fence(view, from) {
        Ok(from) => from,
        Err(step) => return step,
    };
    loop {
        let start = view.skip_space(from);
        match view.text.as_bytes().get(start) {
            None if read.calls.is_empty() => return view.wait_or_reject(Wait::Any),
            Some(b'{' | b'[') => {}
            _ if read.calls.is_empty() => return Step::Not(start + 1),
            _ => return read.into_step(view, from),
        }
        let end = match read_value(view, start, closers, trust) {
            Ok(value) => read.add_calls(value),
            Err(step) => return step,
        };
        match find_close(view, end, closers) {
            Ok(Closed::Yes(end)) => return read.into_step(view, end),
            Ok(Closed::Next(next)) => from = next,
            Ok(Closed::No) if read.readable == 0 => return Step::Not(end),
            Ok(Closed::No) => return read.into_step(view, end),
            Err(step) => return step,
        }
    }
}

/// The calls between the marks, and those among them that cannot be read.
#[derive(Default)]
struct Calls {
    calls: Vec<RawCall>,
    readable: usize,
}

impl Calls {
    fn add_calls(&mut self, value: JsonCalls) -> usize {
        if !value.broken {
            self.readable += value.calls.len();
        }
        self.calls.extend(value.calls);
        value.end
    }

    /// Drops, with a note, calls that cannot be read next to readable ones; alone they are text.
    fn into_step(self, view: &View<'_>, end: usize) -> Step {
        if self.readable > 0 {
            return Step::Read(
                Found::Calls { calls: self.calls, firm: view.line_start || !view.is_quoted() },
                end,
            );
        }
        match self.calls.into_iter().next() {
            Some(call) => Step::Read(Found::Broken(call.name, Dropped::Unreadable), end),
            None => Step::Not(end),
        }
    }
}

/// Returns the beginning of the body: after the line of a `json` fence, if there is one.
fn skip_fence(view: &View<'_>, from: usize) -> Result<usize, Step> {
    let start = view.skip_space(from);
    match view.mark_at(start, &["```json\n", "```\n"]) {
        MarkAt::Here(length) => Ok(start + length),
        MarkAt::Perhaps if start < view.text.len() => Err(Step::More(Wait::Any)),
        _ => Ok(from),
    }
}

/// The most stray bytes between a value and its closing mark.
const STRAY: usize = 64;

struct JsonCalls {
    calls: Vec<RawCall>,
    end: usize,
    broken: bool,
}

fn read_value(view: &View<'_>, start: usize, closers: &[&str], trust: Trust) -> Result<JsonCalls, Step> {
    let mut span = JsonSpan::new(start, Style::Json);
    let end = match span.advance(view.text, view.eof) {
        Span::Complete(end) | Span::Stopped(end) => end,
        Span::More if !view.eof => return Err(Step::More(Wait::Json(start))),
        Span::More if view.cut => return Err(truncated_call(view, start)),
        Span::More if span.is_in_text() => closed_in_text(view, start, closers)?,
        Span::More => view.text.len(),
    };
    match calls::read_calls(&view.text[start..end], trust, view.tools) {
        Ok(calls) => Ok(JsonCalls { calls, end, broken: false }),
        // It has no closing mark, and its last value may be incomplete.
        Err(Unreadable::Truncated) if end == view.text.len() && view.eof => Err(truncated_call(view, start)),
        Err(_) => Ok(broken_call(view, start, end)),
    }
}

/// Looks for a closing mark inside a string in which the text ended: then the quotes are wrong.
fn closed_in_text(view: &View<'_>, start: usize, closers: &[&str]) -> Result<usize, Step> {
    let closer = closers.iter().filter_map(|closer| view.text[start..].find(closer)).min();
    closer.map(|length| start + length).ok_or_else(|| truncated_call(view, start))
}

/// Handles an unreadable call. Its mistake may have hidden its end, so it ends before the next line that
/// begins another call.
fn broken_call(view: &View<'_>, start: usize, end: usize) -> JsonCalls {
    let text = &view.text[start..end];
    let line =
        text.match_indices('\n').map(|(at, _)| at).find(|at| text[at + 1..].trim_start().starts_with('{'));
    let text = &text[..line.unwrap_or(text.len())];
    let call = RawCall::from_text(written_name(text).unwrap_or_default(), text);
    JsonCalls { calls: vec![call], end: start + text.len(), broken: true }
}

/// Handles a call that the end of the reply cut off.
pub(super) fn truncated_call(view: &View<'_>, start: usize) -> Step {
    let name = written_name(&view.text[start..]).unwrap_or_default();
    Step::Read(Found::Drop(name.to_owned(), Dropped::Truncated), view.text.len())
}

/// Returns the value of the first key for a name.
pub(super) fn written_name(text: &str) -> Option<&str> {
    let keys = ["\"name\"", "\"tool_name\"", "\"tool\"", "\"function\"", "'name'"];
    let (at, key) = keys.iter().filter_map(|key| Some((text.find(key)?, key))).min()?;
    let rest = text[at + key.len()..].trim_start().strip_prefix(':')?.trim_start();
    let rest = rest.strip_prefix(['"', '\''])?;
    rest.find(['"', '\'']).map(|end| &rest[..end])
}

enum Closed {
    /// The closing mark ends here.
    Yes(usize),
    /// Another value starts here.
    Next(usize),
    /// Neither.
    No,
}

/// Reads the text after a value. Skips stray closers and separators before a mark or another value.
fn find_close(view: &View<'_>, end: usize, closers: &[&str]) -> Result<Closed, Step> {
    let rest = &view.text[end..];
    let stray = rest.trim_start_matches(|char: char| char.is_whitespace() || ",;}]`".contains(char));
    let next = view.text.len() - stray.len();
    if next - end > STRAY {
        return Ok(Closed::No);
    }
    match view.mark_at(next, closers) {
        MarkAt::Here(length) => Ok(Closed::Yes(next + length)),
        MarkAt::Perhaps => Err(Step::More(Wait::Any)),
        MarkAt::No if stray.starts_with('{') => Ok(Closed::Next(next)),
        MarkAt::No => Ok(Closed::No),
    }
}
