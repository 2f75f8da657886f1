//! `respool chat -p`: the real binary as a child process, before a scripted model. The terminal itself is
//! tried by tests/chat/run.sh.

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::support::fake_vllm::FakeVllm;
use crate::support::replies;
use crate::support::script::Script;

/// A workspace with one file, and a state directory next to it.
struct ChatFolder(tempfile::TempDir);

impl ChatFolder {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("work")).unwrap();
        let place = Self(dir);
        std::fs::write(place.work().join("a.txt"), "one\ntwo\n").unwrap();
        place
    }

    fn work(&self) -> std::path::PathBuf {
        self.0.path().join("work")
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.work().join(name)).unwrap_or_default()
    }

    /// `respool chat` with these arguments; `settings` are lines before the upstream's table.
    async fn chat(&self, upstream: &str, settings: &str, arguments: &[&str]) -> Output {
        command(&self.work(), &["--config", &self.configure(upstream, settings)], arguments).await
    }

    fn configure(&self, upstream: &str, settings: &str) -> String {
        let config = self.0.path().join("respool.toml");
        let state = self.0.path().join("state");
        let toml =
            format!("state_dir = '{}'\n{settings}\n[[upstream]]\nurl = '{upstream}'\n", state.display());
        std::fs::write(&config, toml).unwrap();
        config.display().to_string()
    }
}

async fn command(directory: &Path, first: &[&str], arguments: &[&str]) -> Output {
    let mut command = new_command(directory, first, arguments);
    let done = tokio::time::timeout(Duration::from_secs(20), command.output());
    done.await.expect("it hangs").unwrap()
}

