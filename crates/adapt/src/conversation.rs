//! The messages of a request while rules change them. A message that no rule changes keeps its bytes.

use wire::{Object, ValueText, array_elements, array_objects, encode_string};

use crate::tools::rename;

/// One message.
#[derive(Clone, Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) object: Object<'a>,
    /// Its text in the request, unless it was changed.
    text: Option<&'a str>,
}

impl<'a> Entry<'a> {
    /// A new message with this role and text.
    pub(crate) fn new(role: &str, text: &str) -> Self {
        let mut object = Object::default();
        object.set("role", encode_string(role));
        object.set("content", encode_string(text));
        Self { object, text: None }
    }

    pub(crate) fn set(&mut self, key: &'a str, json: impl Into<ValueText<'a>>) {
        self.object.set(key, json);
        self.text = None;
    }

    pub(crate) fn remove(&mut self, key: &str) {
        if self.object.remove(key) {
            self.text = None;
        }
    }

    /// Gives it the name that every server takes; for a tool's result. Returns false when nothing changes.
    pub(crate) fn rename(&mut self) -> bool {
        let changes = rename(&mut self.object);
        if changes {
            self.text = None;
        }
        changes
    }

    pub(crate) fn is_from(&self, role: &str) -> bool {
        self.object.is_string("role", role)
    }

    /// True for a system or developer message.
    pub(crate) fn is_system(&self) -> bool {
        self.is_from("system") || self.is_from("developer")
    }

    pub(crate) fn has_calls(&self) -> bool {
        self.object.get("tool_calls").is_some_and(|calls| !wire::is_empty_array(calls))
    }

    /// The calls, as JSON texts.
    pub(crate) fn calls(&self) -> Vec<String> {
        let calls = self.object.get("tool_calls").and_then(array_elements).unwrap_or_default();
        calls.into_iter().map(str::to_owned).collect()
    }

    fn json_len(&self) -> usize {
        self.text.map_or_else(|| self.object.json_len(), str::len)
    }

    fn write_json(&self, out: &mut String) {
        match self.text {
            Some(text) => out.push_str(text),
            None => self.object.write_json(out),
        }
    }

    /// Puts its content between two texts.
    pub(crate) fn enclose_content(&mut self, before: &str, after: &str) {
        let own = std::mem::replace(self, Self::new("", before));
        self.append_content(&own);
        self.append_content(&Self::new("", after));
        let content = self.object.get("content").map(str::to_owned);
        *self = own;
        self.set("content", content.unwrap_or_default());
    }

    /// Adds the content of another message at the end, after an empty line.
    pub(crate) fn append_content(&mut self, other: &Self) {
        self.append("content", other);
    }

    /// Adds the text that another message has in this field.
    pub(crate) fn append(&mut self, key: &'a str, other: &Self) {
        let more = other.object.get(key).filter(|more| !is_blank(more));
        let joined = more.and_then(|more| join_contents(self.object.get(key), Some(more)));
        if let Some(joined) = joined {
            self.set(key, joined);
        }
    }
}

/// The messages of a request, in order.
#[derive(Clone, Debug)]
pub(crate) struct Conversation<'a>(pub(crate) Vec<Entry<'a>>);

impl<'a> Conversation<'a> {
    /// Reads a `messages` array; `None` when it has anything but objects.
    pub(crate) fn read(messages: &'a str) -> Option<Self> {
        let entries = array_objects(messages)?.into_iter();
        Some(Self(entries.map(|(object, text)| Entry { object, text: Some(text) }).collect()))
    }

    pub(crate) fn to_json(&self) -> String {
        let size: usize = self.0.iter().map(|entry| entry.json_len() + 1).sum();
        let mut out = String::with_capacity(size + 2);
        out.push('[');
        for (index, entry) in self.0.iter().enumerate() {
            if index > 0 {
                out.push(',');
            }
            entry.write_json(&mut out);
        }
        out.push(']');
        out
    }
}

/// Joins two contents, each a JSON text: strings with an empty line between them, parts as one list.
fn join_contents(first: Option<&str>, second: Option<&str>) -> Option<String> {
    let first = first.filter(|content| !is_blank(content));
    let second = second.filter(|content| !is_blank(content));
    match (first, second) {
        (Some(first), Some(second)) if first.starts_with('"') && second.starts_with('"') => {
            Some(format!("{}\\n\\n{}", &first[..first.len() - 1], &second[1..]))
        }
        (Some(first), Some(second)) => {
            let parts: Vec<String> = [first, second].into_iter().flat_map(parts_of).collect();
            Some(format!("[{}]", parts.join(",")))
        }
        (first, second) => first.or(second).map(str::to_owned),
    }
}

/// True for an empty string or an empty array.
pub(crate) fn is_blank(content: &str) -> bool {
    content == "\"\"" || wire::is_empty_array(content)
}

/// A content's parts, as JSON texts; a string is one text part.
pub(crate) fn parts_of(content: &str) -> Vec<String> {
    match array_elements(content) {
        Some(parts) => parts.into_iter().map(str::to_owned).collect(),
        None if is_blank(content) => Vec::new(),
        None => vec![text_part(content)],
    }
}

/// A content that is a string as a list of parts.
pub(crate) fn as_parts(content: &str) -> String {
    if is_blank(content) { "[]".to_owned() } else { ["[", TEXT_PART, content, "}]"].concat() }
}

/// The beginning of a part of text.
const TEXT_PART: &str = r#"{"type":"text","text":"#;

fn text_part(content: &str) -> String {
    [TEXT_PART, content, "}"].concat()
}

/// The text of a content; parts without text are left out. `None` when a part without text would be lost.
pub(crate) fn text_of(content: &str) -> Option<String> {
    let Some(parts) = array_elements(content) else { return wire::decode_string(content) };
    let texts: Option<Vec<String>> =
        parts.into_iter().map(|part| Object::parse(part).ok()?.string("text")).collect();
    texts.map(|texts| texts.join("\n\n"))
}
