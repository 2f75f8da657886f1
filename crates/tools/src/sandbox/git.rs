//! git's changes to a repository that commands only read: `add`, `commit`, `switch` and their like, as git
//! itself and without a shell.
//!
//! Such a command writes git's directory, and executes no program but git's own ones: no hook, filter, helper
//! or merge driver. Meanwhile no other command is at work in the workspace: it could put a link where git
//! writes.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Reach;
use super::handles::RENAMED;
use super::harmless::is_in;

/// Commands that write into a repository and leave the work tree as it is.
const OF_INDEX: &str = "add branch commit fetch tag";
/// Others that write into a repository and ask nobody. `push` is not among them: it starts what the other
/// repository says.
const OF_WORK_TREE: &str = "checkout cherry-pick merge mv pull reset restore revert rm stash switch";
/// Of `rebase`, which runs what its list says, the words that end one which `pull` began.
const REBASE: &str = "--abort --continue --quit --skip";
/// Before the command: no hooks, and no work in the background. A new branch follows none, because the
/// configuration is not written.
const SETTINGS: &str = "\
    core.hooksPath=/dev/null core.fsmonitor=false gc.auto=0 maintenance.auto=false branch.autoSetupMerge=false \
    submodule.recurse=false fetch.recurseSubmodules=false rebase.autoStash=false merge.autoStash=false";
/// Options that name a file which git writes, or a program of any name, or by which it writes the
/// configuration.
const NAMING: &str = "--output --output-directory --strategy --set-upstream --filter --recurse-submodules --pathspec-from-file --autostash --to-ref";
/// References that commands may name as a target. By those of `refs/replace` git reads other objects.
const REFERENCES: [&str; 3] = ["refs/heads/", "refs/remotes/", "refs/tags/"];
/// The words of a command that lists the programs of filters.
pub(crate) const FILTERS: [&str; 4] =
    ["config", "--name-only", "--get-regexp", r"^filter\..*\.(clean|smudge|process)$"];
/// Those of one that says where hooks are.
pub(crate) const HOOKS: [&str; 3] = ["rev-parse", "--git-path", "hooks"];
/// The verbs that may make a commit.
const OF_COMMIT: &str = "cherry-pick commit merge pull rebase revert";
/// The hooks that forbid or change a commit. `--no-verify` leaves out all but the first two.
const COMMIT_HOOKS: [&str; 5] =
    ["reference-transaction", "prepare-commit-msg", "pre-commit", "pre-merge-commit", "commit-msg"];
/// Options of a commit behind which no word is their value.
const FLAGS: &str = "-q --quiet -s --signoff --amend --no-edit --no-verify --allow-empty";
/// Options behind which a message is.
const MESSAGE: &str = "-m -qm --message";

/// The only kinds of URLs: by others, git starts a program of any name or with any words.
pub(super) const PROTOCOLS: (&str, &str) = ("GIT_ALLOW_PROTOCOL", "file:git:http:https:ssh");
/// A variable of git's own commands, whose value is `true`.
pub(super) const YES: &str = "RESPOOL_YES";

/// The git of this machine, and what it executes.
#[derive(Clone, Debug)]
pub(super) struct Git {
    pub(super) program: PathBuf,
    /// The directory of its other programs.
    pub(super) others: PathBuf,
    /// That directory, itself, and what loads it.
    pub(super) executed: Vec<PathBuf>,
}

impl Git {
    /// Asks a git where its programs are; `None` where it cannot be asked.
    pub(super) fn find(program: PathBuf) -> Option<Self> {
        let asked = Command::new(&program).arg("--exec-path").env_clear().current_dir("/").output().ok()?;
        let others = PathBuf::from(String::from_utf8(asked.stdout).ok()?.trim_end()).canonicalize().ok()?;
        let loader = loader_of(&program).and_then(|loader| loader.canonicalize().ok());
        let executed = [program.clone(), others.clone()].into_iter().chain(loader).collect();
        Some(Self { program, others, executed })
    }
}

/// True for a variable by which a program loads code or tables from elsewhere.
pub(super) fn is_of_loader(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    name.starts_with("LD_") || ["GCONV_PATH", "GIT_EXEC_PATH", "LOCPATH"].contains(&&*name)
}

/// Returns the program that loads this one: the first text in it that names one.
fn loader_of(program: &Path) -> Option<PathBuf> {
    let bytes = fs::read(program).ok()?;
    let mut texts = bytes.split(|byte| *byte == 0).filter_map(|text| std::str::from_utf8(text).ok());
    texts.find(|text| text.starts_with('/') && text.contains("/ld-")).map(PathBuf::from)
}

