//! Takes out of a JSON text every field that a table of known fields does not name, in one pass over the bytes.
//!
//! The table ([`Shape`]) is an allow-list, so a field that a later server adds is caught too. An [`Editor`] sees the few
//! fields that matter on the way (ids, finish reasons, usage …) and may change them. Called for each chunk of a stream,
//! so it copies at most once and builds nothing.

use super::scan::{Malformed, Scanner};

/// What may stand at a place.
#[derive(Debug)]
pub enum Shape {
    /// Any value, kept as it is.
    Any,
    /// An object of these fields only; a value that is no object is kept.
    Fields(&'static [(&'static str, Tag, Shape)]),
    /// An array of such values; a value that is no array is kept.
    Each(&'static Shape),
}

/// Fields that an [`Editor`] is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    /// Not asked about.
    Plain,
    /// The reply's `id`.
    Id,
    /// The reply's `created`.
    Created,
    /// The reply's `model`.
    Model,
    /// The reply's `usage`.
    Usage,
    /// A choice's `index`.
    Index,
    /// A choice's `finish_reason`.
    FinishReason,
    /// A delta's or message's `role`.
    Role,
    /// A delta's or message's `content`.
    Content,
    /// A delta's or message's `reasoning` or `reasoning_content`.
    Reasoning,
    /// A delta's or message's `tool_calls`.
    ToolCalls,
    /// Whatever else a choice may carry: refusal, annotations, audio, an old function call, log probabilities.
    Extra,
}

/// What to do with a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Leave it (and look into it).
    Keep,
    /// Take it out.
    Drop,
    /// Give it another key.
    Rename(&'static str),
    /// Give it another value, as JSON text.
    Replace(String),
}

/// Decides on tagged fields, in the order of the text.
pub trait Editor {
    /// A field of the table, with the text of its value.
    fn field(&mut self, tag: Tag, value: &str) -> Edit;

    /// Whether to keep a field that the table does not name.
    fn keeps(&self, key: &str) -> bool;
}

/// Writes to `out` what is left of `json`, and tells whether anything was changed. `out` is cleared first. When nothing
/// changed, the original text is what should be sent on.
pub fn prune(
    json: &str,
    shape: &Shape,
    editor: &mut impl Editor,
    out: &mut String,
) -> Result<bool, Malformed> {
    out.clear();
    let mut scanner = Scanner::new(json);
    let mut pruner = Pruner { editor, out, changed: false };
    pruner.value(&mut scanner, shape)?;
    scanner.end()?;
    Ok(pruner.changed)
}

struct Pruner<'e, E> {
    editor: &'e mut E,
    out: &'e mut String,
    changed: bool,
}

