//! Paths in a package, relative to it, and paths into a trigger's payload. Pure; nothing here touches the
//! disk.

/// Returns a relative path without its empty parts and `.`, so that one file has one path. The `/` at the end
/// of a folder stays.
pub fn normalize(path: &str) -> String {
    if path.starts_with('/') {
        return path.to_owned();
    }
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    let is_folder = path.ends_with('/') || path.ends_with("/.");
    let end = if is_folder && !parts.is_empty() { "/" } else { "" };
    parts.join("/") + end
}

/// Returns why a path, judged by its text alone, cannot be inside the package.
pub fn escape_reason(path: &str) -> Option<&'static str> {
    if path.contains('\\') {
        return Some("it has a `\\`; folders are parted by `/`");
    }
    if path.starts_with('/') {
        return Some("it is absolute");
    }
    if path.as_bytes().get(1) == Some(&b':') && path.as_bytes()[0].is_ascii_alphabetic() {
        return Some("it has a drive letter");
    }
    path.split('/').any(|part| part == "..").then_some("it has a `..`")
}

/// Returns where a state template's file is in a workspace: templates from other folders of a package also go
/// below `state/`.
pub fn state_file(path: &str) -> String {
    const FOLDER: &str = "state/";
    if path.starts_with(FOLDER) { path.to_owned() } else { format!("{FOLDER}{path}") }
}

/// One step of a path into a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A field of an object, or, if it is a number, the index of a list.
    Name(String),
    /// An index of a list.
    Index(usize),
}

/// Reads a path such as `messages[0].from`.
///
/// # Errors
/// Says what is wrong with it.
pub(crate) fn payload_path(text: &str) -> Result<Vec<Step>, &'static str> {
    let mut steps = Vec::new();
    for (position, part) in text.split('.').enumerate() {
        let (name, indexes) = part.split_at(part.find('[').unwrap_or(part.len()));
        if name.is_empty() && (position > 0 || indexes.is_empty()) {
            return Err("a name is missing between two dots, or at an end");
        }
        if name.chars().any(|c| !(c.is_alphanumeric() || matches!(c, '_' | '-' | '@' | ':')))
            || name.starts_with('-')
        {
            return Err("a name has a character other than letters, digits, `_` and `-`");
        }
        if !name.is_empty() {
            steps.push(Step::Name(name.to_owned()));
        }
        read_indexes(indexes, &mut steps)?;
    }
    Ok(steps)
}

fn read_indexes(text: &str, steps: &mut Vec<Step>) -> Result<(), &'static str> {
    const WRONG: &str = "an index is a whole number in brackets, such as [0]";
    let mut rest = text;
    while !rest.is_empty() {
        let (index, after) = rest.strip_prefix('[').and_then(|rest| rest.split_once(']')).ok_or(WRONG)?;
        if index.is_empty() || !index.chars().all(|c| c.is_ascii_digit()) {
            return Err(WRONG);
        }
        steps.push(Step::Index(index.parse().map_err(|_| WRONG)?));
        rest = after;
    }
    Ok(())
}

/// Returns the names in braces of a pattern such as `scratch/{id}.md`.
pub(crate) fn placeholders(pattern: &str) -> Vec<&str> {
    let parts = pattern.split('{').skip(1);
    parts.filter_map(|rest| rest.split_once('}').map(|(name, _)| name)).collect()
}

/// Returns true if a `{` of a pattern has no `}` after it before the next one.
pub(crate) fn has_open_brace(pattern: &str) -> bool {
    pattern.split('{').skip(1).any(|rest| !rest.contains('}'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_paths_have_names_and_indexes() {
        for good in ["id", "messages[0].id", "[0].id", "a.0.b", "a[0][1]", "x-id.y_z", "fälle.id"] {
            assert!(payload_path(good).is_ok(), "{good}");
        }
        for bad in [
            "", ".", "a.", ".a", "a..b", "$.a", "a[*]", "a[-1]", "a['b']", "a[]", "a b", "a[0", "a]", "*",
            "a[0]b", "-1",
        ] {
            assert!(payload_path(bad).is_err(), "{bad}");
        }
        let expected = [Step::Name("messages".into()), Step::Index(0), Step::Name("from".into())];
        assert_eq!(payload_path("messages[0].from").unwrap(), expected);
    }

    #[test]
    fn paths_stay_inside() {
        for bad in ["/etc/passwd", "../x", "a/../b", "a/..", "C:/x", "c:x", "a\\b", ".."] {
            assert!(escape_reason(bad).is_some(), "{bad}");
        }
        for good in ["a/b.md", "./a.md", "a..b/c", "...", "knowledge/ö.md"] {
            assert!(escape_reason(good).is_none(), "{good}");
        }
        for (written, path) in [
            ("././/a/b", "a/b"),
            ("a/./b", "a/b"),
            ("a//b", "a/b"),
            ("a/", "a/"),
            ("a/.", "a/"),
            ("/a", "/a"),
        ] {
            assert_eq!(normalize(written), path);
        }
    }

    #[test]
    fn placeholders_are_the_names_in_braces() {
        assert_eq!(placeholders("scratch/{a}-{b}.md"), ["a", "b"]);
        assert_eq!(placeholders("scratch/{a.md"), Vec::<&str>::new());
        for (pattern, is_open) in
            [("{a}-{b}", false), ("a}", false), ("{a", true), ("{a}{", true), ("{a{b}", true)]
        {
            assert_eq!(has_open_brace(pattern), is_open, "{pattern}");
        }
    }
}