/// Returns what a git command reaches that writes into its repository, and names no program, file or unusual
/// reference; `None` for any other one.
pub(super) fn reach_of(words: &[String]) -> Option<Reach> {
    let [git, verb, rest @ ..] = words else { return None };
    let (letters, options): (&[char], _) = match verb.as_str() {
        // It removes such files, and stops half way at one that is read-only.
        "stash" => (&['u', 'a'], "--include-untracked --all"),
        // It writes the configuration after its work, and stops half way.
        "branch" => (
            &['d', 'D', 'm', 'M', 'c', 'C', 't', 'u'],
            "--delete --move --copy --edit-description --unset-upstream --set-upstream-to --track",
        ),
        "checkout" | "switch" => (&['t'], "--track"),
        // It hands its strategy on to `rebase`, which starts any program.
        "pull" => (&['s'], ""),
        _ => (&[], ""),
    };
    let is_refused = |word: &String| {
        let is_short = word.starts_with('-') && !word.starts_with("--");
        begins_one_of(word, NAMING)
            || begins_one_of(word, options)
            || replaces(word)
            || (is_short && word.contains(letters))
    };
    let is_end = verb == "rebase" && matches!(rest, [word] if is_in(REBASE, word));
    let reach = match verb {
        verb if is_in(OF_INDEX, verb) => Reach::Index,
        verb if is_end || is_in(OF_WORK_TREE, verb) => Reach::Repository,
        _ => return None,
    };
    (git == "git" && !rest.iter().any(is_refused)).then_some(reach)
}

/// Returns true for one of these options: git knows each by its beginning, too.
fn begins_one_of(word: &str, options: &str) -> bool {
    let option = word.split('=').next().unwrap_or_default();
    option.len() > 2 && options.split_ascii_whitespace().any(|known| known.starts_with(option))
}

/// Returns true for a target that may be one of the references that replace objects.
fn replaces(word: &str) -> bool {
    let target = word.rsplit_once(':').map_or("", |(_, target)| target);
    target.starts_with("refs/") && !REFERENCES.iter().any(|known| target.starts_with(known))
}

/// Returns the words with which git itself is started.
pub(super) fn own_words(git: &Path, words: &[String]) -> Vec<String> {
    let settings = SETTINGS.split(' ').flat_map(|setting| ["-c", setting]).map(str::to_owned);
    let program = git.to_string_lossy().into_owned();
    // What was renamed is ignored by its old name alone.
    let is_short = |word: &String| !word.starts_with("--") && word.contains(['A', 'u']);
    let adds = |word: &String| {
        let is_long = begins_one_of(word, "--all --update --no-ignore-removal");
        !word.starts_with('-') || is_long || is_short(word)
    };
    let is_add = words.get(1).is_some_and(|verb| verb == "add") && words.iter().skip(2).any(adds);
    let without = is_add.then(|| format!(":(exclude,top)*{RENAMED}*"));
    std::iter::once(program).chain(settings).chain(words.iter().skip(1).cloned()).chain(without).collect()
}

/// Returns the words of a command that asks the git of another one.
pub(crate) fn question(words: &[String], asked: &[&str]) -> Vec<String> {
    words.iter().take(1).cloned().chain(asked.iter().map(|word| (*word).to_owned())).collect()
}

/// Returns the hooks that may forbid or change what these words do, with which git itself is started. Some of
/// them git would not run: the verb does not say what it will do.
pub(crate) fn hooks_for(words: &[String]) -> &'static [&'static str] {
    let own: Vec<&str> = words[place_of_verb(words)..].iter().map(String::as_str).collect();
    let verb = own.first().copied().unwrap_or_default();
    // A word behind an unknown option may be its value, such as a message.
    let is_option = |pair: &&[&str]| {
        !pair[0].starts_with('-') || is_in(FLAGS, pair[0]) || is_in("-a -n --no-ff", pair[0])
    };
    let options = own.windows(2).take_while(|pair| pair[1] != "--").filter(is_option).map(|pair| pair[1]);
    let options: Vec<&str> = options.filter(|word| word.starts_with('-')).collect();
    let is_left_out =
        options.iter().any(|word| *word == "--no-verify" || (*word == "-n" && verb == "commit"))
            && !own.iter().any(|word| word.starts_with("--veri"));
    let last_of_ff = own.iter().rfind(|word| word.contains("-f"));
    let makes_none = options
        .iter()
        .any(|word| is_in("--abort --quit", word) || (*word == "--ff-only" && last_of_ff == Some(word)));
    match verb {
        _ if makes_none || !is_in(OF_COMMIT, verb) => &[],
        _ if is_left_out => &COMMIT_HOOKS[..2],
        _ => &COMMIT_HOOKS,
    }
}

