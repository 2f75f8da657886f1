//! The local tools on real files and processes.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde_json::{Value, json};
use tempfile::TempDir;
use tools::{Approver, Consent, Invocation, Question, ToolError, ToolSet, Tools as _, ToolsConfig};

use crate::support::tools::{Person, call, config, failure, invocation, problems_of, set, text};
use crate::support::wait_until;

const ALL: &[&str] = &["exec", "read", "write", "edit", "ls", "search"];

/// A workspace next to a secret file, and the tools on it. Everything is allowed.
async fn workspace() -> (TempDir, ToolSet) {
    workspace_with("policy.default = \"allow\"").await
}

async fn workspace_with(settings: &str) -> (TempDir, ToolSet) {
    let outer = tempfile::tempdir().unwrap();
    fs::create_dir(outer.path().join("work")).unwrap();
    fs::write(outer.path().join("secret"), "TOP SECRET").unwrap();
    // The sandbox has its own tests; here the numbers of processes are the same inside and outside.
    let work = outer.path().join("work").display().to_string();
    let toml = format!("local.workspace = {work:?}\nlocal.sandbox = \"off\"\n{settings}");
    let tools = set(&toml, ALL).await;
    (outer, tools)
}

fn file(outer: &TempDir, name: &str) -> std::path::PathBuf {
    outer.path().join("work").join(name)
}

pub(crate) fn is_alive(pid_file: &Path) -> bool {
    let pid = fs::read_to_string(pid_file).unwrap();
    let status = fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
    status.is_ok_and(|status| !status.rsplit(')').next().unwrap().trim_start().starts_with('Z'))
}

#[tokio::test]
async fn no_tool_leaves_the_workspace() {
    let (outer, tools) = workspace().await;
    symlink("../secret", file(&outer, "link")).unwrap();
    symlink("..", file(&outer, "up")).unwrap();
    symlink("/etc", file(&outer, "etc")).unwrap();
    let secret = outer.path().join("secret");
    let absolute = secret.display().to_string();
    for path in [
        "../secret",
        "a/../../secret",
        &absolute,
        "link",
        "up/secret",
        "etc/passwd",
        "/etc/passwd",
        "~/x/../../../secret",
    ] {
        for (name, arguments) in [
            ("read", json!({"path": path})),
            ("write", json!({"path": path, "content": "overwritten"})),
            ("edit", json!({"path": path, "edits": [{"oldText": "TOP", "newText": "NO"}]})),
            ("ls", json!({"path": path})),
            ("search", json!({"path": path, "pattern": "SECRET"})),
            ("exec", json!({"command": "true", "workdir": path})),
        ] {
            let problem = failure(&tools, name, arguments).await;
            assert!(problem.contains("outside the workspace"), "{name} {path}: {problem}");
        }
    }
    assert_eq!(fs::read_to_string(secret).unwrap(), "TOP SECRET");
    let found = text(&tools, "search", json!({"pattern": "SECRET"})).await;
    assert_eq!(found, "[nothing found]", "a search does not follow links");
}

