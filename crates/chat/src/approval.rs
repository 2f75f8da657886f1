//! Asks the person before a call that the policy leaves to them, and remembers for what they said "always": a
//! tool on files, a tool of an MCP server, a program with options that are known to be harmless, or one very
//! command; the last two in the directory they were shown for. `kept` makes that last.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::harmless::{Entry, looking_operands, stays_inside};
use super::outputs::keep_end;
use super::screen::Shown;
use tools::{Approver, Consent, OutputWatcher, Question, QuestionKind, Target, command_list, parse_pipeline};

/// The most output that waits to be shown.
const MOST_WAITING: usize = 64 << 10;

/// The calls that need no further question.
#[derive(Clone, Debug, Default)]
pub(super) struct Allowed {
    /// Those of this session.
    granted: BTreeSet<SessionGrant>,
    /// Those that the person keeps for this directory.
    kept: BTreeSet<SessionGrant>,
}

/// The calls that "always" would cover.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SessionGrant {
    /// Every call of this tool, but on files whose path is hidden.
    Tool(String),
    /// Every call of this tool of an MCP server, as long as the server describes it in the same way.
    ServerTool {
        /// Its name, `SERVER__TOOL`.
        tool: String,
        /// The digest of its definition.
        definition: String,
    },
    /// This program in this directory, with options that are known to be harmless.
    Like(String, PathBuf),
    /// This very command in this directory.
    Command(String, PathBuf),
    /// All of these: the commands of one line.
    #[serde(skip)]
    Each(Vec<SessionGrant>),
    /// Nothing: the file may decide what other programs do (`.envrc`, `lefthook.yml`), or the target of
    /// the call is unknown.
    #[serde(skip)]
    Never,
}

impl SessionGrant {
    /// Returns what "always" would cover for a call. `root`: the workspace, without symlinks.
    pub(super) fn from_target(tool: &str, target: &Target, root: &Path) -> Self {
        match target {
            Target::Command { line, directory } => match known_commands(line, directory, root) {
                Some(names) => {
                    let mut all: Vec<Self> = names
                        .into_iter()
                        .map(|(name, directory)| Self::Like(name.to_owned(), directory))
                        .collect();
                    if all.len() == 1 { all.remove(0) } else { Self::Each(all) }
                }
                None if changes_history(line) => Self::Never,
                None => Self::Command(trim(line).to_owned(), directory.clone()),
            },
            Target::File { real, is_kept: false, .. } if !is_hidden(real) => Self::Tool(tool.to_owned()),
            Target::Server { definition } => {
                Self::ServerTool { tool: tool.to_owned(), definition: definition.clone() }
            }
            Target::File { .. } | Target::Other => Self::Never,
        }
    }

    /// Describes it for the question; `None` when it is not offered.
    pub(super) fn question_text(&self) -> Option<String> {
        match self {
            Self::Tool(tool) | Self::ServerTool { tool, .. } => Some(tool.clone()),
            Self::Like(name, _) => Some(name.clone()),
            Self::Each(all) => {
                let names: Vec<String> = all.iter().filter_map(Self::question_text).collect();
                Some(names.join("; "))
            }
            Self::Command(..) => Some("this very command".to_owned()),
            Self::Never => None,
        }
    }

    /// Describes it for the list of allowed calls.
    fn description(&self) -> String {
        let place = |directory: &Path| match directory {
            directory if directory == Path::new(".") => String::new(),
            directory => format!(" (in {})", directory.display()),
        };
        match self {
            Self::Tool(tool) => format!("{tool}, except on hidden files"),
            Self::ServerTool { tool, .. } => format!("{tool}, with all arguments"),
            Self::Like(name, directory) => format!("{name}, with harmless options{}", place(directory)),
            Self::Command(line, directory) => format!("{line}{}", place(directory)),
            // Each of them is in the list.
            Self::Each(_) | Self::Never => String::new(),
        }
    }
}

