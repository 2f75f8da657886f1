//! A client's settings file: changed after copies of it are made, and restored from them. Copies of the
//! settings before and after the change stay next to the file until it is undone.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::Client;

/// Suffix of the copy of the settings before the change.
const BEFORE: &str = "before-respool";
/// Suffix of the copy of the settings after the change.
const AFTER: &str = "after-respool";
/// Suffix of the copy with later changes that could not be kept.
const UNDONE: &str = "before-undo";

/// A file of settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read or written.
    #[error("{} cannot be {done}: {why}", file.display())]
    Unusable {
        /// The file.
        file: PathBuf,
        /// The action that fails; it completes "it cannot be ".
        done: &'static str,
        /// The reason.
        why: io::Error,
    },
    /// The file was never changed, or was restored.
    #[error("there is nothing to undo: {} does not exist", .0.display())]
    Unchanged(PathBuf),
}

/// The settings file of a client.
#[derive(Clone, Copy, Debug)]
pub struct SettingsFile<'a> {
    client: Client,
    path: &'a Path,
}

/// How a file is restored.
#[derive(Debug, PartialEq, Eq)]
pub struct Restoration {
    /// The settings without what respool wrote; empty if there was no file.
    pub text: String,
    /// Where the present settings are kept, if later changes touch what respool wrote and are lost.
    pub kept: Option<PathBuf>,
}

impl<'a> SettingsFile<'a> {
    /// Returns a client's file at this path, which need not exist.
    pub fn new(client: Client, path: &'a Path) -> Self {
        Self { client, path }
    }

    /// Returns true if respool has changed the file, and can undo that.
    pub fn is_changed(self) -> bool {
        self.copy(AFTER).exists()
    }

    /// Returns the settings as respool last wrote them, if it did.
    pub fn written_text(self) -> Option<String> {
        fs::read_to_string(self.copy(AFTER)).ok()
    }

    /// Returns the present settings; `None` if there is no file.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn read(self) -> Result<Option<String>, FileError> {
        match fs::read_to_string(self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            read => read.map(Some).map_err(self.cannot_be("read")),
        }
    }

    /// Writes new settings, after the copies that undoing needs. An empty copy means that there was no file.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write(self, present: &str, text: &str) -> Result<(), FileError> {
        let as_it_was = match self.restoration(present) {
            Ok(Restoration { text, kept: None }) => text,
            // Later changes touch what respool wrote, which still is in it.
            Ok(Restoration { text, .. }) if present.contains("respool") => text,
            // It was undone by hand, or never changed.
            _ => present.to_owned(),
        };
        replace_file(&self.copy(BEFORE), &as_it_was).map_err(self.cannot_be("saved first"))?;
        replace_file(&self.copy(AFTER), text).map_err(self.cannot_be("saved first"))?;
        replace_file(self.path, text).map_err(self.cannot_be("written"))
    }

    /// Tells how the present settings are restored. Later changes are kept.
    ///
    /// # Errors
    /// When there is nothing to undo.
    pub fn restoration(self, present: &str) -> Result<Restoration, FileError> {
        let before = fs::read_to_string(self.copy(BEFORE));
        let before = before.map_err(|_| FileError::Unchanged(self.copy(BEFORE)))?;
        let merged =
            self.written_text().and_then(|after| self.client.restore_settings(&after, present, &before));
        Ok(match merged {
            Some(text) => Restoration { text, kept: None },
            None => Restoration { text: before, kept: Some(self.copy(UNDONE)) },
        })
    }

    /// Restores the file, and removes the copies.
    ///
    /// # Errors
    /// When a file cannot be written or removed.
    pub fn restore(self, present: &str, restoration: &Restoration) -> Result<(), FileError> {
        let Restoration { text, kept } = restoration;
        if let Some(kept) = kept {
            replace_file(kept, present).map_err(self.cannot_be("restored"))?;
        }
        if text.is_empty() {
            remove_if_present(self.path)?;
        } else {
            replace_file(self.path, text).map_err(self.cannot_be("restored"))?;
        }
        [BEFORE, AFTER].iter().try_for_each(|end| remove_if_present(&self.copy(end)))
    }

    fn copy(self, end: &str) -> PathBuf {
        let mut name = self.path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{end}"));
        self.path.with_file_name(name)
    }

    fn cannot_be(self, done: &'static str) -> impl Fn(io::Error) -> FileError {
        let file = self.path.to_owned();
        move |why| FileError::Unusable { file: file.clone(), done, why }
    }
}

/// Writes a file and its folder. Permissions stay, and a link to settings elsewhere stays a link.
fn replace_file(file: &Path, text: &str) -> io::Result<()> {
    let file = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    fs::create_dir_all(file.parent().unwrap_or(Path::new(".")))?;
    let permissions =
        fs::metadata(&file).map_or_else(|_| Permissions::from_mode(0o600), |present| present.permissions());
    atomic_file::replace_with(&file, text.as_bytes(), permissions)
}

