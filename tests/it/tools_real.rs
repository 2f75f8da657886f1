//! The tools against real servers. Not run by default: `tests/openclaw/tools.sh` and `tests/mcp/run.sh` start
//! the servers and then these tests.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;
use tools::{Invocation, ToolError, Tools as _};

use crate::support::tools::{call, failure, invocation, set, text};

fn setting(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: start this by its script"))
}

#[tokio::test]
#[ignore = "needs the gateway that tests/openclaw/tools.sh starts"]
async fn openclaws_gateway_runs_tools() {
    let settings = |token: &str| {
        format!(
            "policy.default = \"allow\"\npolicy.rule = [{{ tool = \"host_*\", then = \"allow\" }}, {{ tool = \"nope\", then = \"allow\" }}]\n\
             [gateway]\nurl = \"{}\"\ntoken = \"{token}\"\nsession_key = \"agent:respool:main\"",
            setting("OPENCLAW_URL")
        )
    };
    let known =
        ["web_search", "web_fetch", "session_status", "agents_list", "sessions_list", "memory_search"];
    let other = [
        "gateway:host_exec",
        "gateway:host_read",
        "gateway:host_write",
        "gateway:host_edit",
        "gateway:host_ls",
        "gateway:nope",
    ];
    let tools = set(&settings(&setting("OPENCLAW_TOKEN")), &[&known[..], &other[..]].concat()).await;
    for (name, arguments, expected) in [
        ("agents_list", json!({}), "\"requester\": \"respool\""),
        ("session_status", json!({}), "OpenClaw"),
        ("sessions_list", json!({}), "\"sessions\""),
        ("memory_search", json!({"q": "hello"}), "\"results\""),
        ("host_write", json!({"path": "d/x", "content": "one\ntwo"}), "Wrote 7 bytes to d/x"),
        ("host_edit", json!({"path": "d/x", "edits": [{"oldText": "two", "newText": "2"}]}), "Made 1 edits"),
        ("host_read", json!({"path": "d/x"}), "one\n2"),
        ("host_ls", json!({}), "d/"),
        ("host_exec", json!({"command": "cat d/x; exit 3"}), "one\n2\n\n[exit code 3]"),
    ] {
        let found = text(&tools, name, arguments).await;
        assert!(found.contains(expected), "{name}: {found}");
    }
    let outside = failure(&tools, "host_read", json!({"path": "../../openclaw.json"})).await;
    assert!(outside.contains("outside the workspace"), "{outside}");
    assert!(failure(&tools, "nope", json!({})).await.contains("does not know it, or its policy denies it"));
    let private = call(&tools, "web_fetch", json!({"url": "http://127.0.0.1:1/"})).await;
    assert!(
        matches!(&private, Err(ToolError::Transient(text)) if text.contains("gateway's log")),
        "{private:?}"
    );
    if std::env::var("OC_VERSION").is_ok_and(|version| version == "2026.2.26") {
        // It does not tell a tool that the client hung up.
        return refusals(&settings).await;
    }
    let long = invocation("host_exec", &json!({"command": "while :; do echo >> alive; sleep 0.1; done"}));
    let short = Invocation { timeout: Duration::from_secs(3), ..long };
    assert!(matches!(tools.call(&short, None).await, Err(ToolError::TimedOut(_))));
    tokio::time::sleep(Duration::from_secs(1)).await;
    // A later command may not see the processes of an earlier one, but it sees what they write.
    let count = "wc -c < alive";
    let command =
        format!("before=$({count}); sleep 1; [ $before -gt 0 ] && [ $before = $({count}) ] && echo gone");
    let gone = text(&tools, "host_exec", json!({"command": command})).await;
    assert_eq!(gone, "gone\n", "a call that is given up ends there");
    refusals(&settings).await;
}

/// The gateway refuses a wrong token and what an agent is denied.
async fn refusals(settings: &impl Fn(&str) -> String) {
    let wrong = set(&settings("wrong"), &["agents_list"]).await;
    assert!(failure(&wrong, "agents_list", json!({})).await.contains("(401)"));
    let denied = settings(&setting("OPENCLAW_TOKEN")).replace("agent:respool:main", "agent:main:main");
    let denied = set(&denied, &["gateway:host_exec"]).await;
    let problem = failure(&denied, "host_exec", json!({"command": "id"})).await;
    assert!(problem.contains("(404)"), "OpenClaw denies it to this agent: {problem}");
}

#[tokio::test]
#[ignore = "needs the servers that tests/mcp/run.sh installs"]
async fn reference_mcp_servers_work() {
    let bin = PathBuf::from(setting("MCP_SERVERS")).join("node_modules/.bin");
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path().canonicalize().unwrap();
    let settings = format!(
        "policy.default = \"allow\"\n[mcp.files]\ncommand = \"{bin}/mcp-server-filesystem\"\nargs = [\"{here}\"]\n\
         [mcp.all]\ncommand = \"{bin}/mcp-server-everything\"\n[mcp.web]\nurl = \"{url}\"",
        bin = bin.display(),
        here = here.display(),
        url = setting("MCP_URL"),
    );
    let tools = set(&settings, &["mcp:files/*", "mcp:all/*", "mcp:web/*"]).await;
    let specs = tools.specs();
    for name in ["files__read_text_file", "all__echo", "web__echo"] {
        let spec = specs.iter().find(|spec| spec.name == name).unwrap_or_else(|| panic!("no {name}"));
        assert_eq!(spec.parameters["type"], "object", "{name}");
    }
    let file = here.join("note.txt").display().to_string();
    text(&tools, "files__write_file", json!({"path": file, "content": "from respool"})).await;
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "from respool");
    assert_eq!(text(&tools, "files__read_text_file", json!({"path": file})).await, "from respool");
    let denied = failure(&tools, "files__read_text_file", json!({"path": "/etc/passwd"})).await;
    assert!(denied.to_lowercase().contains("denied"), "{denied}");
    for server in ["all", "web"] {
        let echo = text(&tools, &format!("{server}__echo"), json!({"message": "hi"})).await;
        assert!(echo.contains("hi"), "{echo}");
        let image = text(&tools, &format!("{server}__get-tiny-image"), json!({})).await;
        assert!(image.contains("[image, image/png, "), "{image}");
        let wrong = failure(&tools, &format!("{server}__echo"), json!({})).await;
        assert!(wrong.contains("message"), "{wrong}");
    }
    println!("{} tools of three servers", specs.len());
}
