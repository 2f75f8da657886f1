//! `client_keys_file`: keys with names and limits, as TOML. Pure. Called by `key_reading`.
//!
//! ```toml
//! alice = "sk-…"
//!
//! [bob]
//! key = "sk-…"                    # or sha256 = "…", the key's digest
//! models = ["gpt-oss-*"]
//! requests_per_minute = 60
//!
//! ["*"]                           # every key that does not say otherwise
//! tokens_per_day = 5000000
//! ```

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;
use toml::{Spanned, Value};

use super::key_digest::{KeyDigest, digest_key, is_short};
use super::key_limits::KeyLimits;
use upstream::Priority;

/// The entry that stands for every key.
const EVERY: &str = "*";

/// One key of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedKey {
    /// Its name.
    pub(super) name: String,
    /// Its digest.
    pub(super) digest: KeyDigest,
    /// Whether its owner sees the runs of all clients.
    pub(super) is_operator: bool,
    /// Its limits.
    pub(super) limits: KeyLimits,
    /// Whether it is short enough to be guessed.
    pub(super) is_short: bool,
}

/// The contents of a key file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KeyList {
    /// Its keys.
    pub(super) keys: Vec<NamedKey>,
    /// The limits of keys outside the file.
    pub(super) every: KeyLimits,
}

/// An entry's table.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Entry {
    key: Option<Value>,
    sha256: Option<Value>,
    operator: bool,
    models: Option<Vec<String>>,
    agents: Option<Vec<String>>,
    requests_per_minute: Option<u32>,
    tokens_per_day: Option<u64>,
    max_concurrency: Option<u32>,
    priority: Option<Priority>,
}

/// A mistake in the file, with its line; never with a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Mistake {
    #[error(
        "line {0} is not TOML: write `NAME = \"KEY\"`, or a table `[NAME]` with `key = \"KEY\"`, and `true` or `false` for yes or no"
    )]
    NotToml(usize),
    #[error("line {line}: {}: {mistake}", .name.escape_debug())]
    Entry { line: usize, name: String, mistake: EntryMistake },
}

/// A mistake in one entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum EntryMistake {
    #[error("{0}")]
    Fields(String),
    #[error("it is neither a key in quotes nor a table")]
    NotAnEntry,
    #[error("a name has 1 to 64 letters, digits and characters of `._@+-`")]
    Name,
    #[error(
        "it stands for every key, so it takes limits only: name a key to give it `key`, `sha256` or `operator`"
    )]
    KeyForEvery,
    #[error("its key is that of {0} too; give each name a key of its own")]
    KeyOf(String),
    #[error("its key is empty, or holds a space or a character that an HTTP header cannot carry")]
    KeyText,
    #[error("its key is not text: put it in quotes")]
    KeyNotText,
    #[error("`sha256` is not a digest: write its 64 hexadecimal digits (printf %s KEY | sha256sum)")]
    Digest,
    #[error("it has no key: add `key = \"…\"` or `sha256 = \"…\"`")]
    NoKey,
    #[error("it has both `key` and `sha256`: keep one")]
    TwoKeys,
    #[error("`{0}` must be at least 1; leave it out for no limit, or take the key out")]
    ZeroLimit(&'static str),
}

impl KeyList {
    /// Reads a file's text.
    ///
    /// # Errors
    /// All mistakes.
    pub(super) fn parse(text: &str) -> Result<Self, Vec<Mistake>> {
        let line = |at: usize| text[..at.min(text.len())].matches('\n').count() + 1;
        let entries: BTreeMap<Spanned<String>, Value> = toml::from_str(text).map_err(|error| {
            // The parser's own message might quote a key.
            vec![Mistake::NotToml(error.span().map_or(1, |span| line(span.start)))]
        })?;
        let (mut list, mut owners, mut mistakes) = (Self::default(), HashMap::new(), Vec::new());
        for (name, value) in entries {
            let start = name.span().start;
            let name = name.into_inner();
            match parse_entry(value).and_then(|entry| list.add_key(&name, &entry, &mut owners)) {
                Ok(()) => {}
                Err(mistake) => mistakes.push(Mistake::Entry { line: line(start), name, mistake }),
            }
        }
        if !mistakes.is_empty() {
            return Err(mistakes);
        }
        let every = list.every.clone();
        list.keys.iter_mut().for_each(|key| key.limits = std::mem::take(&mut key.limits).or(&every));
        Ok(list)
    }

