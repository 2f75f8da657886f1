//! Changes a client's settings file, and undoes the change. Copies of the settings before and after the
//! change stay next to the file until it is undone.

use std::fs;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};

use super::arguments::{SetupArgs, name_of};
use crate::cli::confirm::confirm;
use crate::cli::failure::Failure;
use crate::cli::say;
use client_settings::{Client, Target};

/// Suffix of the copy of the settings before the change.
const BEFORE: &str = "before-respool";
/// Suffix of the copy of the settings after the change.
const AFTER: &str = "after-respool";
/// Suffix of the copy with later changes that could not be kept.
const UNDONE: &str = "before-undo";

/// Returns true if `setup` has changed this file, and can undo that.
pub(super) fn has_change(file: &Path) -> bool {
    sibling_path(file, AFTER).exists()
}

/// The last line of a dry run.
pub(super) const NOTHING_WRITTEN: &str = "Nothing was written.";

/// Whether a change is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writing {
    /// Only shown.
    No,
    /// After the person at the terminal has agreed.
    Ask,
    /// At once.
    Yes,
}

impl Writing {
    pub(super) fn from_arguments(arguments: &SetupArgs) -> Self {
        match (arguments.dry_run, arguments.yes) {
            (true, _) => Self::No,
            (false, true) => Self::Yes,
            (false, false) => Self::Ask,
        }
    }

    /// Returns true if the change that was shown may be written.
    ///
    /// # Errors
    /// When the person said no, or there is no terminal to ask at.
    pub(super) fn is_agreed(self) -> Result<bool, Failure> {
        match self {
            Self::No => Ok(false),
            Self::Yes => Ok(true),
            Self::Ask if confirm("Write this change?") => Ok(true),
            Self::Ask if io::stdin().is_terminal() => Err("nothing was written".into()),
            Self::Ask => {
                Err("nothing was written, because there is no terminal to ask at: add --yes to write it"
                    .into())
            }
        }
    }
}

/// Shows the change that points a client at respool, asks, and writes it.
pub(super) fn edit_file(
    client: Client,
    target: &Target,
    file: &Path,
    writing: Writing,
) -> Result<(), Failure> {
    let failed = |what: &str, error: io::Error| format!("{} cannot be {what}: {error}", file.display());
    let present = match fs::read_to_string(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        read => Some(read.map_err(|error| failed("read", error))?),
    };
    let text = client.edit_settings(present.as_deref().unwrap_or_default(), target, file)?;
    if present.as_deref() == Some(&text) {
        say::say_sentences(&format!("{} already points to respool.", file.display()));
        return Ok(());
    }
    say::say_piece(&diff_text(present.as_deref().unwrap_or_default(), &text, file));
    if !writing.is_agreed()? {
        say::say(NOTHING_WRITTEN);
        return Ok(());
    }
    write_settings(client, file, present.as_deref().unwrap_or_default(), &text)?;
    say::say_sentences(&format!("Written. `respool setup {} --undo` restores it.", name_of(client)));
    Ok(())
}

/// Returns the change as a diff.
pub(super) fn diff_text(present: &str, text: &str, file: &Path) -> String {
    let name = file.display().to_string();
    tools::diff::unified_diff(&name, present, text)
}

/// Writes new settings, after the copies that undoing needs. An empty copy means that there was no file.
pub(super) fn write_settings(client: Client, file: &Path, present: &str, text: &str) -> Result<(), Failure> {
    let failed = |what: &str, error: io::Error| format!("{} cannot be {what}: {error}", file.display());
    let as_it_was = match without_respool(client, file, present) {
        Some(Restored::Merged(text)) => text,
        // Later changes touch what respool wrote, which still is in it.
        Some(Restored::Conflict(before)) if present.contains("respool") => before,
        // It was undone by hand.
        Some(Restored::Conflict(_)) | None => present.to_owned(),
    };
    replace_file(&sibling_path(file, BEFORE), &as_it_was).map_err(|error| failed("saved first", error))?;
    replace_file(&sibling_path(file, AFTER), text).map_err(|error| failed("saved first", error))?;
    Ok(replace_file(file, text).map_err(|error| failed("written", error))?)
}

/// Returns the settings as setup last wrote them, if it did.
pub(super) fn written_text(file: &Path) -> Option<String> {
    fs::read_to_string(sibling_path(file, AFTER)).ok()
}

/// Settings without what respool wrote.
enum Restored {
    /// They include later changes.
    Merged(String),
    /// As they were before the change; later changes touch what respool wrote.
    Conflict(String),
}