/// Removes a file that may be gone already.
fn remove_if_present(file: &Path) -> Result<(), FileError> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(FileError::Unusable { file: file.to_owned(), done: "removed", why: error })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::Target;

    fn target() -> Target {
        Target { url: "http://127.0.0.1:1".into(), model: "m".into(), window: None, key_env: None }
    }

    fn edit(client: Client, target: &Target, path: &Path) {
        let file = SettingsFile::new(client, path);
        let present = file.read().unwrap().unwrap_or_default();
        file.write(&present, &client.edit_settings(&present, target, path).unwrap()).unwrap();
    }

    fn undo(client: Client, path: &Path) -> Result<(), FileError> {
        let file = SettingsFile::new(client, path);
        let present = file.read()?.unwrap_or_default();
        file.restore(&present, &file.restoration(&present)?)
    }

    fn copy(path: &Path, end: &str) -> PathBuf {
        SettingsFile::new(Client::Codex, path).copy(end)
    }

    #[test]
    fn settings_are_changed_and_restored() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("deep/config.toml");
        let target = target();
        edit(Client::Codex, &target, &file);
        assert!(fs::read_to_string(&file).unwrap().contains("[model_providers.respool]"));
        undo(Client::Codex, &file).unwrap();
        assert!(!file.exists() && !copy(&file, BEFORE).exists() && !copy(&file, AFTER).exists());
        fs::write(&file, "# mine\n").unwrap();
        edit(Client::Codex, &target, &file);
        edit(Client::Codex, &Target { model: "n".into(), ..target }, &file);
        undo(Client::Codex, &file).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "# mine\n");
        assert!(undo(Client::Codex, &file).is_err());
    }

    #[test]
    fn the_first_settings_survive_a_second_setup() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.toml");
        fs::write(&file, "model = \"gpt-5\"\n").unwrap();
        edit(Client::Codex, &target(), &file);
        let by_hand = fs::read_to_string(&file).unwrap().replace("model = \"m\"", "model = \"other\"");
        fs::write(&file, by_hand).unwrap();
        edit(Client::Codex, &target(), &file);
        undo(Client::Codex, &file).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "model = \"gpt-5\"\n");
    }

    #[test]
    fn undo_handles_missing_and_unreadable_files() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.toml");
        edit(Client::Codex, &target(), &file);
        fs::remove_file(&file).unwrap();
        undo(Client::Codex, &file).unwrap();
        assert!(!file.exists() && !copy(&file, BEFORE).exists());
        edit(Client::Codex, &target(), &file);
        fs::write(&file, [0xff, 0xfe]).unwrap();
        assert!(undo(Client::Codex, &file).is_err());
        assert_eq!(fs::read(&file).unwrap(), [0xff, 0xfe]);
        assert!(copy(&file, BEFORE).exists() && !copy(&file, UNDONE).exists());
    }

    /// Claude Code rewrites its settings itself, and setting them up changes their layout.
    #[test]
    fn json_is_restored_by_its_values() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("settings.json");
        let mine = r#"{"theme": "dark", "env": {"A": "b", "ANTHROPIC_MODEL": "opus"}, "allow": ["ls"]}"#;
        let read = || serde_json::from_str::<Value>(&fs::read_to_string(&file).unwrap()).unwrap();
        fs::write(&file, mine).unwrap();
        edit(Client::ClaudeCode, &target(), &file);
        let mut changed = read();
        changed["allow"] = json!(["ls", "cat"]);
        changed["env"]["C"] = json!("d");
        changed["env"].as_object_mut().unwrap().remove("A");
        changed["env"]["ANTHROPIC_DEFAULT_HAIKU_MODEL"] = json!("haiku");
        fs::write(&file, changed.to_string()).unwrap();
        undo(Client::ClaudeCode, &file).unwrap();
        let env = json!({"ANTHROPIC_MODEL": "opus", "C": "d", "ANTHROPIC_DEFAULT_HAIKU_MODEL": "haiku"});
        assert_eq!(read(), json!({"theme": "dark", "env": env, "allow": ["ls", "cat"]}));
        assert!(!copy(&file, UNDONE).exists());
    }

    #[test]
    fn later_changes_survive_undoing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.toml");
        let target = target();
        let (mine, later) = ("# mine\nmodel = \"gpt\"\n\n[a]\nx = 1\ny = 3\n", "\n[trusted]\npath = true\n");
        let text = || fs::read_to_string(&file).unwrap();
        fs::write(&file, mine).unwrap();
        edit(Client::Codex, &target, &file);
        let changed = text().replace("x = 1", "x = 2");
        fs::write(&file, &changed).unwrap();
        undo(Client::Codex, &file).unwrap();
        assert_eq!(text(), mine.replace("x = 1", "x = 2"));
        // If it was undone by hand and then changed, the changed version is what the next undo restores.
        edit(Client::Codex, &target, &file);
        let by_hand = format!("{mine}{later}");
        fs::write(&file, &by_hand).unwrap();
        edit(Client::Codex, &target, &file);
        undo(Client::Codex, &file).unwrap();
        assert_eq!(text(), by_hand);
        // Changes to respool's own lines are kept in another file.
        edit(Client::Codex, &target, &file);
        let other = text().replace("model = \"m\"", "model = \"n\"");
        fs::write(&file, &other).unwrap();
        undo(Client::Codex, &file).unwrap();
        assert_eq!(text(), by_hand);
        assert_eq!(fs::read_to_string(copy(&file, UNDONE)).unwrap(), other);
    }
}
