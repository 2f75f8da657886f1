//! A name, some marks, and the arguments as JSON: the common part of Mistral, `DeepSeek`, Kimi, harmony and
//! others.

use super::{Found, Step, View, Wait};
use crate::calls::RawCall;
use crate::event::Dropped;
use crate::json_span::{JsonSpan, Span, Style};

/// Reads the JSON object at `start` as the arguments of `name`, then one of `closers`, if it comes.
pub(super) fn read_arguments(view: &View<'_>, name: &str, start: usize, closers: &[&str]) -> Step {
    let mut span = JsonSpan::new(start, Style::Json);
    let end = match span.advance(view.text, view.eof) {
        Span::Complete(end) | Span::Stopped(end) => end,
        Span::More if !view.eof => return Step::More(Wait::Json(start)),
        Span::More if view.cut || span.is_in_text() => return truncated_call(view, name),
        Span::More => view.text.len(),
    };
    match view.find_closer(end, closers) {
        Ok(after) => single_call(view, RawCall::from_text(name, &view.text[start..end]), after),
        Err(step) => step,
    }
}

/// Reads the arguments of `name` as of [`read_arguments`], if an object begins at `start`.
pub(super) fn read_object(view: &View<'_>, name: &str, start: usize, closers: &[&str]) -> Step {
    match view.text.as_bytes().get(start) {
        None if view.cut => truncated_call(view, name),
        None => view.wait_or_reject(Wait::Any),
        Some(b'{') => read_arguments(view, name, start, closers),
        Some(_) => Step::Not(start),
    }
}

/// Handles a name that begins at `from`, takes `most` bytes at most, and has no end yet.
pub(super) fn unended_name(view: &View<'_>, from: usize, most: usize, name: &str) -> Step {
    let is_cut = view.cut && view.text.len() - from <= most;
    if is_cut { truncated_call(view, name) } else { view.await_end_within(from, most) }
}

/// Returns one call that ends at `end`.
pub(super) fn single_call(view: &View<'_>, call: RawCall, end: usize) -> Step {
    Step::Read(Found::Calls { calls: vec![call], firm: view.line_start || !view.is_quoted() }, end)
}

/// Handles a call of `name` that the end of the reply cut off.
pub(super) fn truncated_call(view: &View<'_>, name: &str) -> Step {
    Step::Read(Found::Drop(name.to_owned(), Dropped::Truncated), view.text.len())
}
