//! The repositories that a command may leave behind: those by which git starts no program. Called by
//! `protected`.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::handles::read_small;
use super::obeyed::is_symlink;

/// Sections and keys of a repository's configuration by which git starts no program.
const HARMLESS: &str = "\
    core.repositoryformatversion core.filemode core.bare core.logallrefupdates core.ignorecase core.precomposeunicode \
    core.symlinks core.autocrlf core.worktree core.sparsecheckout core.sparsecheckoutcone extensions.objectformat \
    extensions.refstorage remote.url remote.fetch remote.pushurl remote.tagopt \
    branch.remote branch.merge branch.rebase submodule.url submodule.active user.name user.email \
    init.defaultbranch pull.rebase commit.gpgsign advice.detachedhead";

/// A repository with more than that below `modules` is not looked through.
const MOST_SUBMODULES: usize = 10_000;

/// True for a `.git` by which git starts no program. A file leads to a submodule's place in a repository
/// above it.
pub(super) fn is_harmless(git: &Path) -> bool {
    match git.symlink_metadata() {
        Err(error) => error.kind() == io::ErrorKind::NotFound,
        Ok(data) if data.is_file() => {
            let own = line(git).and_then(|line| {
                git.parent()?.join(line.strip_prefix("gitdir:")?.trim()).canonicalize().ok()
            });
            let is_part = |own: &PathBuf| {
                git.ancestors().skip(2).any(|above| own.starts_with(above.join(".git/modules")))
            };
            data.nlink() == 1 && own.filter(is_part).is_some_and(|own| starts_nothing(&own))
        }
        Ok(data) => data.is_dir() && starts_nothing(git),
    }
}

/// True for a directory of git's with hooks that are samples, and a configuration without a key that could
/// name a program. Without a `HEAD`, a directory may yet become any repository. No file has a second name, by
/// which a later command could change it.
pub(super) fn starts_nothing(git: &Path) -> bool {
    let is_missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let has_none = |name: &str| git.join(name).symlink_metadata().is_err_and(|error| is_missing(&error));
    let is_sample = |entry: io::Result<fs::DirEntry>| {
        entry.is_ok_and(|entry| entry.path().extension().is_some_and(|extension| extension == "sample"))
    };
    let (hooks, config) = (git.join("hooks"), git.join("config"));
    let has_samples = || !is_symlink(&hooks) && fs::read_dir(&hooks).is_ok_and(|mut all| all.all(is_sample));
    let has_one_name = || config.symlink_metadata().is_ok_and(|data| data.is_file() && data.nlink() == 1);
    let is_plain = || has_one_name() && read_small(&config).is_some_and(|text| names_nothing(&text));
    git.join("HEAD").is_file()
        && has_none("commondir")
        && has_none("config.worktree")
        && (has_none("hooks") || has_samples())
        && (has_none("config") || is_plain())
        && (has_none("modules") || submodules_start_nothing(git.join("modules")))
}

/// Returns true if this holds of all submodules, of which git may check out each one later.
fn submodules_start_nothing(modules: PathBuf) -> bool {
    let (mut waiting, mut left) = (vec![modules], MOST_SUBMODULES);
    while let Some(directory) = waiting.pop() {
        let has = |name: &str| directory.join(name).symlink_metadata().is_ok();
        if has("HEAD") || has("config") {
            if !starts_nothing(&directory) {
                return false;
            }
            continue;
        }
        let Ok(entries) = fs::read_dir(&directory) else { return false };
        for entry in entries {
            let kind = entry.and_then(|entry| Ok((entry.file_type()?, entry.path())));
            left -= 1;
            match kind {
                Ok((kind, path)) if kind.is_dir() && left > 0 => waiting.push(path),
                Ok((kind, _)) if kind.is_file() && left > 0 => {}
                _ => return false,
            }
        }
    }
    true
}

/// True for a configuration of harmless keys, written as git itself writes it.
fn names_nothing(text: &str) -> bool {
    let is_word = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let mut section = String::new();
    text.lines().map(str::trim).all(|line| {
        if line.ends_with('\\') {
            return false;
        }
        if let Some(head) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            let (name, part) = head.split_once(' ').unwrap_or((head, "\"\""));
            section = name.to_ascii_lowercase();
            let part = part.strip_prefix('"').and_then(|part| part.strip_suffix('"'));
            return is_word(name) && part.is_some_and(|part| !part.contains(['"', '\\', ']']));
        }
        let key = line.split('=').next().unwrap_or_default().trim().to_ascii_lowercase();
        let is_known = || HARMLESS.split_ascii_whitespace().any(|known| known == format!("{section}.{key}"));
        line.is_empty() || line.starts_with(['#', ';']) || (is_word(&key) && is_known())
    })
}

/// Returns the first line of a small file of git's.
pub(super) fn line(file: &Path) -> Option<String> {
    let text = read_small(file)?;
    text.lines().next().map(|line| line.trim().to_owned())
}