/// Returns the words of a command that fails where one of the listed filters would have to run. Without that,
/// git would take a file as it is. A commit of what is in the index runs none: it only compares files.
pub(crate) fn words_without_filters(words: &[String], listed: &str) -> Vec<String> {
    const NONE: &[&str] = &["clean=", "process=", "required=false"];
    let values = if takes_index(words) { NONE } else { &["required=true"] };
    let names = listed.lines().filter_map(|key| key.strip_prefix("filter.")?.rsplit_once('.'));
    let settings = names.flat_map(|(name, _)| match name {
        // `-c` takes this for the end of the key, and older versions of git know no other option.
        name if name.contains('=') => vec![format!("--config-env=filter.{name}.required={YES}")],
        name => values.iter().flat_map(|value| ["-c".to_owned(), format!("filter.{name}.{value}")]).collect(),
    });
    words.iter().take(1).cloned().chain(settings).chain(words.iter().skip(1).cloned()).collect()
}

/// Returns true for a commit that takes nothing from the work tree.
fn takes_index(words: &[String]) -> bool {
    let mut rest = words[place_of_verb(words)..].iter().map(String::as_str);
    let is_commit = rest.next() == Some("commit");
    let mut reads_message = false;
    let are_known = rest.all(|word| {
        let is_message = reads_message;
        reads_message = !is_message && is_in(MESSAGE, word);
        is_message || reads_message || is_in(FLAGS, word)
    });
    is_commit && are_known
}

/// Returns the words of a command that lists those of some files which these words would change, where that
/// can be said beforehand: git would do the rest of its work all the same.
pub(super) fn words_before<'a>(
    words: &[String],
    files: impl Iterator<Item = &'a PathBuf>,
) -> Option<Vec<String>> {
    let (before, rest) = words.split_at(place_of_verb(words));
    let has = |options: &str| rest.iter().any(|word| is_in(options, word));
    let operands = rest.windows(2).filter(|pair| !pair[1].starts_with('-') && !is_in(MESSAGE, &pair[0]));
    let operands: Vec<&str> = operands.map(|pair| pair[1].as_str()).collect();
    let compared = match (rest.first()?.as_str(), operands.as_slice()) {
        ("stash", [] | ["push"] | ["save", ..]) if !has("-S --staged") => vec!["HEAD".to_owned()],
        ("reset", []) if has("--hard") => vec!["HEAD".to_owned()],
        ("reset", [target]) if has("--hard") => vec![(*target).to_owned()],
        ("checkout" | "switch", [target]) => vec!["HEAD".to_owned(), (*target).to_owned()],
        ("merge", [other]) => vec![format!("HEAD...{other}")],
        ("cherry-pick" | "revert", [commit]) => vec![format!("{commit}^"), (*commit).to_owned()],
        _ => return None,
    };
    let files: Vec<String> = files.map(|file| file.to_string_lossy().into_owned()).collect();
    let listing = ["--literal-pathspecs", "diff", "--name-only"].map(str::to_owned);
    (!files.is_empty()).then(|| [before, &listing, &compared, &["--".to_owned()], &files].concat())
}

