//! Which experts were ready at the last check, and why the others were not. Written by `experts`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::{fs, io};

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

/// The file in the state directory that has the outcome of the last check.
const FILE: &str = "experts-readiness.json";

/// The outcome of a check of all experts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checked {
    /// The names of those that are ready.
    pub ready: BTreeSet<String>,
    /// Why the others are not, by name. One whose server is starting is in neither.
    pub not_ready: BTreeMap<String, String>,
    /// Those that only wait because a budget is spent.
    #[serde(default)]
    pub short_of_budget: BTreeSet<String>,
}

impl Checked {
    /// Reads what the respool that uses this state directory has written; `None` where none has.
    pub fn read(state_dir: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(state_dir.join(FILE)).ok()?).ok()
    }

    /// Writes it for commands to read.
    ///
    /// # Errors
    /// When the state directory cannot be written.
    pub fn write(&self, state_dir: &Path) -> io::Result<()> {
        atomic_file::replace(&state_dir.join(FILE), serde_json::to_string(self)?.as_bytes())
    }
}

/// The readiness of the experts in service.
#[derive(Debug, Default)]
pub struct Readiness {
    last: Mutex<Checked>,
    changed: Notify,
}

impl Readiness {
    /// Takes in a check, and reports experts that are not ready for a new reason.
    pub(super) fn update(&self, checked: Checked) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.not_ready != checked.not_ready {
            for (expert, why) in &checked.not_ready {
                if last.not_ready.get(expert) != Some(why) {
                    tracing::warn!(target: "respool::expert", expert, why, "an expert is not ready; its events wait");
                }
            }
        }
        if *last != checked {
            self.changed.notify_one();
        }
        *last = checked;
    }

    /// Returns the queues of the experts that are ready; `only`: of this expert alone.
    pub(super) fn ready_queues(&self, only: Option<&str>) -> Vec<String> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.ready.iter().filter(|name| only.is_none_or(|only| only == name.as_str())).cloned().collect()
    }

    /// Returns why an expert is not ready, for the main agent; also `None` while one of its servers is
    /// starting.
    pub fn why_not_ready(&self, name: &str) -> Option<String> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).not_ready.get(name).cloned()
    }

    /// Returns the outcome of the last check.
    pub fn last_check(&self) -> Checked {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the experts that are not ready, each with the reason.
    pub fn not_ready(&self) -> Vec<(String, String)> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.not_ready.iter().map(|(name, why)| (name.clone(), why.clone())).collect()
    }

    /// Waits until the readiness of an expert changes; it may also return without a change.
    pub async fn wait_for_change(&self) {
        self.changed.notified().await;
    }
}