#[tokio::test]
async fn commands_report_output_and_exit_code() {
    let (outer, tools) = workspace().await;
    fs::create_dir(file(&outer, "sub")).unwrap();
    let check = async |command: &str, expected: &str| {
        assert_eq!(text(&tools, "exec", json!({"command": command})).await, expected, "{command}");
    };
    check("echo a; echo b >&2; echo c", "a\nb\nc\n").await;
    check("echo a; exit 3", "a\n\n[exit code 3]").await;
    check("true", "[no output]").await;
    check("exit 1", "[exit code 1]").await;
    // The first in a sandbox.
    let killed = text(&tools, "exec", json!({"command": "kill -9 $$"})).await;
    assert!(["[exit code 137]", "[ended by signal 9]"].contains(&&*killed), "{killed}");
    check("cat; echo end", "end\n").await;
    for (command, expected) in [("echo '[exit code 7]'", 0), ("exit 3", 3), ("git commit -m x", 128)] {
        let output = call(&tools, "exec", json!({"command": command})).await.unwrap();
        assert_eq!(output.exit_code, Some(expected), "{command}: {}", output.text);
    }
    check("printf '\\033[31mred\\033[0m\\r\\n'", "red\n").await;
    check("printf 'a\\377b'", "a\u{fffd}b").await;
    check("[[ x == x ]] && echo bash", "bash\n").await;
    check("-x", "/bin/bash: line 1: -x: command not found\n\n[exit code 127]").await;
    let here = text(&tools, "exec", json!({"cmd": "pwd", "workdir": "sub"})).await;
    assert!(here.ends_with("work/sub\n"), "{here}");
    let problem = failure(&tools, "exec", json!({"command": "pwd", "workdir": "nowhere"})).await;
    assert_eq!(problem, "the workdir nowhere is not a directory");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn commands_cannot_read_respools_memory() {
    let (_outer, tools) = workspace().await;
    let read = json!({"command": format!("id -u; head -c 20 /proc/{}/environ", std::process::id())});
    let said = text(&tools, "exec", read).await;
    assert_eq!(nix::sys::prctl::get_dumpable(), Ok(false));
    // To root nothing is closed.
    assert!(said.starts_with("0\n") || said.contains("Permission denied"), "{said}");
}

/// A command wrote to the person's terminal by `/dev/tty`, and typed into it (TIOCSTI).
#[cfg(target_os = "linux")]
#[tokio::test]
async fn commands_have_no_terminal() {
    let (_outer, tools) = workspace().await;
    let found =
        text(&tools, "exec", json!({"command": "cut -d' ' -f6,7 /proc/$$/stat; echo x > /dev/tty"})).await;
    let words: Vec<&str> = found.split_whitespace().collect();
    let [session, terminal, ..] = words[..] else { panic!("{found}") };
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let own = stat.rsplit(") ").next().unwrap().split(' ').nth(3).unwrap();
    assert!(session != own && terminal == "0", "its session is another, which has no terminal: {found}");
    assert!(found.contains("/dev/tty: No such device"), "{found}");
}

#[tokio::test]
async fn commands_see_no_environment() {
    let (_outer, tools) = workspace().await;
    assert!(std::env::var("CARGO_MANIFEST_DIR").is_ok(), "there is something to hide");
    let names = text(&tools, "exec", json!({"command": "env | sed 's/=.*//' | sort"})).await;
    let known = [
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "LANG",
        "LANGUAGE",
        "TZ",
        "TMPDIR",
        "pnpm_config_store_dir",
        "TERM",
        "PAGER",
        "GIT_PAGER",
        "GIT_TERMINAL_PROMPT",
        "GIT_EDITOR",
        "EDITOR",
        "VISUAL",
        "PWD",
        "OLDPWD",
        "SHLVL",
        "_",
    ];
    for name in names.lines() {
        let is_fine =
            known.contains(&name) || ["LC_", "XDG_", "SSL_CERT_"].iter().any(|start| name.starts_with(start));
        assert!(is_fine, "{name}");
    }
    assert!(names.contains("PATH"));
    let (_outer, tools) =
        workspace_with("policy.default = \"allow\"\nlocal.pass_env = [\"CARGO_MANIFEST_D*\"]").await;
    let dir = text(&tools, "exec", json!({"command": "echo $CARGO_MANIFEST_DIR $CARGO_PKG_NAME"})).await;
    assert_eq!(dir.trim_end(), env!("CARGO_MANIFEST_DIR"));
}

#[tokio::test]
async fn slow_commands_end_with_their_processes() {
    let (outer, tools) = workspace().await;
    let command = "echo begun; (sleep 1000 & echo $! > grandchild; wait) & sleep 1000";
    let slow = Invocation {
        timeout: Duration::from_millis(700),
        ..invocation("exec", &json!({"command": command, "timeout": 5000}))
    };
    let begun = Instant::now();
    let Err(ToolError::TimedOut(problem)) = tools.call(&slow, None).await else { panic!("it ended") };
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    assert_eq!(problem, "begun\n\n[stopped after 700 ms; it may have done a part of its work]");
    wait_until("the grandchild ends", async || !is_alive(&file(&outer, "grandchild"))).await;
    let stubborn = Invocation {
        timeout: Duration::from_millis(300),
        ..invocation(
            "exec",
            &json!({"command": "trap '' TERM; echo $$ > stubborn; while :; do sleep 0.1; done"}),
        )
    };
    assert!(matches!(tools.call(&stubborn, None).await, Err(ToolError::TimedOut(_))));
    wait_until("who ignores SIGTERM ends too", async || !is_alive(&file(&outer, "stubborn"))).await;
    let Err(ToolError::TimedOut(problem)) =
        call(&tools, "exec", json!({"command": "sleep 1000", "timeout": "1"})).await
    else {
        panic!("it ended")
    };
    assert!(problem.starts_with("[stopped after 1 s"), "the model's own limit holds: {problem}");
}

#[tokio::test]
async fn cancelled_commands_end_with_their_processes() {
    let (outer, tools) = workspace().await;
    let pid = file(&outer, "grandchild");
    let long = invocation("exec", &json!({"command": "(sleep 1000 & echo $! > grandchild; wait)"}));
    tokio::select! {
        result = tools.call(&long, None) => panic!("it ended: {result:?}"),
        () = wait_until("it starts", async || fs::read_to_string(&pid).is_ok_and(|text| text.ends_with('\n'))) => {}
    }
    wait_until("the grandchild ends", async || !is_alive(&pid)).await;
}

#[tokio::test]
async fn background_processes_end_with_the_call() {
    let (outer, tools) = workspace().await;
    let begun = Instant::now();
    let said = text(&tools, "exec", json!({"command": "sleep 1000 & echo $! > child; echo done"})).await;
    assert!(said.starts_with("done\n[a process left in the background ends"), "{said}");
    assert!(begun.elapsed() < Duration::from_secs(30));
    wait_until("the child ends", async || !is_alive(&file(&outer, "child"))).await;
}

#[tokio::test]
async fn long_outputs_keep_both_ends() {
    let (_outer, tools) = workspace().await;
    let long = "echo first; yes 0123456789 | head -c 30000000; echo last";
    let said = text(&tools, "exec", json!({"command": long})).await;
    assert!(said.starts_with("first\n0123456789\n") && said.ends_with("last\n"));
    assert!(
        said.contains(&format!("[… {} of 30000011 bytes left out here …]", 30_000_011 - 2 * (64 << 10))),
        "{}",
        said.len()
    );
    assert!(said.len() < 140_000, "{}", said.len());
}

#[tokio::test]
async fn reading_respects_line_limits() {
    let (outer, tools) = workspace().await;
    let check = async |name: &str, bytes: &[u8], arguments: Value, expected: &str| {
        fs::write(file(&outer, name), bytes).unwrap();
        let mut arguments = arguments;
        arguments["path"] = json!(name);
        assert_eq!(text(&tools, "read", arguments).await, expected, "{name}");
    };
    check("a", b"one\ntwo\nthree", json!({}), "one\ntwo\nthree").await;
    check("a", b"one\ntwo\nthree", json!({"offset": 2}), "two\nthree").await;
    check(
        "a",
        b"1\n2\n3\n4\n",
        json!({"offset": "2", "limit": 2}),
        "2\n3\n\n[lines 2 to 3; read on with offset 4]",
    )
    .await;
    check("a", b"1\n2\n3\n", json!({"offset": 2, "limit": 2}), "2\n3\n").await;
    check("crlf", b"one\r\ntwo\r\n", json!({}), "one\ntwo\n").await;
    check("latin1", b"gr\xFCn\n", json!({}), "grün\n").await;
    check("utf16", b"\xFF\xFEa\0\n\0\xFC\0", json!({}), "a\nü").await;
    check("bom", b"\xEF\xBB\xBFa\n", json!({}), "a\n").await;
    check("empty", b"", json!({}), "[the file is empty]").await;
    let long = "x".repeat(100_000) + "\nnext\n";
    let expected = "x".repeat(16 << 10) + " [the rest of this line is left out]\nnext\n";
    check("long", long.as_bytes(), json!({}), &expected).await;
    let many = (1..=5_000).map(|line| line.to_string()).collect::<Vec<_>>().join("\n");
    fs::write(file(&outer, "many"), many).unwrap();
    let shown = text(&tools, "read", json!({"file_path": "many"})).await;
    assert!(
        shown.starts_with("1\n2\n") && shown.ends_with("2000\n\n[lines 1 to 2000; read on with offset 2001]")
    );
    let problem = failure(&tools, "read", json!({"path": "many", "offset": 6000})).await;
    assert_eq!(problem, "many ends at line 5000; offset is 6000");
}

#[tokio::test]
async fn huge_files_are_read_in_pieces() {
    let (outer, tools) = workspace().await;
    let line = "0123456789abcde\n";
    fs::write(file(&outer, "huge"), line.repeat((20 << 20) / 16) + "the end").unwrap();
    let last = (20 << 20) / 16 + 1;
    assert_eq!(text(&tools, "read", json!({"path": "huge", "offset": last})).await, "the end");
    let begin = text(&tools, "read", json!({"path": "huge", "limit": 1})).await;
    assert_eq!(begin, format!("{line}\n[lines 1 to 1; read on with offset 2]"));
    fs::write(file(&outer, "one-line"), "y".repeat(40 << 20)).unwrap();
    let shown = text(&tools, "read", json!({"path": "one-line"})).await;
    assert!(shown.ends_with("y [the rest of this line is left out]\n"), "{}", shown.len());
    let problem =
        failure(&tools, "edit", json!({"path": "huge", "edits": [{"oldText": "the end", "newText": "x"}]}))
            .await;
    assert_eq!(problem, "huge is larger than 16 MiB: change it with a command");
    let found = text(&tools, "search", json!({"pattern": "the end"})).await;
    assert_eq!(found, "[nothing found]\n[2 files of more than 8 MiB were not searched]");
}

#[tokio::test]
async fn binary_files_are_refused_clearly() {
    let (outer, tools) = workspace().await;
    fs::write(file(&outer, "binary"), b"\x7fELF\0\x01").unwrap();
    fs::create_dir(file(&outer, "dir")).unwrap();
    let made = std::process::Command::new("mkfifo").arg(file(&outer, "pipe")).status().unwrap();
    assert!(made.success());
    for (path, expected) in [
        ("binary", "binary is a binary file of 6 bytes, not text"),
        ("dir", "dir is a directory: list it with `ls`"),
        ("pipe", "pipe is not a regular file"),
        ("none", "none does not exist"),
        ("binary/x", "binary/x: a part of this path is a file, not a directory"),
        ("", "\"\" is not a path"),
    ] {
        assert_eq!(failure(&tools, "read", json!({"path": path})).await, expected);
    }
    for (arguments, expected) in [
        (json!({}), "the argument \"path\" is missing: a string"),
        (json!({"path": 3}), "the argument \"path\" has to be a string"),
        (
            json!({"path": "binary", "offset": 0}),
            "the argument \"offset\" has to be a whole number, at least 1",
        ),
        (
            json!({"path": "binary", "limit": 1.5}),
            "the argument \"limit\" has to be a whole number, at least 1",
        ),
    ] {
        assert_eq!(failure(&tools, "read", arguments).await, expected);
    }
}

#[tokio::test]
async fn writes_are_atomic_and_keep_modes() {
    let (outer, tools) = workspace().await;
    let said = call(&tools, "write", json!({"path": "new/deep/file", "content": "a\nb"})).await.unwrap();
    assert_eq!(said.text, "Wrote 3 bytes to new/deep/file");
    assert!(said.display.unwrap().contains("+a\n+b\n"));
    assert_eq!(fs::read_to_string(file(&outer, "new/deep/file")).unwrap(), "a\nb");
    let script = file(&outer, "script");
    fs::write(&script, "old").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o750)).unwrap();
    symlink("script", file(&outer, "alias")).unwrap();
    text(&tools, "write", json!({"path": "alias", "content": "new"})).await;
    assert_eq!(fs::read_to_string(&script).unwrap(), "new");
    assert_eq!(fs::metadata(&script).unwrap().permissions().mode() & 0o777, 0o750);
    assert!(fs::symlink_metadata(file(&outer, "alias")).unwrap().is_symlink(), "the link is still one");
    let problem = failure(&tools, "write", json!({"path": "new", "content": "x"})).await;
    assert!(problem.contains("new is a directory"), "{problem}");
    let left: Vec<_> =
        fs::read_dir(outer.path().join("work")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 3, "nothing temporary is left: {left:?}");
}

