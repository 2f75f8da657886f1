//! `max_concurrency` and `max_queue`: who waits, in which order, and who is sent away.

use std::time::Duration;

use futures::future::join_all;
use serde_json::{Value, json};
use store::RequestQuery;
use tokio::io::AsyncWriteExt as _;
use tokio::time::Instant;

use crate::support::accumulate::Rules;
use crate::support::client::{Client, Request, exchange};
use crate::support::fake_vllm::{FakeVllm, Seen};
use crate::support::idle_time::IdleTime;
use crate::support::replies;
use crate::support::respool::Respool;
use crate::support::script::Script;
use crate::support::wait_until;
use crate::upstreams::{before, begins};
use crate::{passthrough, tools_route};

const WORK: Duration = Duration::from_secs(1);

fn working(time: Duration) -> Script {
    Script::json(200, &replies::text("done")).delay(time)
}

fn request(client: &str, name: &str) -> Request {
    Request::chat(&begins(name)).header("authorization", &format!("Bearer {client}"))
}

/// Works long on the first request, so that others can line up meanwhile.
async fn long_on_the_first() -> FakeVllm {
    let fake = FakeVllm::always(working(WORK / 5)).await;
    fake.then(working(Duration::from_secs(8)));
    fake
}

/// The words with which the conversations began that came, in this order.
fn names(seen: &[Seen]) -> Vec<String> {
    let name = |seen: &Seen| seen.json()["messages"][1]["content"].as_str().unwrap().to_owned();
    seen.iter().map(name).collect()
}

async fn report(respool: &Respool) -> Value {
    exchange(respool.address, &Request::get("/ready")).await.json()["upstreams"][0].clone()
}

/// Waits until `count` requests are in the queue.
async fn queued(respool: &Respool, count: u64) {
    wait_until("the requests are queued", async || report(respool).await["queued"] == count).await;
}

#[tokio::test]
async fn concurrency_stays_within_its_limit() {
    let _time = IdleTime::begin();
    let fake = FakeVllm::always(working(WORK)).await;
    let respool = Respool::with(&fake, "[[upstream]]\nmax_concurrency = 2").await;
    let all = (0..8).map(|number| {
        let request = request("a", &number.to_string());
        async move { exchange(respool.address, &request).await.stream(&Rules::default()) }
    });
    join_all(all).await;
    let seen = fake.requests();
    for one in &seen {
        let beside =
            seen.iter().filter(|other| other.at <= one.at && other.answered_at.unwrap() > one.at).count();
        assert!(beside <= 2, "{beside} at a time");
    }
    assert_eq!(seen.len(), 8);
}

#[tokio::test]
async fn clients_and_conversations_take_turns() {
    let _time = IdleTime::begin();
    let fake = long_on_the_first().await;
    let respool = Respool::with(&fake, "[[upstream]]\nmax_concurrency = 1").await;
    let mut clients = Vec::new();
    let arriving = [("a", "x"), ("a", "x"), ("a", "x"), ("a", "y"), ("b", "z"), ("b", "z")];
    for (count, (client, conversation)) in (0..).zip(arriving) {
        clients.push(Client::sending(respool.address, &request(client, conversation)).await);
        queued(&respool, count).await;
    }
    for client in &mut clients {
        client.reply().await.stream(&Rules::default());
    }
    assert_eq!(names(&fake.requests()), ["x", "z", "y", "z", "x", "x"]);
}

#[tokio::test]
async fn background_work_gives_its_place_to_a_person() {
    let _time = IdleTime::begin();
    let fake = long_on_the_first().await;
    let dir = tempfile::tempdir().unwrap();
    let config = format!("state_dir = \"{}\"\n[[upstream]]\nmax_concurrency = 1", dir.path().display());
    let respool = Respool::with(&fake, &config).await;
    let background = request("a", "beat").header("x-respool-priority", "background");
    let mut background = Client::sending(respool.address, &background).await;
    fake.wait_for_requests(1).await;
    exchange(respool.address, &request("b", "person")).await.stream(&Rules::default());
    background.reply().await.stream(&Rules::default());
    assert_eq!(names(&fake.requests()), ["beat", "person", "beat"]);
    // The server has not failed, so this is no repeat.
    let query = RequestQuery { most: 9, ..RequestQuery::default() };
    let rows = respool.usage.records().find_requests(query).await.unwrap();
    let beat = rows.iter().find(|row| !row.details.earlier_attempts.is_empty()).expect("it was put back");
    assert_eq!((beat.attempts, &*beat.details.earlier_attempts[0].why), (1, "put_back"));
}

