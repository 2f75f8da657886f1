//! Finds the undeclared argument that was meant as a missing required one: `file_path` for `path`, `cmd` for
//! `command`.
//!
//! It matches two names only if neither has another candidate. Used by `coerce`.

use serde_json::{Map, Value};

use super::tools::normalise_name;

/// Names that tools use for the same thing, in lower case without `-` and `_`.
const SYNONYMS: [&[&str]; 12] = [
    &["path", "filepath", "file", "filename", "targetfile", "absolutepath", "fullpath", "pathname"],
    &["path", "directory", "dir", "folder", "dirpath", "directorypath"],
    &["command", "cmd", "shellcommand", "commandline", "bashcommand"],
    &["oldstring", "oldtext", "oldstr", "oldcontent", "old", "search", "find"],
    &["newstring", "newtext", "newstr", "newcontent", "new", "replace", "replacement"],
    &["query", "q", "searchquery", "searchterm", "searchterms", "keywords", "search"],
    &["content", "contents", "text", "filecontent", "filetext", "body", "data"],
    &["url", "uri", "link", "href"],
    &["pattern", "regex", "regexp"],
    &["message", "msg", "text"],
    &["prompt", "instruction", "instructions", "task"],
    &["code", "source", "sourcecode", "script"],
];

/// Pairs undeclared names with the declared names that they mean, if there is no doubt. `fits` says whether a
/// value suits a declared argument.
pub(crate) fn match_missing<'a>(
    object: &'a Map<String, Value>,
    declared: &Map<String, Value>,
    missing: &[&'a str],
    fits: impl Fn(&Value, &str) -> bool,
) -> Vec<(&'a str, &'a str)> {
    let undeclared: Vec<(&String, &Value)> =
        object.iter().filter(|(name, _)| !declared.contains_key(*name)).collect();
    let may_mean = |name: &str, value: &Value, wanted: &str| is_near(name, wanted) && fits(value, wanted);
    let only_wanted = |(name, value): (&'a String, &Value)| {
        let mut wanted = missing.iter().filter(|wanted| may_mean(name, value, wanted));
        Some((name.as_str(), *wanted.next()?)).filter(|_| wanted.next().is_none())
    };
    let pairs: Vec<(&str, &str)> = undeclared.iter().filter_map(|pair| only_wanted(*pair)).collect();
    let rivals =
        |wanted: &str| undeclared.iter().filter(|(name, value)| may_mean(name, value, wanted)).count();
    pairs.into_iter().filter(|(_, wanted)| rivals(wanted) == 1).collect()
}

/// Returns true for synonyms, singular and plural, and names that differ by one letter.
fn is_near(one: &str, other: &str) -> bool {
    let (one, other) = (normalise_name(one), normalise_name(other));
    let synonyms =
        SYNONYMS.iter().any(|names| names.contains(&one.as_str()) && names.contains(&other.as_str()));
    synonyms || is_plural(&one, &other) || is_plural(&other, &one) || differs_by_one(&one, &other)
}

fn is_plural(many: &str, one: &str) -> bool {
    many.strip_suffix('s') == Some(one)
}

/// Returns true for one letter more, less or different, or two exchanged letters, in names of at least five
/// letters with the same first letter.
fn differs_by_one(one: &str, other: &str) -> bool {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let (short, long) = if one.len() <= other.len() { (one, other) } else { (other, one) };
    let start = short.iter().zip(&long).take_while(|(a, b)| a == b).count();
    let (short_end, long_end) = (&short[start..], &long[start..]);
    let exchanged = |a: &[char], b: &[char]| a.len() > 1 && a[0] == b[1] && a[1] == b[0] && a[2..] == b[2..];
    short.len() >= 5
        && start > 0
        && match long.len() - short.len() {
            0 => short_end.is_empty() || short_end[1..] == long_end[1..] || exchanged(short_end, long_end),
            1 => *short_end == long_end[1..],
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(object: &Value, missing: &[&str], expected: &[(&str, &str)]) {
        let declared: Map<String, Value> =
            missing.iter().map(|name| ((*name).to_owned(), json!({}))).collect();
        let object = object.as_object().unwrap();
        assert_eq!(
            match_missing(object, &declared, missing, |value, _| value.is_string()),
            expected,
            "{object:?}"
        );
    }

    #[test]
    fn one_name_for_one_missing_argument() {
        check(&json!({"file_path": "a"}), &["path"], &[("file_path", "path")]);
        check(&json!({"cmd": "ls"}), &["command"], &[("cmd", "command")]);
        check(
            &json!({"old_string": "a", "new_string": "b"}),
            &["oldText", "newText"],
            &[("old_string", "oldText"), ("new_string", "newText")],
        );
        check(&json!({"comand": "ls"}), &["command"], &[("comand", "command")]);
        check(&json!({"commnad": "ls"}), &["command"], &[("commnad", "command")]);
        check(&json!({"urls": "x"}), &["url"], &[("urls", "url")]);
    }

    #[test]
    fn never_when_two_could_be_meant() {
        check(&json!({"file": "a", "dir": "b"}), &["path"], &[]);
        check(&json!({"text": "a"}), &["message", "content"], &[]);
        check(&json!({"cmd": 1}), &["command"], &[]);
        check(&json!({"mode": "a"}), &["node"], &[]);
        check(&json!({"colour": "a"}), &["path"], &[]);
    }
}
