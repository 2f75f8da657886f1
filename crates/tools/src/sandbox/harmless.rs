//! The one form of a repository that a command may leave behind: the one in which `git init`, `git clone` and
//! their like make it. Called by `watched`.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::handles::read_small;

/// The names at the first level of git's directory.
const NAMES: &str = "\
    HEAD ORIG_HEAD FETCH_HEAD COMMIT_EDITMSG MERGE_MSG branches config description hooks index index.lock info \
    logs objects packed-refs refs shallow";
/// Sections of its configuration, also with a name in quotes, and the keys in them. By none git starts a
/// program.
const SECTIONS: &str = "core user init extensions remote branch";
const KEYS: &str = "\
    repositoryformatversion filemode bare logallrefupdates ignorecase precomposeunicode symlinks name email \
    defaultbranch objectformat refstorage url fetch remote merge rebase";

/// True for a `.git` that is a directory in this form, with none of the `links` in it. No second name of its
/// configuration is there, by which a later command could change it.
pub(super) fn is_harmless(git: &Path, links: &BTreeSet<PathBuf>) -> bool {
    let is_known = |entry: std::io::Result<fs::DirEntry>| {
        entry.is_ok_and(|entry| NAMES.split_ascii_whitespace().any(|name| entry.file_name() == name))
    };
    let is_sample = |entry: std::io::Result<fs::DirEntry>| {
        entry.is_ok_and(|entry| entry.path().extension().is_some_and(|extension| extension == "sample"))
    };
    let has_none = |name: &str| git.join(name).symlink_metadata().is_err();
    let holds = |name: &str, is_right: &dyn Fn(std::io::Result<fs::DirEntry>) -> bool| {
        fs::read_dir(git.join(name)).is_ok_and(|mut entries| entries.all(is_right))
    };
    let config = git.join("config");
    let has_one_name = || config.metadata().is_ok_and(|data| data.is_file() && data.nlink() == 1);
    git.symlink_metadata().is_ok_and(|data| data.is_dir())
        && !links.range(git.to_owned()..).next().is_some_and(|link| link.starts_with(git))
        && holds("", &is_known)
        && (has_none("hooks") || holds("hooks", &is_sample))
        && has_none("objects/info/alternates")
        && git.join("HEAD").is_file()
        && (has_none("config") || has_one_name() && read_small(&config).is_some_and(|text| is_plain(&text)))
}

/// True for a configuration whose lines are all as git itself writes them.
fn is_plain(config: &str) -> bool {
    let is_in = |names: &str, name: &str| names.split_ascii_whitespace().any(|known| known == name);
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
        ] {
            assert!(!is_plain(&format!("[core]\n{line}\n")), "{line}");
        }
    }
}
