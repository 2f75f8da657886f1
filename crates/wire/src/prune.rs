//! Removes every field that is not in a table of known fields from a JSON text, in one pass over the bytes.
//!
//! The table ([`Shape`]) is an allow-list, so it also removes the fields that later servers add. An
//! [`Editor`] sees the few fields that matter on the way (ids, finish reasons, usage …) and may change them.
//! Called for each chunk of a stream, so it copies at most once and builds nothing.

use std::ops::Range;

use super::scan::{Malformed, Scanner};

/// The values that a place permits.
#[derive(Debug)]
pub enum Shape {
    /// Any value, kept as it is.
    Any,
    /// An object of these fields only; any other value is kept.
    Fields(&'static [(&'static str, Tag, Shape)]),
    /// An array of such values; any other value is kept.
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
    /// Another field of a choice: refusal, annotations, audio, an old function call, log probabilities.
    Extra,
}

/// A decision about a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Keep it, and prune its value.
    Keep,
    /// Remove it.
    Drop,
    /// Give it another key.
    Rename(&'static str),
    /// Give it another value, as JSON text.
    Replace(String),
}

/// Decides about tagged fields, in the order of the text.
pub trait Editor {
    /// Decides about a field of the table, given the text of its value.
    fn edit_field(&mut self, tag: Tag, value: &str) -> Edit;

    /// Returns true to keep a field that is not in the table.
    fn keeps_unknown(&self, key: &str) -> bool;

    /// Reports the value of a tagged field that stays: its bytes in the text, and where it begins in the
    /// pruned text.
    fn note_kept(&mut self, _tag: Tag, _value: Range<usize>, _left_at: usize) {}
}

/// Writes the pruned `json` to `out`, which is cleared first. Returns true when something changed; otherwise
/// `out` stays empty, and the caller forwards the original text.
pub fn prune_json(
    json: &str,
    shape: &Shape,
    editor: &mut impl Editor,
    out: &mut String,
) -> Result<bool, Malformed> {
    out.clear();
    let mut scanner = Scanner::new(json);
    let mut pruner = Pruner { editor, json, out, copied: 0, changed: false };
    pruner.prune_value(&mut scanner, shape)?;
    scanner.expect_end()?;
    if pruner.changed {
        pruner.copy_and_skip(json.len(), json.len());
    }
    Ok(pruner.changed)
}

struct Pruner<'e, E> {
    editor: &'e mut E,
    json: &'e str,
    out: &'e mut String,
    /// The text before this offset is in `out`, or was removed.
    copied: usize,
    changed: bool,
}

/// The progress through one object.
#[derive(Default)]
struct ObjectProgress {
    /// The end of the last field that stays.
    stays: Option<usize>,
    /// The end of the last field.
    end: usize,
    /// The beginning of the text to remove.
    gap: Option<usize>,
}

