//! The OpenClaw installed on this machine: its version, and its validation of a configuration.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use semver::Version;

use super::EditError;

/// The first version after those that refuse the newer keys; no version between this and 2026.9.6 was tested.
const CURRENT: Version = Version::new(2026, 3, 0);

/// The beginning of the name of a draft that OpenClaw validates.
const DRAFT: &str = "respool-draft-";

/// An installed OpenClaw.
#[derive(Debug)]
pub struct OpenClaw {
    program: PathBuf,
    /// Its version.
    pub version: Version,
}

/// OpenClaw's verdict on a configuration.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It accepts it.
    Valid,
    /// In its own words.
    Refused(String),
}

impl OpenClaw {
    /// Asks this program for its version.
    pub fn from_program(program: PathBuf) -> Option<Self> {
        let output = Command::new(&program).arg("--version").stdin(Stdio::null()).output().ok()?;
        let version = version_in(&String::from_utf8_lossy(&output.stdout))?;
        Some(Self { program, version })
    }

    /// Returns true if it knows the keys that 2026.2 refuses.
    pub fn is_current(&self) -> bool {
        self.version >= CURRENT
    }

    /// Validates this text as a file in the folder of the real one, so that included files are found.
    ///
    /// # Errors
    /// When the draft cannot be written, or the program cannot be run.
    pub fn validate(&self, text: &str, folder: &Path) -> Result<Verdict, EditError> {
        let unwritable = |error: io::Error| {
            format!(
                "a draft for `openclaw config validate` cannot be written to {}: {error}",
                folder.display()
            )
        };
        std::fs::create_dir_all(folder).map_err(unwritable)?;
        remove_drafts(folder);
        let mut candidate =
            tempfile::Builder::new().prefix(DRAFT).suffix(".json").tempfile_in(folder).map_err(unwritable)?;
        let text = if text.trim().is_empty() { "{}\n" } else { text };
        candidate.write_all(text.as_bytes()).map_err(unwritable)?;
        let output = Command::new(&self.program)
            .args(["config", "validate"])
            .env("OPENCLAW_CONFIG_PATH", candidate.path())
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("`openclaw config validate` cannot be run: {error}"))?;
        if output.status.success() {
            return Ok(Verdict::Valid);
        }
        let said =
            [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned());
        Ok(Verdict::Refused(said.join("\n").trim().to_owned()))
    }
}

/// Removes the drafts that interrupted setups left: they may have keys.
fn remove_drafts(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok) {
        if entry.file_name().to_string_lossy().starts_with(DRAFT) {
            // Only one of the same person's can be there.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Returns the first version in what `openclaw --version` prints: `2026.2.26`, or `OpenClaw 2026.9.6
/// (eb377ac)`.
fn version_in(text: &str) -> Option<Version> {
    text.split_whitespace().find_map(|word| Version::parse(word).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_the_version_are_read() {
        let check = |text: &str, expected: Option<(&str, bool)>| {
            let found = version_in(text).map(|version| OpenClaw { program: PathBuf::new(), version });
            let found = found.map(|openclaw| (openclaw.version.to_string(), openclaw.is_current()));
            assert_eq!(found, expected.map(|(text, is_current)| (text.to_owned(), is_current)), "{text}");
        };
        check("2026.2.26\n", Some(("2026.2.26", false)));
        check("OpenClaw 2026.9.6 (eb377ac)\n", Some(("2026.9.6", true)));
        check("openclaw: not built\n", None);
    }
}
