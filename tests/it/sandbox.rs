//! The sandbox of commands: attacks by a single command, and the work that has to go on inside.
//!
//! A level that this machine does not have cannot be tested here. Such a test says so and ends, and fails where `CI` is set.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde_json::json;
use tempfile::TempDir;
use tools::{
    Approver, Consent, Level, Question, QuestionKind, Sources, ToolError, ToolSet, Tools as _, ToolsConfig,
    Verdict,
};

use testing::waiting::{eventually, look_blocking, wait_until};

use crate::support::tools::{call, config, failure, invocation, launcher, text};
use crate::tools_local::is_alive;

/// Says that a test did not test, which is a failure where everything has to be there.
pub fn skipped(why: &str) {
    assert!(std::env::var_os("CI").is_none(), "not tested: {why}");
    let _ = writeln!(std::io::stderr(), "not tested: {why}");
}

struct Bed {
    outer: TempDir,
    tools: ToolSet,
    level: Level,
}

/// In the home directory, or if `HOME` is below `/tmp`, which commands have for themselves, in that of the user's account.
/// Commands reach `/var/tmp`, and they may read a repository around their workspace, such as that of the target directory.
fn folder() -> TempDir {
    let home = std::env::home_dir().unwrap();
    let account = || nix::unistd::User::from_uid(nix::unistd::geteuid()).unwrap().unwrap();
    let place = if home.starts_with("/tmp") { account().dir } else { home };
    tempfile::Builder::new().prefix(".respool-test-").tempdir_in(place).unwrap()
}

/// A workspace beside a secret; everything is allowed.
async fn bed(settings: &str) -> Bed {
    let outer = folder();
    fs::create_dir(outer.path().join("work")).unwrap();
    fs::write(outer.path().join("secret"), "TOP SECRET").unwrap();
    bed_at(outer, settings).await
}

async fn bed_at(outer: TempDir, settings: &str) -> Bed {
    let work = outer.path().join("work").display().to_string();
    let mut config = config(&format!("local.workspace = {work:?}\npolicy.default = \"allow\"\n{settings}"));
    config.local.launcher = Some(launcher());
    config.local.own_files = vec![outer.path().join("work/own")];
    config.local.state_dir = Some(outer.path().join("state"));
    let wanted = ["exec", "read", "write", "edit"].map(str::to_owned);
    let sources = Sources::open(&config).unwrap();
    let level = sources.sandbox().cloned().unwrap();
    Bed { tools: sources.select_tools(&wanted).await.unwrap(), outer, level }
}

impl Bed {
    fn work(&self, name: &str) -> PathBuf {
        self.outer.path().join("work").join(name)
    }

    async fn run(&self, command: &str) -> String {
        text(&self.tools, "exec", json!({"command": command})).await
    }

    /// False where this machine has no such level; in CI that is a failure.
    fn has(&self, level: &Level) -> bool {
        if self.level < *level {
            skipped(&format!("this machine gives no more than: {}", self.level));
        }
        self.level >= *level
    }

    /// The bed itself; `None` where this machine has no such level.
    fn at_least(self, level: &Level) -> Option<Self> {
        self.has(level).then_some(self)
    }
}

/// A bed whose commands are confined to files; `None` where this machine cannot do that.
async fn confined_bed(settings: &str) -> Option<Bed> {
    bed(settings).await.at_least(&Level::Landlock)
}

/// A bed whose commands have mounts and processes of their own; `None` where this machine cannot do that.
async fn full_bed(settings: &str) -> Option<Bed> {
    bed(settings).await.at_least(&Level::Full)
}

#[tokio::test]
async fn a_command_reaches_its_workspace_and_no_other_files() {
    let Some(bed) = confined_bed("").await else { return };
    assert_eq!(bed.run("echo x > a && cat a && mkdir -p b/c && mv a b/c && rm -r b").await, "x\n");
    assert_eq!(bed.run("f=$(mktemp) && echo tmp > $f && cat $f").await, "tmp\n");
    let secret = bed.outer.path().join("secret").display().to_string();
    for command in [
        format!("cat {secret}"),
        format!("echo x > {secret}"),
        format!("ln -s {secret} link; cat link"),
        format!("cp {secret} here"),
        format!("touch {}/new", bed.outer.path().display()),
        "echo x > /usr/local/respool-test".to_owned(),
        "echo x >> /etc/hosts".to_owned(),
        "cat /dev/kmsg".to_owned(),
        "cat ../secret".to_owned(),
    ] {
        let said = bed.run(&command).await;
        assert!(!said.contains("TOP SECRET") && said.contains("[exit code "), "{command}: {said}");
    }
    assert_eq!(fs::read_to_string(bed.outer.path().join("secret")).unwrap(), "TOP SECRET");
    assert!(!bed.outer.path().join("new").exists());
    let said = bed.run(&format!("cat {secret} && true || ls ~root/.ssh /home/*/.ssh; false")).await;
    assert!(said.contains("tools.local.readable"), "the refusal names its key: {said}");
}

#[tokio::test]
async fn places_of_the_configuration_are_reached() {
    let outer = folder();
    for folder in ["work", "read", "write"] {
        fs::create_dir(outer.path().join(folder)).unwrap();
    }
    fs::write(outer.path().join("read/a"), "seen").unwrap();
    let [read, write] = ["read", "write"].map(|name| outer.path().join(name).display().to_string());
    let bed = bed_at(outer, &format!("local.readable = [{read:?}]\nlocal.writable = [{write:?}]")).await;
    let Some(bed) = bed.at_least(&Level::Landlock) else { return };
    assert_eq!(bed.run(&format!("cat {read}/a && echo x > {write}/b && cat {write}/b")).await, "seenx\n");
    assert!(bed.run(&format!("echo y > {read}/a")).await.contains("[exit code "));
    assert_eq!(fs::read_to_string(bed.outer.path().join("read/a")).unwrap(), "seen");
    assert_eq!(fs::read_to_string(bed.outer.path().join("write/b")).unwrap(), "x\n");
}

/// Binds, connects or sends with Python, and says how each went.
const SOCKETS: &str = r#"
import socket, sys
def attempt(name, make):
    try: make(); print(name, "ok")
    except OSError as error: print(name, type(error).__name__)
