//! An object as spans of its text: look up a field, replace or drop a few, and write the rest back byte for
//! byte.

use std::borrow::Cow;
use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;

use super::controls::escape_controls;
use super::pieces::{Assembly, Pieces};
use super::scan::{Malformed, Scanner};

/// A JSON object whose values are still text. When a key appears twice the last one counts, as in most
/// parsers.
#[derive(Clone, Debug, Default)]
pub struct Object<'a> {
    fields: Vec<(Cow<'a, str>, ValueText<'a>)>,
    /// True when a key is written with escapes.
    escaped_keys: bool,
}

/// The text of a value.
#[derive(Clone, Debug)]
pub enum ValueText<'a> {
    /// A part of the object's own text.
    Borrowed(&'a str),
    /// A text that was set.
    Owned(String),
    /// A text that was set and is not copied: it is long, and set again and again.
    Shared(Arc<str>),
}

impl Deref for ValueText<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Self::Borrowed(text) => text,
            Self::Owned(text) => text,
            Self::Shared(text) => text,
        }
    }
}

impl<'a> From<&'a str> for ValueText<'a> {
    fn from(text: &'a str) -> Self {
        Self::Borrowed(text)
    }
}

impl From<String> for ValueText<'_> {
    fn from(text: String) -> Self {
        Self::Owned(text)
    }
}

impl<'a> From<Cow<'a, str>> for ValueText<'a> {
    fn from(text: Cow<'a, str>) -> Self {
        match text {
            Cow::Borrowed(text) => Self::Borrowed(text),
            Cow::Owned(text) => Self::Owned(text),
        }
    }
}

impl From<Arc<str>> for ValueText<'_> {
    fn from(text: Arc<str>) -> Self {
        Self::Shared(text)
    }
}

/// The places of an object's keys and values in its text: beginnings and ends, in bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct FieldPlaces {
    places: Vec<((u32, u32), (u32, u32))>,
    escaped_keys: bool,
}

impl<'a> Object<'a> {
    /// Reads one object; anything else, or anything after it, is malformed.
    pub fn parse(text: &'a str) -> Result<Self, Malformed> {
        Self::parse_with(text, |_, scanner| scanner.read_value())
    }

    /// Reads one object like [`Object::parse`]; `value` consumes each field's value and returns its text.
    pub(super) fn parse_with(
        text: &'a str,
        value: impl FnMut(&'a str, &mut Scanner<'a>) -> Result<&'a str, Malformed>,
    ) -> Result<Self, Malformed> {
        let mut scanner = Scanner::new(text);
        let object = Self::read_from(&mut scanner, value)?;
        scanner.expect_end()?;
        Ok(object)
    }

    /// Makes an object from a text and the places of its keys and values.
    pub(super) fn from_places(text: &'a str, fields: &FieldPlaces) -> Self {
        let part = |(start, end): (u32, u32)| &text[start as usize..end as usize];
        let parts = fields.places.iter().map(|(key, value)| (part(*key).into(), part(*value).into()));
        Self { fields: parts.collect(), escaped_keys: fields.escaped_keys }
    }

    /// Returns the places of the fields in `text`, from which this object was read without changes.
    pub(super) fn field_places(&self, text: &str) -> FieldPlaces {
        let base = text.as_ptr() as usize;
        let place = |part: &str| {
            let start = (part.as_ptr() as usize).saturating_sub(base);
            let offset = |at: usize| u32::try_from(at).unwrap_or_default();
            (offset(start), offset(start + part.len()))
        };
        let places = self.fields.iter().map(|(key, value)| (place(key), place(value))).collect();
        FieldPlaces { places, escaped_keys: self.escaped_keys }
    }

    /// Reads the object at the scanner's position.
    pub(super) fn read_from(
        scanner: &mut Scanner<'a>,
        mut value: impl FnMut(&'a str, &mut Scanner<'a>) -> Result<&'a str, Malformed>,
    ) -> Result<Self, Malformed> {
        let mut fields = Vec::with_capacity(8);
        let mut escaped_keys = false;
        scanner.walk_object(|key, scanner| {
            escaped_keys |= scanner.has_escape();
            fields.push((Cow::Borrowed(key), ValueText::Borrowed(value(key, scanner)?)));
            Ok::<_, Malformed>(())
        })?;
        Ok(Self { fields, escaped_keys })
    }

    /// Returns true when a key appears more than once: other parsers may take another of its values.
    pub fn is_repeated(&self, key: &str) -> bool {
        self.fields.iter().filter(|(name, _)| is_key(name, key)).count() > 1
    }

