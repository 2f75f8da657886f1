//! Damaged databases of a state directory, and those that were set aside.

use std::fs;
use std::path::{Path, PathBuf};

use super::open::{self, Fault, is_small, is_sound, open_read_only};
use super::usage;

/// Returns the damaged databases of a state directory that were set aside and are still there.
pub fn find_set_aside(dir: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_one = |path: &PathBuf| {
        let ending = path.extension().and_then(|ending| ending.to_str()?.strip_prefix("damaged-"));
        ending.is_some_and(|number| number.parse::<u32>().is_ok())
    };
    let mut found: Vec<PathBuf> = files.filter(is_one).collect();
    found.sort();
    found
}

/// Returns the databases of a state directory that are damaged, as far as a short look shows. Nothing is
/// changed.
pub fn find_damaged(dir: &Path) -> Vec<PathBuf> {
    let is_damaged = |path: &PathBuf| {
        let look = || {
            let opened = open_read_only(path)?;
            if is_small(path) { is_sound(&opened) } else { Ok(true) }
        };
        match look() {
            Ok(is_sound) => !is_sound,
            Err(error) => matches!(Fault::from(error), Fault::Damaged),
        }
    };
    let all = [open::path(dir), usage::path(dir)];
    all.into_iter().filter(|path| path.exists() && is_damaged(path)).collect()
}
