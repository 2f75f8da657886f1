//! A scripted fake vLLM on a real socket. It judges every request ([`super::request_rules`]), answers by
//! script and records who came, with what, and when the peer hung up. What it finds wrong fails the test: in
//! [`FakeVllm::finish`], or when it is dropped.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

use super::http1::{Framing, Headers, Incoming};
use super::request_rules;
use super::script::{Fault, Script, Step};

/// How long the waiting functions wait before they fail the test.
const DEADLINE: Duration = Duration::from_secs(10);
/// Routes that the fake answers without a script.
const PROBES: [&str; 9] = [
    "/v1/models",
    "/health",
    "/version",
    "/tokenize",
    "/props",
    "/apply-template",
    "/get_server_info",
    "/api/version",
    "/api/ps",
];

/// A request that came, and its end.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Which connection it came on, counted from 0.
    pub connection: usize,
    /// The method.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// The headers.
    pub headers: Headers,
    /// The body, without framing.
    pub body: Vec<u8>,
    /// When it had come whole.
    pub at: Instant,
    /// How many bytes were sent in reply, head included.
    pub sent: usize,
    /// When its reply (or the fault in its place) was complete.
    pub answered_at: Option<Instant>,
    /// When the peer closed or reset its connection, also after the reply.
    pub closed_at: Option<Instant>,
}

impl Seen {
    /// The path, without the query.
    pub fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    /// The body, parsed.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("the body is no JSON: {error}"))
    }
}

/// Makes the reply to a request.
struct Model(Box<dyn Fn(&Value) -> Script + Send>);

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Model")
    }
}

#[derive(Debug, Default)]
struct Record {
    scripts: VecDeque<Script>,
    otherwise: Option<Script>,
    model: Option<Model>,
    models: Vec<String>,
    window: u64,
    /// Another server than vLLM: the `owned_by` of its models, and its page about itself.
    posing: Option<(&'static str, Value)>,
    count: Option<u64>,
    probes: Vec<Seen>,
    seen: Vec<Seen>,
    problems: Vec<String>,
    connections: usize,
    /// The targets of the requests of which a piece of the body has come.
    begun: Vec<String>,
    cut_requests: usize,
    cut_requests_allowed: bool,
}

/// The record, and a tick for each change to it.
#[derive(Debug)]
struct Shared {
    authority: String,
    record: Mutex<Record>,
    changed: watch::Sender<()>,
}

impl Shared {
    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().expect("no test panics while it holds the record")
    }

    fn change<T>(&self, change: impl FnOnce(&mut Record) -> T) -> T {
        let result = change(&mut self.record());
        self.changed.send_replace(());
        result
    }

    fn problem(&self, request: &str, problem: &str) {
        self.change(|record| record.problems.push(format!("{request}: {problem}")));
    }
}