/// Returns the names of the commands of a line, each with its directory, if all are known to be harmless and
/// stay in the workspace, even through symlinks. What only looks or prints has no name.
fn known_commands(line: &str, directory: &Path, root: &Path) -> Option<BTreeSet<(&'static str, PathBuf)>> {
    let mut directory = directory.to_owned();
    let mut names = BTreeSet::new();
    let mut has_moved = false;
    for command in command_list(line)? {
        // Where it runs is not known.
        (!(has_moved && command.runs_anyway)).then_some(())?;
        let commands = parse_pipeline(&command.text)?;
        if let [words] = commands.as_slice()
            && let [cd, to] = words.as_slice()
            && cd == "cd"
        {
            // A shell takes `..` for where a link is, and `-` for an option.
            (!to.starts_with('-') && !Path::new(to).components().any(|part| part == Component::ParentDir))
                .then_some(())?;
            let real = root.join(&directory).join(to).canonicalize().ok()?;
            directory = real.strip_prefix(root).ok()?.components().collect();
            has_moved = true;
            continue;
        }
        for words in commands {
            let words = without_limit(&words);
            let entry = Entry::find_program(words);
            let is_inside = |operand: &&str| {
                stays_inside(operand) && leads_inside(&root.join(&directory).join(operand), root)
            };
            let operands = entry.map_or_else(|| looking_operands(words), |entry| entry.operands(words));
            operands?.iter().all(is_inside).then_some(())?;
            let place = if directory.as_os_str().is_empty() { Path::new(".") } else { &directory };
            names.extend(entry.map(|entry| (entry.consent_group(), place.to_owned())));
        }
    }
    (!names.is_empty()).then_some(names)
}

/// Returns the words of a command without a limit of its time: `timeout 60`.
fn without_limit(words: &[String]) -> &[String] {
    let is_time = |word: &str| {
        let digits = word.trim_end_matches(['s', 'm']);
        !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit())
    };
    match words {
        [timeout, time, command @ ..] if timeout == "timeout" && is_time(time) => command,
        all => all,
    }
}

/// Other blanks are a part of a word to a shell.
fn trim(line: &str) -> &str {
    line.trim_matches([' ', '\t', '\n'])
}

/// Returns true if some word is `git` and a later one discards or pushes commits or work: the person is
/// asked about these each time.
fn changes_history(line: &str) -> bool {
    let mut words = line.split(|c: char| !(c.is_alphanumeric() || "-_".contains(c)));
    words.any(|word| word == "git")
        && words.any(|word| {
            ["push", "rebase", "clean", "reset", "filter-branch", "drop", "clear"].contains(&word)
        })
}

/// A path that does not exist leads nowhere; most operands are not files.
fn leads_inside(path: &Path, root: &Path) -> bool {
    use std::io::ErrorKind::{InvalidFilename, NotADirectory, NotFound};
    match path.canonicalize() {
        Ok(real) => real.starts_with(root),
        Err(error) => {
            let is_no_file = matches!(error.kind(), NotFound | NotADirectory | InvalidFilename);
            is_no_file && path.symlink_metadata().is_err()
        }
    }
}

/// Returns true if a part of the path begins with a dot.
fn is_hidden(path: &Path) -> bool {
    path.components().any(|part| {
        let name = part.as_os_str().as_encoded_bytes();
        name.starts_with(b".") && name != b"."
    })
}

impl Allowed {
    /// Returns what was kept.
    pub(super) fn from_kept(kept: BTreeSet<SessionGrant>) -> Self {
        Self { granted: BTreeSet::new(), kept }
    }

    /// Returns what is allowed for this session alone.
    pub(super) fn session_grants(&self) -> &BTreeSet<SessionGrant> {
        &self.granted
    }

    pub(super) fn allows_call(&self, tool: &str, target: &Target, root: &Path) -> bool {
        let holds = |always: &SessionGrant| self.granted.contains(always) || self.kept.contains(always);
        let very = match target {
            Target::Command { line, directory } => {
                holds(&SessionGrant::Command(trim(line).to_owned(), directory.clone()))
            }
            _ => false,
        };
        very || match SessionGrant::from_target(tool, target, root) {
            SessionGrant::Each(all) => all.iter().all(holds),
            always => holds(&always),
        }
    }

    /// Allows these calls in this session. Returns true if they are the first.
    pub(super) fn add(&mut self, always: SessionGrant) -> bool {
        let is_first = self.granted.is_empty();
        match always {
            SessionGrant::Never => return false,
            SessionGrant::Each(all) => self.granted.extend(all),
            always => drop(self.granted.insert(always)),
        }
        is_first
    }

