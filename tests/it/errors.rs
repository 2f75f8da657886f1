//! Everything that can go wrong, and the client's error for it.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::time::Instant;

use crate::passthrough;
use crate::support::accumulate::Rules;
use crate::support::client::{Request, exchange};
use crate::support::fake_vllm::FakeVllm;
use crate::support::idle_time::IdleTime;
use crate::support::replies;
use crate::support::respool::{ONCE, Respool};
use crate::support::script::Script;
use crate::tools_route;

/// All four forms of a chat request.
fn forms() -> [Value; 4] {
    let whole = |mut body: Value| {
        body["stream"] = json!(false);
        body.as_object_mut().unwrap().remove("stream_options");
        body
    };
    [
        tools_route::request(),
        whole(tools_route::request()),
        passthrough::request(),
        whole(passthrough::request()),
    ]
}

/// Every form must get this status and code.
async fn check(script: Script, status: u16, code: Value) {
    for body in forms() {
        let fake = FakeVllm::always(script.clone()).await;
        let respool = Respool::with(&fake, &format!("{ONCE}[limits]\nmax_body = \"256KiB\"")).await;
        let reply = exchange(respool.address, &Request::chat(&body)).await;
        assert_eq!((reply.status, &reply.error()["code"]), (status, &code), "{body}\n{}", reply.text());
    }
}

fn said(status: u16, message: &str) -> Script {
    Script::json(status, &replies::error(status, message, "BadRequestError"))
}

#[tokio::test]
async fn upstream_errors_keep_their_status() {
    check(said(400, "temperature must be non-negative"), 400, Value::Null).await;
    check(said(404, "The model `x` does not exist."), 404, json!("model_not_found")).await;
    check(said(429, "slow down"), 429, json!("rate_limit_exceeded")).await;
    check(said(500, "EngineCore encountered an issue."), 500, json!("upstream_error")).await;
    check(Script::whole(500, "text/html", "<html><title>Oops</title></html>"), 500, json!("upstream_error"))
        .await;
    check(
        said(400, "This model's maximum context length is 10 tokens."),
        400,
        json!("context_length_exceeded"),
    )
    .await;
    check(Script::json(302, &json!({})).header("location", "/elsewhere"), 502, json!("upstream_error")).await;
}

/// Regression: a wrong name of a model was not answered with the right ones where one server has them all.
#[tokio::test]
async fn a_missing_model_is_answered_with_the_available_ones() {
    let fake = FakeVllm::always(said(404, "The model `x` does not exist.")).await;
    fake.serve_models(&["gpt-oss-20b", "glm-air"]);
    let state = tempfile::tempdir().unwrap();
    let agent = format!("state_dir = {:?}\n{ONCE}[agents.worker]\nmodel = \"glm-air\"\n", state.path());
    let respool = Respool::with(&fake, &agent).await;
    let reply = exchange(respool.address, &Request::chat(&passthrough::request())).await;
    // The one that the server has just refused is not among them.
    let expected = "The model `x` does not exist. Available models: glm-air, worker";
    assert_eq!((reply.status, &reply.error()["message"]), (404, &json!(expected)));
    let misspelt = r#"{"model":"gpt-os-20b","messages":[{"role":"user","content":"hi"}]}"#;
    let reply = exchange(respool.address, &Request::post("/v1/chat/completions", misspelt)).await;
    assert!(reply.text().contains(". Did you mean `gpt-oss-20b`? Available models: "), "{}", reply.text());
    let ready = exchange(respool.address, &Request::get("/ready")).await.json();
    assert_eq!(ready["upstreams"][0]["models"], json!(["gpt-oss-20b", "glm-air"]));
}

#[tokio::test]
async fn refused_keys_hide_their_status() {
    for status in [401, 402, 403] {
        check(
            Script::json(status, &json!({"error": "Unauthorized"})),
            422,
            json!("upstream_credentials_refused"),
        )
        .await;
    }
}

#[tokio::test]
async fn errors_inside_successes_are_found() {
    let glitch = "unexpected tokens remaining in message header: Some(\"x\")";
    check(Script::json(200, &replies::error(400, glitch, "BadRequestError")), 502, json!("model_glitch"))
        .await;
    check(Script::json(200, &json!({"object": "error", "message": "flat", "code": 400})), 400, Value::Null)
        .await;
}

