//! Forms, as the routes for audio take them: the model in a field decides where they go, and the file
//! streams.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::lifecycle::Served;
use crate::support::client::{Client, Request, exchange};
use crate::support::fake_vllm::FakeVllm;
use crate::support::respool::Respool;
use crate::support::script::Script;
use crate::upstreams;

const ROUTES: [&str; 2] = ["/v1/audio/transcriptions", "/v1/audio/translations"];
const ALIAS: &str = "[models.\"fast\"]\ntarget = \"org/whisper-large\"";

fn part(head: &str, value: &[u8]) -> Vec<u8> {
    let head = format!("--b-1\r\nContent-Disposition: form-data; {head}\r\n\r\n");
    [head.as_bytes(), value, b"\r\n"].concat()
}

/// A form with a file of this many bytes, in which a boundary and a model seem to stand.
fn form(model: &str, size: usize, model_first: bool) -> Vec<u8> {
    let audio = [b"RIFF\0\xff--b-1 name=\"model\"".to_vec(), vec![0x80; size]].concat();
    let file = part("name=\"file\"; filename=\"a.wav\"", &audio);
    let model = part("name=\"model\"", model.as_bytes());
    let stream = part("name=\"stream\"", b"true");
    let parts = if model_first { [model, file, stream] } else { [stream, file, model] };
    [parts.concat(), b"--b-1--\r\n".to_vec()].concat()
}

fn request(route: &str, form: Vec<u8>) -> Request {
    Request::new("POST", route, form).header("content-type", "multipart/form-data; boundary=b-1")
}

fn heard() -> Script {
    Script::json(200, &json!({"text": "hi", "usage": {"prompt_tokens": 9, "completion_tokens": 2}}))
        .unchecked()
}

#[tokio::test]
async fn an_alias_holds_in_a_form() {
    let fake = FakeVllm::always(heard()).await;
    let respool = Respool::with(&fake, ALIAS).await;
    for (route, size, model_first) in [
        (ROUTES[0], 10, true),
        (ROUTES[1], 10, false),
        (ROUTES[0], 3 << 20, true),
        (ROUTES[1], 3 << 20, false),
    ] {
        let reply = exchange(respool.address, &request(route, form("fast", size, model_first))).await;
        let seen = fake.requests().pop().unwrap();
        assert_eq!((reply.status, seen.path()), (200, route));
        assert!(seen.body == form("org/whisper-large", size, model_first), "{size} {model_first}");
        assert_eq!(seen.headers.get("content-length"), Some(seen.body.len().to_string().as_str()));
        // What is no alias goes up as it came.
        exchange(respool.address, &request(route, form("else", size, model_first))).await;
        assert!(fake.requests().pop().unwrap().body == form("else", size, model_first));
    }
}

#[tokio::test]
async fn forms_go_to_their_model() {
    let (a, b) = (FakeVllm::start([]).await, FakeVllm::always(heard()).await);
    let of = |model: &str| format!("models = [\"{model}\"]");
    let servers = [("a", &*a.url(), &*of("one")), ("b", &*b.url(), &*of("org/whisper-large"))];
    let respool = upstreams::before(&servers, ALIAS).await;
    for (model, model_first) in [("fast", true), ("org/whisper-large", true), ("fast", false)] {
        let reply = exchange(respool.address, &request(ROUTES[0], form(model, 2 << 20, model_first))).await;
        assert_eq!(reply.status, 200);
    }
    assert_eq!((a.requests().len(), b.requests().len()), (0, 3));
}

/// The first model would decide the server, the alias and the budget, and the server might take the second.
#[tokio::test]
async fn forms_name_one_model() {
    let fake = FakeVllm::always(heard()).await;
    fake.allow_cut_requests();
    let respool = Respool::with(&fake, ALIAS).await;
    let model = |name: &str| part("name=\"model\"", name.as_bytes());
    for size in [10, 3 << 20] {
        let file = part("name=\"file\"; filename=\"a.wav\"", &vec![0x80; size]);
        let body = [model("fast"), file, model("else"), b"--b-1--\r\n".to_vec()].concat();
        let reply = exchange(respool.address, &request(ROUTES[0], body)).await;
        let error = &reply.json()["error"];
        assert_eq!((reply.status, &error["param"]), (400, &json!("model")), "{size}: {error}");
    }
    assert_eq!(fake.requests().len(), 0);
    let plain = Respool::with(&fake, "").await;
    let body = [model("fast"), model("else"), b"--b-1--\r\n".to_vec()].concat();
    assert_eq!(
        exchange(plain.address, &request(ROUTES[0], body)).await.status,
        200,
        "the model decides nothing"
    );
}

/// The client goes away in the middle of its file: the server has had the beginning of it.
#[tokio::test]
async fn a_file_streams_behind_the_model() {
    for extra in [ALIAS, ""] {
        let fake = FakeVllm::start([]).await;
        fake.allow_cut_requests();
        let respool = Respool::with(&fake, extra).await;
        let mut client = Client::connect(respool.address).await;
        let whole = request(ROUTES[0], form("fast", 1 << 20, !extra.is_empty())).to_bytes();
        client.send_raw(&whole[..whole.len() / 2]).await;
        fake.wait_until_begun(ROUTES[0]).await;
        client.reset();
        fake.wait_for_cut_requests(1).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn forms_are_logged_in_full() {
    let fake = FakeVllm::always(heard()).await;
    let served = Served::start(&fake.url());
    for model_first in [true, false] {
        let body = form("gpt-oss-20b", 100_000, model_first);
        assert_eq!(exchange(served.address, &request(ROUTES[0], body)).await.status, 200);
        let line = served.request_line();
        let told: [Value; 4] = ["model", "stream", "prompt_tokens", "outcome"].map(|key| line[key].clone());
        assert_eq!(told, [json!("gpt-oss-20b"), json!(true), json!(9), json!("ok")], "{line}");
    }
}

/// A client that still writes when its answer comes got a broken pipe instead of it.
#[tokio::test]
async fn failed_uploads_get_an_error() {
    let down = "[recovery]\nwait_for_upstream = \"0s\"\n[[upstream]]\nname = \"box\"\nurl = \"http://127.0.0.1:1\"\n";
    let respool = Respool::configured(down).await;
    for _ in 0..4 {
        let bytes = request(ROUTES[0], form("m", 8 << 20, true)).to_bytes();
        let mut socket = TcpStream::connect(respool.address).await.unwrap();
        for piece in bytes.chunks(64 << 10) {
            socket.write_all(piece).await.expect("the upload is taken in");
        }
        let mut status = [0; 12];
        socket.read_exact(&mut status).await.unwrap();
        assert_eq!(&status, b"HTTP/1.1 503");
    }
}