#[tokio::test]
async fn edits_keep_encoding_and_mode() {
    let (outer, tools) = workspace().await;
    let check = async |before: &[u8], arguments: Value, after: &[u8]| {
        fs::write(file(&outer, "file"), before).unwrap();
        let mut arguments = arguments;
        arguments["file_path"] = json!("file");
        text(&tools, "edit", arguments).await;
        let found = fs::read(file(&outer, "file")).unwrap();
        assert_eq!(found, after, "{:?}", String::from_utf8_lossy(&found));
    };
    let one = |old: &str, new: &str| json!({"edits": [{"oldText": old, "newText": new}]});
    check(b"a\nb", one("b", "c"), b"a\nc").await;
    check(b"a\r\nb\r\n", one("a\nb", "x\ny\nz"), b"x\r\ny\r\nz\r\n").await;
    check(b"\xEF\xBB\xBFa b", one("a", "x"), b"\xEF\xBB\xBFx b").await;
    check(b"gr\xFCn a", one("grün", "blüte"), b"bl\xFCte a").await;
    check(b"\xFF\xFEa\0b\0", one("b", "\u{20ac}"), b"\xFF\xFEa\0\xAC\x20").await;
    check(b"a b", json!({"old_string": "a", "new_string": "x"}), b"x b").await;
    check(b"a b", json!({"edits": "[{\"oldText\": \"a\", \"newText\": \"x\"}, {\"old_string\": \"b\", \"new_string\": \"y\"}]"}), b"x y").await;
    fs::write(file(&outer, "file"), b"gr\xFCn a").unwrap();
    let problem =
        failure(&tools, "edit", json!({"path": "file", "edits": [{"oldText": "a", "newText": "β"}]})).await;
    assert_eq!(problem, "file is written in Windows1252, which has no 'β'; nothing was changed");
    assert_eq!(fs::read(file(&outer, "file")).unwrap(), b"gr\xFCn a");
    for (arguments, expected) in [
        (json!({"path": "file"}), "the argument \"oldText\" is missing: a string"),
        (
            json!({"path": "file", "edits": []}),
            "the argument \"edits\" has to be a list of objects with oldText and newText",
        ),
        (
            json!({"path": "file", "edits": [{"oldText": "", "newText": "x"}]}),
            "the old text is empty: give the text to replace, or write a new file as a whole",
        ),
        (
            json!({"path": "file", "edits": [{"oldText": "zz", "newText": "x"}]}),
            "file: the old text is not there: read the file and copy the text exactly; nothing was changed",
        ),
    ] {
        assert_eq!(failure(&tools, "edit", arguments).await, expected);
    }
}

