//! Texts as an agent's model reads them: with the marks of chat templates broken
//! (`tool_call_parser::templates`). Finds in a file a text that was read in that form, and returns a
//! replacement that leaves the rest of the file unchanged. Used by `edit`.

use super::text::with_crlf;
use tool_call_parser::PreferredDialects;
use tool_call_parser::templates::{Scope, break_marks, find_breaks, restore_marks, with_spaces};

/// The occurrences of a text in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Match {
    /// The place and the length of the old text, and the new text.
    Once(usize, usize, String),
    /// More than once.
    Often,
    /// Nowhere.
    Nowhere,
}

/// A file's text with all marks broken: the family whose marks were broken for the model is unknown here.
struct Shown<'a> {
    file: &'a str,
    text: String,
    /// The positions in the file where a space was inserted.
    places: Vec<usize>,
}

/// Looks for `old` as a model has read it.
pub(super) fn find_shown(file: &str, old: &str, new: &str) -> Match {
    let places = find_breaks(file, PreferredDialects::default(), Scope::All);
    if places.is_empty() {
        return Match::Nowhere;
    }
    let shown = Shown { file, text: with_spaces(file, &places), places };
    for (old, new) in [(old.to_owned(), new.to_owned()), (with_crlf(old), with_crlf(new))] {
        let old = as_shown(&old);
        let mut found = shown.text.match_indices(&old).map(|(at, _)| at);
        match (found.next(), found.next()) {
            (Some(at), None) => return shown.replacement(at, &old, &new),
            (Some(_), Some(_)) => return Match::Often,
            (None, _) => {}
        }
    }
    Match::Nowhere
}

fn as_shown(text: &str) -> String {
    break_marks(text, PreferredDialects::default(), Scope::All).into_owned()
}

impl Shown<'_> {
    /// Returns a replacement in which the common ends of old and new text stay as in the file.
    fn replacement(&self, at: usize, old: &str, new: &str) -> Match {
        let shown = as_shown(new);
        let head = count_common_bytes(old.chars(), shown.chars());
        let tail = count_common_bytes(old[head..].chars().rev(), shown[head..].chars().rev());
        let (start, end) = (self.original_offset(at), self.original_offset(at + old.len()));
        let (middle_start, middle_end) =
            (self.original_offset(at + head), self.original_offset(at + old.len() - tail).max(start));
        let middle = restore_marks(&shown[head..shown.len() - tail], self.file);
        let new = [&self.file[start..middle_start], &middle, &self.file[middle_end..end]].concat();
        Match::Once(start, end - start, new)
    }

    /// Converts a position in the shown text to one in the file.
    fn original_offset(&self, at: usize) -> usize {
        let before = |(count, place): &(usize, &usize)| **place + count < at;
        at - self.places.iter().enumerate().take_while(before).count()
    }
}

/// Counts the bytes that two texts have in common at their beginning.
fn count_common_bytes(one: impl Iterator<Item = char>, other: impl Iterator<Item = char>) -> usize {
    one.zip(other).take_while(|(one, other)| one == other).map(|(char, _)| char.len_utf8()).sum()
}
