//! The parsers that a template names for the text of a region, and its `transform`. Pure.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Map, Value};

use super::{FieldError, compile_expression};
use tool_call_parser::mended_object;
use wire::pattern::compile_pattern;

/// A key without quotes.
static BARE_KEY: LazyLock<Regex> = LazyLock::new(|| compile_pattern(r"([{,]\s*)(\w+)\s*:"));

/// One parser with its settings.
#[derive(Clone, Debug)]
pub(super) enum ContentParser {
    Text { strips: bool },
    Json(JsonForm),
    Tags { tag: Box<Regex>, value: Option<Box<ContentParser>>, merges: bool },
    Lines { line: String, between: String, value: Option<Box<ContentParser>> },
}

/// The deviations of a model's JSON from the standard.
#[derive(Clone, Debug, Default)]
pub(super) struct JsonForm {
    has_bare_keys: bool,
    /// The pairs of marks around texts.
    quotes: Vec<[String; 2]>,
    allows_text: bool,
}

impl ContentParser {
    /// Finds the parser of this name. `int`, `float` and `bool` are texts, to which the tool's schema gives a
    /// type.
    pub(super) fn parse(name: Option<&Value>, settings: Option<&Value>) -> Result<Self, FieldError> {
        let name = name.map_or(Some("text"), Value::as_str).unwrap_or_default();
        let flag = |key: &str, default: bool| {
            settings.and_then(|settings| settings.get(key)?.as_bool()).unwrap_or(default)
        };
        let text = |key: &str, default: &str| {
            let given = settings.and_then(|settings| settings.get(key)?.as_str());
            given.unwrap_or(default).to_owned()
        };
        let value = || match settings.and_then(|settings| settings.get("value_parser")) {
            None | Some(Value::Null) => Ok(None),
            Some(parser) => Self::parse(parser.get("name"), parser.get("args")).map(|it| Some(Box::new(it))),
        };
        match name {
            "text" | "int" | "float" | "bool" => Ok(Self::Text { strips: flag("strip", true) }),
            "json" => Ok(Self::Json(JsonForm {
                has_bare_keys: flag("unquoted_keys", false),
                quotes: read_quotes(settings),
                allows_text: flag("allow_non_json", false),
            })),
            "xml-inline" => {
                let tag = compile_expression(&text("tag_pattern", ""))?;
                if !tag.capture_names().flatten().any(|group| group == "key") {
                    return Err(FieldError::NoKeyGroup);
                }
                let merges = flag("merge_duplicates", false);
                Ok(Self::Tags { tag: Box::new(tag), value: value()?, merges })
            }
            "kv-lines" => Ok(Self::Lines {
                line: text("line_sep", "\n"),
                between: text("kv_sep", ":"),
                value: value()?,
            }),
            other => Err(FieldError::UnknownParser(other.to_owned())),
        }
    }

    /// Reads a region's text; `None` when it has another form.
    pub(super) fn read(&self, text: &str) -> Option<Value> {
        match self {
            Self::Text { strips } => Some(Value::from(if *strips { text.trim() } else { text })),
            Self::Json(form) => form.read(text),
            Self::Tags { tag, value, merges } => {
                let mut fields = Map::new();
                for found in tag.captures_iter(text) {
                    let raw = found.name("value").map_or("", |group| group.as_str());
                    let read = read_value(value.as_deref(), raw)?;
                    insert_value(&mut fields, found.name("key")?.as_str(), read, *merges);
                }
                Some(Value::Object(fields))
            }
            Self::Lines { line, between, value } => {
                let pairs = text.split(line.as_str()).filter_map(|line| line.split_once(between.as_str()));
                let read = |(key, raw): (&str, &str)| {
                    Some((key.trim().to_owned(), read_value(value.as_deref(), raw.trim())?))
                };
                pairs.map(read).collect::<Option<Map<_, _>>>().map(Value::Object)
            }
        }
    }
}

fn read_quotes(settings: Option<&Value>) -> Vec<[String; 2]> {
    let pairs = settings.and_then(|settings| settings.get("string_delims")?.as_array());
    let pair = |pair: &Value| Some([pair.get(0)?.as_str()?.to_owned(), pair.get(1)?.as_str()?.to_owned()]);
    pairs.into_iter().flatten().filter_map(pair).filter(|[open, _]| !open.is_empty()).collect()
}

fn read_value(parser: Option<&ContentParser>, raw: &str) -> Option<Value> {
    parser.map_or_else(|| Some(Value::from(raw)), |parser| parser.read(raw))
}

/// Adds a value; with `merges`, values of the same key become a list.
fn insert_value(fields: &mut Map<String, Value>, key: &str, value: Value, merges: bool) {
    match fields.get_mut(key).filter(|_| merges) {
        Some(Value::Array(items)) => items.push(value),
        Some(first) => *first = Value::Array(vec![first.take(), value]),
        None => {
            fields.insert(key.to_owned(), value);
        }
    }
}

impl JsonForm {
    fn read(&self, text: &str) -> Option<Value> {
        let plain = self.standardise(text);
        let read = serde_json::from_str(plain.trim()).ok();
        let mended = || serde_json::from_str(&mended_object(&plain)?).ok();
        read.or_else(mended).or_else(|| self.allows_text.then(|| Value::from(text.trim())))
    }

    /// Replaces the quotes around texts and keys by those of JSON.
    fn standardise(&self, text: &str) -> String {
        let mut out = String::new();
        let mut rest = text;
        let next = |rest: &str| {
            let marks = self.quotes.iter().filter_map(|[open, close]| Some((rest.find(open)?, open, close)));
            marks.min_by_key(|(at, ..)| *at).map(|(at, open, close)| (at, open.len(), close.clone()))
        };
        while let Some((at, length, close)) = next(rest) {
            let Some(end) = rest[at + length..].find(&close) else { break };
            let inside = &rest[at + length..at + length + end];
            out.push_str(&self.with_quoted_keys(&rest[..at]));
            out.push_str(&Value::from(inside).to_string());
            rest = &rest[at + length + end + close.len()..];
        }
        out.push_str(&self.with_quoted_keys(rest));
        out
    }

    fn with_quoted_keys(&self, text: &str) -> String {
        if !self.has_bare_keys {
            return text.to_owned();
        }
        BARE_KEY.replace_all(text, r#"$1"$2":"#).into_owned()
    }
}

/// Fills a `transform` with the values in `scope`; `None` when a value is missing.
pub(super) fn apply_transform(transform: &Value, scope: &BTreeMap<String, Value>) -> Option<Value> {
    match transform {
        Value::Object(fields) => {
            let fields =
                fields.iter().map(|(key, value)| Some((key.clone(), apply_transform(value, scope)?)));
            fields.collect::<Option<Map<_, _>>>().map(Value::Object)
        }
        Value::Array(items) => {
            items.iter().map(|item| apply_transform(item, scope)).collect::<Option<_>>().map(Value::Array)
        }
        Value::String(text) => match text.strip_prefix('{').and_then(|text| text.strip_suffix('}')) {
            Some(path) => {
                let mut keys = path.split('.');
                let root = scope.get(keys.next()?)?;
                keys.try_fold(root, |value, key| value.get(key)).cloned()
            }
            None => Some(transform.clone()),
        },
        other => Some(other.clone()),
    }
}
