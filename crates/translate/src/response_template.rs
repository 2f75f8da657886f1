//! Hugging Face's `response_template` (transformers 5): a table of the marks around a model's reasoning,
//! answer and calls.
//!
//! Reads whole texts. A template only adds to the parser: text outside regions, and calls that the template
//! cannot read, go to the parser unchanged. The prompt is not available here, so `start_anchor` has no
//! effect. Pure. Called by `interpret` and `live`; the configuration loads the file.

mod content;

use std::collections::BTreeMap;

use regex::{Captures, Regex, RegexBuilder};
use serde_json::{Map, Value};

use self::content::{ContentParser, apply_transform};
use tool_call_parser::NativeCall;

/// The largest expression, compiled, in bytes.
const LARGEST: usize = 4 << 20;

/// A template that was read and checked.
#[derive(Clone, Debug)]
pub struct ResponseTemplate {
    source: Value,
    /// The regions that have an opening mark.
    regions: Vec<Region>,
    /// The closing mark of the region that needs no opening one.
    implicit_close: Option<Regex>,
}

impl wire::settings::Setting for ResponseTemplate {
    const SCALAR: wire::settings::Scalar = wire::settings::Scalar::Text;

    fn to_toml(&self) -> String {
        format!("'{}'", self.source)
    }
}

/// Two templates are the same when their text is.
impl PartialEq for ResponseTemplate {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl Eq for ResponseTemplate {}

#[derive(Clone, Debug)]
struct Region {
    kind: RegionKind,
    open: Regex,
    close: Option<Regex>,
    parser: ContentParser,
    transform: Option<Value>,
    transforms_each: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RegionKind {
    Reasoning,
    Content,
    Calls,
}

impl RegionKind {
    /// Returns the kind of a field. Unknown fields contain text of the answer.
    fn from_name(name: &str) -> Self {
        match name {
            "thinking" | "reasoning" | "reasoning_content" => Self::Reasoning,
            "tool_calls" => Self::Calls,
            _ => Self::Content,
        }
    }
}

/// A part of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// Reasoning, without its marks.
    Reasoning(&'a str),
    /// Text for the parser.
    Content(&'a str),
    /// Calls that the template read.
    Calls(Vec<NativeCall>),
}

/// The reason why a template cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The text is not JSON.
    #[error("the response template is not JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// The JSON is not a template: where and why.
    #[error("the response template cannot be used: {0}")]
    Shape(String),
}

/// The mistake in one field of a template.
#[derive(Debug, thiserror::Error)]
enum FieldError {
    #[error("`{0}` looks ahead or behind, which is not supported; write it without")]
    LooksAround(String),
    #[error(transparent)]
    Expression(#[from] regex::Error),
    #[error("`tag_pattern` has no group `key`")]
    NoKeyGroup,
    #[error("there is no content parser `{0}`")]
    UnknownParser(String),
}

impl ResponseTemplate {
    /// Reads a template's JSON, or an object that has one as `response_template`.
    ///
    /// # Errors
    /// When the text is not JSON, or not a template.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        let mut source: Value = serde_json::from_str(text)?;
        if let Some(inner) = source.get_mut("response_template") {
            source = inner.take();
        }
        if source.get("version").is_some_and(|version| version.as_u64() != Some(1)) {
            return Err(shape_error("only version 1 is known"));
        }
        let fields = source.get("fields").and_then(Value::as_object).filter(|fields| !fields.is_empty());
        let fields = fields.ok_or_else(|| shape_error("it has no `fields`"))?;
        let mut regions = Vec::new();
        let mut implicit: Vec<Option<Regex>> = Vec::new();
        for (name, field) in fields {
            let field =
                field.as_object().ok_or_else(|| shape_error(format!("field `{name}` is not an object")))?;
            match Region::parse(name, field)? {
                Some(region) => regions.push(region),
                None => implicit.push(compile_mark(name, field, "close")?),
            }
        }
        if implicit.len() > 1 {
            return Err(shape_error("more than one field has neither `open` nor `open_pattern`"));
        }
        let implicit_close = implicit.into_iter().flatten().next();
        Ok(Self { source, regions, implicit_close })
    }

    /// Cuts a whole text into its parts.
    pub fn split_text<'a>(&self, text: &'a str) -> Vec<Part<'a>> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(found) = self.next_mark(rest) {
            push_text(&mut parts, &rest[..found.start]);
            let Some(region) = found.region else {
                rest = &rest[found.end..];
                continue;
            };
            let body = &rest[found.end..];
            let close = region.close.as_ref().and_then(|close| close.find(body));
            let (length, end) = close.map_or((body.len(), body.len()), |close| (close.start(), close.end()));
            let source = &rest[..found.end + end];
            let is_closed = region.close.is_none() || close.is_some();
            region.push_part(&mut parts, &source[found.start..], &body[..length], is_closed);
            rest = &body[end..];
        }
        push_text(&mut parts, rest);
        parts
    }

    /// Finds the earliest mark, and of several there the longest.
    fn next_mark(&self, text: &str) -> Option<Mark<'_>> {
        let opens = self.regions.iter().filter_map(|region| Some((Some(region), region.open.find(text)?)));
        let close = self.implicit_close.as_ref().and_then(|close| Some((None, close.find(text)?)));
        let marks = opens.chain(close).filter(|(_, found)| !found.is_empty());
        let first = marks.min_by_key(|(_, found)| (found.start(), usize::MAX - found.end()));
        first.map(|(region, found)| Mark { region, start: found.start(), end: found.end() })
    }
}

/// A mark in a text; without a region it ends the implicit one.
struct Mark<'a> {
    region: Option<&'a Region>,
    start: usize,
    end: usize,
}

