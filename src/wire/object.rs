//! An object as spans of its text: look a field up, replace or drop a few, write the rest back byte for byte.

use std::borrow::Cow;

use super::scan::{Malformed, Scanner};

/// A JSON object whose values are still text. Of a key that comes twice the last one counts, as in most parsers.
#[derive(Clone, Debug, Default)]
pub struct Object<'a> {
    fields: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

impl<'a> Object<'a> {
    /// Reads one object; anything else, or anything after it, is malformed.
    pub fn parse(text: &'a str) -> Result<Self, Malformed> {
        let mut scanner = Scanner::new(text);
        let mut fields = Vec::with_capacity(16);
        scanner.object(|key, scanner| {
            fields.push((Cow::Borrowed(key), Cow::Borrowed(scanner.value()?)));
            Ok::<_, Malformed>(())
        })?;
        scanner.end()?;
        Ok(Self { fields })
    }

    /// The text of a value; a missing field and `null` are both `None`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.raw(key).filter(|value| *value != "null")
    }

    /// The text of a value, `null` included.
    pub fn raw(&self, key: &str) -> Option<&str> {
        self.fields.iter().rev().find(|(name, _)| is_key(name, key)).map(|(_, value)| value.as_ref())
    }

    /// The same as [`Object::get`], with the lifetime of the original text: `None` also for a value that was set here.
    pub fn original(&self, key: &str) -> Option<&'a str> {
        let found = self.fields.iter().rev().find(|(name, _)| is_key(name, key));
        match found {
            Some((_, Cow::Borrowed(value))) if *value != "null" => Some(value),
            _ => None,
        }
    }

    /// A string value, decoded.
    pub fn string(&self, key: &str) -> Option<String> {
        self.get(key).and_then(decode_string)
    }

    /// An unsigned integer value.
    pub fn number(&self, key: &str) -> Option<u64> {
        self.get(key).and_then(|value| value.parse().ok())
    }

    /// True when the value is the literal `true`.
    pub fn is_true(&self, key: &str) -> bool {
        self.raw(key) == Some("true")
    }

    /// True when the value is the literal `false`.
    pub fn is_false(&self, key: &str) -> bool {
        self.raw(key) == Some("false")
    }

    /// Puts a value, given as JSON text, in the field's place, or at the end.
    pub fn set(&mut self, key: &'a str, value: impl Into<Cow<'a, str>>) {
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

    /// Drops a field; tells whether it was there.
    pub fn remove(&mut self, key: &str) -> bool {
        let before = self.fields.len();
        self.fields.retain(|(name, _)| !is_key(name, key));
        self.fields.len() < before
    }

    /// Keys (as written, escapes kept) and value texts, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.fields.iter().map(|(key, value)| (key.as_ref(), value.as_ref()))
    }

    /// The object's text, without white space between fields.
    pub fn to_json(&self) -> String {
        let size: usize = self.fields.iter().map(|(key, value)| key.len() + value.len() + 4).sum();
        let mut out = String::with_capacity(size + 2);
        out.push('{');
        for (index, (key, value)) in self.fields.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            out.extend([comma, "\"", key, "\":", value]);
        }
        out.push('}');
        out
    }
}

/// Keys are compared as written; one that is spelt with escapes is decoded first.
fn is_key(written: &str, key: &str) -> bool {
    written == key
        || (written.contains('\\') && decode_string(&format!("\"{written}\"")).as_deref() == Some(key))
}

/// The element texts of a JSON array, `None` when the text is none.
pub fn array(text: &str) -> Option<Vec<&str>> {
    let mut elements = Vec::new();
    let mut scanner = Scanner::new(text);
    scanner
        .array(|scanner| {
            elements.push(scanner.value()?);
            Ok::<_, Malformed>(())
        })
        .ok()?;
    Some(elements)
}

/// The text of a JSON string, `None` when it is not one.
pub fn decode_string(json: &str) -> Option<String> {
    serde_json::from_str(json).ok()
}

/// The JSON text of a string.
pub fn encode_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
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
        assert_eq!((object.get("d"), object.raw("d")), (None, Some("null")));
    }

    #[test]
    fn a_repeated_or_escaped_key_is_one_field() {
        let mut object = Object::parse(r#"{"stream":false,"str\u0065am":true}"#).unwrap();
        assert!(object.is_true("stream"));
        object.set("stream", "false");
        assert_eq!(object.to_json(), r#"{"stream":false}"#);
    }
}