attempt("tcp", lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))
attempt("udp", lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM))
attempt("unix", lambda: socket.socket(socket.AF_UNIX))
attempt("packet", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
attempt("vsock", lambda: socket.socket(socket.AF_VSOCK))
attempt("pair", lambda: socket.socketpair())
"#;

#[tokio::test]
async fn sockets_are_those_that_the_configuration_gives() {
    for (network, ip) in [(false, "PermissionError"), (true, "ok")] {
        let Some(bed) = confined_bed(&format!("local.network = {network}")).await else { return };
        fs::write(bed.work("sockets.py"), SOCKETS).unwrap();
        let said = bed.run("/usr/bin/python3 sockets.py || python3 sockets.py").await;
        let expected = format!(
            "tcp {ip}\nudp {ip}\nunix PermissionError\npacket PermissionError\nvsock PermissionError\npair ok\n"
        );
        assert_eq!(said, expected, "network = {network}");
    }
}

#[tokio::test]
async fn kernel_and_namespace_calls_are_refused() {
    let Some(bed) = confined_bed("").await else { return };
    for command in [
        "unshare -Ur true",
        "unshare -m true",
        "mount -t tmpfs none .",
        "umount /proc",
        "chroot . true",
        "nsenter -t 1 -m true",
    ] {
        let said = bed.run(command).await;
        assert!(
            said.contains("not permitted")
                || said.contains("ermission denied")
                || said.contains("must be superuser"),
            "{command}: {said}"
        );
    }
    let sudo = bed.run("grep NoNewPrivs /proc/self/status").await;
    assert_eq!(sudo, "NoNewPrivs:\t1\n");
    assert_eq!(bed.run("ulimit -c").await, "0\n");
    let script = "import fcntl, termios\nfcntl.ioctl(0, 0x5412, b'x')";
    let said = bed.run(&format!("python3 -c \"{script}\"")).await;
    assert!(said.contains("Operation not permitted"), "nothing is typed into a terminal: {said}");
}

#[tokio::test]
async fn jobs_that_leave_their_group_end_with_the_call() {
    for mode in ["auto", "off"] {
        let bed = bed(&format!("local.sandbox = \"{mode}\"")).await;
        let command = "setsid sh -c 'echo begun > s; sleep 1; echo late > late' > /dev/null 2>&1 &\n\
             set -m; (echo begun > m; sleep 1; echo late > later) &\n\
             nohup setsid -f sh -c 'echo begun > n; sleep 1; echo late > last' > /dev/null 2>&1\n\
             until [ -s s ] && [ -s m ] && [ -s n ]; do sleep 0.01; done; echo done";
        let said = bed.run(command).await;
        assert!(
            said.starts_with("done\n[a process left in the background ends with the call"),
            "{mode}: {said}"
        );
        tokio::time::sleep(Duration::from_millis(1300)).await;
        for name in ["late", "later", "last"] {
            assert!(!bed.work(name).exists(), "{mode}: {name}");
        }
    }
}

#[tokio::test]
async fn jobs_outside_their_group_end_too() {
    for mode in ["auto", "off"] {
        let bed = bed(&format!("local.sandbox = \"{mode}\"")).await;
        let command = "setsid sh -c 'sleep 1.5; echo late > late' & echo x > begun; sleep 100";
        let mut slow = invocation("exec", &json!({"command": command}));
        slow.timeout = Duration::from_millis(800);
        let begun = Instant::now();
        assert!(matches!(bed.tools.call(&slow, None).await, Err(ToolError::TimedOut(_))), "{mode}");
        assert!(begun.elapsed() < Duration::from_secs(30));
        let _ = fs::remove_file(bed.work("begun"));
        slow.timeout = Duration::from_secs(20);
        tokio::select! {
            ended = bed.tools.call(&slow, None) => panic!("it ended: {ended:?}"),
            () = wait_until("it has begun", async || bed.work("begun").exists()) => {}
        }
        tokio::time::sleep(Duration::from_millis(1800)).await;
        assert!(!bed.work("late").exists(), "{mode}");
    }
}

/// Also at the timeout, and when nobody waits for the command any more.
#[tokio::test]
async fn settings_of_a_command_that_is_ended_are_renamed() {
    let Some(bed) = confined_bed("").await else { return };
    // git, for one, removes its locks when it is asked to end.
    let command = "trap 'touch cleared; exit' TERM; mkdir .vscode; touch begun; while :; do sleep 0.1; mkdir -p .vscode; done";
    let mut endless = invocation("exec", &json!({"command": command}));
    endless.timeout = Duration::from_millis(800);
    let said = bed.tools.call(&endless, None).await.unwrap_err();
    assert!(said.text().contains("respool renamed it"), "{said:?}");
    assert!(!bed.work(".vscode").exists() && bed.work(".vscode.made-by-a-command").exists());
    for name in ["begun", "cleared"] {
        fs::remove_file(bed.work(name)).unwrap();
    }
    endless.timeout = Duration::from_secs(20);
    tokio::select! {
        ended = bed.tools.call(&endless, None) => panic!("it ended: {ended:?}"),
        () = wait_until("it has begun", async || bed.work("begun").exists()) => {}
    }
    let is_again =
        |entry: fs::DirEntry| entry.file_name().to_string_lossy().starts_with(".vscode.made-by-a-command-");
    let find = async || fs::read_dir(bed.work("")).unwrap().flatten().any(is_again);
    wait_until("it is renamed", find).await;
    assert!(!bed.work(".vscode").exists() && bed.work("cleared").exists());
}

/// Before and after each command the workspace is searched, and nothing else waits for it.
#[tokio::test]
async fn a_search_of_a_huge_workspace_holds_nothing_up() {
    let Some(bed) = full_bed("").await else { return };
    for at in 0..40_000 {
        fs::create_dir_all(bed.work(&format!("many/{}/{at}", at / 200))).unwrap();
    }
    fs::create_dir_all(bed.work(&"deep/".repeat(700))).unwrap();
    let begun = Instant::now();
    let (mut last, mut longest) = (begun, Duration::ZERO);
    let mut ticks = tokio::time::interval(Duration::from_millis(5));
    let mut command = std::pin::pin!(bed.run("echo done"));
    let said = loop {
        tokio::select! {
            said = &mut command => break said,
            _ = ticks.tick() => longest = longest.max(std::mem::replace(&mut last, Instant::now()).elapsed()),
        }
    };
    longest = longest.max(last.elapsed());
    assert_eq!(said, "done\n");
    // On a busy machine everything takes its time.
    let most = Duration::from_millis(100).max(begun.elapsed() / 5);
    assert!(longest < most, "nothing else ran for {longest:?} of {:?}", begun.elapsed());
}

/// git looks from where it is, and sees what has too long a path from `/`.
#[tokio::test]
async fn repositories_with_long_paths_are_not_overlooked() {
    let Some(bed) = full_bed("").await else { return };
    // One that is longer than a path may be, and one in which a directory is named and nothing in it.
    for length in [4500, 4094] {
        let _ = fs::remove_dir_all(bed.work("deep"));
        let script = format!(
            "import os\nos.mkdir('deep'); os.chdir('deep')\nleft = {length} - len(os.getcwd())\n\
             while left:\n  name = 'a' * min(left - 1, 200 if left != 202 else 100)\n\
             \x20 os.mkdir(name); os.chdir(name); left -= len(name) + 1\nif {length} > 4095: os.mkdir('.git')"
        );
        fs::write(bed.work("deep.py"), script).unwrap();
        let said = bed.run("python3 deep.py && echo made").await;
        assert!(said.contains("made") && said.contains("cannot be looked through"), "{said}");
        let said = bed.run("touch new").await;
        assert!(said.contains("ead-only file system"), "{said}");
    }
}

#[tokio::test]
async fn commands_have_the_variables_that_keep_programs_from_asking() {
    let bed = bed("").await;
    assert_eq!(bed.run("echo $TERM $PAGER $GIT_EDITOR").await, "dumb cat true\n");
}

#[tokio::test]
async fn exit_codes_and_signals_come_through() {
    for mode in ["auto", "off"] {
        let bed = bed(&format!("local.sandbox = \"{mode}\"")).await;
        for (command, expected) in [
            ("exit 3", "[exit code 3]"),
            ("kill -9 $$", "[exit code 137]"),
            ("kill -TERM $$", "[exit code 143]"),
            ("exit 137", "[exit code 137]"),
            ("true", "[no output]"),
            ("tty", "not a tty\n\n[exit code 1]"),
            ("echo x > /dev/tty", "[exit code 1]"),
        ] {
            let said = bed.run(command).await;
            assert!(said.contains(expected), "{mode} {command}: {said}");
        }
    }
}

#[tokio::test]
async fn other_processes_are_out_of_reach() {
    let Some(bed) = confined_bed("").await else { return };
    // Stands for an MCP server: a child of respool with a secret in its environment and its arguments.
    let mut server = std::process::Command::new("/bin/sh")
        .args(["-c", "read x", "argument-secret"])
        .env("SERVER_TOKEN", "environment-secret")
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let (pid, own) = (server.id(), std::process::id());
    let said = bed
        .run(&format!("cat /proc/{pid}/environ /proc/{own}/environ; cat /proc/*/environ | tr '\\0' '\\n'; kill -9 {pid} {own}; kill -9 -- -{pid}"))
        .await;
    assert!(!said.contains("environment-secret"), "{said}");
    assert!(server.try_wait().unwrap().is_none(), "it still runs");
    if bed.has(&Level::Full) {
        assert!(!bed.run("cat /proc/*/cmdline | tr '\\0' '\\n'").await.contains("argument-secret"));
    }
    server.kill().unwrap();
    server.wait().unwrap();
}

fn git(folder: &Path, arguments: &[&str]) {
    let done = std::process::Command::new("git").args(arguments).current_dir(folder).output().unwrap();
    assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
}

fn repository(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    git(folder, &["init", "-q", "-b", "main"]);
    for (key, value) in [("user.name", "me"), ("user.email", "me@example.org"), ("commit.gpgsign", "false")] {
        git(folder, &["config", key, value]);
    }
}

/// Regression: a test in one terminal made each `git add` in another one fail at once.
#[tokio::test]
async fn git_waits_for_other_commands() {
    let Some(bed) = full_bed("").await else { return };
    repository(&bed.work(""));
    let adds = async {
        wait_until("the other command runs", async || bed.work("begun").exists()).await;
        bed.run("git add ended && git status --short ended").await
    };
    let (_, said) = tokio::join!(bed.run("touch begun; sleep 2; touch ended"), adds);
    assert_eq!(said, "A  ended\n");
}

/// Regression: a command of git's without an end held all others in its directory beyond their limits.
#[tokio::test]
async fn endless_git_holds_others_to_their_limit() {
    let Some(bed) = full_bed("").await else { return };
    repository(&bed.work(""));
    let pipe = bed.work("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let other = async {
        let mut options = fs::OpenOptions::new();
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, nix::libc::O_NONBLOCK);
        // Opening it fails until git reads it.
        let mut message = eventually(|| options.write(true).open(&pipe).ok()).await;
        let said = failure(&bed.tools, "exec", json!({"command": "touch other", "timeout": 1})).await;
        message.write_all(b"one").unwrap();
        said
    };
    let (_, said) = tokio::join!(bed.run("git commit --allow-empty -qF pipe"), other);
    assert!(said.contains("another command may be at work") && !bed.work("other").exists(), "{said}");
    assert_eq!(bed.run("git log --format=%s && touch other").await, "one\n");
}

