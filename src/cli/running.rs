//! Asks the respool that runs with this configuration what it observes of its upstreams: `/ready` says it
//! to everybody.

use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use serde_json::{Value, json};

use super::say::say_on_stderr;
use server::Listen;
use settings::Settings;
use store::StoreError;

/// The file in the state directory that a server locks.
pub(super) const LOCK: &str = "serve.lock";

/// How long respool has to answer, which probes its upstreams first.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// How long a process on this machine has to accept a connection.
const CONNECTS_WITHIN: Duration = Duration::from_millis(500);
/// A request that has been in progress for longer is named, in seconds.
const LONG: u64 = 120;

/// An upstream as the running respool sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RunningUpstream {
    pub(super) name: String,
    is_ready: bool,
    /// The reason why it cannot be used.
    problem: Option<String>,
    circuit: String,
    in_flight: u64,
    /// How long the oldest of these has been in progress, in seconds.
    oldest: Option<u64>,
    /// How long it has sent nothing while it had requests, in seconds.
    silence: Option<u64>,
    queued: u64,
    recent_errors: Vec<String>,
}

/// Returns the upstreams of the respool that listens at this address; `None` if none answers.
pub(super) async fn ask_running(listen: &Listen) -> Option<Vec<RunningUpstream>> {
    let ready = ask_ready(listen).await?;
    ready["upstreams"].as_array()?.iter().map(RunningUpstream::read).collect()
}

/// Warns if the respool that uses this state directory runs and cannot keep its records: what a command reads
/// is not all then.
pub(super) async fn warn_of_unkept_records(settings: &Settings) {
    if let Some(problem) = unkept_records(settings).await {
        say_on_stderr(&problem);
    }
}

/// Says that only this node's requests are shown, because the database that has all cannot be read.
pub(super) fn say_shown_alone(error: &StoreError) {
    say_on_stderr(&format!("Shown are the requests of this node alone: {error}"));
}

/// Says why the respool that uses this state directory cannot keep its records, if one runs and cannot.
pub(super) async fn unkept_records(settings: &Settings) -> Option<String> {
    let listen = find_listener(settings);
    let problem = state_problem(&ask_ready(&listen).await?)?;
    Some(match settings.store.store.url {
        Some(_) => format!(
            "The respool that runs at {listen} cannot use the database now. Its newest records wait in {} and are not among those of all \
             nodes: {problem}",
            settings.store.state_dir.display()
        ),
        None => format!(
            "The respool that runs at {listen} cannot write its records, so the newest are missing here: {problem}"
        ),
    })
}

fn state_problem(ready: &Value) -> Option<String> {
    ready["state"]["problem"].as_str().map(str::to_owned)
}

/// Returns what the respool at this address says on `/ready`.
async fn ask_ready(listen: &Listen) -> Option<Value> {
    let client =
        reqwest::Client::builder().no_proxy().tls_certs_only([]).timeout(ANSWER_WITHIN).build().ok()?;
    let reply = client.get(format!("http://{}/ready", listen.local_address())).send().await.ok()?;
    serde_json::from_slice(&reply.bytes().await.ok()?).ok()
}

/// Returns the address of the respool that uses this state directory, or else the configured one.
pub(super) fn find_listener(settings: &Settings) -> Listen {
    let noted = std::fs::read_to_string(settings.store.state_dir.join(LOCK)).ok();
    let noted = noted.and_then(|text| text.parse::<Listen>().ok()).filter(is_answering);
    noted.unwrap_or_else(|| settings.server.listen.clone())
}

/// Returns true if something listens at this address.
pub(super) fn is_answering(listen: &Listen) -> bool {
    let mut addresses = listen.local_address().to_socket_addrs().into_iter().flatten();
    addresses.any(|address| TcpStream::connect_timeout(&address, CONNECTS_WITHIN).is_ok())
}

impl RunningUpstream {
    fn read(entry: &Value) -> Option<Self> {
        let codes = entry["recent_errors"].as_array().into_iter().flatten();
        Some(Self {
            name: entry["name"].as_str()?.to_owned(),
            is_ready: entry["ready"].as_bool()?,
            problem: entry["problem"].as_str().map(str::to_owned),
            circuit: entry["circuit"].as_str()?.to_owned(),
            in_flight: entry["in_flight"].as_u64()?,
            oldest: entry["oldest_s"].as_u64(),
            silence: entry["silent_s"].as_u64(),
            queued: entry["queued"].as_u64()?,
            recent_errors: codes.filter_map(Value::as_str).map(str::to_owned).collect(),
        })
    }

