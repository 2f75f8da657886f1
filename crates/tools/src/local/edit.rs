//! `edit`: exact replacements in one file. Each old text must stand in the file exactly once; the file's
//! encoding and line ends stay as they are, whatever the model wrote.

use serde_json::Value;

use super::super::contract::{ToolError, ToolOutput};
use super::super::diff::shorten_diff;
use super::arguments::{Arguments, wrong_argument};
use super::read::{open_file, read_whole};
use super::shown::{self, Match};
use super::text::{Encoding, decode_text, encode_text, is_crlf, with_crlf};
use super::workspace::{Place, Workspace};
use super::write::{replace_file, whole_diff};
use tool_call_parser::templates::restore_marks;

const LARGEST_FILE: u64 = 16 << 20;
/// The most bytes that one call searches: the length of the file for each edit.
const MOST_SEARCHED: usize = 2 << 30;
const OLD: &[&str] = &["oldText", "old_string", "old_text", "oldString"];
const NEW: &[&str] = &["newText", "new_string", "new_text", "newString"];

/// One replacement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Edit {
    old: String,
    new: String,
}

/// A file before and after.
pub(super) struct Change {
    before: String,
    after: String,
    encoding: Encoding,
    count: usize,
}

/// Reads the edits of a call: a list (also one written as JSON text), or one in the arguments themselves.
pub(super) fn read_edits(arguments: &Arguments<'_>) -> Result<Vec<Edit>, ToolError> {
    let form = || wrong_argument(&["edits"], "has to be a list of objects with oldText and newText");
    let edits = arguments.optional_value(&["edits"])?;
    if edits.is_some()
        && (arguments.optional_value(OLD)?.is_some() || arguments.optional_value(NEW)?.is_some())
    {
        return Err(wrong_argument(&["edits"], "cannot be combined with oldText and newText: give one form"));
    }
    let list = match edits {
        None => return Ok(vec![read_edit(arguments)?]),
        Some(Value::String(text)) => serde_json::from_str(text).map_err(|_| form())?,
        Some(other) => other.clone(),
    };
    let list =
        if let Value::Object(_) = list { vec![list] } else { list.as_array().ok_or_else(form)?.clone() };
    if list.is_empty() {
        return Err(form());
    }
    list.iter().map(|one| read_edit(&Arguments(one.as_object().ok_or_else(form)?))).collect()
}

fn read_edit(arguments: &Arguments<'_>) -> Result<Edit, ToolError> {
    let (old, new) = (arguments.required_text(OLD)?, arguments.required_text(NEW)?);
    if old.is_empty() {
        let text = "the old text is empty: give the text to replace, or write a new file as a whole";
        return Err(ToolError::Failed(text.to_owned()));
    }
    Ok(Edit { old: old.to_owned(), new: new.to_owned() })
}

/// Works out the change without making it.
pub(super) fn plan_change(workspace: &Workspace, place: &Place, edits: &[Edit]) -> Result<Change, ToolError> {
    let path = place.written.display();
    let (bytes, is_whole) = read_whole(&mut open_file(workspace, place)?, place, LARGEST_FILE)?;
    if !is_whole {
        return Err(ToolError::Failed(format!("{path} is larger than 16 MiB: change it with a command")));
    }
    let (before, encoding) =
        decode_text(&bytes).ok_or_else(|| ToolError::Failed(format!("{path} is a binary file, not text")))?;
    if before.len().saturating_mul(edits.len()) > MOST_SEARCHED {
        return Err(ToolError::Failed(format!(
            "{path} is too long for {} edits at once: make them in several calls",
            edits.len()
        )));
    }
    let after = apply_edits(&before, edits)
        .map_err(|problem| ToolError::Failed(format!("{path}: {problem}; nothing was changed")))?;
    Ok(Change { before, after, encoding, count: edits.len() })
}

impl Change {
    pub(super) fn diff(&self, place: &Place) -> String {
        whole_diff(&place.written, &self.before, &self.after)
    }

    /// Writes the change to the file.
    pub(super) fn write_change(&self, workspace: &Workspace, place: &Place) -> Result<ToolOutput, ToolError> {
        let path = place.written.display();
        let bytes = encode_text(&self.after, self.encoding).map_err(|c| {
            let encoding = self.encoding;
            ToolError::Failed(format!(
                "{path} is written in {encoding:?}, which has no {c:?}; nothing was changed"
            ))
        })?;
        replace_file(workspace, place, &bytes)?;
        let edits = if self.count == 1 { "1 edit".to_owned() } else { format!("{} edits", self.count) };
        Ok(ToolOutput {
            text: format!("Made {edits} in {path}"),
            display: Some(shorten_diff(self.diff(place))),
            ..ToolOutput::default()
        })
    }
}