/// The most urgent that a key's requests may be is `priority` of the key.
#[tokio::test]
async fn a_key_in_the_background_waits() {
    let _time = IdleTime::begin();
    let fake = long_on_the_first().await;
    let dir = tempfile::tempdir().unwrap();
    let keys = dir.path().join("keys.toml");
    let text = "[batch]\nkey = \"sk-batch-012345\"\npriority = \"background\"\n[person]\nkey = \"sk-person-012345\"\n";
    std::fs::write(&keys, text).unwrap();
    let config = format!("client_keys_file = {keys:?}\n[[upstream]]\nmax_concurrency = 1");
    let respool = Respool::with(&fake, &config).await;
    let mut clients = Vec::new();
    let arriving =
        [("sk-person-012345", "first"), ("sk-batch-012345", "batch"), ("sk-person-012345", "person")];
    for (count, (key, name)) in (0..).zip(arriving) {
        let urgent = request(key, name).header("x-respool-priority", "interactive");
        clients.push(Client::sending(respool.address, &urgent).await);
        queued(&respool, count).await;
    }
    for client in &mut clients {
        client.reply().await.stream(&Rules::default());
    }
    assert_eq!(names(&fake.requests()), ["first", "person", "batch"]);
}

#[tokio::test]
async fn addresses_separate_clients_of_a_key() {
    let _time = IdleTime::begin();
    let fake = long_on_the_first().await;
    let respool = Respool::with(&fake, "[[upstream]]\nmax_concurrency = 1").await;
    let mut sockets = Vec::new();
    for (count, (address, name)) in (0..).zip([("127.0.0.1", "1"), ("127.0.0.1", "2"), ("127.0.0.2", "3")]) {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(format!("{address}:0").parse().unwrap()).unwrap();
        let mut socket = socket.connect(respool.address).await.unwrap();
        socket.write_all(&request("a", name).to_bytes()).await.unwrap();
        sockets.push(socket);
        queued(&respool, count).await;
    }
    assert_eq!(names(&fake.wait_for_requests(3).await), ["1", "3", "2"]);
}

#[tokio::test]
async fn who_hangs_up_leaves_the_queue() {
    let _time = IdleTime::begin();
    let fake = long_on_the_first().await;
    let respool = Respool::with(&fake, "[[upstream]]\nmax_concurrency = 1").await;
    let mut first = Client::sending(respool.address, &request("a", "first")).await;
    fake.wait_for_requests(1).await;
    // A server that hangs is seen by the age of its requests.
    let seen = report(&respool).await;
    assert!(seen["oldest_s"].is_u64() && seen["silent_s"].is_u64(), "{seen}");
    let gives_up = Client::sending(respool.address, &request("b", "gives up")).await;
    queued(&respool, 1).await;
    let mut last = Client::sending(respool.address, &request("c", "last")).await;
    queued(&respool, 2).await;
    drop(gives_up);
    queued(&respool, 1).await;
    assert_eq!(fake.requests().len(), 1, "it left before a place was free");
    first.reply().await.stream(&Rules::default());
    last.reply().await.stream(&Rules::default());
    assert_eq!(names(&fake.requests()), ["first", "last"]);
    let seen = report(&respool).await;
    assert_eq!((&seen["in_flight"], &seen["silent_s"]), (&json!(0), &Value::Null));
}

/// Regression: a server that refuses requests, and does so at once, looked like one that hangs.
#[tokio::test]
async fn a_refusal_ends_the_silence() {
    let fake = FakeVllm::start([Script::silence().unchecked()]).await;
    fake.otherwise(Script::json(400, &replies::error(400, "no", "BadRequestError")).unchecked());
    let respool = Respool::with(&fake, "[[upstream]]\nmax_concurrency = 9").await;
    let _waiting = Client::sending(respool.address, &request("a", "first")).await;
    fake.wait_for_requests(1).await;
    wait_until("it is silent", async || report(&respool).await["silent_s"].as_u64() >= Some(2)).await;
    assert_eq!(exchange(respool.address, &request("b", "refused")).await.status, 400);
    let seen = report(&respool).await;
    let seconds = |name: &str| seen[name].as_u64().unwrap();
    assert!(seconds("silent_s") + 1 < seconds("oldest_s"), "{seen}");
}

#[tokio::test]
async fn full_queues_answer_429() {
    let _time = IdleTime::begin();
    let fake = long_on_the_first().await;
    let respool = Respool::with(&fake, "[[upstream]]\nmax_concurrency = 1\nmax_queue = 1").await;
    let mut taken = Client::sending(respool.address, &request("a", "1")).await;
    fake.wait_for_requests(1).await;
    let mut waiting = Client::sending(respool.address, &request("a", "2")).await;
    queued(&respool, 1).await;
    for body in [begins("3"), passthrough::request()] {
        let began = Instant::now();
        let reply = exchange(respool.address, &Request::chat(&body)).await;
        assert_eq!((reply.status, &reply.error()["code"]), (429, &json!("queue_full")), "{}", reply.text());
        assert_eq!(
            reply.headers.get("retry-after"),
            Some("10"),
            "two requests of 5 s, as long as none has ended"
        );
        assert!(began.elapsed() < Duration::from_secs(2));
    }
    taken.reply().await.stream(&Rules::default());
    waiting.reply().await.stream(&Rules::default());
    assert_eq!(fake.requests().len(), 2);
}