#[tokio::test]
async fn edits_show_their_changes() {
    let (outer, tools) = workspace_with("").await;
    fs::write(file(&outer, "file"), "one\ntwo\nthree\n").unwrap();
    let edit = invocation("edit", &json!({"path": "file", "edits": [{"oldText": "two", "newText": "2"}]}));
    let person = Person::who_says(true);
    let output = tools.call(&edit, Some(&person)).await.unwrap();
    let diff = "--- file\n+++ file\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n";
    assert_eq!(output.display.as_deref(), Some(diff));
    assert_eq!(output.text, "Made 1 edit in file");
    assert_eq!(*person.asked.lock().unwrap(), [("edit".to_owned(), Some(diff.to_owned()))]);
    assert!(
        matches!(tools.call(&edit, Some(&person)).await, Err(ToolError::Failed(_))),
        "it is not there any more"
    );
    let write = invocation("write", &json!({"path": "file", "content": "one\n2\nthree\n"}));
    let Err(ToolError::Failed(why)) = tools.call(&write, Some(&person)).await else {
        panic!("it is written")
    };
    assert_eq!(why, "file has exactly this content already: nothing was written");
    assert_eq!(person.asked.lock().unwrap().len(), 1, "nobody is asked about what cannot work");
}

/// The question named one file, the tool wrote another.
#[tokio::test]
async fn doubled_arguments_are_refused() {
    let (outer, tools) = workspace().await;
    fs::write(file(&outer, "a"), "old").unwrap();
    for (name, arguments, named) in [
        (
            "write",
            json!({"file_path": "README.md", "path": "x", "content": "c"}),
            "\"path\" and \"file_path\"",
        ),
        ("read", json!({"path": "a", "file": "a"}), "\"path\" and \"file\""),
        ("exec", json!({"command": "true", "cmd": "touch x"}), "\"command\" and \"cmd\""),
        ("exec", json!({"command": "touch x", "workdir": ".", "cwd": "."}), "\"workdir\" and \"cwd\""),
        (
            "edit",
            json!({"path": "a", "oldText": "old", "old_string": "o", "newText": "x"}),
            "\"oldText\" and \"old_string\"",
        ),
        (
            "edit",
            json!({"path": "a", "oldText": "old", "newText": "x", "edits": [{"oldText": "o", "newText": "x"}]}),
            "\"edits\"",
        ),
    ] {
        let problem = failure(&tools, name, arguments).await;
        assert!(problem.contains(named), "{name}: {problem}");
    }
    assert!(!file(&outer, "x").exists() && !file(&outer, "README.md").exists());
    text(&tools, "write", json!({"path": "b", "file_path": null, "content": "c"})).await;
}

