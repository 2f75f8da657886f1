//! Asks the person before a call that the policy leaves to them, and remembers for what they said "always".

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use futures::future::BoxFuture;
use serde_json::{Map, Value};
use tokio::sync::{mpsc, oneshot};

use super::screen::Shown;
use crate::tools::{Approver, CommandPattern, Question};

/// These run whatever stands behind them, so "always" holds for the very command only.
const RUN_ANYTHING: [&str; 46] = [
    "sh",
    "bash",
    "zsh",
    "dash",
    "fish",
    "python",
    "python3",
    "node",
    "ruby",
    "perl",
    "php",
    "sudo",
    "doas",
    "env",
    "xargs",
    "ssh",
    "eval",
    "exec",
    "nohup",
    "time",
    "timeout",
    "find",
    "awk",
    "gawk",
    "npx",
    "deno",
    "bun",
    "ksh",
    "busybox",
    "lua",
    "pwsh",
    "source",
    ".",
    "command",
    "builtin",
    "nice",
    "setsid",
    "stdbuf",
    "watch",
    "parallel",
    "sed",
    "tar",
    "tclsh",
    "osascript",
    "vim",
    "ed",
];
/// The word behind these says what they do.
const WITH_SUBCOMMANDS: [&str; 16] = [
    "git",
    "cargo",
    "npm",
    "pnpm",
    "yarn",
    "go",
    "docker",
    "podman",
    "kubectl",
    "uv",
    "pip",
    "make",
    "just",
    "systemctl",
    "dotnet",
    "gh",
];

/// What need not be asked again in this session.
#[derive(Debug, Default)]
pub(super) struct Allowed {
    tools: BTreeSet<String>,
    commands: BTreeSet<String>,
    beginnings: BTreeSet<String>,
}

/// What "always" would mean for a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Always {
    /// Every call of this tool.
    Tool(String),
    /// Simple commands that begin with these words.
    Like(String),
    /// This very command.
    Command(String),
}

impl Always {
    pub(super) fn of(tool: &str, arguments: &Map<String, Value>) -> Self {
        let Some(command) = command_of(tool, arguments) else { return Self::Tool(tool.to_owned()) };
        match beginning(command).filter(|beginning| is_like(beginning, command)) {
            Some(beginning) => Self::Like(beginning),
            None => Self::Command(command.to_owned()),
        }
    }

    /// For the question.
    pub(super) fn in_words(&self) -> String {
        match self {
            Self::Tool(tool) => tool.clone(),
            Self::Like(beginning) => format!("`{beginning} …`"),
            Self::Command(_) => "this very command".to_owned(),
        }
    }
}

/// The words that say what a command does; `None` when they do not.
fn beginning(command: &str) -> Option<String> {
    let mut words = command.split_whitespace();
    let first = words.next()?;
    let name = first.rsplit('/').next().unwrap_or(first);
    // `python3.12` is `python` too.
    let plain = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    if RUN_ANYTHING.iter().any(|known| [name, plain].contains(known)) || first.contains('=') {
        return None;
    }
    if !WITH_SUBCOMMANDS.contains(&name) {
        return Some(first.to_owned());
    }
    let second = words.next().filter(|word| !word.starts_with('-'))?;
    Some(format!("{first} {second}"))
}

/// True for a simple command that begins with these words.
fn is_like(beginning: &str, command: &str) -> bool {
    let pattern = CommandPattern::new(&format!("{beginning} *"));
    !beginning.contains('*') && (command == beginning || pattern.is_ok_and(|pattern| pattern.allows(command)))
}

pub(super) fn command_of<'a>(tool: &str, arguments: &'a Map<String, Value>) -> Option<&'a str> {
    let command = ["command", "cmd"].iter().find_map(|name| arguments.get(*name)?.as_str());
    command.filter(|_| tool == "shell_command").map(str::trim)
}

impl Allowed {
    pub(super) fn holds(&self, tool: &str, arguments: &Map<String, Value>) -> bool {
        self.tools.contains(tool)
            || command_of(tool, arguments).is_some_and(|command| {
                self.commands.contains(command)
                    || self.beginnings.iter().any(|beginning| is_like(beginning, command))
            })
    }

    pub(super) fn add(&mut self, always: Always) {
        match always {
            Always::Tool(tool) => drop(self.tools.insert(tool)),
            Always::Command(command) => drop(self.commands.insert(command)),
            Always::Like(beginning) => drop(self.beginnings.insert(beginning)),
        }
    }