    /// Returns true if nothing is allowed.
    pub(super) fn is_empty(&self) -> bool {
        self.granted.is_empty() && self.kept.is_empty()
    }

    /// Returns true if nothing would be lost at the end of the session.
    pub(super) fn is_kept(&self) -> bool {
        self.granted.is_subset(&self.kept)
    }

    /// Lists everything that is allowed, for people. What is kept is marked, unless all is.
    pub(super) fn list(&self) -> Vec<String> {
        let mark = if self.is_kept() { "" } else { " · kept" };
        let kept = self.kept.iter().map(|always| format!("{}{mark}", always.description()));
        self.granted.difference(&self.kept).map(SessionGrant::description).chain(kept).collect()
    }
}

/// A question on its way to the screen.
#[derive(Debug)]
pub(super) struct Asking {
    pub(super) kind: QuestionKind,
    pub(super) tool: String,
    pub(super) target: Target,
    pub(super) arguments: Map<String, Value>,
    pub(super) preview: Option<String>,
    /// The calls that "always" would cover.
    pub(super) always: SessionGrant,
    /// Stops the turn after this call.
    pub(super) stop: CancellationToken,
    pub(super) answer: oneshot::Sender<Consent>,
}

/// The end of a command's output that waits to be shown: a command may write faster than the screen.
#[derive(Clone, Debug, Default)]
pub(super) struct OutputTail(Arc<Mutex<String>>);

impl OutputTail {
    /// Adds a piece, and returns true if nothing was waiting.
    pub(super) fn push(&self, piece: &str) -> bool {
        let mut text = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let was_empty = text.is_empty();
        keep_end(&mut text, piece, MOST_WAITING);
        was_empty
    }

