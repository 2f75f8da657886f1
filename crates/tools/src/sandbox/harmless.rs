//! The one form of a repository that a command may leave behind: the one in which `git init`, `git clone` and
//! their like make it. Called by `watched`.

use std::collections::BTreeMap;
use std::fs::{self, DirEntry};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::handles::{RENAMED, read_bytes, read_small};
use super::search::Link;

/// The names at the first level of git's directory by which git starts nothing and finds no other
/// configuration.
const NAMES: &str = "\
    AUTO_MERGE CHERRY_PICK_HEAD COMMIT_EDITMSG FETCH_HEAD HEAD MERGE_AUTOSTASH MERGE_HEAD MERGE_MODE MERGE_MSG \
    ORIG_HEAD REBASE_HEAD REVERT_HEAD SQUASH_MSG branches config description hooks index info logs objects \
    packed-refs refs reftable shallow";
/// Sections of its configuration, also with a name in quotes, and the keys in them. By none git starts a
/// program, or fetches what is missing unasked.
const SECTIONS: &str = "core user init extensions remote branch advice";
const KEYS: &str = "\
    repositoryformatversion filemode bare logallrefupdates ignorecase precomposeunicode symlinks name email \
    defaultbranch refstorage url fetch tagopt remote merge rebase detachedhead";
/// The flag of an entry of an index that has two more bytes of flags.
const EXTENDED: u32 = 0x4000;
/// The bytes of a digest in an index. Where git uses longer ones, no index is in this form.
const DIGEST: usize = 20;
/// Larger indexes are not read.
const LARGEST_INDEX: usize = 64 << 20;

pub(super) fn is_in(names: &str, name: &str) -> bool {
    names.split_ascii_whitespace().any(|known| known == name)
}

/// True for a directory of git's in this form, with none of the `links` in it. No file has a second name, by
/// which a later command could change it.
pub(super) fn is_harmless(git: &Path, links: &BTreeMap<PathBuf, Link>) -> bool {
    let is_known = |entry: DirEntry| {
        let (name, data) = (entry.file_name(), entry.metadata());
        let name = name.to_string_lossy();
        // Also locks of a person's git.
        data.is_ok_and(|data| data.is_dir() || (data.is_file() && data.nlink() == 1))
            && (is_in(NAMES, &name) || name.ends_with(".lock") || name.contains(RENAMED))
    };
    let is_sample = |entry: DirEntry| entry.path().extension().is_some_and(|extension| extension == "sample");
    let is_missing = |error: io::Error| error.kind() == io::ErrorKind::NotFound;
    let has_none = |name: &str| git.join(name).symlink_metadata().is_err_and(is_missing);
    let holds = |name: &str, is_right: &dyn Fn(DirEntry) -> bool| {
        fs::read_dir(git.join(name)).is_ok_and(|mut entries| entries.all(|entry| entry.is_ok_and(is_right)))
    };
    let config = read_small(&git.join("config"));
    let index = || read_bytes(&git.join("index"), LARGEST_INDEX);
    git.symlink_metadata().is_ok_and(|data| data.is_dir())
        && !links.range(git.to_owned()..).next().is_some_and(|(link, _)| link.starts_with(git))
        && holds("", &is_known)
        && (has_none("hooks") || holds("hooks", &is_sample))
        && has_none("objects/info/alternates")
        && git.join("HEAD").is_file()
        && (has_none("config") || config.is_some_and(|text| is_plain(&text)))
        && (has_none("index") || index().is_some_and(|bytes| is_plain_index(&bytes)))
}

/// True for an index whose names are all in the work tree: git writes files at any others when the person
/// restores them. The format is that of gitformat-index(5), of the versions and without the table of offsets
/// that git writes only where its configuration says so.
fn is_plain_index(bytes: &[u8]) -> bool {
    let number = |at: usize| Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let offsets = bytes.len().checked_sub(DIGEST + 12 + DIGEST).and_then(|at| bytes.get(at..at + 4));
    let is_known = bytes.starts_with(b"DIRC") && matches!(number(4), Some(2 | 3));
    let mut at = 12;
    is_known
        && offsets != Some(b"EOIE")
        && (0..number(8).unwrap_or(u32::MAX)).all(|_| {
            // Two bytes of flags; their lower twelve bits are the length of the name.
            let Some(flags) = number(at + 38 + DIGEST) else { return false };
            let start = at + 42 + DIGEST + if flags & EXTENDED == 0 { 0 } else { 2 };
            let rest = bytes.get(start..).unwrap_or_default();
            let length = rest.iter().position(|byte| *byte == 0).unwrap_or_default();
            at += (start + length + 1 - at).next_multiple_of(8);
            u32::try_from(length.min(0xFFF)) == Ok(flags & 0xFFF) && !leads_elsewhere(&rest[..length])
        })
}

/// True for a name in an index that leads out of the work tree or into git's own directory.
fn leads_elsewhere(name: &[u8]) -> bool {
    name.split(|byte| *byte == b'/').any(|part| {
        // Some file systems do not see what is at the end.
        let seen = part.iter().rposition(|byte| !b". ".contains(byte)).map_or(0, |last| last + 1);
        let part = part[..seen].to_ascii_lowercase();
        part.is_empty() || part == b".git" || part == b"git~1"
    })
}