    /// Returns true if requests are not sent there for a moment.
    pub(super) fn is_failing(&self) -> bool {
        self.circuit != "closed"
    }

    /// Returns true if requests are sent there.
    pub(super) fn is_usable(&self) -> bool {
        self.is_ready && !self.is_failing()
    }

    pub(super) fn line(&self) -> String {
        let Self { name, is_ready, problem, in_flight, oldest, silence, queued, recent_errors, .. } = self;
        // A server that hangs answers no request and refuses none.
        let is_long = |seconds: &u64| *seconds >= LONG;
        let minutes = |seconds: u64| seconds / 60;
        let state = match (problem, silence.filter(is_long)) {
            (Some(problem), _) => problem.clone(),
            (None, Some(silence)) => {
                format!("it accepts requests and has sent nothing for {} min", minutes(silence))
            }
            (None, None) if *is_ready => "it works".to_owned(),
            (None, None) => "it cannot be used".to_owned(),
        };
        let errors = match recent_errors.as_slice() {
            [] => String::new(),
            codes => format!("; errors of the last 5 minutes: {}", codes.join(", ")),
        };
        let oldest = oldest.filter(is_long).map(minutes);
        let oldest = oldest.map(|minutes| format!(" (the oldest for {minutes} min)")).unwrap_or_default();
        format!(
            "{name}: the running respool says: {state}; {in_flight} in progress{oldest}, {queued} waiting{errors}"
        )
    }

    pub(super) fn json(&self) -> Value {
        let Self { problem, circuit, in_flight, oldest, silence, queued, recent_errors, .. } = self;
        json!({"problem": problem, "circuit": circuit, "in_flight": in_flight, "oldest_s": oldest, "silent_s": silence, "queued": queued, "recent_errors": recent_errors})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: in a total outage, whose servers list their models all the same, all upstreams were `ok`.
    #[tokio::test]
    async fn a_circuit_that_is_open_is_shown() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        // As every command does at its start.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address: Listen = listener.local_addr().unwrap().to_string().parse().unwrap();
        assert!(is_answering(&address) && !is_answering(&"127.0.0.1:1".parse().unwrap()));
        drop(listener.accept().await);
        let body = r#"{"ready":false,"upstreams":[{"name":"box","ready":false,"circuit":"open","in_flight":3,"oldest_s":450,
            "problem":"its requests fail","queued":2,"recent_errors":["upstream_error"],"models":null}]}"#;
        tokio::spawn(async move {
            let (mut socket, _) = listener.accept().await.unwrap();
            let _ = socket.read(&mut [0; 4096]).await.unwrap();
            let head = format!("HTTP/1.1 503 x\r\ncontent-length: {}\r\n\r\n", body.len());
            socket.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
        });
        let seen = ask_running(&address).await.unwrap();
        assert!(seen[0].is_failing() && !seen[0].is_usable());
        let expected = "box: the running respool says: its requests fail; 3 in progress (the oldest for 7 min), 2 waiting; \
                        errors of the last 5 minutes: upstream_error";
        assert_eq!(seen[0].line(), expected);
        let silent = RunningUpstream { problem: None, silence: Some(450), ..seen[0].clone() };
        let expected =
            "it accepts requests and has sent nothing for 7 min; 3 in progress (the oldest for 7 min)";
        assert!(silent.line().contains(expected), "{}", silent.line());
        let problem = Some("it rejects the key (HTTP 401)".to_owned());
        let refused = RunningUpstream { problem, circuit: "closed".into(), ..seen[0].clone() };
        let ready = json!({"state": {"ready": false, "problem": "the disk is full"}});
        assert_eq!(state_problem(&ready).as_deref(), Some("the disk is full"));
        assert_eq!(state_problem(&json!({"state": {"problem": null}})), None);
        assert!(refused.line().contains("says: it rejects the key (HTTP 401); 3 in"), "{}", refused.line());
    }
}