    /// Returns the text of a value; `None` for a missing field and for `null`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.get_raw(key).filter(|value| *value != "null")
    }

    /// Returns the text of a value, which may be `null`.
    pub fn get_raw(&self, key: &str) -> Option<&str> {
        self.position_of(key).map(|place| &*self.fields[place].1)
    }

    /// Returns true if a key that `is_one` accepts may be there, which is quicker than a search for each. A
    /// key with escapes may be any.
    pub fn may_have(&self, is_one: impl Fn(&str) -> bool) -> bool {
        self.escaped_keys || self.fields.iter().any(|(name, _)| is_one(name))
    }

    fn position_of(&self, key: &str) -> Option<usize> {
        self.fields.iter().rposition(|(name, _)| name == key || (self.escaped_keys && is_key(name, key)))
    }

    /// Returns the same as [`Object::get`] with the lifetime of the original text; `None` also for a value
    /// that was set later.
    pub fn get_original(&self, key: &str) -> Option<&'a str> {
        match self.position_of(key).map(|place| &self.fields[place].1) {
            Some(ValueText::Borrowed(value)) if *value != "null" => Some(value),
            _ => None,
        }
    }

    /// Returns true when the value is this string.
    pub fn is_string(&self, key: &str, expected: &str) -> bool {
        self.get(key).is_some_and(|value| is_string(value, expected))
    }

    /// Returns a string value, decoded.
    pub fn string(&self, key: &str) -> Option<String> {
        self.get(key).and_then(decode_string)
    }

    /// Returns an unsigned integer value.
    pub fn number(&self, key: &str) -> Option<u64> {
        self.get(key).and_then(|value| value.parse().ok())
    }

    /// Returns true when the value is the literal `true`.
    pub fn is_true(&self, key: &str) -> bool {
        self.get_raw(key) == Some("true")
    }

    /// Returns true when the value is `true` or a word that servers take for it: those in Python read
    /// booleans like pydantic.
    pub fn means_true(&self, key: &str) -> bool {
        let meant = |raw: &str| {
            let word = raw.trim_matches('"');
            raw == "1.0"
                || ["true", "1", "t", "y", "yes", "on"].iter().any(|known| word.eq_ignore_ascii_case(known))
        };
        self.get_raw(key).is_some_and(meant)
    }

    /// Returns true when the value is the literal `false`.
    pub fn is_false(&self, key: &str) -> bool {
        self.get_raw(key) == Some("false")
    }

    /// Sets a field to a JSON text: at its place, or at the end for a new field.
    pub fn set(&mut self, key: &'a str, value: impl Into<ValueText<'a>>) {
        let value = value.into();
        match self.fields.iter().position(|(name, _)| is_key(name, key)) {
            Some(place) => {
                self.fields[place].1 = value;
                let mut index = 0;
                self.fields.retain(|(name, _)| {
                    index += 1;
                    index - 1 <= place || !is_key(name, key)
                });
            }
            None => self.fields.push((Cow::Borrowed(key), value)),
        }
    }

    /// Removes a field. Returns true when it was there.
    pub fn remove(&mut self, key: &str) -> bool {
        let before = self.fields.len();
        self.fields.retain(|(name, _)| !is_key(name, key));
        self.fields.len() < before
    }

    /// Iterates over keys (as written, escapes kept) and value texts, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.fields.iter().map(|(key, value)| (&**key, &**value))
    }

    /// Writes the object without white space between fields.
    pub fn to_json(&self) -> String {
        let mut out = String::with_capacity(self.json_len());
        self.write_json(&mut out);
        out
    }

    /// Writes the same to the end of a text.
    pub fn write_json(&self, out: &mut String) {
        out.push('{');
        for (index, (key, value)) in self.fields.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            out.extend([comma, "\"", key, "\":", value]);
        }
        out.push('}');
    }

    /// Returns the most bytes that the object takes when it is written.
    pub fn json_len(&self) -> usize {
        self.fields.iter().map(|(key, value)| key.len() + value.len() + 4).sum::<usize>() + 2
    }
}

impl Object<'_> {
    /// Writes the object in pieces: parts of `original`, the text that it was read from, are shared instead
    /// of copied.
    pub fn into_pieces(self, original: &Bytes) -> Pieces {
        let mut assembly = Assembly::new(original);
        assembly.add_text("{");
        for (index, (key, value)) in self.fields.into_iter().enumerate() {
            let place = match (&key, &value) {
                (Cow::Borrowed(key), ValueText::Borrowed(value)) => {
                    assembly.range_of(key).zip(assembly.range_of(value))
                }
                _ => None,
            };
            match place {
                // The key's quote precedes it, and the value follows.
                Some(((start, key_end), (value_start, end))) if start > 0 && key_end < value_start => {
                    assembly.add_member(start - 1..end, index == 0);
                }
                _ => {
                    assembly.add_text(if index == 0 { "\"" } else { ",\"" });
                    assembly.add_text(&key);
                    assembly.add_text("\":");
                    assembly.add_value(value);
                }
            }
        }
        assembly.add_text("}");
        assembly.finish()
    }
}