/// True for a configuration whose lines are all as git itself writes them.
fn is_plain(config: &str) -> bool {
    let is_text = |text: &str| !text.contains(|c: char| c.is_control() || "#;\"\\".contains(c));
    config.split('\n').all(|line| {
        if let Some(section) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            let (section, name) = section.split_once(" \"").unwrap_or((section, "\""));
            return is_in(SECTIONS, section) && name.strip_suffix('"').is_some_and(is_text);
        }
        let setting = line.strip_prefix('\t').and_then(|line| line.split_once(" = "));
        line.is_empty()
            || setting.is_some_and(|(key, value)| is_in(KEYS, &key.to_ascii_lowercase()) && is_text(value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn git(directory: &Path, arguments: &[&str]) {
        let mut git = std::process::Command::new("git");
        git.args(["-c", "user.name=me", "-c", "user.email=me@example.org"]).args(arguments);
        let done = git.current_dir(directory).env("GIT_CONFIG_GLOBAL", "/dev/null").output().unwrap();
        assert!(done.status.success(), "{arguments:?}: {done:?}");
    }

    /// git itself writes the indexes.
    #[test]
    fn only_indexes_of_the_work_tree_are_plain() {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path().to_owned();
        git(&top, &["init", "-q"]);
        let long = "long/".repeat(900) + "name";
        for name in ["a", "directory/with a name", "directory/with another"] {
            fs::create_dir_all(top.join(name).parent().unwrap()).unwrap();
            fs::write(top.join(name), name).unwrap();
        }
        git(&top, &["add", "-A"]);
        let info = format!("100644,{},{long}", "1".repeat(2 * DIGEST));
        git(&top, &["update-index", "--add", "--cacheinfo", &info]);
        git(&top, &["update-index", "--skip-worktree", "a"]);
        let index = top.join(".git/index");
        let bytes = fs::read(&index).unwrap();
        assert!(is_plain_index(&bytes) && is_harmless(&top.join(".git"), &BTreeMap::new()));
        let at = |name: &[u8]| bytes.windows(name.len()).position(|found| found == name).unwrap();
        for (old, new) in [("directory/with a", "../rectory/with a"), ("directory", ".git/ctory")] {
            let (mut forged, place) = (bytes.clone(), at(old.as_bytes()));
            forged[place..place + old.len()].copy_from_slice(&new.as_bytes()[..old.len()]);
            assert!(!is_plain_index(&forged), "{new}");
        }
        // git takes the length from the flags.
        let mut forged = bytes.clone();
        forged[at(b"directory/with a") - 1] -= 1;
        assert!(!is_plain_index(&forged));
        git(&top, &["-c", "index.threads=4", "update-index", "--no-skip-worktree", "a"]);
        assert!(!is_plain_index(&fs::read(&index).unwrap()));
        git(&top, &["update-index", "--index-version=4"]);
        assert!(!is_plain_index(&fs::read(&index).unwrap()));
        for bytes in
            [&b""[..], b"DIRC", &[b'x'; 200], &[&b"DIRC\0\0\0\x02\xff\xff\xff\xff"[..], &[0; 90]].concat()]
        {
            assert!(!is_plain_index(bytes));
        }
    }

    /// An index whose names are harmless with the longer digests, and others with git's.
    #[test]
    fn no_configuration_changes_how_an_index_is_read() {
        assert!(is_plain("[remote \"sha256\"]\n\turl = https://x.org/sha256\n"));
        assert!(!is_plain("[extensions]\n\tobjectformat = sha256\n"));
    }

    #[test]
    fn names_that_lead_elsewhere_are_found() {
        for name in ["a", "a/b", ".gitignore", "a/.github/x", "..a", "a b"] {
            assert!(!leads_elsewhere(name.as_bytes()), "{name}");
        }
        for name in
            ["", "/a", "../a", "a/../b", "a//b", "./a", ".git/x", "a/.GIT", "git~1/x", ".git. /x", "a/"]
        {
            assert!(leads_elsewhere(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn only_lines_as_git_writes_them_are_plain() {
        for line in [
            "[core]",
            "[remote \"o/x\"]",
            "\tbare = false",
            "\turl = https://x.org/a.git",
            "\tlogAllRefUpdates = true",
        ] {
            assert!(is_plain(&format!("[core]\n{line}\n")), "{line}");
        }
        for line in [
            "[core] fsmonitor = x",
            "[include]",
            "[core \"a\"b\"]",
            "[a",
            "\tfsmonitor = x",
            "\tbare",
            "\tname = a \\",
            "\tworktree = x",
            "\tname = a # b",
            "\tname = \"a",
            "\tname = a\r",
            "bare = x",
            "\tpager.log = x",
            "\tpartialClone = origin",
            "\tpromisor = true",
        ] {
            assert!(!is_plain(&format!("[core]\n{line}\n")), "{line}");
        }
    }
}
