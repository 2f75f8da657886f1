//! Reads JSON as models write it, and reports the repairs.
//!
//! Repairs: single quotes, trailing and missing commas, comments, Python literals, bare words, raw newlines
//! and bad escapes in strings, unescaped quotes if the following text decides, missing closers after a whole
//! value. It never invents content: a text that ends anywhere else has no value. Strict JSON is read by
//! `serde_json` first. Used by `calls` and the dialects.

use serde_json::{Map, Number, Value};

use super::json_span::{Role, quote_closes};
use super::repairs::Repair;
pub(crate) use super::repairs::Repairs;

/// Deeper nesting than this is not read (`serde_json` has the same limit).
const MAX_DEPTH: usize = 127;

/// The result of reading a text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Lenient {
    /// The value.
    pub(crate) value: Value,
    /// Its end in the text.
    pub(crate) end: usize,
    /// The repairs.
    pub(crate) repairs: Repairs,
}

/// The reason why a text has no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// It ends inside a string, before a value, or after a value that may be incomplete.
    Truncated,
    /// It is not JSON.
    NotJson,
}

/// Reads one value at the start of `text` (after white space). The caller decides about the rest.
pub(crate) fn read(text: &str) -> Result<Lenient, Unreadable> {
    let mut strict = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    if let Some(Ok(value)) = strict.next() {
        return Ok(Lenient { value, end: strict.byte_offset(), repairs: Repairs::new() });
    }
    let mut reader = Reader::new(text, false);
    let value = reader.read_value(0, Role::Item)?;
    Ok(Lenient { value, end: reader.at, repairs: reader.repairs })
}

/// Reads a Python literal (the value of a keyword argument): quotes close at once, parentheses are tuples.
pub(crate) fn read_python(text: &str) -> Result<(Value, usize), Unreadable> {
    let mut reader = Reader::new(text, true);
    let value = reader.read_value(0, Role::Item)?;
    Ok((value, reader.at))
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    python: bool,
    /// True when the last value is certainly complete: more text could not change it.
    whole: bool,
    repairs: Repairs,
}