impl<E: Editor> Pruner<'_, E> {
    fn value(&mut self, scanner: &mut Scanner<'_>, shape: &Shape) -> Result<(), Malformed> {
        match (shape, scanner.peek()) {
            (Shape::Fields(fields), b'{') => self.object(scanner, fields),
            (Shape::Each(element), b'[') => self.array(scanner, element),
            _ => {
                self.out.push_str(scanner.value()?);
                Ok(())
            }
        }
    }

    fn array(&mut self, scanner: &mut Scanner<'_>, element: &Shape) -> Result<(), Malformed> {
        self.out.push('[');
        let mut comma = "";
        scanner.array(|scanner| {
            self.out.push_str(comma);
            comma = ",";
            self.value(scanner, element)
        })?;
        self.out.push(']');
        Ok(())
    }

    fn object(
        &mut self,
        scanner: &mut Scanner<'_>,
        fields: &'static [(&'static str, Tag, Shape)],
    ) -> Result<(), Malformed> {
        self.out.push('{');
        let mut comma = "";
        scanner.object(|key, scanner| {
            let kept = match fields.iter().find(|(name, ..)| *name == key) {
                Some((_, Tag::Plain, shape)) => {
                    self.key(comma, key);
                    self.value(scanner, shape).map(|()| true)
                }
                Some((_, tag, shape)) => self.tagged(scanner, comma, key, *tag, shape),
                None => self.unknown(scanner, comma, key),
            }?;
            if kept {
                comma = ",";
            }
            Ok::<_, Malformed>(())
        })?;
        self.out.push('}');
        Ok(())
    }

    fn tagged(
        &mut self,
        scanner: &mut Scanner<'_>,
        comma: &str,
        key: &str,
        tag: Tag,
        shape: &Shape,
    ) -> Result<bool, Malformed> {
        let value = scanner.value()?;
        let edit = self.editor.field(tag, value);
        self.changed |= !matches!(&edit, Edit::Keep) && !matches!(&edit, Edit::Rename(name) if *name == key);
        match edit {
            Edit::Drop => return Ok(false),
            Edit::Keep => self.key(comma, key),
            Edit::Rename(name) => self.key(comma, name),
            Edit::Replace(text) => {
                self.key(comma, key);
                self.out.push_str(&text);
                return Ok(true);
            }
        }
        match shape {
            Shape::Any => self.out.push_str(value),
            _ => self.value(&mut Scanner::new(value), shape)?,
        }
        Ok(true)
    }

    fn unknown(&mut self, scanner: &mut Scanner<'_>, comma: &str, key: &str) -> Result<bool, Malformed> {
        let value = scanner.value()?;
        let kept = self.editor.keeps(key);
        if kept {
            self.key(comma, key);
            self.out.push_str(value);
        } else {
            self.changed = true;
        }
        Ok(kept)
    }

    fn key(&mut self, comma: &str, key: &str) {
        self.out.extend([comma, "\"", key, "\":"]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static SHAPE: Shape = Shape::Fields(&[
        ("id", Tag::Id, Shape::Any),
        ("list", Tag::Plain, Shape::Each(&Shape::Fields(&[("a", Tag::Plain, Shape::Any)]))),
        ("role", Tag::Role, Shape::Any),
    ]);

    struct Fixed(Edit);

    impl Editor for Fixed {
        fn field(&mut self, tag: Tag, _: &str) -> Edit {
            if tag == Tag::Id { self.0.clone() } else { Edit::Keep }
        }

        fn keeps(&self, key: &str) -> bool {
            key == "kept"
        }
    }

    fn check(edit: Edit, json: &str, expected: &str, changed: bool) {
        let mut out = String::from("old");
        assert_eq!(prune(json, &SHAPE, &mut Fixed(edit), &mut out), Ok(changed), "{json}");
        assert_eq!(out, expected);
    }

    #[test]
    fn unknown_fields_go_at_every_depth() {
        check(
            Edit::Keep,
            r#"{"x":1,"id":"i","list":[{"a":1,"b":2},{"b":1}],"y":{"a":1}}"#,
            r#"{"id":"i","list":[{"a":1},{}]}"#,
            true,
        );
        check(Edit::Keep, r#"{"id":"i","list":null}"#, r#"{"id":"i","list":null}"#, false);
        check(Edit::Keep, r#"{"id":"i","kept":{"b":1}}"#, r#"{"id":"i","kept":{"b":1}}"#, false);
    }

    #[test]
    fn an_editor_may_drop_rename_and_replace() {
        let json = r#"{"id":"i","role":"r"}"#;
        check(Edit::Drop, json, r#"{"role":"r"}"#, true);
        check(Edit::Rename("di"), json, r#"{"di":"i","role":"r"}"#, true);
        check(Edit::Replace("7".into()), json, r#"{"id":7,"role":"r"}"#, true);
    }

    #[test]
    fn what_is_no_json_is_said_so() {
        let mut out = String::new();
        assert!(prune(r#"{"id": broken"#, &SHAPE, &mut Fixed(Edit::Keep), &mut out).is_err());
        assert!(prune(r#"{"id":1} x"#, &SHAPE, &mut Fixed(Edit::Keep), &mut out).is_err());
    }
}
