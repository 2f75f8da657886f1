//! git's changes to a repository that commands only read: `add`, `commit`, `switch` and their like, as git
//! itself and without a shell.
//!
//! In git's directory they write objects, references with their logs, and the files of a fixed list;
//! everything else that is there is read-only, and what is new besides is renamed. Hooks do not run. Filters
//! and helpers that git's configuration names do: the person's own git starts these as well.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use cap_std::fs::Dir;

use super::handles::{Entry, RENAMED, open_directory, set_aside};
use super::harmless::{is_in, is_written};
use super::protected::Repository;
use super::spec::Spec;

/// Commands that write into a repository and ask nobody. `push` is not among them: it starts what the other
/// repository says.
const WRITING: &str =
    "add branch checkout cherry-pick commit fetch merge mv pull reset restore revert rm stash switch tag";
/// Of `rebase`, which runs what its list says, the words that end one which `pull` began.
const REBASE: &str = "--abort --continue --quit --skip";
/// Before the command: no program but git's own, and no work in the background.
/// A split index has another half, which is not among the files below.
/// A new branch follows none, because the configuration is not written.
const SETTINGS: &str = "\
    core.hooksPath=/dev/null core.fsmonitor=false gc.auto=0 maintenance.auto=false core.splitIndex=false \
    branch.autoSetupMerge=false";
/// Options that name a program, or a file that git writes.
const PROGRAMS: &str = "--upload-pack --receive-pack --exec --extcmd --output --output-directory --strategy";
/// References that commands may name as a target. By those of `refs/replace` git reads other objects.
const REFERENCES: [&str; 3] = ["refs/heads/", "refs/remotes/", "refs/tags/"];
/// More names that git's commands write: the steps that `--continue` goes on with, and the stores of git-lfs
/// and rerere.
const CONTINUED: &str = "MERGE_RR lfs rebase-apply rebase-merge rr-cache sequencer";

/// Returns true for the words of a git command that writes into its repository, and names no program and no
/// unusual reference.
pub(crate) fn writes_repository(words: &[String]) -> bool {
    let [git, verb, rest @ ..] = words else { return false };
    let only_looks = verb == "stash" && matches!(rest.first().map(String::as_str), Some("list" | "show"));
    // `pull` hands its strategy on to `rebase`, which starts any program.
    let names_strategy =
        |word: &String| word.starts_with('-') && !word.starts_with("--") && word.contains('s');
    git == "git"
        && (is_in(WRITING, verb) || (verb == "rebase" && matches!(rest, [word] if is_in(REBASE, word))))
        && !only_looks
        && !(verb == "pull" && rest.iter().any(names_strategy))
        && !rest.iter().any(|word| names_program(word) || replaces(word))
}

/// Returns true for an option that names a program or a file. git knows it by its beginning, too.
fn names_program(word: &str) -> bool {
    let option = word.split('=').next().unwrap_or_default();
    option.len() > 2 && PROGRAMS.split(' ').any(|known| known.starts_with(option))
}

/// Returns true for a target that may be one of the references that replace objects.
fn replaces(word: &str) -> bool {
    let target = word.rsplit_once(':').map_or("", |(_, target)| target);
    target.starts_with("refs/") && !REFERENCES.iter().any(|known| target.starts_with(known))
}

/// Returns the words with which git itself is started.
pub(crate) fn own_words(git: &Path, words: &[String]) -> Vec<String> {
    let settings = SETTINGS.split(' ').flat_map(|setting| ["-c", setting]).map(str::to_owned);
    let program = git.to_string_lossy().into_owned();
    // What was renamed is ignored by its old name alone.
    let adds = |word: &String| !word.starts_with('-') || is_in("-A --all -u --update", word);
    let is_add = words.get(1).is_some_and(|verb| verb == "add") && words.iter().skip(2).any(adds);
    let without = is_add.then(|| format!(":(exclude,top)*{RENAMED}*"));
    std::iter::once(program).chain(settings).chain(words.iter().skip(1).cloned()).chain(without).collect()
}

/// Returns the entries of a directory of git's that commands of git's never write.
fn others_in(git: &Dir) -> io::Result<BTreeMap<OsString, Entry>> {
    let names = git.entries()?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()?;
    let is_continued = |name: &OsStr| name.to_str().is_some_and(|name| is_in(CONTINUED, name));
    let found = names.into_iter().filter_map(|name| Some((name.clone(), Entry::find(git, &name)?)));
    // Where git writes, no link leads elsewhere.
    Ok(found.filter(|(name, entry)| entry.is_link() || !(is_written(name) || is_continued(name))).collect())
}

/// One of git's directories while git works, and the entries in it that git's commands only read.
#[derive(Debug)]
pub(super) struct GitDirectory {
    path: PathBuf,
    real: Dir,
    before: BTreeMap<OsString, Entry>,
}

impl GitDirectory {
    /// Looks at the directories of a repository.
    ///
    /// # Errors
    /// When they cannot be opened, through no link.
    pub(super) fn open_all(repository: Repository) -> io::Result<Vec<Self>> {
        let open = |path: PathBuf| {
            let real = open_directory(&path)?;
            Ok(Self { before: others_in(&real)?, path, real })
        };
        BTreeSet::from([repository.own, repository.common]).into_iter().map(open).collect()
    }

    /// Lets git write what it may.
    pub(super) fn add_to(&self, spec: &mut Spec) {
        spec.frozen.retain(|place| *place != self.path);
        spec.writable.push(self.path.clone());
        // A link cannot be made read-only.
        let others = self.before.iter().filter(|(_, entry)| !entry.is_link());
        spec.frozen.extend(others.map(|(name, _)| self.path.join(name)));
    }

    /// Renames what is new, and returns a note on that. What was there before was read-only, so only the
    /// person's git can have changed it meanwhile.
    ///
    /// # Errors
    /// When something cannot be renamed.
    pub(super) fn end(&self) -> io::Result<Option<String>> {
        let mut left = Vec::new();
        for (name, entry) in others_in(&self.real)? {
            let is_left = match self.before.get(&name) {
                None => true,
                // A link could be led elsewhere.
                Some(before) => *before != entry && (before.is_link() || entry.is_link()),
            };
            if is_left {
                let new = set_aside(&self.real, &name)?;
                left.push(format!("{}, which respool renamed to {new}", name.display()));
            }
        }
        Ok((!left.is_empty()).then(|| format!("git also left {}", left.join(", "))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_name_programs_are_no_work_of_gits() {
        let writes = |line: &str| writes_repository(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        for line in [
            "git add -A",
            "git fetch -u origin",
            "git commit -m x:y",
            "git pull -- origin",
            "git fetch . a:refs/heads/b",
            "git fetch ssh://x:22/refs/y",
            "git stash pop",
            "git commit -s",
            "git cherry-pick -s x",
            "git tag v1",
            "git rebase --continue",
        ] {
            assert!(writes(line), "{line}");
        }
        for line in [
            "git fetch --upload-pack=x .",
            "git pull --upl x .",
            "git push . x",
            "git fetch --exec=x",
            "git commit --outpu=.git/index",
            "git stash list",
            "git stash show -p",
            "git fetch . x:refs/replace/y",
            "git fetch . +refs/*:refs/*",
            "git fetch --refmap=refs/heads/x:refs/replace/y . x",
            "git cherry-pick --strategy=x/evil x",
            "git rebase main",
            "git rebase --continue --exec=x",
            "git revert --strat x/evil x",
            "git pull --rebase -s x/evil . x",
            "git pull -rsx/evil . x",
        ] {
            assert!(!writes(line), "{line}");
        }
    }
}
