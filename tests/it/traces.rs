//! Traces from end to end: the real program, and a collector that reads the protobuf with OpenTelemetry's own
//! types.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use prost::Message as _;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;

use crate::lifecycle::Served;
use crate::support::client::{Request, exchange};
use crate::support::fake_vllm::FakeVllm;
use crate::support::http1::{Framing, Incoming};
use crate::support::look_within;
use crate::support::replies;
use crate::support::script::Script;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// A collector; what it was sent, and the raw bytes of it.
struct Collector {
    url: String,
    got: Arc<Mutex<(Vec<Span>, Vec<u8>)>>,
}

impl Collector {
    async fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let got: Arc<Mutex<(Vec<Span>, Vec<u8>)>> = Arc::default();
        let all = Arc::clone(&got);
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(collect(socket, Arc::clone(&all)));
            }
        });
        Self { url, got }
    }

    /// The spans, once there are `count` of them.
    async fn spans(&self, count: usize) -> Vec<Span> {
        let spans = || self.got.lock().unwrap().0.clone();
        let look = async || Some(spans()).filter(|spans| spans.len() >= count);
        let found = look_within(Duration::from_mins(1), look).await;
        let names = || spans().into_iter().map(|span| span.name).collect::<Vec<_>>();
        found.unwrap_or_else(|| panic!("{count} spans are expected, these came: {:?}", names()))
    }

    fn holds(&self, text: &str) -> bool {
        let bytes = &self.got.lock().unwrap().1;
        bytes.windows(text.len()).any(|window| window == text.as_bytes())
    }
}

async fn collect(socket: tokio::net::TcpStream, all: Arc<Mutex<(Vec<Span>, Vec<u8>)>>) {
    let (reading, mut writing) = socket.into_split();
    let mut incoming = Incoming::new(reading);
    while let Ok(Some(head)) = incoming.head().await {
        assert!(head.start.starts_with("POST /v1/traces HTTP/1.1"), "{}", head.start);
        assert_eq!(head.headers.get("content-type"), Some("application/x-protobuf"));
        assert_eq!(head.headers.get("x-team"), Some("one"));
        let mut framing = head.framing(Framing::Length(0)).unwrap();
        let mut body = Vec::new();
        while let Some(piece) = incoming.piece(&mut framing).await.unwrap() {
            body.extend(piece);
        }
        let request = ExportTraceServiceRequest::decode(&body[..]).expect("a request of OTLP");
        let mut spans = Vec::new();
        for resource in request.resource_spans {
            let names = resource.resource.unwrap().attributes;
            let service = names.iter().find(|it| it.key == "service.name").expect("a service name");
            assert_eq!(service.value.clone().unwrap().value, Some(Any::StringValue("respool".into())));
            spans.extend(resource.scope_spans.into_iter().flat_map(|scope| scope.spans));
        }
        note(&all, spans, &body);
        let answer = "HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n";
        writing.write_all(answer.as_bytes()).await.unwrap();
    }
}

fn note(all: &Mutex<(Vec<Span>, Vec<u8>)>, spans: Vec<Span>, bytes: &[u8]) {
    let mut all = all.lock().unwrap();
    all.0.extend(spans);
    all.1.extend(bytes);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn attribute(span: &Span, key: &str) -> Value {
    let found = span.attributes.iter().find(|it| it.key == key).and_then(|it| it.value.clone()?.value);
    match found {
        Some(Any::StringValue(text)) => text.into(),
        Some(Any::IntValue(number)) => number.into(),
        _ => Value::Null,
    }
}

fn named<'a>(spans: &'a [Span], name: &str) -> Vec<&'a Span> {
    spans.iter().filter(|span| span.name == name).collect()
}

fn served(fake: &FakeVllm, collector: &Collector, more: &str) -> Served {
    let toml = format!(
        "{more}\n[otlp]\nendpoint = \"{}\"\nheaders_env = \"OTLP_HEADERS\"\n[[upstream]]\nname = \"box\"\nurl = \"{}\"\n",
        collector.url,
        fake.url()
    );
    Served::with_file(&toml, &[("OTLP_HEADERS", "x-team=one")])
}

