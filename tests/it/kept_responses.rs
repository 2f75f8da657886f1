//! Responses that clients keep: `previous_response_id`, reading, deleting and cancelling them, and those made
//! in the background.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::client::{Reply, Request, exchange};
use crate::support::fake_vllm::FakeVllm;
use crate::support::look_within;
use crate::support::replies;
use crate::support::respool::{ONCE, Respool};
use crate::support::script::Script;

fn says(text: &str) -> Script {
    Script::sse(replies::text_stream(&[text], true))
}

async fn started(fake: &FakeVllm, state: &Path, extra: &str) -> Respool {
    Respool::with(fake, &format!("state_dir = \"{}\"\n{extra}", state.display())).await
}

async fn send(respool: &Respool, key: &str, request: Request) -> (u16, Value) {
    let reply: Reply =
        exchange(respool.address, &request.header("authorization", &format!("Bearer {key}"))).await;
    (reply.status, reply.json())
}

async fn ask(respool: &Respool, key: &str, body: Value) -> (u16, Value) {
    let mut body = body;
    body["model"] = "gpt-oss-20b".into();
    send(respool, key, Request::post("/v1/responses", body.to_string())).await
}

fn id(response: &Value) -> String {
    response["id"].as_str().unwrap().to_owned()
}

async fn get(respool: &Respool, key: &str, id: &str) -> (u16, Value) {
    send(respool, key, Request::get(&format!("/v1/responses/{id}"))).await
}

/// The files of a directory that hold this text.
fn holds(dir: &Path, text: &str) -> bool {
    let files = std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .filter_map(|entry| std::fs::read(entry.ok()?.path()).ok());
    files.into_iter().any(|bytes| bytes.windows(text.len()).any(|window| window == text.as_bytes()))
}

#[tokio::test]
async fn conversations_survive_restarts_per_key() {
    let state = tempfile::tempdir().unwrap();
    let fake = FakeVllm::start([says("Alpha"), says("Beta"), says("Gamma")]).await;
    let respool = started(&fake, state.path(), "").await;
    let (_, first) = ask(&respool, "a", json!({"input": "one"})).await;
    let (_, second) = ask(&respool, "a", json!({"input": "two", "previous_response_id": first["id"]})).await;
    respool.killed().await;
    let respool = started(&fake, state.path(), "").await;
    let next = json!({"input": "three", "previous_response_id": second["id"]});
    let (status, refused) = ask(&respool, "b", next.clone()).await;
    assert_eq!((status, &refused["error"]["code"]), (400, &json!("previous_response_not_found")));
    assert_eq!(ask(&respool, "a", next).await.0, 200);
    let sent = fake.requests()[2].json();
    let said: Vec<&str> = sent["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|message| message["content"].as_str().unwrap())
        .collect();
    assert_eq!(said, ["one", "Alpha", "two", "Beta", "three"]);
    fake.finish();
}

#[tokio::test]
async fn streams_are_kept_before_they_end() {
    let fake = FakeVllm::start([says("Alpha"), says("Beta")]).await;
    let state = tempfile::tempdir().unwrap();
    let respool = started(&fake, state.path(), "").await;
    let body = json!({"model": "gpt-oss-20b", "input": "one", "stream": true}).to_string();
    let reply =
        exchange(respool.address, &Request::post("/v1/responses", body).header("authorization", "Bearer a"))
            .await;
    let told = crate::support::other_wires::responses(&reply.text());
    let next = json!({"input": "two", "previous_response_id": told.object["id"]});
    assert_eq!(ask(&respool, "a", next).await.0, 200);
    let (status, read) = get(&respool, "a", &id(&told.object)).await;
    assert_eq!((status, &read), (200, &told.object));
    fake.finish();
}

#[tokio::test]
async fn kept_responses_belong_to_their_key() {
    let fake = FakeVllm::start([says("Alpha")]).await;
    let state = tempfile::tempdir().unwrap();
    let respool = started(&fake, state.path(), "").await;
    let items = json!([{"role": "user", "content": "one"}, {"role": "user", "content": "two"}]);
    let (_, made) = ask(&respool, "a", json!({"input": items})).await;
    let path = format!("/v1/responses/{}", id(&made));
    assert_eq!(send(&respool, "a", Request::get(&path)).await, (200, made.clone()));
    let listed = format!("{path}/input_items");
    let (_, list) = send(&respool, "a", Request::get(&format!("{listed}?order=asc&limit=1"))).await;
    let text = |list: &Value| list["data"][0]["content"][0]["text"].clone();
    assert_eq!((text(&list), &list["has_more"]), (json!("one"), &json!(true)));
    let after = format!("{listed}?order=asc&after={}", list["last_id"].as_str().unwrap());
    let (_, rest) = send(&respool, "a", Request::get(&after)).await;
    assert_eq!((text(&rest), &rest["has_more"]), (json!("two"), &json!(false)));
    // A base URL without its /v1 is forgiven here too, and the last item comes first unless the client says
    // otherwise.
    let (_, newest) = send(&respool, "a", Request::get(&listed.replace("/v1/", "/"))).await;
    assert_eq!((text(&newest), newest["data"].as_array().unwrap().len()), (json!("two"), 2));
    let (status, refused) = send(&respool, "a", Request::get(&format!("{listed}?after=msg_none"))).await;
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("after")));
    for request in [Request::get(&path), Request::get(&listed), Request::new("DELETE", &path, "")] {
        let (status, refused) = send(&respool, "b", request).await;
        assert_eq!((status, &refused["error"]["code"]), (404, &json!("response_not_found")));
    }
    let (status, refused) = send(&respool, "a", Request::post(&format!("{path}/cancel"), "")).await;
    assert_eq!((status, &refused["error"]["type"]), (400, &json!("invalid_request_error")));
    let (status, deleted) = send(&respool, "a", Request::new("DELETE", &path, "")).await;
    assert_eq!((status, deleted), (200, json!({"id": made["id"], "object": "response", "deleted": true})));
    assert_eq!(send(&respool, "a", Request::get(&path)).await.0, 404);
    fake.finish();
}

