//! OpenClaw's tools against a strict fake gateway.

use std::time::Duration;

use serde_json::{Value, json};
use tools::{Invocation, ToolError, ToolSet, Tools as _};

use crate::lifecycle::run;
use crate::support::fake_gateway::{Answer, FakeGateway};
use crate::support::fake_vllm::FakeVllm;
use crate::support::replies;
use crate::support::script::Script;
use crate::support::tools::{Person, call, invocation, problems_of, set, text};

const ALLOW: &str = "policy.default = \"allow\"\n";

fn said(text: &str) -> Answer {
    (
        200,
        &[],
        json!({"ok": true, "result": {"content": [{"type": "text", "text": text}], "details": {}}})
            .to_string(),
    )
}

async fn tools(gateway: &FakeGateway, wanted: &[&str]) -> ToolSet {
    set(&format!("{ALLOW}{}", gateway.settings()), wanted).await
}

#[tokio::test]
async fn calls_use_the_gateways_form() {
    let gateway = FakeGateway::start([said("found\u{1b}[1m it"), said("ran")]).await;
    let tools = tools(&gateway, &["web_search", "gateway:host_exec"]).await;
    assert_eq!(text(&tools, "web_search", json!({"q": "rust", "count": 3})).await, "found it");
    let person = Person::who_says(true);
    tools.call(&invocation("host_exec", &json!({"command": "ls"})), Some(&person)).await.unwrap();
    assert_eq!(person.asked.lock().unwrap().len(), 1, "a tool that respool does not know needs confirmation");
    let expected = |tool: &str, args: Value| json!({"tool": tool, "args": args, "idempotencyKey": "key-1", "sessionKey": "agent:main:main"});
    assert_eq!(
        gateway.requests(),
        [
            expected("web_search", json!({"count": 3, "query": "rust"})),
            expected("host_exec", json!({"command": "ls"}))
        ]
    );
    gateway.finish();
}

/// Regression: `check` was content with a gateway that refused the token.
#[tokio::test(flavor = "multi_thread")]
async fn check_finds_a_wrong_token() {
    let gateway = FakeGateway::start([(401, &[][..], "{}".into()), (404, &[], "{}".into())]).await;
    let fake = FakeVllm::always(Script::json(200, &replies::text("done"))).await;
    let (url, upstream) = (gateway.url.clone(), fake.url());
    for expected in ["cannot be used: OpenClaw's gateway refuses respool's token", "gateway answers at"] {
        let toml = format!(
            "[[upstream]]\nname = \"box\"\nurl = \"{upstream}\"\n[tools.gateway]\nurl = \"{url}\"\ntoken = \"x\"\n"
        );
        let check = tokio::task::spawn_blocking(move || run(&["check"], Some(&toml), &[]));
        let (_, said, _) = check.await.unwrap();
        assert!(said.contains(expected), "{said}");
    }
    assert!(gateway.requests().iter().all(|asked| asked["tool"] == "respool_check"), "it calls no real tool");
}

#[tokio::test]
async fn errors_are_told_apart() {
    let not_found =
        r#"{"ok":false,"error":{"type":"not_found","message":"Tool not available: agents_list"}}"#;
    let sanitised = r#"{"ok":false,"error":{"type":"tool_error","message":"tool execution failed"}}"#;
    let gateway = FakeGateway::start([
        (404, &[][..], not_found.to_owned()),
        (500, &[], sanitised.to_owned()),
        (429, &[("retry-after", "9")], String::new()),
        (302, &[("location", "http://127.0.0.1:1/")], String::new()),
        (200, &[], format!("\"{}\"", "x".repeat(9 << 20))),
    ])
    .await;
    let tools = tools(&gateway, &["agents_list"]).await;
    let error = async || call(&tools, "agents_list", json!({})).await.unwrap_err();
    let ToolError::Failed(text) = error().await else { panic!("not found") };
    assert!(text.contains("does not know it, or its policy denies it"), "{text}");
    let ToolError::Transient(text) = error().await else { panic!("failed there") };
    assert!(text.contains("gateway's log"), "{text}");
    let ToolError::Unreachable(text) = error().await else { panic!("busy") };
    assert!(text.contains("retry after 9 s"), "{text}");
    let ToolError::Failed(text) = error().await else { panic!("a redirect is not followed") };
    assert!(text.contains("(302)"), "{text}");
    let ToolError::Failed(text) = error().await else { panic!("too much") };
    assert!(text.contains("larger than 8 MiB"), "{text}");
    gateway.finish();
}

