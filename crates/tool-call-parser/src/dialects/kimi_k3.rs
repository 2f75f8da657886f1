//! Kimi K3's markup of open, close and separator tokens: `<|open|>call tool="…"<|sep|>…<|close|>call<|sep|>`.

use serde_json::{Map, Value};

use super::{Dialect, Found, Lane, MarkAt, Opens, Step, View, Wait, named_json};
use crate::calls::{Delimited, RawCall};
use crate::event::Dropped;

const OPEN: &str = "<|open|>";
const CLOSE: &str = "<|close|>";
const SEPARATOR: &str = "<|sep|>";
const ARGUMENT: &str = "<|open|>argument ";
const ARGUMENT_END: &[&str] = &["<|close|>argument<|sep|>"];
const CALL_END: &[&str] = &["<|close|>call<|sep|>"];
const THINK_END: &[&str] = &["<|close|>think<|sep|>"];
/// The longest tag.
const TAG: usize = 256;

pub(super) static DIALECT: Dialect = Dialect {
    name: "kimi_k3",
    models: "Kimi K3.",
    families: &["kimik3"],
    grammar: "`<|open|>tools<|sep|>`, then per call `<|open|>call tool=\"NAME\" index=\"N\"<|sep|>`, per argument \
              `<|open|>argument key=\"KEY\" type=\"TYPE\"<|sep|>VALUE<|close|>argument<|sep|>`, `<|close|>call<|sep|>`; \
              `<|close|>tools<|sep|>`. A value of type `string` is text as it stands, others are JSON. `response` and \
              `message` frame the answer, `think` the reasoning.",
    example: "<|open|>tools<|sep|><|open|>call tool=\"read\" index=\"1\"<|sep|><|open|>argument key=\"path\" \
              type=\"string\"<|sep|>a.txt<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
    opens: Opens::Anywhere(&[OPEN, CLOSE]),
    read: read_call,
};

fn read_call(view: &View<'_>) -> Step {
    let body = view.body();
    let window = body.floor_char_boundary(TAG);
    let Some(length) = body[..window].find(SEPARATOR) else {
        return unfinished_tag(view, body);
    };
    let tag = &body[..length];
    let end = view.mark + length + SEPARATOR.len();
    let opens = view.text.starts_with(OPEN);
    match tag {
        "think" if opens => Step::Read(Found::Lane(Lane::Reasoning(THINK_END, &[])), end),
        "think" => Step::Read(Found::EndOfReasoning, end),
        "tools" | "response" | "message" => Step::Read(Found::Skip, end),
        _ if opens && tag.starts_with("call ") => read_body(view, tag, end),
        _ => Step::Not(end),
    }
}

/// Drops a tag that the end of the reply cut. A longer text is not a tag.
fn unfinished_tag(view: &View<'_>, body: &str) -> Step {
    match body.len() {
        length if length >= TAG => Step::Not(view.mark + TAG),
        _ if !view.eof => Step::More(Wait::Any),
        0 => Step::Read(Found::Skip, view.mark),
        _ if body.starts_with("call ") && view.text.starts_with(OPEN) => {
            named_json::truncated_call(view, &read_attribute(body, "tool").unwrap_or_default())
        }
        _ => Step::Not(view.text.len()),
    }
}

fn read_body(view: &View<'_>, tag: &str, from: usize) -> Step {
    let name = read_attribute(tag, "tool").unwrap_or_default();
    if view.tools.resolve(&name).is_none() {
        return view.broken_until(from, CALL_END, &name, Dropped::Undeclared);
    }
    let mut fields = Fields::default();
    let mut at = from;
    loop {
        at = view.skip_space(at);
        if let MarkAt::Here(length) = view.mark_at(at, CALL_END) {
            return named_json::single_call(view, fields.into_call(&name), at + length);
        }
        if !view.text[at..].starts_with(ARGUMENT) {
            let partial = [ARGUMENT, CALL_END[0]].iter().any(|mark| mark.starts_with(&view.text[at..]));
            return match partial {
                true if view.eof => named_json::truncated_call(view, &name),
                true => Step::More(Wait::Any),
                false => view.broken_until(at, CALL_END, &name, Dropped::Unreadable),
            };
        }
        match fields.read_argument(view, at) {
            Ok(end) => at = end,
            Err(wait) if !view.eof => return Step::More(wait),
            Err(_) => return named_json::truncated_call(view, &name),
        }
    }
}

/// The arguments, and the names of those whose type the schema decides.
#[derive(Default)]
struct Fields {
    values: Map<String, Value>,
    unquoted: Vec<String>,
}

impl Fields {
    /// Reads the argument at `at` and returns its end.
    fn read_argument(&mut self, view: &View<'_>, at: usize) -> Result<usize, Wait> {
        let head = at + ARGUMENT.len();
        let length = view.text[head..].find(SEPARATOR).ok_or(Wait::Mark(head, &[SEPARATOR]))?;
        let tag = &view.text[head..head + length];
        let from = head + length + SEPARATOR.len();
        let length = view.text[from..].find(ARGUMENT_END[0]).ok_or(Wait::Mark(from, ARGUMENT_END))?;
        let text = &view.text[from..from + length];
        let key = read_attribute(tag, "key").unwrap_or_default();
        let is_text = read_attribute(tag, "type").is_none_or(|kind| kind == "string");
        let json = if is_text { None } else { serde_json::from_str(text.trim()).ok() };
        self.unquoted.extend((!is_text && json.is_none()).then(|| key.clone()));
        self.values.insert(key, json.unwrap_or_else(|| Value::String(text.to_owned())));
        Ok(from + length + ARGUMENT_END[0].len())
    }

    fn into_call(self, name: &str) -> RawCall {
        let mut call = RawCall::from_fields(name, self.values);
        call.unquoted = self.unquoted.into_iter().map(|key| (key, Delimited::Tags)).collect();
        call
    }
}

/// Returns the value of an attribute with its entities resolved.
fn read_attribute(tag: &str, name: &str) -> Option<String> {
    let (_, rest) = tag.split_once(&format!("{name}=\""))?;
    let (value, _) = rest.split_once('"')?;
    let entities = [("&quot;", "\""), ("&#39;", "'"), ("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")];
    Some(entities.iter().fold(value.to_owned(), |value, (entity, char)| value.replace(entity, char)))
}