#[tokio::test]
async fn replies_that_are_none() {
    let page = Script::whole(200, "text/html", "<html><title>Login</title></html>");
    let codes = ["upstream_not_json", "upstream_not_json", "upstream_not_a_stream", "upstream_not_json"];
    for (body, code) in forms().into_iter().zip(codes) {
        let fake = FakeVllm::always(page.clone()).await;
        let respool = Respool::with(&fake, ONCE).await;
        let reply = exchange(respool.address, &Request::chat(&body)).await;
        assert_eq!((reply.status, &reply.error()["code"]), (502, &json!(code)));
        assert!(reply.error()["message"].as_str().unwrap().contains("\"Login\""), "{}", reply.text());
    }
}

#[tokio::test]
async fn no_success_hides_a_failure() {
    for body in [
        json!({"status": "error", "message": "model is loading"}),
        json!({"detail": "Not Found"}),
        json!({"id": "x", "choices": []}),
        json!(null),
        json!("ok"),
    ] {
        let reply = Script::json(200, &body);
        for form in [1, 3] {
            let fake = FakeVllm::always(reply.clone()).await;
            let respool = Respool::with(&fake, ONCE).await;
            let reply = exchange(respool.address, &Request::chat(&forms()[form])).await;
            assert_eq!(reply.status, 502, "{body}: {}", reply.text());
        }
    }
    let both = json!({"id": "x", "choices": [{"index": 0, "message": {"content": "x"}}], "error": {"message": "boom", "code": 500}});
    check(Script::json(200, &both), 500, json!("upstream_error")).await;
    let mut last = replies::chunk(&json!({"content": "half"}), Some("error"));
    last["error"] = json!({"code": 502, "message": "gone"});
    let fake = FakeVllm::start([Script::sse([
        replies::role_frame(),
        replies::frame(&last),
        replies::DONE.to_owned(),
    ])])
    .await;
    let respool = Respool::with(&fake, ONCE).await;
    let turn =
        exchange(respool.address, &Request::chat(&passthrough::request())).await.stream(&Rules::default());
    assert_eq!(turn.error.unwrap()["code"], 502);
}

#[tokio::test]
async fn broken_replies_have_error_codes() {
    let broken: [(Script, &str); 9] = [
        (Script::whole(200, "application/json", "{\"choices\": [{"), "upstream_invalid_json"),
        (Script::whole(200, "application/json", "{\"choices\": 7}"), "upstream_invalid_json"),
        (Script::whole(200, "application/json", "[]"), "upstream_invalid_json"),
        (Script::whole(200, "application/json", vec![b'{', 0xff, b'}']), "upstream_invalid_json"),
        (Script::json(200, &replies::text("x")).close_early_after(100), "upstream_broke_off"),
        (Script::json(200, &replies::text("x")).reset_after(100), "upstream_broke_off"),
        (
            Script::json(200, &replies::text("x")).wrong_length(50).close_early_after(100),
            "upstream_broke_off",
        ),
        (
            Script::whole(200, "application/json", "not gzip").header("content-encoding", "gzip"),
            "upstream_bad_encoding",
        ),
        (Script::endless(200, "application/json", " ".repeat(1 << 14)), "upstream_reply_too_long"),
    ];
    for (script, code) in broken {
        for body in forms().into_iter().take(2) {
            let fake = FakeVllm::always(script.clone()).await;
            let respool = Respool::with(&fake, &format!("{ONCE}[limits]\nmax_body = \"256KiB\"")).await;
            let reply = exchange(respool.address, &Request::chat(&body)).await;
            assert_eq!((reply.status, &reply.error()["code"]), (502, &json!(code)), "{}", reply.text());
        }
    }
}

#[tokio::test]
async fn compressed_replies_are_read() {
    for script in
        [Script::json(200, &replies::text("x")).gzip(), Script::json(200, &replies::text("x")).brotli()]
    {
        let fake = FakeVllm::always(script).await;
        let respool = Respool::before(&fake).await;
        let turn = exchange(respool.address, &Request::chat(&tools_route::request()))
            .await
            .stream(&Rules::default());
        assert_eq!(turn.choices[&0].content, "x");
    }
}

#[tokio::test]
async fn no_answer_at_all() {
    use crate::support::script::Fault;
    for fault in [Fault::Close, Fault::Reset] {
        check(Script::no_reply(fault), 502, json!("upstream_closed")).await;
    }
    check(Script::raw("SSH-2.0-OpenSSH_9.2\r\n\r\n"), 502, json!("upstream_not_http")).await;
}

