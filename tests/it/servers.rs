//! Servers that cannot be had here, as strict fakes: each refuses what the real one refuses, in its words.
//! Ollama's are those of its `openai/openai.go`, `api/types.go` and `server/routes.go` of August 2026, for a
//! model that neither sees nor thinks. SGLang's are those of its package 0.5.23, whose own request models and
//! replies are `tests/sglang`. LM Studio's are those of public reports: its source is not public. A real
//! llama.cpp is `tests/llama`.
//!
//! Every request of a real client, and every awkward conversation, must be answered by each of them: at the
//! first try after at most four rules, and with one request from then on. docs/requests.md has the table.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::client::{Request, exchange};
use crate::support::fake_vllm::FakeVllm;
use crate::support::replies;
use crate::support::respool::Respool;
use crate::support::script::Script;

/// A server: its name, the `owned_by` of its models, and what it refuses of a request.
struct Strict {
    name: &'static str,
    owner: &'static str,
    refuse: fn(&Value) -> Option<(u16, String)>,
}

const SERVERS: [Strict; 3] = [
    Strict { name: "SGLang", owner: "sglang", refuse: refuse_as_sglang },
    Strict { name: "Ollama", owner: "library", refuse: refuse_as_ollama },
    Strict { name: "LM Studio", owner: "organization_owner", refuse: refuse_as_lm_studio },
];

fn messages(request: &Value) -> &[Value] {
    request["messages"].as_array().unwrap()
}

fn parts(message: &Value) -> &[Value] {
    message["content"].as_array().map_or(&[], Vec::as_slice)
}

fn has_calls(message: &Value) -> bool {
    message["tool_calls"].as_array().is_some_and(|calls| !calls.is_empty())
}

/// Looks for a schema in the tools, at any depth.
fn any_schema(value: &Value, is_wanted: &dyn Fn(&Value) -> bool) -> bool {
    is_wanted(value)
        || match value {
            Value::Object(fields) => fields.values().any(|value| any_schema(value, is_wanted)),
            Value::Array(items) => items.iter().any(|value| any_schema(value, is_wanted)),
            _ => false,
        }
}

/// The template of Qwen 3.5, with which all three servers render.
fn refuse_as_template(request: &Value) -> Option<&'static str> {
    let later_system = messages(request).iter().skip(1).any(|message| message["role"] == "system");
    let developer = messages(request).iter().any(|message| message["role"] == "developer");
    let no_user = !messages(request).iter().any(|message| message["role"] == "user");
    match () {
        () if developer => Some("Unexpected message role."),
        () if later_system => Some("System message must be at the beginning."),
        () if no_user => Some("No user query found in messages."),
        () => None,
    }
}

fn refuse_as_sglang(request: &Value) -> Option<(u16, String)> {
    for (place, message) in messages(request).iter().enumerate() {
        let is_known = |part: &Value| {
            let known = ["text", "image_url", "video_url", "audio_url", "input_audio"];
            part["type"].as_str().is_some_and(|kind| known.contains(&kind))
        };
        if message["role"] == "user" && (message["content"].is_null() || !parts(message).iter().all(is_known))
        {
            let model = "function-after[validate_thinking_parts_role(), ChatCompletionMessage";
            return Some((
                400,
                format!(
                    "3 validation errors:\n  {{'type': 'value_error', 'loc': ('body', 'messages', {place}, \
                     '{model}GenericParam]', 'role'), 'msg': \"Value error, 'role' must be one of 'system', \
                     'assistant', 'tool', 'function', 'developer'\", 'input': 'user'}}\n  {{'type': \
                     'string_type', 'loc': ('body', 'messages', {place}, '{model}UserParam]', 'content', \
                     'str'), 'msg': 'Input should be a valid string', 'input': {}}}",
                    message["content"]
                ),
            ));
        }
        if parts(message).iter().any(|part| part["type"] == "image_url") {
            return Some((400, "image input is not supported for this model".to_owned()));
        }
    }
    if request["reasoning_effort"].as_str().is_some_and(|effort| effort == "minimal") {
        return Some((400, "Harmony does not support reasoning effort minimal".to_owned()));
    }
    refuse_as_template(request).map(|words| (400, words.to_owned()))
}

