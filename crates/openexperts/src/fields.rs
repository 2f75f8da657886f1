//! Reads a YAML map as typed fields. Every fault is reported at its place, and unknown keys are reported at
//! the end. Called by the readers of the manifest and of the components. Pure.

use serde::Deserialize;
use serde::de::value::{Error as ValueError, StrDeserializer};

use super::diagnostic::{At, Code, FileReport, Spanned, suggest_nearest};
use super::duration::{self, Length};
use super::name::{self, NameKind};
use super::yaml::{Entry, Node, Value};

/// A list, and whether all of it could be read: references into an incomplete list are not judged.
#[derive(Clone, Debug)]
pub struct Listing<T> {
    /// The entries that could be read.
    pub items: Vec<T>,
    /// Whether these are all entries.
    pub is_complete: bool,
}

impl<T> Default for Listing<T> {
    fn default() -> Self {
        Self { items: Vec::new(), is_complete: true }
    }
}

impl<T> Listing<T> {
    /// Returns a list that could not be read.
    pub const fn unreadable() -> Self {
        Self { items: Vec::new(), is_complete: false }
    }
}

/// The key whose loss could loosen what an expert may do.
const POLICY: &str = "policy";

/// Keys that authors write in a wrong place, each with the map it belongs into.
const HOMES: [(&str, &str); 22] = [
    ("approval", "`policy`"),
    ("escalation", "`policy`"),
    ("overrides", "`policy.approval`"),
    ("on_timeout", "`policy.approval`"),
    ("on_reject", "`policy.approval`"),
    ("on_low_confidence", "`policy.escalation`"),
    ("on_manual_ready", "`policy.escalation`"),
    ("timeout", "`execution` (of an attempt) or `policy.approval` (of a question)"),
    ("idempotent", "`execution`"),
    ("on_failure", "`execution`"),
    ("resume_from_execution_log", "`execution`"),
    ("retry", "`execution`"),
    ("max_attempts", "`execution.retry`"),
    ("backoff", "`execution.retry`"),
    ("delay", "`execution.retry`"),
    ("sla", "`delivery` of a process"),
    ("sla_breach", "`delivery` of a process"),
    ("max_entries_per_file", "`learning`"),
    ("tools", "`requires` (the names of tools) or `components` (their files)"),
    ("persona", "`components`"),
    ("processes", "`components`"),
    ("orchestrator", "`components`"),
];

/// Lists of maps, each with the form of an entry, in which `NAME` stands for what was written.
const ENTRIES: [(&str, &str); 4] = [
    ("inputs", "{name: NAME, type: string}"),
    ("outputs", "{name: NAME, type: string}"),
    ("operations", "{name: NAME}"),
    ("triggers", "{name: NAME, type: cron, expr: \"0 8 * * 1-5\"}"),
];

/// The fields of one map.
pub struct Fields<'n, 'r, 'f> {
    entries: &'n [Entry],
    /// Where a missing field is reported.
    owner: At,
    /// Whether the key of this map is written twice, so that another map may hold more fields.
    is_repeated: bool,
    used: Vec<&'static str>,
    /// The recorder of findings.
    pub report: &'r mut FileReport<'f>,
}

impl<'n, 'r, 'f> Fields<'n, 'r, 'f> {
    /// Returns the fields of a map; missing ones are reported at `owner`.
    pub fn new(entries: &'n [Entry], owner: At, report: &'r mut FileReport<'f>) -> Self {
        Self { entries, owner, is_repeated: false, used: Vec::new(), report }
    }

    /// Returns the key, even if its value is null.
    pub fn key(&self, name: &str) -> Option<At> {
        self.entries.iter().find(|entry| entry.key.value == name).map(|entry| entry.key.at)
    }

    /// Returns where a missing field is reported.
    pub const fn owner(&self) -> At {
        self.owner
    }