impl<E: Editor> Pruner<'_, E> {
    fn prune_value(&mut self, scanner: &mut Scanner<'_>, shape: &Shape) -> Result<(), Malformed> {
        match (shape, scanner.peek()) {
            (Shape::Fields(fields), b'{') => self.prune_object(scanner, fields),
            (Shape::Each(element), b'[') => scanner.walk_array(|scanner| self.prune_value(scanner, element)),
            _ => scanner.read_value().map(drop),
        }
    }

    fn prune_object(
        &mut self,
        scanner: &mut Scanner<'_>,
        fields: &'static [(&'static str, Tag, Shape)],
    ) -> Result<(), Malformed> {
        let mut seen = ObjectProgress::default();
        scanner.walk_object(|key, scanner| {
            let key_at = scanner.key_at();
            let stays = match fields.iter().find(|(name, ..)| *name == key) {
                Some((_, Tag::Plain, shape)) => {
                    self.close_gap(&mut seen, key_at);
                    self.prune_value(scanner, shape).map(|()| true)
                }
                Some((_, tag, shape)) => self.prune_tagged(scanner, &mut seen, key, *tag, shape),
                None => self.prune_unknown(scanner, &mut seen, key),
            }?;
            seen.end = scanner.position();
            if stays {
                seen.stays = Some(seen.end);
            } else {
                seen.gap.get_or_insert(seen.stays.unwrap_or(key_at));
            }
            Ok::<_, Malformed>(())
        })?;
        if let Some(from) = seen.gap {
            self.copy_and_skip(from, seen.end);
        }
        Ok(())
    }

    /// Removes the dropped fields before a field that stays, whose key is at `key_at`, with one comma for
    /// each.
    fn close_gap(&mut self, seen: &mut ObjectProgress, key_at: usize) {
        if let Some(from) = seen.gap.take() {
            self.copy_and_skip(from, if seen.stays.is_some() { seen.end } else { key_at });
        }
    }

    fn prune_tagged(
        &mut self,
        scanner: &mut Scanner<'_>,
        seen: &mut ObjectProgress,
        key: &str,
        tag: Tag,
        shape: &Shape,
    ) -> Result<bool, Malformed> {
        let key_at = scanner.key_at();
        let value = scanner.read_value()?;
        let (end, edit) = (scanner.position(), self.editor.edit_field(tag, value));
        let edit = if matches!(edit, Edit::Rename(name) if name == key) { Edit::Keep } else { edit };
        self.changed |= edit != Edit::Keep;
        if edit == Edit::Drop {
            return Ok(false);
        }
        self.close_gap(seen, key_at);
        match edit {
            Edit::Rename(name) => {
                self.copy_and_skip(key_at + 1, key_at + 1 + key.len());
                self.out.push_str(name);
            }
            Edit::Replace(text) => {
                self.copy_and_skip(end - value.len(), end);
                self.out.push_str(&text);
                return Ok(true);
            }
            Edit::Keep | Edit::Drop => {}
        }
        let value_at = end - value.len();
        self.editor.note_kept(tag, value_at..end, self.out.len() + value_at - self.copied);
        if !matches!(shape, Shape::Any) {
            self.prune_value(&mut Scanner::new_at(self.json, value_at), shape)?;
        }
        Ok(true)
    }

    fn prune_unknown(
        &mut self,
        scanner: &mut Scanner<'_>,
        seen: &mut ObjectProgress,
        key: &str,
    ) -> Result<bool, Malformed> {
        let key_at = scanner.key_at();
        scanner.read_value()?;
        let stays = self.editor.keeps_unknown(key);
        if stays {
            self.close_gap(seen, key_at);
        }
        self.changed |= !stays;
        Ok(stays)
    }

    /// Copies the text before `from`, and skips the text from there to `to`.
    fn copy_and_skip(&mut self, from: usize, to: usize) {
        self.out.push_str(&self.json[self.copied..from]);
        self.copied = to;
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
        fn edit_field(&mut self, tag: Tag, _: &str) -> Edit {
            if tag == Tag::Id { self.0.clone() } else { Edit::Keep }
        }

        fn keeps_unknown(&self, key: &str) -> bool {
            key == "kept"
        }
    }

    fn check(edit: Edit, json: &str, expected: &str, changed: bool) {
        let mut out = String::from("old");
        assert_eq!(prune_json(json, &SHAPE, &mut Fixed(edit), &mut out), Ok(changed), "{json}");
        assert_eq!(out, if changed { expected } else { "" });
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

    /// Any subset of an object's fields leaves valid JSON.
    #[test]
    fn any_fields_may_go() {
        for stays in 0..16_u8 {
            let field = |place: u8| {
                let name = if stays & (1 << place) == 0 {
                    "gone"
                } else {
                    ["id", "list", "role", "kept"][usize::from(place)]
                };
                format!(" \"{name}\" : [ {{ \"a\" : {place} , \"b\" : 0 }} ] ")
            };
            let json = format!("{{{}}}", [0, 1, 2, 3].map(field).join(","));
            let mut out = String::new();
            assert_eq!(
                prune_json(&json, &SHAPE, &mut Fixed(Edit::Keep), &mut out),
                Ok(stays != 15 || json.contains("list"))
            );
            let mut expected: serde_json::Value = serde_json::from_str(&json).unwrap();
            let object = expected.as_object_mut().unwrap();
            object.remove("gone");
            if let Some(list) = object.get_mut("list") {
                list[0].as_object_mut().unwrap().remove("b");
            }
            assert_eq!(serde_json::from_str::<serde_json::Value>(&out).unwrap(), expected, "{json}: {out}");
        }
    }

    #[test]
    fn an_editor_may_drop_rename_and_replace() {
        let json = r#"{"id":"i","role":"r"}"#;
        check(Edit::Drop, json, r#"{"role":"r"}"#, true);
        check(Edit::Rename("di"), json, r#"{"di":"i","role":"r"}"#, true);
        check(Edit::Rename("id"), json, json, false);
        check(Edit::Replace("7".into()), json, r#"{"id":7,"role":"r"}"#, true);
    }

    #[test]
    fn what_is_no_json_is_said_so() {
        let mut out = String::new();
        assert!(prune_json(r#"{"id": broken"#, &SHAPE, &mut Fixed(Edit::Keep), &mut out).is_err());
        assert!(prune_json(r#"{"id":1} x"#, &SHAPE, &mut Fixed(Edit::Keep), &mut out).is_err());
    }
}
