//! Parses YAML into a tree in which every key and value knows its place; duplicate keys are reported. Scalars
//! are typed by the core schema of YAML 1.2, and numbers keep their digits. Uses granit-parser; called by the
//! readers of files. Pure.

use std::collections::HashMap;

use granit_parser::{Event, Parser, ScalarStyle, Span};

use super::diagnostic::{At, Code, FileReport, Spanned};

/// The most nodes that a text may have, with aliases expanded.
pub(crate) const MOST_NODES: usize = 20_000;
/// How deeply collections may be nested.
const DEEPEST: usize = 64;

/// A value, and where it begins.
pub(crate) type Node = Spanned<Value>;

/// The value of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// `null`, `~` or nothing.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number, as written.
    Number(String),
    /// A text.
    Text(String),
    /// A sequence.
    List(Vec<Node>),
    /// A mapping, in text order; of two equal keys the first.
    Map(Vec<Entry>),
}

/// A key and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key as text.
    pub key: Spanned<String>,
    /// The value; of an entry that is written twice the first.
    pub value: Node,
    /// Whether the map has the key twice, so that its value is uncertain.
    pub is_repeated: bool,
}

impl Value {
    /// Returns its kind, for messages.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Bool(_) => "a boolean",
            Self::Number(_) => "a number",
            Self::Text(_) => "a text",
            Self::List(_) => "a list",
            Self::Map(_) => "a map",
        }
    }
}

/// Reads the single document of a text whose first line has this number in its file. An empty text is null.
/// `None` if it is not valid YAML, which has then been reported.
pub(crate) fn read_yaml(text: &str, first_line: usize, report: &mut FileReport<'_>) -> Option<Node> {
    let options = granit_parser::options! { flow_nesting_limit: DEEPEST, block_nesting_limit: DEEPEST };
    let parser = Parser::new_from_str_with_options(text, options);
    let mut reader = Reader { parser, offset: first_line - 1, nodes: 0, anchors: HashMap::new(), report };
    match reader.read_document() {
        Ok(node) => Some(node),
        Err(Stop { at, why }) => {
            let line = text.lines().nth(at.line.saturating_sub(first_line)).unwrap_or_default();
            let before = text.lines().take(at.line.saturating_sub(first_line)).enumerate();
            let open = before.filter_map(|(place, line)| Some((place + first_line, left_open(line)?))).last();
            let help = match open {
                Some((number, mark)) => format!("the `{mark}` in line {number} is not closed there"),
                None => hint_for(&why, line).to_owned(),
            };
            report.add(Code::BadYaml, at, format!("this is not valid YAML: {why}"), help);
            None
        }
    }
}

/// Returns the bracket or quote that a line opens and does not close.
fn left_open(line: &str) -> Option<char> {
    let value = line.split_once(": ").map_or(line, |(_, value)| value);
    let value = value.trim_start_matches(['-', ' ']);
    match value.chars().next()? {
        quote @ ('"' | '\'') => (value.matches(quote).count() % 2 == 1).then_some(quote),
        '[' => (value.matches('[').count() > value.matches(']').count()).then_some('['),
        '{' => (value.matches('{').count() > value.matches('}').count()).then_some('{'),
        _ => None,
    }
}

/// Returns a hint at what is wrong, by the parser's reason and the line where it stopped.
fn hint_for(why: &str, line: &str) -> &'static str {
    if line.trim_start_matches(' ').starts_with('\t') {
        "indent with spaces: YAML takes no tabs there"
    } else if why.contains("anchor") {
        "a value that begins with `*` or `&` needs quotes, such as expr: \"*/5 * * * *\""
    } else if why.contains("mapping values") {
        "a text with `: ` in it needs quotes; keys of one map need the same indent"
    } else {
        ""
    }
}

/// Why parsing stopped.
struct Stop {
    at: At,
    why: String,
}

struct Reader<'a, 'r, 'f> {
    parser: Parser<'a, granit_parser::StrInput<'a>>,
    /// Lines of the file before the text.
    offset: usize,
    nodes: usize,
    /// Completed nodes that an alias may refer to, with their node counts.
    anchors: HashMap<usize, (Node, usize)>,
    report: &'r mut FileReport<'f>,
}

