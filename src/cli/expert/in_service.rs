//! Experts in the running `respool serve`.

use std::fs;
use std::path::Path;

use crate::cli::running::{LOCK, find_listener, is_answering};
use experts::Checked;
use settings::Loaded;

/// Says why an expert is not ready for the running `respool serve`.
pub(in crate::cli) fn problem_in_service(loaded: &Loaded, name: &str) -> Option<String> {
    let checked = checked_in_service(loaded)?;
    let why = checked.not_ready.get(name)?.clone();
    if checked.short_of_budget.contains(name) {
        return Some(why);
    }
    Some(why + hint_of_restart(loaded.file.as_deref(), &loaded.settings.store.state_dir))
}

/// Returns true while a `respool serve` uses this state directory.
pub(super) fn is_in_service(loaded: &Loaded) -> bool {
    checked_in_service(loaded).is_some()
}

/// Returns what the running `respool serve` found when it last checked its experts.
pub(super) fn checked_in_service(loaded: &Loaded) -> Option<Checked> {
    let settings = &loaded.settings;
    Checked::read(&settings.store.state_dir).filter(|_| is_answering(&find_listener(settings)))
}

/// Returns the hint that the running `respool serve` may not know the present configuration.
fn hint_of_restart(configuration: Option<&Path>, state_dir: &Path) -> &'static str {
    let changed = |path: &Path| fs::metadata(path).and_then(|data| data.modified()).ok();
    let started = changed(&state_dir.join(LOCK));
    match configuration.and_then(changed) {
        Some(at) if started.is_some_and(|started| at > started) => {
            " (the configuration has changed since `respool serve` began: restart it, so that it knows new tools)"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a tool of a changed configuration was said to be missing, and nothing said why.
    #[test]
    fn a_restart_is_recommended_after_a_change() {
        let dir = tempfile::tempdir().unwrap();
        let configuration = dir.path().join("respool.toml");
        let write_at = |path: &Path, seconds| {
            let at = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            fs::File::create(path).unwrap().set_modified(at).unwrap();
        };
        write_at(&configuration, 5);
        let hint = || hint_of_restart(Some(&configuration), dir.path());
        assert_eq!(hint(), "", "nothing has been started");
        write_at(&dir.path().join(LOCK), 6);
        assert_eq!(hint(), "", "it was started with this configuration");
        write_at(&configuration, 7);
        assert!(hint().contains("restart it"));
        assert_eq!(hint_of_restart(None, dir.path()), "");
    }
}
