//! The repositories that a command may leave behind: those by which git starts no program. Called by
//! `watched` and `protected`.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::super::programs::resolve_symlinks;
use super::budget::Budget;
use super::handles::{read_small, target_of};

/// Sections and keys of a repository's configuration by which git starts no program.
const HARMLESS: &str = "\
    core.repositoryformatversion core.filemode core.bare core.logallrefupdates core.ignorecase core.precomposeunicode \
    core.symlinks core.autocrlf core.sparsecheckout core.sparsecheckoutcone extensions.objectformat \
    extensions.refstorage remote.url remote.fetch remote.pushurl remote.tagopt remote.mirror \
    branch.remote branch.merge branch.rebase submodule.url submodule.active user.name user.email \
    init.defaultbranch pull.rebase commit.gpgsign advice.detachedhead";

/// True if git starts no program in the repository of such an entry: a `.git`, or a `HEAD` without a work
/// tree. A file leads to a submodule's place in a repository above it.
pub(super) fn is_harmless(entry: &Path, budget: &mut Budget) -> bool {
    if entry.ends_with("HEAD") {
        return entry.parent().is_some_and(|git| starts_nothing(git, None, budget));
    }
    match entry.symlink_metadata() {
        _ if !entry.ends_with(".git") => false,
        Ok(data) if data.is_file() => {
            let own = target_of(entry).and_then(|own| own.canonicalize().ok());
            let is_part = |own: &Path, above: &Path| own.starts_with(above.join(".git/modules"));
            let above =
                own.as_ref().and_then(|own| entry.ancestors().skip(2).find(|above| is_part(own, above)));
            data.nlink() == 1 && own.is_some_and(|own| above.is_some() && starts_nothing(&own, above, budget))
        }
        Ok(data) => data.is_dir() && starts_nothing(entry, None, budget),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// True for a directory of git's with hooks that are samples, and a configuration without a key that could
/// name a program. Without a `HEAD`, a directory may yet become any repository. No file has a second name, by
/// which a later command could change it. A submodule's work tree is in that of the repository `above`.
fn starts_nothing(git: &Path, above: Option<&Path>, budget: &mut Budget) -> bool {
    let is_missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let has_none = |name: &str| git.join(name).symlink_metadata().is_err_and(|error| is_missing(&error));
    let is_sample = |entry: io::Result<fs::DirEntry>| {
        entry.is_ok_and(|entry| entry.path().extension().is_some_and(|extension| extension == "sample"))
    };
    let (hooks, config) = (git.join("hooks"), git.join("config"));
    let has_samples = || !hooks.is_symlink() && fs::read_dir(&hooks).is_ok_and(|mut all| all.all(is_sample));
    let has_one_name = || config.symlink_metadata().is_ok_and(|data| data.is_file() && data.nlink() == 1);
    let is_in_place = |tree: &str| {
        let real = resolve_symlinks(&git.join(tree)).map(|found| found.real);
        above.is_some_and(|above| real.is_some_and(|real| real.starts_with(above)))
    };
    let is_plain =
        || has_one_name() && read_small(&config).is_some_and(|text| names_nothing(&text, is_in_place));
    git.join("HEAD").is_file()
        && has_none("commondir")
        && has_none("config.worktree")
        && (has_none("hooks") || has_samples())
        && (has_none("config") || is_plain())
        && (has_none("modules") || submodules_start_nothing(git, above.or(git.parent()), budget))
}

/// Returns true if this holds of all submodules, of which git may check out each one later.
fn submodules_start_nothing(git: &Path, above: Option<&Path>, budget: &mut Budget) -> bool {
    let mut waiting = vec![git.join("modules")];
    while let Some(directory) = waiting.pop() {
        let has = |name: &str| directory.join(name).symlink_metadata().is_ok();
        if has("HEAD") || has("config") {
            if !starts_nothing(&directory, above, budget) {
                return false;
            }
            continue;
        }
        let Ok(entries) = fs::read_dir(&directory) else { return false };
        for entry in entries {
            match entry.and_then(|entry| Ok((entry.file_type()?, entry.path()))) {
                Ok((kind, path)) if budget.take(1) && kind.is_dir() => waiting.push(path),
                Ok((kind, _)) if !budget.is_spent() && kind.is_file() => {}
                _ => return false,
            }
        }
    }
    true
}

/// True for a configuration of harmless keys, written as git itself writes it.
fn names_nothing(text: &str, is_in_place: impl Fn(&str) -> bool) -> bool {
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
        let (key, value) = line.split_once('=').unwrap_or((line, ""));
        let (key, value) = (key.trim().to_ascii_lowercase(), value.trim());
        let is_known = || match (section.as_str(), key.as_str()) {
            ("core", "worktree") => !value.contains(['"', '\\']) && is_in_place(value),
            (section, key) => {
                HARMLESS.split_ascii_whitespace().any(|known| known == format!("{section}.{key}"))
            }
        };
        line.is_empty() || line.starts_with(['#', ';']) || (is_word(&key) && is_known())
    })
}