#[tokio::test]
async fn nothing_shown_holds_terminal_escapes() {
    let (outer, tools) = workspace_with("").await;
    fs::write(file(&outer, "file"), "\u{1b}]0;owned\u{7}old\n").unwrap();
    let edit = invocation(
        "edit",
        &json!({"path": "file", "edits": [{"oldText": "old", "newText": "\u{1b}[2Jnew"}]}),
    );
    let person = Person::who_says(true);
    let output = tools.call(&edit, Some(&person)).await.unwrap();
    let asked = person.asked.lock().unwrap()[0].1.clone();
    assert_eq!(
        asked.as_deref(),
        Some(
            "--- file\n+++ file\n@@ -1 +1 @@\n-\\u{1b}]0;owned\\u{7}old\n+\\u{1b}]0;owned\\u{7}\\u{1b}[2Jnew\n"
        )
    );
    assert_eq!(output.display, asked);
}

#[tokio::test]
async fn no_tool_writes_a_git_directory_of_another_name() {
    let (outer, tools) = workspace().await;
    let mut init = std::process::Command::new("git");
    init.args(["init", "-q", "--separate-git-dir", "store", "."]).current_dir(file(&outer, ""));
    assert!(init.status().unwrap().success());
    let problem =
        failure(&tools, "write", json!({"path": "store/hooks/post-checkout", "content": "x"})).await;
    assert!(problem.contains("no tool writes there"), "{problem}");
}