impl Region {
    /// Reads a field; `None` when it has no opening mark.
    fn parse(name: &str, field: &Map<String, Value>) -> Result<Option<Self>, TemplateError> {
        let Some(open) = compile_mark(name, field, "open")? else { return Ok(None) };
        let transform = field.get("transform").cloned();
        let transforms_each = field.get("transform_each") == Some(&Value::Bool(true));
        if transforms_each && transform.is_none() {
            return Err(shape_error(format!("field `{name}` has `transform_each` without `transform`")));
        }
        let parser = ContentParser::parse(field.get("content"), field.get("content_args"))
            .map_err(|why| shape_error(format!("field `{name}`: {why}")))?;
        let kind = RegionKind::from_name(name);
        let close = compile_mark(name, field, "close")?;
        Ok(Some(Self { kind, open, close, parser, transform, transforms_each }))
    }

    /// Adds a region of the text. `source`: the whole region with its marks.
    fn push_part<'a>(&self, parts: &mut Vec<Part<'a>>, source: &'a str, body: &'a str, is_closed: bool) {
        match self.kind {
            RegionKind::Reasoning => parts.push(Part::Reasoning(body)),
            RegionKind::Content => push_text(parts, body),
            RegionKind::Calls => match self.read_calls(source, body, is_closed) {
                Some(calls) if !calls.is_empty() => parts.push(Part::Calls(calls)),
                _ => push_text(parts, source),
            },
        }
    }

    fn read_calls(&self, source: &str, body: &str, is_closed: bool) -> Option<Vec<NativeCall>> {
        let captures = self.open.captures(source)?;
        let mut scope = named_groups(&self.open, &captures);
        if !is_closed {
            // The engine decides whether the call was cut.
            let name = scope.get("name")?.as_str()?.to_owned();
            return Some(vec![NativeCall { id: None, name, arguments: body.to_owned() }]);
        }
        let value = self.parser.read(body)?;
        let Some(transform) = &self.transform else { return calls_in(&value) };
        if !self.transforms_each {
            scope.insert("content".to_owned(), value);
            return calls_in(&apply_transform(transform, &scope)?);
        }
        let each = value.as_array()?.iter().map(|item| {
            let mut scope = scope.clone();
            scope.extend(item.as_object()?.clone());
            apply_transform(transform, &scope)
        });
        calls_in(&Value::Array(each.collect::<Option<_>>()?))
    }
}

fn named_groups(pattern: &Regex, captures: &Captures<'_>) -> BTreeMap<String, Value> {
    let group = |name: &str| Some((name.to_owned(), Value::from(captures.name(name)?.as_str())));
    pattern.capture_names().flatten().filter_map(group).collect()
}

/// Reads calls in OpenAI's format, alone or in a list.
fn calls_in(value: &Value) -> Option<Vec<NativeCall>> {
    if let Value::Array(items) = value {
        return Some(items.iter().map(calls_in).collect::<Option<Vec<_>>>()?.concat());
    }
    let function = value.get("function").unwrap_or(value);
    let arguments = match function.get("arguments").or_else(|| function.get("parameters")) {
        Some(Value::String(text)) => text.clone(),
        Some(arguments) => arguments.to_string(),
        None => "{}".to_owned(),
    };
    let name = function.get("name")?.as_str()?.to_owned();
    Some(vec![NativeCall { id: None, name, arguments }])
}

fn push_text<'a>(parts: &mut Vec<Part<'a>>, text: &'a str) {
    if !text.is_empty() {
        parts.push(Part::Content(text));
    }
}

/// Compiles the expression of `open` or `close`: its pattern, its literal or one of its literals.
fn compile_mark(name: &str, field: &Map<String, Value>, key: &str) -> Result<Option<Regex>, TemplateError> {
    let pattern_key = format!("{key}_pattern");
    let text = match (field.get(key), field.get(&pattern_key)) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => {
            return Err(shape_error(format!("field `{name}` has both `{key}` and `{pattern_key}`")));
        }
        (None, Some(Value::String(pattern))) => pattern.clone(),
        (Some(Value::String(literal)), None) => regex::escape(literal),
        (Some(Value::Array(literals)), None) => join_alternatives(literals)
            .ok_or_else(|| shape_error(format!("field `{name}`: `{key}` lists something other than text")))?,
        _ => return Err(shape_error(format!("field `{name}`: `{key}` is neither text nor a list of texts"))),
    };
    compile_expression(&text).map(Some).map_err(|why| shape_error(format!("field `{name}`, `{key}`: {why}")))
}

fn join_alternatives(literals: &[Value]) -> Option<String> {
    let mut literals = literals.iter().map(Value::as_str).collect::<Option<Vec<_>>>()?;
    literals.sort_by_key(|literal| usize::MAX - literal.len());
    let escaped: Vec<String> = literals.into_iter().map(regex::escape).collect();
    (!escaped.is_empty()).then(|| escaped.join("|"))
}

/// Compiles an expression in Python's notation.
fn compile_expression(pattern: &str) -> Result<Regex, FieldError> {
    let look_around = ["(?=", "(?!", "(?<=", "(?<!"];
    if look_around.iter().any(|sign| pattern.contains(sign)) {
        return Err(FieldError::LooksAround(pattern.to_owned()));
    }
    let pattern = pattern.replace(r"\Z", r"\z");
    Ok(RegexBuilder::new(&pattern).dot_matches_new_line(true).size_limit(LARGEST).build()?)
}

fn shape_error(why: impl Into<String>) -> TemplateError {
    TemplateError::Shape(why.into())
}

#[cfg(test)]
mod tests;