/// Applies all edits, each to the original text.
fn apply_edits(before: &str, edits: &[Edit]) -> Result<String, String> {
    let mut places = Vec::new();
    for (index, edit) in edits.iter().enumerate() {
        let which = if edits.len() == 1 { String::new() } else { format!(" of edit {}", index + 1) };
        let (at, old, new) =
            find_old_text(before, edit).map_err(|problem| format!("the old text{which} {problem}"))?;
        places.push((at, at + old, new));
    }
    places.sort_by_key(|(start, ..)| *start);
    if places.windows(2).any(|pair| pair[0].1 > pair[1].0) {
        return Err("two edits overlap; merge them into one".into());
    }
    let mut after = before.to_owned();
    for (start, end, new) in places.iter().rev() {
        after.replace_range(start..end, new);
    }
    if after == before {
        return Err("the edit changes nothing: the old text and the new one are the same".into());
    }
    Ok(after)
}

/// Finds the old text: its position, its length there, and the new text with the file's line ends.
fn find_old_text(before: &str, edit: &Edit) -> Result<(usize, usize, String), String> {
    let crlf = (with_crlf(&edit.old), with_crlf(&edit.new));
    let exact = (edit.old.clone(), edit.new.clone());
    let forms = if is_crlf(before) { [crlf, exact] } else { [exact, crlf] };
    for (old, new) in forms {
        let mut places = before.match_indices(&old).map(|(at, _)| at);
        match (places.next(), places.next()) {
            (Some(at), None) if !overlaps_itself(before, &old, at) => {
                return Ok((at, old.len(), restore_marks(&new, before).into_owned()));
            }
            (Some(_), _) => {
                let lines = lines_of(before, &old);
                return Err(format!(
                    "is there more than once (lines {lines}): add lines around it until it is unique"
                ));
            }
            (None, _) => {}
        }
    }
    match shown::find_shown(before, &edit.old, &edit.new) {
        Match::Once(at, length, new) => Ok((at, length, new)),
        Match::Often => Err("is there more than once: add lines around it until it is unique".into()),
        Match::Nowhere => Err(mismatch_hint(before, &edit.old)),
    }
}

/// Returns true for `aa` in `aaa`, which could be replaced in two ways.
fn overlaps_itself(before: &str, old: &str, at: usize) -> bool {
    let next = old.chars().next().map_or(1, char::len_utf8);
    before[at + next..].contains(old)
}

fn lines_of(before: &str, old: &str) -> String {
    let line = |(at, _): (usize, &str)| (before[..at].matches('\n').count() + 1).to_string();
    before.match_indices(old).take(5).map(line).collect::<Vec<_>>().join(", ")
}

