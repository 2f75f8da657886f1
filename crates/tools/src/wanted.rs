//! The names of tools in an agent's `tools`, in timeouts and in limits: literal, or with a `*`. Pure.

use std::collections::BTreeMap;

use wire::pattern::matches_stars;

/// The names that an agent wants from one source.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted(pub(super) Vec<String>);

impl Wanted {
    /// Returns true if the tool is among them.
    pub(super) fn contains_tool(&self, name: &str) -> bool {
        self.0.iter().any(|wanted| matches_stars(wanted, name))
    }
}

/// Returns a setting for a tool: by its own name, or by the longest pattern that matches it.
pub(super) fn setting_for<'a, T>(settings: &'a BTreeMap<String, T>, name: &str) -> Option<&'a T> {
    settings.get(name).or_else(|| {
        let fitting = settings.iter().filter(|(pattern, _)| matches_stars(pattern, name));
        fitting.max_by_key(|(pattern, _)| pattern.len()).map(|(_, setting)| setting)
    })
}

/// Returns the known name that is most similar to a wrong one.
pub(super) fn nearest_name<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let scored = known.into_iter().map(|known| (strsim::jaro_winkler(name, known), known));
    scored.filter(|(score, _)| *score > 0.8).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_pattern_wins() {
        let settings =
            BTreeMap::from([("*".into(), 1), ("mcp:files/*".into(), 2), ("mcp:files/x".into(), 3)]);
        for (name, expected) in [("exec", 1), ("mcp:files/y", 2), ("mcp:files/x", 3)] {
            assert_eq!(setting_for(&settings, name), Some(&expected), "{name}");
        }
        assert_eq!(setting_for(&BTreeMap::from([("exec".to_owned(), 1)]), "read"), None);
    }

    #[test]
    fn the_nearest_name_is_suggested() {
        assert_eq!(nearest_name("web_serch", ["web_fetch", "web_search", "read"]), Some("web_search"));
        assert_eq!(nearest_name("banana", ["web_fetch", "read"]), None);
    }
}