#[tokio::test]
async fn silent_gateways_are_given_up() {
    let gateway = FakeGateway::start([(0, &[][..], String::new())]).await;
    let tools = tools(&gateway, &["web_fetch"]).await;
    let arguments = json!({"url": "https://example.org/"});
    let soon = Invocation { timeout: Duration::from_millis(300), ..invocation("web_fetch", &arguments) };
    assert!(matches!(tools.call(&soon, None).await, Err(ToolError::TimedOut(_))));
    let url = gateway.url.clone();
    gateway.finish();
    let absent = set(&format!("{ALLOW}gateway.url = \"http://127.0.0.1:1\""), &["web_fetch"]).await;
    let Err(ToolError::Unreachable(text)) = call(&absent, "web_fetch", arguments).await else {
        panic!("{url} answered")
    };
    assert!(text.contains("http://127.0.0.1:1/tools/invoke did not answer: Connection refused"), "{text}");
}

#[tokio::test]
async fn denied_and_large_calls_stay_here() {
    let gateway = FakeGateway::start([said("ok")]).await;
    let rules = "[[policy.rule]]\ntool = \"web_fetch\"\nhost = \"*.example.org\"\nthen = \"allow\"\n";
    let tools = set(&format!("{rules}{}", gateway.settings()), &["web_fetch", "web_search"]).await;
    for (name, arguments) in [
        ("web_search", json!({"query": "x"})),
        ("web_fetch", json!({"url": "https://evil.example.net/"})),
        ("web_fetch", json!({"url": "https://docs.example.org@evil.example.net/"})),
        ("web_fetch", json!({"uri": "http://127.0.0.1/"})),
    ] {
        assert!(matches!(call(&tools, name, arguments).await, Err(ToolError::Denied(_))), "{name}");
    }
    let large = json!({"url": format!("https://docs.example.org/{}", "x".repeat(2_000_000))});
    let Err(ToolError::Failed(problem)) = call(&tools, "web_fetch", large).await else { panic!("it left") };
    assert!(problem.contains("at most 2 MB"), "{problem}");
    assert_eq!(text(&tools, "web_fetch", json!({"link": "https://docs.example.org/"})).await, "ok");
    gateway.finish();
}

#[tokio::test]
async fn local_tools_own_their_names() {
    let check = async |toml: &str, wanted: &[&str], expected: &[&str]| {
        let problems = problems_of(toml, wanted).await;
        assert_eq!(problems.len(), expected.len(), "{problems:?}");
        for (problem, expected) in problems.iter().zip(expected) {
            assert!(problem.starts_with(expected), "{problem}");
        }
    };
    let both = "local.workspace = \"/tmp\"\ngateway.url = \"http://127.0.0.1:1\"";
    check(both, &["read", "web_search", "gateway:anything"], &[]).await;
    check(
        both,
        &["read", "gateway:read"],
        &["\"read\" and \"gateway:read\" are both called \"read\"; leave one out"],
    )
    .await;
    check(
        both,
        &["gateway:*", "gateway:"],
        &["\"gateway:*\" is not a tool of the gateway", "\"gateway:\" is not a tool of the gateway"],
    )
    .await;
    check(both, &["web_serch"], &["nothing offers a tool \"web_serch\"; did you mean \"web_search\"?"]).await;
    check("", &["web_search"], &["the tool \"web_search\" needs OpenClaw's gateway: set tools.gateway.url"])
        .await;
    check("gateway.url = \"http://127.0.0.1:1\"", &["exec"], &["the tool \"exec\" needs a workspace"]).await;
}