/// A small request that names much of what is kept is no larger for the model server than any other.
#[tokio::test]
async fn kept_items_respect_the_body_limit() {
    let long = "word ".repeat(20 << 10);
    let fake = FakeVllm::start([says(&long), says("Beta"), says("Gamma")]).await;
    let state = tempfile::tempdir().unwrap();
    let respool = started(&fake, state.path(), "[limits]\nmax_body = \"256KiB\"").await;
    let (status, first) = ask(&respool, "a", json!({"input": "one"})).await;
    assert_eq!(status, 200, "{first}");
    let reference = json!({"type": "item_reference", "id": first["output"][0]["id"]});
    let references = |times: usize| json!({"input": vec![reference.clone(); times]});
    assert_eq!(ask(&respool, "a", references(2)).await.0, 200);
    let (status, refused) = ask(&respool, "a", references(3)).await;
    assert_eq!((status, &refused["error"]["code"]), (400, &json!("request_too_large")));
    let more = |previous: &Value| json!({"previous_response_id": previous, "input": "x".repeat(100 << 10)});
    let (status, second) = ask(&respool, "a", more(&first["id"])).await;
    assert_eq!(status, 200, "{second}");
    let (status, refused) = ask(&respool, "a", more(&second["id"])).await;
    assert_eq!(
        (status, &refused["error"]["param"]),
        (400, &json!("previous_response_id")),
        "{}",
        refused["error"]["message"]
    );
    fake.finish();
}

#[tokio::test]
async fn failed_streams_are_not_kept() {
    let late = Script::json(500, &replies::error(500, "boom", "InternalServerError"));
    let fake = FakeVllm::start([late.delay(Duration::from_millis(400))]).await;
    let state = tempfile::tempdir().unwrap();
    let respool = started(&fake, state.path(), &format!("{ONCE}[limits]\ncommit_after = \"50ms\"")).await;
    let body = json!({"model": "gpt-oss-20b", "input": "one", "stream": true}).to_string();
    let request = Request::post("/v1/responses", body).header("authorization", "Bearer a");
    let told = crate::support::other_wires::responses(&exchange(respool.address, &request).await.text());
    assert!(told.end.starts_with("failed"), "{}", told.end);
    assert_eq!(told.object["store"], false);
    assert_eq!(get(&respool, "a", &id(&told.object)).await.0, 404);
    fake.finish();
}

#[tokio::test]
async fn unkept_responses_leave_no_trace() {
    for (extra, store) in [("", json!(false)), ("[responses]\nstore = false", Value::Null)] {
        let fake = FakeVllm::start([says("Alpha")]).await;
        let state = tempfile::tempdir().unwrap();
        let dir = state.path().join("state");
        let respool = started(&fake, &dir, extra).await;
        let (_, made) = ask(&respool, "a", json!({"input": "a-secret-question", "store": store})).await;
        assert_eq!(made["store"], false);
        assert!(!holds(&dir, "a-secret-question") && !dir.join("respool.db").exists());
        assert_eq!(get(&respool, "a", &id(&made)).await.0, 404);
        let next = json!({"input": "two", "previous_response_id": made["id"]});
        assert_eq!(ask(&respool, "a", next).await.0, 400);
        fake.finish();
    }
}

