//! Keeps one MCP server up: starts it, lists its tools, lists them again when they change, and restarts it
//! when it dies. A server behind a URL has no process whose end would be noticed, so it is pinged.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use reqwest::redirect::Policy;
use rmcp::model::{ClientCapabilities, ClientConfig, ClientRequest, Implementation, PingRequest, Tool};
use rmcp::service::{NotificationContext, Peer, RoleClient, RunningService};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::{ServiceError, ServiceExt as _};
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, ChildStderr};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};

use super::super::config::{McpConfig, hint_of_arguments};
use super::super::environment::Passing;
use super::super::process::{Group, new_command};
use super::super::programs::leads_to_writable;
use super::AbortOnDrop;
use super::result::root_cause;
use super::stray::{StrayOutput, WatchedLines, WatchedReplies};
use http_client::client_for;

/// The time to start. A program from a registry may have to be downloaded first.
const START: Duration = Duration::from_mins(1);
const LIST: Duration = Duration::from_secs(30);
/// How long a program whose connection has ended has to end, and its last words to arrive.
const EXPLAINS_WITHIN: Duration = Duration::from_millis(500);
/// The longest wait for the reason why a program has ended.
pub(super) const REASON_WITHIN: Duration = Duration::from_millis(1_200);
/// The pause before the next start doubles from the first to the second.
const PAUSE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_mins(1));
/// The longest pause for a server behind a URL: to connect again is cheap.
const LONGEST_PAUSE_OF_URL: Duration = Duration::from_secs(5);
/// The interval of pings to a server behind a URL.
const PING_EVERY: Duration = Duration::from_secs(5);
/// The timeout of a ping. A server that is busy with a call may answer late and is not down.
const PING: Duration = Duration::from_secs(2);
/// A server that ran this long is started again at once.
const STABLE: Duration = Duration::from_secs(30);
/// The most bytes that are kept of a server's standard error, for the log.
const COMPLAINT: usize = 8_000;
/// The most of them that a reason quotes: the last lines of a traceback.
const QUOTED: usize = 500;
const REDIRECTS: usize = 10;
/// The reason of a closed connection, before the exit status of its program is known.
const CLOSED: &str = "it closed the connection";

/// The state of a server.
#[derive(Clone)]
pub(super) enum State {
    Starting,
    Up(Up),
    /// The connection has ended, and it is not known yet why; the last list of its tools.
    Ended(Arc<Vec<Tool>>),
    /// The server is down; the last list of its tools.
    Down(Problem, Arc<Vec<Tool>>),
}

impl State {
    /// Returns the tools that the server listed last.
    pub(super) fn tools(&self) -> Arc<Vec<Tool>> {
        match self {
            Self::Starting => Arc::default(),
            Self::Up(Up { tools, .. }) | Self::Ended(tools) | Self::Down(_, tools) => Arc::clone(tools),
        }
    }

    /// Returns why the server is down, once that is known.
    pub(super) fn problem_text(&self) -> Option<&str> {
        match self {
            Self::Down(problem, _) => Some(&problem.text),
            _ => None,
        }
    }
}

/// A connection and the tools at its other end.
#[derive(Clone)]
pub(super) struct Up {
    pub(super) peer: Peer<RoleClient>,
    pub(super) tools: Arc<Vec<Tool>>,
    /// Notes output of the program that answers nothing; `None` for a server behind a URL.
    pub(super) stray: Option<Arc<StrayOutput>>,
}

/// The reason why a server is not up.
#[derive(Clone, Debug)]
pub(super) struct Problem {
    pub(super) text: String,
    /// Whether a restart cannot help.
    pub(super) is_final: bool,
    /// The end of the program's standard error, for the log.
    complaint: Option<String>,
}

impl Problem {
    fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_final: false, complaint: None }
    }

    fn final_one(text: impl Into<String>) -> Self {
        Self { is_final: true, ..Self::new(text) }
    }
}

struct Connection {
    service: RunningService<RoleClient, Listener>,
    changed: Arc<Notify>,
    process: Option<Process>,
}

struct Process {
    child: Child,
    complaint: Arc<Mutex<Vec<u8>>>,
    group: Group,
    reader: AbortOnDrop,
    stray: Arc<StrayOutput>,
}

