//! Keeps the learned rules in a file of the state directory, so that they outlive a restart and people can
//! see and forget them.
//!
//! A file and no table: each node learns for itself at the price of one refused request, and the file is read
//! by people and by `respool upstreams` while the server runs. It is replaced as a whole, so a reader never
//! finds half of it. Called by the upstreams when they learn, and by `cli`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::learned_rules::KeptRules;

/// The file's name in the state directory.
const NAME: &str = "learned-rules.json";
/// The pause between two checks of the file for changes by other programs.
const CHECKED_EVERY: Duration = Duration::from_secs(2);

/// The file of learned rules.
#[derive(Debug)]
pub struct RuleFile {
    path: PathBuf,
    /// Held while the file is changed.
    changing: Mutex<()>,
}

/// The rules of all upstreams, by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Contents {
    #[serde(default)]
    upstreams: BTreeMap<String, KeptRules>,
}

impl RuleFile {
    /// Returns the file in this directory, which need not exist.
    pub fn new(state_dir: &Path) -> Self {
        Self { path: state_dir.join(NAME), changing: Mutex::default() }
    }

    /// Returns the rules of an upstream. A file that cannot be read is a file without rules.
    pub fn rules_of(&self, upstream: &str) -> KeptRules {
        self.read().upstreams.remove(upstream).unwrap_or_default()
    }

    /// Keeps the rules of an upstream.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(super) fn keep(&self, upstream: &str, rules: KeptRules) -> io::Result<()> {
        self.change(|contents| {
            if rules.models.is_empty() {
                return contents.upstreams.remove(upstream).is_some();
            }
            contents.upstreams.insert(upstream.to_owned(), rules.clone()) != Some(rules)
        })
        .map(drop)
    }

    /// Forgets the rules of an upstream. Returns false if it had no rules.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn forget(&self, upstream: &str) -> io::Result<bool> {
        self.change(|contents| contents.upstreams.remove(upstream).is_some())
    }

    /// Calls `on_change` when another program has changed the file, until `stop`.
    pub async fn watch(&self, on_change: impl Fn(), stop: CancellationToken) {
        let mut seen = self.modification_time();
        while stop.run_until_cancelled(tokio::time::sleep(CHECKED_EVERY)).await.is_some() {
            let now = self.modification_time();
            if std::mem::replace(&mut seen, now) != now {
                on_change();
            }
        }
    }

    fn modification_time(&self) -> Option<SystemTime> {
        fs::metadata(&self.path).and_then(|metadata| metadata.modified()).ok()
    }

    fn read(&self) -> Contents {
        fs::read(&self.path).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
    }

    /// Changes the contents; they are written if `change` returns true, which is returned.
    fn change(&self, change: impl FnOnce(&mut Contents) -> bool) -> io::Result<bool> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut contents = self.read();
        let is_changed = change(&mut contents);
        if is_changed {
            self.write(&contents)?;
        }
        Ok(is_changed)
    }

    fn write(&self, contents: &Contents) -> io::Result<()> {
        let text = serde_json::to_vec_pretty(contents)?;
        if let Some(parent) = self.path.parent() {
            fs::create_dir_all(parent)?;
        }
        // A rule that is lost is learned again.
        atomic_file::replace_unsynced(&self.path, &text)
    }
}

#[cfg(test)]
mod tests {
    use super::super::learned_rules::KeptModelRules;
    use super::*;

    fn rules() -> KeptRules {
        let model =
            KeptModelRules { model: "m".to_owned(), learned_at: 7, rules: vec!["tools.pattern".to_owned()] };
        KeptRules { server: Some("vllm 0.32".to_owned()), models: vec![model] }
    }

    #[test]
    fn rules_outlive_the_process_until_they_are_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let state_dir = folder.path().join("state");
        let file = RuleFile::new(&state_dir);
        assert_eq!(file.rules_of("box"), KeptRules::default());
        file.keep("box", rules()).unwrap();
        file.keep("other", rules()).unwrap();
        let again = RuleFile::new(&state_dir);
        assert_eq!(again.rules_of("box"), rules());
        assert!(again.forget("box").unwrap() && !again.forget("box").unwrap());
        assert_eq!((file.rules_of("box"), file.rules_of("other")), (KeptRules::default(), rules()));
    }

    #[test]
    fn a_damaged_file_holds_no_rules() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(NAME), "{").unwrap();
        let file = RuleFile::new(folder.path());
        assert_eq!(file.rules_of("box"), KeptRules::default());
        file.keep("box", rules()).unwrap();
        assert_eq!(file.rules_of("box"), rules());
    }
}
