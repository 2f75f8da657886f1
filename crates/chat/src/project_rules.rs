//! The rules that the people of a project wrote for agents: `AGENTS.md`, or else `CLAUDE.md`, of the
//! directory in which the chat begins, and of those above it in its repository. They are added to the system
//! prompt.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use nix::unistd::geteuid;

/// The files of rules; the first one counts.
const NAMES: [&str; 2] = ["AGENTS.md", "CLAUDE.md"];
/// A longer file is read up to here, in bytes.
const LONGEST: u64 = 32 << 10;

/// Adds the rules of a project to a system prompt, those of outer directories first. Returns the prompt, and
/// the names of the files with them.
pub(super) fn add_rules(prompt: &str, root: &Path) -> (String, Option<String>) {
    let top = repository_of(root);
    let places: Vec<&Path> =
        root.ancestors().take_while(|place| place.starts_with(top.unwrap_or(root))).collect();
    let (mut prompt, mut names) = (prompt.to_owned(), Vec::new());
    for (above, place) in places.iter().enumerate().rev() {
        let found = NAMES.into_iter().find_map(|name| Some((name, read_rules(&place.join(name))?)));
        let Some((name, rules)) = found else { continue };
        let name = "../".repeat(above) + name;
        prompt.extend(["\n\n# Rules of this project, from its ", &name, "\n\n", &rules]);
        names.push(name);
    }
    (prompt, (!names.is_empty()).then(|| names.join(" and ")))
}

/// Returns the top of the person's repository around a directory. One of another user has no say.
pub(super) fn repository_of(root: &Path) -> Option<&Path> {
    let is_own = |place: &Path| place.metadata().is_ok_and(|place| place.uid() == geteuid().as_raw());
    root.ancestors().find(|place| place.join(".git").exists()).filter(|top| is_own(top))
}

/// Reads a regular file with some text. Links are not followed.
fn read_rules(path: &Path) -> Option<String> {
    let flags = nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK;
    let file = File::options().read(true).custom_flags(flags).open(path).ok()?;
    let metadata = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
    let mut text = Vec::new();
    file.take(LONGEST).read_to_end(&mut text).ok()?;
    let mut text = String::from_utf8_lossy(&text).trim().to_owned();
    if metadata.len() > LONGEST {
        text.push_str("\n\n[cut here: the file is longer]");
    }
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_added_from_the_first_file() {
        let root = tempfile::tempdir().unwrap();
        let add = || add_rules("Be brief.", root.path());
        assert_eq!(add(), ("Be brief.".to_owned(), None));
        std::fs::write(root.path().join("CLAUDE.md"), "Use tabs.\n").unwrap();
        let (prompt, from) = add();
        assert_eq!(prompt, "Be brief.\n\n# Rules of this project, from its CLAUDE.md\n\nUse tabs.");
        assert_eq!(from.as_deref(), Some("CLAUDE.md"));
        std::fs::write(root.path().join("AGENTS.md"), "x".repeat(40_000)).unwrap();
        let (prompt, from) = add();
        assert!(prompt.ends_with("x\n\n[cut here: the file is longer]") && prompt.len() < 33_000);
        assert_eq!(from.as_deref(), Some("AGENTS.md"));
    }

    /// Regression: in a directory of a repository, the rules at its top were left out.
    #[test]
    fn rules_above_come_first() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("repo/src/inner");
        std::fs::create_dir_all(&inner).unwrap();
        std::fs::write(root.path().join("AGENTS.md"), "Of nobody.").unwrap();
        std::fs::write(root.path().join("repo/AGENTS.md"), "Use tabs.").unwrap();
        std::fs::write(inner.join("CLAUDE.md"), "Use spaces.").unwrap();
        assert_eq!(add_rules("", &inner).1.as_deref(), Some("CLAUDE.md"), "without a repository");
        std::fs::create_dir(root.path().join("repo/.git")).unwrap();
        let (prompt, from) = add_rules("Be brief.", &inner);
        assert_eq!(from.as_deref(), Some("../../AGENTS.md and CLAUDE.md"));
        assert!(prompt.ends_with(
            "AGENTS.md\n\nUse tabs.\n\n# Rules of this project, from its CLAUDE.md\n\nUse spaces."
        ));
        assert!(!prompt.contains("nobody"), "{prompt}");
    }

    #[test]
    fn links_and_pipes_are_no_rules() {
        let root = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc/passwd", root.path().join("AGENTS.md")).unwrap();
        nix::unistd::mkfifo(&root.path().join("CLAUDE.md"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(add_rules("", root.path()).1, None);
    }
}