#[tokio::test]
async fn directories_are_listed_and_files_searched() {
    let (outer, tools) = workspace().await;
    for (name, content) in [
        ("src/a.rs", "fn one() {}\nfn Two() {}\n"),
        ("src/b.txt", "fn one in text"),
        ("ignored/c.rs", "fn one"),
        (".gitignore", "ignored/\n"),
        (".git/config", "fn one"),
        ("binary", "fn one\0"),
        ("latin1", ""),
    ] {
        fs::create_dir_all(file(&outer, name).parent().unwrap()).unwrap();
        fs::write(file(&outer, name), content).unwrap();
    }
    fs::write(file(&outer, "latin1"), b"fn one gr\xFCn").unwrap();
    symlink("src", file(&outer, "link")).unwrap();
    assert_eq!(
        text(&tools, "ls", json!({})).await,
        ".git/\n.gitignore\nbinary\nignored/\nlatin1\nlink -> src\nsrc/"
    );
    assert_eq!(text(&tools, "ls", json!({"path": "link"})).await, "a.rs\nb.txt");
    let check = async |arguments: Value, expected: &str| {
        assert_eq!(text(&tools, "search", arguments.clone()).await, expected, "{arguments}");
    };
    check(
        json!({"pattern": "fn one"}),
        "latin1:1: fn one grün\nsrc/a.rs:1: fn one() {}\nsrc/b.txt:1: fn one in text",
    )
    .await;
    check(
        json!({"pattern": "^fn \\w+\\(", "glob": "*.rs"}),
        "src/a.rs:1: fn one() {}\nsrc/a.rs:2: fn Two() {}",
    )
    .await;
    check(json!({"pattern": "two", "ignore_case": true}), "src/a.rs:2: fn Two() {}").await;
    check(
        json!({"pattern": "fn", "path": "link", "limit": 1}),
        "src/a.rs:1: fn one() {}\n[the first 1 matches; there are more: narrow the pattern, path or glob]",
    )
    .await;
    check(json!({"pattern": "fn", "path": "src/b.txt"}), "src/b.txt:1: fn one in text").await;
    fs::write(file(&outer, "src/.ignored"), "nowhere").unwrap();
    fs::write(file(&outer, ".gitignore"), "ignored/\n.ignored\n").unwrap();
    check(json!({"pattern": "nowhere", "path": "src"}), "[nothing found]").await;
    check(json!({"pattern": "nowhere"}), "[nothing found]").await;
    // Rules are small files, and nothing else is read.
    for odd in ["src/.gitignore", "src/.ignore"] {
        nix::unistd::mkfifo(&file(&outer, odd), nix::sys::stat::Mode::S_IRWXU).unwrap();
    }
    fs::create_dir_all(file(&outer, "src/.git/info")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", file(&outer, "src/.git/info/exclude")).unwrap();
    check(json!({"pattern": "nowhere"}), "[nothing found]").await;
    let problem = failure(&tools, "search", json!({"pattern": "("})).await;
    assert!(problem.contains("is not a regular expression"), "{problem}");
    assert_eq!(failure(&tools, "search", json!({"pattern": "x", "path": "no"})).await, "no does not exist");
}

#[tokio::test]
async fn the_policy_resolves_paths() {
    let (outer, tools) = workspace_with(
        r#"
        [policy]
        default = "allow"
        [[policy.rule]]
        path = "private/**"
        then = "deny"
        [[policy.rule]]
        path = "guarded/**"
        then = "ask"
        "#,
    )
    .await;
    for folder in ["private", "guarded", "open"] {
        fs::create_dir(file(&outer, folder)).unwrap();
        fs::write(file(&outer, folder).join("file"), "needle").unwrap();
    }
    symlink("private", file(&outer, "alias")).unwrap();
    symlink("../open", file(&outer, "private/out")).unwrap();
    for path in ["private/file", "open/../private/file", "alias/file", "./private/file", "private/out/file"] {
        let result = call(&tools, "read", json!({"path": path})).await;
        let Err(ToolError::Denied(text)) = result else { panic!("{path} {result:?}") };
        assert!(text.starts_with("`read` did not run: denied by rule 1 of tools.policy."), "{text}");
    }
    let listed = call(&tools, "ls", json!({"path": "private"})).await;
    assert!(matches!(listed, Err(ToolError::Denied(_))), "{listed:?}");
    let found = text(&tools, "search", json!({"pattern": "needle"})).await;
    assert_eq!(found, "open/file:1: needle\n[2 files were not searched: the policy does not allow it]");
    assert_eq!(text(&tools, "read", json!({"path": "open/file"})).await, "needle");
}

/// Says yes, and points the link elsewhere meanwhile.
struct Swapper(std::path::PathBuf);

#[async_trait]
impl Approver for Swapper {
    async fn approve(&self, _: Question<'_>) -> Consent {
        fs::remove_file(&self.0).unwrap();
        symlink("other", &self.0).unwrap();
        Consent::Given
    }
}

/// An agent's model reads such marks with a space inside (`agent/neutralize.rs`); files must not change by
/// that.
#[tokio::test]
async fn template_marks_stay_in_files() {
    let (outer, tools) = workspace().await;
    let template = "{{ '<|im_start|>' + role }}\n{{ '[INST]' }}\nend\n";
    fs::write(file(&outer, "t"), template).unwrap();
    assert_eq!(text(&tools, "read", json!({"path": "t"})).await, template, "people see it as it is");
    let edit = json!({"path": "t", "oldText": "'< |im_start|>' + role", "newText": "'< |im_start|>' + name"});
    text(&tools, "edit", edit).await;
    let edited = template.replace("role", "name");
    assert_eq!(fs::read_to_string(file(&outer, "t")).unwrap(), edited);
    let anew = edited.replace("end", "the end");
    let shown = anew.replace("<|", "< |").replace("[I", "[ I");
    text(&tools, "write", json!({"path": "t", "content": shown})).await;
    assert_eq!(fs::read_to_string(file(&outer, "t")).unwrap(), anew);
    text(&tools, "write", json!({"path": "new", "content": "< |im_start|>"})).await;
    assert_eq!(fs::read_to_string(file(&outer, "new")).unwrap(), "< |im_start|>", "nobody knows better");
}

#[tokio::test]
async fn judged_files_are_the_changed_files() {
    let (outer, tools) = workspace_with("").await;
    for folder in ["asked", "other"] {
        fs::create_dir(file(&outer, folder)).unwrap();
        fs::write(file(&outer, folder).join("file"), "old").unwrap();
    }
    symlink("asked", file(&outer, "link")).unwrap();
    let write = invocation("write", &json!({"path": "link/file", "content": "new"}));
    let Err(ToolError::Failed(problem)) = tools.call(&write, Some(&Swapper(file(&outer, "link")))).await
    else {
        panic!("it was written")
    };
    assert_eq!(problem, "link/file became another file meanwhile; nothing was done");
    assert_eq!(fs::read_to_string(file(&outer, "other/file")).unwrap(), "old");
}

/// Turns a directory into a link to a denied one and back, as fast as it can.
fn race(work: &Path, stop: Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
    let (good, kept) = (work.join("good"), work.join("kept"));
    std::thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            fs::rename(&good, &kept).unwrap();
            symlink("denied", &good).unwrap();
            std::thread::sleep(Duration::from_micros(20));
            fs::remove_file(&good).unwrap();
            fs::rename(&kept, &good).unwrap();
            std::thread::sleep(Duration::from_micros(100));
        }
    })
}