    /// Returns the value with this name, without marking it as known; null counts as absent.
    pub fn value_of(&self, name: &str) -> Option<&'n Node> {
        let found = self.entries.iter().find(|entry| entry.key.value == name)?;
        (found.value.value != Value::Null).then_some(&found.value)
    }

    /// Returns the value with this name; null counts as absent.
    pub fn value(&mut self, name: &'static str) -> Option<&'n Node> {
        if !self.used.contains(&name) {
            self.used.push(name);
        }
        self.value_of(name)
    }

    /// Returns true if the field is uncertain because its key, or the key of this map, is written twice.
    pub fn is_repeated(&self, name: &str) -> bool {
        self.is_repeated || self.entries.iter().any(|entry| entry.is_repeated && entry.key.value == name)
    }

    /// Reports unknown keys.
    pub fn finish(self) {
        let may_be_policy =
            |key: &str| self.used.contains(&POLICY) && !suggest_nearest(key, [POLICY]).is_empty();
        for (key, help) in self.unknown_keys() {
            // To ignore it could loosen what it was meant to restrict.
            if may_be_policy(&key.value) {
                let message = format!("the format has no key \"{}\" here", key.value);
                self.report.fail(Code::UnknownKey, key.at, message, help);
                continue;
            }
            let message = format!("the format has no key \"{}\" here; it is ignored", key.value);
            self.report.add(Code::UnknownKey, key.at, message, help);
        }
    }

    /// Reports unknown keys as errors: to ignore one could loosen what it was meant to restrict.
    pub fn finish_strictly(self) {
        for (key, help) in self.unknown_keys() {
            let message = format!("the format has no key \"{}\" here", key.value);
            self.report.fail(Code::UnknownKey, key.at, message, help);
        }
    }

    /// Lists the keys that were not read, each with what to do about it.
    fn unknown_keys(&self) -> Vec<(&'n Spanned<String>, String)> {
        let keys = self.entries.iter().map(|entry| &entry.key);
        let unknown = keys.filter(|key| self.used.iter().all(|used| *used != key.value));
        let help = |key: &str| {
            if let Some((_, home)) = HOMES.iter().find(|(known, _)| *known == key) {
                return format!("it belongs into {home}");
            }
            let near = suggest_nearest(key, self.used.iter().copied());
            format!("{near}keys here: {}", self.used.join(", "))
        };
        unknown.map(|key| (key, help(&key.value))).collect()
    }

    /// Returns a text; one that is absent, blank or of another type is reported and read as empty.
    pub fn required_text(&mut self, name: &'static str, example: &str) -> Spanned<String> {
        let absent = Spanned::new(String::new(), self.owner);
        if self.value(name).is_none() {
            self.missing(name, example);
            return absent;
        }
        match self.text(name) {
            Some(text) if text.value.trim().is_empty() => {
                self.missing(name, example);
                absent
            }
            text => text.unwrap_or(absent),
        }
    }

    /// Reports a missing field.
    pub fn missing(&mut self, name: &str, example: &str) {
        self.missing_at(name, example, None);
    }

    /// Reports an empty field, at its key if it has one. A field that is written twice may have its value in
    /// the other place.
    pub fn missing_at(&mut self, name: &str, example: &str, key: Option<At>) {
        if self.is_repeated(name) {
            return;
        }
        let at = key.unwrap_or(self.owner);
        let message = format!("the field `{name}` is missing or empty");
        self.report.add(Code::MissingField, at, message, format!("write {name}: {example}"));
    }

    /// Returns a name that follows the rules of its kind; an invalid one is reported and read as empty, and
    /// so is one that is written twice.
    pub fn required_name(&mut self, kind: NameKind, example: &str) -> Spanned<String> {
        let text = self.required_text("name", example);
        let name = checked_name(text, kind, self.report);
        if self.is_repeated("name") { Spanned::new(String::new(), name.at) } else { name }
    }

    /// Returns an optional text that refers to something by name. One that is written twice is checked as a
    /// text, and then read as absent: it is not known which of the two is meant.
    pub fn reference(&mut self, name: &'static str) -> Option<Spanned<String>> {
        self.text(name).filter(|_| !self.is_repeated(name))
    }

    /// Returns an optional text.
    pub fn text(&mut self, name: &'static str) -> Option<Spanned<String>> {
        let node = self.value(name)?;
        let Value::Text(text) = &node.value else {
            self.wrong_type(name, node, "a text");
            return None;
        };
        Some(Spanned::new(text.clone(), node.at))
    }

    /// Returns a text; if it was written as a number, its digits are kept.
    pub fn text_or_number(&mut self, name: &'static str) -> Option<Spanned<String>> {
        let node = self.value(name)?;
        if let Value::Number(digits) = &node.value {
            let message = format!("`{name}` is a number here; its digits {digits} are taken as a text");
            let help = match name {
                "version" => "write three numbers, such as version: \"1.4.0\"".to_owned(),
                _ => format!("write {name}: \"{digits}\""),
            };
            self.report.add(Code::UnquotedNumber, node.at, message, help);
            return Some(Spanned::new(digits.clone(), node.at));
        }
        self.text(name)
    }

    /// Reads `true` or `false`.
    pub fn boolean(&mut self, name: &'static str) -> Option<Spanned<bool>> {
        let node = self.value(name)?;
        let Value::Bool(value) = node.value else {
            self.wrong_type(name, node, "true or false");
            return None;
        };
        Some(Spanned::new(value, node.at))
    }

    /// Returns a whole number of at least 1.
    pub fn count(&mut self, name: &'static str) -> Option<Spanned<u32>> {
        let node = self.value(name)?;
        let digits = match &node.value {
            Value::Number(digits)
                if digits.strip_prefix(['-', '+']).unwrap_or(digits).chars().all(|c| c.is_ascii_digit()) =>
            {
                digits
            }
            value => {
                let is_quoted =
                    matches!(value, Value::Text(text) if text.chars().all(|c| c.is_ascii_digit()));
                let how = if is_quoted { "without quotes" } else { "digits" };
                self.wrong_structure(name, node, "a whole number", format!("write {how}, such as {name}: 3"));
                return None;
            }
        };
        match digits.parse::<u32>() {
            Ok(count) if count >= 1 => Some(Spanned::new(count, node.at)),
            count => {
                let bounds =
                    if count == Ok(0) { "at least 1".to_owned() } else { format!("from 1 to {}", u32::MAX) };
                let message = format!("`{name}` is {digits}, but it must be {bounds}");
                self.report.add(Code::OutOfRange, node.at, message, format!("write {name}: 1 or more"));
                None
            }
        }
    }

    /// Returns one of a closed list of words.
    pub fn word<T: for<'de> Deserialize<'de>>(
        &mut self,
        name: &'static str,
        words: &[&str],
    ) -> Option<Spanned<T>> {
        let text = self.text(name)?;
        if let Some(word) = word_of(&text.value) {
            Some(Spanned::new(word, text.at))
        } else {
            let message = format!("`{name}` is \"{}\", which is not one of its values", text.value);
            let help = format!(
                "{}possible values: {}",
                suggest_nearest(&text.value, words.iter().copied()),
                words.join(", ")
            );
            self.report.add(Code::WrongEnum, text.at, message, help);
            None
        }
    }

    /// Returns a duration with units.
    pub fn duration(&mut self, name: &'static str, may_be_zero: bool) -> Option<Spanned<Length>> {
        let node = self.value(name)?;
        let (Value::Text(text) | Value::Number(text)) = &node.value else {
            self.wrong_type(name, node, "a duration such as 30s");
            return None;
        };
        match duration::parse_length(text) {
            Ok(length) if may_be_zero || !length.length().is_zero() => Some(Spanned::new(length, node.at)),
            Ok(_) => {
                let message = format!("`{name}` is \"{text}\", but it must be longer than zero");
                self.report.add(Code::BadDuration, node.at, message, "write a longer time, such as 30s");
                None
            }
            Err(why) => {
                let message = format!("`{name}` is \"{text}\", which is not a duration: {why}");
                let help = "write whole numbers with a unit: ms, s, m, h or d, such as 30s, 10m or 1h30m";
                self.report.add(Code::BadDuration, node.at, message, help);
                None
            }
        }
    }

    /// Reads the channel: `main` is the only one.
    pub fn channel(&mut self) {
        let Some(text) = self.text("channel") else { return };
        if text.value != "main" {
            let message = format!("there is no channel \"{}\"", text.value);
            self.report.add(Code::UnknownChannel, text.at, message, "write channel: main");
        }
    }

    /// Returns a list of texts.
    pub fn texts(&mut self, name: &'static str) -> Listing<Spanned<String>> {
        self.read_list(name, "a list of texts", |node, _| match &node.value {
            Value::Text(text) => Some(Spanned::new(text.clone(), node.at)),
            _ => None,
        })
    }

    /// Returns a list of distinct texts; a repeated one is reported and left out.
    pub fn distinct_texts(&mut self, name: &'static str, what: &str) -> Listing<Spanned<String>> {
        let mut list = self.texts(name);
        let mut seen = std::collections::HashSet::new();
        list.items.retain(|item| {
            let is_new = seen.insert(super::path::normalize(&item.value));
            if !is_new {
                let message = format!("the {what} \"{}\" is in this list twice", item.value);
                self.report.add(Code::DuplicateEntry, item.at, message, "remove one of the two");
            }
            is_new
        });
        list
    }

    /// Returns a list of maps, each read by `read`.
    pub fn maps<T>(
        &mut self,
        name: &'static str,
        mut read: impl FnMut(Fields<'n, '_, 'f>) -> T,
    ) -> Listing<T> {
        self.read_list(name, "a list of maps", |node, report| match &node.value {
            Value::Map(entries) => {
                let owner = entries.first().map_or(node.at, |entry| entry.key.at);
                Some(read(Fields::new(entries, owner, report)))
            }
            _ => None,
        })
    }

    fn read_list<T>(
        &mut self,
        name: &'static str,
        what: &str,
        mut read: impl FnMut(&'n Node, &mut FileReport<'f>) -> Option<T>,
    ) -> Listing<T> {
        let is_complete = !self.is_repeated(name);
        let Some(node) = self.value(name) else { return Listing { items: Vec::new(), is_complete } };
        let Value::List(nodes) = &node.value else {
            self.wrong_list(name, node, what);
            return Listing::unreadable();
        };
        let mut list = Listing { items: Vec::new(), is_complete };
        for node in nodes {
            if let Some(item) = read(node, self.report) {
                list.items.push(item);
            } else {
                list.is_complete = false;
                let message =
                    format!("an entry of `{name}` is {}, but `{name}` is {what}", node.value.kind());
                let help = match entry_form(name, &node.value) {
                    (entry, true) => format!("write `- {entry}`"),
                    _ => describe_quoting(&node.value),
                };
                self.report.add(Code::WrongType, node.at, message, help);
            }
        }
        list
    }

    /// Reports a field that has to be a list.
    pub fn wrong_list(&mut self, name: &str, node: &Node, what: &str) {
        let (entry, _) = entry_form(name, &node.value);
        self.wrong_structure(name, node, what, format!("write it as a list: `{name}: [{entry}]`"));
    }

    /// Returns a map, read as separate fields; missing ones are reported at its key. `None` if it is absent;
    /// a wrong type is reported.
    pub fn map(&mut self, name: &'static str) -> Option<Fields<'n, '_, 'f>> {
        let owner = self.key(name).unwrap_or(self.owner);
        let is_repeated = self.is_repeated(name);
        let entries = self.entries_of(name)?;
        Some(Fields { is_repeated, ..Fields::new(entries, owner, self.report) })
    }

    /// Returns the entries of a map whose keys the format does not define.
    pub fn entries_of(&mut self, name: &'static str) -> Option<&'n [Entry]> {
        let node = self.value(name)?;
        if let Value::Map(entries) = &node.value {
            Some(entries)
        } else {
            self.wrong_structure(name, node, "a map", format!("write its fields below `{name}:`, indented"));
            None
        }
    }

    /// Reports a field that is written but has no effect where it stands.
    pub fn note_idle(&mut self, name: &str, why: &str, help: &str) {
        if self.value_of(name).is_some()
            && let Some(at) = self.key(name)
        {
            let message = format!("`{name}` has no effect: {why}");
            self.report.add(Code::IgnoredField, at, message, help);
        }
    }

    /// Ignores the remaining keys.
    pub fn ignore_others(self) {}

    /// Reports a field that has to be a list or a map.
    fn wrong_structure(&mut self, name: &str, node: &Node, expected: &str, help: String) {
        let message = format!("`{name}` is {}, but it must be {expected}", node.value.kind());
        self.report.add(Code::WrongType, node.at, message, help);
    }

    /// Reports a field of the wrong type.
    pub fn wrong_type(&mut self, name: &str, node: &Node, expected: &str) {
        let message = format!("`{name}` is {}, but it must be {expected}", node.value.kind());
        self.report.add(Code::WrongType, node.at, message, describe_quoting(&node.value));
    }
}

/// Returns the form of an entry of this list that says what was written, and whether it is a map.
fn entry_form(list: &str, written: &Value) -> (String, bool) {
    let value = match written {
        Value::Text(text) | Value::Number(text) => text,
        _ => "…",
    };
    match ENTRIES.iter().find(|(known, _)| *known == list) {
        Some((_, form)) => (form.replace("NAME", value), true),
        None => (value.to_owned(), false),
    }
}

/// Returns how to turn a value into a text.
fn describe_quoting(value: &Value) -> String {
    match value {
        Value::Number(text) => format!("as a text it is written \"{text}\""),
        Value::Bool(value) => format!("as a text it is written \"{value}\""),
        Value::Text(text) if matches!(text.as_str(), "true" | "false") => {
            "write it without quotes".to_owned()
        }
        Value::Text(text) if matches!(text.as_str(), "yes" | "no" | "on" | "off") => {
            "in YAML 1.2 the booleans are written true and false".to_owned()
        }
        Value::List(items) => match items.as_slice() {
            [Node { value: Value::Text(text), .. }] => format!("write it without brackets: {text}"),
            _ => String::new(),
        },
        _ => String::new(),
    }
}

/// Returns the word from a closed list.
pub(crate) fn word_of<T: for<'de> Deserialize<'de>>(text: &str) -> Option<T> {
    T::deserialize(StrDeserializer::<ValueError>::new(text)).ok()
}

/// Returns the name, or an empty one if it breaks the rules of its kind, which is reported.
pub(crate) fn checked_name(
    text: Spanned<String>,
    kind: NameKind,
    report: &mut FileReport<'_>,
) -> Spanned<String> {
    match name::check_name(&text.value, kind) {
        _ if text.value.is_empty() => text,
        Ok(()) => text,
        Err(why) => {
            let message = format!("\"{}\" cannot be the name of {}: {why}", text.value, kind.what());
            report.add(Code::BadName, text.at, message, "choose another name, such as a word in kebab-case");
            Spanned::new(String::new(), text.at)
        }
    }
}