/// Explains why a text was not found: usually it is there with different white space.
fn mismatch_hint(before: &str, old: &str) -> String {
    let first = old.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let near = before.lines().position(|line| !first.is_empty() && line.trim() == first);
    match near {
        Some(line) => format!(
            "is not there exactly; line {} is like its first line, so look at white space and the lines after it",
            line + 1
        ),
        None => "is not there: read the file and copy the text exactly".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tool_call_parser::PreferredDialects;
    use tool_call_parser::templates::{Scope, break_marks};

    fn check(before: &str, edits: &[(&str, &str)], expected: Result<&str, &str>) {
        let edits: Vec<Edit> =
            edits.iter().map(|(old, new)| Edit { old: (*old).into(), new: (*new).into() }).collect();
        match (apply_edits(before, &edits), expected) {
            (Ok(after), Ok(expected)) => assert_eq!(after, expected),
            (Err(problem), Err(part)) => assert!(problem.contains(part), "{problem}"),
            (found, _) => panic!("{before:?} {edits:?} gave {found:?}"),
        }
    }

    #[test]
    fn edits_are_exact_and_unique() {
        check("a b c", &[("b", "x")], Ok("a x c"));
        check("a b c", &[("b", "")], Ok("a  c"));
        check("a b c", &[("c", "a"), ("a", "c")], Ok("c b a"));
        check("one\ntwo", &[("two", "2\n")], Ok("one\n2\n"));
        check("a b a", &[("a", "x")], Err("more than once (lines 1, 1)"));
        check("aaa", &[("aa", "x")], Err("more than once"));
        check("ää ä", &[("ää", "x")], Ok("x ä"));
        check("abc", &[("ab", "x"), ("bc", "y")], Err("overlap"));
        check("abc", &[("ab", "x"), ("zz", "y")], Err("old text of edit 2 is not there"));
        check("  if x:\n    y", &[("if x:\n  y", "z")], Err("line 1 is like its first line"));
        check("abc", &[("b", "b")], Err("changes nothing"));
    }

    #[test]
    fn text_with_broken_marks_is_found() {
        let template = "{{ '<|im_start|>' + role }}\n[INST] x [/INST]\n";
        check(
            template,
            &[("'< |im_start|>' + role", "'< |im_start|>' + name")],
            Ok("{{ '<|im_start|>' + name }}\n[INST] x [/INST]\n"),
        );
        check(
            template,
            &[("<|im_start|>", "<|im_end|>")],
            Ok("{{ '<|im_end|>' + role }}\n[INST] x [/INST]\n"),
        );
        check(template, &[("< |im_start|>", "")], Ok("{{ '' + role }}\n[INST] x [/INST]\n"));
        check(template, &[("[ INST] x [/INST]", "[ INST] y")], Ok("{{ '<|im_start|>' + role }}\n[INST] y\n"));
        check("<s>\r\n<s>a\r\n", &[("< s>a\n", "< s>b\n")], Ok("<s>\r\n<s>b\r\n"));
        check("<s> <s>", &[("< s>", "")], Err("more than once"));
        check("a <|im_start|>", &[("< |im_end|>", "")], Err("not there"));
        check("a\n<s>\n", &[("a\n", "< s>\n")], Ok("<s>\n<s>\n"));
        // A file that contains the broken form too.
        check("< |im_end|> <|im_end|>x", &[("< |im_end|>x", "< |im_end|>y")], Ok("< |im_end|> <|im_end|>y"));
        check("< |im_end|>a <|im_end|>x", &[("a", "< |im_end|>")], Ok("< |im_end|>< |im_end|> <|im_end|>x"));
    }

    #[test]
    fn line_ends_stay_as_they_are() {
        check("a\r\nb\r\nc\r\n", &[("a\nb", "x\ny\nz")], Ok("x\r\ny\r\nz\r\nc\r\n"));
        check("a\r\nb\r\nc\r\n", &[("b", "x\ny")], Ok("a\r\nx\r\ny\r\nc\r\n"));
        check("a\r\nb\r\n", &[("a\r\nb", "c\r\nd")], Ok("c\r\nd\r\n"));
        check("a\nb\r\nc\n", &[("b\nc", "x\ny")], Ok("a\nx\r\ny\n"));
        check("a\nb\n", &[("a\r\nb", "c")], Err("not there"));
    }

    proptest! {
        /// A model of any family can edit a file as it reads it, and the other parts stay unchanged.
        #[test]
        fn what_was_read_in_broken_form_edits_round_trip(
            before in "([ab\n]|<s>|]~b]|<\\|im_end\\|>|[<>\\[\\] |]){0,12}",
            after in "([ab\n]|<s>|]~b]|<\\|im_end\\|>|[<>\\[\\] |]){0,12}",
            family in proptest::sample::select(vec!["hermes", "mistral", "invoke", "none"]),
        ) {
            let text = format!("{before}MARK{after}");
            let read = break_marks(&text, PreferredDialects::from_dialect_names([family]), Scope::All).into_owned();
            let there = Edit { old: read.clone(), new: read.replace("MARK", "DONE") };
            prop_assert_eq!(apply_edits(&text, &[there]), Ok(format!("{before}DONE{after}")));
        }

        /// Everything except the edited place stays the same byte for byte.
        #[test]
        fn the_rest_of_the_file_stays(before in "[abc\r\n]{0,20}", mark in "M[a-z]{1,4}", after in "[abc\r\n]{0,20}", new in "[xyz ]{0,6}") {
            let text = format!("{before}{mark}{after}");
            let edit = Edit { old: mark, new: new.clone() };
            prop_assert_eq!(apply_edits(&text, &[edit]), Ok(format!("{before}{new}{after}")));
        }
    }
}