/// The server. Stops when dropped.
#[derive(Debug)]
pub struct FakeVllm {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

impl FakeVllm {
    /// Answers with these scripts, each once: a request gets the first that names its route, else the first
    /// that names none. What no script takes is a failure, save `GET /v1/models`, `/health` and `/version`
    /// and `POST /tokenize`, which are answered as vLLM does.
    pub async fn start(scripts: impl IntoIterator<Item = Script>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let record = Record {
            scripts: scripts.into_iter().collect(),
            models: vec!["gpt-oss-20b".to_owned()],
            window: 131_072,
            ..Record::default()
        };
        let shared = Arc::new(Shared {
            authority: address.to_string(),
            record: Mutex::new(record),
            changed: watch::Sender::new(()),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Self { address, shared, accepting }
    }

    /// Answers every request with this script.
    pub async fn always(script: Script) -> Self {
        let fake = Self::start([]).await;
        fake.otherwise(script);
        fake
    }

    /// Answers each request with what `model` makes of its body.
    pub async fn thinking(model: impl Fn(&Value) -> Script + Send + 'static) -> Self {
        let fake = Self::start([]).await;
        fake.shared.change(|record| record.model = Some(Model(Box::new(model))));
        fake
    }

    /// Answers what no script takes with this one.
    pub fn otherwise(&self, script: Script) {
        self.shared.change(|record| record.otherwise = Some(script));
    }

    /// Adds a script behind those there are.
    pub fn then(&self, script: Script) {
        self.shared.change(|record| record.scripts.push_back(script));
    }

    /// The models that `GET /v1/models` lists (by default `gpt-oss-20b`).
    pub fn serve_models(&self, models: &[&str]) {
        self.shared.change(|record| record.models = models.iter().map(|&model| model.to_owned()).collect());
    }

    /// The window (`max_model_len`) that `GET /v1/models` gives each model (by default 131072).
    pub fn serve_window(&self, tokens: u64) {
        self.shared.change(|record| record.window = tokens);
    }

    /// Answers questions about itself as another server than vLLM does: `owner` is the `owned_by` of its
    /// models, `page` its page about itself.
    pub fn pose_as(&self, owner: &'static str, page: Value) {
        self.shared.change(|record| record.posing = Some((owner, page)));
    }

    /// Sets the count of `POST /tokenize` (by default a quarter of the body's bytes).
    pub fn count_as(&self, tokens: u64) {
        self.shared.change(|record| record.count = Some(tokens));
    }

    /// The unscripted questions about itself that have come.
    pub fn probes(&self) -> Vec<Seen> {
        self.shared.record().probes.clone()
    }

    /// A request whose body the peer breaks off is no failure.
    pub fn allow_cut_requests(&self) {
        self.shared.change(|record| record.cut_requests_allowed = true);
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `http://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The requests that have come, without unscripted probes.
    pub fn requests(&self) -> Vec<Seen> {
        self.shared.record().seen.clone()
    }

    /// The number of accepted connections.
    pub fn connections(&self) -> usize {
        self.shared.record().connections
    }

    /// Takes the faults found until now. They no longer fail the test.
    pub fn take_problems(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.record().problems)
    }

    /// Waits until this many requests have come whole.
    pub async fn wait_for_requests(&self, count: usize) -> Vec<Seen> {
        self.wait(&format!("{count} requests"), |record| record.seen.len() >= count).await;
        self.requests()
    }

    /// Waits until at least this many bytes of the reply to request `index` were written to the socket.
    pub async fn wait_until_sent(&self, index: usize, bytes: usize) {
        let enough = |record: &Record| record.seen.get(index).is_some_and(|seen| seen.sent >= bytes);
        self.wait(&format!("{bytes} bytes of reply {index}"), enough).await;
    }

    /// Waits until a piece of a request's body to this route has come.
    pub async fn wait_until_begun(&self, target: &str) {
        let what = format!("a request to {target} to begin");
        self.wait(&what, |record| record.begun.iter().any(|begun| begun == target)).await;
    }

    /// Waits until this many requests were broken off by the peer, or were no HTTP.
    pub async fn wait_for_cut_requests(&self, count: usize) {
        self.wait(&format!("{count} requests to be cut"), |record| record.cut_requests >= count).await;
    }

    /// Waits until the peer has closed the connection of request `index`, and says when.
    pub async fn wait_until_closed(&self, index: usize) -> Instant {
        let closed = |record: &Record| record.seen.get(index).and_then(|seen| seen.closed_at);
        self.wait(&format!("the peer of request {index} to hang up"), |record| closed(record).is_some())
            .await;
        closed(&self.shared.record()).unwrap()
    }

    async fn wait(&self, what: &str, done: impl Fn(&Record) -> bool) {
        let mut changed = self.shared.changed.subscribe();
        let waiting = async {
            while !done(&self.shared.record()) {
                changed.changed().await.unwrap();
            }
        };
        let came = tokio::time::timeout(DEADLINE, waiting).await.is_ok();
        assert!(came, "waited {DEADLINE:?} for {what}: {:#?}", self.shared.record());
    }

    /// Fails the test when a request was bad or a script was left over; so does dropping the fake.
    pub fn finish(self) {
        drop(self);
    }
}

impl Drop for FakeVllm {
    fn drop(&mut self) {
        self.accepting.abort();
        if std::thread::panicking() {
            return;
        }
        let record = self.shared.record();
        let (problems, left) = (record.problems.clone(), record.scripts.len());
        drop(record);
        assert!(problems.is_empty(), "the fake vLLM got bad requests:\n{}", problems.join("\n"));
        assert_eq!(left, 0, "scripts that no request took");
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    // Dropped with this task, which ends the connections too.
    let mut connections = JoinSet::new();
    while let Ok((socket, _)) = listener.accept().await {
        let number = shared.change(|record| {
            record.connections += 1;
            record.connections - 1
        });
        connections.spawn(Connection::new(socket, number, Arc::clone(&shared)).run());
    }
}

/// How a reply left its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// It can take another request.
    KeepAlive,
    /// Close it (FIN).
    Close,
    /// Reset it (RST).
    Reset,
    /// The peer hung up.
    PeerGone,
}

struct Connection {
    number: usize,
    incoming: Incoming<OwnedReadHalf>,
    outgoing: OwnedWriteHalf,
    shared: Arc<Shared>,
    /// The last request that came on it.
    last: Option<usize>,
}

impl Connection {
    fn new(socket: TcpStream, number: usize, shared: Arc<Shared>) -> Self {
        socket.set_nodelay(true).unwrap();
        let (read, outgoing) = socket.into_split();
        Self { number, incoming: Incoming::new(read), outgoing, shared, last: None }
    }

    async fn run(mut self) {
        loop {
            let seen = match self.read_request().await {
                Ok(Some(seen)) => seen,
                Ok(None) => return self.record_close(),
                Err(problem) => {
                    self.record_close();
                    return self.judge_cut(&problem);
                }
            };
            let (index, script) = self.admit(seen);
            let after = self.answer(index, &script).await;
            if let Some(index) = index {
                self.shared.change(|record| {
                    if after != After::PeerGone {
                        record.seen[index].answered_at = Some(Instant::now());
                    }
                });
            }
            match after {
                After::KeepAlive => {}
                After::Close => return self.close().await,
                After::Reset => return self.reset().await,
                After::PeerGone => return self.record_close(),
            }
        }
    }

    async fn read_request(&mut self) -> Result<Option<Seen>, String> {
        let Some(head) = self.incoming.head().await? else { return Ok(None) };
        let (method, target) = request_rules::request_line(&head.start)?;
        let mut framing = head.framing(Framing::Done)?;
        let mut body = Vec::new();
        while let Some(piece) = self.incoming.piece(&mut framing).await? {
            if body.is_empty() {
                self.shared.change(|record| record.begun.push(target.clone()));
            }
            body.extend(piece);
        }
        if !self.incoming.ahead().is_empty() {
            let ahead = String::from_utf8_lossy(self.incoming.ahead());
            self.shared.problem(&head.start, &format!("bytes after the body: {ahead:?}"));
        }
        Ok(Some(Seen {
            connection: self.number,
            method,
            target,
            headers: head.headers,
            body,
            at: Instant::now(),
            sent: 0,
            answered_at: None,
            closed_at: None,
        }))
    }

    /// Judges a whole request, files it, and finds its script. A probe that is not scripted is not filed.
    fn admit(&mut self, seen: Seen) -> (Option<usize>, Script) {
        let name = format!("{} {}", seen.method, seen.target);
        for problem in request_rules::header_problems(&seen.headers, &self.shared.authority) {
            self.shared.problem(&name, &problem);
        }
        let shared = Arc::clone(&self.shared);
        shared.change(|record| {
            let Some(script) = record.take_script(&seen) else {
                if let Some(probe) = record.probe(&seen) {
                    record.probes.push(seen);
                    return (None, probe);
                }
                record.problems.push(format!("{name}: no script takes this request"));
                record.seen.push(seen);
                self.last = Some(record.seen.len() - 1);
                return (self.last, Script::json(500, &json!({"error": {"message": "unscripted request"}})));
            };
            record.judge(&name, &seen, &script);
            record.seen.push(seen);
            self.last = Some(record.seen.len() - 1);
            (self.last, script)
        })
    }

    /// Plays the script while it watches the peer: closing, or sending more than a request, is noticed at
    /// once.
    async fn answer(&mut self, index: Option<usize>, script: &Script) -> After {
        let Self { incoming, outgoing, shared, .. } = self;
        let sent = |bytes: usize| {
            if let Some(index) = index {
                shared.change(|record| record.seen[index].sent += bytes);
            }
        };
        tokio::select! {
            biased;
            () = peer_gone(incoming, shared) => After::PeerGone,
            after = play(outgoing, script, sent) => after,
        }
    }

    fn record_close(&self) {
        if let Some(last) = self.last {
            self.shared.change(|record| record.seen[last].closed_at = Some(Instant::now()));
        }
    }

    fn judge_cut(&self, problem: &str) {
        self.shared.change(|record| {
            record.cut_requests += 1;
            if !record.cut_requests_allowed {
                record.problems.push(format!("connection {}: {problem}", self.number));
            }
        });
    }

    /// FIN, then waits for the peer to close too.
    async fn close(mut self) {
        if self.outgoing.shutdown().await.is_ok() {
            while matches!(self.incoming.fill().await, Ok(1..)) {}
        }
        self.record_close();
    }

    /// RST, once the peer had time to read what was sent before it.
    async fn reset(self) {
        testing::waiting::delay(Duration::from_millis(20)).await;
        self.outgoing.as_ref().set_zero_linger().unwrap();
        // Dropping the half would send FIN first.
        self.outgoing.forget();
    }
}

impl Record {
    fn take_script(&mut self, seen: &Seen) -> Option<Script> {
        let named = |script: &Script| {
            script.route.as_ref().is_some_and(|(method, path)| *method == seen.method && path == seen.path())
        };
        let open = |script: &Script| script.route.is_none() && !PROBES.contains(&seen.path());
        let position = self.scripts.iter().position(named).or_else(|| self.scripts.iter().position(open));
        match position {
            Some(position) => self.scripts.remove(position),
            None if self.model.is_some() && !PROBES.contains(&seen.path()) => {
                self.model.as_ref().map(|Model(model)| model(&seen.json()))
            }
            None => self.otherwise.clone().filter(|script| named(script) || open(script)),
        }
    }

    fn judge(&mut self, name: &str, seen: &Seen, script: &Script) {
        let mut problems: Vec<String> =
            request_rules::authorization_problem(&seen.headers, &script.authorization).into_iter().collect();
        if script.checked && seen.method == "POST" && seen.path() == "/v1/chat/completions" {
            problems.extend(request_rules::chat_problems(&seen.headers, &seen.body));
        }
        self.problems.extend(problems.into_iter().map(|problem| format!("{name}: {problem}")));
    }

    fn probe(&self, seen: &Seen) -> Option<Script> {
        if (seen.method == "POST") != ["/tokenize", "/apply-template"].contains(&seen.path()) {
            return None;
        }
        match seen.path() {
            "/props" | "/get_server_info" | "/api/version" | "/api/ps" if self.posing.is_some() => {
                self.posing.as_ref().map(|(_, page)| Script::json(200, page))
            }
            "/version" | "/tokenize" if self.posing.is_some() => Some(not_found()),
            // llama.cpp's routes.
            "/props" | "/apply-template" => Some(not_found()),
            "/tokenize" => {
                let count = self.count.unwrap_or(seen.body.len() as u64 / 4);
                Some(Script::json(
                    200,
                    &json!({"count": count, "max_model_len": self.window, "tokens": [1], "token_strs": null}),
                ))
            }
            "/health" => Some(Script::whole(200, "", "")),
            "/version" => Some(Script::json(200, &json!({"version": "0.32.0"}))),
            "/v1/models" => {
                let owner = self.posing.as_ref().map_or("vllm", |(owner, _)| owner);
                let model = |id| {
                    json!({"id": id, "object": "model", "created": 1, "owned_by": owner, "root": id,
                                        "parent": null, "max_model_len": self.window, "permission": []})
                };
                let data: Vec<Value> = self.models.iter().map(model).collect();
                Some(Script::json(200, &json!({"object": "list", "data": data})))
            }
            _ => None,
        }
    }
}

fn not_found() -> Script {
    Script::json(404, &json!({"detail": "Not Found"}))
}

async fn peer_gone(incoming: &mut Incoming<OwnedReadHalf>, shared: &Shared) {
    while let Ok(1..) = incoming.fill().await {
        shared.problem("a request under way", "bytes beyond its body");
    }
}

/// Does on the wire what the script says.
pub(crate) async fn play(outgoing: &mut OwnedWriteHalf, script: &Script, sent: impl Fn(usize)) -> After {
    for step in script.steps() {
        match step {
            Step::Wait(span) => testing::waiting::delay(span).await,
            Step::Send(bytes) => {
                if outgoing.write_all(&bytes).await.is_err() {
                    return After::PeerGone;
                }
                sent(bytes.len());
            }
            Step::Repeat(bytes) => {
                while outgoing.write_all(&bytes).await.is_ok() {
                    sent(bytes.len());
                }
                return After::PeerGone;
            }
            Step::Fail(Fault::Stall) => std::future::pending().await,
            Step::Fail(Fault::Close) => return After::Close,
            Step::Fail(Fault::Reset) => return After::Reset,
        }
    }
    if script.keeps_alive() { After::KeepAlive } else { After::Close }
}
