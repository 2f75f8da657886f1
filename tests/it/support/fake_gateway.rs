//! A scripted fake of OpenClaw's gateway that takes nothing but what `/tools/invoke` takes: the token, JSON,
//! the fields that are documented there. What it finds wrong fails the test in [`FakeGateway::finish`].

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, Response, Uri};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// The token it takes.
pub const TOKEN: &str = "gateway-token";

/// A status, headers and a body; no answer at all when the status is 0.
pub type Answer = (u16, &'static [(&'static str, &'static str)], String);

#[derive(Default)]
struct Record {
    answers: VecDeque<Answer>,
    seen: Vec<Value>,
    problems: Vec<String>,
}

/// The server; ends when dropped.
pub struct FakeGateway {
    /// Its base URL.
    pub url: String,
    record: Arc<Mutex<Record>>,
    serving: JoinHandle<()>,
}

impl FakeGateway {
    /// Answers with these, in order.
    pub async fn start(answers: impl IntoIterator<Item = Answer>) -> Self {
        let record =
            Arc::new(Mutex::new(Record { answers: answers.into_iter().collect(), ..Record::default() }));
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().fallback(answer).with_state(Arc::clone(&record));
        let serving = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, record, serving }
    }

    /// `[tools.gateway]` for it.
    pub fn settings(&self) -> String {
        format!("[gateway]\nurl = \"{}\"\ntoken = \"{TOKEN}\"\nsession_key = \"agent:main:main\"\n", self.url)
    }

    /// The bodies that came.
    pub fn requests(&self) -> Vec<Value> {
        self.record.lock().unwrap().seen.clone()
    }

    /// Panics when a request was wrong or an answer is left over.
    pub fn finish(self) {
        let record = self.record.lock().unwrap();
        assert!(record.problems.is_empty(), "{:#?}", record.problems);
        assert!(record.answers.is_empty(), "{} answers are left over", record.answers.len());
    }
}

impl Drop for FakeGateway {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn answer(
    State(record): State<Arc<Mutex<Record>>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    let answer = {
        let mut record = record.lock().unwrap();
        record.problems.extend(problems(&method, &uri, &headers, &body));
        record.seen.push(serde_json::from_slice(&body).unwrap_or_default());
        record.answers.pop_front()
    };
    let Some((status, headers, body)) = answer else {
        record.lock().unwrap().problems.push("one request too many".into());
        return Response::builder().status(500).body(Body::empty()).unwrap();
    };
    if status == 0 {
        std::future::pending::<()>().await;
    }
    let head = headers
        .iter()
        .fold(Response::builder().status(status), |head, (name, value)| head.header(*name, *value));
    head.body(Body::from(body)).unwrap()
}

fn problems(method: &Method, uri: &Uri, headers: &HeaderMap, body: &Bytes) -> Vec<String> {
    const KNOWN: [&str; 8] =
        ["tool", "name", "action", "args", "sessionKey", "agentId", "idempotencyKey", "dryRun"];
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let json: Value = serde_json::from_slice(body).unwrap_or_default();
    let text = |key: &str| json[key].as_str().is_some_and(|text| !text.is_empty());
    let unknown = json.as_object().map(|json| json.keys().find(|key| !KNOWN.contains(&key.as_str())));
    let checks = [
        (method == Method::POST && uri == "/tools/invoke", format!("{method} {uri}")),
        (header("authorization") == format!("Bearer {TOKEN}"), "the token is wrong".into()),
        (header("content-type") == "application/json", "the body is not said to be JSON".into()),
        (unknown == Some(None), format!("not an object, or an unknown field: {json}")),
        (text("tool"), "no tool".into()),
        (json["args"].is_object(), "args is no object".into()),
        (text("idempotencyKey"), "no idempotencyKey".into()),
        (json["sessionKey"] == "agent:main:main", "no sessionKey".into()),
        (body.len() <= 2_000_000, "over 2 MB".into()),
    ];
    checks.into_iter().filter(|(is_fine, _)| !is_fine).map(|(_, problem)| problem).collect()
}
