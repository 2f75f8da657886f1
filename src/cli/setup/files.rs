//! Changes a client's settings file at a terminal, and undoes the change.

use std::io::{self, IsTerminal as _};
use std::path::Path;

use super::arguments::{SetupArgs, name_of};
use crate::cli::confirm::confirm;
use crate::cli::failure::Failure;
use crate::cli::say;
use client_settings::{Client, SettingsFile, Target};

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
    path: &Path,
    writing: Writing,
) -> Result<(), Failure> {
    let file = SettingsFile::new(client, path);
    let present = file.read()?;
    let text = client.edit_settings(present.as_deref().unwrap_or_default(), target, path)?;
    if present.as_deref() == Some(&text) {
        say::say_sentences(&format!("{} already points to respool.", path.display()));
        return Ok(());
    }
    let present = present.unwrap_or_default();
    say::say_piece(&diff_text(&present, &text, path));
    if !writing.is_agreed()? {
        say::say(NOTHING_WRITTEN);
        return Ok(());
    }
    file.write(&present, &text)?;
    say::say_sentences(&format!("Written. `respool setup {} --undo` restores it.", name_of(client)));
    Ok(())
}

/// Returns the change as a diff.
pub(super) fn diff_text(present: &str, text: &str, file: &Path) -> String {
    let name = file.display().to_string();
    tools::diff::unified_diff(&name, present, text)
}

/// Shows how the settings are restored, asks, and writes them. Later changes are kept. Returns true if they
/// were written.
///
/// # Errors
/// When there is nothing to undo, a file cannot be read or written, or the person said no.
pub(super) fn undo_change(client: Client, path: Option<&Path>, writing: Writing) -> Result<bool, Failure> {
    let Some(path) = path else {
        say::say_sentences(&format!(
            "{} gets its settings from the shell, so there is no file to restore.",
            name_of(client)
        ));
        return Ok(false);
    };
    let file = SettingsFile::new(client, path);
    let present = file.read()?.unwrap_or_default();
    let restoration = file.restoration(&present)?;
    if let Some(kept) = &restoration.kept {
        say::say_sentences(&format!(
            "{} was changed in lines that respool had written, or is no longer valid. It is restored to what it was before; the changed file is kept as {}.",
            path.display(),
            kept.display()
        ));
    }
    say::say_piece(&diff_text(&present, &restoration.text, path));
    if !writing.is_agreed()? {
        say::say(NOTHING_WRITTEN);
        return Ok(false);
    }
    file.restore(&present, &restoration)?;
    let done = if restoration.text.is_empty() {
        "was removed, because setup had made it"
    } else {
        "has been restored"
    };
    say::say_sentences(&format!("{} {done}.", path.display()));
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dry_runs_write_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.toml");
        let target =
            Target { url: "http://127.0.0.1:1".into(), model: "m".into(), window: None, key_env: None };
        edit_file(Client::Codex, &target, &path, Writing::No).unwrap();
        assert!(!path.exists());
        edit_file(Client::Codex, &target, &path, Writing::Yes).unwrap();
        assert!(!undo_change(Client::Codex, Some(&path), Writing::No).unwrap() && path.exists());
        assert!(undo_change(Client::Codex, Some(&path), Writing::Yes).unwrap() && !path.exists());
    }
}
