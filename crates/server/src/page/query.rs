//! The query of a page: what a person chose, and links to the same page with another choice. Pure.

use http::Uri;
use url::form_urlencoded;

/// A day, in milliseconds.
const DAY: u64 = 86_400_000;

/// The periods that can be chosen, with their lengths in milliseconds. The last one has no beginning.
pub(super) const PERIODS: [(&str, &str, u64); 5] = [
    ("1h", "1 hour", DAY / 24),
    ("24h", "24 hours", DAY),
    ("7d", "7 days", 7 * DAY),
    ("30d", "30 days", 30 * DAY),
    ("all", "all", u64::MAX),
];

/// The choices in a page's address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PageQuery(Vec<(String, String)>);

impl PageQuery {
    pub(super) fn parse(uri: &Uri) -> Self {
        let pairs = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()).into_owned();
        Self(pairs.filter(|(_, value)| !value.is_empty()).collect())
    }

    /// Returns a choice; an empty text when nothing was chosen.
    pub(super) fn get(&self, name: &str) -> &str {
        self.0.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }

    /// Returns the number of the page of a list, from 1 on.
    pub(super) fn page(&self) -> usize {
        self.get("page").parse().unwrap_or(1).clamp(1, 100_000)
    }

    /// Returns the beginning of the chosen period. `default`: the period when none is chosen.
    pub(super) fn period_start(&self, default: &str, now: u64) -> u64 {
        let length = |name: &str| PERIODS.iter().find(|(known, _, _)| *known == name).map(|it| it.2);
        now.saturating_sub(length(self.get("period")).or_else(|| length(default)).unwrap_or(u64::MAX))
    }

    /// Returns the address of a page with these choices and some changes; an empty value removes a choice.
    pub(super) fn link(&self, path: &str, changes: &[(&str, &str)]) -> String {
        let is_changed = |name: &str| changes.iter().any(|(changed, _)| *changed == name);
        let kept =
            self.0.iter().filter(|(name, _)| !is_changed(name)).map(|(name, value)| (&**name, &**value));
        let new = changes.iter().copied().filter(|(_, value)| !value.is_empty());
        let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(kept.chain(new)).finish();
        if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_keep_the_other_choices() {
        let query = PageQuery::parse(&"/ui/requests?model=a%2Fb&key=&page=3".parse().unwrap());
        assert_eq!((query.get("model"), query.get("key"), query.page()), ("a/b", "", 3));
        assert_eq!(query.link("/x", &[("page", ""), ("key", "é")]), "/x?model=a%2Fb&key=%C3%A9");
        assert_eq!(query.link("/x", &[("page", ""), ("model", "")]), "/x");
    }

    #[test]
    fn periods_begin_before_now() {
        let chosen = |text: &str| PageQuery::parse(&text.parse().unwrap()).period_start("24h", 40 * DAY);
        assert_eq!(
            [chosen("/"), chosen("/?period=7d"), chosen("/?period=x")],
            [39 * DAY, 33 * DAY, 39 * DAY]
        );
        assert_eq!(chosen("/?period=all"), 0);
        assert_eq!(PageQuery::parse(&"/?page=0".parse().unwrap()).page(), 1);
    }
}