fn new_command(directory: &Path, first: &[&str], arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_respool"));
    command
        .arg("chat")
        .args(first)
        .args(arguments)
        .current_dir(directory)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command.env_remove("DEEPINFRA_API_KEY");
    command.envs([("VIRTUAL_ENV", "/venv"), ("MY_TOKEN", "t1"), ("OTHER_TOKEN", "t2"), ("GATE", "g")]);
    command
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn text(pieces: &[&str]) -> Script {
    Script::sse(replies::text_stream(pieces, true))
}

fn calls(calls: &[(&str, Value)]) -> Script {
    let call = |(index, (name, arguments)): (usize, &(&str, Value))| {
        json!({"index": index, "id": format!("chatcmpl-tool-{index:016x}"), "type": "function",
               "function": {"name": name, "arguments": arguments.to_string()}})
    };
    let calls: Vec<Value> = calls.iter().enumerate().map(call).collect();
    let chunks = [
        replies::chunk(&json!({"reasoning": "I need a tool."}), None),
        replies::chunk(&json!({"tool_calls": calls}), None),
        replies::chunk(&json!({}), Some("tool_calls")),
    ];
    let mut frames = vec![replies::role_frame()];
    frames.extend(chunks.iter().map(replies::frame));
    frames.extend([replies::usage_frame(), replies::DONE.to_owned()]);
    Script::sse(frames)
}

fn edit() -> Script {
    calls(&[("edit_file", json!({"file_path": "a.txt", "old_string": "two", "new_string": "2"}))])
}

/// The result that the model got for its last call.
fn last_result(fake: &FakeVllm, request: usize) -> String {
    let body = fake.requests()[request].json();
    body["messages"].as_array().unwrap().last().unwrap()["content"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn only_answers_go_to_standard_output() {
    let place = ChatFolder::new();
    let read = ("read_file", json!({"file_path": "a.txt"}));
    let fake = FakeVllm::start([calls(&[read]), edit(), text(&["It says **two**", " \u{1b}[31mnow."])]).await;
    let done = place.chat(&fake.url(), "", &["--yes", "-p", "What does a.txt say?"]).await;
    assert_eq!((done.status.code(), stdout(&done).as_str()), (Some(0), "It says **two** \\u{1b}[31mnow.\n"));
    let told = stderr(&done);
    for part in ["● read_file a.txt\n  └ 2 lines · ", "● edit_file a.txt\n  └ +1 −1 · ", "-two\n", "+2\n"]
    {
        assert!(told.contains(part), "{part:?} in {told:?}");
    }
    assert!(!told.contains('\u{1b}'), "no colours where there is no terminal: {told:?}");
    assert_eq!(place.read("a.txt"), "one\n2\n");
}

#[tokio::test]
async fn models_get_four_tools_and_the_prompt() {
    let place = ChatFolder::new();
    let fake = FakeVllm::start([text(&["ok"])]).await;
    assert!(place.chat(&fake.url(), "", &["-p", "hi"]).await.status.success());
    let asked = fake.requests()[0].json();
    let names: Vec<&str> =
        asked["tools"].as_array().unwrap().iter().filter_map(|it| it["function"]["name"].as_str()).collect();
    assert_eq!(names, ["shell_command", "read_file", "edit_file", "write_file"]);
    assert_eq!((&asked["model"], &asked["stream"]), (&json!("gpt-oss-20b"), &json!(true)));
    assert_eq!(asked["messages"][0]["content"], chat::SYSTEM_PROMPT.trim());
    let own = place.0.path().join("systematic_exploration_prompt.md");
    std::fs::write(own, "Be brief.").unwrap();
    fake.then(text(&["ok"]));
    assert!(place.chat(&fake.url(), "", &["-p", "hi"]).await.status.success());
    assert_eq!(fake.requests()[1].json()["messages"][0]["content"], "Be brief.");
}

#[tokio::test]
async fn without_a_terminal_questions_are_denied() {
    let place = ChatFolder::new();
    let fake = FakeVllm::start([edit(), text(&["I may not."])]).await;
    let done = place.chat(&fake.url(), "", &["-p", "Change it."]).await;
    assert_eq!((done.status.code(), place.read("a.txt").as_str()), (Some(1), "one\ntwo\n"));
    assert!(stderr(&done).contains("add --yes"), "{}", stderr(&done));
    assert!(last_result(&fake, 1).contains("no person can be asked"), "{}", last_result(&fake, 1));
    let line = "└ not done: it needs consent, and no person can be asked\n";
    assert!(stderr(&done).contains(line), "{}", stderr(&done));
}

#[tokio::test]
async fn the_policy_overrules_yes() {
    let place = ChatFolder::new();
    let rules = |then: &str| format!("[[tools.policy.rule]]\ntool = \"edit\"\nthen = \"{then}\"\n");
    let fake = FakeVllm::start([edit(), text(&["no"]), edit(), text(&["yes"])]).await;
    let denied = place.chat(&fake.url(), &rules("deny"), &["--yes", "-p", "Change it."]).await;
    assert_eq!((denied.status.code(), place.read("a.txt").as_str()), (Some(0), "one\ntwo\n"));
    assert!(last_result(&fake, 1).contains("denied by rule 1"));
    place.chat(&fake.url(), &rules("allow"), &["-p", "Change it."]).await;
    assert_eq!(place.read("a.txt"), "one\n2\n");
}

#[tokio::test]
async fn read_only_chats_change_nothing() {
    let place = ChatFolder::new();
    let make = ("shell_command", json!({"command": "echo x > made"}));
    let read = ("read_file", json!({"file_path": "a.txt"}));
    let fake = FakeVllm::start([calls(&[make]), edit(), calls(&[read]), text(&["ok"])]).await;
    let settings = "[tools.policy]\ndefault = 'allow'";
    let done = place.chat(&fake.url(), settings, &["--yes", "--read-only", "-p", "Go."]).await;
    assert_eq!(stdout(&done), "ok\n", "{}", stderr(&done));
    for request in [1, 2] {
        let result = last_result(&fake, request);
        assert!(result.contains("did not run: this chat is read-only"), "{result}");
    }
    assert!(last_result(&fake, 3).contains("one\ntwo"), "{}", last_result(&fake, 3));
    let asked = last_result(&fake, 0);
    assert!(asked.starts_with("Go.\n\n(For this message you may only look"), "{asked}");
    assert!(place.read("a.txt") == "one\ntwo\n" && !place.work().join("made").exists());
}

#[tokio::test]
async fn mcp_servers_start_with_the_turn() {
    let place = ChatFolder::new();
    let server = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/support/strict_mcp.py");
    let said = place.0.path().join("said");
    std::fs::create_dir(&said).unwrap();
    std::fs::write(place.work().join("own.py"), "").unwrap();
    let settings = format!(
        "[tools.mcp.strict]\ncommand = 'python3'\nargs = ['{server}', '{}']\n\
         [tools.mcp.own]\ncommand = 'python3'\nargs = ['own.py']",
        said.display()
    );
    let echo = || calls(&[("strict__echo", json!({"text": "hello"}))]);
    let fake = FakeVllm::start([echo(), text(&["ok"]), echo(), text(&["ok"])]).await;
    let done = place.chat(&fake.url(), &settings, &["-p", "Go."]).await;
    let told = stderr(&done);
    assert!(last_result(&fake, 1).contains("it needs consent"), "{}", last_result(&fake, 1));
    assert!(told.contains("MCP server strict: 9 tools"), "{told}");
    assert!(told.contains("! MCP server own cannot be used"), "commands write its code: {told}");
    let tools = fake.requests()[0].json()["tools"].clone();
    assert_eq!(
        (tools.as_array().unwrap().len(), &tools[4]["function"]["name"]),
        (13, &json!("strict__echo"))
    );
    let done = place.chat(&fake.url(), &settings, &["--yes", "-p", "Go."]).await;
    assert_eq!((last_result(&fake, 3).as_str(), done.status.code()), ("hello", Some(0)));
}

#[tokio::test]
async fn configured_aliases_and_windows_hold() {
    let place = ChatFolder::new();
    let settings = "[models.fast]\ntarget = \"gpt-oss-20b\"\ncontext_window = 9000\n\
                    [models.\"gpt-oss-20b\"]\ncontext_window = 30000\n";
    let fake = FakeVllm::start([text(&["ok"]), text(&["ok"]), text(&["ok"])]).await;
    let check = async |arguments: &[&str], limit: u64| {
        let done = place.chat(&fake.url(), settings, arguments).await;
        assert!(done.status.success(), "{}", stderr(&done));
        let asked = fake.requests().last().unwrap().json();
        assert_eq!((&asked["model"], &asked["max_tokens"]), (&json!("gpt-oss-20b"), &json!(limit)));
    };
    check(&["-p", "x"], 30_000 / 4).await;
    check(&["--model", "fast", "-p", "x"], 9_000 / 4).await;
    check(&["--continue", "-p", "y"], 9_000 / 4).await;
}

#[tokio::test]
async fn unusable_files_are_bad_configuration() {
    let place = ChatFolder::new();
    let fake = FakeVllm::start([]).await;
    let done = place.chat(&fake.url(), "", &["--system", "nowhere.md", "-p", "hi"]).await;
    assert_eq!(done.status.code(), Some(78), "{}", stderr(&done));
    assert!(stderr(&done).contains("--system: nowhere.md cannot be read"), "{}", stderr(&done));
    let done = place.chat(&fake.url(), "log.file = '/dev/null/x'", &["-p", "hi"]).await;
    assert_eq!(done.status.code(), Some(78), "{}", stderr(&done));
    assert!(
        stderr(&done).contains("respool.toml:2: log.file: /dev/null/x cannot be opened"),
        "{}",
        stderr(&done)
    );
}

/// A call with two names for its path was asked about as one file and wrote the other.
#[tokio::test]
async fn paths_under_two_names_are_refused() {
    let place = ChatFolder::new();
    let hook = json!({"file_path": "README.md", "path": ".git/hooks/pre-commit", "content": "evil"});
    let fake = FakeVllm::start([calls(&[("write_file", hook)]), text(&["ok"])]).await;
    let done = place.chat(&fake.url(), "", &["--yes", "-p", "Write."]).await;
    assert!(last_result(&fake, 1).contains("give only one of them"), "{}", last_result(&fake, 1));
    assert!(stderr(&done).contains("give only one of them"), "{}", stderr(&done));
    assert!(!place.work().join(".git").exists() && !place.work().join("README.md").exists());
}

#[tokio::test]
async fn conversations_open_in_one_terminal() {
    let place = ChatFolder::new();
    let wait = ("shell_command", json!({"command": "touch begun; until [ -e go ]; do sleep 0.05; done"}));
    let fake = FakeVllm::start([calls(&[wait]), text(&["first"])]).await;
    let (work, url) = (place.work(), fake.url());
    let meanwhile = async {
        crate::support::eventually(|| work.join("begun").exists().then_some(())).await;
        let config = place.0.path().join("respool.toml");
        let config = ["--config", config.to_str().unwrap()];
        let refused = command(&work, &config, &["--continue", "-p", "x"]).await;
        fake.then(text(&["second"]));
        std::fs::write(work.join("go"), "").unwrap();
        refused
    };
    let (first, refused) = tokio::join!(place.chat(&url, "", &["--yes", "-p", "Wait."]), meanwhile);
    assert_eq!((stdout(&first).as_str(), refused.status.code()), ("first\n", Some(1)));
    assert!(stderr(&refused).contains("open in another terminal"), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("--resume lists the others"), "{}", stderr(&refused));
    let after = place.chat(&url, "", &["--continue", "-p", "x"]).await;
    assert_eq!(stdout(&after), "second\n", "{}", stderr(&after));
}

#[tokio::test]
async fn commands_see_no_secrets() {
    let place = ChatFolder::new();
    let settings = "[tools.local]\npass_env = [\"OTHER_TOKEN\"]\n\
                    [tools.gateway]\nurl = \"http://127.0.0.1:1\"\ntoken_env = \"GATE\"\n";
    let run = ("shell_command", json!({"command": "echo $VIRTUAL_ENV $MY_TOKEN $OTHER_TOKEN $GATE"}));
    let fake = FakeVllm::start([calls(&[run]), text(&["ok"])]).await;
    place.chat(&fake.url(), settings, &["--yes", "-p", "Look."]).await;
    assert_eq!(last_result(&fake, 1), "/venv t2\n");
}

#[tokio::test]
async fn conversations_continue_in_another_process() {
    let place = ChatFolder::new();
    let run = ("shell_command", json!({"command": "echo 41 > n; cat n"}));
    let fake = FakeVllm::start([calls(&[run]), text(&["It is 41."]), text(&["It was 41."])]).await;
    place.chat(&fake.url(), "", &["--yes", "-p", "Make a number."]).await;
    let done = place.chat(&fake.url(), "", &["--continue", "-p", "Which was it?"]).await;
    assert_eq!(stdout(&done), "It was 41.\n");
    assert!(stderr(&done).contains("continuing the last conversation (1 turn)"), "{}", stderr(&done));
    let asked = fake.requests()[2].json();
    let said: Vec<(&str, &str)> = asked["messages"].as_array().unwrap()[1..]
        .iter()
        .map(|it| (it["role"].as_str().unwrap(), it["content"].as_str().unwrap_or_default()))
        .collect();
    let expected = [
        ("user", "Make a number."),
        ("assistant", ""),
        ("tool", "41\n"),
        ("assistant", "It is 41."),
        ("user", "Which was it?"),
    ];
    assert_eq!(said, expected);
    let elsewhere = place.work().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    let config = place.0.path().join("respool.toml");
    fake.then(text(&["Which?"]));
    let other =
        command(&elsewhere, &["--config", config.to_str().unwrap()], &["--continue", "-p", "Go on."]).await;
    assert!(stderr(&other).contains("no earlier conversation in this directory"), "{}", stderr(&other));
    assert_eq!(fake.requests()[3].json()["messages"].as_array().unwrap().len(), 2);
}

/// Regression: a model that was asked about a picture got the bare words.
#[tokio::test]
async fn pictures_go_along() {
    let place = ChatFolder::new();
    std::fs::write(place.work().join("pic.png"), b"\x89PNG\r\n\x1a\n").unwrap();
    let fake = FakeVllm::always(text(&["A point."])).await;
    fake.serve_models(&["qwen3-vl"]);
    let done = place.chat(&fake.url(), "", &["-p", "What is on @pic.png?"]).await;
    assert!(stderr(&done).contains("@pic.png · picture, 8 bytes"), "{}", stderr(&done));
    place.chat(&fake.url(), "", &["-c", "-p", "And on @pic.png now?"]).await;
    let asked = fake.requests()[1].json();
    let url = "data:image/png;base64,iVBORw0KGgo=";
    let content = |words: &str| {
        let text = format!("{words}\n\npic.png: picture 1 of this message");
        json!([{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": url}}])
    };
    let messages = &asked["messages"];
    assert_eq!(messages[1]["content"], content("What is on @pic.png?"));
    assert_eq!(messages[3]["content"], content("And on @pic.png now?"));
    // A model that cannot see learns that there was a picture, and the person hears that.
    let refused = Script::json(400, &replies::error(400, "image input is not supported", "BadRequestError"));
    let blind = FakeVllm::start([refused.clone(), refused, text(&["No."]), text(&["No."])]).await;
    blind.serve_models(&["qwen3"]);
    for asked in [2, 3] {
        let done = place.chat(&blind.url(), "", &["-p", "What is on @pic.png?"]).await;
        let told = stderr(&done);
        assert_eq!(told.matches("cannot see pictures").count(), 1, "{told}");
        let messages = blind.requests()[asked].json()["messages"].to_string();
        assert!(messages.contains("[A picture was sent here (image/png, 1 KB)"), "{messages}");
    }
}

#[tokio::test]
async fn answered_prompts_are_done() {
    let place = ChatFolder::new();
    let fake = FakeVllm::start([text(&["One."])]).await;
    place.chat(&fake.url(), "", &["-p", "Count."]).await;
    fake.then(Script::json(400, &replies::error(400, "No such thing.", "BadRequestError")));
    place.chat(&fake.url(), "", &["-p", "Count again."]).await;
    let list = Command::new(env!("CARGO_BIN_EXE_respool"))
        .args(["runs", "list", "--json", "--config", place.0.path().join("respool.toml").to_str().unwrap()])
        .output()
        .await
        .unwrap();
    let runs: Value = serde_json::from_slice(&list.stdout).unwrap();
    let statuses: Vec<&str> =
        runs.as_array().unwrap().iter().filter_map(|run| run["status"].as_str()).collect();
    assert_eq!(statuses, ["suspended", "done"], "newest first: {runs}");
}

#[tokio::test]
async fn conversations_keep_their_model() {
    let place = ChatFolder::new();
    let fake = FakeVllm::start([text(&["One."]), text(&["Two."]), text(&["Three."])]).await;
    fake.serve_models(&["small", "large"]);
    place.chat(&fake.url(), "", &["--model", "large", "-p", "Count."]).await;
    let done = place.chat(&fake.url(), "", &["--continue", "-p", "Go on."]).await;
    assert!(stderr(&done).contains("the next turn goes to large, as the last one did"), "{}", stderr(&done));
    let named = ["--continue", "--model", "small", "-p", "Go on."];
    place.chat(&fake.url(), "", &named).await;
    let asked: Vec<Value> = fake.requests().iter().map(|request| request.json()["model"].clone()).collect();
    assert_eq!(asked, ["large", "large", "small"]);
    fake.serve_models(&["large"]);
    fake.then(text(&["Four."]));
    let done = place.chat(&fake.url(), "", &["--continue", "-p", "Go on."]).await;
    assert!(stderr(&done).contains("the last turn went to small, the next one goes to large"));
}

/// Regression: what a command had made stayed when a person stopped the chat.
#[tokio::test]
async fn what_commands_of_a_stopped_chat_made_is_renamed() {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let place = ChatFolder::new();
        let run = ("shell_command", json!({"command": "mkdir .vscode; touch begun; sleep 60"}));
        let fake = FakeVllm::start([calls(&[run])]).await;
        let config = place.configure(&fake.url(), "");
        let mut chat = new_command(&place.work(), &["--config", &config], &["--yes", "-p", "Wait."]);
        let chat = chat.stderr(Stdio::piped()).spawn().unwrap();
        crate::support::eventually(|| place.work().join("begun").exists().then_some(())).await;
        let pid = i32::try_from(chat.id().unwrap()).unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).unwrap();
        let ended = tokio::time::timeout(Duration::from_secs(20), chat.wait_with_output()).await;
        let ended = ended.expect("it hangs").unwrap();
        assert!(stderr(&ended).contains("respool: while the command ran, "), "{}", stderr(&ended));
        let ended = ended.status;
        // Regression: a loop of the shell went on after Ctrl-C, because the exit code was 1.
        let interrupt = (signal == Signal::SIGINT).then_some(Signal::SIGINT as i32);
        assert_eq!(ended.signal(), interrupt, "{ended}");
        assert!(place.work().join(".vscode.made-by-a-command").exists(), "{signal}");
        assert!(!place.work().join(".vscode").exists(), "{signal}");
    }
}

#[tokio::test]
async fn killed_conversations_continue() {
    let place = ChatFolder::new();
    let run = ("shell_command", json!({"command": "echo $$ > pid; touch begun; sleep 60"}));
    let fake = FakeVllm::start([calls(&[run]), text(&["I see."])]).await;
    let (begun, url) = (place.work().join("begun"), fake.url());
    tokio::select! {
        done = place.chat(&url, "", &["--yes", "-p", "Wait."]) => panic!("it ended: {done:?}"),
        () = crate::support::eventually(|| begun.exists().then_some(())) => {}
    }
    // One that ended and was not waited for has no command line.
    let process = format!("/proc/{}/cmdline", place.read("pid").trim());
    let is_over = || std::fs::read(&process).unwrap_or_default().is_empty();
    crate::support::eventually(|| is_over().then_some(())).await;
    let done = place.chat(&fake.url(), "", &["--continue", "-p", "Well?"]).await;
    assert_eq!(stdout(&done), "I see.\n");
    assert!(stderr(&done).contains("its last turn was interrupted"), "{}", stderr(&done));
    let asked = fake.requests()[1].json();
    let result = asked["messages"].as_array().unwrap().iter().find(|it| it["role"] == "tool").unwrap();
    assert!(result["content"].as_str().unwrap().contains("may have taken effect"), "{result}");
}

#[tokio::test]
async fn failures_set_the_exit_code() {
    let place = ChatFolder::new();
    let check = |done: &Output, code: i32, parts: &[&str]| {
        assert_eq!((done.status.code(), stdout(done).as_str()), (Some(code), ""), "{}", stderr(done));
        parts.iter().for_each(|part| assert!(stderr(done).contains(part), "{part} in {}", stderr(done)));
    };
    check(
        &place.chat("http://127.0.0.1:1", "", &["-p", "x"]).await,
        1,
        &["cannot be reached", "127.0.0.1:1"],
    );
    check(&place.chat("http://127.0.0.1:1", "", &[]).await, 2, &["not a terminal", "-p"]);
    check(&place.chat("http://127.0.0.1:1", "", &["-p", " "]).await, 2, &["empty"]);
    check(&place.chat("http://127.0.0.1:1", "nonsense = 1", &["-p", "x"]).await, 78, &["nonsense"]);
    let key = place.chat("http://127.0.0.1:1", "", &["--upstream", "deepinfra", "-p", "x"]).await;
    check(&key, 1, &["DEEPINFRA_API_KEY"]);
    let refusal = || Script::json(401, &replies::error(401, "Unauthorized", "AuthenticationError"));
    let fake = FakeVllm::start([refusal().on("GET", "/v1/models")]).await;
    check(&place.chat(&fake.url(), "", &["-p", "x"]).await, 1, &["asks for a key", "api_key"]);
    fake.then(Script::json(400, &replies::error(400, "No such thing.", "BadRequestError")));
    let model = place.chat(&fake.url(), "", &["--model", "m", "-p", "x"]).await;
    check(&model, 1, &["no answer: No such thing."]);
}

#[tokio::test]
async fn base_paths_are_kept() {
    let place = ChatFolder::new();
    let fake = FakeVllm::start([text(&["ok"]).unchecked().on("POST", "/v1/openai/chat/completions")]).await;
    let upstream = format!("{}/v1/openai", fake.url());
    let done = place.chat(&upstream, "", &["--model", "openai/gpt-oss-120b", "-p", "x"]).await;
    assert_eq!(stdout(&done), "ok\n", "{}", stderr(&done));
    fake.take_problems();
}
