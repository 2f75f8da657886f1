//! The rules for requests find what is wrong, and nothing in what real clients send.

use std::fs;

use serde_json::Value;

use crate::support::http1::{Framing, Head, Headers};
use crate::support::request_rules::{authorization_problem, chat_problems, header_problems, request_line};
use crate::support::script::Authorization;

fn headers(fields: &[(&str, &str)]) -> Headers {
    Headers(fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
}

fn check_chat(body: &str, expected: &str) {
    let problems = chat_problems(&headers(&[("content-type", "application/json")]), body.as_bytes());
    assert!(
        problems.iter().any(|problem| problem.contains(expected)),
        "{body}: {expected:?} is not among {problems:?}"
    );
}

#[test]
fn each_bad_chat_request_is_found() {
    check_chat("{", "the body is no JSON");
    check_chat("[]", "no JSON object");
    check_chat(r#"{"messages":[]}"#, "messages is no filled array");
    check_chat(r#"{"messages":"hi"}"#, "messages is no filled array");
    check_chat(r#"{"messages":[{"content":"hi"}]}"#, "messages[0] has no role");
    check_chat(r#"{"stream":true,"stream":false,"messages":[]}"#, "the key \"stream\" comes twice");
    check_chat(r#"{"stream":false,"stream_options":{}}"#, "stream_options without stream:true");
    check_chat(r#"{"stream_options":{"include_usage":true}}"#, "stream_options without stream:true");
    check_chat(r#"{"stream":"true"}"#, "stream is \"true\"");
    check_chat(r#"{"tools":[]}"#, "tools is an empty array");
    check_chat(r#"{"tools":[{"type":"function"}]}"#, "a tool without a name");
    check_chat(
        r#"{"messages":[{"role":"tool","tool_call_id":"c1"}]}"#,
        "messages[0] answers no earlier call: Some(\"c1\")",
    );
    check_chat(r#"{"messages":[{"role":"tool"}]}"#, "messages[0] answers no earlier call: None");
    for arguments in ["{}", "null", r#""""#, r#""{bad""#, r#""[1]""#] {
        let call = format!(r#"{{"id":"c1","function":{{"name":"read","arguments":{arguments}}}}}"#);
        let body = format!(r#"{{"messages":[{{"role":"assistant","tool_calls":[{call}]}}]}}"#);
        check_chat(&body, "arguments are no string holding a JSON object");
    }
    let late = r#"{"messages":[{"role":"tool","tool_call_id":"c1"},
        {"role":"assistant","tool_calls":[{"id":"c1","function":{"name":"read","arguments":"{}"}}]}]}"#;
    check_chat(late, "messages[0] answers no earlier call");
    let plain = chat_problems(&headers(&[("content-type", "text/plain")]), b"{}");
    assert!(plain[0].contains("content-type is \"text/plain\""), "{plain:?}");
}

#[test]
fn what_openclaw_sends_is_fine() {
    let mut count = 0;
    for entry in fs::read_dir(format!("{}/fixtures/openclaw", env!("CARGO_MANIFEST_DIR"))).unwrap() {
        let path = entry.unwrap().path();
        let problems =
            chat_problems(&headers(&[("content-type", "application/json")]), &fs::read(&path).unwrap());
        assert_eq!(problems, [""; 0], "{}", path.display());
        count += 1;
    }
    assert!(count >= 8);
}

#[test]
fn refused_options_are_found() {
    for name in [
        "22-err-stream-options-nonstream",
        "28-err-missing-messages",
        "29-err-bad-json",
        "30-err-empty-tools",
    ] {
        let path =
            format!("{}/fixtures/vllm/v0.32.0-llama-hermes/{name}.req.http", env!("CARGO_MANIFEST_DIR"));
        let request = fs::read_to_string(path).unwrap();
        let (head, body) = request.split_once("\r\n\r\n").unwrap();
        let head = Head::parse(head.as_bytes()).unwrap();
        assert_eq!(head.framing(Framing::Done), Ok(Framing::Length(body.len())));
        assert!(!chat_problems(&head.headers, body.as_bytes()).is_empty(), "{name}");
    }
}

#[test]
fn hop_by_hop_headers_are_found() {
    let judged = |fields: &[(&str, &str)]| {
        let fields = [&[("host", "h:1")], fields].concat();
        header_problems(&headers(&fields), "h:1").join("; ")
    };
    assert_eq!(judged(&[("connection", "keep-alive"), ("accept", "*/*")]), "");
    assert!(judged(&[("connection", "keep-alive, foo")]).contains(r#"passed on: ["foo"]"#));
    for name in ["keep-alive", "te", "upgrade", "proxy-authorization", "trailer"] {
        assert!(judged(&[(name, "x")]).contains(name), "{name}");
    }
    assert!(judged(&[("host", "other")]).contains("not \"h:1\""));
    assert!(header_problems(&headers(&[]), "h:1")[0].starts_with("host is []"));
}

#[test]
fn authorization_is_what_the_script_expects() {
    let given = headers(&[("authorization", "Bearer a")]);
    let fine =
        |headers: &Headers, expected: &Authorization| authorization_problem(headers, expected).is_none();
    assert!(fine(&given, &Authorization::Any) && fine(&headers(&[]), &Authorization::Any));
    assert!(
        fine(&given, &Authorization::Is("Bearer a".into()))
            && !fine(&given, &Authorization::Is("Bearer b".into()))
    );
    assert!(fine(&headers(&[]), &Authorization::Absent) && !fine(&given, &Authorization::Absent));
    let twice = headers(&[("authorization", "Bearer a"), ("authorization", "Bearer a")]);
    assert!(!fine(&twice, &Authorization::Is("Bearer a".into())));
}

#[test]
fn heads_are_read_strictly() {
    assert_eq!(request_line("GET /a?b HTTP/1.1"), Ok(("GET".to_owned(), "/a?b".to_owned())));
    for line in ["GET /a HTTP/1.0", "GET  /a HTTP/1.1", "get /a HTTP/1.1", "GET http://h/a HTTP/1.1", ""] {
        assert!(request_line(line).is_err(), "{line:?}");
    }
    for field in ["no colon", "bad name: x", ": x", " folded: x", "a: b\u{7}", "a : b"] {
        assert!(Head::parse(format!("GET / HTTP/1.1\r\n{field}").as_bytes()).is_err(), "{field:?}");
    }
    let framing =
        |fields: &str| Head::parse(format!("x\r\n{fields}").as_bytes()).unwrap().framing(Framing::Done);
    assert_eq!(framing("transfer-encoding: chunked"), Ok(Framing::Chunked));
    assert_eq!(framing("a: b"), Ok(Framing::Done));
    for fields in [
        "content-length: 1\r\ncontent-length: 1",
        "content-length: +1",
        "content-length: 1\r\ntransfer-encoding: chunked",
        "transfer-encoding: gzip, chunked",
    ] {
        assert!(framing(fields).is_err(), "{fields:?}");
    }
}

#[test]
fn fixture_texts_are_json() {
    let path = format!("{}/fixtures/demo/with-tools.request.json", env!("CARGO_MANIFEST_DIR"));
    let request: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    assert_eq!(request["tools"].as_array().map(Vec::len), Some(2));
}
