//! `respool store copy`: copies the state directory while respool runs. The databases are copied by `SQLite`,
//! because a plain copy lacks what is still in their logs.

use std::fs::Permissions;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use super::failure::Failure;
use super::listing::Noun;
use super::running::LOCK;
use super::say::{say, say_on_stderr};
use settings::Settings;
use store::copy_databases;

/// The files that only a running respool needs: its locks, and its notes for the command line.
const OF_RUNNING: [&str; 4] = [LOCK, "owners", "alerts-open.json", "requests-running.json"];

/// Copies the state directory to `dir`, whole or not at all.
pub(super) fn copy_state(settings: &Settings, dir: &Path) -> Result<(), Failure> {
    let state_dir = &settings.store.state_dir;
    let cannot = |what: &Path, error: &io::Error| format!("{} cannot be copied: {error}", what.display());
    let from = state_dir.canonicalize().map_err(|error| cannot(state_dir, &error))?;
    let to = std::path::absolute(dir).map_err(|error| cannot(dir, &error))?;
    let present = to.ancestors().find_map(|above| above.canonicalize().ok());
    if present.is_some_and(|present| present.starts_with(&from)) {
        return Err("the copy would be in the state directory: name another one".to_owned().into());
    }
    let parent = to.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(parent).map_err(|error| format!("{} cannot be made: {error}", parent.display()))?;
    // With the rights of its owner alone, as the state directory.
    let rights = Permissions::from_mode(0o700);
    let new = tempfile::Builder::new().prefix(".respool-copy-").permissions(rights).tempdir_in(parent);
    let new = new.map_err(|error| format!("{} cannot be written: {error}", parent.display()))?;
    let databases = copy_databases(&from, new.path())?;
    for name in &databases {
        let copy = new.path().join(name);
        fs::set_permissions(&copy, Permissions::from_mode(0o600)).map_err(|error| cannot(&copy, &error))?;
    }
    let files = copy_files(&from, new.path(), true).map_err(|(path, error)| cannot(&path, &error))?;
    fs::rename(new.path(), &to)
        .map_err(|error| format!("{} cannot take the copy: {error}; name a new directory", to.display()))?;
    // It has its place.
    let _ = new.keep();
    databases.iter().for_each(|name| say(name));
    say(&Noun("other file", "other files").count_things(files));
    say_on_stderr(&format!("{} was copied to {}. {}", from.display(), to.display(), describe_rest(settings)));
    Ok(())
}

/// Names what else must be copied.
fn describe_rest(settings: &Settings) -> String {
    let experts = &settings.experts;
    let mut left: Vec<String> = vec!["the configuration".to_owned()];
    left.extend(settings.store.store.url.as_ref().map(|_| "the database of `store.url`".to_owned()));
    let of_experts = [experts.dir.clone(), experts.state_of("")];
    left.extend(of_experts.iter().filter(|path| path.exists()).map(|path| path.display().to_string()));
    format!("Not in it: {}. docs/operating.md says how to go back to it.", left.join(", "))
}

/// Copies the files of a directory and of those below it, apart from databases. A link is copied as what it
/// leads to, a directory only at the top. Returns how many files there are, or what cannot be copied.
fn copy_files(from: &Path, to: &Path, is_top: bool) -> Result<usize, (PathBuf, io::Error)> {
    let mut count = 0;
    let entries = match fs::read_dir(from) {
        // respool replaces and deletes files while it runs.
        Err(error) if error.kind() == ErrorKind::NotFound && !is_top => return Ok(0),
        entries => entries.map_err(|error| (from.to_owned(), error))?,
    };
    for entry in entries {
        let entry = entry.map_err(|error| (from.to_owned(), error))?;
        let (path, copy) = (entry.path(), to.join(entry.file_name()));
        if is_top && is_left_out(&path) {
            continue;
        }
        let copied = match fs::metadata(&path) {
            Ok(kind) if kind.is_dir() && (is_top || !path.is_symlink()) => {
                fs::create_dir(&copy).map_err(|error| (copy.clone(), error))?;
                count += copy_files(&path, &copy, false)?;
                fs::set_permissions(&copy, kind.permissions())
            }
            Ok(kind) if kind.is_file() => fs::copy(&path, &copy).map(|_| count += 1),
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        };
        match copied {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            copied => copied.map_err(|error| (path, error))?,
        }
    }
    Ok(count)
}

/// Returns true for a file of a database, a damaged one that was set aside, and what only a running respool
/// needs.
fn is_left_out(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let of_database = ["respool.db", "usage.db"].iter().any(|file| name.starts_with(file));
    of_database || name.contains(".damaged-") || OF_RUNNING.iter().any(|file| name.starts_with(file))
}