impl<'a> Reader<'a> {
    fn new(text: &'a str, python: bool) -> Self {
        Self { text, at: 0, python, whole: false, repairs: Repairs::new() }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn note_repair(&mut self, repair: Repair) {
        self.repairs.insert(repair);
    }

    /// Skips whitespace and comments.
    fn skip_space(&mut self) {
        loop {
            let rest = self.rest();
            self.at += rest.len() - rest.trim_start().len();
            let rest = self.rest();
            let end = if rest.starts_with("//") {
                rest.find('\n')
            } else if rest.starts_with("/*") {
                rest.find("*/").map(|end| end + 2)
            } else {
                return;
            };
            self.note_repair(Repair::Comment);
            self.at += end.unwrap_or(rest.len());
        }
    }

    fn read_value(&mut self, depth: usize, role: Role) -> Result<Value, Unreadable> {
        self.skip_space();
        if depth > MAX_DEPTH {
            return Err(Unreadable::NotJson);
        }
        let value = match self.peek() {
            None => return Err(Unreadable::Truncated),
            Some(b'{') => self.read_object(depth)?,
            Some(b'[') => self.read_array(depth, b']')?,
            Some(b'(') if self.python => self.read_array(depth, b')')?,
            Some(b'"' | b'\'') => self.read_string(role).map(Value::String)?,
            Some(_) => return self.read_word(role),
        };
        self.whole = true;
        Ok(value)
    }

    /// Closes the brackets that are open at the end of the text, but only after a complete value.
    fn close_at_end(&mut self, value: Value) -> Result<Value, Unreadable> {
        if !self.whole {
            return Err(Unreadable::Truncated);
        }
        self.note_repair(Repair::Unclosed);
        Ok(value)
    }

    fn read_object(&mut self, depth: usize) -> Result<Value, Unreadable> {
        self.at += 1;
        self.whole = false;
        let mut object = Map::new();
        loop {
            self.skip_space();
            match self.peek() {
                None => return self.close_at_end(Value::Object(object)),
                Some(b'}') => {
                    self.at += 1;
                    return Ok(Value::Object(object));
                }
                Some(b']') if !object.is_empty() => {
                    self.note_repair(Repair::Unclosed);
                    return Ok(Value::Object(object));
                }
                Some(b',') => {
                    self.note_repair(Repair::Comma);
                    self.at += 1;
                    self.whole = false;
                }
                Some(_) => self.read_member(&mut object, depth)?,
            }
        }
    }

    fn read_member(&mut self, object: &mut Map<String, Value>, depth: usize) -> Result<(), Unreadable> {
        let key = self.read_key()?;
        self.whole = false;
        self.skip_space();
        match self.peek() {
            None => return Err(Unreadable::Truncated),
            Some(b':') => self.at += 1,
            Some(_) => return Err(Unreadable::NotJson),
        }
        let value = self.read_value(depth + 1, Role::Member)?;
        object.insert(key, value);
        self.read_separator(b'}');
        Ok(())
    }

    fn read_key(&mut self) -> Result<String, Unreadable> {
        if matches!(self.peek(), Some(b'"' | b'\'')) {
            return self.read_string(Role::Key);
        }
        let rest = self.rest();
        let end = rest.find(|char: char| !(char.is_alphanumeric() || "_-$.".contains(char)));
        let end = end.ok_or(Unreadable::Truncated)?;
        if end == 0 {
            return Err(Unreadable::NotJson);
        }
        self.note_repair(Repair::Quotes);
        self.at += end;
        Ok(rest[..end].to_owned())
    }

    fn read_array(&mut self, depth: usize, closer: u8) -> Result<Value, Unreadable> {
        self.at += 1;
        self.whole = false;
        let mut items = Vec::new();
        loop {
            self.skip_space();
            match self.peek() {
                Some(byte) if byte == closer => {
                    self.at += 1;
                    return Ok(Value::Array(items));
                }
                None => return self.close_at_end(Value::Array(items)),
                Some(b'}') => {
                    self.note_repair(Repair::Unclosed);
                    return Ok(Value::Array(items));
                }
                Some(_) => items.push(self.read_value(depth + 1, Role::Item)?),
            }
            self.read_separator(closer);
        }
    }

    /// Takes the comma between values, and notes a missing or additional one.
    fn read_separator(&mut self, closer: u8) {
        self.skip_space();
        if self.peek() == Some(b',') {
            self.at += 1;
            self.whole = false;
            self.skip_space();
            if self.peek() == Some(closer) {
                self.note_repair(Repair::Comma);
            }
        } else if !matches!(self.peek(), None | Some(b'}' | b']' | b')')) {
            self.note_repair(Repair::Comma);
        }
    }

    fn read_string(&mut self, role: Role) -> Result<String, Unreadable> {
        let quote = self.text.as_bytes()[self.at];
        if self.python && self.rest().starts_with(["\"\"\"", "'''"].as_slice()[usize::from(quote == b'\'')]) {
            return self.read_triple_quoted();
        }
        if quote == b'\'' {
            self.note_repair(Repair::Quotes);
        }
        let start = self.at + 1;
        let end = self.closing_quote(start, quote, role).ok_or(Unreadable::Truncated)?;
        self.at = end + 1;
        let raw = &self.text[start..end];
        Ok(self.unescape_text(raw, quote))
    }

    fn read_triple_quoted(&mut self) -> Result<String, Unreadable> {
        let start = self.at + 3;
        let end = self.text[start..].find(&self.text[self.at..start]).ok_or(Unreadable::Truncated)?;
        self.at = start + end + 3;
        let raw = &self.text[start..start + end];
        Ok(self.unescape_text(raw, 0))
    }

    fn closing_quote(&mut self, start: usize, quote: u8, role: Role) -> Option<usize> {
        let bytes = self.text.as_bytes();
        let mut at = start;
        loop {
            at += memchr::memchr2(quote, b'\\', bytes.get(at..)?)?;
            if bytes[at] == b'\\' {
                at += 2;
            } else if self.python || quote_closes(&bytes[at + 1..], role) != Some(false) {
                return Some(at);
            } else {
                self.note_repair(Repair::InnerQuotes);
                at += 1;
            }
        }
    }

    fn unescape_text(&mut self, raw: &str, quote: u8) -> String {
        if raw.bytes().any(|byte| byte < 0x20) && !self.python {
            self.note_repair(Repair::RawNewline);
        }
        if !raw.contains('\\') {
            return raw.to_owned();
        }
        let (text, bad) = resolve_escapes(raw, quote);
        if bad {
            self.note_repair(Repair::Escape);
            if is_windows_path(raw) {
                return raw.replace("\\\\", "\\");
            }
        }
        text
    }

    /// Reads a number, a literal in any language's spelling, or a bare word, which becomes a string.
    fn read_word(&mut self, role: Role) -> Result<Value, Unreadable> {
        let rest = self.rest();
        let end = rest.find([',', '}', ']', ')', '\n', '"', '{', '[', '<']).unwrap_or(rest.len());
        let word = rest[..end].split("//").next().unwrap_or_default().trim_end();
        if word.is_empty() {
            return Err(Unreadable::NotJson);
        }
        let literal = parse_literal(word);
        self.whole = literal.is_some();
        let value = literal.or_else(|| parse_number(word));
        if value.is_none() && (role != Role::Member || self.python || !is_bare(word)) {
            return Err(Unreadable::NotJson);
        }
        if serde_json::from_str::<Value>(word).is_err() {
            self.note_repair(Repair::Literal);
        }
        self.at += word.len();
        Ok(value.unwrap_or_else(|| Value::String(word.to_owned())))
    }
}

fn is_bare(word: &str) -> bool {
    word.len() <= 200 && word.starts_with(|char: char| char.is_alphabetic() || "_./~$@".contains(char))
}

/// Reads `true`, `None` and the like.
pub(crate) fn parse_literal(word: &str) -> Option<Value> {
    match word {
        "true" | "True" | "TRUE" => Some(Value::Bool(true)),
        "false" | "False" | "FALSE" => Some(Value::Bool(false)),
        "null" | "None" | "NULL" | "nil" | "undefined" | "NaN" => Some(Value::Null),
        _ => None,
    }
}

/// Reads a number as JSON or as people write it (`+1`, `.5`, `1.`, `1_000`).
fn parse_number(word: &str) -> Option<Value> {
    if let Ok(number) = serde_json::from_str::<Number>(word) {
        return Some(Value::Number(number));
    }
    let plain: String = word.trim_start_matches('+').chars().filter(|char| *char != '_').collect();
    let numeric = plain.starts_with(|char: char| char.is_ascii_digit() || char == '.' || char == '-');
    if let Ok(integer) = plain.parse::<i64>() {
        return Some(Value::Number(integer.into()));
    }
    plain.parse::<f64>().ok().filter(|_| numeric).and_then(Number::from_f64).map(Value::Number)
}

fn is_windows_path(raw: &str) -> bool {
    let bytes = raw.as_bytes();
    bytes.len() > 2 && bytes[0].is_ascii_alphabetic() && &bytes[1..3] == b":\\"
}

/// Resolves escapes; an unknown one keeps its backslash. The flag is true if there was one.
fn resolve_escapes(raw: &str, quote: u8) -> (String, bool) {
    let mut text = String::with_capacity(raw.len());
    let mut bad = false;
    let mut rest = raw;
    while let Some(at) = rest.find('\\') {
        text.push_str(&rest[..at]);
        let (used, resolved) = read_escape(&rest[at..], quote);
        if let Some(char) = resolved {
            text.push(char);
        } else {
            text.push_str(&rest[at..at + used]);
            bad = true;
        }
        rest = &rest[at + used..];
    }
    text.push_str(rest);
    (text, bad)
}

/// Reads an escape at the start of `text`: its bytes and its meaning, if it has one.
fn read_escape(text: &str, quote: u8) -> (usize, Option<char>) {
    let Some(char) = text[1..].chars().next() else { return (1, None) };
    let simple = match char {
        'n' => '\n',
        't' => '\t',
        'r' => '\r',
        'b' => '\u{8}',
        'f' => '\u{c}',
        '"' | '\\' | '/' => char,
        '\'' if quote != b'"' => char,
        'u' => return read_unicode(text),
        _ => return (1, None),
    };
    (1 + char.len_utf8(), Some(simple))
}

fn read_unicode(text: &str) -> (usize, Option<char>) {
    let unit = |at: usize| text.get(at..at + 4).and_then(|hex| u32::from_str_radix(hex, 16).ok());
    let Some(high) = unit(2) else { return (1, None) };
    if (0xD800..0xDC00).contains(&high)
        && text.get(6..8) == Some("\\u")
        && let Some(low) = unit(8).filter(|low| (0xDC00..0xE000).contains(low))
    {
        return (12, char::from_u32(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00)));
    }
    (6, Some(char::from_u32(high).unwrap_or(char::REPLACEMENT_CHARACTER)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(text: &str, expected: &Value, repair: &str) {
        let read = read(text).unwrap_or_else(|why| panic!("{text}: {why:?}"));
        assert_eq!(&read.value, expected, "{text}");
        let names: Vec<&str> = read.repairs.iter().map(|repair| repair.name()).collect();
        assert!(repair.is_empty() || names.contains(&repair), "{text}: {names:?}");
    }

    #[test]
    fn every_repair_gives_what_was_meant() {
        check(r#"{"a": 1.5e3}"#, &json!({"a": 1500.0}), "");
        check(r"{'a': 'it\'s', 'b': 'say \n'}", &json!({"a": "it's", "b": "say \n"}), "quotes");
        check("{a: 1, b-c: x y}", &json!({"a": 1, "b-c": "x y"}), "quotes");
        check(r#"{"a": [1, 2,], }"#, &json!({"a": [1, 2]}), "comma");
        check("{\"a\": 1\n \"b\": 2}", &json!({"a": 1, "b": 2}), "comma");
        check("{\"a\": 1, // one\n /* two */ \"b\": 2}", &json!({"a": 1, "b": 2}), "comment");
        check(r#"{"a": True, "b": None, "c": False}"#, &json!({"a": true, "b": null, "c": false}), "literal");
        check("{\"a\": \"x\ny\"}", &json!({"a": "x\ny"}), "raw_newline");
        check(r#"{"a": "say "hi" now", "b": 1}"#, &json!({"a": "say \"hi\" now", "b": 1}), "inner_quotes");
        check(r#"{"a": {"b": [1, {"c": "2""#, &json!({"a": {"b": [1, {"c": "2"}]}}), "unclosed");
        check(r#"{"a": [{}, true"#, &json!({"a": [{}, true]}), "unclosed");
        check(r#"{"p": "C:\Users\new\x"}"#, &json!({"p": "C:\\Users\\new\\x"}), "escape");
        check(r#"{"p": "\d+\.\w"}"#, &json!({"p": "\\d+\\.\\w"}), "escape");
        check(r#"{"e": "\ud83d\ude00\ud800", "n": 1_000,}"#, &json!({"e": "😀\u{fffd}", "n": 1000}), "comma");
    }

    #[test]
    fn nothing_is_invented() {
        assert_eq!(read(r#"{"a": "unfinished"#), Err(Unreadable::Truncated));
        assert_eq!(read(r#"{"a": "#), Err(Unreadable::Truncated));
        for open in [r#"{"a": 12"#, r#"{"a": "b","#, r#"{"a": {"#, r#"{"a": ["#, r#"{"a": word"#, "{"] {
            assert_eq!(read(open), Err(Unreadable::Truncated), "{open}");
        }
        assert_eq!(read("{not json}"), Err(Unreadable::NotJson));
        assert_eq!(read("prose"), Err(Unreadable::NotJson));
        assert_eq!(read(&"[".repeat(100_000)), Err(Unreadable::NotJson));
    }

    #[test]
    fn python_literals_are_read() {
        let (value, end) = read_python(r#"{'a': (1, "x"), 'b': None}, c=1)"#).unwrap();
        assert_eq!((value, end), (json!({"a": [1, "x"], "b": null}), 26));
        assert_eq!(read_python("'''a\nb''')").unwrap().0, json!("a\nb"));
    }
}