fn refuse_as_ollama(request: &Value) -> Option<(u16, String)> {
    let tools = request["tools"].as_array().map_or(&[][..], Vec::as_slice);
    // Types inside `properties` may be lists.
    if tools.iter().any(|tool| tool["function"]["parameters"]["type"].is_array()) {
        let field = "ToolFunctionParameters.tools.function.parameters.type";
        return Some((
            400,
            format!("json: cannot unmarshal array into Go struct field {field} of type string"),
        ));
    }
    let efforts = [&request["reasoning_effort"], &request["reasoning"]["effort"]];
    if efforts.iter().any(|effort| effort.as_str().is_some_and(|effort| effort != "none")) {
        return Some((400, "\"m\" does not support thinking".to_owned()));
    }
    for message in messages(request) {
        if message["content"].is_null() && !has_calls(message) {
            return Some((400, "invalid message content type: <nil>".to_owned()));
        }
        let calls = message["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
        let arguments = |call: &Value| call["function"]["arguments"].as_str().map(str::to_owned);
        if calls.iter().filter_map(arguments).any(|text| serde_json::from_str::<Value>(&text).is_err()) {
            return Some((400, "invalid tool call arguments".to_owned()));
        }
        for part in parts(message) {
            let url = part["image_url"]["url"].as_str().unwrap_or_default();
            match part["type"].as_str() {
                Some("text") => {}
                Some("image_url") if url.starts_with("http") => {
                    let words =
                        "image URLs are not currently supported, please use base64 encoded data instead";
                    return Some((400, words.to_owned()));
                }
                Some("image_url") if !is_known_picture(url) => {
                    return Some((400, "invalid image input".to_owned()));
                }
                // It asks llama.cpp's server, and passes its words on.
                Some("image_url") => {
                    let words = "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj";
                    return Some((500, words.to_owned()));
                }
                _ => return Some((400, "invalid message format".to_owned())),
            }
        }
    }
    refuse_as_template(request).map(|words| (500, words.to_owned()))
}

fn is_known_picture(url: &str) -> bool {
    let kinds =
        ["data:;base64,", "data:image/jpeg;base64,", "data:image/png;base64,", "data:image/webp;base64,"];
    kinds.iter().any(|kind| url.starts_with(kind))
}

fn refuse_as_lm_studio(request: &Value) -> Option<(u16, String)> {
    for message in messages(request) {
        if message["content"].is_null() {
            let words = "Invalid 'content': 'content' field must be a string or an array of objects.";
            return Some((400, words.to_owned()));
        }
        if message["role"] == "tool" && message["content"].is_array() {
            return Some((400, "invalid 'messages' in payload".to_owned()));
        }
        if parts(message).iter().any(|part| part["type"] == "image_url") {
            let words = "Model does not support images. Please use a model that does.";
            return Some((400, words.to_owned()));
        }
    }
    let is_open = |schema: &Value| schema["pattern"].as_str().is_some_and(|text| !text.starts_with('^'));
    if any_schema(&request["tools"], &is_open) {
        let words = "failed to parse grammar: Pattern must start with '^' and end with '$'";
        return Some((400, words.to_owned()));
    }
    refuse_as_template(request)
        .map(|words| (400, format!("Error rendering prompt with jinja template: \"{words}\".")))
}

/// The requests: a name, the route, the body.
fn requests() -> Vec<(String, &'static str, Value)> {
    const CHAT: &str = "/v1/chat/completions";
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let read = |file: &str| -> Value {
        serde_json::from_str(&std::fs::read_to_string(folder.join(file)).unwrap()).unwrap()
    };
    let mut all = vec![
        ("OpenClaw, 54 tools".to_owned(), CHAT, read("openclaw/request-2026.9.6-fulltools.json")),
        ("Claude Code".to_owned(), "/v1/messages", read("clients/messages/claude-code-after-calls.json")),
        ("Codex".to_owned(), "/v1/responses", read("clients/responses/codex-after-calls.json")),
        ("Qwen Code".to_owned(), "/v1/messages", read("clients/messages/qwen-code-messages.json")),
        ("opencode".to_owned(), CHAT, read("clients/chat/opencode.json")),
        ("Cline".to_owned(), CHAT, read("clients/chat/cline.json")),
    ];
    let user = |text: &str| json!({"role": "user", "content": text});
    let call = json!({"role": "assistant", "content": null, "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]});
    let broken = json!({"role": "assistant", "content": "", "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\":"}}]});
    let parts = |kind: &str, field: Value| json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": kind, kind: field}]}]);
    let result = json!({"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "x"}]});
    let awkward = [
        ("a later system message", json!([user("a"), {"role": "system", "content": "s"}, user("b")])),
        ("a developer message", json!([{"role": "developer", "content": "s"}, user("a")])),
        ("no user", json!([{"role": "system", "content": "s"}, {"role": "assistant", "content": "b"}])),
        ("null content", json!([user("a"), {"role": "user", "content": null}])),
        ("a call and a result in parts", json!([user("a"), call, result])),
        ("a call with broken arguments", json!([user("a"), broken, result])),
        ("a picture", parts("image_url", json!({"url": "data:image/png;base64,iVBORw0KGgo="}))),
        (
            "a picture of another kind",
            parts("image_url", json!({"url": "data:image/gif;base64,R0lGODlhAQABAAAAACw="})),
        ),
        ("a picture's address", parts("image_url", json!({"url": "https://example.org/a.png"}))),
        ("a file", parts("file", json!({"filename": "a.pdf"}))),
    ];
    all.extend(awkward.map(|(name, messages)| (name.to_owned(), CHAT, json!({"messages": messages}))));
    let schema = |parameters: Value| {
        let tool = json!({"type": "function", "function": {"name": "f", "description": "d", "parameters": parameters}});
        json!({"messages": [user("a")], "tools": [tool]})
    };
    let pattern = json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "\\d+"}}});
    let list = json!({"type": ["object", "null"], "properties": {"a": {"type": "string"}}});
    all.push(("a pattern without anchors".to_owned(), CHAT, schema(pattern)));
    all.push(("a list of types".to_owned(), CHAT, schema(list)));
    let effort = json!({"messages": [user("a")], "reasoning_effort": "high"});
    all.push(("an effort of reasoning".to_owned(), CHAT, effort));
    for (_, _, body) in &mut all {
        body["model"] = json!("m");
        body["stream"] = json!(false);
        body.as_object_mut().unwrap().remove("stream_options");
    }
    all
}

