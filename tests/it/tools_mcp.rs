//! Tools of MCP servers, against a small strict server over both transports.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;
use tools::{Invocation, Sources, ToolError, ToolSet, Tools as _};

use crate::support::tools::{Person, call, config, failure, invocation, problems_of, set, text};
use crate::support::wait_until;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/support/strict_mcp.py");

fn settings(folder: &Path, more: &str) -> String {
    format!(
        "policy.default = \"allow\"\n{more}\n[mcp.strict]\ncommand = \"python3\"\nargs = [\"{SCRIPT}\", \"{}\"]\nenv = {{ OWN = \"yes\" }}",
        folder.display()
    )
}

async fn strict(wanted: &[&str]) -> (TempDir, ToolSet) {
    let folder = tempfile::tempdir().unwrap();
    let tools = set(&settings(folder.path(), ""), wanted).await;
    (folder, tools)
}

fn said(folder: &TempDir, name: &str) -> String {
    fs::read_to_string(folder.path().join(name)).unwrap_or_default()
}

fn no_problems(folder: &TempDir) {
    assert_eq!(said(folder, "problems"), "");
}

fn names(tools: &ToolSet) -> Vec<String> {
    tools.specs().into_iter().map(|spec| spec.name).collect()
}

fn none_lives(pids: &str) -> bool {
    let lives = |pid: &str| {
        let status = fs::read_to_string(format!("/proc/{pid}/stat"));
        status.is_ok_and(|status| !status.rsplit(')').next().unwrap().trim_start().starts_with('Z'))
    };
    !pids.split_whitespace().any(lives)
}

#[tokio::test]
async fn results_of_tools_are_text() {
    let (folder, tools) = strict(&["mcp:strict/*"]).await;
    let specs = tools.specs();
    assert_eq!(specs.len(), 9, "all pages of the list");
    let echo = &specs[0];
    assert_eq!(
        (echo.name.as_str(), echo.description.as_str(), echo.is_repeatable),
        ("strict__echo", "Says it again.", true)
    );
    assert_eq!(echo.parameters["properties"]["text"]["type"], "string");
    assert!(!specs[1].is_repeatable);
    assert_eq!(text(&tools, "strict__echo", json!({"text": "a\u{1b}[1mb"})).await, "ab");
    assert_eq!(text(&tools, "strict__picture", json!({})).await, "[image, image/png, 12 bytes: not shown]");
    assert_eq!(text(&tools, "strict__structured", json!({})).await, "{\n  \"answer\": 42\n}");
    assert_eq!(failure(&tools, "strict__fail", json!({})).await, "it did not work");
    assert_eq!(failure(&tools, "strict__echo", json!({})).await, "text is missing");
    let odd = names(&tools).pop().unwrap();
    assert!(odd.starts_with("strict__odd_name_of_a_tool_"), "{odd}");
    assert_eq!(text(&tools, &odd, json!({})).await, "odd");
    let environment = said(&folder, "environment");
    assert!(environment.contains("OWN") && environment.contains("PATH"), "{environment}");
    assert!(!environment.contains("CARGO_MANIFEST_DIR"), "{environment}");
    no_problems(&folder);
}

#[tokio::test]
async fn only_what_is_wanted_is_offered() {
    let (_folder, tools) = strict(&["mcp:strict/echo", "mcp:strict/s*"]).await;
    assert_eq!(names(&tools), ["strict__echo", "strict__structured", "strict__slow"]);
    let problem = failure(&tools, "strict__fail", json!({})).await;
    assert!(problem.starts_with("there is no tool \"strict__fail\""), "{problem}");
}

