//! Gemma 4's `<|tool_call>call:name{key:value}<tool_call|>`, and the same stripped of its tokens.
//!
//! Keys are bare. Strings are between `<|"|>` tokens, in quotes, or bare up to the next key.

use serde_json::{Map, Value};

use super::{Dialect, Found, Opens, Step, View, Wait, named_json, pythonic};
use crate::calls::{Delimited, RawCall};
use crate::lenient_json;

/// The marks around a string: Gemma 4's token, and `FunctionGemma`'s.
const QUOTES: [&str; 2] = ["<|\"|>", "<escape>"];
/// The longest call. The end is searched from the beginning with every closing brace.
const LIMIT: usize = 256 << 10;
const ENDS: &[&str] =
    &["<tool_call|>", "<|tool_response>", "<end_function_call>", "<start_function_response>"];

pub(super) static DIALECT: Dialect = Dialect {
    name: "gemma",
    models: "Gemma 4, FunctionGemma.",
    families: &["gemma4", "functiongemma"],
    grammar: "`<|tool_call>call:NAME{KEY:VALUE,…}<tool_call|>`; strings stand between `<|\"|>` tokens \
              (`FunctionGemma`: `<start_function_call>`, `<escape>`, `<end_function_call>`), in quotes, or bare.",
    example: "<|tool_call>call:read{path:<|\"|>a.txt<|\"|>}<tool_call|>",
    opens: Opens::Anywhere(&["<|tool_call>", "<start_function_call>"]),
    read: |view| read_call(view, true),
};

pub(super) static STRIPPED: Dialect = Dialect {
    name: "gemma_stripped",
    models: "Gemma 4 behind a server that strips special tokens.",
    families: &["gemma4"],
    grammar: "`call:NAME{KEY:VALUE,…}` alone on its lines.",
    example: "call:read{path:a.txt}",
    opens: Opens::Line(&["call:"]),
    read: |view| read_call(view, false),
};

fn read_call(view: &View<'_>, marked: bool) -> Step {
    let start = if marked { view.skip_space(view.mark) } else { 0 };
    let rest = &view.text[start..];
    let Some(after) = rest.strip_prefix("call:") else {
        let partial = "call:".starts_with(rest);
        return if partial { view.wait_or_reject(Wait::Any) } else { Step::Not(start + 1) };
    };
    let from = start + "call:".len();
    let Some(length) = after.find(['{', '(', '\n', '<']) else {
        return match after.len() {
            length if length > 128 => Step::Not(from + 128),
            _ if view.cut && marked => named_json::truncated_call(view, after),
            _ => view.wait_or_reject(Wait::Any),
        };
    };
    let name = after[..length].trim();
    if length > 128 || view.tools.resolve(name).is_none() {
        return Step::Not(from + length.min(128));
    }
    match after.as_bytes()[length] {
        b'{' => read_braces(view, name, from + length, marked),
        b'(' => read_parentheses(view, from, marked),
        _ => Step::Not(from + length),
    }
}

fn read_parentheses(view: &View<'_>, from: usize, marked: bool) -> Step {
    match pythonic::read_marked(view, from, ENDS) {
        Step::Read(Found::Calls { calls, .. }, end) => Step::Read(Found::Calls { calls, firm: marked }, end),
        step => step,
    }
}

fn read_braces(view: &View<'_>, name: &str, at: usize, marked: bool) -> Step {
    let end = match find_balanced_end(&view.text[at..]) {
        Some(length) if at + length > LIMIT => return Step::Not(LIMIT),
        Some(length) => at + length,
        None if view.text.len() > LIMIT => return Step::Not(LIMIT),
        None if view.cut => return named_json::truncated_call(view, name),
        None => return view.wait_or_reject(Wait::Mark(view.text.len(), &["}"])),
    };
    let Some(fields) = read_fields(&view.text[at + 1..end - 1]) else { return Step::Not(end) };
    let calls = vec![fields.into_call(name)];
    match view.find_closer(end, ENDS) {
        Ok(end) => Step::Read(Found::Calls { calls, firm: marked }, end),
        Err(step) => step,
    }
}

