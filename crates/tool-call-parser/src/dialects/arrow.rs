//! `[TOOL_CALL]{tool => "…", args => {--key "value"}}[/TOOL_CALL]`: MiniMax's arrow form, or JSON between the
//! same marks.

use serde_json::{Map, Value};

use super::{Dialect, Found, Opens, Step, View, Wait, envelope, named_json};
use crate::calls::{Delimited, RawCall};
use crate::event::Dropped;

const END: &[&str] = &["[/TOOL_CALL]"];

pub(super) static DIALECT: Dialect = Dialect {
    name: "arrow",
    models: "MiniMax M2 and M2.5 without their own template.",
    families: &[],
    grammar: "`[TOOL_CALL]`, `{tool => \"NAME\", args => {`, per argument `--KEY` and a value in quotes, a JSON value or text up to \
              the end of the line; or a JSON object of arguments; `}}`, `[/TOOL_CALL]`. A JSON call between the marks counts too.",
    example: "[TOOL_CALL]\n{tool => \"read\", args => {\n  --path \"a.txt\"\n}}\n[/TOOL_CALL]",
    opens: Opens::Anywhere(&["[TOOL_CALL]"]),
    read: read_call,
};

fn read_call(view: &View<'_>) -> Step {
    let start = view.skip_space(view.mark);
    let rest = &view.text[start..];
    let Some(body) = rest.strip_prefix('{') else {
        return if rest.is_empty() { view.wait_or_reject(Wait::Any) } else { Step::Not(start + 1) };
    };
    let key = body.trim_start();
    if !view.eof && "tool".starts_with(key) {
        return Step::More(Wait::Any);
    }
    if !key.starts_with("tool") {
        return match envelope::read_json(view, view.mark, END) {
            // Without the end it is `bracket`.
            Step::Read(Found::Calls { .. }, end) if !view.text[..end].ends_with(END[0]) => Step::Not(end),
            step => step,
        };
    }
    let name = called_name(rest);
    match rest.find(END[0]) {
        None if !view.eof => Step::More(Wait::Mark(start, END)),
        None if view.cut => named_json::truncated_call(view, name.unwrap_or_default()),
        found => {
            let length = found.unwrap_or(rest.len());
            let end = start + length + found.map_or(0, |_| END[0].len());
            let Some(name) = name else { return Step::Not(end) };
            match read_arguments(name, rest[..length].trim_end()) {
                Some(call) => named_json::single_call(view, call, end),
                None => Step::Read(Found::Broken(name.to_owned(), Dropped::Unreadable), end),
            }
        }
    }
}

/// Returns the name in `{tool => "NAME"`.
fn called_name(text: &str) -> Option<&str> {
    let (head, after) = text.split_once("=>")?;
    let quoted = after.trim_start().strip_prefix('"')?;
    let (name, _) = quoted.split_once('"')?;
    (head.trim_start_matches('{').trim() == "tool").then_some(name)
}

/// Reads the text from the first brace to the last one.
fn read_arguments(name: &str, text: &str) -> Option<RawCall> {
    let (_, after) = text.split_once(&format!("\"{name}\""))?;
    let after = after.trim_start().trim_start_matches(',').trim_start();
    if after.trim_matches('}').trim().is_empty() {
        return Some(RawCall::from_fields(name, Map::new()));
    }
    let body = after.strip_prefix("args")?.trim_start().strip_prefix("=>")?.trim_start();
    let inner = body.strip_suffix('}')?.trim_end();
    if serde_json::from_str::<Map<String, Value>>(inner).is_ok() {
        return Some(RawCall::from_text(name, inner));
    }
    read_options(name, inner.strip_prefix('{')?.trim_end_matches('}'))
}

/// Reads `--KEY VALUE` options.
fn read_options(name: &str, text: &str) -> Option<RawCall> {
    let mut fields = Map::new();
    let mut quoted = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let after = rest.strip_prefix("--")?;
        let end = after.find(|char: char| !(char.is_alphanumeric() || "_-".contains(char)))?;
        let (key, after) = after.split_at(end);
        let option = read_value(after.trim_start_matches([':', '=']).trim_start())?;
        quoted.extend(option.is_quoted.then(|| key.to_owned()));
        if key.is_empty() || fields.insert(key.to_owned(), option.value).is_some() {
            return None;
        }
        rest = option.next.trim_start().trim_start_matches(',').trim_start();
    }
    let mut call = RawCall::from_unquoted(name, fields, Delimited::Nothing);
    call.unquoted.retain(|key, _| !quoted.contains(key));
    Some(call)
}

/// An option's value, and the text behind it.
struct OptionValue<'a> {
    value: Value,
    is_quoted: bool,
    next: &'a str,
}

fn read_value(text: &str) -> Option<OptionValue<'_>> {
    if text.starts_with(['"', '{', '[']) {
        let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
        if let Some(Ok(value)) = values.next() {
            let next = &text[values.byte_offset()..];
            if begins_option(next) {
                return Some(OptionValue { value, is_quoted: true, next });
            }
        }
        return read_quoted_lines(text);
    }
    let (line, next) = text.split_once('\n').unwrap_or((text, ""));
    Some(OptionValue { value: Value::String(line.trim_end().to_owned()), is_quoted: false, next })
}

/// Reads a text in quotes that holds line breaks or quotes: it ends before the next option or at the end.
fn read_quoted_lines(text: &str) -> Option<OptionValue<'_>> {
    let inside = text.strip_prefix('"')?;
    let (end, _) = inside.match_indices('"').find(|(at, _)| begins_option(&inside[at + 1..]))?;
    let value = Value::String(inside[..end].to_owned());
    Some(OptionValue { value, is_quoted: true, next: &inside[end + 1..] })
}

/// Returns true if the text is over, or another option begins.
fn begins_option(text: &str) -> bool {
    let text = text.trim_start().trim_start_matches(',').trim_start();
    text.is_empty() || text.starts_with("--")
}