#[tokio::test]
async fn streams_hold_their_place() {
    let _time = IdleTime::begin();
    let stream = Script::sse(replies::text_stream(&["a", "b"], false)).pause(2, WORK * 2);
    let fake = FakeVllm::always(stream).await;
    let respool = Respool::with(&fake, "[[upstream]]\nmax_concurrency = 1").await;
    let request = Request::chat(&passthrough::request());
    let (one, two) = tokio::join!(exchange(respool.address, &request), exchange(respool.address, &request));
    for reply in [one, two] {
        assert_eq!(reply.stream(&Rules::default()).choices[&0].content, "ab");
    }
    let seen = fake.requests();
    assert!(
        seen[1].at + Duration::from_millis(20) >= seen[0].answered_at.unwrap(),
        "the second came too early"
    );
    let mut client = Client::sending(respool.address, &Request::chat(&passthrough::request())).await;
    client.head().await;
    assert_eq!(report(&respool).await["in_flight"], 1);
    drop(client);
    fake.wait_until_closed(2).await;
    assert_eq!(report(&respool).await["in_flight"], 0, "a stream that is given up holds no place");
}

#[tokio::test]
async fn waiting_clients_get_heartbeats() {
    let _time = IdleTime::begin();
    for form in [tools_route::request(), passthrough::request()] {
        let fake = FakeVllm::always(working(Duration::from_secs(14))).await;
        let quick = "[limits]\ncommit_after = \"2s\"\nheartbeat = \"2s\"\n[[upstream]]\nmax_concurrency = 1";
        let respool = Respool::with(&fake, quick).await;
        let mut first = Client::sending(respool.address, &request("a", "first")).await;
        fake.wait_for_requests(1).await;
        let mut waiting = Client::sending(respool.address, &Request::chat(&form)).await;
        let head = waiting.head().await;
        assert_eq!((head.status, fake.requests().len()), (200, 1), "the head came while it waited");
        let mut text = Vec::new();
        while let Some(chunk) = waiting.chunk().await {
            text.extend(chunk.bytes);
        }
        let turn = crate::support::accumulate::stream(&text, &Rules::default()).unwrap();
        assert!(turn.heartbeats >= 6 && turn.choices[&0].content == "done", "{turn:?}");
        first.reply().await;
    }
}

#[tokio::test]
async fn stops_drain_the_queue() {
    let _time = IdleTime::begin();
    for (drain, finishes) in [("20s", true), ("1s", false)] {
        let fake = FakeVllm::always(working(Duration::from_secs(3))).await;
        let limits = format!("[limits]\ndrain = \"{drain}\"\n[[upstream]]\nmax_concurrency = 1");
        let mut respool = Respool::with(&fake, &limits).await;
        let mut first = Client::sending(respool.address, &request("a", "first")).await;
        fake.wait_for_requests(1).await;
        let mut waiting = Client::sending(respool.address, &request("a", "waiting")).await;
        queued(&respool, 1).await;
        respool.stop.drain.cancel();
        first.reply().await;
        let reply = waiting.reply().await;
        if finishes {
            assert_eq!(reply.stream(&Rules::default()).choices[&0].content, "done");
        } else {
            assert_eq!((reply.status, &reply.error()["code"]), (503, &json!("shutting_down")));
        }
        let ended = respool.ended.take().unwrap();
        tokio::time::timeout(Duration::from_secs(20), ended).await.expect("the server ends").unwrap();
    }
}

#[tokio::test]
async fn long_waits_justify_a_move() {
    let _time = IdleTime::begin();
    let (a, b) = (FakeVllm::always(working(WORK)).await, FakeVllm::always(working(WORK)).await);
    let keys = "models = [\"gpt-oss-20b\"]\nmax_concurrency = 1";
    let respool = before(&[("a", &a.url(), keys), ("b", &b.url(), keys)], "").await;
    let ask = || async { exchange(respool.address, &request("a", "same")).await.stream(&Rules::default()) };
    tokio::join!(ask(), ask());
    assert_eq!(
        (a.requests().len(), b.requests().len()),
        (1, 1),
        "5 s to wait at one, a free place at the other"
    );
    for _ in 0..40 {
        ask().await;
    }
    let own = a.requests().len().max(b.requests().len());
    tokio::join!(ask(), ask());
    assert_eq!(
        a.requests().len().max(b.requests().len()),
        own + 2,
        "a wait of 150 ms is not worth the cache"
    );
}

#[tokio::test]
async fn other_posts_take_a_place_too() {
    let _time = IdleTime::begin();
    let fake = FakeVllm::always(Script::json(200, &json!({"data": []})).delay(WORK).unchecked()).await;
    let respool = Respool::with(&fake, "[[upstream]]\nmax_concurrency = 1").await;
    let embeddings = Request::post("/v1/embeddings", r#"{"input": "x"}"#);
    let post = || exchange(respool.address, &embeddings);
    let began = Instant::now();
    let posts = async {
        let (one, two) = tokio::join!(post(), post());
        assert_eq!((one.status, two.status), (200, 200));
        began.elapsed()
    };
    let free = async {
        exchange(respool.address, &Request::get("/load")).await;
        began.elapsed()
    };
    let (posts, free) = tokio::join!(posts, free);
    assert!(posts >= WORK * 2 && free < posts, "{posts:?} {free:?}");
    assert_eq!(report(&respool).await["in_flight"], 0);
}