/// Returns the length of the balanced braces at the start of `text`, ignoring text between quote tokens.
fn find_balanced_end(text: &str) -> Option<usize> {
    let mut depth = 0;
    let mut at = 0;
    while let Some(found) = text[at..].find(['{', '}', '<']) {
        let here = at + found;
        at = here + 1;
        match text.as_bytes()[here] {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {
                if let Some(quote) = QUOTES.into_iter().find(|quote| text[here..].starts_with(quote)) {
                    let inside = here + quote.len();
                    at = inside + text[inside..].find(quote)? + quote.len();
                }
            }
        }
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

/// The arguments, and the names of the bare ones.
#[derive(Default)]
struct Fields {
    values: Map<String, Value>,
    bare: Vec<String>,
}

impl Fields {
    fn into_call(self, name: &str) -> RawCall {
        let mut call = RawCall::from_fields(name, self.values);
        call.unquoted = self.bare.into_iter().map(|key| (key, Delimited::Nothing)).collect();
        call
    }
}

/// Reads `key:value` pairs, which are separated by commas before the next key.
fn read_fields(body: &str) -> Option<Fields> {
    let mut fields = Fields::default();
    let mut rest = body.trim();
    while !rest.is_empty() {
        let (key, after) = rest.split_once(':')?;
        let key =
            QUOTES.iter().fold(key.trim().trim_matches('"').to_owned(), |key, quote| key.replace(quote, ""));
        let (value, next, bare) = read_value(after.trim_start());
        fields.bare.extend(bare.then(|| key.clone()));
        fields.values.insert(key, value);
        rest = next.trim_start().trim_start_matches(',').trim_start();
    }
    Some(fields)
}

/// Reads a value; the second part is the rest, and the flag is true for bare text.
fn read_value(text: &str) -> (Value, &str, bool) {
    for quote in QUOTES {
        if let Some((inside, next)) = text.strip_prefix(quote).and_then(|inside| inside.split_once(quote)) {
            return (Value::String(inside.to_owned()), next, false);
        }
    }
    if text.starts_with(['"', '{', '['])
        && let Some((value, next)) = read_structured(text)
    {
        return (value, next, false);
    }
    let end =
        text.match_indices(',').find(|(at, _)| key_follows(&text[at + 1..])).map_or(text.len(), |(at, _)| at);
    let bare = text[..end].trim();
    let literal =
        lenient_json::parse_literal(bare).or_else(|| serde_json::from_str(bare).ok().map(Value::Number));
    let is_text = literal.is_none();
    (literal.unwrap_or_else(|| Value::String(bare.to_owned())), &text[end..], is_text)
}

/// Reads a quoted, nested or listed value, after quote tokens were replaced by quotes.
fn read_structured(text: &str) -> Option<(Value, &str)> {
    let quote = QUOTES.into_iter().find(|quote| text.contains(quote)).filter(|_| !text.starts_with('"'));
    let Some(quote) = quote else {
        let read = lenient_json::read(text).ok()?;
        return Some((read.value, &text[read.end..]));
    };
    let length = if text.starts_with('{') { find_balanced_end(text)? } else { text.rfind(']')? + 1 };
    let mut json = String::with_capacity(length);
    for (index, part) in text[..length].split(quote).enumerate() {
        let quoted = index % 2 == 1;
        json.push_str(&if quoted { Value::String(part.to_owned()).to_string() } else { part.to_owned() });
    }
    Some((lenient_json::read(&json).ok()?.value, &text[length..]))
}

fn key_follows(text: &str) -> bool {
    let text = text.trim_start();
    let end = text.find(|char: char| !(char.is_alphanumeric() || char == '_'));
    end.is_some_and(|end| end > 0 && text[end..].starts_with(':'))
}
