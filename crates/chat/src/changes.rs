//! `/diff`: how the files of a directory differ from the last commit of git. The commands change nothing, and
//! of the programs that the repository's settings name they start only filters.

use std::fmt::Write as _;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use tokio::process::Command;

use tools::diff::unified_diff;
use tools::programs::{current_project, find_program, path_without};

/// The most new files that are shown.
const MOST_NEW: usize = 200;
/// The most bytes of a new file that are shown.
const MOST_BYTES: u64 = 256 << 10;

/// The filters that `git lfs install` sets.
const OF_LFS: [&str; 3] = ["git-lfs clean -- %f", "git-lfs filter-process", "git-lfs filter-process --skip"];

/// A changed file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileChange {
    /// Its path in the directory.
    pub(super) path: String,
    /// The change, as a unified diff or in words.
    pub(super) diff: String,
}

/// Why git shows no changes.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoChanges {
    #[error("git knows no repository here")]
    NoRepository,
    #[error("git cannot show the changes: {0}")]
    Failed(String),
}

/// A repository with the working directory in its work tree. It is found while no command is at work: a
/// command could make another one there, whose settings start programs.
#[derive(Clone, Debug)]
pub(super) struct Repository {
    git: PathBuf,
    top: PathBuf,
    /// Settings that turn filters off: their programs may be files of the project.
    without_filters: Vec<String>,
}

impl Repository {
    /// Finds the repository of a directory, if it is there and git can be started.
    pub(super) fn find(root: &Path) -> Option<Self> {
        let ask = |words: &[&str]| {
            let said = new_git(root, &project_of(root))?.as_std_mut().args(words).output().ok()?;
            String::from_utf8(said.stdout).ok()
        };
        let found = ask(&["rev-parse", "--is-inside-work-tree", "--absolute-git-dir", "--show-toplevel"])?;
        let mut lines = found.lines().skip_while(|line| *line != "true").skip(1);
        let (git, top) = (lines.next()?.into(), lines.next()?.into());
        let filters = ask(&["config", "--null", "--get-regexp", r"^filter\..*\.(clean|process)$"])?;
        let filters = filters.split('\0').filter_map(|filter| filter.split_once('\n'));
        // Without LFS's own, which is a program of the system, each of its files would differ.
        let others = filters.filter(|(_, program)| !OF_LFS.contains(program));
        let without_filters = others.flat_map(|(key, _)| {
            let required = key.rsplit_once('.').map(|(filter, _)| format!("{filter}.required=false"));
            ["-c".to_owned(), format!("{key}="), "-c".to_owned(), required.unwrap_or_default()]
        });
        Some(Self { git, top, without_filters: without_filters.collect() })
    }
}

/// Returns how the files of a directory differ from the last commit; new files come last.
///
/// # Errors
/// Why git cannot say so.
pub(super) async fn uncommitted_changes(
    root: &Path,
    repository: Option<&Repository>,
) -> Result<Vec<FileChange>, NoChanges> {
    let repository = repository.ok_or(NoChanges::NoRepository)?;
    let run_git = async |root: &Path, arguments: &[&str]| run_git(root, repository, arguments).await;
    let has_commit = run_git(root, &["rev-parse", "--quiet", "--verify", "HEAD"]).await?.status.success();
    // Without a commit everything is new: it differs from the empty tree.
    let base = if has_commit {
        "HEAD".to_owned()
    } else {
        text_of(&run_git(root, &["hash-object", "-t", "tree", "--stdin"]).await?)?.trim().to_owned()
    };
    let diff = ["diff", "--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=dirty"];
    let form = ["--relative", "--src-prefix=a/", "--dst-prefix=b/", &base, "--"];
    let tracked = text_of(&run_git(root, &[&diff[..], &form[..]].concat()).await?)?;
    let listed = run_git(root, &["ls-files", "--others", "--exclude-standard", "-z"]).await?;
    let mut changes = split_files(&tracked);
    changes.extend(new_files(root, &text_of(&listed)?));
    Ok(changes)
}

async fn run_git(root: &Path, repository: &Repository, arguments: &[&str]) -> Result<Output, NoChanges> {
    let mut command = new_git(root, &project_of(root)).ok_or(NoChanges::NoRepository)?;
    command.env("GIT_DIR", &repository.git).env("GIT_WORK_TREE", &repository.top);
    command.args(&repository.without_filters);
    command.args(arguments).output().await.map_err(|error| NoChanges::Failed(error.to_string()))
}