#[tokio::test]
async fn an_upstream_that_is_down() {
    for (url, code, status) in [
        ("http://127.0.0.1:1", "upstream_unreachable", 503),
        ("http://no-such-host.invalid:8000", "upstream_dns", 503),
    ] {
        let respool = Respool::configured(&format!("[[upstream]]\nname = \"gone\"\nurl = \"{url}\"")).await;
        for body in forms() {
            let began = Instant::now();
            let reply = exchange(respool.address, &Request::chat(&body)).await;
            assert_eq!((reply.status, &reply.error()["code"]), (status, &json!(code)), "{}", reply.text());
            assert!(reply.error()["message"].as_str().unwrap().contains("gone"), "says which upstream");
            assert!(began.elapsed() < Duration::from_secs(10), "retries end before the head is committed");
        }
    }
}

#[tokio::test]
async fn tls_to_a_server_without_it() {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let _ = socket.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").await;
        }
    });
    let respool =
        Respool::configured(&format!("[[upstream]]\nname = \"box\"\nurl = \"https://127.0.0.1:{port}\""))
            .await;
    let reply = exchange(respool.address, &Request::chat(&tools_route::request())).await;
    assert_eq!((reply.status, &reply.error()["code"]), (502, &json!("upstream_tls")), "{}", reply.text());
}

#[tokio::test]
async fn a_configured_timeout_is_kept() {
    let _time = IdleTime::begin();
    for (script, code) in [
        (Script::silence(), "upstream_timeout"),
        (Script::json(200, &replies::text("x")).close_early_after(50).then_stall(), "upstream_timeout"),
    ] {
        let fake = FakeVllm::always(script).await;
        let respool = Respool::with(&fake, "[[upstream]]\ntimeout = \"1s\"").await;
        let reply = exchange(respool.address, &Request::chat(&tools_route::request())).await;
        assert_eq!((reply.status, &reply.error()["code"]), (504, &json!(code)), "{}", reply.text());
    }
}

#[tokio::test]
async fn a_passing_failure_is_retried_briefly() {
    let _time = IdleTime::begin();
    for status in [502, 503] {
        let fake =
            FakeVllm::start([Script::json(status, &json!({})), Script::json(200, &replies::text("ok"))])
                .await;
        let respool = Respool::before(&fake).await;
        let turn = exchange(respool.address, &Request::chat(&tools_route::request()))
            .await
            .stream(&Rules::default());
        assert_eq!(turn.choices[&0].content, "ok");
    }
    let fake = FakeVllm::always(Script::json(503, &json!({"error": {"message": "overloaded"}}))).await;
    let respool = Respool::before(&fake).await;
    let began = Instant::now();
    let reply = exchange(respool.address, &Request::chat(&tools_route::request())).await;
    assert_eq!((reply.status, fake.requests().len()), (503, 3));
    assert_eq!(reply.headers.get("x-should-retry"), Some("false"));
    assert!(began.elapsed() < Duration::from_secs(8));
}

#[tokio::test]
async fn a_refused_parameter_is_learnt_once() {
    let refusal = || said(400, "Unrecognized request argument supplied: user");
    let ok = || Script::json(200, &replies::text("ok"));
    let fake = FakeVllm::start([refusal(), ok(), ok()]).await;
    let respool = Respool::before(&fake).await;
    let mut body = tools_route::request();
    body["user"] = json!("u");
    for _ in 0..2 {
        exchange(respool.address, &Request::chat(&body)).await.stream(&Rules::default());
    }
    let sent: Vec<bool> = fake.requests().iter().map(|seen| seen.json().get("user").is_some()).collect();
    assert_eq!(sent, [true, false, false]);
}

#[tokio::test]
async fn broken_streams_say_so() {
    let frames = replies::text_stream(&["Hello"], false);
    let begun = || Script::sse(frames[..2].to_vec());
    let json_error =
        replies::frame(&replies::error(500, "EngineCore encountered an issue.", "InternalServerError"));
    let garbage = vec![
        frames[0].clone(),
        frames[1].clone(),
        "data: {\"id\": broken\n\n".to_owned(),
        replies::DONE.to_owned(),
    ];
    let not_text =
        vec![frames[0].clone().into_bytes(), frames[1].clone().into_bytes(), b"data: \xff\xfe\n\n".to_vec()];
    for (script, code) in [
        (begun(), 502),
        (begun().reset(), 502),
        (begun().close_early_after(700), 502),
        (Script::sse([frames[0].clone(), frames[1].clone(), json_error]), 500),
        (Script::sse(garbage), 502),
        (Script::sse(not_text), 502),
    ] {
        let fake = FakeVllm::start([script]).await;
        let respool = Respool::with(&fake, ONCE).await;
        let turn = exchange(respool.address, &Request::chat(&passthrough::request()))
            .await
            .stream(&Rules::default());
        assert_eq!(turn.error.as_ref().map(|error| &error["code"]), Some(&json!(code)), "{turn:?}");
    }
}