    /// Adds a key. `owners`: the names of the keys before it.
    fn add_key(
        &mut self,
        name: &str,
        entry: &Entry,
        owners: &mut HashMap<KeyDigest, String>,
    ) -> Result<(), EntryMistake> {
        let limits = read_limits(entry)?;
        if name == EVERY {
            if entry.key.is_some() || entry.sha256.is_some() || entry.operator {
                return Err(EntryMistake::KeyForEvery);
            }
            self.every = limits;
            return Ok(());
        }
        let is_sign = |c: char| c.is_ascii_alphanumeric() || "._@+-".contains(c);
        if name.is_empty() || name.len() > 64 || !name.chars().all(is_sign) {
            return Err(EntryMistake::Name);
        }
        let (digest, is_short) = key_of(entry)?;
        if let Some(other) = owners.insert(digest, name.to_owned()) {
            return Err(EntryMistake::KeyOf(other));
        }
        let is_operator = entry.operator;
        self.keys.push(NamedKey { name: name.to_owned(), digest, is_operator, limits, is_short });
        Ok(())
    }
}

fn parse_entry(value: Value) -> Result<Entry, EntryMistake> {
    match value {
        Value::String(_) => Ok(Entry { key: Some(value), ..Entry::default() }),
        Value::Table(_) => value
            .try_into()
            .map_err(|error: toml::de::Error| EntryMistake::Fields(error.message().to_owned())),
        _ => Err(EntryMistake::NotAnEntry),
    }
}

fn key_of(entry: &Entry) -> Result<(KeyDigest, bool), EntryMistake> {
    match (&entry.key, &entry.sha256) {
        (Some(Value::String(key)), None) => {
            if key.is_empty() || !key.chars().all(|c| c.is_ascii_graphic()) {
                return Err(EntryMistake::KeyText);
            }
            Ok((digest_key(key.as_bytes()), is_short(key)))
        }
        (None, Some(Value::String(written))) => Ok((from_hex(written).ok_or(EntryMistake::Digest)?, false)),
        (None, None) => Err(EntryMistake::NoKey),
        (Some(_), Some(_)) => Err(EntryMistake::TwoKeys),
        _ => Err(EntryMistake::KeyNotText),
    }
}

fn from_hex(text: &str) -> Option<KeyDigest> {
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    let mut digest = KeyDigest::default();
    for (byte, place) in digest.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(&text[place..place + 2], 16).ok()?;
    }
    Some(digest)
}

