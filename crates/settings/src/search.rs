//! Finds the configuration file and the state directory. Nothing is read from the working directory unless it
//! is named, because it may be a repository that someone else wrote.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::flags::Environment;
use super::problem::{Place, Problems};

pub(super) const FILE: &str = "respool.toml";

/// Returns the file that was asked for and by what: `--config`, else `$RESPOOL_CONFIG`.
fn requested_file(flag: Option<&Path>, environment: &Environment) -> Option<(PathBuf, Place)> {
    let variable = environment.get("RESPOOL_CONFIG").filter(|path| !path.is_empty());
    match (flag, variable) {
        (Some(path), _) => Some((path.to_owned(), Place::from_text("--config"))),
        (None, Some(path)) => Some((PathBuf::from(path), Place::environment("RESPOOL_CONFIG"))),
        (None, None) => None,
    }
}

/// Finds and reads the file: the one that was asked for, which must be there, else the first that exists of
/// [`searched_places`].
pub(super) fn find_file(
    flag: Option<&Path>,
    environment: &Environment,
) -> Result<Option<(PathBuf, String)>, Problems> {
    if let Some((path, asked_by)) = requested_file(flag, environment) {
        return match read_if_present(&path) {
            Some(Ok(text)) => Ok(Some((path, text))),
            Some(Err(why)) => Err(Problems::one(asked_by, format!("the file {} {why}", path.display()))),
            None => Err(Problems::one(
                asked_by,
                format!("the file {} does not exist; correct the path", path.display()),
            )),
        };
    }
    for path in searched_places(environment) {
        match read_if_present(&path) {
            Some(Ok(text)) => return Ok(Some((path, text))),
            Some(Err(why)) => {
                return Err(Problems::one(
                    Place::from_text(path.display().to_string()),
                    format!("this file {why}"),
                ));
            }
            None => {}
        }
    }
    Ok(None)
}

/// Returns where a file is looked for when none was named, in order.
pub(super) fn searched_places(environment: &Environment) -> Vec<PathBuf> {
    let user = user_dir(environment).map(|dir| dir.join(FILE));
    user.into_iter().chain([Path::new("/etc/respool").join(FILE)]).collect()
}

/// Returns a `respool.toml` in the working directory `here` that is not read, because no file was named. A
/// file in use does not count, whatever path leads to it.
pub(super) fn find_unread(
    here: &Path,
    flag: Option<&Path>,
    environment: &Environment,
    in_use: Option<&Path>,
) -> Option<PathBuf> {
    let file = here.join(FILE);
    // A symlink that leads nowhere may be meant as a configuration too.
    let is_there = file.symlink_metadata().is_ok_and(|found| !found.is_dir());
    let real = |path: &Path| path.canonicalize().ok();
    let is_used = in_use.is_some_and(|used| real(used).is_some() && real(used) == real(&file));
    (is_there && !is_used && requested_file(flag, environment).is_none()).then_some(file)
}

/// Returns the user's configuration directory: `$XDG_CONFIG_HOME/respool`, else `~/.config/respool`.
pub(super) fn user_dir(environment: &Environment) -> Option<PathBuf> {
    base_directory(environment, "XDG_CONFIG_HOME", ".config").map(|base| base.join("respool"))
}

/// Returns the default of `state_dir`: `$XDG_STATE_HOME/respool`, else `~/.local/state/respool`, else (a
/// service without a home) `/var/lib/respool`.
pub(super) fn state_dir(environment: &Environment) -> PathBuf {
    let base = base_directory(environment, "XDG_STATE_HOME", ".local/state");
    base.unwrap_or_else(|| PathBuf::from("/var/lib")).join("respool")
}