/// Compares a key as written; one with escapes is decoded first.
pub(super) fn is_key(written: &str, key: &str) -> bool {
    written == key
        || (written.contains('\\') && decode_string(&format!("\"{written}\"")).as_deref() == Some(key))
}

/// True when the JSON text is this string, however it is escaped.
fn is_string(json: &str, expected: &str) -> bool {
    let Some(inner) = json.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) else { return false };
    is_key(inner, expected)
}

/// True when the JSON text is an array without elements.
pub fn is_empty_array(json: &str) -> bool {
    json.strip_prefix('[').is_some_and(|rest| rest.trim_start().starts_with(']'))
}

/// Returns the text of a JSON array's first element; `None` for an empty array and for other JSON.
pub fn first_element(text: &str) -> Option<&str> {
    let mut scanner = Scanner::new(text);
    let mut first = None;
    // The rest is not read.
    let _ = scanner.walk_array(|scanner| match first {
        None => {
            first = Some(scanner.read_value()?);
            Ok(())
        }
        Some(_) => Err(scanner.stop_walk()),
    });
    first
}

/// Returns the texts of a JSON array's elements; `None` for other JSON.
pub fn array_elements(text: &str) -> Option<Vec<&str>> {
    let mut elements = Vec::new();
    let mut scanner = Scanner::new(text);
    scanner
        .walk_array(|scanner| {
            elements.push(scanner.read_value()?);
            Ok::<_, Malformed>(())
        })
        .ok()?;
    Some(elements)
}

/// Returns the objects of a JSON array, each with its text; `None` for other JSON.
pub fn array_objects(text: &str) -> Option<Vec<(Object<'_>, &str)>> {
    let mut objects = Vec::new();
    let mut scanner = Scanner::new(text);
    scanner
        .walk_array(|scanner| {
            let mut object = Object::default();
            let text = scanner.read_span(|scanner| {
                object = Object::read_from(scanner, |_, scanner| scanner.read_value())?;
                Ok::<_, Malformed>(())
            })?;
            objects.push((object, text));
            Ok::<_, Malformed>(())
        })
        .ok()?;
    Some(objects)
}

/// Returns true when a string has nothing to decode, which holds for nearly all. `text` comes without its
/// quotes.
#[expect(clippy::needless_bitwise_bool, reason = "a jump for each byte costs more than all comparisons")]
fn is_plain_text(text: &str) -> bool {
    text.bytes().fold(true, |is_plain, byte| is_plain & (byte >= b' ') & (byte != b'"') & (byte != b'\\'))
}

/// Decodes a JSON string; `None` for other JSON. It also reads two things that strict decoders refuse: half
/// of a surrogate pair (JavaScript cuts strings there) becomes U+FFFD, and a raw control character stands for
/// itself.
pub fn decode_string(json: &str) -> Option<String> {
    let inner = json.strip_prefix('"')?;
    if let Some(text) = inner.strip_suffix('"').filter(|text| is_plain_text(text)) {
        return Some(text.to_owned());
    }
    serde_json::from_str(json).ok().or_else(|| serde_json::from_str(&mend_strings(json)).ok())
}

/// Mends the strings of a JSON text for strict decoders, by the rules of [`decode_string`].
pub fn mend_strings(json: &str) -> String {
    let json = escape_controls(json);
    let mut out = String::with_capacity(json.len());
    let mut rest = &*json;
    while let Some(place) = rest.find('\\') {
        let (before, from) = rest.split_at(place);
        out.push_str(before);
        let (taken, text) = if from.starts_with("\\u") {
            split_escape(from)
        } else {
            (from.chars().take(2).map(char::len_utf8).sum(), None)
        };
        out.push_str(text.unwrap_or(&from[..taken]));
        rest = &from[taken..];
    }
    out.push_str(rest);
    out
}

/// Returns the length of the `\u` escape at the beginning of a text (a pair counts as one) and its
/// replacement.
fn split_escape(text: &str) -> (usize, Option<&'static str>) {
    let unit = |at: usize| u16::from_str_radix(text.get(at + 2..at + 6)?, 16).ok();
    match unit(0) {
        Some(0xd800..=0xdbff) if text[6..].starts_with("\\u") && matches!(unit(6), Some(0xdc00..=0xdfff)) => {
            (12, None)
        }
        Some(0xd800..=0xdfff) => (6, Some("\\ufffd")),
        Some(_) => (6, None),
        None => (2, None),
    }
}