    /// Takes what waits.
    pub(super) fn take(&self) -> String {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The person at the terminal, or `--yes` in their place.
pub(super) struct Person {
    pub(super) yes: bool,
    /// Whether only calls that look may run.
    pub(super) only_looks: bool,
    pub(super) allowed: Arc<Mutex<Allowed>>,
    /// The workspace, without symlinks.
    pub(super) root: PathBuf,
    /// Stops the turn after the call that they are asked about.
    pub(super) stop: CancellationToken,
    pub(super) screen: mpsc::UnboundedSender<Shown>,
}

impl Person {
    fn is_allowed(&self, tool: &str, target: &Target) -> bool {
        self.allowed.lock().unwrap_or_else(PoisonError::into_inner).allows_call(tool, target, &self.root)
    }
}

#[async_trait]
impl Approver for Person {
    fn only_looks(&self) -> bool {
        self.only_looks
    }

    fn output_watcher(&self) -> Option<OutputWatcher> {
        let (screen, waiting) = (self.screen.clone(), OutputTail::default());
        Some(Arc::new(move |bytes: &[u8]| {
            if waiting.push(&String::from_utf8_lossy(bytes)) {
                drop(screen.send(Shown::Output(waiting.clone())));
            }
        }))
    }

    async fn approve(&self, question: Question<'_>) -> Consent {
        let Question { kind, tool, arguments, target, preview, .. } = question;
        let always = match kind {
            QuestionKind::Call if self.yes || self.is_allowed(tool, target) => return Consent::Given,
            QuestionKind::Call => SessionGrant::from_target(tool, target, &self.root),
            // No earlier answer covers that, and `--yes` does not.
            QuestionKind::OutsideSandbox if self.yes => return Consent::UNASKED,
            QuestionKind::OutsideSandbox => SessionGrant::Never,
        };
        let (answer, answered) = oneshot::channel();
        let (target, arguments) = (target.clone(), arguments.clone());
        let (tool, stop) = (tool.to_owned(), self.stop.clone());
        let asking = Asking { kind, tool, target, arguments, preview, always, stop, answer };
        let sent = self.screen.send(Shown::Asking(asking));
        match sent {
            Ok(()) => answered.await.unwrap_or(Consent::UNASKED),
            Err(_) => Consent::UNASKED,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(line: &str, directory: &str) -> Target {
        Target::Command { line: line.into(), directory: directory.into() }
    }

    fn file(real: &str) -> Target {
        Target::File { root: "/w".into(), real: real.into(), written: "README.md".into(), is_kept: false }
    }

    fn workspace() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap().join("work");
        std::fs::create_dir_all(root.join("sub")).unwrap();
        std::fs::write(dir.path().join("secret"), "s").unwrap();
        std::os::unix::fs::symlink("../secret", root.join("link")).unwrap();
        std::os::unix::fs::symlink("../gone", root.join("dangling")).unwrap();
        (dir, root)
    }

    fn check(line: &str, expected: &SessionGrant, also: &[&str], not: &[&str]) {
        let (_dir, root) = workspace();
        let holds = |allowed: &Allowed, line: &str, directory: &str| {
            allowed.allows_call("shell_command", &shell(line, directory), &root)
        };
        let always = SessionGrant::from_target("shell_command", &shell(line, "."), &root);
        assert_eq!(always, *expected, "{line}");
        let mut allowed = Allowed::default();
        assert!(!holds(&allowed, line, "."));
        allowed.add(always);
        for line in also.iter().chain([&line]) {
            assert!(holds(&allowed, line, "."), "{line}");
            assert!(!holds(&allowed, line, "sub"), "in another directory: {line}");
        }
        for line in not {
            assert!(!holds(&allowed, line, "."), "{line}");
        }
    }

    /// "Always" covers no more than the person has seen.
    #[test]
    fn always_means_what_it_says_and_no_more() {
        let like = |name: &str| SessionGrant::Like(name.into(), ".".into());
        let very = |line: &str| SessionGrant::Command(line.into(), ".".into());
        let building = || like("builds and tests");
        check(
            "cargo test --lib",
            &building(),
            &["cargo test", "cargo test -q x", "mypy src"],
            &[
                "cargo run",
                "npx cowsay",
                "ruff check --config x",
                "cargo test; rm -rf x",
                "cargo test && x",
                "cargo test --config x",
            ],
        );
        check(
            "cargo test | cat a",
            &building(),
            &["cargo test | cat b"],
            &[
                "cargo test | cat link",
                "cargo test | cat dangling",
                "cargo test && cat /etc/passwd",
                "cargo test | cat sub/../../secret",
            ],
        );
        check("cat a", &very("cat a"), &[], &["cat b"]);
        check(
            "git add -A && git commit -m x",
            &like("git add, commit, stash and switch"),
            &["git commit -qm 'other text'", "git switch -c topic", "git stash"],
            &["git push", "git commit --amend", "git add -A && git push", "git stash drop"],
        );
        check(
            "cargo test 2>&1 | tail -5",
            &building(),
            &["cargo test", "tail a && cargo test", "cd . && cargo test"],
            &[
                "cargo test | sh",
                "cargo test > a",
                "cargo test || rm a",
                "cargo run | tail",
                "cd .. && cargo test",
                "cd sub/.. && cargo test",
                "cd sub && cargo test",
            ],
        );
        for line in
            ["make", "\\bash -c 'ls'", "\"sh\" -c ls", "sudo ls", "cat a; wc -l", "FOO=1 ls", "cat link"]
        {
            check(
                line,
                &very(line),
                &[&format!(" {line} ")],
                &["rm x", &format!("{line} x"), &format!("\u{a0}{line}")],
            );
        }
    }

    /// Models join the commands of a group to others that only look.
    #[test]
    fn always_covers_looking_beside_it() {
        let (_dir, root) = workspace();
        let mut allowed = Allowed::default();
        allowed.add(SessionGrant::from_target("shell_command", &shell("git add a", "."), &root));
        let holds = |line: &str| allowed.allows_call("shell_command", &shell(line, "."), &root);
        for line in [
            "git add a && git status --short",
            "git add a; git log --oneline -1",
            "git add a && echo done",
            "timeout 60 git add a && ls",
        ] {
            assert!(holds(line), "{line}");
        }
        for line in
            ["git add a && git log --output=link", "git add a && find . -delete", "git add a && cat link"]
        {
            assert!(!holds(line), "{line}");
        }
    }

    #[test]
    fn kept_calls_stay_allowed() {
        let mut allowed = Allowed::default();
        assert!(allowed.add(SessionGrant::Tool("edit_file".into())));
        let server_tool = |name: &str| SessionGrant::ServerTool { tool: name.into(), definition: "d".into() };
        assert!(!allowed.add(server_tool("a__b")), "the hint is shown once");
        let kept = Allowed::from_kept(allowed.session_grants().clone());
        assert!(kept.is_kept() && kept.allows_call("edit_file", &file("a"), Path::new("/w")));
        assert_eq!(kept.list(), ["edit_file, except on hidden files", "a__b, with all arguments"]);
        let mut allowed = kept;
        allowed.add(server_tool("c__d"));
        assert_eq!(
            allowed.list()[..2],
            ["c__d, with all arguments", "edit_file, except on hidden files · kept"]
        );
    }

    /// The goal: "always" for files, twice for commands, and each push. Looking needs no question.
    #[test]
    fn a_day_of_commands_asks_three_times() {
        let (_dir, root) = workspace();
        let mut allowed = Allowed::default();
        let mut asked = Vec::new();
        for line in [
            "cargo build 2>&1 | tail -20",
            "cargo test --lib 2>&1 | grep -n FAILED",
            "cargo clippy --all-targets && cargo fmt --check",
            "git add -A && git commit -m 'Fix the parser'",
            "npm install --no-audit && npm test 2>&1 | tail -5",
            "node --test",
            "pytest -x -q 2>&1 | tail -30",
            "python -m pytest -q",
            "git switch -c topic && git stash",
            "git stash pop && git add sub && git commit -qm 'Add a test'",
            "git push",
        ] {
            let target = shell(line, ".");
            if !allowed.allows_call("shell_command", &target, &root) {
                asked.push(line);
                allowed.add(SessionGrant::from_target("shell_command", &target, &root));
            }
        }
        assert_eq!(asked.len(), 3, "{asked:#?}");
        assert_eq!(asked[2], "git push");
    }

    #[test]
    fn what_drops_or_sends_commits_is_asked_each_time() {
        let (_dir, root) = workspace();
        for line in [
            "git push",
            "git -C x push",
            "git reset --hard",
            "git clean -fd",
            "git rebase main",
            "x; git push",
            "git stash drop",
        ] {
            assert_eq!(
                SessionGrant::from_target("shell_command", &shell(line, "."), &root),
                SessionGrant::Never,
                "{line}"
            );
        }
    }

    #[test]
    fn a_file_tool_is_allowed_except_on_hidden_files() {
        let root = Path::new("/w");
        let mut allowed = Allowed::default();
        allowed.add(SessionGrant::from_target("edit_file", &file("a"), root));
        assert!(allowed.allows_call("edit_file", &file("src/b"), root));
        assert!(!allowed.allows_call("write_file", &file("a"), root));
        assert_eq!(allowed.list(), ["edit_file, except on hidden files"]);
        let kept = |real: &str| Target::File {
            root: "/w".into(),
            real: real.into(),
            written: real.into(),
            is_kept: true,
        };
        for asked in
            [file(".git/hooks/pre-commit"), file("a/.cargo/config.toml"), kept("scripts/hooks/pre-commit")]
        {
            assert_eq!(SessionGrant::from_target("edit_file", &asked, root), SessionGrant::Never);
            allowed.add(SessionGrant::Never);
            assert!(!allowed.allows_call("edit_file", &asked, root), "{asked:?}");
        }
    }

    #[test]
    fn a_tool_of_a_server_is_allowed_alone() {
        let mut allowed = Allowed::default();
        let of_server = |definition: &str| Target::Server { definition: definition.into() };
        let grant = |tool: &str| SessionGrant::from_target(tool, &of_server("d"), Path::new("/w"));
        assert_eq!(grant("tracker__search").question_text().as_deref(), Some("tracker__search"));
        allowed.add(grant("tracker__search"));
        allowed.add(SessionGrant::from_target("shell_command", &Target::Other, Path::new("/w")));
        let allows = |tool: &str, target: &Target| allowed.allows_call(tool, target, Path::new("/w"));
        assert!(allows("tracker__search", &of_server("d")) && !allows("tracker__close", &of_server("d")));
        // The server says something else of it.
        assert!(!allows("tracker__search", &of_server("e")) && !allows("shell_command", &Target::Other));
        assert_eq!(allowed.list(), ["tracker__search, with all arguments"]);
    }

    fn question<'a>(
        kind: QuestionKind,
        arguments: &'a Map<String, Value>,
        target: &'a Target,
    ) -> Question<'a> {
        Question { kind, tool: "shell_command", arguments, target, preview: None, is_by_default: true }
    }

    /// `--yes` and "always" do not answer the question whether a command may run without its sandbox.
    #[tokio::test]
    async fn leaving_the_sandbox_always_needs_consent() {
        let (screen, mut inbox) = mpsc::unbounded_channel();
        let allowed = Arc::<Mutex<Allowed>>::default();
        let (arguments, target) = (Map::new(), shell("make", "."));
        allowed.lock().unwrap().add(SessionGrant::from_target("shell_command", &target, Path::new("/w")));
        let mut person = Person {
            yes: false,
            only_looks: false,
            allowed,
            root: "/w".into(),
            stop: CancellationToken::new(),
            screen,
        };
        assert_eq!(person.approve(question(QuestionKind::Call, &arguments, &target)).await, Consent::Given);
        for said in [Consent::Given, Consent::DECLINED, Consent::Given] {
            let answer = async {
                let Some(Shown::Asking(asking)) = inbox.recv().await else { panic!("nothing was asked") };
                assert_eq!(asking.always, SessionGrant::Never);
                asking.answer.send(said.clone()).unwrap();
            };
            let asked = person.approve(question(QuestionKind::OutsideSandbox, &arguments, &target));
            assert_eq!(tokio::join!(asked, answer).0, said);
        }
        person.yes = true;
        assert_eq!(person.approve(question(QuestionKind::Call, &arguments, &target)).await, Consent::Given);
        let outside = person.approve(question(QuestionKind::OutsideSandbox, &arguments, &target)).await;
        assert_eq!(outside, Consent::UNASKED);
        assert!(inbox.try_recv().is_err());
    }

    /// Regression: each piece waited for the screen, so that `yes` filled the memory.
    #[test]
    fn output_that_is_not_shown_takes_little_memory() {
        let (screen, mut inbox) = mpsc::unbounded_channel();
        let person = Person {
            yes: true,
            only_looks: false,
            allowed: Arc::default(),
            root: "/w".into(),
            stop: CancellationToken::new(),
            screen,
        };
        let watcher = person.output_watcher().unwrap();
        (0..10_000).for_each(|_| watcher(&[b'y'; 1_000]));
        watcher(b"end");
        let Ok(Shown::Output(tail)) = inbox.try_recv() else { panic!("nothing is shown") };
        let text = tail.take();
        assert!(text.ends_with("yend") && text.len() <= MOST_WAITING && inbox.try_recv().is_err());
        watcher(b"more");
        assert!(matches!(inbox.try_recv(), Ok(Shown::Output(tail)) if tail.take() == "more"));
    }

    #[tokio::test]
    async fn a_closed_screen_refuses() {
        let (screen, mut inbox) = mpsc::unbounded_channel();
        let allowed = Arc::<Mutex<Allowed>>::default();
        let person = Person {
            yes: false,
            only_looks: false,
            allowed: Arc::clone(&allowed),
            root: "/w".into(),
            stop: CancellationToken::new(),
            screen,
        };
        let (arguments, target) = (Map::new(), shell("ls", "."));
        let question = || question(QuestionKind::Call, &arguments, &target);
        let answer = async {
            let Some(Shown::Asking(asking)) = inbox.recv().await else { panic!("nothing was asked") };
            assert_eq!(asking.target, target);
            asking.answer.send(Consent::Given).unwrap();
        };
        assert_eq!(tokio::join!(person.approve(question()), answer).0, Consent::Given);
        drop(inbox);
        assert_eq!(person.approve(question()).await, Consent::UNASKED);
        allowed.lock().unwrap().add(SessionGrant::from_target("shell_command", &target, Path::new("/w")));
        assert_eq!(person.approve(question()).await, Consent::Given);
    }
}
