//! `respool setup openclaw`, with a stand-in for the `openclaw` program. The real ones:
//! `tests/openclaw/setup.sh DIR`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::lifecycle::program;
use crate::support::fake_vllm::FakeVllm;
use crate::support::replies;
use crate::support::respool::Respool;
use crate::support::script::Script;

/// An `openclaw` of this version that accepts every file but one that names `bad`.
fn stand_in(folder: &Path, version: &str) -> String {
    let validate = if version.starts_with("2026.2.") {
        "exit 1"
    } else {
        "! grep -q bad \"$OPENCLAW_CONFIG_PATH\" || { echo 'models.bad: unknown key'; exit 1; }"
    };
    let file = folder.join("openclaw");
    let script = format!(
        "#!/bin/sh\ncase \"$1\" in --version) echo 'OpenClaw {version} (abc)';; *) {validate};; esac\n"
    );
    fs::write(&file, script).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    format!("{}:{}", folder.display(), std::env::var("PATH").unwrap())
}

fn setup(home: &Path, path: &str, arguments: &[&str]) -> (i32, String) {
    // Nothing listens there: whether respool runs is not what is tested.
    let arguments = [&["setup", "openclaw", "--url", "http://127.0.0.1:9", "--yes"], arguments].concat();
    let output = program(home, &arguments).env("PATH", path).output().unwrap();
    (output.status.code().unwrap(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}

/// Regression: the address of the model server was taken for that of respool.
#[tokio::test(flavor = "multi_thread")]
async fn a_model_server_is_not_taken_for_respool() {
    let unknown = Script::json(404, &serde_json::json!({"detail": "Not Found"})).on("GET", "/ready");
    let fake = FakeVllm::start([unknown]).await;
    let url = fake.url();
    tokio::task::spawn_blocking(move || {
        let (home, programs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = stand_in(programs.path(), "2026.9.6");
        let output =
            program(home.path(), &["setup", "openclaw", "--yes", "--url", &url]).env("PATH", path).output();
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(&format!("the server at {url} is not respool")), "{said}");
        assert!(said.contains(&format!("write --upstream {url}")) && !output.status.success(), "{said}");
        let wrong =
            program(home.path(), &["setup", "openclaw", "--yes", "--url", "127.0.0.1:9"]).output().unwrap();
        let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
        assert!(said.contains("the scheme is missing; write \"http://127.0.0.1:9\""), "{said}");
        assert!(!home.path().join(".openclaw/openclaw.json").exists());
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn setup_changes_and_restores_openclaw_json() {
    let fake = FakeVllm::start([]).await;
    fake.serve_models(&["gpt-oss-120b"]);
    fake.pose_as("llamacpp", serde_json::json!({"total_slots": 4}));
    let upstream = fake.url();
    tokio::task::spawn_blocking(move || {
        let (home, programs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let home = home.path();
        let path = stand_in(programs.path(), "2026.9.6");
        let file = home.join(".openclaw/openclaw.json");
        let ask = ["--upstream", upstream.as_str()];

        let (code, said) = setup(home, &path, &[&ask[..], &["--dry-run"]].concat());
        assert!(code == 0 && said.contains('+') && said.contains("accepts the new file") && !file.exists(), "{said}");
        assert!(said.ends_with("Nothing was written.\n"), "{said}");
        let unasked = program(home, &["setup", "openclaw", "--url", "http://127.0.0.1:9", "--upstream", &upstream]);
        let output = { unasked }.env("PATH", &path).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains("add --yes") && !file.exists(), "{said}");
        let (code, said) = setup(home, &path, &ask);
        assert!(code == 0 && said.contains("respool is not running at http://127.0.0.1:9 yet"), "{said}");
        assert!(said.contains("llama.cpp works on 4 requests at a time: set `max_concurrency = 4`"), "{said}");
        assert!(fs::read_to_string(&file).unwrap().contains("respool/gpt-oss-120b"));
        let (code, said) = setup(home, &path, &["--undo"]);
        assert!(code == 0 && !file.exists(), "there was no file before: {said}");

        let grown = format!("{{ // mine\n models: {{ providers: {{ box: {{ baseUrl: '{upstream}/v1', apiKey: 'k', models: [] }} }} }},\n \
             agents: {{ defaults: {{ model: {{ primary: 'box/gpt-oss-120b', fallbacks: ['x/y'] }} }} }} }}\n");
        fs::write(&file, &grown).unwrap();
        let copy = home.join(".openclaw/agents/main/agent/models.json");
        fs::create_dir_all(copy.parent().unwrap()).unwrap();
        fs::write(&copy, "{}").unwrap();
        let (code, said) = setup(home, &path, &ask);
        assert!(code == 0 && said.contains("Fallback models: x/y") && said.contains("wait_for_upstream"), "{said}");
        assert!(said.contains("models.json") && !copy.exists(), "{said}");
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.contains("// mine") && text.contains("\"http://127.0.0.1:9/v1\""), "{text}");
        let (code, said) = setup(home, &path, &ask);
        assert!(code == 0 && said.contains("already points to respool"), "{said}");
        assert_eq!(setup(home, &path, &["--undo"]).0, 0);
        assert_eq!(fs::read_to_string(&file).unwrap(), grown);
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_openclaw_refuses_is_not_written() {
    let fake = FakeVllm::start([]).await;
    fake.serve_models(&["bad"]);
    let upstream = fake.url();
    tokio::task::spawn_blocking(move || {
        let (home, programs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let file = home.path().join(".openclaw/openclaw.json");
        let (current, ask) = (stand_in(programs.path(), "2026.9.6"), ["--upstream", upstream.as_str()]);
        let (code, said) = setup(home.path(), &current, &ask);
        assert!(code == 1 && said.contains("models.bad: unknown key") && !file.exists(), "{said}");
        // The old client has no `config validate`, and refuses the newer keys.
        let old = stand_in(programs.path(), "2026.2.26");
        let (code, said) = setup(home.path(), &old, &ask);
        assert!(
            code == 0 && said.contains("could not validate") && said.contains("openclaw gateway restart"),
            "{said}"
        );
        assert!(!fs::read_to_string(&file).unwrap().contains("timeoutSeconds"));
        // Root may write everywhere else.
        let no_folder = [("PATH", current.as_str()), ("OPENCLAW_STATE_DIR", "/proc/none")];
        let (code, said) = setup_at(home.path(), "http://127.0.0.1:9", &ask, &no_folder);
        assert!(code == 1 && said.contains("cannot be written to /proc/none: "), "{said}");
        let (code, said) = setup(home.path(), &old, &["--upstream", "http://127.0.0.1:10"]);
        assert!(
            code == 1
                && said.contains("at http://127.0.0.1:10 cannot be used: ")
                && said.contains("Connection refused"),
            "{said}"
        );
    })
    .await
    .unwrap();
}

/// A setup with a configuration, a respool that runs at `url`, and variables.
fn setup_at(home: &Path, url: &str, arguments: &[&str], variables: &[(&str, &str)]) -> (i32, String) {
    let arguments = [&["setup", "openclaw", "--yes", "--url", url], arguments].concat();
    let mut program = program(home, &arguments);
    let output = program.envs(variables.iter().copied()).output().unwrap();
    (output.status.code().unwrap(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn setup_needs_a_key_for_openclaw() {
    let fake = FakeVllm::start([]).await;
    fake.serve_models(&["gpt-oss-120b"]);
    fake.otherwise(Script::json(200, &replies::text("ready")).unchecked());
    let upstream = fake.url();
    let toml = format!("client_keys = [\"sk-alice-0123456789\"]\n[[upstream]]\nurl = \"{upstream}\"");
    let respool = Respool::configured(&toml).await;
    let url = format!("http://{}", respool.address);
    tokio::task::spawn_blocking(move || {
        let home = tempfile::tempdir().unwrap();
        let home = home.path();
        let file = home.join(".openclaw/openclaw.json");
        for arguments in [&["--upstream", upstream.as_str()][..], &[]] {
            let (code, said) = setup_at(home, &url, arguments, &[]);
            assert!(code == 1 && said.contains("asks for a key") && said.contains("--key-env"), "{said}");
            assert!(!said.contains("not running") && !said.contains("name the model server"), "{said}");
            assert!(!file.exists(), "a file with a wrong key is not written");
        }
        let (code, said) = setup_at(home, &url, &["--key-env", "KEY"], &[("KEY", "sk-wrong")]);
        assert!(code == 1 && said.contains("does not accept the key in `KEY`") && !file.exists(), "{said}");
        let (code, said) = setup_at(home, &url, &["--key-env", "KEY"], &[("KEY", "sk-alice-0123456789")]);
        assert!(code == 0 && said.contains("respool answers with gpt-oss-120b."), "{said}");
        assert!(fs::read_to_string(&file).unwrap().contains("\"${KEY}\""));
        // OpenClaw is started from another shell, or as a service.
        let variables = home.join(".openclaw/.env");
        assert!(said.contains(&format!("add a line `KEY=…` to {}", variables.display())), "{said}");
        fs::write(&variables, "OTHER=x\nKEY=sk-alice-0123456789\n").unwrap();
        let programs = tempfile::tempdir().unwrap();
        let path = stand_in(programs.path(), "2026.9.6");
        let set = [("KEY", "sk-alice-0123456789"), ("PATH", path.as_str())];
        let (code, said) = setup_at(home, &url, &["--key-env", "KEY"], &set);
        assert!(code == 0 && !said.contains("add a line"), "{said}");
        assert!(
            said.contains("respool answers with gpt-oss-120b.\nNow try: openclaw agent exec \"hello\"\n"),
            "{said}"
        );
        // Regression: it went on as if OpenClaw accepted a file that was wrong before.
        fs::write(&file, "{ bad: true }").unwrap();
        let (code, said) = setup_at(home, &url, &["--key-env", "KEY"], &set);
        let refusal = "refuses this file, also without the change:\nmodels.bad: unknown key";
        assert!(code == 0 && said.contains(refusal) && !said.contains("accepts"), "{said}");
        assert!(said.contains("openclaw doctor --fix") && !said.contains("Now try"), "{said}");
    })
    .await
    .unwrap();
}

/// Regression: `check --upstream URL` had the key of respool.toml, and `setup` asked for it.
#[tokio::test(flavor = "multi_thread")]
async fn setup_sends_the_configured_key() {
    let fake = FakeVllm::start([]).await;
    fake.serve_models(&["m"]);
    let url = fake.url();
    tokio::task::spawn_blocking(move || {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join(".config/respool/respool.toml");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, format!("[[upstream]]\nurl = \"{url}\"\napi_key = \"sk-box\"\n")).unwrap();
        let (code, said) = setup_at(home.path(), "http://127.0.0.1:9", &["--upstream", &url], &[]);
        assert_eq!(code, 0, "{said}");
    })
    .await
    .unwrap();
    let mut lists = fake.probes().into_iter().filter(|seen| seen.path() == "/v1/models");
    assert!(lists.any(|seen| seen.headers.get("authorization") == Some("Bearer sk-box")));
}

#[tokio::test(flavor = "multi_thread")]
async fn setup_names_what_goes_past_respool() {
    let fake = FakeVllm::start([]).await;
    fake.serve_models(&["m"]);
    let upstream = fake.url();
    tokio::task::spawn_blocking(move || {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join(".openclaw/openclaw.json");
        let provider = format!("{{ \"baseUrl\": \"{upstream}/v1\", \"models\": [] }}");
        let present = format!(
            "{{ \"models\": {{ \"providers\": {{ \"one\": {provider}, \"two\": {provider} }} }},
               \"agents\": {{ \"list\": [ {{ \"id\": \"main\", \"model\": \"openai/gpt-4.1\" }} ] }} }}"
        );
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, present).unwrap();
        let (code, said) = setup_at(home.path(), "http://127.0.0.1:9", &["--upstream", &upstream], &[]);
        assert_eq!(code, 0, "{said}");
        assert!(said.contains("The agent `main` has a model of its own, openai/gpt-4.1"), "{said}");
        assert!(said.contains("set `agents.list[0].model` to one/m"), "{said}");
        assert!(said.contains("The provider `two` points at the same server"), "{said}");
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn setup_names_connection_failures() {
    let fake = FakeVllm::start([]).await;
    fake.serve_models(&["m"]);
    // A server without TLS that answers a TLS client at once.
    let respool = Respool::before(&fake).await;
    let address = respool.address;
    tokio::task::spawn_blocking(move || {
        let home = tempfile::tempdir().unwrap();
        let setup = |url: &str, arguments: &[&str]| setup_at(home.path(), url, arguments, &[]);
        for arguments in [&[][..], &["--upstream", "http://127.0.0.1:10"]] {
            let (code, said) = setup("http://127.0.0.1:9", arguments);
            assert!(code == 1 && said.contains("Connection refused"), "{said}");
        }
        let (code, said) = setup("http://127.0.0.1:9", &["--upstream", "http://localhost:9/v1"]);
        assert!(code == 1 && said.contains("is the address of respool"), "{said}");
        let (code, said) = setup("http://127.0.0.1:9", &["--upstream", &format!("https://{address}/v1")]);
        assert!(code == 1 && said.contains(&format!("write --upstream http://{address}\n")), "{said}");
        let (code, said) = setup(&format!("https://{address}"), &[]);
        assert!(code == 1 && said.contains(&format!("write --url http://{address}, or")), "{said}");
    })
    .await
    .unwrap();
}
