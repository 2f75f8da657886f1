//! Reads `client_keys_file`, at the start and whenever it changes. Called by `access`.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::key_file::{KeyList, Mistake};

/// The largest file that is read: room for ten thousand keys.
const LARGEST: u64 = 4 << 20;

/// The file and its content at the last reading.
#[derive(Debug)]
pub(super) struct KeyFile {
    path: PathBuf,
    text: String,
    /// The problems of the last reading, so that each is logged once.
    fault: Option<String>,
}

/// The reason why the file cannot be used. A file has one for each of its mistakes.
#[derive(Debug, thiserror::Error)]
pub(super) enum KeyFileError {
    #[error("{} cannot be read: {cause}; correct the path or its permissions", .path.display())]
    Unreadable { path: PathBuf, cause: io::Error },
    #[error("{} is larger than 4 MiB, so it is not a list of keys: correct the path", .0.display())]
    TooLarge(PathBuf),
    #[error("{} holds no key; write at least one (docs/keys.md), or remove this setting", .0.display())]
    NoKey(PathBuf),
    #[error("{}: {mistake}", .path.display())]
    Mistake { path: PathBuf, mistake: Mistake },
}

impl KeyFile {
    /// Reads the file for the first time.
    ///
    /// # Errors
    /// When it cannot be read, is not a list of keys, or is empty.
    pub(super) fn open(path: &Path) -> Result<(Self, KeyList), Vec<KeyFileError>> {
        let text = read_text(path).map_err(|why| vec![why])?;
        let list = parse_keys(path, &text)?;
        if list.keys.is_empty() {
            return Err(vec![KeyFileError::NoKey(path.to_owned())]);
        }
        warn_about_permissions(path, &list);
        Ok((Self { path: path.to_owned(), text, fault: None }, list))
    }

    /// Returns the keys of the last reading.
    pub(super) fn list(&self) -> KeyList {
        parse_keys(&self.path, &self.text).unwrap_or_default()
    }

    /// Returns the problems of the last reading, for which the earlier keys stay valid.
    pub(super) fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// Returns the keys if the file has changed and is valid. A mistake is logged once, and the earlier keys
    /// stay valid.
    pub(super) fn read_changes(&mut self) -> Option<KeyList> {
        let read = read_text(&self.path).map_err(|why| vec![why]);
        if self.fault.is_none() && read.as_ref().is_ok_and(|text| *text == self.text) {
            return None;
        }
        match read.and_then(|text| parse_keys(&self.path, &text).map(|list| (text, list))) {
            Ok((text, list)) => {
                let is_new = self.text != text || self.fault.is_some();
                (self.text, self.fault) = (text, None);
                warn_about_permissions(&self.path, &list);
                is_new.then_some(list)
            }
            Err(problems) => {
                let fault = problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
                if self.fault.as_ref() != Some(&fault) {
                    let kept = if self.list().keys.is_empty() {
                        "no key is in use"
                    } else {
                        "the old keys stay in use"
                    };
                    tracing::error!(target: "respool::server", fault, "the changed file of client keys is wrong; {kept}: correct the file");
                }
                self.fault = Some(fault);
                None
            }
        }
    }
}

fn read_text(path: &Path) -> Result<String, KeyFileError> {
    let read = || {
        let mut text = String::new();
        // Opening a pipe would wait for its writer.
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::other("it is not a file"));
        }
        File::open(path)?.take(LARGEST + 1).read_to_string(&mut text)?;
        Ok(text)
    };
    let text = read().map_err(|cause| KeyFileError::Unreadable { path: path.to_owned(), cause })?;
    if text.len() as u64 > LARGEST { Err(KeyFileError::TooLarge(path.to_owned())) } else { Ok(text) }
}

fn parse_keys(path: &Path, text: &str) -> Result<KeyList, Vec<KeyFileError>> {
    let name = |mistake| KeyFileError::Mistake { path: path.to_owned(), mistake };
    KeyList::parse(text).map_err(|mistakes| mistakes.into_iter().map(name).collect())
}

/// Returns true if others on this machine can read the file.
pub fn is_open_to_others(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|file| file.permissions().mode() & 0o077 != 0)
}

/// Warns about permissions of the file that are too wide.
fn warn_about_permissions(path: &Path, list: &KeyList) {
    let file = path.display().to_string();
    if is_open_to_others(path) {
        let todo = format!("chmod 600 {file}");
        tracing::warn!(target: "respool::server", file, todo, "others on this machine can read the client keys");
    }
    let short: Vec<&str> = list.keys.iter().filter(|key| key.is_short).map(|key| key.name.as_str()).collect();
    if !short.is_empty() {
        let todo = "openssl rand -hex 24";
        tracing::warn!(target: "respool::server", file, keys = short.join(","), todo, "some client keys are short enough to be guessed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &KeyList) -> Vec<&str> {
        list.keys.iter().map(|key| key.name.as_str()).collect()
    }

    #[test]
    fn a_changed_file_holds_only_when_right() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.toml");
        let write = |text: &str| std::fs::write(&path, text).unwrap();
        write("alice = 'sk-1'");
        let (mut file, list) = KeyFile::open(&path).unwrap();
        assert_eq!(names(&list), ["alice"]);
        assert_eq!(file.read_changes(), None);
        write("bob = 'sk-2'");
        assert_eq!(names(&file.read_changes().unwrap()), ["bob"]);
        write("bob = ");
        assert_eq!((file.read_changes(), file.read_changes()), (None, None));
        assert!(file.fault().unwrap().contains("line 1 is not TOML"), "{:?}", file.fault());
        std::fs::remove_file(&path).unwrap();
        assert_eq!(file.read_changes(), None);
        write("bob = 'sk-2'");
        assert_eq!(names(&file.read_changes().unwrap()), ["bob"], "it is in order again");
        assert_eq!(file.fault(), None);
        assert_eq!(file.read_changes(), None);
        // A file without keys is a change like any other.
        write("");
        assert_eq!(names(&file.read_changes().unwrap()), [""; 0]);
    }

    #[test]
    fn an_unusable_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let check = |name: &str, text: Option<&str>, expected: &str| {
            let path = dir.path().join(name);
            text.iter().for_each(|text| std::fs::write(&path, text).unwrap());
            let problems = KeyFile::open(&path).unwrap_err();
            let problems = problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
            assert!(problems.contains(expected) && problems.contains(name), "{problems}");
        };
        check("none", None, "cannot be read");
        check("empty", Some(""), "holds no key");
        check("wrong", Some("a = 1"), "line 1: a: it is neither");
        check("", None, "it is not a file");
        let pipe = dir.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        check("pipe", None, "it is not a file");
        check("large", Some(&"#".repeat(5 << 20)), "larger than 4 MiB");
    }
}