/// Removes what respool wrote from the present settings; `None` if it wrote nothing.
fn without_respool(client: Client, file: &Path, present: &str) -> Option<Restored> {
    let before = fs::read_to_string(sibling_path(file, BEFORE)).ok()?;
    let after = fs::read_to_string(sibling_path(file, AFTER)).ok();
    let restored = after.and_then(|after| client.restore_settings(&after, present, &before));
    Some(restored.map_or(Restored::Conflict(before), Restored::Merged))
}

fn sibling_path(file: &Path, end: &str) -> PathBuf {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{end}"));
    file.with_file_name(name)
}

/// Writes a temporary file and renames it, so that a crash leaves the old or the new file. Permissions stay.
fn replace_file(file: &Path, text: &str) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt as _;
    // A link to settings elsewhere stays a link.
    let file = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let folder = file.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let beside = file.with_extension(format!("respool-{}", std::process::id()));
    let mut written = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
    written.write_all(text.as_bytes())?;
    if let Ok(present) = fs::metadata(&file) {
        fs::set_permissions(&beside, present.permissions())?;
    }
    fs::rename(&beside, &file)
}

/// Shows how the settings are restored, asks, and writes them. Later changes are kept. Returns true if they
/// were written.
///
/// # Errors
/// When there is nothing to undo, a file cannot be read or written, or the person said no.
pub(super) fn undo_change(client: Client, file: Option<&Path>, writing: Writing) -> Result<bool, Failure> {
    let Some(file) = file else {
        say::say_sentences(&format!(
            "{} gets its settings from the shell, so there is no file to restore.",
            name_of(client)
        ));
        return Ok(false);
    };
    let present = match fs::read_to_string(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(format!("{} cannot be read: {error}", file.display()).into());
        }
        read => read.unwrap_or_default(),
    };
    let nothing =
        || format!("there is nothing to undo: {} does not exist", sibling_path(file, BEFORE).display());
    let restored = without_respool(client, file, &present).ok_or_else(nothing)?;
    let failed = |error: io::Error| format!("{} cannot be restored: {error}", file.display());
    let (text, kept) = match restored {
        Restored::Merged(text) => (text, None),
        Restored::Conflict(text) => {
            let kept = sibling_path(file, UNDONE);
            say::say_sentences(&format!(
                "{} was changed in lines that respool had written, or is no longer valid. It is restored to what it was before; the changed file is kept as {}.",
                file.display(),
                kept.display()
            ));
            (text, Some(kept))
        }
    };
    say::say_piece(&diff_text(&present, &text, file));
    if !writing.is_agreed()? {
        say::say(NOTHING_WRITTEN);
        return Ok(false);
    }
    if let Some(kept) = kept {
        replace_file(&kept, &present).map_err(failed)?;
    }
    if text.is_empty() {
        remove_if_present(file)?;
    } else {
        replace_file(file, &text).map_err(failed)?;
    }
    for end in [BEFORE, AFTER] {
        remove_if_present(&sibling_path(file, end))?;
    }
    let done = if text.is_empty() { "was removed, because setup had made it" } else { "has been restored" };
    say::say_sentences(&format!("{} {done}.", file.display()));
    Ok(true)
}