#[tokio::test]
async fn wrong_settings_are_reported_at_start() {
    let folder = tempfile::tempdir().unwrap();
    let check = async |toml: &str, wanted: &str, expected: &str| {
        let problems = problems_of(toml, &[wanted]).await;
        assert!(problems[0].starts_with(expected), "{problems:?}");
    };
    let strict = settings(folder.path(), "");
    check(
        &strict,
        "mcp:strict/nope",
        "the MCP server offers no \"mcp:strict/nope\"; it has mcp:strict/echo, ",
    )
    .await;
    check(&strict, "mcp:other/*", "the tool \"mcp:other/*\" needs [tools.mcp.other]").await;
    check(
        "mcp.x.command = \"/no/such/program\"",
        "mcp:x/*",
        "tools.mcp.x: /no/such/program cannot be started: No such file",
    )
    .await;
}

#[tokio::test]
async fn failed_servers_do_not_stop_respool() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("refuse"), "").unwrap();
    let tools = set(&settings(folder.path(), ""), &["mcp:strict/*"]).await;
    assert!(names(&tools).is_empty());
    fs::remove_file(folder.path().join("refuse")).unwrap();
    wait_until("it is started again", async || names(&tools).len() == 9).await;
    no_problems(&folder);
}

/// Regression: a broken pipe was given as the reason, and the program's own words were lost.
#[tokio::test]
async fn a_program_says_why_it_did_not_start() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("crm.py");
    fs::write(&program, "#!/usr/bin/env no-such-python\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let toml = format!("mcp.crm.command = {:?}", program.display().to_string());
    let sources = Sources::open(&config(&toml)).unwrap();
    sources.await_servers(["crm"], Duration::from_secs(30)).await;
    let problem = sources.mcp_problem("crm").unwrap().text;
    assert!(problem.contains("it did not start: it ended (exit status: 127); it said: "), "{problem}");
    assert!(problem.contains("no-such-python") && !problem.contains('\n'), "{problem}");
    let lists = r#"
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    version = request.get("params", {}).get("protocolVersion")
    start = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": {"name": "crm", "version": "1"}}
    result = start if request["method"] == "initialize" else {"tools": [{"name": "find"}]}
    if "id" in request:
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
"#;
    let toml = format!("[mcp.crm]\ncommand = \"python3\"\nargs = [\"-c\", '''{lists}''']");
    let sources = Sources::open(&config(&toml)).unwrap();
    sources.await_servers(["crm"], Duration::from_secs(30)).await;
    let problem = sources.mcp_problem("crm").unwrap().text;
    assert!(problem.contains("each needs a `name`, and an `inputSchema`"), "{problem}");
    let mute = config("[mcp.crm]\ncommand = \"sleep\"\nargs = [\"60\"]");
    let problem = Sources::open(&mute).unwrap().mcp_problem("crm").unwrap().text;
    assert!(problem.contains("has not answered `initialize` and `tools/list` yet"), "{problem}");
}

#[tokio::test]
async fn dead_servers_are_restarted() {
    let (folder, tools) = strict(&["mcp:strict/*"]).await;
    let Err(ToolError::Transient(problem)) = call(&tools, "strict__die", json!({})).await else {
        panic!("it lives")
    };
    assert_eq!(
        problem,
        "the connection to the MCP server strict broke during the call: it ended (exit status: 3); it said: Traceback: KeyError: 'boom'"
    );
    assert_eq!(names(&tools).len(), 9, "its tools stay on offer");
    assert_eq!(
        text(&tools, "strict__echo", json!({"text": "again"})).await,
        "again",
        "the call waits for it"
    );
    assert_eq!(said(&folder, "pids").lines().count(), 2);
    assert_eq!(text(&tools, "strict__echo", json!({"text": "again"})).await, "again");
    let pids = said(&folder, "pids");
    wait_until("what the first left behind is gone", async || none_lives(pids.lines().next().unwrap())).await;
    no_problems(&folder);
}