#[tokio::test]
async fn deleted_responses_leave_the_disk() {
    let fake = FakeVllm::start([says("Alpha")]).await;
    let state = tempfile::tempdir().unwrap();
    let respool = started(&fake, state.path(), "").await;
    let (_, made) = ask(&respool, "a", json!({"input": "a-kept-question"})).await;
    assert!(holds(state.path(), "a-kept-question"));
    let path = format!("/v1/responses/{}", id(&made));
    assert_eq!(send(&respool, "a", Request::new("DELETE", &path, "")).await.0, 200);
    assert!(!holds(state.path(), "a-kept-question"));
}

/// Waits until a response has this status.
async fn until(respool: &Respool, key: &str, id: &str, status: &str) -> Value {
    let mut last = Value::Null;
    let look = async || {
        last = get(respool, key, id).await.1;
        (last["status"] == status).then(|| last.clone())
    };
    let found = look_within(Duration::from_secs(30), look).await;
    found.unwrap_or_else(|| panic!("not {status}: {last}"))
}

fn in_background() -> Value {
    json!({"input": "one", "background": true})
}

#[tokio::test]
async fn background_responses_need_no_client() {
    let fake = FakeVllm::start([says("Alpha").delay(Duration::from_millis(200)), says("Beta")]).await;
    let state = tempfile::tempdir().unwrap();
    let respool = started(&fake, state.path(), "").await;
    let (status, begun) = ask(&respool, "a", in_background()).await;
    assert_eq!((status, &begun["status"], &begun["background"]), (200, &json!("queued"), &json!(true)));
    assert_eq!(get(&respool, "a", &id(&begun)).await.1["status"], "in_progress");
    let early = json!({"input": "two", "previous_response_id": begun["id"]});
    let (status, refused) = ask(&respool, "a", early.clone()).await;
    assert_eq!(status, 400, "it has no output yet");
    assert!(
        refused["error"]["message"].as_str().unwrap().contains("is still in progress: wait until"),
        "{refused}"
    );
    let (_, unknown) = ask(&respool, "b", early.clone()).await;
    assert!(
        unknown["error"]["message"].as_str().unwrap().contains("was not stored"),
        "another client's: {unknown}"
    );
    let made = until(&respool, "a", &id(&begun), "completed").await;
    assert_eq!(made["output"][0]["content"][0]["text"], "Alpha");
    assert_eq!((&made["id"], &made["usage"]["output_tokens"]), (&begun["id"], &json!(31)));
    assert_eq!(ask(&respool, "a", early).await.0, 200);
    let (status, ended) =
        send(&respool, "a", Request::post(&format!("/v1/responses/{}/cancel", id(&begun)), "")).await;
    assert_eq!((status, &ended["status"]), (200, &json!("completed")), "what has ended stays");
    fake.finish();
}

/// Unfinished responses are never deleted, so the room bounds their number.
#[tokio::test]
async fn background_responses_take_half_the_room() {
    let fake = FakeVllm::always(Script::silence()).await;
    let state = tempfile::tempdir().unwrap();
    let respool = started(&fake, state.path(), "[responses]\nmax_size = \"128KiB\"").await;
    let large = json!({"input": "x".repeat(20 << 10), "background": true});
    let (status, first) = ask(&respool, "a", large.clone()).await;
    assert_eq!((status, &first["status"]), (200, &json!("queued")));
    let (status, refused) = ask(&respool, "b", large.clone()).await;
    assert_eq!((status, &refused["error"]["code"]), (503, &json!("responses_full")));
    assert_eq!(get(&respool, "a", &id(&first)).await.1["status"], "in_progress");
    assert_eq!(ask(&respool, "b", in_background()).await.0, 200, "a small one has room");
    let cancel = Request::post(&format!("/v1/responses/{}/cancel", id(&first)), "");
    assert_eq!(send(&respool, "a", cancel).await.0, 200);
    assert_eq!(ask(&respool, "b", large).await.0, 200);
}