/// Receives the notifications of a server.
struct Listener(Arc<Notify>);

impl rmcp::ClientHandler for Listener {
    fn get_info(&self) -> ClientConfig {
        ClientConfig::new(
            ClientCapabilities::default(),
            Implementation::new("respool", env!("CARGO_PKG_VERSION")),
        )
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.0.notify_one();
    }
}

/// Keeps a server up for as long as this runs. `doubt` signals that a call could not reach it; the state is
/// then sent again, changed or not.
pub(super) async fn supervise_server(
    name: String,
    config: McpConfig,
    state: watch::Sender<State>,
    doubt: Arc<Notify>,
) {
    let longest = if is_url(&config) { LONGEST_PAUSE_OF_URL } else { PAUSE.1 };
    let mut pause = PAUSE.0;
    loop {
        let begun = Instant::now();
        let connected = timeout(START, open_connection(&name, &config)).await;
        let problem =
            match connected.unwrap_or_else(|_| Err(Problem::new("it did not start within a minute"))) {
                Ok(connection) => serve_connection(connection, &state, &doubt).await,
                Err(problem) => problem,
            };
        let is_known = matches!(&*state.borrow(), State::Down(known, _) if known.text == problem.text);
        if !is_known {
            let stderr = problem.complaint.as_deref();
            tracing::warn!(server = name, problem = problem.text, stderr, "an MCP server is down");
        }
        state.send_modify(|state| *state = State::Down(problem, state.tools()));
        if begun.elapsed() > STABLE {
            pause = PAUSE.0;
        }
        sleep(pause).await;
        pause = (pause * 2).min(longest);
    }
}

/// Returns true if the server is reached over HTTP.
pub(super) fn is_url(config: &McpConfig) -> bool {
    config.command.is_none() && config.url.is_some()
}

/// Serves until the connection ends and returns the reason.
async fn serve_connection(connection: Connection, state: &watch::Sender<State>, doubt: &Notify) -> Problem {
    let Connection { service, changed, mut process } = connection;
    let reason = serve_until_ended(service, &changed, &mut process, state, doubt).await;
    match (reason, process) {
        (Ok(reason), Some(process)) => process.explain_end(&reason).await,
        (Ok(reason), None) => Problem::new(reason),
        (Err(problem), _) => problem,
    }
}