/// Regression: git waited for others until its limit where it could not see them.
#[tokio::test]
async fn git_says_that_it_sees_no_others() {
    let Some(bed) = full_bed("").await else { return };
    repository(&bed.work(""));
    fs::write(bed.outer.path().join("state"), "").unwrap();
    let said = failure(&bed.tools, "exec", json!({"command": "git commit --allow-empty -qm one"})).await;
    assert!(said.contains("cannot be written"), "{said}");
    assert_eq!(bed.run("touch other && ls").await, "other\n");
}

/// Regression: git's own steps passed over a hook that forbids the commit, and nothing said so.
#[tokio::test]
async fn commits_do_not_pass_over_hooks() {
    let Some(bed) = full_bed("").await else { return };
    repository(&bed.work(""));
    let commit = async |options: &str| {
        let line =
            format!("echo x >> a && git add a && git commit {options}-qm one && git log --format=%s -1");
        bed.run(&line).await
    };
    let hook = |place: &str| {
        fs::create_dir_all(bed.work(place).parent().unwrap()).unwrap();
        fs::write(bed.work(place), "#!/bin/sh\nexit 1\n").unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(bed.work(place), mode).unwrap();
    };
    hook(".git/hooks/post-commit");
    assert_eq!(commit("").await, "one\n", "it forbids nothing");
    hook(".git/hooks/pre-commit");
    let said = commit("").await;
    assert!(said.contains("has the hook pre-commit, and the sandbox runs no hooks"), "{said}");
    assert_eq!(commit("--no-verify ").await, "one\n");
    fs::remove_file(bed.work(".git/hooks/pre-commit")).unwrap();
    assert_eq!(commit("").await, "one\n");
    git(&bed.work(""), &["config", "core.hooksPath", "team"]);
    hook("team/commit-msg");
    // git warns about this before it says where the hooks are.
    git(&bed.work(""), &["config", "core.fsync", "unknown"]);
    let said = commit("").await;
    assert!(said.contains("has the hook commit-msg"), "{said}");
    hook("team/prepare-commit-msg");
    let said = commit("--no-verify ").await;
    assert!(said.contains("has the hook prepare-commit-msg, "), "{said}");
    for line in ["merge x", "pull . x", "cherry-pick x", "revert HEAD", "rebase --continue"] {
        let said = bed.run(&format!("git {line}")).await;
        assert!(said.contains("has the hooks prepare-commit-msg, commit-msg"), "{line}: {said}");
    }
}