    /// Everything, for people.
    pub(super) fn list(&self) -> Vec<String> {
        let beginnings = self.beginnings.iter().map(|beginning| format!("{beginning} …"));
        self.tools.iter().chain(&self.commands).cloned().chain(beginnings).collect()
    }
}

/// A question on its way to the screen.
#[derive(Debug)]
pub(super) struct Asking {
    pub(super) tool: String,
    pub(super) arguments: Map<String, Value>,
    pub(super) preview: Option<String>,
    pub(super) answer: oneshot::Sender<bool>,
}

/// The person at the terminal, or the `--yes` in their place.
pub(super) struct Person {
    pub(super) yes: bool,
    pub(super) allowed: Arc<Mutex<Allowed>>,
    pub(super) screen: mpsc::UnboundedSender<Shown>,
}

impl Approver for Person {
    fn approve<'a>(&'a self, question: Question<'a>) -> BoxFuture<'a, bool> {
        Box::pin(async move {
            let Question { tool, arguments, preview } = question;
            let known = self.allowed.lock().unwrap_or_else(PoisonError::into_inner).holds(tool, arguments);
            if self.yes || known {
                return true;
            }
            let (answer, answered) = oneshot::channel();
            let asking = Asking { tool: tool.to_owned(), arguments: arguments.clone(), preview, answer };
            let sent = self.screen.send(Shown::Asking(asking));
            sent.is_ok() && answered.await.unwrap_or(false)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn shell(command: &str) -> Map<String, Value> {
        json!({"command": command}).as_object().cloned().unwrap()
    }

    #[test]
    fn always_means_what_it_says_and_no_more() {
        let check = |command: &str, expected: Always, also: &[&str], not: &[&str]| {
            let always = Always::of("shell_command", &shell(command));
            assert_eq!(always, expected, "{command}");
            let mut allowed = Allowed::default();
            assert!(!allowed.holds("shell_command", &shell(command)));
            allowed.add(always);
            for command in also.iter().chain([&command]) {
                assert!(allowed.holds("shell_command", &shell(command)), "{command}");
            }
            for command in not {
                assert!(!allowed.holds("shell_command", &shell(command)), "{command}");
            }
        };
        let like = |text: &str| Always::Like(text.into());
        let very = |text: &str| Always::Command(text.into());
        check(
            "cargo test --lib",
            like("cargo test"),
            &["cargo test"],
            &["cargo run", "cargo test; rm -rf x", "cargo test && x"],
        );
        check("ls -la src", like("ls"), &["ls"], &["ls $(rm x)", "rm x", "ls > x", "lsof"]);
        check("git", very("git"), &[], &["git push"]);
        check("git -C x push", very("git -C x push"), &[], &["git -C x pull"]);
        check("bash -c 'ls'", very("bash -c 'ls'"), &[], &["bash -c 'rm'"]);
        check("sudo ls", very("sudo ls"), &[], &["sudo rm"]);
        check("cat a | wc -l", very("cat a | wc -l"), &[], &["cat a"]);
        check("FOO=1 make", very("FOO=1 make"), &[], &["FOO=1 rm"]);
    }

    #[test]
    fn a_tool_that_is_no_shell_is_allowed_as_a_whole() {
        let arguments = json!({"file_path": "a"}).as_object().cloned().unwrap();
        let mut allowed = Allowed::default();
        allowed.add(Always::of("edit_file", &arguments));
        assert!(allowed.holds("edit_file", &arguments) && !allowed.holds("write_file", &arguments));
        assert_eq!(allowed.list(), ["edit_file"]);
    }

    #[tokio::test]
    async fn the_person_is_asked_once_and_a_screen_that_is_gone_is_a_no() {
        let (screen, mut inbox) = mpsc::unbounded_channel();
        let allowed = Arc::<Mutex<Allowed>>::default();
        let person = Person { yes: false, allowed: Arc::clone(&allowed), screen };
        let arguments = shell("ls");
        let question = || Question { tool: "shell_command", arguments: &arguments, preview: None };
        let answer = async {
            let Some(Shown::Asking(asking)) = inbox.recv().await else { panic!("nothing was asked") };
            asking.answer.send(true).unwrap();
        };
        assert!(tokio::join!(person.approve(question()), answer).0);
        drop(inbox);
        assert!(!person.approve(question()).await);
        allowed.lock().unwrap().add(Always::of("shell_command", &arguments));
        assert!(person.approve(question()).await);
    }
}