/// 69 of 750 racing reads gave denied data.
#[tokio::test]
async fn races_read_no_denied_file() {
    let rule = "policy.default = \"allow\"\n[[policy.rule]]\npath = \"denied/**\"\nthen = \"deny\"";
    let (outer, tools) = workspace_with(rule).await;
    for folder in ["good", "denied"] {
        fs::create_dir(file(&outer, folder)).unwrap();
        fs::write(file(&outer, folder).join("file"), folder).unwrap();
    }
    let stop = Arc::<AtomicBool>::default();
    let racer = race(&outer.path().join("work"), Arc::clone(&stop));
    let (mut seen, mut refused) = (0, 0);
    let began = Instant::now();
    // A busy machine takes longer until both have been seen often enough.
    let is_tested = |seen, refused| seen > 5 && refused > 5;
    while began.elapsed() < Duration::from_secs(if is_tested(seen, refused) { 2 } else { 60 }) {
        match call(&tools, "read", json!({"path": "good/file"})).await {
            Ok(output) => {
                assert_eq!(output.text, "good");
                seen += 1;
            }
            Err(_) => refused += 1,
        }
        let edit = json!({"path": "good/file", "old_string": "denied", "new_string": "x"});
        assert!(call(&tools, "edit", edit).await.is_err(), "the denied file was edited");
        let found = text(&tools, "search", json!({"pattern": "denied"})).await;
        assert!(!found.contains(":1: denied"), "{found}");
    }
    stop.store(true, Ordering::Relaxed);
    racer.join().unwrap();
    assert!(is_tested(seen, refused), "nothing was tested: {seen} seen, {refused} refused");
    assert_eq!(fs::read_to_string(file(&outer, "denied/file")).unwrap(), "denied");
}

#[tokio::test]
async fn hard_links_to_denied_files_fail() {
    let rule = "policy.default = \"allow\"\n[[policy.rule]]\npath = \"denied/**\"\nthen = \"deny\"";
    for (settings, is_refused) in [(rule, true), ("policy.default = \"allow\"", false)] {
        let (outer, tools) = workspace_with(settings).await;
        fs::create_dir(file(&outer, "denied")).unwrap();
        fs::write(file(&outer, "denied/file"), "needle").unwrap();
        fs::hard_link(file(&outer, "denied/file"), file(&outer, "link")).unwrap();
        let found = text(&tools, "search", json!({"pattern": "needle"})).await;
        assert_eq!(found.contains("needle"), !is_refused, "{found}");
        for (name, arguments) in [
            ("read", json!({"path": "link"})),
            ("edit", json!({"path": "link", "old_string": "needle", "new_string": "x"})),
        ] {
            match call(&tools, name, arguments).await {
                Err(ToolError::Failed(problem)) => {
                    assert!(is_refused && problem.contains("2 names (hard links)"), "{name}: {problem}");
                }
                other => assert!(!is_refused && other.is_ok(), "{name}: {other:?}"),
            }
        }
    }
}

#[tokio::test]
async fn unasked_calls_do_not_run() {
    let (outer, tools) =
        workspace_with("[[policy.rule]]\ntool = \"exec\"\ncommand = \"echo *\"\nthen = \"allow\"").await;
    let write = invocation("write", &json!({"path": "file", "content": "x"}));
    let Err(ToolError::Denied(text)) = tools.call(&write, None).await else { panic!("it ran") };
    assert!(text.contains("tools.policy.default says ask, and no person can be asked"), "{text}");
    let no = Person::who_says(false);
    let Err(ToolError::Denied(text)) = tools.call(&write, Some(&no)).await else { panic!("it ran") };
    assert!(text.contains("the person who was asked said no"), "{text}");
    assert!(!file(&outer, "file").exists());
    let yes = Person::who_says(true);
    tools.call(&write, Some(&yes)).await.unwrap();
    assert!(file(&outer, "file").exists());
    assert_eq!(text_of(&tools, "echo hi").await.unwrap().text, "hi\n");
    for command in ["echo hi; touch pwned", "echo $(touch pwned)", "echo hi > pwned"] {
        assert!(matches!(text_of(&tools, command).await, Err(ToolError::Denied(_))), "{command}");
    }
    assert!(!file(&outer, "pwned").exists());
}

/// A command that a rule with a pattern allows never reaches the shell's own `printf`, `test` and `[`.
#[tokio::test]
async fn arguments_are_not_evaluated() {
    let rules = ["printf *", "test *", "[ *", "cd * && printf *", "echo *"]
        .map(|command| format!("[[policy.rule]]\ntool = \"exec\"\ncommand = {command:?}\nthen = \"allow\""));
    let (outer, tools) = workspace_with(&rules.join("\n")).await;
    fs::write(file(&outer, "a.txt"), "").unwrap();
    for command in [
        "printf -v 'a[$(touch pwned)]' x",
        "printf -v 'a[`touch pwned`]' x",
        "test -v 'a[$(touch pwned)]'",
        "[ -v 'a[$(touch pwned)]' ]",
        "cd . && printf -v 'a[$(touch pwned)]' x",
        "echo \"${x@P}\"",
    ] {
        assert!(matches!(text_of(&tools, command).await, Err(ToolError::Denied(_))), "{command}");
    }
    let said = async |command: &str| text_of(&tools, command).await.unwrap().text;
    assert!(said("printf -v 'a[x]' y").await.starts_with("-v"), "the program knows no such option");
    assert_eq!(said("printf '%s|' 'a  b' c\\;d 'e|f'").await, "a  b|c;d|e|f|");
    assert_eq!(said("echo *.txt").await, "a.txt\n");
    assert_eq!(said("cd . && printf '%s' \"it's\"").await, "it's");
    assert!(!file(&outer, "pwned").exists());
}