/// Asks twice through respool. Returns the requests that the first turn takes; the second one takes one.
async fn ask(server: &Strict, path: &str, body: &Value) -> String {
    let refuse = server.refuse;
    let fake = FakeVllm::thinking(move |request| match refuse(request) {
        Some((status, words)) => Script::json(status, &replies::error(status, &words, "BadRequestError")),
        None if request["stream"] == true => Script::sse(replies::text_stream(&["ok"], true)),
        None => Script::json(200, &replies::text("ok")),
    })
    .await;
    fake.pose_as(server.owner, json!({}));
    let respool = Respool::before(&fake).await;
    let mut turns = Vec::new();
    let mut seen = 0;
    for _ in 0..2 {
        let reply = exchange(respool.address, &Request::post(path, body.to_string())).await;
        assert_eq!(reply.status, 200, "{} {path}: {}", server.name, reply.text());
        let count = fake.requests().len();
        turns.push(count - seen);
        seen = count;
    }
    assert_eq!(turns[1], 1, "{}: the second turn goes right at once", server.name);
    turns[0].to_string()
}

const LEAKED: &str = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"x\"}}\n</tool_call>";

/// The answer of the server of this name.
type Answer = fn(&str) -> Script;

/// Answers in which a model or its server misbehaves, by name.
const MISBEHAVIOURS: [(&str, Answer); 4] = [
    ("a call is left in the text", |_| said(LEAKED)),
    ("the server's parser cannot read a call", |server| match server {
        "llama.cpp" => {
            thrown_away("The model produced output that does not match the expected peg-native format")
        }
        "Ollama" => thrown_away(
            "error parsing tool call: raw='{\"a\": \"x\",}', err=invalid character '}' looking for beginning of object key string",
        ),
        // They say nothing: the call is only omitted (`fixtures/sglang`).
        _ => said(""),
    }),
    ("the reply is empty", |_| said("")),
    ("a call is cut by the token limit", |_| {
        let body = replies::completion(&json!({"role": "assistant", "content": &LEAKED[..40]}), "length");
        Script::json(200, &body)
    }),
];