/// Encodes a string as JSON.
pub fn encode_string(text: &str) -> String {
    // `to_string` of a `Value` goes through a formatter and takes several times as long. A string can always
    // be written.
    serde_json::to_string(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn untouched_values_keep_their_bytes() {
        let text = r#"{"a": 1.50, "b" : {"x": [1,  2]}, "c":"\u00e9"}"#;
        let mut object = Object::parse(text).unwrap();
        object.set("a", "2");
        object.set("d", "null");
        assert!(object.remove("c") && !object.remove("zz"));
        assert_eq!(object.to_json(), r#"{"a":2,"b":{"x": [1,  2]},"d":null}"#);
        assert_eq!((object.get("d"), object.get_raw("d")), (None, Some("null")));
    }

    #[test]
    fn pieces_are_the_same_text() {
        let long = |name: &str| format!(r#" "{name}" : [ "{}" ]"#, "x".repeat(2_000));
        let text = format!("{{{},\"b\":1 ,{},{},\"e\":\"\u{e4}\"}}", long("a"), long("c"), long("d"));
        let body = Bytes::from(text.clone());
        let check = |change: &dyn Fn(&mut Object<'_>), pieces: usize| {
            let mut object = Object::parse(std::str::from_utf8(&body).unwrap()).unwrap();
            change(&mut object);
            let expected: serde_json::Value = serde_json::from_str(&object.to_json()).unwrap();
            let found = object.into_pieces(&body);
            assert_eq!(serde_json::from_slice::<serde_json::Value>(&found.to_bytes()).unwrap(), expected);
            assert_eq!(found.len(), found.to_bytes().len());
            assert_eq!(found.into_single().map_or_else(|several| several.len(), |_| 1), pieces);
        };
        check(&|_| {}, 3);
        check(&|object| object.set("b", "false"), 5);
        check(&|object| assert!(object.remove("c")), 5);
        check(&|object| assert!(object.remove("a")), 3);
        check(&|object| object.set("c", format!("\"{}\"", "y".repeat(3_000))), 7);
        check(&|object| object.set("z", "null"), 3);
    }

    #[test]
    fn shared_texts_are_not_copied() {
        let long: Arc<str> = format!("\"{}\"", "x".repeat(2_000)).into();
        let body = Bytes::from_static(br#"{"a":1}"#);
        let mut object = Object::parse(r#"{"a":1}"#).unwrap();
        object.set("b", Arc::clone(&long));
        object.set("c", Arc::<str>::from("2"));
        let pieces = object.into_pieces(&body);
        assert_eq!(pieces.to_bytes(), format!(r#"{{"a":1,"b":{long},"c":2}}"#));
        let pieces = pieces.into_single().unwrap_err();
        assert!(pieces.iter().any(|piece| piece.as_ptr() == long.as_ptr()), "{pieces:?}");
    }

    #[test]
    fn objects_of_an_array_keep_their_texts() {
        let objects = array_objects(r#" [ {"a" : 1}, {} ] "#).unwrap();
        let texts: Vec<_> = objects.iter().map(|(object, text)| (object.get("a"), *text)).collect();
        assert_eq!(texts, [(Some("1"), r#"{"a" : 1}"#), (None, "{}")]);
        assert!(array_objects("[1]").is_none() && array_objects("{}").is_none());
    }

    #[test]
    fn strings_that_strict_decoders_refuse() {
        for (json, text) in [
            (r#""a\ud83d""#, "a\u{fffd}"),
            (r#""\ud83d\ude00 \ude00x\n\\""#, "\u{1f600} \u{fffd}x\n\\"),
            ("\"two\nlines\"", "two\nlines"),
        ] {
            assert_eq!(decode_string(json).as_deref(), Some(text), "{json}");
        }
        assert_eq!(
            (decode_string("7"), decode_string(r#""\q""#), decode_string(r#""\ud8""#)),
            (None, None, None)
        );
    }

    #[test]
    fn servers_take_more_than_true_for_true() {
        for (json, expected) in [
            ("true", true),
            (r#""true""#, true),
            (r#""Yes""#, true),
            ("1", true),
            ("1.0", true),
            ("false", false),
            ("null", false),
            (r#""false""#, false),
            ("0", false),
            ("2", false),
            ("{}", false),
        ] {
            let text = format!(r#"{{"stream":{json}}}"#);
            assert_eq!(Object::parse(&text).unwrap().means_true("stream"), expected, "{json}");
        }
    }

    #[test]
    fn a_repeated_or_escaped_key_is_one_field() {
        let mut object = Object::parse(r#"{"stream":false,"str\u0065am":true}"#).unwrap();
        assert!(object.is_true("stream"));
        object.set("stream", "false");
        assert_eq!(object.to_json(), r#"{"stream":false}"#);
    }
}