/// Returns the directories of the project, in which commands write.
fn project_of(root: &Path) -> Vec<PathBuf> {
    current_project().into_iter().chain([root.to_owned()]).collect()
}

/// Prepares git. Commands write in the project: no filter is found by name there.
fn new_git(root: &Path, project: &[PathBuf]) -> Option<Command> {
    let mut command = Command::new(find_program("git", &[])?);
    command.args(["-c", "core.fsmonitor=false", "-c", "core.quotePath=false"]);
    // A clone may hold a directory with git's files, whose settings would count.
    command.args(["-c", "safe.bareRepository=explicit"]);
    // Missing objects would be fetched, by programs of the repository's.
    command.env("GIT_NO_LAZY_FETCH", "1").env("PATH", path_without(project));
    command.current_dir(root).env("GIT_OPTIONAL_LOCKS", "0").stdin(Stdio::null()).kill_on_drop(true);
    Some(command)
}

fn text_of(output: &Output) -> Result<String, NoChanges> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    let why = text(&output.stderr);
    Err(NoChanges::Failed(why.lines().next().unwrap_or("it failed").to_owned()))
}

/// Splits the output of `git diff`. A line of a file never begins like the head of the next one: it has a
/// sign or a space before it.
fn split_files(diff: &str) -> Vec<FileChange> {
    let mut changes: Vec<FileChange> = Vec::new();
    let mut is_head = false;
    for line in diff.lines() {
        if let Some(names) = line.strip_prefix("diff --git ") {
            is_head = true;
            let path = names.rsplit_once(" b/").map_or(names, |(_, path)| path).to_owned();
            changes.push(FileChange { path, diff: String::new() });
            continue;
        }
        let Some(change) = changes.last_mut() else { continue };
        is_head &= !line.starts_with("@@ ");
        if is_head && let Some(path) = line.strip_prefix("+++ b/") {
            path.trim_end_matches('\t').clone_into(&mut change.path);
        }
        let is_known = ["--- ", "+++ ", "index ", "new file mode 100644"];
        if !is_head || !is_known.iter().any(|start| line.starts_with(start)) {
            let _ = writeln!(change.diff, "{line}");
        }
    }
    changes
}

/// Returns the files of this list, each as one that was added.
fn new_files(root: &Path, names: &str) -> Vec<FileChange> {
    let names: Vec<&str> = names.split('\0').filter(|name| !name.is_empty()).collect();
    let change = |name: &&str| FileChange {
        path: (*name).to_owned(),
        diff: match read_text(&root.join(name)) {
            Some(text) => unified_diff(name, "", &text),
            None => "a new file; it is large, or not text\n".to_owned(),
        },
    };
    let mut changes: Vec<FileChange> = names.iter().take(MOST_NEW).map(change).collect();
    if let Some(more @ 1..) = names.len().checked_sub(MOST_NEW) {
        changes.push(FileChange { path: format!("{more} more new files"), diff: String::new() });
    }
    changes
}