#[tokio::test]
async fn tools_of_dead_servers_stay_known() {
    let (folder, tools) = strict(&["mcp:strict/*"]).await;
    fs::write(folder.path().join("refuse"), "").unwrap();
    assert!(matches!(call(&tools, "strict__die", json!({})).await, Err(ToolError::Transient(_))));
    assert_eq!(names(&tools).len(), 9);
    let Err(ToolError::Unreachable(problem)) = call(&tools, "strict__echo", json!({"text": "x"})).await
    else {
        panic!("it answers")
    };
    assert!(problem.starts_with("the MCP server strict is not running: it did not start"), "{problem}");
    // As after a restart of respool: the tools were never listed, and a resumed run calls one.
    let fresh = set(&settings(folder.path(), ""), &["mcp:strict/*"]).await;
    assert!(names(&fresh).is_empty());
    let Err(ToolError::Unreachable(problem)) = call(&fresh, "strict__echo", json!({"text": "x"})).await
    else {
        panic!("it answers")
    };
    assert!(problem.contains("is not running"), "{problem}");
    assert!(failure(&fresh, "other__echo", json!({})).await.starts_with("there is no tool"));
    fs::remove_file(folder.path().join("refuse")).unwrap();
    assert_eq!(text(&fresh, "strict__echo", json!({"text": "late"})).await, "late");
}

#[tokio::test]
async fn protocol_errors_differ_from_tool_errors() {
    let (_folder, tools) = strict(&["mcp:strict/*"]).await;
    assert_eq!(
        call(&tools, "strict__fail", json!({})).await,
        Err(ToolError::Failed("it did not work".into()))
    );
    let broken = call(&tools, "strict__broken", json!({})).await;
    let Err(ToolError::Protocol(problem)) = broken else { panic!("{broken:?}") };
    assert_eq!(problem, "the MCP server strict answered with the error -32603: out of order");
}

#[tokio::test]
async fn a_changed_list_is_read_again() {
    let (folder, tools) = strict(&["mcp:strict/*"]).await;
    assert_eq!(text(&tools, "strict__grow", json!({})).await, "grown");
    wait_until("the new tool is offered", async || names(&tools).contains(&"strict__grown".to_owned())).await;
    no_problems(&folder);
}

/// A rule like `mcp:strict/*` speaks of the tools that its owner could see.
#[tokio::test]
async fn new_tools_need_a_persons_consent() {
    let (folder, tools) = strict(&["mcp:strict/*"]).await;
    assert_eq!(text(&tools, "strict__grow", json!({})).await, "grown");
    wait_until("the new tool is offered", async || names(&tools).contains(&"strict__grown".to_owned())).await;
    let Err(ToolError::Denied(why)) = call(&tools, "strict__grown", json!({})).await else {
        panic!("it ran")
    };
    assert!(why.contains("the MCP server strict did not offer grown when it was started"), "{why}");
    let call = invocation("strict__grown", &json!({}));
    let denied = tools.call(&call, Some(&Person::who_says(false))).await;
    assert!(matches!(denied, Err(ToolError::Denied(_))), "{denied:?}");
    let agreed = tools.call(&call, Some(&Person::who_says(true))).await;
    assert!(!matches!(agreed, Err(ToolError::Denied(_))), "{agreed:?}");
    let later = tools.call(&call, None).await;
    assert!(!matches!(later, Err(ToolError::Denied(_))), "a person has agreed to it: {later:?}");
    assert_eq!(text(&tools, "strict__echo", json!({"text": "x"})).await, "x");
    drop(folder);
}

#[tokio::test]
async fn slow_calls_are_cancelled() {
    let (folder, tools) = strict(&["mcp:strict/*"]).await;
    let slow = Invocation { timeout: Duration::from_millis(300), ..invocation("strict__slow", &json!({})) };
    assert!(matches!(tools.call(&slow, None).await, Err(ToolError::TimedOut(_))));
    wait_until("the server is told", async || !said(&folder, "cancelled").is_empty()).await;
    assert_eq!(text(&tools, "strict__echo", json!({"text": "still here"})).await, "still here");
    no_problems(&folder);
}

