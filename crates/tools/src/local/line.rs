//! A line of a model as commands that run one by one, where one of them is git's own and writes a repository.
//! `exec` runs them.

use std::path::{Path, PathBuf};

use super::super::policy::{ListedCommand, Plan, command_list, plain_words};
use super::super::sandbox::Reach;
use super::Local;
use super::exec::Step;

/// A line of more commands is not split: each knows the rest.
const MOST_COMMANDS: usize = 100;

/// Words of a shell that change what comes after them, or belong together with it.
const SHELLS_OWN: &str = "\
    cd chdir pushd popd builtin command time exit return export declare typeset source . set unset eval exec \
    alias enable ulimit umask shopt read readonly local let shift getopts trap wait if then elif else fi for \
    while until do done case esac select function";

impl Local {
    /// Returns the commands of a line: of one that a rule allows as its plan says.
    pub(super) fn steps(&self, line: &str, plan: Option<&Plan>, directory: PathBuf) -> Vec<Step> {
        self.git_steps(line, &directory).unwrap_or_else(|| {
            let plan = plan.cloned().unwrap_or_else(|| Plan::Shell(literal_line(line)));
            vec![Step::only(plan, directory, Reach::Workspace)]
        })
    }

    /// Splits a line that contains a command of git which writes into a protected repository; `None` for any
    /// other line.
    fn git_steps(&self, line: &str, directory: &Path) -> Option<Vec<Step>> {
        let mut directory = directory.to_owned();
        let (mut steps, commands) = (Vec::new(), command_list(line)?);
        (commands.len() <= MOST_COMMANDS).then_some(())?;
        // Whether only `cd`s came before the command in those joined by `&&`, whether these run anyway, and
        // whether a `cd` of theirs may not run.
        let (mut is_first, mut runs_anyway, mut may_stay) = (true, true, false);
        for (at, command) in commands.iter().enumerate() {
            let mut words = plain_words(&command.text).unwrap_or_default();
            if command.runs_anyway {
                (!may_stay).then_some(())?;
                (is_first, runs_anyway) = (true, true);
            }
            if let [cd, to] = words.as_slice()
                && cd == "cd"
            {
                directory = self.directory_in(&directory, to)?;
                may_stay |= !is_first;
                continue;
            }
            let runs_anyway = std::mem::replace(&mut is_first, false) && runs_anyway;
            let first = command.text.split_whitespace().next().unwrap_or_default();
            let is_plain = first.chars().all(|c| c.is_ascii_alphanumeric() || "._/+-".contains(c));
            if !is_plain || SHELLS_OWN.split_ascii_whitespace().any(|word| word == first) {
                return None;
            }
            let mut place = directory.clone();
            if let [git, option, to, ..] = words.as_slice()
                && (git.as_str(), option.as_str()) == ("git", "-C")
            {
                place = self.directory_in(&directory, to)?;
                words.drain(1..3);
            }
            let (plan, place, reach) = match self.sandbox.git_words(&words, &place) {
                Some((words, reach)) => (Plan::Program(words), place, reach),
                None => (Plan::Shell(command.text.clone()), directory.clone(), Reach::Workspace),
            };
            let rest = (Plan::Shell(join_commands(&commands[at..], "; ")), directory.clone());
            steps.push(Step { plan, directory: place, reach, runs_anyway, rest });
        }
        steps.iter().any(|step| step.reach.is_gits()).then_some(steps)
    }

    /// Returns the directory to which a word leads from here; `None` where a shell may come to another.
    fn directory_in(&self, directory: &Path, to: &str) -> Option<PathBuf> {
        let place = self.workspace.find_place(&directory.join(to).to_string_lossy()).ok()?;
        // A shell would take `..` for where the link is, and `-` for an option.
        (place.written == place.real && !to.starts_with('-')).then_some(())?;
        self.command_directory(&place).ok()
    }
}

/// Returns a line as it runs: where it can be read, as it was read. Shells take here documents, and quotes in
/// other encodings, in different ways.
fn literal_line(line: &str) -> String {
    // No `;` may follow a word such as `then`.
    command_list(line).map_or_else(|| line.to_owned(), |commands| join_commands(&commands, "\n"))
}

/// Returns commands as one text for a shell.
fn join_commands(commands: &[ListedCommand], joint: &str) -> String {
    let mut line = String::new();
    for (at, command) in commands.iter().enumerate() {
        let joint = if command.runs_anyway { joint } else { " && " };
        line.extend([if at == 0 { "" } else { joint }, &command.text]);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_runs() {
        for (line, expected) in [
            ("if true; then\n  echo \"中\\\"\" é|cat\nfi", "if true\nthen\necho '中\"' 'é'|cat\nfi"),
            ("a  b >> \"c d\" 2>&1; ", "a b >> 'c d' 2>&1"),
            ("a $b; \"c\"", "a $b; \"c\""),
            ("\u{a0}a; \"b\"", "\u{a0}a; \"b\""),
        ] {
            assert_eq!(literal_line(line), expected);
        }
    }
}
