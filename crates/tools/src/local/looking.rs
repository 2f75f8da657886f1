//! Commands that only look. Where nothing can be written and there is no network, these need no consent; a
//! question follows if they turn out to want more.
//!
//! The names here say which commands are worth trying so. They protect nothing: the sandbox does.

use super::super::policy::commands_of;

/// Programs that people run to look at something.
const PROGRAMS: &str = "\
    [ ag awk basename cat cd cmp column comm cut date df diff dirname du echo egrep expr fd fgrep file find \
    gawk grep head hexdump hostname id jq ls md5sum nl nproc od paste printf ps pwd readlink realpath rev rg \
    sed seq sha1sum sha256sum sleep sort stat strings tac tail test tr tree true uname uniq wc which whoami \
    xxd yq";
/// Commands of git of this kind.
const OF_GIT: &str = "\
    blame branch cat-file describe diff for-each-ref grep log ls-files ls-tree merge-base name-rev reflog \
    remote rev-list rev-parse shortlog show show-ref status tag whatchanged";

/// Options with which `git tag` only lists. To make a tag, git may need the person's name and keys.
const LISTS: [&str; 7] = ["-l", "-n", "--list", "--contains", "--points-at", "--merged", "--sort"];

/// True for a line of such commands that names no place out of the workspace.
pub(super) fn only_looks(line: &str) -> bool {
    let line = line.replace("2>/dev/null", "");
    commands_of(&line)
        .is_some_and(|commands| !commands.is_empty() && commands.iter().all(|words| looks(words)))
}

fn looks(words: &[String]) -> bool {
    let is_in = |names: &str, word: &str| names.split_ascii_whitespace().any(|name| name == word);
    let leads_out =
        |word: &String| word.starts_with(['/', '~']) || word.split(['/', '=']).any(|part| part == "..");
    let is_known = match words {
        [git, stash, verb, ..] if git == "git" && stash == "stash" => is_in("list show", verb),
        [git, tag, word, ..] if git == "git" && tag == "tag" => {
            LISTS.iter().any(|known| word.starts_with(known))
        }
        [git, verb, ..] if git == "git" => is_in(OF_GIT, verb),
        [program, version] if version == "--version" => !program.contains('/'),
        [program, ..] => is_in(PROGRAMS, program),
        [] => false,
    };
    is_known && !words.iter().skip(1).any(leads_out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looking_is_told_from_other_work() {
        for line in [
            "ls",
            "git status --short && ls *.rs",
            "cd sub; grep -rn 'fn main' . 2>/dev/null | head -5",
            "git log --oneline -5 || true",
            "cargo_lines=1 ls",
            "find . -name '*.rs' 2>&1 | wc -l",
            "sort -o a a",
            "git stash list",
            "git tag; git tag -l 'v*' | tail -1; git tag --sort=-creatordate",
            "python3 --version && node --version",
        ] {
            assert_eq!(only_looks(line), !line.contains("cargo"), "{line}");
        }
        for line in [
            "",
            "cargo test",
            "git commit -m x",
            "git -C x status",
            "git stash",
            "git stash drop",
            "git tag -a v1 -m x",
            "git tag --sign v1",
            "./run --version",
            "cat /etc/passwd",
            "cat ~/.netrc",
            "cat ../x",
            "ls > x",
            "echo $HOME",
            "ls & make",
            "python3 x.py",
            "env",
            "(ls)",
        ] {
            assert!(!only_looks(line), "{line}");
        }
    }
}
