//! Alerts that nobody wants to hear of for a while, and those that hold now: two small files in the state directory, so that the command
//! line and a server share them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::board::OpenAlert;
use super::rule::Rule;

const SILENCES: &str = "alerts-silenced.json";
const OPEN: &str = "alerts-open.json";

/// One silence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Silence {
    /// The rule's name.
    pub rule: String,
    /// What it is about; empty: whatever it is about.
    pub subject: String,
    /// Until when, in milliseconds since 1970.
    pub until: u64,
}

/// The silences of a state directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Silences(Vec<Silence>);

impl Silences {
    /// Those that are kept in this directory.
    pub fn read(state_dir: &Path) -> Self {
        let text = fs::read_to_string(state_dir.join(SILENCES)).unwrap_or_default();
        Self(serde_json::from_str(&text).unwrap_or_default())
    }

    /// True when an alert is not to be sent now.
    pub fn covers(&self, rule: Rule, subject: &str, now: u64) -> bool {
        self.0.iter().any(|it| {
            it.rule == rule.as_str() && (it.subject.is_empty() || it.subject == subject) && it.until > now
        })
    }

    /// Adds a silence in this directory, and forgets those that are over.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn add(state_dir: &Path, silence: Silence, now: u64) -> io::Result<()> {
        let mut all = Self::read(state_dir).0;
        all.retain(|it| it.until > now && (it.rule != silence.rule || it.subject != silence.subject));
        all.push(silence);
        write(&state_dir.join(SILENCES), &serde_json::to_string(&all).unwrap_or_default())
    }
}

/// Keeps the alerts that hold now for the command line.
pub(super) fn write_open(state_dir: &Path, open: &[OpenAlert]) -> io::Result<()> {
    write(&state_dir.join(OPEN), &serde_json::to_string(open).unwrap_or_default())
}

/// The alerts that hold, as a server wrote them last; `None` where none did.
pub fn read_open(state_dir: &Path) -> Option<Vec<OpenAlert>> {
    serde_json::from_str(&fs::read_to_string(state_dir.join(OPEN)).ok()?).ok()
}

/// At once or not at all.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let dir = path.parent().map_or_else(PathBuf::new, Path::to_owned);
    let file = tempfile::NamedTempFile::new_in(dir)?;
    fs::write(file.path(), text)?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silence_covers_its_rule_for_its_time() {
        let dir = tempfile::tempdir().unwrap();
        let silence =
            |subject: &str, until| Silence { rule: "upstream_down".into(), subject: subject.into(), until };
        Silences::add(dir.path(), silence("box", 100), 1).unwrap();
        let covers = |rule, subject: &str, now| Silences::read(dir.path()).covers(rule, subject, now);
        assert!(covers(Rule::UpstreamDown, "box", 99) && !covers(Rule::UpstreamDown, "box", 100));
        assert!(!covers(Rule::UpstreamDown, "other", 1) && !covers(Rule::ErrorRate, "box", 1));
        Silences::add(dir.path(), silence("", 50), 2).unwrap();
        assert!(covers(Rule::UpstreamDown, "other", 49));
        Silences::add(dir.path(), silence("box", 3), 2).unwrap();
        assert!(!covers(Rule::UpstreamDown, "box", 60), "the newer one holds");
    }
}