fn question(model: &str) -> Request {
    Request::chat(&json!({"model": model, "messages": [{"role": "user", "content": "the secret word"}]}))
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_and_attempts_share_a_trace() {
    let broken =
        Script::json(500, &replies::error(500, "EngineCore encountered an issue.", "InternalServerError"));
    let fake = FakeVllm::start([broken, Script::json(200, &replies::text("the secret answer"))]).await;
    let collector = Collector::start().await;
    let served = served(&fake, &collector, "");
    let request = question("m").header("traceparent", &format!("00-{TRACE}-{PARENT}-01"));
    assert_eq!(exchange(served.address, &request).await.status, 200);
    let spans = collector.spans(3).await;
    assert!(spans.iter().all(|span| hex(&span.trace_id) == TRACE), "{spans:?}");
    let request = named(&spans, "POST /v1/chat/completions")[0];
    assert_eq!((hex(&request.parent_span_id), request.kind()), (PARENT.to_owned(), SpanKind::Server));
    assert_eq!(attribute(request, "http.response.status_code"), 200);
    let attempts = named(&spans, "chat m");
    assert_eq!(attempts.len(), 2);
    for (attempt, seen) in attempts.iter().zip(fake.requests()) {
        assert_eq!((&attempt.parent_span_id, attempt.kind()), (&request.span_id, SpanKind::Client));
        assert_eq!(attribute(attempt, "gen_ai.operation.name"), "chat");
        let told = format!("00-{TRACE}-{}-01", hex(&attempt.span_id));
        assert_eq!(
            seen.headers.get("traceparent"),
            Some(&*told),
            "the upstream's work is part of the attempt"
        );
        assert!(request.start_time_unix_nano <= attempt.start_time_unix_nano);
        assert!(attempt.end_time_unix_nano <= request.end_time_unix_nano);
    }
    assert_ne!(attribute(attempts[0], "error.type"), Value::Null, "{:?}", attempts[0]);
    assert_eq!(attribute(attempts[1], "error.type"), Value::Null);
    assert!(attribute(attempts[1], "gen_ai.usage.output_tokens").as_u64() > Some(0));
    assert!(!collector.holds("secret"), "message text is in no span");
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_share_one_trace() {
    let work = tempfile::tempdir().unwrap();
    std::fs::write(work.path().join("a"), "the secret file").unwrap();
    let calls = Script::json(200, &replies::calls(&[("read", r#"{"path": "a"}"#)]));
    let fake = FakeVllm::start([calls, Script::json(200, &replies::text("done"))]).await;
    let collector = Collector::start().await;
    let agent = format!(
        "[agents.helper]\nmodel = \"m\"\ntools = [\"read\"]\n[tools.local]\nworkspace = {:?}\nsandbox = \"off\"\n\
         [tools.policy]\ndefault = \"allow\"",
        work.path()
    );
    let served = served(&fake, &collector, &agent);
    assert_eq!(exchange(served.address, &question("helper")).await.status, 200);
    // The request, the run, two model calls with an attempt each, one tool.
    let spans = collector.spans(7).await;
    let request = named(&spans, "POST /v1/chat/completions")[0];
    assert!(request.parent_span_id.is_empty() && spans.iter().all(|span| span.trace_id == request.trace_id));
    let run = named(&spans, "invoke_agent helper")[0];
    assert_eq!(run.parent_span_id, request.span_id);
    let tool = named(&spans, "execute_tool read")[0];
    assert_eq!((&tool.parent_span_id, attribute(tool, "gen_ai.tool.name")), (&run.span_id, "read".into()));
    let model_calls = named(&spans, "agent model call");
    assert!(model_calls.len() == 2 && model_calls.iter().all(|call| call.parent_span_id == run.span_id));
    let attempts = named(&spans, "chat m");
    assert_eq!(attempts.len(), 2);
    let calls: Vec<_> = model_calls.iter().map(|call| &call.span_id).collect();
    assert!(attempts.iter().all(|attempt| calls.contains(&&attempt.parent_span_id)));
    assert!(!collector.holds("secret"), "message text is in no span");
}

#[tokio::test(flavor = "multi_thread")]
async fn unwanted_traces_are_not_recorded() {
    let fake = FakeVllm::always(Script::json(200, &replies::text("hello"))).await;
    let collector = Collector::start().await;
    let with = served(&fake, &collector, "");
    let unsampled = format!("00-{TRACE}-{PARENT}-00");
    exchange(with.address, &question("m").header("traceparent", &unsampled)).await;
    let told = fake.requests()[0].headers.get("traceparent").unwrap().to_owned();
    assert!(told.starts_with(&format!("00-{TRACE}-")) && told.ends_with("-00"), "{told}");
    exchange(with.address, &question("other")).await;
    let spans = collector.spans(2).await;
    assert!(spans.iter().all(|span| hex(&span.trace_id) != TRACE), "{spans:?}");
    let without = Served::with_file(&format!("[[upstream]]\nurl = \"{}\"\n", fake.url()), &[]);
    exchange(without.address, &question("m").header("traceparent", &unsampled)).await;
    exchange(without.address, &question("m")).await;
    let seen = fake.requests();
    assert_eq!(
        seen[2].headers.get("traceparent"),
        Some(&*unsampled),
        "what the client sent goes on as it is"
    );
    assert_eq!(seen[3].headers.get("traceparent"), None);
}