fn said(text: &str) -> Script {
    Script::json(200, &replies::text(text))
}

fn thrown_away(words: &str) -> Script {
    Script::json(500, &replies::error(500, words, "server_error"))
}

/// The requests after which a client has its call, although the model or the server misbehaved once.
async fn survive(server: &str, owner: &'static str, misbehave: Answer) -> usize {
    let good = Script::json(200, &replies::calls(&[("f", r#"{"a":"x"}"#)]));
    let fake = FakeVllm::start([misbehave(server)]).await;
    fake.otherwise(good);
    fake.pose_as(owner, json!({}));
    let respool = Respool::before(&fake).await;
    let body = json!({"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}], "tools": [tool()]});
    let reply = exchange(respool.address, &Request::chat(&body)).await;
    let called = &reply.json()["choices"][0]["message"]["tool_calls"][0]["function"];
    assert_eq!((&called["name"], &called["arguments"]), (&json!("f"), &json!(r#"{"a":"x"}"#)), "{server}");
    fake.requests().len()
}

/// SGLang drops a call that its parser cannot read. Asked for unparsed text, it would leave the tools out of
/// the prompt; so it is asked the same again.
#[tokio::test]
async fn sglang_keeps_its_tools_when_a_call_is_lost() {
    for (owner, choice) in [("sglang", Value::Null), ("vllm", json!("none"))] {
        let mut lost = replies::text("");
        lost["usage"]["completion_tokens"] = json!(40);
        let fake = FakeVllm::start([Script::json(200, &replies::text("ok"))]).await;
        fake.pose_as(owner, json!({}));
        let respool = Respool::before(&fake).await;
        let body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": [tool()]});
        // From now on the server is known.
        assert_eq!(exchange(respool.address, &Request::chat(&body)).await.status, 200);
        assert_eq!(exchange(respool.address, &Request::get("/v1/models")).await.status, 200);
        fake.then(Script::json(200, &lost));
        fake.then(Script::json(200, &replies::text("ok")));
        assert_eq!(exchange(respool.address, &Request::chat(&body)).await.status, 200);
        let sent = fake.requests();
        assert_eq!((sent.len(), &sent[2].json()["tool_choice"]), (3, &choice), "{owner}");
    }
}

fn tool() -> Value {
    json!({"type": "function", "function": {"name": "f", "description": "d", "parameters":
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}}})
}

const BEGIN: &str = "<!-- tables -->\n";
const END: &str = "<!-- /tables -->\n";

#[tokio::test]
async fn each_server_answers_each_request() {
    let mut table = "| request | SGLang | Ollama | LM Studio |\n|---|---|---|---|\n".to_owned();
    for (name, path, body) in requests() {
        let mut cells = Vec::new();
        for server in &SERVERS {
            cells.push(ask(server, path, &body).await);
        }
        writeln!(table, "| {name} | {} |", cells.join(" | ")).unwrap();
    }
    table.push_str("\n| misbehaviour | llama.cpp | SGLang | Ollama | LM Studio |\n|---|---|---|---|---|\n");
    for (name, misbehave) in MISBEHAVIOURS {
        let mut row = format!("| {name} | {}", survive("llama.cpp", "llamacpp", misbehave).await);
        for server in &SERVERS {
            write!(row, " | {}", survive(server.name, server.owner, misbehave).await).unwrap();
        }
        writeln!(table, "{row} |").unwrap();
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/servers.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (head, rest) = page.split_once(BEGIN).unwrap();
    let (_, tail) = rest.split_once(END).unwrap();
    let current = format!("{head}{BEGIN}{table}{END}{tail}");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &current).unwrap();
    }
    let page = std::fs::read_to_string(&path).unwrap();
    assert!(
        page == current,
        "docs/servers.md is not current: run UPDATE_DOCS=1 cargo test --test it servers"
    );
}
