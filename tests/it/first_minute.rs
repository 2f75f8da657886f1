//! The first minute with the program: its version, its pages, its demo.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, FdFlag};
use serde_json::{Value, json};

use crate::lifecycle::{program, run};
use crate::support::client::Request;
use crate::support::client::exchange;
use crate::support::wait_until;

#[test]
fn the_version_names_its_build() {
    let (code, shown, _) = run(&["--version"], None, &[]);
    assert_eq!(code, 0);
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines[0], format!("respool {}", env!("CARGO_PKG_VERSION")));
    for (line, start) in lines[1..].iter().zip(["commit: ", "target: ", "features: "]) {
        assert!(line.starts_with(start) && line.len() > start.len(), "{shown}");
    }
    assert_eq!(lines.len(), 4, "{shown}");
    assert_eq!(run(&["-V"], None, &[]).1, format!("respool {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn man_pages_and_completions_are_written() {
    let (code, page, _) = run(&["man"], None, &[]);
    assert!(code == 0 && page.contains(".TH respool 1"), "{page}");
    let (code, script, _) = run(&["completions", "bash"], None, &[]);
    assert!(code == 0 && script.contains("complete -F _respool"), "{script}");
    let directory = tempfile::tempdir().unwrap();
    let (code, said, errors) = run(&["man", "--dir", directory.path().to_str().unwrap()], None, &[]);
    assert_eq!((code, errors.as_str()), (0, ""), "{said}");
    assert!(directory.path().join("respool-chat.1").exists());
    let (code, _, errors) = run(&["man", "--dir", "/proc/none"], None, &[]);
    assert!(code == 1 && errors.contains("cannot be written to /proc/none"), "{errors}");
}

#[test]
fn the_demo_has_seven_scenes() {
    let began = Instant::now();
    let (code, shown, errors) = run(&["demo"], None, &[]);
    assert_eq!(code, 0, "{errors}");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?} on a busy machine", began.elapsed());
    let scenes: Vec<&str> = shown.split("━━ ").filter(|part| part.contains("A client would get:")).collect();
    assert_eq!(scenes.len(), 7, "{shown}");
    let call = r#"call   read {"path": "/tmp/a.txt"}"#;
    // What a client gets from the server itself, and what it gets through respool.
    for (scene, direct, through) in [
        (scenes[0], "call   read", call),
        (scenes[1], "nothing: the stream ends empty", r#"call   read {"path":"a"}"#),
        (scenes[2], "call   read {\"path\":\"/tmp/a ", call),
        (scenes[3], "error  unexpected tokens remaining", call),
        (scenes[4], "first byte after 1.", "signs of life"),
        (scenes[5], "call   read", "text   I stopped: the tool `read` was called 8 times in a row"),
        (scenes[6], "nothing: the stream ends empty", "text   Your note says: the meeting is at nine."),
    ] {
        let (before, after) = scene.split_once("Through respool it gets:").unwrap();
        assert!(before.contains(direct), "{direct} is missing in\n{scene}");
        assert!(after.contains(through), "{through} is missing in\n{scene}");
        assert!(
            scene.lines().count() < 24 && scene.lines().all(|line| line.chars().count() <= 126),
            "{scene}"
        );
    }
    // An error and a cut call cost one more attempt each.
    assert!(scenes[2].contains("      2. read") && scenes[3].contains("      2. read"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_demo_serves_any_client() {
    let directory = tempfile::tempdir().unwrap();
    let mut demo =
        program(directory.path(), &["demo", "--serve", "--listen", "127.0.0.1:0"]).spawn().unwrap();
    let mut lines = BufReader::new(demo.stdout.take().unwrap()).lines().map_while(Result::ok);
    let said = lines.find(|line| line.contains("serves the recordings at")).unwrap();
    let address = said.split("http://").nth(1).unwrap().split('/').next().unwrap().parse().unwrap();
    let body = serde_json::json!({"model": "note-reader", "messages": [{"role": "user", "content": "What does my note say?"}]});
    let reply = exchange(address, &Request::chat(&body)).await;
    assert!(reply.text().contains("the meeting is at nine"), "{}", reply.text());
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(demo.id().try_into().unwrap()),
        nix::sys::signal::SIGINT,
    )
    .unwrap();
    assert!(demo.wait().unwrap().success());
}

/// Puts programs of these names before all others; each notes how it was called and prints what it is given.
fn stand_ins(folder: &Path, programs: &[(&str, &str)]) -> String {
    for (name, prints) in programs {
        let file = folder.join(name);
        let script =
            format!("#!/bin/sh\necho \"{name} $*\" >> \"{}\"\n{prints}\n", folder.join("called").display());
        std::fs::write(&file, script).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    format!("{}:{}", folder.display(), std::env::var("PATH").unwrap())
}

fn service(home: &Path, path: &str, arguments: &[&str]) -> (i32, String) {
    let arguments = [&["service"], arguments].concat();
    let output = program(home, &arguments).env("PATH", path).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

/// A line of a service's log.
const LOGGED: &str = r#"{"timestamp":"2026-11-27T01:02:03.000004Z","level":"WARN","message":"it asks for a key","upstream":"box","target":"respool::server"}"#;

#[cfg(target_os = "linux")]
fn keys_stay_with_their_server(home: &Path, path: &str) {
    // Regression: the service of a server with a key did not have the key.
    for (dry, written) in [(Some("--dry-run"), "API_KEY=…"), (None, "readable only by you; it has the key")]
    {
        let arguments = ["service", "install", "--upstream", "http://gpu:8000"].into_iter().chain(dry);
        let mut keyed = program(home, &arguments.collect::<Vec<_>>());
        let output = keyed.env("PATH", path).env("VLLM_API_KEY", "k $y").output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(said.contains(written) && !said.contains("k $y"), "{said}");
    }
    let text = std::fs::read_to_string(home.join(".config/respool/respool.env")).unwrap();
    assert!(text.contains("\nRESPOOL__UPSTREAM__0__API_KEY='k $y'\n"), "{text}");
    // The key of one server is not sent to another.
    let (code, said) = service(home, path, &["install", "--upstream", "http://other:8000"]);
    assert!(code == 1 && said.contains("has the key of http://gpu:8000"), "{said}");
    let (_, said) = service(home, path, &["install", "--upstream", "http://gpu:8000", "--dry-run"]);
    assert!(said.contains("API_KEY=…") && !said.contains("k $y"), "{said}");
    // Nor to one that only this shell names.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let installed = program(home, &["service", "install"])
        .env("PATH", path)
        .env("RESPOOL__UPSTREAM__0__URL", url)
        .output()
        .unwrap();
    assert!(installed.status.success() && listener.accept().is_err(), "{installed:?}");
    // Nor to the server of respool.toml, when the address is removed and the key forgotten.
    let file = home.join(".config/respool/respool.toml");
    std::fs::write(&file, "[[upstream]]\nurl = \"http://toml:1\"\napi_key = \"other\"\n").unwrap();
    let (_, said) = service(home, path, &["status"]);
    assert!(
        said.contains("remove `RESPOOL__UPSTREAM__0__URL=…` and `RESPOOL__UPSTREAM__0__API_KEY=…`"),
        "{said}"
    );
    let environment = home.join(".config/respool/respool.env");
    let without = text.replace("RESPOOL__UPSTREAM__0__URL=", "#");
    std::fs::write(&environment, without).unwrap();
    let (code, said) = service(home, path, &["install"]);
    assert!(code == 1 && said.contains("would be sent to http://toml:1"), "{said}");
    std::fs::write(&environment, text).unwrap();
    std::fs::remove_file(&file).unwrap();
}

#[cfg(target_os = "linux")]
fn other_commands_know_it(home: &Path, path: &str) {
    // Regression: the other commands did not know the service's model server.
    let shown = program(home, &["config", "show"]).env("PATH", path).output().unwrap();
    let (settings, note) =
        (String::from_utf8(shown.stdout).unwrap(), String::from_utf8(shown.stderr).unwrap());
    assert!(settings.contains("http://gpu:8000"), "{settings}");
    assert!(note.contains("respool.env, which hold here, too"), "{note}");
    let other = ["config", "show", "--upstream", "http://x:1"];
    let shown = program(home, &other).env("PATH", path).output().unwrap();
    assert!(!String::from_utf8(shown.stdout).unwrap().contains("http://gpu:8000"));
}

#[cfg(target_os = "linux")]
fn its_file_is_checked_first(home: &Path, path: &str, called: &Path) {
    // A working service is not stopped for a file with which it could not start.
    let file = home.join(".config/respool/respool.toml");
    std::fs::write(&file, "listn = \"x\"\n").unwrap();
    let (code, said) = service(home, path, &["install"]);
    assert!(code == 78 && said.contains("Nothing was written") && said.contains("listn"), "{said}");
    let called = std::fs::read_to_string(called).unwrap();
    assert_eq!(called.matches("restart respool.service").count(), 3, "{called}");
    std::fs::write(&file, "[[upstream]]\nurl = \"http://other:1\"\n").unwrap();
    let (_, said) = service(home, path, &["status"]);
    assert!(
        said.contains("The service asks http://gpu:8000, because") && said.contains("http://other:1"),
        "{said}"
    );
    std::fs::remove_file(&file).unwrap();
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn the_service_can_be_installed_and_removed() {
    let fake = crate::support::fake_vllm::FakeVllm::start([]).await;
    fake.serve_models(&["m"]);
    // systemd's part, which starts the service, is this one's.
    let running =
        crate::lifecycle::Served::with_file(&format!("[[upstream]]\nurl = \"{}\"", fake.url()), &[]);
    let address = running.address.to_string();
    tokio::task::spawn_blocking(move || {
        let (home, programs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = stand_ins(
            programs.path(),
            &[
                ("systemctl", "echo ActiveState=active"),
                ("loginctl", "echo Linger=no"),
                (
                    "journalctl",
                    &format!("echo a line\necho '2026-11-27T01:02:03+0000 box respool[7]: {LOGGED}'"),
                ),
            ],
        );
        let (code, said) =
            service(home.path(), &path, &["install", "--upstream", "http://gpu:8000", "--listen", &address]);
        assert_eq!(code, 0, "{said}");
        assert!(said.contains("respool is ready") && said.contains("loginctl enable-linger"), "{said}");
        let environment = home.path().join(".config/respool/respool.env");
        let text = std::fs::read_to_string(&environment).unwrap();
        assert!(text.contains("\nRESPOOL__UPSTREAM__0__URL=http://gpu:8000\n"), "{text}");
        assert_eq!(environment.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let unit = home.path().join(".config/systemd/user/respool.service");
        let text = std::fs::read_to_string(&unit).unwrap();
        assert!(text.contains(&format!("ExecStart={} serve", env!("CARGO_BIN_EXE_respool"))), "{text}");
        let called = std::fs::read_to_string(programs.path().join("called")).unwrap();
        let started: Vec<&str> = called.lines().skip(1).take(3).collect();
        assert!(called.starts_with("systemctl --user show respool.service"), "{called}");
        assert_eq!(
            started,
            [
                "systemctl --user daemon-reload",
                "systemctl --user enable respool.service",
                "systemctl --user restart respool.service"
            ]
        );
        keys_stay_with_their_server(home.path(), &path);
        let (code, said) = service(home.path(), &path, &["status"]);
        assert!(code == 0 && said.contains("The service is running.") && said.contains("ready at"), "{said}");
        let (code, said) = service(home.path(), &path, &["logs", "-n", "3"]);
        assert_eq!(
            (code, said.as_str()),
            (0, "a line\n2026-11-27 (times in UTC)\n01:02:03 warning it asks for a key  upstream=box\n")
        );
        assert_eq!(service(home.path(), &path, &["logs", "--json"]), (0, format!("{LOGGED}\n")));
        other_commands_know_it(home.path(), &path);
        its_file_is_checked_first(home.path(), &path, &programs.path().join("called"));
        // Regression: OpenClaw was left with a respool that is gone.
        let changed = home.path().join(".openclaw/openclaw.json.after-respool");
        std::fs::create_dir_all(changed.parent().unwrap()).unwrap();
        std::fs::write(changed, "{}").unwrap();
        let (code, said) = service(home.path(), &path, &["uninstall"]);
        assert!(code == 0 && !unit.exists() && environment.exists(), "{said}");
        assert!(said.contains("`respool setup openclaw --undo` restores"), "{said}");
    })
    .await
    .unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn failed_services_say_why() {
    let (home, programs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let show = "case \"$*\" in *show*) printf 'ActiveState=failed\\nExecMainStatus=78\\n';; esac";
    let path = stand_ins(
        programs.path(),
        &[("systemctl", show), ("loginctl", "true"), ("journalctl", "echo respool.toml:3: unknown key")],
    );
    let (code, said) = service(home.path(), &path, &["install", "--listen", "127.0.0.1:1"]);
    assert_eq!(code, 1, "{said}");
    for part in
        ["nothing answers at http://127.0.0.1:1", "its configuration is wrong", "respool.toml:3: unknown key"]
    {
        assert!(said.contains(part), "{part} is missing in {said}");
    }
    // Without systemd nothing is written, and it is said what failed.
    let path = stand_ins(programs.path(), &[("systemctl", "echo 'Failed to connect to bus' >&2; exit 1")]);
    let other_home = tempfile::tempdir().unwrap();
    let (code, said) = service(other_home.path(), &path, &["install"]);
    assert!(
        code == 1 && said.contains("Failed to connect to bus") && said.contains("XDG_RUNTIME_DIR"),
        "{said}"
    );
    assert!(!other_home.path().join(".config").exists(), "{said}");
    let unit = home.path().join(".config/systemd/user/respool.service");
    let link = unit.with_file_name("default.target.wants").join("respool.service");
    std::fs::create_dir_all(link.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(&unit, &link).unwrap();
    let (code, said) = service(home.path(), &path, &["uninstall"]);
    assert!(code == 1 && said.contains("Failed to connect to bus"), "{said}");
    assert!(said.contains("respool.service is removed") && said.contains("respool.env stay"), "{said}");
    assert!(!unit.exists() && link.symlink_metadata().is_err(), "{said}");
    let (code, said) = service(home.path(), &path, &["install", "--dry-run"]);
    assert!(code == 0 && said.contains("ExecStart=") && said.contains("mode 0600"), "{said}");
}

#[test]
fn misspelt_variables_get_a_suggestion() {
    let variables = [("RESPOOL_LISTEN", "127.0.0.1:9"), ("RESPOOL_KEY_OF_MINE", "k")];
    let note = "RESPOOL_LISTEN is not read; did you mean RESPOOL__LISTEN?";
    let (_, said, _) = run(&["check", "--upstream", "http://127.0.0.1:9"], None, &variables);
    assert!(said.contains(note) && !said.contains("RESPOOL_KEY_OF_MINE"), "{said}");
    let (_, said, _) = run(&["config", "show"], None, &variables);
    assert!(said.contains("RESPOOL_LISTEN (did you mean RESPOOL__LISTEN?)"), "{said}");
    // It says so before it finds that the port is taken.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, _, log) = run(&["serve", "--listen", &address], None, &variables);
    assert!(code == 1 && log.contains(note), "{log}");
}

/// Regression: before the error stood a warning about budgets that two respools count.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_server_names_the_first() {
    let served = crate::lifecycle::Served::start("http://127.0.0.1:9");
    let address = served.address.to_string();
    let second = program(served.directory.path(), &["serve", "--listen", &address])
        .env("RESPOOL_CONFIG", "respool.toml")
        .output()
        .unwrap();
    let log = String::from_utf8(second.stderr).unwrap();
    assert!(!second.status.success() && log.contains("a respool runs there already"), "{log}");
    assert!(!log.contains("each counts budgets"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn check_names_what_the_user_wrote() {
    let fake = crate::support::fake_vllm::FakeVllm::start([]).await;
    // A server without TLS that answers a TLS client at once.
    let respool = crate::support::respool::Respool::before(&fake).await;
    let plain = format!("http://{}", respool.address);
    tokio::task::spawn_blocking(move || {
        let dead = "http://127.0.0.1:9";
        let (code, said, _) = run(&["check", "--upstream", dead], None, &[]);
        assert!(code == 1 && said.contains("the address after --upstream is right"), "{said}");
        assert!(!said.contains("[[upstream]]"), "{said}");
        let (_, said, _) = run(&["check", "--upstream", dead], None, &[("SSL_CERT_FILE", "/nowhere.pem")]);
        assert!(said.contains("FAIL  SSL_CERT_FILE names /nowhere.pem, which cannot be read"), "{said}");
        let variable = ("RESPOOL__UPSTREAM__0__URL", dead);
        let (_, said, _) = run(&["check"], None, &[variable]);
        assert!(said.contains("`url` of this upstream (environment RESPOOL__UPSTREAM__0__URL)"), "{said}");
        let file = format!("[[upstream]]\nurl = \"{dead}\"\n");
        let (_, said, _) = run(&["check"], Some(&file), &[]);
        assert!(said.contains("`url` of this upstream (respool.toml:2)"), "{said}");
        let tls = plain.replace("http://", "https://");
        let (_, said, _) = run(&["check", "--upstream", &tls], None, &[]);
        assert!(said.contains(&format!("make the address after --upstream {plain}")), "{said}");
        let (_, help, _) = run(&["serve", "--help"], None, &[]);
        assert!(help.contains("the configured upstreams stay"), "{help}");
    })
    .await
    .unwrap();
}

/// The columns of the terminal in the test.
const COLUMNS: u16 = 60;

/// A terminal, and what a program has written to it.
struct Terminal {
    pieces: std::sync::mpsc::Receiver<String>,
    text: String,
}

impl Terminal {
    fn with_program(command: &mut std::process::Command) -> (Self, std::process::Child) {
        let size = nix::pty::Winsize { ws_row: 24, ws_col: COLUMNS, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = nix::pty::openpty(Some(&size), None).unwrap();
        // The program must not hold the other end.
        nix::fcntl::fcntl(&pty.master, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).unwrap();
        let child = command.stderr(std::process::Stdio::from(pty.slave)).spawn().unwrap();
        let (sender, pieces) = std::sync::mpsc::channel();
        let mut master = std::fs::File::from(pty.master);
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(length) = std::io::Read::read(&mut master, &mut piece) {
                let text = String::from_utf8_lossy(&piece[..length]).into_owned();
                if length == 0 || sender.send(text).is_err() {
                    return;
                }
            }
        });
        (Self { pieces, text: String::new() }, child)
    }

    fn wait_for(&mut self, part: &str) {
        while !self.text.contains(part) {
            let piece = self.pieces.recv_timeout(Duration::from_mins(1));
            self.text += &piece.unwrap_or_else(|_| panic!("{part} is missing in {}", self.text));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn terminals_get_a_banner() {
    let fake = crate::support::fake_vllm::FakeVllm::start([]).await;
    fake.serve_models(&["gpt-oss-20b"]);
    let reply = crate::support::replies::text("Paris");
    fake.then(crate::support::script::Script::json(200, &reply).unchecked());
    let directory = tempfile::tempdir().unwrap();
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--upstream", &fake.url()];
    let mut command = program(directory.path(), &arguments);
    let (mut terminal, mut child) = Terminal::with_program(command.env("NO_COLOR", "1"));
    terminal.wait_for("  Log        this terminal\r\n");
    for part in ["is ready. Ctrl-C stops it.", ": gpt-oss-20b\r\n"] {
        assert!(terminal.text.contains(part), "{part} is missing in {}", terminal.text);
    }
    let url = terminal.text.split("Page       http://").nth(1).unwrap();
    let address: std::net::SocketAddr = url.split('/').next().unwrap().parse().unwrap();
    // Sentences are wrapped; a command that is longer than the terminal could not be copied then.
    let command = format!("  OpenClaw   respool setup openclaw --url http://{address}\r\n");
    assert!(terminal.text.contains(&command), "{}", terminal.text);
    let body =
        serde_json::json!({"model": "gpt-oss-20b", "messages": [{"role": "user", "content": "Which city?"}]});
    assert_eq!(exchange(address, &Request::chat(&body)).await.status, 200);
    terminal.wait_for("ok          gpt-oss-20b  ");
    terminal.wait_for("\r\n");
    let line = terminal.text.lines().find(|line| line.contains("ok          gpt-oss-20b")).unwrap();
    assert!(line.trim_end().chars().count() <= usize::from(COLUMNS) && !line.contains('{'), "{line}");
    let pid = nix::unistd::Pid::from_raw(child.id().try_into().unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGHUP).unwrap();
    assert_eq!(exchange(address, &Request::get("/health")).await.status, 200, "SIGHUP only reads again");
    // The terminal is closed.
    drop(terminal);
    let mut status = None;
    let has_ended = async || {
        // The thread that reads the terminal ends with the next piece.
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGHUP);
        status = child.try_wait().unwrap();
        status.is_some()
    };
    wait_until("the server ends", has_ended).await;
    assert!(status.is_some_and(|status| status.success()), "{status:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn learned_rules_are_shown_and_forgotten() {
    let fake = crate::support::fake_vllm::FakeVllm::start([]).await;
    let state = tempfile::tempdir().unwrap();
    let kept = serde_json::json!({"upstreams": {"box": {"models": [
        {"model": "m", "learned_at": 1_795_000_000_000_u64, "rules": ["tools.pattern", "parameter.drop:store"]}]}}});
    std::fs::write(state.path().join("learned-rules.json"), kept.to_string()).unwrap();
    let url = fake.url();
    let file = format!("state_dir = {:?}\n[[upstream]]\nname = \"box\"\nurl = \"{url}\"\n", state.path());
    tokio::task::spawn_blocking(move || {
        let (code, said, _) = run(&["upstreams"], Some(&file), &[]);
        assert!(code == 0 && said.contains("box: requests for m are adapted since "), "{said}");
        assert!(said.contains("tools.pattern: `pattern` is left out (lost: "), "{said}");
        let (_, said, _) = run(&["upstreams", "--json"], Some(&file), &[]);
        let list: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!(list[0]["learned_rules"][0]["rules"][1], "parameter.drop:store", "{said}");
        let (code, _, errors) = run(&["upstreams", "forget", "other"], Some(&file), &[]);
        assert!(code != 0 && errors.contains("Available upstreams: box"), "{errors}");
        let (code, said, _) = run(&["upstreams", "forget", "box"], Some(&file), &[]);
        assert!(code == 0 && said.contains("begin unchanged again"), "{said}");
        let (_, said, _) = run(&["upstreams", "forget", "box"], Some(&file), &[]);
        assert!(said.contains("nothing to forget"), "{said}");
        let (_, said, _) = run(&["upstreams"], Some(&file), &[]);
        assert!(!said.contains("are adapted"), "{said}");
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn check_says_what_the_template_makes_of_a_conversation() {
    use crate::support::{fake_vllm::FakeVllm, replies, script::Script};
    let render = |status, body| Script::json(status, &body).on("POST", "/apply-template").unchecked();
    // Without tools; the later system message is refused.
    let prompt = serde_json::json!({"prompt": "respoolsystem ping respooltool respoolresult pong"});
    let refusal = replies::error(500, "System message must be at the beginning.", "server_error");
    let fake = FakeVllm::start([render(200, prompt), render(500, refusal)]).await;
    fake.pose_as("llamacpp", serde_json::json!({"total_slots": 2, "build_info": "b11434-1f2e3d4"}));
    fake.otherwise(Script::json(200, &replies::text("ok")));
    let url = fake.url();
    tokio::task::spawn_blocking(move || {
        let agents = "[agents.lost]\nmodel = \"nope\"\n[agents.fine]\nmodel = \"gpt-oss-20b\"\n\
            [models.fast]\ntarget = \"gone\"\n[prices.gpt-20b]\ninput = 1.0\noutput = 1.0\n[models.gpt-oss-20b]\nfallback = [\"gpt-oss-20b\", \"other\"]\n";
        let (_, said, _) = run(&["check", "--upstream", &url], Some(agents), &[]);
        let lost = "FAIL  no upstream lists the model \"nope\", which the agent `lost` uses";
        assert!(said.contains(lost) && !said.contains("the agent `fine` uses"), "{said}");
        let alias = "FAIL  no upstream lists the model \"gone\", which `fast` stands for";
        let fallback = "FAIL  no upstream lists the model \"other\", which is a fallback of";
        assert!(said.contains(alias) && said.contains(fallback), "{said}");
        assert!(said.contains("warn  [prices] has \"gpt-20b\", which no upstream lists"), "{said}");
        assert_eq!(said.matches("no upstream lists").count(), 4, "{said}");
        assert!(said.contains("its template leaves the tools out"), "{said}");
        assert!(said.contains("respool adapts it (`messages.system_first`"), "{said}");
        assert!(
            said.contains("llama.cpp b11434-1f2e3d4") && said.contains("set `max_concurrency = 2`"),
            "{said}"
        );
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn check_names_the_server() {
    use crate::support::{fake_vllm::FakeVllm, replies, script::Script};
    for (owner, page, expected) in [
        ("sglang", serde_json::json!({"version": "0.5.23", "max_running_requests": 48}), "SGLang 0.5.23"),
        ("library", serde_json::json!({"version": "0.17.1"}), "Ollama 0.17.1"),
        ("organization_owner", serde_json::json!({}), "LM Studio"),
        ("somebody", serde_json::json!({}), "does not say which program it is"),
    ] {
        let fake = FakeVllm::start([]).await;
        fake.pose_as(owner, page);
        fake.otherwise(Script::json(200, &replies::text("ok")));
        let url = fake.url();
        let check = move || run(&["check", "--upstream", &url], None, &[]).1;
        let said = tokio::task::spawn_blocking(check).await.unwrap();
        assert!(said.contains(expected), "{said}");
        assert_eq!(said.contains("set `max_concurrency = 48`"), owner == "sglang", "{said}");
    }
}

/// llama.cpp renders on `/apply-template`, and vLLM on `/tokenize`, as tokens.
#[tokio::test(flavor = "multi_thread")]
async fn check_renders_chat_templates() {
    use crate::support::{fake_vllm::FakeVllm, replies, script::Script};
    let whole = "respoolsystem <tools>respooltool</tools> ping <call>respooltool</call> respoolresult pong";
    let later = format!("{whole} respoollatersystem");
    let poor = "respoolsystem respoolsystem ping <call>respooltool</call> respoolresult pong";
    let prompt = |text: &str| Script::json(200, &serde_json::json!({"prompt": text}));
    let tokens = |text: &str| {
        let strings: Vec<_> = text.split_inclusive(' ').collect();
        let count = strings.len();
        Script::json(200, &serde_json::json!({"count": count, "max_model_len": 4096, "token_strs": strings}))
    };
    let refused = || Script::json(400, &replies::error(400, "template: no system in the middle", "Bad"));
    let (good, no_tools) = ("its template renders the system message, the tools and", "leaves the tools out");
    let (twice, not_first) =
        ("renders the system message twice", "leaves out system messages that are not first");
    let refuses = "its template refuses a later system message";
    let gemma = || Script::json(400, &replies::error(400, "System role not supported", "Bad"));
    let consent = "`[adapt] lossy = [\"messages.system_as_user\"]` lets respool adapt it";
    for (path, answers, expected) in [
        ("/apply-template", vec![prompt(whole), prompt(&later)], vec![good]),
        ("/apply-template", vec![prompt(poor), prompt(poor)], vec![no_tools, twice, not_first]),
        ("/apply-template", vec![prompt(whole), refused()], vec![good, refuses]),
        ("/apply-template", vec![gemma(), gemma()], vec![refuses, consent]),
        // The first question is how many tokens a prompt has.
        ("/tokenize", vec![tokens("a b"), tokens(whole), tokens(whole)], vec![good, not_first]),
    ] {
        let fake = FakeVllm::start(answers.into_iter().map(|answer| answer.on("POST", path))).await;
        fake.serve_models(&["qwen3"]);
        fake.otherwise(Script::json(200, &replies::text("ok")));
        let url = fake.url();
        let check = move || run(&["check", "--upstream", &url], None, &[]).1;
        let said = tokio::task::spawn_blocking(check).await.unwrap().replace('\n', " ");
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        for text in [good, no_tools, twice, not_first, refuses, consent] {
            assert_eq!(said.contains(text), expected.contains(&text), "{path}: {text}: {said}");
        }
        let rendered = fake.requests().into_iter().filter(|seen| seen.path() == path);
        let asked: Vec<_> =
            rendered.map(|seen| seen.json()).filter(|body| !body["tools"].is_null()).collect();
        assert_eq!(asked.len(), 2, "{asked:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn upstreams_are_listed_with_their_models() {
    let fake = crate::support::fake_vllm::FakeVllm::start([]).await;
    fake.serve_models(&["gpt-oss-20b", "qwen3"]);
    let file = format!(
        "[[upstream]]\nname = \"box\"\nurl = \"{}\"\n[[upstream]]\nname = \"dead-box\"\nurl = \"http://127.0.0.1:9\"\n",
        fake.url()
    );
    tokio::task::spawn_blocking(move || {
        let (code, said, errors) = run(&["upstreams"], Some(&file), &[]);
        assert!(errors.contains("`respool check`"), "{errors}");
        let lines: Vec<&str> = said.lines().collect();
        assert!(code == 1 && lines.len() == 3, "{said}");
        assert!(
            lines[0].starts_with("box       answers  gpt-oss-20b") && lines[1].trim().starts_with("qwen3"),
            "{said}"
        );
        assert!(
            lines[2].starts_with("dead-box  FAIL     ") && lines[2].contains("Connection refused"),
            "{said}"
        );
        let (code, said, _) = run(&["upstreams", "--json"], Some(&file), &[]);
        let list: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!((code, &list[0]["models"][1]["id"]), (1, &"qwen3".into()), "{said}");
        assert_eq!((&list[0]["ready"], &list[1]["ready"]), (&true.into(), &false.into()), "{said}");
    })
    .await
    .unwrap();
}

/// Regression: the default address was listed as a failing upstream, below the real ones.
#[tokio::test(flavor = "multi_thread")]
async fn running_upstreams_replace_the_default() {
    let fake = crate::support::fake_vllm::FakeVllm::start([]).await;
    let served = crate::lifecycle::Served::start(&fake.url());
    let expected =
        format!("{}: the running respool says: it works; 0 in progress, 0 waiting\n", fake.address());
    tokio::task::spawn_blocking(move || {
        let output = program(served.directory.path(), &["upstreams"]).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), String::from_utf8(output.stdout).unwrap()), (Some(0), expected));
        assert!(errors.contains("No upstream is configured here."), "{errors}");
        let (_, _, errors) = run(&["upstreams"], Some("listen = \"127.0.0.1:1\""), &[]);
        assert!(errors.contains("this is the default one; name yours with --upstream URL"), "{errors}");
    })
    .await
    .unwrap();
}

#[test]
fn lists_share_one_vocabulary_of_options() {
    for arguments in
        [&["runs", "list", "--limit", "5", "--since", "7d"][..], &["runs", "list", "--most", "5"]]
    {
        let (code, said, errors) = run(arguments, None, &[]);
        assert_eq!((code, said.as_str()), (0, ""), "{errors}");
    }
    for list in [
        &["runs", "list"][..],
        &["expert", "queue"],
        &["expert", "drafts"],
        &["expert", "dead-letters", "list"],
        &["expert", "outbox", "list"],
        &["expert", "approvals", "list"],
        &["expert", "list"],
    ] {
        let (code, said, errors) = run(&[list, &["--json"]].concat(), None, &[]);
        assert_eq!((code, said.as_str()), (0, "[]\n"), "{list:?}: {errors}");
        let span = if list == ["expert", "list"] { &[][..] } else { &["--limit", "5", "--since", "7d"] };
        assert_eq!(run(&[list, span].concat(), None, &[]).0, 0, "{list:?}");
    }
    let (code, _, errors) = run(&["usage", "--since", "5x"], None, &[]);
    assert!(code == 2 && errors.contains("as 24h, 7d or 30d"), "{errors}");
    assert_eq!(run(&["usage", "--by", "colour"], None, &[]).0, 2);
    let (_, help, _) = run(&["audit", "list", "--help"], None, &[]);
    assert!(!help.contains("--upstream") && help.contains("--config"), "{help}");
    let (_, help, _) = run(&["runs", "list", "--help"], None, &[]);
    assert!(help.contains("--limit <COUNT>") && !help.contains("--most"), "{help}");
    let (_, help, _) = run(&["service", "logs", "--help"], None, &[]);
    assert!(help.contains("--limit <COUNT>") && !help.contains("--lines"), "{help}");
    assert_eq!(run(&["runs", "list", "--limit", "many"], None, &[]).0, 2);
}

/// Regression: what was recorded could not be shown while the file had a mistake.
#[test]
fn records_are_shown_with_a_wrong_file() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    std::fs::create_dir(&state).unwrap();
    let open =
        r#"[{"rule":"upstream_down","subject":"box","what":"It is down.","since":1,"is_silenced":false}]"#;
    std::fs::write(state.join("alerts-open.json"), open).unwrap();
    let toml =
        format!("state_dir = \"{}\"\nlisten = \"127.0.0.1:1\"\n[[upstream]]\nurl = seven\n", state.display());
    let (code, out, err) = run(&["alerts", "list"], Some(&toml), &[]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("upstream_down  box  It is down."), "{out}");
    assert!(err.contains("the configuration is wrong") && err.contains("respool.toml:4"), "{err}");
    for arguments in [&["usage"][..], &["requests"]] {
        let (code, _, err) = run(arguments, Some(&toml), &[]);
        assert!(code == 0 && err.contains("No"), "{arguments:?}: {err}");
    }
    assert_eq!(run(&["alerts", "test"], Some(&toml), &[]).0, 78, "it uses the sinks of the file");
}

#[test]
fn limits_are_shown_with_what_is_used() {
    let dir = tempfile::tempdir().unwrap();
    let keys = dir.path().join("keys.toml");
    std::fs::write(&keys, "[alice]\nkey = \"sk-alice-0123456789\"\ntokens_per_day = 5000\n").unwrap();
    let toml = format!(
        "state_dir = \"{}/state\"\nclient_keys_file = \"{}\"\n[budgets]\nday = 2.0\nkeys = {{ alice = 1.0 }}\n[[upstream]]\nurl = \"http://127.0.0.1:9\"\n",
        dir.path().display(),
        keys.display()
    );
    let (code, out, err) = run(&["keys"], Some(&toml), &[]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("0 of 5000") && out.contains("0.00 of 1.00"), "{out}");
    assert!(out.contains("all requests together") && out.contains("0.00 of 2.00"), "{out}");
    assert!(err.contains("1 key.") && err.contains("T00:00:00Z."), "{err}");
    assert!(!dir.path().join("state").exists(), "a command that shows something makes nothing");
    let (_, out, _) = run(&["keys", "--json"], Some(&toml), &[]);
    let shown: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (&shown["keys"][0]["tokens_per_day"], &shown["budgets"][0]["limit"]),
        (&json!(5000), &json!(2.0))
    );
}