async fn text_of(tools: &ToolSet, command: &str) -> Result<tools::ToolOutput, ToolError> {
    call(tools, "exec", json!({"command": command})).await
}

#[tokio::test]
async fn unknown_names_are_reported_first() {
    let check = async |toml: &str, wanted: &[&str], expected: &[&str]| {
        let problems = problems_of(toml, wanted).await;
        assert_eq!(problems.len(), expected.len(), "{problems:?}");
        for (problem, expected) in problems.iter().zip(expected) {
            assert!(problem.starts_with(expected), "{problem}");
        }
    };
    let workspace = "local.workspace = \"/tmp\"";
    check(
        workspace,
        &["read", "raed", "banana"],
        &["nothing offers a tool \"raed\"; did you mean \"read\"?", "nothing offers a tool \"banana\""],
    )
    .await;
    check("", &["read"], &["the tool \"read\" needs a workspace: set tools.local.workspace"]).await;
    check("local.workspace = \"/no/where\"", &[], &["tools.local.workspace: the workspace /no/where cannot be opened: No such file or directory (os error 2)"]).await;
    let (_outer, tools) = workspace_with("").await;
    let problem = failure(&tools, "rm", json!({})).await;
    assert_eq!(problem, "there is no tool \"rm\". Available tools: exec, read, write, edit, ls, search");
}

#[tokio::test]
async fn configured_timeouts_and_limits_hold() {
    let settings = "timeouts = { exec = \"2m\", \"*\" = \"5s\" }\nresult_limits = { read = \"1KiB\" }";
    let (_outer, tools) = workspace_with(settings).await;
    let specs = tools.specs();
    let of = |name: &str| specs.iter().find(|spec| spec.name == name).unwrap();
    assert_eq!(of("exec").timeout, Some(Duration::from_mins(2)));
    assert_eq!(of("read").timeout, Some(Duration::from_secs(5)));
    assert_eq!((of("read").result_limit, of("exec").result_limit), (Some(1024), None));
    let repeatable: Vec<&str> =
        specs.iter().filter(|spec| spec.is_repeatable).map(|spec| spec.name.as_str()).collect();
    assert_eq!(repeatable, ["read", "ls", "search"]);
}

#[tokio::test]
async fn chat_has_four_tools() {
    let outer = tempfile::tempdir().unwrap();
    let settings = ToolsConfig::default();
    let rules = config("policy.rule = [{ tool = \"exec\", command = \"echo *\", then = \"allow\" }]").policy;
    let tools = ToolSet::open_for_chat(&settings, &rules, outer.path()).unwrap();
    let told: Vec<Value> = tools
        .specs()
        .into_iter()
        .map(
            |spec| json!({"name": spec.name, "description": spec.description, "parameters": spec.parameters}),
        )
        .collect();
    let expected: Vec<Value> = serde_json::from_str(include_str!("../../fixtures/chat-tools.json")).unwrap();
    assert_eq!(told, expected);
    assert_eq!(text(&tools, "shell_command", json!({"command": "echo hi"})).await, "hi\n");
    let yes = Person::who_says(true);
    for (name, arguments) in [
        ("write_file", json!({"file_path": "a", "content": "one"})),
        ("edit_file", json!({"file_path": "a", "old_string": "one", "new_string": "two"})),
    ] {
        assert!(matches!(call(&tools, name, arguments.clone()).await, Err(ToolError::Denied(_))), "{name}");
        tools.call(&invocation(name, &arguments), Some(&yes)).await.unwrap();
    }
    let read = tools.call(&invocation("read_file", &json!({"file_path": "a"})), Some(&yes)).await.unwrap();
    assert_eq!(read.text, "two");
    // Its schema has no offset: the note names what the model can call.
    std::fs::write(outer.path().join("long file"), "line\n".repeat(3_000)).unwrap();
    let read =
        tools.call(&invocation("read_file", &json!({"file_path": "long file"})), Some(&yes)).await.unwrap();
    let note = "[lines 1 to 2000; the file goes on; the command `sed -n 2001,4000p 'long file'` shows the next lines]";
    assert!(read.text.ends_with(note), "{}", &read.text[read.text.len() - 200..]);
    std::fs::write(outer.path().join("wide"), format!("{}\n", "x".repeat(999)).repeat(100)).unwrap();
    let read = tools.call(&invocation("read_file", &json!({"file_path": "wide"})), Some(&yes)).await.unwrap();
    assert!(
        read.text.len() < 32 << 10 && read.text.contains("`sed -n 30,58p 'wide'`"),
        "{}",
        read.text.len()
    );
}