/// Returns OpenClaw's directory, `~/.openclaw`; for a service without a home the one below `/var/lib`.
pub(super) fn openclaw_dir(environment: &Environment) -> PathBuf {
    let home = environment.get("HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    home.unwrap_or_else(|| PathBuf::from("/var/lib")).join(".openclaw")
}

/// Returns a base directory by the XDG specification: its variable when that is an absolute path, else below
/// the home directory.
fn base_directory(environment: &Environment, variable: &str, below_home: &str) -> Option<PathBuf> {
    let absolute = |name: &str| environment.get(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute(variable).or_else(|| absolute("HOME").map(|home| home.join(below_home)))
}

/// Why a file that exists cannot be used. The text continues the file's name.
#[derive(Debug, thiserror::Error)]
enum FileError {
    #[error("is not UTF-8 text; a configuration file is TOML")]
    NotText,
    #[error("cannot be read: {0}; make it readable or name another")]
    Unreadable(io::Error),
}

/// Returns a file's text; `None` when there is no such file.
fn read_if_present(path: &Path) -> Option<Result<String, FileError>> {
    match std::fs::read(path) {
        Ok(bytes) => Some(String::from_utf8(bytes).map_err(|_| FileError::NotText)),
        Err(why) if matches!(why.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => None,
        Err(why) => Some(Err(FileError::Unreadable(why))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(pairs: &[(&str, &Path)]) -> Environment {
        pairs.iter().map(|(name, path)| ((*name).to_owned(), path.display().to_string())).collect()
    }

    #[test]
    fn a_named_file_comes_first_and_must_exist() {
        let directory = tempfile::tempdir().unwrap();
        let (one, two) = (directory.path().join("one.toml"), directory.path().join("two.toml"));
        std::fs::write(&one, "one").unwrap();
        std::fs::write(&two, "two").unwrap();
        let asked = environment(&[("RESPOOL_CONFIG", &two)]);
        assert_eq!(find_file(Some(&one), &asked).unwrap().unwrap().1, "one");
        assert_eq!(find_file(None, &asked).unwrap().unwrap().1, "two");

        let gone = directory.path().join("gone.toml");
        let error = find_file(Some(&gone), &asked).unwrap_err().to_string();
        assert!(error.starts_with("--config: the file "), "{error}");
        let error = find_file(None, &environment(&[("RESPOOL_CONFIG", &gone)])).unwrap_err().to_string();
        assert!(error.starts_with("environment RESPOOL_CONFIG: the file "), "{error}");
        let error = find_file(Some(directory.path()), &asked).unwrap_err().to_string();
        assert!(error.starts_with("--config: the file ") && error.contains(" cannot be read: "), "{error}");
        let found = directory.path().join("respool").join(FILE);
        std::fs::create_dir(found.parent().unwrap()).unwrap();
        std::fs::write(&found, b"\xff").unwrap();
        let of_user = environment(&[("XDG_CONFIG_HOME", directory.path())]);
        let error = find_file(None, &of_user).unwrap_err().to_string();
        let why = "this file is not UTF-8 text; a configuration file is TOML";
        assert_eq!(error, format!("{}: {why}", found.display()), "it is named once");
    }

    #[test]
    fn the_places_that_are_searched() {
        let of = |pairs: &[(&str, &str)]| {
            let pairs: Vec<_> = pairs.iter().map(|(name, path)| (*name, Path::new(path))).collect();
            let found = searched_places(&environment(&pairs));
            found.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(of(&[("HOME", "/h")]), "/h/.config/respool/respool.toml /etc/respool/respool.toml");
        assert_eq!(
            of(&[("HOME", "/h"), ("XDG_CONFIG_HOME", "/x")]),
            "/x/respool/respool.toml /etc/respool/respool.toml"
        );
        assert_eq!(of(&[("XDG_CONFIG_HOME", "relative")]), "/etc/respool/respool.toml");
    }

    /// A cloned repository took over by its `respool.toml`.
    #[test]
    fn a_file_in_the_working_directory_is_only_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let here = directory.path();
        let (file, nothing) = (here.join(FILE), Environment::new());
        let unread = |flag: Option<&Path>, environment: &Environment, in_use: Option<&Path>| {
            super::find_unread(here, flag, environment, in_use)
        };
        assert_eq!(unread(None, &nothing, None), None);
        std::fs::write(&file, "").unwrap();
        assert_eq!(unread(None, &nothing, None), Some(file.clone()));
        assert_eq!(unread(None, &nothing, Some(Path::new("/etc/hostname"))), Some(file.clone()));
        assert_eq!(unread(Some(&file), &nothing, Some(&file)), None);
        assert_eq!(unread(None, &environment(&[("RESPOOL_CONFIG", &file)]), Some(&file)), None);
        // The user's own directory is the working directory, and a link leads there.
        let alias = here.join("alias.toml");
        std::os::unix::fs::symlink(&file, &alias).unwrap();
        assert_eq!(unread(None, &nothing, Some(&alias)), None);
        std::fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("nowhere", &file).unwrap();
        assert_eq!(unread(None, &nothing, None), Some(file.clone()));
    }

    #[test]
    fn the_default_state_directory() {
        for (pairs, expected) in [
            (vec![("HOME", Path::new("/h"))], "/h/.local/state/respool"),
            (vec![("HOME", Path::new("/h")), ("XDG_STATE_HOME", Path::new("/s"))], "/s/respool"),
            (vec![], "/var/lib/respool"),
        ] {
            assert_eq!(state_dir(&environment(&pairs)), Path::new(expected));
        }
    }
}
