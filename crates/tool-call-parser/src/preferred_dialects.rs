//! The dialects that a model is likely to write, by its name or the owner's setting. They are asked first.
//!
//! A preference only changes the order: fine-tunes mix forms, and an unknown name has no effect. Used by the
//! scanner; the relay makes one per request.

use std::sync::LazyLock;

use super::dialects::{TABLE, is_own};
use super::openers::Opener;

/// The words of all families by their first byte, each with its dialect.
static FAMILIES: LazyLock<[Vec<(&'static str, PreferredDialects)>; 256]> = LazyLock::new(|| {
    let mut by_first_byte = std::array::from_fn(|_| Vec::new());
    for (index, dialect) in TABLE.iter().enumerate() {
        for word in dialect.families {
            by_first_byte[usize::from(word.as_bytes()[0])].push((*word, PreferredDialects(1 << index)));
        }
    }
    by_first_byte
});

/// The dialects to ask first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PreferredDialects(u64);

/// Each dialect has its bit.
const _: () = assert!(TABLE.len() <= u64::BITS as usize);

impl PreferredDialects {
    /// No preference.
    pub const NONE: Self = Self(0);

    /// Returns the dialects that models of such names write. `names`: everything that the server reports
    /// about the model, which is the served name, the path of its weights, and its parser.
    pub fn from_model_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let preferred = names.into_iter().map(|name| Self::from_plain_name(normalise_name(name).as_bytes()));
        preferred.fold(Self::NONE, Self::union)
    }

    fn from_plain_name(name: &[u8]) -> Self {
        let words_at = |at: usize| FAMILIES[usize::from(name[at])].iter().map(move |family| (at, family));
        let found = (0..name.len()).flat_map(words_at);
        found
            .filter(|(at, (word, _))| name[*at..].starts_with(word.as_bytes()))
            .fold(Self::NONE, |preferred, (_, (_, dialect))| preferred.union(*dialect))
    }

    /// Returns the dialects with these names.
    pub fn from_dialect_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let names: Vec<&str> = names.into_iter().collect();
        Self::select(|index| names.contains(&TABLE[index].name))
    }

    /// Returns the dialects whose own marks are in a chat template.
    pub fn from_template(template: &str) -> Self {
        Self::select(|index| {
            TABLE[index].opens.marks().iter().any(|mark| is_own(mark) && template.contains(mark))
        })
    }

    fn select(is_likely: impl Fn(usize) -> bool) -> Self {
        Self((0..TABLE.len()).filter(|index| is_likely(*index)).fold(0, |bits, index| bits | 1 << index))
    }

    /// Returns this preference, or the other one if this one is empty.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        if self.is_empty() { other } else { self }
    }

    /// Returns the dialects of both.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns true when this dialect is preferred.
    pub fn has(self, dialect: &str) -> bool {
        self.names().any(|name| name == dialect)
    }

    /// Returns the names of the preferred dialects.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let likely = move |index: &usize| self.0 & (1 << index) != 0;
        (0..TABLE.len()).filter(likely).map(|index| TABLE[index].name)
    }

    /// Returns true when there is no preference.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    fn prefers(self, opener: &Opener) -> bool {
        self.0 & (1 << opener.index) != 0
    }

    /// Returns the places in `list` in the order in which they are asked, each with its rank.
    pub(super) fn ask_order<'a>(
        self,
        list: &'a [Opener],
        places: &'a [usize],
    ) -> impl Iterator<Item = (usize, usize)> + use<'a> {
        let preferred = move |place: &usize| self.prefers(&list[*place]);
        let likely = if self.is_empty() { &[] } else { places };
        let first = likely.iter().filter(move |place| preferred(place)).map(|place| (*place, *place));
        let then = places
            .iter()
            .filter(move |place| !preferred(place))
            .map(move |place| (list.len() + place, *place));
        first.chain(then)
    }
}

/// Removes case and punctuation from a name: `openai/gpt-oss-120b` becomes `openaigptoss120b`.
fn normalise_name(name: &str) -> String {
    let mut plain = String::with_capacity(name.len());
    plain.extend(name.chars().filter(|char| char.is_alphanumeric()).flat_map(char::to_lowercase));
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(preferred: PreferredDialects) -> Vec<&'static str> {
        preferred.names().collect()
    }

    #[test]
    fn each_word_of_a_family_is_found_anywhere() {
        for (index, dialect) in TABLE.iter().enumerate() {
            for word in dialect.families {
                let name = format!("org/{}-7B", word.to_uppercase());
                let found = PreferredDialects::from_model_names(["other", &name]);
                assert!(found.0 & (1 << index) != 0, "{name}: {:?}", names(found));
            }
        }
    }

    #[test]
    fn names_tell_of_families_and_others_tell_nothing() {
        assert_eq!(names(PreferredDialects::from_model_names(["openai/gpt-oss-120b"]))[0], "harmony");
        assert!(names(PreferredDialects::from_model_names(["Qwen3-Coder-30B"])).contains(&"qwen_xml"));
        assert!(
            names(PreferredDialects::from_model_names(["local", "/models/GLM-4.6-FP8"])).contains(&"glm")
        );
        assert_eq!(PreferredDialects::from_model_names(["local"]), PreferredDialects::default());
        assert_eq!(names(PreferredDialects::from_dialect_names(["mistral", "nonsense"])), ["mistral"]);
        assert!(names(PreferredDialects::from_template("{{- '[TOOL_CALLS]' + call }}")).contains(&"mistral"));
        assert_eq!(
            PreferredDialects::from_template("{% for message in messages %}[{{ message }}]"),
            PreferredDialects::default()
        );
    }
}