/// Regression: other programs' words led to the question about the sandbox, and git's on a key did not.
#[tokio::test]
async fn only_gits_words_are_of_git() {
    let Some(bed) = full_bed("").await else { return };
    repository(&bed.work(""));
    let said = bed.run("echo 'configure: error: cannot run C compiled programs'; false").await;
    assert!(!said.contains("tools.local.readable"), "{said}");
    for (key, value) in [("gpg.format", "ssh"), ("user.signingKey", "/nowhere/key.pub")] {
        git(&bed.work(""), &["config", key, value]);
    }
    let said = bed.run("git commit --allow-empty -qm one && git tag -s -m t v1").await;
    assert!(said.contains("sign the tag") && said.contains("tools.local.readable"), "{said}");
}

/// Regression: the next command of git's ran on half of the work of the one before it.
#[tokio::test]
async fn half_done_work_ends_a_line() {
    let Some(bed) = full_bed("").await else { return };
    repository(&bed.work(""));
    let commit = |name: &str| {
        fs::create_dir_all(bed.work(name).parent().unwrap()).unwrap();
        fs::write(bed.work(name), "x").unwrap();
        git(&bed.work(""), &["add", "."]);
        git(&bed.work(""), &["commit", "-qm", name]);
    };
    commit("kept");
    git(&bed.work(""), &["switch", "-qc", "side"]);
    commit(".vscode/x");
    git(&bed.work(""), &["switch", "-q", "main"]);
    let said = bed.run("git switch side && git rm -q kept; git rm -q kept").await;
    assert!(said.contains("half of its work") && bed.work("kept").exists(), "{said}");
}

#[tokio::test]
async fn a_repository_is_read_only_as_a_whole() {
    let Some(bed) = full_bed("").await else { return };
    repository(&bed.work(""));
    repository(&bed.work("a/b/c/d/nested"));
    fs::create_dir(bed.work("own")).unwrap();
    fs::write(bed.work("a/file"), "x").unwrap();
    let before = fs::read_to_string(bed.work(".git/config")).unwrap();
    for command in [
        "echo '[core]' >> .git/config",
        "git config core.fsmonitor ./evil",
        "git remote add evil ../evil",
        "echo '#!/bin/sh' > .git/hooks/pre-commit",
        "rm -rf .git/hooks",
        "mv .git kept",
        "echo > .git/new",
        "ln -f a/file .git/config",
        "touch a/b/c/d/nested/.git/hooks/pre-commit",
        "mv a/b a/other",
        "mv a other",
        "touch own/file",
        "rm -r own",
        "mv own other",
    ] {
        let said = bed.run(command).await;
        assert!(said.contains("[exit code "), "{command}: {said}");
    }
    assert_eq!(fs::read_to_string(bed.work(".git/config")).unwrap(), before);
    assert_eq!(bed.run("mv a/file a/b/c/d/moved && cat a/b/c/d/moved").await, "x");
}

#[tokio::test]
async fn git_works_in_a_linked_work_tree() {
    let outer = folder();
    let main = outer.path().join("main");
    repository(&main);
    git(&main, &["commit", "-q", "--allow-empty", "-m", "one"]);
    git(&main, &["worktree", "add", "-q", "../work"]);
    let Some(bed) = bed_at(outer, "").await.at_least(&Level::Landlock) else { return };
    if bed.has(&Level::Full) {
        assert_eq!(
            bed.run("echo a > a && git add a && git commit -qm two && git log --format=%s -1").await,
            "two\n"
        );
    }
    assert!(bed.run(&format!("echo x > {}/file", main.display())).await.contains("[exit code "));
    if bed.has(&Level::Full) {
        for command in ["git config core.fsmonitor x", "echo gitdir: /etc > .git"] {
            assert!(bed.run(command).await.contains("[exit code "), "{command}");
        }
        assert!(bed.run(&format!("touch {}/.git/hooks/x", main.display())).await.contains("[exit code "));
    }
}