#[tokio::test]
async fn background_responses_survive_restarts() {
    let fake = FakeVllm::start([Script::silence(), says("Alpha")]).await;
    let state = tempfile::tempdir().unwrap();
    let respool = started(&fake, state.path(), "").await;
    let (_, begun) = ask(&respool, "a", in_background()).await;
    fake.wait_for_requests(1).await;
    respool.killed().await;
    let respool = started(&fake, state.path(), "").await;
    let made = until(&respool, "a", &id(&begun), "completed").await;
    assert_eq!(made["output"][0]["content"][0]["text"], "Alpha");
    assert_eq!(made["created_at"], begun["created_at"]);
    fake.finish();
}

/// The client's own key went upstream, is stored nowhere, and is wanted there.
#[tokio::test]
async fn responses_with_client_keys_fail_after_restart() {
    let refused = Script::json(401, &json!({"error": "Unauthorized"})).expect_no_authorization();
    let fake = FakeVllm::start([Script::silence().expect_authorization("Bearer a"), refused]).await;
    let state = tempfile::tempdir().unwrap();
    let respool = started(&fake, state.path(), "").await;
    let (_, begun) = ask(&respool, "a", in_background()).await;
    fake.wait_for_requests(1).await;
    respool.killed().await;
    let respool = started(&fake, state.path(), "").await;
    let failed = until(&respool, "a", &id(&begun), "failed").await;
    let why = failed["error"]["message"].as_str().unwrap();
    assert!(
        why.contains("stores none of its clients' keys") && why.contains("send the request again"),
        "{why}"
    );
    fake.finish();
}

#[tokio::test]
async fn background_responses_can_be_cancelled() {
    let fake = FakeVllm::start([Script::silence()]).await;
    let state = tempfile::tempdir().unwrap();
    let respool = started(&fake, state.path(), "").await;
    let (_, begun) = ask(&respool, "a", in_background()).await;
    fake.wait_for_requests(1).await;
    let cancel = Request::post(&format!("/v1/responses/{}/cancel", id(&begun)), "");
    assert_eq!(send(&respool, "b", cancel.clone()).await.0, 404);
    let (status, ended) = send(&respool, "a", cancel).await;
    assert_eq!((status, &ended["status"]), (200, &json!("cancelled")));
    fake.wait_until_closed(0).await;
    assert_eq!(get(&respool, "a", &id(&begun)).await.1["status"], "cancelled");
}

#[tokio::test]
async fn background_failures_are_reported() {
    let refused =
        Script::json(400, &replies::error(400, "temperature must be non-negative", "BadRequestError"));
    let fake = FakeVllm::start([refused]).await;
    let state = tempfile::tempdir().unwrap();
    let respool = started(&fake, state.path(), "").await;
    let (_, begun) = ask(&respool, "a", in_background()).await;
    let failed = until(&respool, "a", &id(&begun), "failed").await;
    assert!(failed["error"]["message"].as_str().unwrap().contains("temperature"), "{failed}");
    for (field, value, param) in [("stream", true, "stream"), ("store", false, "background")] {
        let mut body = in_background();
        body[field] = value.into();
        let (status, refused) = ask(&respool, "a", body).await;
        assert_eq!((status, &refused["error"]["param"]), (400, &json!(param)));
    }
}

#[tokio::test]
async fn restricted_keys_manage_their_responses() {
    let fake = FakeVllm::start([says("Alpha")]).await;
    let state = tempfile::tempdir().unwrap();
    std::fs::write(
        state.path().join("keys.toml"),
        "[alice]\nkey = 'sk-alice-0123456789'\nmodels = ['gpt-oss-*']\n",
    )
    .unwrap();
    let keys = format!("client_keys_file = \"{}/keys.toml\"", state.path().display());
    let respool = started(&fake, state.path(), &keys).await;
    let (_, made) = ask(&respool, "sk-alice-0123456789", json!({"input": "one"})).await;
    let path = format!("/v1/responses/{}", id(&made));
    assert_eq!(exchange(respool.address, &Request::get(&path)).await.status, 401);
    assert_eq!(send(&respool, "sk-alice-0123456789", Request::get(&path)).await.0, 200);
    assert_eq!(send(&respool, "sk-alice-0123456789", Request::new("DELETE", &path, "")).await.0, 200);
    // What is passed on still needs a model that the key permits.
    let compact = Request::post("/v1/responses/compact", r#"{"model":"llama"}"#);
    assert_eq!(send(&respool, "sk-alice-0123456789", compact).await.0, 404);
    fake.finish();
}