/// Regression: a program that answered in another way than MCP's seemed to be slow.
#[tokio::test]
async fn stray_output_explains_a_timeout() {
    let settings = |answer: &str| {
        let script = r#"
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    version = request.get("params", {}).get("protocolVersion")
    start = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": {"name": "crm", "version": "1"}}
    tools = {"tools": [{"name": "find", "inputSchema": {"type": "object"}}]}
    result = {"initialize": start, "tools/list": tools}.get(request["method"], {})
    if "id" in request:
        reply = {"jsonrpc": "2.0", "id": request["id"], "result": result}
        print(ANSWER if request["method"] == "tools/call" else json.dumps(reply), flush=True)
"#;
        let script = script.replace("ANSWER", answer);
        format!(
            "policy.default = \"allow\"\n[mcp.crm]\ncommand = \"python3\"\nargs = [\"-c\", '''{script}''']"
        )
    };
    for (answer, expected) in [
        (
            "\"banana\"",
            "the MCP server crm has not answered: it wrote a line that is not a JSON-RPC message: banana",
        ),
        ("json.dumps({**reply, \"id\": 777})", "it replied to the id 777, which no open request has"),
    ] {
        let tools = set(&settings(answer), &["mcp:crm/*"]).await;
        let find = Invocation { timeout: Duration::from_secs(2), ..invocation("crm__find", &json!({})) };
        let Err(ToolError::TimedOut(text)) = tools.call(&find, None).await else { panic!("it answered") };
        assert!(text.contains(expected) && text.contains("[stopped after 2 s"), "{text}");
    }
}

#[tokio::test]
async fn all_processes_end_with_the_tools() {
    let (folder, tools) = strict(&["mcp:strict/*"]).await;
    let pids = said(&folder, "pids");
    assert_eq!(pids.split_whitespace().count(), 2, "the server and its child");
    assert!(!none_lives(&pids));
    drop(tools);
    wait_until("both end", async || none_lives(&pids)).await;
}

#[tokio::test]
async fn agents_share_a_server() {
    let folder = tempfile::tempdir().unwrap();
    let sources = Sources::open(&config(&settings(folder.path(), ""))).unwrap();
    let wanted = ["mcp:strict/echo".to_owned()];
    let (one, two) =
        (sources.select_tools(&wanted).await.unwrap(), sources.select_tools(&wanted).await.unwrap());
    for tools in [&one, &two] {
        assert_eq!(text(tools, "strict__echo", json!({"text": "x"})).await, "x");
    }
    assert_eq!(said(&folder, "pids").lines().count(), 1);
}

#[tokio::test]
async fn the_policy_stands_before_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let rules = r#"
        [[policy.rule]]
        tool = "mcp:strict/echo"
        path = "src/**"
        then = "allow"
        [[policy.rule]]
        tool = "strict__fail"
        then = "deny"
        "#;
    let tools = set(
        &settings(folder.path(), rules).replace("default = \"allow\"", "default = \"ask\""),
        &["mcp:strict/*"],
    )
    .await;
    for (name, arguments) in [
        ("strict__echo", json!({"text": "x"})),
        ("strict__echo", json!({"text": "../src/x"})),
        ("strict__echo", json!({"text": "src/x", "also": "/etc/passwd"})),
        ("strict__echo", json!({"text": "src/x", "uri": "file:///etc/passwd"})),
        ("strict__echo", json!({"text": "src/x", "output_path": "secret"})),
        ("strict__echo", json!({"text": "src/x", "to": "secret"})),
        ("strict__echo", json!({"text": "src/x", "args": ["x"]})),
        ("strict__echo", json!({"text": "src/x", "shell": true})),
        ("strict__echo", json!({"text": "src/x", "nested": {"secret": {"deep": "x"}}})),
        ("strict__fail", json!({})),
        ("strict__die", json!({})),
    ] {
        assert!(matches!(call(&tools, name, arguments).await, Err(ToolError::Denied(_))), "{name}");
    }
    assert_eq!(text(&tools, "strict__echo", json!({"text": "src/x"})).await, "src/x");
    assert_eq!(said(&folder, "calls"), "[\"echo\", {\"text\": \"src/x\"}]\n", "nothing else reached it");
}