/// Serves until the connection ends, and returns what this end of it saw.
///
/// # Errors
/// Why the server cannot be used, although it is connected.
async fn serve_until_ended(
    service: RunningService<RoleClient, Listener>,
    changed: &Notify,
    process: &mut Option<Process>,
    state: &watch::Sender<State>,
    doubt: &Notify,
) -> Result<String, Problem> {
    let is_pinged = process.is_none();
    let stray = process.as_ref().map(|process| Arc::clone(&process.stray));
    let peer = service.peer().clone();
    let ended = service.waiting();
    tokio::pin!(ended);
    loop {
        match timeout(LIST, peer.list_all_tools()).await {
            Ok(Ok(tools)) => {
                let (peer, tools, stray) = (peer.clone(), Arc::new(tools), stray.clone());
                state.send_replace(State::Up(Up { peer, tools, stray }))
            }
            Ok(Err(ServiceError::TransportClosed)) => return Ok(CLOSED.to_owned()),
            Ok(Err(ServiceError::UnexpectedResponse)) => {
                return Err(Problem::new(
                    "its answer to `tools/list` is not a list of tools: each needs a `name`, and an `inputSchema` that is an object",
                ));
            }
            Ok(Err(error)) => {
                return Err(Problem::new(format!("it does not list its tools: {}", root_cause(&error))));
            }
            Err(_) => return Err(Problem::new("it does not list its tools within 30 s")),
        };
        tokio::select! {
            _ = &mut ended => {
                note_end(state);
                return Ok(CLOSED.to_owned());
            }
            status = ended_process(process) => {
                note_end(state);
                return Ok(format!("it ended ({status})"));
            }
            problem = wait_until_lost(&peer, state, doubt), if is_pinged => return Err(problem),
            // Many changes in a row count as one.
            () = changed.notified() => sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Keeps calls from a server whose connection has ended, before it is known why.
fn note_end(state: &watch::Sender<State>) {
    state.send_modify(|state| *state = State::Ended(state.tools()));
}

/// Waits until a server behind a URL no longer answers pings, and returns the reason.
async fn wait_until_lost(peer: &Peer<RoleClient>, state: &watch::Sender<State>, doubt: &Notify) -> Problem {
    loop {
        let is_doubted = tokio::select! {
            () = doubt.notified() => true,
            () = sleep(PING_EVERY) => false,
        };
        if let Err(problem) = ping_server(peer).await {
            return problem;
        }
        if is_doubted {
            state.send_modify(|_| {});
        }
    }
}

/// Pings a server. Any answer of its own counts, even an error: it may not know the method.
///
/// # Errors
/// When the message cannot be sent, or something in front of the server refuses it.
pub(super) async fn ping_server(peer: &Peer<RoleClient>) -> Result<(), Problem> {
    let request = ClientRequest::PingRequest(PingRequest::default());
    match timeout(PING, peer.send_request(request)).await {
        Ok(Err(error @ (ServiceError::TransportSend(_) | ServiceError::TransportClosed))) => {
            Err(Problem::new(format!("it does not answer: {}", root_cause(&error))))
        }
        _ => Ok(()),
    }
}

async fn ended_process(process: &mut Option<Process>) -> String {
    let Some(process) = process else { return std::future::pending().await };
    process.child.wait().await.map_or_else(|error| error.to_string(), |status| status.to_string())
}

async fn open_connection(name: &str, config: &McpConfig) -> Result<Connection, Problem> {
    match (&config.command, &config.url) {
        (Some(program), _) => connect_program(name, program, config).await,
        (None, Some(url)) => connect_url(url, config).await,
        (None, None) => Err(Problem::final_one("it has neither a command nor a url")),
    }
}

async fn connect_program(name: &str, program: &str, config: &McpConfig) -> Result<Connection, Problem> {
    // At each start: a command may have made what was not there before.
    let started = config.find_program(program).map_err(Problem::final_one)?;
    let cannot = |error: std::io::Error| {
        let todo = if error.kind() == ErrorKind::PermissionDenied {
            Some(format!("run `chmod +x {program}`, or name its interpreter in `command` and it in `args`"))
        } else {
            hint_of_arguments(program)
        };
        let todo = todo.map(|todo| format!("; {todo}")).unwrap_or_default();
        Problem {
            is_final: matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied),
            ..Problem::new(format!("{program} cannot be started: {error}{todo}"))
        }
    };
    let (program, arguments) = started.line.split_first().ok_or_else(|| Problem::new("it has no program"))?;
    let mut command = new_command(program, &Passing::default()).map_err(cannot)?;
    // `uvx` starts programs from below `XDG_CACHE_HOME`.
    let passed = command.as_std().get_envs().filter_map(|(name, value)| Some((name, value?)));
    let unsafe_names: Vec<OsString> = passed
        .filter(|(name, value)| *name != "HOME" && leads_to_writable(value, &config.held))
        .map(|(name, _)| name.to_owned())
        .collect();
    for name in unsafe_names {
        command.env_remove(name);
    }
    let own = config.env.iter().map(|(name, value)| (name, value.expose_secret()));
    command.args(arguments).current_dir(&started.directory).envs(started.variables).envs(own);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(cannot)?;
    let group = Group::from_child(&child);
    let (Some(input), Some(output), Some(errors)) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Err(Problem::new("it has no standard input and output"));
    };
    let complaint = Arc::default();
    let reader = AbortOnDrop(tokio::spawn(keep_tail(name.to_owned(), errors, Arc::clone(&complaint))));
    let stray = StrayOutput::new(name);
    let process = Process { child, complaint, group, reader, stray: Arc::clone(&stray) };
    let output = WatchedLines { output, stray: Arc::clone(&stray), line: Vec::new() };
    let inner = AsyncRwTransport::new_client(output, input);
    let transport = WatchedReplies { inner, stray, open: HashSet::new() };
    let changed = Arc::new(Notify::new());
    match Listener(Arc::clone(&changed)).serve(transport).await {
        Ok(service) => Ok(Connection { service, changed, process: Some(process) }),
        Err(error) => {
            let problem = process.explain_end(&root_cause(&error)).await;
            Err(Problem { text: format!("it did not start: {}", problem.text), ..problem })
        }
    }
}

async fn connect_url(url: &str, config: &McpConfig) -> Result<Connection, Problem> {
    let mut headers = HashMap::new();
    for (name, value) in &config.headers {
        let wrong = |()| Problem::final_one(format!("the header {name} cannot be sent"));
        let value = HeaderValue::from_str(value.expose_secret()).map_err(|_| ()).map_err(wrong)?;
        headers.insert(HeaderName::try_from(name).map_err(|_| ()).map_err(wrong)?, value);
    }
    let settings = StreamableHttpClientTransportConfig::with_uri(url).custom_headers(headers);
    // The crate's own client panics where there are no certificates.
    let builder = reqwest::Client::builder().pool_max_idle_per_host(0).redirect(same_origin());
    let client = client_for(url, builder);
    let client = client.map_err(|error| Problem::final_one(error.to_string()))?;
    let transport = StreamableHttpClientTransport::with_client(client, settings);
    let changed = Arc::new(Notify::new());
    let service = Listener(Arc::clone(&changed)).serve(transport).await;
    let service =
        service.map_err(|error| Problem::new(format!("{url} cannot be used: {}", root_cause(&error))))?;
    Ok(Connection { service, changed, process: None })
}

/// Follows redirects to another path of the same server, with the same method. No other host may get the
/// headers.
fn same_origin() -> Policy {
    Policy::custom(|attempt| {
        let is_same =
            attempt.previous().first().is_some_and(|first| first.origin() == attempt.url().origin());
        match attempt.status().as_u16() {
            307 | 308 if is_same && attempt.previous().len() <= REDIRECTS => attempt.follow(),
            _ => attempt.stop(),
        }
    })
}

impl Process {
    /// Explains why its connection has ended, with the end of its standard error. `reason` is what the other
    /// end of the connection saw.
    async fn explain_end(self, reason: &str) -> Problem {
        let Self { mut child, complaint, group, mut reader, .. } = self;
        let status = timeout(EXPLAINS_WITHIN, child.wait()).await.ok().and_then(Result::ok);
        // What it started may keep its standard error open.
        drop(group);
        // It has said all, but that may not have been read yet.
        let _ = timeout(EXPLAINS_WITHIN, &mut reader.0).await;
        let why = status.map_or_else(|| reason.to_owned(), |status| format!("it ended ({status})"));
        let complaint = complaint.lock().map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned());
        let complaint = complaint.ok().filter(|text| !text.is_empty());
        let said = complaint.as_deref().map(|text| format!("; it said: {}", last_words(text)));
        Problem { complaint, ..Problem::new(format!("{why}{}", said.unwrap_or_default())) }
    }
}