impl<'a> Reader<'a, '_, '_> {
    fn next_event(&mut self) -> Result<(Event<'a>, Span), Stop> {
        match self.parser.next_event() {
            Some(Ok(event)) => Ok(event),
            Some(Err(error)) => {
                let mark = *error.marker();
                let at = At { line: mark.line().max(1) + self.offset, column: mark.col() + 1, width: 1 };
                Err(Stop { at, why: error.info().clone() })
            }
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    fn read_document(&mut self) -> Result<Node, Stop> {
        let mut root = Node::new(Value::Null, At::line(1 + self.offset));
        let mut documents = 0;
        loop {
            let (event, span) = self.next_event()?;
            match event {
                Event::StreamEnd => return Ok(root),
                Event::DocumentStart(..) if documents == 1 => {
                    return Err(self.stop_at(&span, "a second document begins here"));
                }
                Event::DocumentStart(..) => documents += 1,
                Event::StreamStart | Event::DocumentEnd => {}
                event => root = self.read_node(event, &span)?,
            }
        }
    }

    fn read_node(&mut self, event: Event<'a>, span: &Span) -> Result<Node, Stop> {
        let before = self.nodes;
        self.count(1, span)?;
        let at = self.place_of(span);
        let (value, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let is_text =
                    style != ScalarStyle::Plain || tag.is_some_and(|tag| tag.is_yaml_core_schema_tag("str"));
                (read_scalar(&text, is_text), anchor)
            }
            Event::SequenceStart(_, anchor, _) => (self.read_list()?, anchor),
            Event::MappingStart(_, anchor, _) => (self.read_map()?, anchor),
            Event::Alias(id) => return self.read_alias(id, span),
            _ => return Err(self.stop_at(span, "a value is expected here")),
        };
        let node = Node::new(value, at);
        if anchor != 0 {
            self.anchors.insert(anchor, (node.clone(), self.nodes - before));
        }
        Ok(node)
    }

    /// Returns the node that an alias refers to; its place is that of the alias.
    fn read_alias(&mut self, id: usize, span: &Span) -> Result<Node, Stop> {
        let Some((node, size)) = self.anchors.get(&id).map(|(node, size)| (node.value.clone(), *size)) else {
            return Err(self.stop_at(span, "this alias is inside the value that it stands for"));
        };
        self.count(size - 1, span)?;
        Ok(Node::new(node, self.place_of(span)))
    }

    fn read_list(&mut self) -> Result<Value, Stop> {
        let mut items = Vec::new();
        loop {
            match self.next_event()? {
                (Event::SequenceEnd, _) => return Ok(Value::List(items)),
                (event, span) => items.push(self.read_node(event, &span)?),
            }
        }
    }

    fn read_map(&mut self) -> Result<Value, Stop> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut seen: HashMap<String, usize> = HashMap::new();
        loop {
            let (event, span) = self.next_event()?;
            if matches!(event, Event::MappingEnd) {
                return Ok(Value::Map(entries));
            }
            let key = self.read_node(event, &span)?;
            let Some(text) = key_text(&key.value) else {
                return Err(self.stop_at(&span, "a key is a text here, not a list or a map"));
            };
            let key = Spanned::new(text, key.at);
            let (event, span) = self.next_event()?;
            let is_blank = matches!(event, Event::Scalar(..)) && span.is_empty();
            let mut value = self.read_node(event, &span)?;
            if is_blank {
                value.at = key.at;
            }
            if key.value == "<<" && matches!(value.value, Value::Map(_) | Value::List(_)) {
                let message = "`<<` is a merge key, which is not part of the format; it is ignored";
                let help = "write the fields of the other map out in this one";
                self.report.add(Code::UnknownKey, key.at, message, help);
                continue;
            }
            if let Some(first) = seen.get(&key.value) {
                let Some(entry) = entries.get_mut(*first) else { continue };
                entry.is_repeated = true;
                let message = format!(
                    "the key \"{}\" is written twice in this map; only the first, in line {}, was checked",
                    key.value, entry.key.at.line
                );
                let help = "keep only one of them";
                self.report.add(Code::DuplicateKey, key.at, message, help);
            } else {
                seen.insert(key.value.clone(), entries.len());
                entries.push(Entry { key, value, is_repeated: false });
            }
        }
    }

    fn count(&mut self, more: usize, span: &Span) -> Result<(), Stop> {
        self.nodes += more;
        if self.nodes > MOST_NODES {
            return Err(self.stop_at(
                span,
                &format!("with its aliases expanded the text has more than {MOST_NODES} values"),
            ));
        }
        Ok(())
    }

    fn place_of(&self, span: &Span) -> At {
        let is_one_line = span.start.line() == span.end.line();
        let width = if is_one_line { span.end.col().saturating_sub(span.start.col()) } else { 1 };
        At { line: span.start.line().max(1) + self.offset, column: span.start.col() + 1, width: width.max(1) }
    }

    fn stop_at(&self, span: &Span, why: &str) -> Stop {
        Stop { at: self.place_of(span), why: why.to_owned() }
    }
}

fn key_text(value: &Value) -> Option<String> {
    match value {
        Value::Null => Some("null".to_owned()),
        Value::Bool(value) => Some(value.to_string()),
        Value::Number(text) | Value::Text(text) => Some(text.clone()),
        Value::List(_) | Value::Map(_) => None,
    }
}

/// Returns the type of a scalar by the core schema (YAML 1.2.2, 10.3.2).
fn read_scalar(text: &str, is_text: bool) -> Value {
    match text {
        _ if is_text => Value::Text(text.to_owned()),
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        _ if is_number(text) => Value::Number(text.to_owned()),
        _ => Value::Text(text.to_owned()),
    }
}

fn is_number(text: &str) -> bool {
    let all = |digits: &str, is: fn(&char) -> bool| !digits.is_empty() && digits.chars().all(|c| is(&c));
    if let Some(digits) = text.strip_prefix("0x") {
        return all(digits, char::is_ascii_hexdigit);
    }
    if let Some(digits) = text.strip_prefix("0o") {
        return all(digits, |c| ('0'..='7').contains(c));
    }
    if matches!(text, ".nan" | ".NaN" | ".NAN") {
        return true;
    }
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if matches!(unsigned, ".inf" | ".Inf" | ".INF") {
        return true;
    }
    let (mantissa, exponent) = unsigned.split_once(['e', 'E']).unwrap_or((unsigned, "0"));
    let exponent = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, "0"));
    let is_digits = |part: &str| part.chars().all(|c| c.is_ascii_digit());
    let has_digits = mantissa.chars().any(|c| c.is_ascii_digit());
    has_digits && is_digits(whole) && is_digits(fraction) && all(exponent, char::is_ascii_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_fit_the_line() {
        let tab = hint_for("while scanning, found a character that cannot start a token", "  \tname: x");
        assert_eq!(tab, "indent with spaces: YAML takes no tabs there");
        assert!(hint_for("mapping values are not allowed here", "   name: x").contains("indent"));
        assert_eq!(hint_for("unexpected end", "x"), "");
    }
}
