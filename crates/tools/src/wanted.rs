//! The names by which an agent's `tools`, the timeouts and the limits speak of tools: as they are, or with a
//! `*`. Pure.

use std::collections::BTreeMap;

/// The names that are wanted of one source.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted(pub(super) Vec<String>);

impl Wanted {
    /// True when the tool is among them.
    pub(super) fn holds(&self, name: &str) -> bool {
        self.0.iter().any(|wanted| matches(wanted, name))
    }
}

/// A setting for a tool: by its own name, or by the longest pattern that matches it.
pub(super) fn for_name<'a, T>(settings: &'a BTreeMap<String, T>, name: &str) -> Option<&'a T> {
    settings.get(name).or_else(|| {
        let fitting = settings.iter().filter(|(pattern, _)| matches(pattern, name));
        fitting.max_by_key(|(pattern, _)| pattern.len()).map(|(_, setting)| setting)
    })
}

/// A `*` stands for any text.
pub(super) fn matches(pattern: &str, name: &str) -> bool {
    let mut pieces = pattern.split('*');
    let Some(mut rest) = pieces.next().and_then(|first| name.strip_prefix(first)) else { return false };
    let mut pieces: Vec<&str> = pieces.collect();
    let Some(last) = pieces.pop() else { return rest.is_empty() };
    for piece in pieces {
        let Some((_, after)) = rest.split_once(piece) else { return false };
        rest = after;
    }
    rest.ends_with(last)
}

/// The known name that is most like a wrong one.
pub(super) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let scored = known.into_iter().map(|known| (strsim::jaro_winkler(name, known), known));
    scored.filter(|(score, _)| *score > 0.8).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_as_they_are_or_by_stars() {
        for (pattern, name, expected) in [
            ("read", "read", true),
            ("read", "reader", false),
            ("mcp:files/*", "mcp:files/read_file", true),
            ("mcp:files/*", "mcp:other/read_file", false),
            ("mcp:*/read_*", "mcp:files/read_file", true),
            ("a*b", "ab", true),
            ("a*ba", "aba", true),
            ("ab*ba", "aba", false),
            ("*", "anything", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn the_longest_pattern_wins() {
        let settings =
            BTreeMap::from([("*".into(), 1), ("mcp:files/*".into(), 2), ("mcp:files/x".into(), 3)]);
        for (name, expected) in [("exec", 1), ("mcp:files/y", 2), ("mcp:files/x", 3)] {
            assert_eq!(for_name(&settings, name), Some(&expected), "{name}");
        }
        assert_eq!(for_name(&BTreeMap::from([("exec".to_owned(), 1)]), "read"), None);
    }

    #[test]
    fn the_nearest_name_is_suggested() {
        assert_eq!(nearest("web_serch", ["web_fetch", "web_search", "read"]), Some("web_search"));
        assert_eq!(nearest("banana", ["web_fetch", "read"]), None);
    }
}