/// Reads a file of text; `None` for anything else and for larger files.
fn read_text(path: &Path) -> Option<String> {
    // A link is shown as git keeps it: as the path that it holds.
    if let Ok(target) = fs::read_link(path) {
        return Some(format!("{}\n", target.display()));
    }
    let kind = fs::metadata(path).ok()?;
    if !kind.is_file() || kind.len() > MOST_BYTES {
        return None;
    }
    let mut text = String::new();
    fs::File::open(path).ok()?.take(MOST_BYTES).read_to_string(&mut text).ok()?;
    (!text.contains('\0')).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn git(root: &Path, arguments: &[&str]) {
        let me = ["-c", "user.name=me", "-c", "user.email=me@example.org"];
        let mut command = new_git(root, &[]).unwrap();
        let done = command.args([&me[..], arguments].concat()).output().await.unwrap();
        assert!(done.status.success(), "{arguments:?}: {done:?}");
    }

    async fn changes_in(root: &Path) -> Result<Vec<FileChange>, NoChanges> {
        uncommitted_changes(root, Repository::find(root).as_ref()).await
    }

    /// Regression: `/diff` while a command was at work obeyed the repository that it had just made.
    #[tokio::test]
    async fn a_new_repository_starts_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let sub = folder.path().join("sub");
        fs::create_dir(&sub).unwrap();
        fs::write(sub.join("a"), "one\n").unwrap();
        assert!(Repository::find(&sub).is_none());
        git(folder.path(), &["init", "-q"]).await;
        git(folder.path(), &["add", "."]).await;
        let repository = Repository::find(&sub);
        git(&sub, &["init", "-q"]).await;
        git(&sub, &["config", "filter.x.clean", "touch ran; cat"]).await;
        fs::write(sub.join(".gitattributes"), "* filter=x\n").unwrap();
        git(&sub, &["add", "."]).await;
        fs::remove_file(sub.join("ran")).unwrap();
        fs::write(sub.join("a"), "two\n").unwrap();
        let shown = uncommitted_changes(&sub, repository.as_ref()).await.unwrap();
        assert!(shown.iter().any(|change| change.path == "a"), "{shown:?}");
        assert!(!sub.join("ran").exists() && !folder.path().join("ran").exists());
        // Nor is a filter of a known one started, which may be a script in the work tree.
        assert!(!changes_in(&sub).await.unwrap().is_empty() && !sub.join("ran").exists());
    }

    /// A clone held a directory with git's files, whose filter ran.
    #[tokio::test]
    async fn no_embedded_repository_is_used() {
        let folder = tempfile::tempdir().unwrap();
        let docs = folder.path().join("docs");
        fs::create_dir(&docs).unwrap();
        git(&docs, &["init", "-q"]).await;
        git(&docs, &["config", "filter.x.clean", "git-lfs clean -- %f;touch ran"]).await;
        let filters = Repository::find(&docs).unwrap().without_filters;
        assert!(filters.contains(&"filter.x.clean=".to_owned()), "{filters:?}");
        git(&docs, &["config", "core.worktree", "."]).await;
        for entry in fs::read_dir(docs.join(".git")).unwrap().flatten() {
            fs::rename(entry.path(), docs.join(entry.file_name())).unwrap();
        }
        fs::remove_dir(docs.join(".git")).unwrap();
        assert!(Repository::find(&docs).is_none());
    }

    /// A command wrote `.venv/bin/git-lfs`, which `/diff` started outside the sandbox.
    #[test]
    fn no_filter_comes_from_the_project() {
        let path = std::env::var_os("PATH").unwrap();
        let project = std::env::split_paths(&path).next().unwrap();
        let git = new_git(Path::new("/"), std::slice::from_ref(&project)).unwrap();
        let (_, value) = git.as_std().get_envs().find(|(name, _)| *name == "PATH").unwrap();
        assert!(std::env::split_paths(value.unwrap()).all(|directory| directory != project), "{value:?}");
    }

    #[tokio::test]
    async fn changes_are_those_since_the_last_commit() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let write = |name: &str, text: &str| fs::write(root.join(name), text).unwrap();
        assert!(matches!(changes_in(root).await, Err(NoChanges::NoRepository)));
        git(root, &["init", "-q"]).await;
        write("a b.txt", "one\ntwo\n");
        git(root, &["add", "."]).await;
        let shown = changes_in(root).await.unwrap();
        assert_eq!((shown.len(), shown[0].path.as_str()), (1, "a b.txt"), "before the first commit");
        git(root, &["commit", "-qm", "first"]).await;
        assert_eq!(changes_in(root).await.unwrap(), []);
        // The programs of the repository's settings are not started.
        git(root, &["config", "diff.external", "false"]).await;
        write("a b.txt", "one\ndiff --git a/x b/x\n");
        write("neü.txt", "new\n");
        write("data", "\0");
        let shown = changes_in(root).await.unwrap();
        let paths: Vec<&str> = shown.iter().map(|change| change.path.as_str()).collect();
        assert_eq!(paths, ["a b.txt", "data", "neü.txt"]);
        assert_eq!(shown[0].diff, "@@ -1,2 +1,2 @@\n one\n-two\n+diff --git a/x b/x\n");
        assert_eq!(shown[1].diff, "a new file; it is large, or not text\n");
        assert!(shown[2].diff.ends_with("@@ -0,0 +1 @@\n+new\n"), "{shown:?}");
        fs::remove_file(root.join("a b.txt")).unwrap();
        let shown = changes_in(root).await.unwrap();
        assert_eq!(shown[0].diff, "deleted file mode 100644\n@@ -1,2 +0,0 @@\n-one\n-two\n");
    }
}
