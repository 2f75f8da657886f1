//! A changed configuration while the server runs: on SIGHUP and when the file changes. It is checked whole; when it is wrong the old one
//! holds, and that is logged, shown on the page and alerted.
//!
//! Prices, budgets, comparisons and alerts take effect at once; the file of keys has its own watch (`server`). Everything else needs a
//! restart, and the line says so: above all what loosens the policy, the sandbox or who needs a key, since an agent may be able to
//! write the file.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::signal::unix::Signal;
use tokio_util::sync::CancellationToken;

use super::usage::terms;
use crate::alerts::Alerts;
use crate::config::{Flags, Loaded};
use crate::usage::Ledger;

/// So often the file is looked at.
const EVERY: Duration = Duration::from_secs(2);
/// These sections take effect at once.
const LIVE: [&str; 4] = ["prices.", "budgets.", "alerts.", "usage.compare"];

/// What takes a changed configuration.
pub(super) struct Reloading {
    pub(super) flags: Flags,
    pub(super) usage: Arc<Ledger>,
    pub(super) alerts: Arc<Alerts>,
}

impl Reloading {
    /// Reads the configuration again and again, until `stop`. `current`: what holds now.
    pub(super) async fn watch(self, mut current: Loaded, mut hangup: Signal, stop: CancellationToken) {
        let mut seen = current.file.as_deref().map(stamp);
        let mut refused: Option<String> = None;
        loop {
            let is_asked = tokio::select! {
                () = stop.cancelled() => return,
                _ = hangup.recv() => true,
                () = tokio::time::sleep(EVERY) => false,
            };
            let now = current.file.as_deref().map(stamp);
            if !is_asked && now == seen {
                continue;
            }
            seen = now;
            let read = Loaded::from_process(&self.flags).map_err(|problems| problems.to_string());
            match read.and_then(|new| self.accept(&current, &new).map(|()| new)) {
                Ok(new) => {
                    current = new;
                    refused = None;
                    self.alerts.reloaded(None);
                }
                Err(why) if refused.as_ref() == Some(&why) && !is_asked => {}
                Err(why) => {
                    tracing::error!(target: "respool::config", why, "the changed configuration is wrong; the old one holds");
                    self.alerts.reloaded(Some(why.clone()));
                    refused = Some(why);
                }
            }
        }
    }

    /// Puts into effect what can be, and says what needs a restart.
    fn accept(&self, current: &Loaded, new: &Loaded) -> Result<(), String> {
        let changed = new.changed_keys(current);
        let (live, restart) = partition(&changed);
        if !live.is_empty() {
            let terms = terms(&new.settings).map_err(|found| new.problems(found).to_string())?;
            self.usage.change(terms);
            if live.iter().any(|key| key.starts_with("alerts.")) {
                self.alerts.change(new.settings.alerts.clone());
            }
        }
        let names = |keys: &[&str]| (!keys.is_empty()).then(|| keys.join(", "));
        let (live, needs_restart) = (names(&live), names(&restart));
        if needs_restart.is_some() {
            tracing::warn!(target: "respool::config", live, needs_restart, "the configuration was read again: a part of it needs a restart");
        } else {
            tracing::info!(target: "respool::config", live, "the configuration was read again");
        }
        Ok(())
    }
}

/// What takes effect at once, and what needs a restart.
fn partition(changed: &[String]) -> (Vec<&str>, Vec<&str>) {
    changed.iter().map(String::as_str).partition(|key| LIVE.iter().any(|live| key.starts_with(live)))
}

/// What changes when a file is written: its time, its length, and which file it is.
fn stamp(path: &Path) -> Option<(SystemTime, u64, u64)> {
    use std::os::unix::fs::MetadataExt as _;
    let meta = std::fs::metadata(path).ok()?;
    Some((meta.modified().ok()?, meta.len(), meta.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_loosens_anything_needs_a_restart() {
        let changed: Vec<String> = [
            "alerts.quiet",
            "allow_unauthenticated",
            "budgets.day",
            "client_keys",
            "prices.m.input",
            "tools.local.sandbox",
            "tools.policy.default",
            "upstream[0].url",
            "usage.compare",
            "usage.keep",
        ]
        .map(str::to_owned)
        .into();
        let (live, restart) = partition(&changed);
        assert_eq!(live, ["alerts.quiet", "budgets.day", "prices.m.input", "usage.compare"]);
        assert_eq!(restart.len(), 6);
    }
}