/// Removes a file that may be gone already.
fn remove_if_present(file: &Path) -> Result<(), Failure> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(format!("{} cannot be removed: {error}", file.display()).into())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn target() -> Target {
        Target { url: "http://127.0.0.1:1".into(), model: "m".into(), window: None, key_env: None }
    }

    #[test]
    fn settings_are_changed_and_restored() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("deep/config.toml");
        let target = target();
        edit_file(Client::Codex, &target, &file, Writing::No).unwrap();
        assert!(!file.exists(), "a dry run writes nothing");
        edit_file(Client::Codex, &target, &file, Writing::Yes).unwrap();
        assert!(fs::read_to_string(&file).unwrap().contains("[model_providers.respool]"));
        undo_change(Client::Codex, Some(&file), Writing::Yes).unwrap();
        assert!(
            !file.exists() && !sibling_path(&file, BEFORE).exists() && !sibling_path(&file, AFTER).exists()
        );
        fs::write(&file, "# mine\n").unwrap();
        edit_file(Client::Codex, &target, &file, Writing::Yes).unwrap();
        edit_file(Client::Codex, &Target { model: "n".into(), ..target }, &file, Writing::Yes).unwrap();
        undo_change(Client::Codex, Some(&file), Writing::Yes).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "# mine\n");
        assert!(undo_change(Client::Codex, Some(&file), Writing::Yes).is_err());
    }

    #[test]
    fn the_first_settings_survive_a_second_setup() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.toml");
        fs::write(&file, "model = \"gpt-5\"\n").unwrap();
        edit_file(Client::Codex, &target(), &file, Writing::Yes).unwrap();
        let by_hand = fs::read_to_string(&file).unwrap().replace("model = \"m\"", "model = \"other\"");
        fs::write(&file, by_hand).unwrap();
        edit_file(Client::Codex, &target(), &file, Writing::Yes).unwrap();
        undo_change(Client::Codex, Some(&file), Writing::Yes).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "model = \"gpt-5\"\n");
    }

    #[test]
    fn undo_handles_missing_and_unreadable_files() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.toml");
        edit_file(Client::Codex, &target(), &file, Writing::Yes).unwrap();
        fs::remove_file(&file).unwrap();
        undo_change(Client::Codex, Some(&file), Writing::Yes).unwrap();
        assert!(!file.exists() && !sibling_path(&file, BEFORE).exists());
        edit_file(Client::Codex, &target(), &file, Writing::Yes).unwrap();
        fs::write(&file, [0xff, 0xfe]).unwrap();
        assert!(undo_change(Client::Codex, Some(&file), Writing::Yes).is_err());
        assert_eq!(fs::read(&file).unwrap(), [0xff, 0xfe]);
        assert!(sibling_path(&file, BEFORE).exists() && !sibling_path(&file, UNDONE).exists());
    }

    /// Claude Code rewrites its settings itself, and setting them up changes their layout.
    #[test]
    fn json_is_restored_by_its_values() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("settings.json");
        let mine = r#"{"theme": "dark", "env": {"A": "b", "ANTHROPIC_MODEL": "opus"}, "allow": ["ls"]}"#;
        let read = || serde_json::from_str::<Value>(&fs::read_to_string(&file).unwrap()).unwrap();
        fs::write(&file, mine).unwrap();
        edit_file(Client::ClaudeCode, &target(), &file, Writing::Yes).unwrap();
        let mut changed = read();
        changed["allow"] = json!(["ls", "cat"]);
        changed["env"]["C"] = json!("d");
        changed["env"].as_object_mut().unwrap().remove("A");
        changed["env"]["ANTHROPIC_DEFAULT_HAIKU_MODEL"] = json!("haiku");
        fs::write(&file, changed.to_string()).unwrap();
        undo_change(Client::ClaudeCode, Some(&file), Writing::Yes).unwrap();
        let env = json!({"ANTHROPIC_MODEL": "opus", "C": "d", "ANTHROPIC_DEFAULT_HAIKU_MODEL": "haiku"});
        assert_eq!(read(), json!({"theme": "dark", "env": env, "allow": ["ls", "cat"]}));
        assert!(!sibling_path(&file, UNDONE).exists());
    }

    #[test]
    fn later_changes_survive_undoing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.toml");
        let target = target();
        let (mine, later) = ("# mine\nmodel = \"gpt\"\n\n[a]\nx = 1\ny = 3\n", "\n[trusted]\npath = true\n");
        let text = || fs::read_to_string(&file).unwrap();
        fs::write(&file, mine).unwrap();
        edit_file(Client::Codex, &target, &file, Writing::Yes).unwrap();
        let changed = text().replace("x = 1", "x = 2");
        fs::write(&file, &changed).unwrap();
        undo_change(Client::Codex, Some(&file), Writing::Yes).unwrap();
        assert_eq!(text(), mine.replace("x = 1", "x = 2"));
        // If it was undone by hand and then changed, the changed version is what the next undo restores.
        edit_file(Client::Codex, &target, &file, Writing::Yes).unwrap();
        let by_hand = format!("{mine}{later}");
        fs::write(&file, &by_hand).unwrap();
        edit_file(Client::Codex, &target, &file, Writing::Yes).unwrap();
        undo_change(Client::Codex, Some(&file), Writing::Yes).unwrap();
        assert_eq!(text(), by_hand);
        // Changes to respool's own lines are kept beside the file.
        edit_file(Client::Codex, &target, &file, Writing::Yes).unwrap();
        let other = text().replace("model = \"m\"", "model = \"n\"");
        fs::write(&file, &other).unwrap();
        undo_change(Client::Codex, Some(&file), Writing::Yes).unwrap();
        assert_eq!(text(), by_hand);
        assert_eq!(fs::read_to_string(sibling_path(&file, UNDONE)).unwrap(), other);
    }
}