/// Other commands write the same `/tmp`: what they put where something is to be mounted is not followed.
#[tokio::test]
async fn a_link_in_the_commands_own_tmp_leads_nowhere() {
    let outer = tempfile::tempdir().unwrap();
    fs::create_dir(outer.path().join("work")).unwrap();
    let target = folder();
    let Some(bed) = bed_at(outer, "").await.at_least(&Level::Full) else { return };
    let name = bed.outer.path().file_name().unwrap().to_str().unwrap().to_owned();
    let lead = format!(
        "mv /tmp/{name} /tmp/moved; ln -s {} /tmp/{name}; ln -s / /tmp/{name}2",
        target.path().display()
    );
    bed.run(&lead).await;
    let said = bed.run(&format!("echo x > a && ls -A /tmp | grep -e moved -e {name} && cat a")).await;
    assert!(said.starts_with(&format!("{name}\nx\n[/tmp is empty for each command here")), "{said}");
    assert_eq!(bed.run("cat a").await, "x\n", "a command that does not name it");
    assert_eq!(fs::read_dir(target.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_state_directory_around_the_workspace_leaves_it_writable() {
    let outer = folder();
    fs::create_dir(outer.path().join("work")).unwrap();
    let work = outer.path().join("work").display().to_string();
    let mut config = config(&format!("local.workspace = {work:?}\npolicy.default = \"allow\""));
    config.local.launcher = Some(launcher());
    config.local.own_files = vec![outer.path().to_owned(), outer.path().join("work/audit.jsonl")];
    let tools =
        Sources::open(&config).unwrap().select_tools(&["exec", "write"].map(str::to_owned)).await.unwrap();
    assert_eq!(text(&tools, "exec", json!({"command": "echo x > a; cat a"})).await, "x\n");
    text(&tools, "write", json!({"path": "b", "content": "x"})).await;
    let problem = failure(&tools, "write", json!({"path": "audit.jsonl", "content": "x"})).await;
    assert!(problem.contains("no tool writes there"), "{problem}");
}

/// A `.git` file leads only where the repository there knows of it.
#[tokio::test]
async fn a_forged_link_to_a_repository_opens_nothing() {
    let Some(bed) = confined_bed("").await else { return };
    let outer = bed.outer.path().display().to_string();
    fs::write(bed.work(".git"), format!("gitdir: {outer}\n")).unwrap();
    for name in ["HEAD", "gitdir", "commondir"] {
        fs::write(bed.outer.path().join(name), format!("{outer}\n")).unwrap();
    }
    assert!(bed.run("cat ../secret").await.contains("ermission denied"));
}

#[tokio::test]
async fn file_tools_do_not_write_protected_files() {
    for mode in ["auto", "off"] {
        let bed = bed(&format!("local.sandbox = \"{mode}\"")).await;
        repository(&bed.work(""));
        fs::create_dir(bed.work("own")).unwrap();
        std::os::unix::fs::symlink(".git", bed.work("alias")).unwrap();
        for directory in ["mirror.git/objects", "mirror.git/refs", "src/objects", "src/refs", "made/objects"]
        {
            fs::create_dir_all(bed.work(directory)).unwrap();
        }
        fs::write(bed.work("mirror.git/HEAD"), "ref: refs/heads/main\n").unwrap();
        fs::write(bed.work("made/HEAD"), "ref: refs/heads/main\n").unwrap();
        for path in [
            ".git/hooks/pre-commit",
            ".git/config",
            "alias/config",
            "sub/.GIT/config",
            "own/store.db",
            "respool.toml",
            "mirror.git/config",
            "mirror.git/hooks/update",
            // The last parts of a repository without a work tree.
            "src/HEAD",
            "made/refs/x",
        ] {
            for (tool, arguments) in [
                ("write", json!({"path": path, "content": "x"})),
                ("edit", json!({"path": path, "edits": [{"oldText": "core", "newText": "x"}]})),
            ] {
                let problem = failure(&bed.tools, tool, arguments).await;
                assert!(
                    problem.contains("no tool writes there") || problem.contains("does not exist"),
                    "{tool} {path}: {problem}"
                );
            }
            let problem = failure(&bed.tools, "write", json!({"path": path, "content": "x"})).await;
            assert!(problem.contains("no tool writes there"), "{path}: {problem}");
        }
        assert!(
            text(&bed.tools, "read", json!({"path": ".git/config"})).await.contains("[core]"),
            "it may be read"
        );
    }
}

#[tokio::test]
async fn a_missing_required_sandbox_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(&format!("local.workspace = {:?}\nlocal.sandbox = \"require\"", folder.path()));
    config.local.launcher = Some("/bin/false".into());
    let problems = Sources::open(&config).err().unwrap();
    assert!(problems[0].to_string().contains("a sandbox is required and cannot be had"), "{problems:?}");
    config.local.launcher = None;
    assert!(Sources::open(&config).is_err());
}

/// Without a network of its own a command reaches the machine's daemons: the question says so, and a required
/// sandbox cannot be had.
#[tokio::test]
async fn services_in_reach_are_named() {
    let Some(_) = confined_bed("").await else { return };
    let folder = folder();
    let mut settings = ToolsConfig::default();
    settings.local.launcher = Some(launcher());
    settings.local.highest_level = Some(Level::Landlock);
    let tools = ToolSet::open_for_chat(&settings, &settings.policy.clone(), folder.path()).unwrap();
    let person = Person(false, std::sync::Mutex::default());
    let call = invocation("shell_command", &json!({"command": "touch x"}));
    tools.call(&call, Some(&person)).await.unwrap();
    let asked = person.1.into_inner().unwrap().concat();
    assert!(asked.contains("reaches services on this machine") && asked.contains("passt"), "{asked}");
    settings.local.workspace = Some(folder.path().to_owned());
    settings.local.sandbox = toml::Value::from("require").try_into().unwrap();
    settings.local.network = Some(true);
    let problems = Sources::open(&settings).err().unwrap();
    assert!(problems[0].to_string().contains("reaches services on this machine"), "{problems:?}");
    settings.local.network = Some(false);
    Sources::open(&settings).unwrap();
}

#[tokio::test]
async fn a_sandbox_that_cannot_be_made_runs_nothing() {
    let spec = r#"{"directory":"/no/where","bubblewrap":null,"landlock":true,"seccomp":true,"network":false,"everything":false,"readable":[],"executed":[],"hidden":[],"listed":[],"writable":[],"without_links":[],"scratch":[],"frozen":[],"covers":{},"forwarded":[],"avoided":[],"pinned":[]}"#;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ran");
    for spec in [spec, "{}", "nonsense"] {
        let (control, _held) = std::io::pipe().unwrap();
        let done = std::process::Command::new(launcher())
            .args(["sandbox-exec", spec, "--", "/usr/bin/touch"])
            .arg(&file)
            .stdin(control)
            .output()
            .unwrap();
        assert_eq!(done.status.code(), Some(125), "{spec}");
        assert!(String::from_utf8_lossy(&done.stderr).contains("nothing ran"), "{done:?}");
    }
    assert!(!file.exists());
}

/// One that fails may leave others behind, which hold its pipes.
#[tokio::test]
async fn a_pasta_that_fails_ends() {
    let folder = tempfile::tempdir().unwrap();
    let pasta = folder.path().join("pasta");
    fs::write(&pasta, "#!/bin/sh\nsleep 300 &\necho failed >&2\nexit 1\n").unwrap();
    fs::set_permissions(&pasta, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let spec = json!({
        "directory": "/", "bubblewrap": null, "pasta": pasta, "network": true, "landlock": false, "seccomp": false,
        "everything": false, "readable": [], "executed": [], "hidden": [], "listed": [], "writable": [], "without_links": [], "scratch": [], "frozen": [], "covers": {},
        "forwarded": [], "avoided": [], "pinned": [], "user": null,
    });
    let (control, _held) = std::io::pipe().unwrap();
    let begun = Instant::now();
    let mut command = std::process::Command::new(launcher());
    let done =
        command.args(["sandbox-exec", &spec.to_string(), "--", "true"]).stdin(control).output().unwrap();
    assert!(done.status.code() == Some(125) && begun.elapsed() < Duration::from_mins(1), "{done:?}");
    assert!(String::from_utf8_lossy(&done.stderr).contains("pasta: failed"), "{done:?}");
}

/// Landlock lets commands change what is not a file's content.
#[tokio::test]
async fn metadata_outside_stays_unchanged() {
    let Some(bed) = full_bed("").await else { return };
    let secret = bed.outer.path().join("secret");
    let before = fs::metadata(&secret).unwrap();
    for command in
        ["chmod 777 ../secret", "touch -d 2001-01-01 ../secret", "chmod 000 ..", "chown -h 1 ../secret"]
    {
        let said = bed.run(command).await;
        assert!(said.contains("[exit code"), "{command}: {said}");
    }
    let after = fs::metadata(&secret).unwrap();
    assert_eq!(
        (before.permissions(), before.modified().unwrap()),
        (after.permissions(), after.modified().unwrap())
    );
    let name = format!("respool-test-{}", std::process::id());
    let said = bed.run(&format!("echo x > /dev/shm/{name} && cat /dev/shm/{name}")).await;
    assert_eq!(said, "x\n");
    assert!(!Path::new("/dev/shm").join(&name).exists());
    let said = bed
        .run("echo x > a && chmod 750 a && touch -d 2001-01-01 a && mkdir d && mv a d && stat -c %a d/a")
        .await;
    assert_eq!(said, "750\n", "inside it goes on");
    let said = bed.run("echo x > /tmp/t && chmod 700 /tmp/t && stat -c %a /tmp/t").await;
    assert_eq!(said, "700\n");
}

/// Answers questions, and counts those about the sandbox.
struct Person(bool, std::sync::Mutex<Vec<String>>);

#[async_trait]
impl Approver for Person {
    async fn approve(&self, question: Question<'_>) -> Consent {
        self.1.lock().unwrap().push(format!("{}: {}", question.tool, question.preview.unwrap_or_default()));
        let is_wider = question.kind == QuestionKind::OutsideSandbox;
        Consent::from_answer(!is_wider || self.0)
    }
}

fn chat(workspace: &Path) -> ToolSet {
    let mut settings = ToolsConfig::default();
    settings.local.launcher = Some(launcher());
    ToolSet::open_for_chat(&settings, &settings.policy.clone(), workspace).unwrap()
}

/// Someone in the read-only mode, who would agree to everything.
struct Looker;

#[async_trait]
impl Approver for Looker {
    fn only_looks(&self) -> bool {
        true
    }

    async fn approve(&self, _: Question<'_>) -> Consent {
        Consent::Given
    }
}

#[tokio::test]
async fn read_only_chats_run_what_looks() {
    let Some(_) = confined_bed("").await else { return };
    let outer = folder();
    let work = outer.path().join("work");
    fs::create_dir(&work).unwrap();
    fs::write(work.join("a"), "text").unwrap();
    for default in [Verdict::Ask, Verdict::Allow] {
        let mut settings = ToolsConfig::default();
        settings.local.launcher = Some(launcher());
        settings.policy.default = default;
        let tools = ToolSet::open_for_chat(&settings, &settings.policy.clone(), &work).unwrap();
        let run = async |command: &str| {
            tools.call(&invocation("shell_command", &json!({"command": command})), Some(&Looker)).await
        };
        assert!(run("cat a").await.unwrap().text.contains("text"));
        for command in ["touch made", "sort -o made a"] {
            assert!(matches!(run(command).await, Err(ToolError::Denied(_))), "{command}");
        }
        assert!(!work.join("made").exists());
    }
}

#[tokio::test]
async fn the_chat_asks_again_beyond_the_sandbox() {
    let Some(_) = confined_bed("").await else { return };
    let outer = folder();
    fs::create_dir(outer.path().join("work")).unwrap();
    let own = outer.path().join("own.toml");
    fs::write(&own, "own").unwrap();
    let state = outer.path().join("state");
    let audit = state.join("audit.jsonl");
    fs::create_dir(&state).unwrap();
    fs::write(&audit, "{}").unwrap();
    let mut settings = ToolsConfig::default();
    settings.local.launcher = Some(launcher());
    settings.local.own_files = vec![own.clone(), state.clone()];
    settings.local.hidden = vec![state, audit];
    let tools =
        ToolSet::open_for_chat(&settings, &settings.policy.clone(), &outer.path().join("work")).unwrap();
    let file = outer.path().join("beyond");
    let command = format!("echo x 2> /dev/null > {}; echo x > {}", own.display(), file.display());
    let write = invocation("shell_command", &json!({"command": command}));
    for answer in [false, true] {
        let person = Person(answer, std::sync::Mutex::default());
        let said = tools.call(&write, Some(&person)).await.unwrap().text;
        assert_eq!(said.lines().last(), Some(if answer { "[no output]" } else { "[exit code 1]" }), "{said}");
        assert_ne!(said.contains("the person who was asked said no"), answer, "{said}");
        let asked = person.1.into_inner().unwrap();
        assert_eq!(asked.len(), 2, "{asked:?}");
        assert!(asked[1].starts_with("shell_command outside the sandbox: "), "{asked:?}");
        assert_eq!(file.exists(), answer);
        assert_eq!(fs::read_to_string(&own).unwrap(), "own");
    }
}

/// A command put another `git` into the `.venv/bin` of the workspace, and the person agreed to `git commit`.
#[tokio::test]
async fn git_outside_is_the_systems() {
    let Some(bed) = full_bed("").await else { return };
    let line = json!({"command": "touch ../new && command -v git"});
    let person = Person(true, std::sync::Mutex::default());
    let said = chat(&bed.work("")).call(&invocation("shell_command", &line), Some(&person)).await.unwrap();
    let programs = std::process::Command::new("git").arg("--exec-path").output().unwrap().stdout;
    assert_eq!(said.text.trim_end(), format!("{}/git", String::from_utf8(programs).unwrap().trim_end()));
}

/// The keys of a server's clients lie in the workspace of a chat.
#[tokio::test]
async fn chat_commands_read_no_keys() {
    for level in [Level::Full, Level::Landlock] {
        let folder = folder();
        for (name, text) in [("keys.toml", "TOKEN"), ("a", "own")] {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let mut settings = ToolsConfig::default();
        settings.local.launcher = Some(launcher());
        settings.local.highest_level = Some(level);
        settings.local.hidden = vec![folder.path().join("keys.toml")];
        let tools = ToolSet::open_for_chat(&settings, &settings.policy.clone(), folder.path()).unwrap();
        for command in ["cat keys.toml a", "ls && cat keys.toml a; echo x > new"] {
            let person = Person(false, std::sync::Mutex::default());
            let call = invocation("shell_command", &json!({"command": command}));
            let said = tools.call(&call, Some(&person)).await.unwrap().text;
            assert!(!said.contains("TOKEN") && said.contains("own"), "{said}");
            assert_eq!(said.contains("a\nkeys.toml\n"), command.starts_with("ls"), "{said}");
            let asked = person.1.into_inner().unwrap();
            assert!(asked[0].contains("keys.toml belongs to respool"), "{asked:?}");
        }
        assert!(!folder.path().join("new").exists());
    }
}

/// The repository of a command was written although its workspace is read-only, where that has many others.
#[tokio::test]
async fn no_repository_is_spared_where_none_is_written() {
    for level in [Level::Full, Level::Landlock] {
        let folder = folder();
        fs::write(folder.path().join("keys.toml"), "TOKEN").unwrap();
        for name in ["app".to_owned()].into_iter().chain((0..200).map(|number| format!("many/{number}"))) {
            let git = folder.path().join(name).join(".git");
            fs::create_dir_all(git.join("objects")).unwrap();
            fs::create_dir(git.join("refs")).unwrap();
            fs::write(git.join("HEAD"), "ref: refs/heads/main\n").unwrap();
        }
        let mut settings = ToolsConfig::default();
        settings.local.launcher = Some(launcher());
        settings.local.hidden = vec![folder.path().join("keys.toml")];
        settings.local.hidden.retain(|_| level == Level::Full);
        settings.local.highest_level = Some(level);
        let tools = ToolSet::open_for_chat(&settings, &settings.policy.clone(), folder.path()).unwrap();
        let write = json!({"command": "echo x > new; echo x > .git/config", "workdir": "app"});
        let person = Person(false, std::sync::Mutex::default());
        let said = tools.call(&invocation("shell_command", &write), Some(&person)).await.unwrap().text;
        for made in ["app/new", "app/.git/config"] {
            assert!(!folder.path().join(made).exists(), "{made}: {said}");
        }
    }
}

/// An MCP server reads it outside the sandbox.
#[tokio::test]
async fn files_of_mcp_servers_need_consent() {
    let outer = folder();
    fs::create_dir(outer.path().join("work")).unwrap();
    let place = outer.path().join("work/plugins").display().to_string();
    let bed = bed_at(outer, &format!("mcp.x = {{ command = \"true\", args = [{place:?}] }}")).await;
    fs::create_dir(bed.work("plugins")).unwrap();
    fs::write(bed.work("plugins/a"), "old").unwrap();
    for (tool, arguments) in [
        ("write", json!({"path": "plugins/new", "content": "x"})),
        ("edit", json!({"path": "plugins/a", "edits": [{"oldText": "old", "newText": "x"}]})),
    ] {
        let problem = call(&bed.tools, tool, arguments).await.unwrap_err();
        assert!(problem.text().contains("an MCP server outside the sandbox"), "{problem:?}");
    }
    text(&bed.tools, "write", json!({"path": "other", "content": "x"})).await;
}

/// Landlock alone grants everything but respool's own files.
#[tokio::test]
async fn without_bubblewrap_the_chat_opens_no_files_of_respool() {
    let outer = folder();
    for directory in ["work", "other", "state"] {
        fs::create_dir(outer.path().join(directory)).unwrap();
    }
    let mut settings = ToolsConfig::default();
    settings.local.launcher = Some(launcher());
    settings.local.highest_level = Some(Level::Landlock);
    settings.local.own_files = vec![outer.path().join("state"), outer.path().join("respool.toml")];
    let tools =
        ToolSet::open_for_chat(&settings, &settings.policy.clone(), &outer.path().join("work")).unwrap();
    let place = outer.path().display();
    let command =
        format!("echo x > {place}/other/x; echo x > {place}/state/x; echo x > {place}/respool.toml");
    let person = Person(true, std::sync::Mutex::default());
    let write = invocation("shell_command", &json!({"command": command}));
    let said = tools.call(&write, Some(&person)).await.unwrap().text;
    assert!(outer.path().join("other/x").exists(), "{said}");
    assert!(!outer.path().join("state/x").exists() && !outer.path().join("respool.toml").exists(), "{said}");
}

/// A command that has to write a repository's configuration asks the person.
#[tokio::test]
async fn in_the_chat_gits_configuration_is_asked_for() {
    let Some(_) = full_bed("").await else { return };
    let folder = folder();
    repository(folder.path());
    let tools = chat(folder.path());
    let call = invocation("shell_command", &json!({"command": "git remote add origin ../x"}));
    for answer in [false, true] {
        let person = Person(answer, std::sync::Mutex::default());
        tools.call(&call, Some(&person)).await.unwrap();
        assert_eq!(person.1.into_inner().unwrap().len(), 2);
        let config = fs::read_to_string(folder.path().join(".git/config")).unwrap();
        assert_eq!(config.contains("origin"), answer);
    }
}

/// Steps that have run in the sandbox do not run a second time.
#[tokio::test]
async fn the_chat_repeats_no_finished_step() {
    let Some(_) = full_bed("").await else { return };
    let folder = folder();
    repository(folder.path());
    let (tools, person) = (chat(folder.path()), Person(true, std::sync::Mutex::default()));
    let line = "echo x >> log && git add log && git commit -qm log && git remote add origin ../x && git log --format=%s";
    let call = invocation("shell_command", &json!({"command": line}));
    let said = tools.call(&call, Some(&person)).await.unwrap().text;
    let left = "[still to run: git remote add origin ../x && git log --format=%s]\nlog\n";
    assert!(said.starts_with(left) && said.matches("log\n").count() == 1, "{said}");
    assert_eq!(person.1.into_inner().unwrap().len(), 2);
    assert_eq!(fs::read_to_string(folder.path().join("log")).unwrap(), "x\n");
}

/// Models write the message of a commit in a here document, and join commands as they like.
#[tokio::test]
async fn commits_may_be_written_in_many_ways() {
    let Some(bed) = full_bed("").await else { return };
    repository(&bed.work(""));
    for line in [
        "echo 1 > a; git add a; git commit -qm one; git log -1 --format=%s",
        "echo 2 > a\ngit add -A\nfalse && git reset -q\ngit commit -qm '$two `2`'",
        "echo 3 > a && git add -A && git commit -q -m \"$(cat <<'EOF'\n`3`: it's $3\n\nBody\nEOF\n)\" && git status -s",
        "mkdir d",
        "test -e nothing; cd d && echo 4 > b; git add b && git commit -qm four",
    ] {
        let said = bed.run(line).await;
        assert!(!said.contains("fatal") && !said.contains("sandbox"), "{line}: {said}");
    }
    assert_eq!(bed.run("git commit \\\n  --amend -qm four \\\n  --no-edit").await, "[no output]");
    let said = bed.run("git commit --allow-empty -qm five 2>&1 | tail -3").await;
    assert!(said.contains("Read-only") && said.contains("respool's sandbox"), "{said}");
    let said = bed.run("false && cd d; git commit --allow-empty -qm five").await;
    assert!(said.contains("Read-only"), "a shell would stay where it is: {said}");
    let said = bed.run("git commit --allow-empty -qm six; git remote add origin x; git tag seven").await;
    assert!(said.contains("[still to run: git remote add origin x; git tag seven]"), "{said}");
    let log = bed.run("git log --format=%s --name-only; git tag").await;
    assert!(log.starts_with("six\nfour\n\nd/b\n`3`: it's $3\n\na\n$two `2`\n\na\none\n"), "{log}");
    assert_eq!(bed.run("basename $PWD").await, "work\n");
    // Regression: a word of the sandbox in the output of a step that is done had the whole line repeated.
    let said = bed.run("echo EPERM && git tag eight && false").await;
    assert!(said.starts_with("EPERM\n") && !said.contains("sandbox"), "{said}");
    assert_eq!(bed.run("false; git tag nine").await, "[exit code 1]\n[no output]");
    assert_eq!(bed.run("echo b > f; echo a >> f\nsort f |\ntee g && git add g").await, "a\nb\n");
    // Regression: bash 5.2 ends the document at the second row, and runs its rest.
    let said = bed.run("echo \"$(cat <<'EOF'\nhi\nEOF touch made #)\nEOF\n)\"").await;
    assert_eq!((said.as_str(), bed.work("made").exists()), ("hi\nEOF touch made #)\n", false));
}

/// Nobody is asked about a command that only looks, unless it wants more than that or a rule speaks of it.
#[tokio::test]
async fn looking_asks_nobody_and_changes_nothing() {
    let Some(_) = full_bed("").await else { return };
    let folder = folder();
    repository(folder.path());
    git(folder.path(), &["commit", "-q", "--allow-empty", "-m", "one"]);
    for (key, value) in [("gpg.format", "ssh"), ("user.signingKey", "/nowhere/key.pub")] {
        git(folder.path(), &["config", key, value]);
    }
    fs::write(folder.path().join("a"), "one\n").unwrap();
    let attempt = async |tools: &ToolSet, command: &str| {
        let person = Person(false, std::sync::Mutex::default());
        let output =
            tools.call(&invocation("shell_command", &json!({"command": command})), Some(&person)).await;
        let said = output.map_or_else(|error| error.text().to_owned(), |output| output.text);
        (said, person.1.into_inner().unwrap().len())
    };
    let tools = chat(folder.path());
    for (command, expected, questions) in [
        ("git status --short; cat a | wc -l", "1\n", 0),
        ("ls missing", "No such file", 0),
        ("touch=1 cat a", "one\n", 1),
        ("cat a > b", "[no output]", 1),
        ("sort -o sorted a", "[no output]", 1),
        ("find . -name a -exec cp {} copied \\;", "[no output]", 1),
        ("head -1 /etc/hostname", "", 1),
        ("git tag -s -m t v1", "sign the tag", 2),
    ] {
        let (said, asked) = attempt(&tools, command).await;
        assert!(said.contains(expected) && asked == questions, "{command}: {asked} {said}");
    }
    for name in ["b", "sorted", "copied"] {
        assert!(folder.path().join(name).exists(), "with consent: {name}");
    }
    for (rule, questions) in [
        ("tool = \"exec\"\nthen = \"ask\"", 1),
        ("command = \"cat *\"\nthen = \"deny\"", 0),
        ("tool = \"read\"\npath = \".env\"\nthen = \"deny\"", 1),
    ] {
        let policy = toml::from_str(&format!("[[rule]]\n{rule}")).unwrap();
        let mut settings = ToolsConfig::default();
        settings.local.launcher = Some(launcher());
        let tools = ToolSet::open_for_chat(&settings, &policy, folder.path()).unwrap();
        let (said, asked) = attempt(&tools, "cat a").await;
        assert_eq!(asked, questions, "{rule}: {said}");
        assert_eq!(said == "one\n", questions == 1, "{rule}: {said}");
    }
}

/// People's everyday commands work inside, with the network that the chat has.
#[tokio::test]
async fn builds_tests_and_package_managers_work_in_the_chat() {
    let folder = tempfile::tempdir().unwrap();
    let tools = chat(folder.path());
    let write = |name: &str, content: &str| {
        fs::create_dir_all(folder.path().join(name).parent().unwrap()).unwrap();
        fs::write(folder.path().join(name), content).unwrap();
    };
    write(
        "rust/Cargo.toml",
        "[package]\nname = \"x\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[workspace]\n",
    );
    write(
        "rust/src/lib.rs",
        "#[test]\nfn works() { std::fs::write(std::env::temp_dir().join(\"t\"), \"x\").unwrap(); }\n",
    );
    write("Makefile", "all: a.out\n\t./a.out\na.out: a.c\n\tcc a.c\n");
    write("a.c", "#include <stdio.h>\nint main(void) { puts(\"made\"); return 0; }\n");
    write(
        "node/package.json",
        "{\"name\": \"x\", \"version\": \"1.0.0\", \"scripts\": {\"test\": \"node --test\"}, \"dependencies\": {\"y\": \"file:../dep\"}}",
    );
    write("dep/package.json", "{\"name\": \"y\", \"version\": \"1.0.0\"}");
    write(
        "node/a.test.js",
        "const y = require('node:test'); y('works', () => require('node:child_process').execSync('true'));",
    );
    write("py/pyproject.toml", "[project]\nname = \"x\"\nversion = \"0.1\"\n");
    for (program, command, expected) in [
        ("cargo", "cd rust && cargo test --offline 2>&1", "test works ... ok"),
        ("make", "make 2>&1", "made"),
        ("npm", "cd node && npm install --offline --no-audit --no-fund 2>&1 && npm test 2>&1", "pass 1"),
        ("python3", "python3 -m venv env && env/bin/pip --version", "env/"),
        (
            "git",
            "git init -q g && cd g && git -c user.name=a -c user.email=b@c commit -q --allow-empty -m one && git log --format=%s",
            "one",
        ),
    ] {
        let there =
            std::process::Command::new("sh").args(["-c", &format!("command -v {program}")]).output().unwrap();
        if !there.status.success() {
            skipped(&format!("{program} is not installed"));
            continue;
        }
        let person = Person(false, std::sync::Mutex::default());
        let mut call = invocation("shell_command", &json!({"command": command}));
        call.timeout = Duration::from_mins(2);
        let said = tools.call(&call, Some(&person)).await.unwrap().text;
        assert!(said.contains(expected) && !said.contains("[exit code"), "{command}:\n{said}");
    }
}

/// Ends everything also when respool is killed: the pipe that it holds is closed then.
#[tokio::test]
async fn everything_ends_when_the_pipe_is_closed() {
    for namespaces in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let bubblewrap = namespaces.then_some("/usr/bin/bwrap");
        let spec = json!({"directory": folder.path(), "bubblewrap": bubblewrap, "landlock": false, "seccomp": false, "network": true,
            "everything": true, "readable": [], "executed": [], "hidden": [], "listed": [], "writable": [], "without_links": [], "scratch": [], "frozen": [], "pinned": [], "covers": {}, "forwarded": [], "avoided": []});
        let (control, held) = std::io::pipe().unwrap();
        let script = "setsid sh -c 'sleep 1; echo x > late' & sleep 0.7 & echo $$ > pid; wait; sleep 100";
        let mut launched = std::process::Command::new(launcher())
            .args(["sandbox-exec", &spec.to_string(), "--", "/bin/sh", "-c", script])
            .stdin(control)
            .spawn()
            .unwrap();
        let pid = folder.path().join("pid");
        look_blocking(Duration::from_secs(10), || {
            (pid.exists() || launched.try_wait().unwrap().is_some()).then_some(())
        });
        if !pid.exists() {
            assert!(namespaces, "it did not start");
            continue;
        }
        drop(held);
        launched.wait().unwrap();
        if !namespaces {
            assert!(!is_alive(&pid));
        }
        std::thread::sleep(Duration::from_millis(1200));
        assert!(!folder.path().join("late").exists(), "namespaces: {namespaces}");
    }
}