struct HttpServer(Child);

impl Drop for HttpServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the server; a later one in the same folder gets the port of the first.
async fn http_server(folder: &TempDir) -> HttpServer {
    let before = said(folder, "listening").lines().count();
    let server = Command::new("python3").arg(SCRIPT).arg(folder.path()).arg("--http").spawn().unwrap();
    wait_until("it listens", async || said(folder, "listening").lines().count() > before).await;
    HttpServer(server)
}

fn http_settings(folder: &TempDir, token: &str) -> String {
    let port = said(folder, "port");
    format!(
        "policy.default = \"allow\"\n[mcp.web]\nurl = \"http://127.0.0.1:{port}/mcp\"\nheaders = {{ Authorization = \"Bearer {token}\" }}"
    )
}

#[tokio::test]
async fn a_server_over_http() {
    let folder = tempfile::tempdir().unwrap();
    let server = http_server(&folder).await;
    wait_until("it says where", async || folder.path().join("port").exists()).await;
    let settings = |token: &str| http_settings(&folder, token);
    let tools = set(&settings("mcp-token"), &["mcp:web/*"]).await;
    assert_eq!(text(&tools, "web__echo", json!({"text": "by event stream"})).await, "by event stream");
    assert_eq!(text(&tools, "web__structured", json!({})).await, "{\n  \"answer\": 42\n}");
    assert_eq!(failure(&tools, "web__fail", json!({})).await, "it did not work");
    let refused = set(&settings("wrong"), &["mcp:web/*"]).await;
    assert!(names(&refused).is_empty());
    drop(server);
    let gone =
        Invocation { timeout: Duration::from_secs(3), ..invocation("web__echo", &json!({"text": "x"})) };
    let error = tools.call(&gone, None).await.unwrap_err();
    assert!(matches!(&error, ToolError::Unreachable(_)), "{error:?}");
    assert!(error.text().contains("Connection refused") && !error.text().contains("rmcp"), "{error:?}");
    no_problems(&folder);
}

#[tokio::test]
async fn sent_requests_have_unknown_outcomes() {
    let folder = tempfile::tempdir().unwrap();
    let server = http_server(&folder).await;
    wait_until("it says where", async || folder.path().join("port").exists()).await;
    let tools = set(&http_settings(&folder, "mcp-token"), &["mcp:web/*"]).await;
    let died = call(&tools, "web__die", json!({})).await;
    let Err(ToolError::Transient(problem)) = died else { panic!("{died:?}") };
    assert!(problem.contains("broke during the call") && !problem.contains("rmcp"), "{problem}");
    drop(server);
    let calling = call(&tools, "web__echo", json!({"text": "late"}));
    let (called, _server) = tokio::join!(calling, http_server(&folder));
    assert_eq!(called.unwrap().text, "late", "the call waits for the server");
    assert_eq!(said(&folder, "calls").matches("late").count(), 1);
}

#[tokio::test]
async fn absent_http_servers_are_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let server = http_server(&folder).await;
    wait_until("it says where", async || folder.path().join("port").exists()).await;
    let sources = Sources::open(&config(&http_settings(&folder, "mcp-token"))).unwrap();
    let _tools = sources.select_tools(&["mcp:web/*".to_owned()]).await.unwrap();
    assert_eq!(sources.mcp_problem("web"), None);
    drop(server);
    wait_until("it is down", async || sources.mcp_problem("web").is_some()).await;
    let problem = sources.mcp_problem("web").unwrap();
    assert!(problem.text.contains("Connection refused") && !problem.text.contains("rmcp"), "{problem:?}");
    let _server = http_server(&folder).await;
    wait_until("it is up again", async || sources.mcp_problem("web").is_none()).await;
}