#[tokio::test]
async fn streams_without_done_are_completed() {
    let mut frames = replies::text_stream(&["Hello"], false);
    frames.pop();
    let fake = FakeVllm::start([Script::sse(frames.clone()), Script::sse(frames).reset()]).await;
    let respool = Respool::with(&fake, ONCE).await;
    for _ in 0..2 {
        let turn = exchange(respool.address, &Request::chat(&passthrough::request()))
            .await
            .stream(&Rules::default());
        assert_eq!((turn.choices[&0].content.as_str(), &turn.error), ("Hello", &None));
    }
}

#[tokio::test]
async fn empty_streams_are_errors() {
    for frames in [vec![], vec![replies::DONE.to_owned()], vec![": only comments\n\n".to_owned()]] {
        let fake = FakeVllm::start([Script::sse(frames)]).await;
        let respool = Respool::with(&fake, ONCE).await;
        let reply = exchange(respool.address, &Request::chat(&passthrough::request())).await;
        assert_eq!((reply.status, &reply.error()["code"]), (502, &json!("upstream_empty_stream")));
    }
}

#[tokio::test]
async fn bad_requests_are_told_so() {
    let fake = FakeVllm::start([]).await;
    let respool = Respool::with(&fake, "[limits]\nmax_body = \"1KiB\"").await;
    let large = format!(r#"{{"messages":[{{"role":"user","content":"{}"}}]}}"#, "x".repeat(2000));
    for (body, status, code) in [
        ("", 400, "invalid_json"),
        ("{\"messages\": [}", 400, "invalid_json"),
        ("[1]", 400, "invalid_type"),
        ("\"text\"", 400, "invalid_type"),
        ("{}", 400, "missing_required_parameter"),
        (r#"{"messages": "hi"}"#, 400, "invalid_type"),
        (large.as_str(), 413, "request_too_large"),
    ] {
        let request = Request::post("/v1/chat/completions", body).header("content-type", "application/json");
        let reply = exchange(respool.address, &request).await;
        assert_eq!((reply.status, &reply.error()["code"]), (status, &json!(code)), "{body}");
    }
}

#[tokio::test]
async fn client_keys_pass_unless_replaced() {
    let script = |expected: &str| Script::json(200, &replies::text("x")).expect_authorization(expected);
    let request = Request::chat(&tools_route::request()).header("authorization", "Bearer client");
    for (extra, expected) in [("", "Bearer client"), ("[[upstream]]\napi_key = \"own\"", "Bearer own")] {
        let fake = FakeVllm::start([script(expected)]).await;
        let respool = Respool::with(&fake, extra).await;
        exchange(respool.address, &request).await.stream(&Rules::default());
    }
}

#[tokio::test]
async fn request_ids_make_the_round_trip() {
    let fake = FakeVllm::always(Script::json(200, &replies::text("x"))).await;
    let respool = Respool::before(&fake).await;
    let trace = "00-e737c19a947e27451a1aaf3f07df61d9-077ce95b883eb76e-01";
    for (header, value, expected) in
        [("x-request-id", "mine-1", "mine-1"), ("traceparent", trace, "e737c19a947e27451a1aaf3f07df61d9")]
    {
        let request = Request::chat(&tools_route::request()).header(header, value);
        let reply = exchange(respool.address, &request).await;
        assert_eq!(reply.headers.get("x-request-id"), Some(expected));
    }
    let up: Vec<_> =
        fake.requests().iter().map(|seen| seen.headers.get("x-request-id").unwrap().to_owned()).collect();
    assert_eq!(
        up,
        ["mine-1", "e737c19a947e27451a1aaf3f07df61d9-077ce95b883eb76e"],
        "a trace has many requests"
    );
}

/// Regression: a code that a client got was on no page.
#[test]
fn every_code_is_explained() {
    let page = include_str!("../../docs/errors.md");
    let codes = wire::ErrorCode::ALL.iter().map(|code| code.as_str());
    let missing: Vec<&str> = codes.filter(|code| !page.contains(&format!("`{code}`"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
