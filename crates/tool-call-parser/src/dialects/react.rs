//! `ReAct`: `Action: name` and `Action Input: arguments` on separate lines.

use super::{Dialect, Found, Opens, Step, View, Wait, named_json};
use crate::calls::RawCall;
use crate::coerce;
use crate::marks::find_earliest;

const INPUT: [&str; 4] = ["Action Input:", "**Action Input:**", "Action input:", "Input:"];
/// The beginnings of lines that end an input.
const NEXT: &[&str] = &["\nObservation", "\nThought:", "\nAction:"];

pub(super) static DIALECT: Dialect = Dialect {
    name: "react",
    models: "Models prompted in ReAct style (LangChain agents and their like).",
    families: &[],
    grammar: "A line `Action: NAME` with a declared name, then `Action Input:` with a JSON object, or with text for a tool \
              that has one required string argument; or `Action: NAME[text]` for such a tool.",
    example: "Action: read\nAction Input: {\"path\": \"a.txt\"}",
    opens: Opens::Line(&["Action:", "**Action:**"]),
    read: read_call,
};

fn read_call(view: &View<'_>) -> Step {
    let body = view.body();
    let length = match body.find('\n') {
        Some(length) => length,
        None if body.len() > 256 => return Step::Not(view.mark + 256),
        None if view.eof && !view.cut => body.len(),
        None => return view.wait_or_reject(Wait::Any),
    };
    if length <= 256
        && let Some(call) = read_bracketed(view, body[..length].trim())
    {
        return Step::Read(Found::Calls { calls: vec![call], firm: !view.is_quoted() }, view.mark + length);
    }
    let name = body[..length].trim().trim_matches(['`', '*', '"', '[', ']']);
    if length > 256 || view.tools.resolve(name).is_none() {
        return Step::Not(view.mark + length.min(256));
    }
    let at = view.skip_space(view.mark + length);
    let rest = &view.text[at..];
    let Some(mark) = INPUT.iter().find(|mark| rest.starts_with(**mark)) else {
        let partial = INPUT.iter().any(|mark| mark.starts_with(rest));
        return if partial { view.wait_or_reject(Wait::Any) } else { Step::Not(at) };
    };
    read_input(view, name, at + mark.len())
}

/// Reads `NAME[argument]`, the form in the paper on `ReAct`.
fn read_bracketed(view: &View<'_>, line: &str) -> Option<RawCall> {
    let (name, argument) = line.strip_suffix(']')?.split_once('[')?;
    let tool = view.tools.get(name)?;
    coerce::sole_string(tool.schema()).map(|_| RawCall::from_text(name, argument))
}

fn read_input(view: &View<'_>, name: &str, from: usize) -> Step {
    let start = view.skip_space(from);
    match view.text.as_bytes().get(start) {
        None if view.cut => return named_json::truncated_call(view, name),
        None => return view.wait_or_reject(Wait::Any),
        Some(b'{') => return named_json::read_arguments(view, name, start, &[]),
        Some(_) => {}
    }
    let rest = &view.text[start..];
    let Some(length) = find_earliest(rest, NEXT).map(|(at, _)| at) else {
        return match view.eof {
            false => Step::More(Wait::Mark(start, NEXT)),
            true if view.cut => named_json::truncated_call(view, name),
            true => named_json::single_call(view, RawCall::from_text(name, rest.trim()), view.text.len()),
        };
    };
    let calls = vec![RawCall::from_text(name, rest[..length].trim())];
    Step::Read(Found::Calls { calls, firm: !view.is_quoted() }, start + length)
}