/// Returns the end of a program's standard error on one line.
fn last_words(complaint: &str) -> String {
    // Python underlines parts of lines.
    let words = complaint.split_whitespace().filter(|word| !word.trim_matches(['^', '~']).is_empty());
    let line = words.collect::<Vec<_>>().join(" ");
    match line.ceil_char_boundary(line.len().saturating_sub(QUOTED)) {
        0 => line,
        start => format!("… {}", &line[start..]),
    }
}

async fn keep_tail(server: String, mut errors: ChildStderr, tail: Arc<Mutex<Vec<u8>>>) {
    let mut buffer = [0; 1024];
    while let Ok(count @ 1..) = errors.read(&mut buffer).await {
        let stderr = String::from_utf8_lossy(&buffer[..count]);
        tracing::debug!(server, stderr = stderr.trim_end(), "an MCP server wrote to its standard error");
        if let Ok(mut tail) = tail.lock() {
            tail.extend_from_slice(&buffer[..count]);
            let surplus = tail.len().saturating_sub(COMPLAINT);
            tail.drain(..surplus);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_quotes_the_last_lines() {
        assert_eq!(
            last_words("Traceback:\n  BOOKS['x']\n  ~~~~~^^^^^\nKeyError: 'x'"),
            "Traceback: BOOKS['x'] KeyError: 'x'"
        );
        let long = last_words(&format!("{}\nKeyError: 'büm'", "ü".repeat(QUOTED)));
        assert!(long.starts_with("… ü") && long.ends_with("ü KeyError: 'büm'"), "{long}");
        assert!(long.len() <= QUOTED + "… ".len(), "{}", long.len());
    }
}