/// Returns the place of the verb behind git and the pairs of words that set something.
fn place_of_verb(words: &[String]) -> usize {
    1 + 2 * words.iter().skip(1).step_by(2).take_while(|word| *word == "-c").count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_commits_of_the_index_need_no_filter() {
        let with_filters = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            words_without_filters(
                &own_words(Path::new("git"), &words),
                "filter.a.b.clean\nfilter.c=d.process",
            )
            .join(" ")
        };
        for line in ["git commit", "git commit -qm -a", "git commit --amend -m x --no-edit -s"] {
            assert!(with_filters(line).contains(" -c filter.a.b.clean= -c filter.a.b.process= "), "{line}");
        }
        for line in [
            "git add commit",
            "git commit -am x",
            "git commit -m x file",
            "git commit -m -m x",
            "git commit -a -m x",
            "git stash",
        ] {
            let words = with_filters(line);
            assert!(words.contains(" -c filter.a.b.required=true ") && !words.contains("clean="), "{words}");
            assert!(words.contains(" --config-env=filter.c=d.required=RESPOOL_YES "), "{words}");
        }
    }

    #[test]
    fn commits_have_hooks_unless_they_are_left_out() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let hooks = |line: &str| hooks_for(&own_words(Path::new("/usr/bin/git"), &words(line)));
        for line in [
            "git commit",
            "git commit -am a=b",
            "git commit -a -m --no-verify",
            "git commit -m -n",
            "git commit -m x -- --no-verify",
            "git commit --no-verify --verify",
            "git merge topic",
            "git merge -n topic",
            "git merge --continue",
            "git merge --ff-only --no-ff topic",
            "git merge -m --abort topic",
            "git pull",
            "git cherry-pick x",
            "git rebase --continue",
            "git revert --no-edit HEAD",
        ] {
            assert_eq!(hooks(line), COMMIT_HOOKS, "{line}");
        }
        for line in ["git commit --no-verify -m x", "git commit -a -n -m x", "git commit -m x --no-verify"] {
            assert_eq!(hooks(line), &COMMIT_HOOKS[..2], "{line}");
        }
        for line in ["git add -A", "git stash", "git fetch", "git merge --abort", "git pull --ff-only"] {
            assert!(hooks(line).is_empty(), "{line}");
        }
    }

    #[test]
    fn changes_are_asked_for_beforehand() {
        let compared = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let asked = words_before(&words, [PathBuf::from("AGENTS.md")].iter())?.join(" ");
            Some(asked.split_once("--name-only ")?.1.strip_suffix(" -- AGENTS.md")?.to_owned())
        };
        for (line, expected) in [
            ("git stash", "HEAD"),
            ("git stash -q", "HEAD"),
            ("git stash push -m x", "HEAD"),
            ("git stash save a b", "HEAD"),
            ("git -c a=b stash", "HEAD"),
            ("git reset -q --hard", "HEAD"),
            ("git reset --hard x", "x"),
            ("git switch x", "HEAD x"),
            ("git checkout -q x", "HEAD x"),
            ("git merge -m y --no-ff x", "HEAD...x"),
            ("git revert --no-edit HEAD", "HEAD^ HEAD"),
            ("git cherry-pick x", "x^ x"),
        ] {
            assert_eq!(compared(line).as_deref(), Some(expected), "{line}");
        }
        for line in [
            "git stash push -m x -- a",
            "git stash -- a",
            "git stash push a",
            "git stash --staged",
            "git stash push -S",
            "git stash pop",
            "git reset",
            "git reset --soft HEAD^",
            "git switch -c x main",
            "git merge --continue",
            "git add x",
        ] {
            assert_eq!(compared(line), None, "{line}");
        }
    }

    #[test]
    fn options_that_name_programs_are_no_work_of_gits() {
        let writes = |line: &str| reach_of(&line.split(' ').map(str::to_owned).collect::<Vec<_>>()).is_some();
        for line in [
            "git add -A",
            "git fetch -u origin",
            "git commit -m x:y",
            "git pull -- origin",
            "git fetch . a:refs/heads/b",
            "git fetch ssh://x:22/refs/y",
            "git stash pop",
            "git stash list",
            "git commit -s",
            "git cherry-pick -s x",
            "git tag v1",
            "git rebase --continue",
            "git checkout --theirs a",
            "git switch -c x --no-track origin/x",
            "git branch -vv --contains x",
            "git branch -f d main",
        ] {
            assert!(writes(line), "{line}");
        }
        for line in [
            "git push . x",
            "git commit --outpu=.git/index",
            "git stash -qu",
            "git stash push --incl",
            "git fetch . x:refs/replace/y",
            "git fetch . +refs/*:refs/*",
            "git fetch --refmap=refs/heads/x:refs/replace/y . x",
            "git cherry-pick --strategy=x/evil x",
            "git rebase main",
            "git rebase --continue --exec=x",
            "git fetch --set-upstream ../up main",
            "git pull --set-up ../up main",
            "git fetch --filter=blob:none ../up",
            "git revert --strat x/evil x",
            "git pull --rebase -s x/evil . x",
            "git pull -rsx/evil . x",
            "git checkout --recurse x",
            "git branch -d x",
            "git branch -rD x",
            "git branch --del x",
            "git branch -m a b",
            "git branch --set-upstream-to=origin/x",
            "git branch -u origin/x",
            "git branch --track z origin/x",
            "git switch -t origin/x",
            "git switch -c x --track origin/x",
            "git checkout --track=direct origin/x",
        ] {
            assert!(!writes(line), "{line}");
        }
    }
}