fn read_limits(entry: &Entry) -> Result<KeyLimits, EntryMistake> {
    let nought = [
        ("requests_per_minute", entry.requests_per_minute == Some(0)),
        ("tokens_per_day", entry.tokens_per_day == Some(0)),
        ("max_concurrency", entry.max_concurrency == Some(0)),
    ];
    if let Some((name, _)) = nought.iter().find(|(_, is_nought)| *is_nought) {
        return Err(EntryMistake::ZeroLimit(name));
    }
    Ok(KeyLimits {
        models: entry.models.clone(),
        agents: entry.agents.clone(),
        requests_per_minute: entry.requests_per_minute,
        tokens_per_day: entry.tokens_per_day,
        max_concurrency: entry.max_concurrency,
        priority: entry.priority,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_limits_how_urgent_its_requests_are() {
        let parse =
            |word: &str| KeyList::parse(&format!("[bob]\nkey = 'sk-bob-long-enough'\npriority = '{word}'\n"));
        assert_eq!(parse("background").unwrap().keys[0].limits.priority, Some(Priority::Background));
        let problems = parse("urgent").unwrap_err()[0].to_string();
        assert!(problems.starts_with("line 1: bob: ") && problems.contains("`background`"), "{problems}");
    }

    #[test]
    fn names_keys_and_limits() {
        let list = KeyList::parse(
            "# keys\nalice = 'sk-alice'\n[bob]\nkey = 'sk-bob-long-enough'\nmodels = ['gpt-*']\nagents = []\noperator = true\nmax_concurrency = 2\n\
             [carol]\nsha256 = '2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae'\nrequests_per_minute = 7\n\
             ['*']\nrequests_per_minute = 60\n",
        )
        .unwrap();
        let [alice, bob, carol] = &list.keys[..] else { panic!("{list:?}") };
        assert_eq!(
            (alice.name.as_str(), alice.digest, alice.is_short),
            ("alice", digest_key(b"sk-alice"), true)
        );
        assert_eq!(alice.limits, list.every);
        assert_eq!(alice.limits.requests_per_minute, Some(60));
        assert!(bob.is_operator && !bob.is_short && !alice.is_operator);
        let expected = KeyLimits {
            models: Some(vec!["gpt-*".into()]),
            agents: Some(vec![]),
            max_concurrency: Some(2),
            requests_per_minute: Some(60),
            tokens_per_day: None,
            priority: None,
        };
        assert_eq!(bob.limits, expected);
        assert_eq!((carol.digest, carol.limits.requests_per_minute), (digest_key(b"foo"), Some(7)));
        assert_eq!(KeyList::parse("").unwrap(), KeyList::default());
    }

    #[test]
    fn problems_name_their_line_and_no_key() {
        for (text, expected) in [
            ("alice = 'sk-secret", "line 1 is not TOML"),
            ("a = 'x'\nsk-secret\n", "line 2 is not TOML"),
            ("a = 'sk-secret'\na = 'sk-secret2'", "line 2 is not TOML"),
            ("\n[bob]\nkey = 'sk-secret'\nmodel = 'x'", "line 2: bob: unknown field `model`"),
            ("[bob]\nkey = 'sk secret'", "line 1: bob: its key is empty, or holds a space"),
            ("bob = ''", "line 1: bob: its key is empty"),
            ("bob = 7", "neither a key in quotes nor a table"),
            ("[bob]\nkey = 7123", "its key is not text"),
            ("[bob]\nmodels = []", "it has no key"),
            ("[bob]\nkey = 'a'\nsha256 = 'b'", "both `key` and `sha256`"),
            ("[bob]\nsha256 = 'sk-secret'", "`sha256` is not a digest"),
            ("a = 'sk-secret'\nb = 'sk-secret'", "line 2: b: its key is that of a too"),
            ("'a b' = 'sk-secret'", "a name has 1 to 64"),
            ("['*']\nkey = 'sk-secret'", "it stands for every key"),
            ("[bob]\nkey = 'sk-secret'\nmax_concurrency = 0", "`max_concurrency` must be at least 1"),
            ("[bob]\nkey = 'sk-secret'\nrequests_per_minute = -1", "line 1: bob: "),
        ] {
            let mistakes = KeyList::parse(text).unwrap_err();
            let problems = mistakes.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
            assert!(problems.contains(expected), "{text}\n{problems}");
            assert!(!problems.contains("secret") && !problems.contains("7123"), "{problems}");
        }
    }

    #[test]
    fn many_keys_take_linear_time() {
        let seconds = |count: usize| {
            let lines: Vec<String> = (0..count).map(|index| format!("k{index} = 'sk-{index}'")).collect();
            let text = lines.join("\n");
            let begun = std::time::Instant::now();
            assert_eq!(KeyList::parse(&text).unwrap().keys.len(), count);
            begun.elapsed().as_secs_f64()
        };
        let few = (0..3).map(|_| seconds(1_000)).fold(f64::INFINITY, f64::min);
        let many = seconds(32_000);
        assert!(many < 200.0 * few, "1,000 keys: {few} s; 32,000: {many} s");
    }
}
