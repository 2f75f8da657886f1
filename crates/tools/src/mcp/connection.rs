//! Keeps one MCP server up: starts it, lists its tools, lists them again when they change, and restarts it
//! when it dies. A server behind a URL has no process whose end would be noticed, so it is pinged.

use std::collections::HashMap;
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
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::{ServiceError, ServiceExt as _};
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, ChildStderr};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};

use super::super::config::{McpConfig, hint_of_arguments};
use super::super::environment::Passing;
use super::super::process::{Group, new_command};
use super::super::programs::{Started, leads_to_writable};
use super::AbortOnDrop;
use super::result::root_cause;
use http_client::client_for;

/// The time to start. A program from a registry may have to be downloaded first.
const START: Duration = Duration::from_mins(1);
const LIST: Duration = Duration::from_secs(30);
/// How long a program that did not start has to end and to say why.
const EXPLAINS_WITHIN: Duration = Duration::from_millis(500);
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
/// The most bytes that are kept of a server's standard error.
const COMPLAINT: usize = 2_000;
const REDIRECTS: usize = 10;

/// The state of a server.
#[derive(Clone)]
pub(super) enum State {
    Starting,
    Up(Up),
    /// The server is down; the last list of its tools.
    Down(Problem, Arc<Vec<Tool>>),
}

impl State {
    /// Returns the tools that the server listed last.
    pub(super) fn tools(&self) -> Arc<Vec<Tool>> {
        match self {
            Self::Starting => Arc::default(),
            Self::Up(Up { tools, .. }) | Self::Down(_, tools) => Arc::clone(tools),
        }
    }
}

/// A connection and the tools at its other end.
#[derive(Clone)]
pub(super) struct Up {
    pub(super) peer: Peer<RoleClient>,
    pub(super) tools: Arc<Vec<Tool>>,
}

/// The reason why a server is not up.
#[derive(Clone, Debug)]
pub(super) struct Problem {
    pub(super) text: String,
    /// Whether a restart cannot help.
    pub(super) is_final: bool,
}

impl Problem {
    fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_final: false }
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
    _group: Group,
    reader: AbortOnDrop,
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
        let connected = timeout(START, open_connection(&config)).await;
        let problem =
            match connected.unwrap_or_else(|_| Err(Problem::new("it did not start within a minute"))) {
                Ok(connection) => serve_connection(connection, &state, &doubt).await,
                Err(problem) => problem,
            };
        let is_known = matches!(&*state.borrow(), State::Down(known, _) if known.text == problem.text);
        if !is_known {
            tracing::warn!(server = name, problem = problem.text, "an MCP server is down");
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
    let is_pinged = process.is_none();
    let peer = service.peer().clone();
    let ended = service.waiting();
    tokio::pin!(ended);
    loop {
        match timeout(LIST, peer.list_all_tools()).await {
            Ok(Ok(tools)) => state.send_replace(State::Up(Up { peer: peer.clone(), tools: Arc::new(tools) })),
            Ok(Err(error)) => {
                return Problem::new(format!("it does not list its tools: {}", root_cause(&error)));
            }
            Err(_) => return Problem::new("it does not list its tools within 30 s"),
        };
        tokio::select! {
            _ = &mut ended => return Problem::new("it closed the connection"),
            status = ended_process(&mut process) => return Problem::new(format!("it ended ({status})")),
            problem = wait_until_lost(&peer, state, doubt), if is_pinged => return problem,
            // Many changes in a row count as one.
            () = changed.notified() => sleep(Duration::from_millis(100)).await,
        }
    }
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

async fn open_connection(config: &McpConfig) -> Result<Connection, Problem> {
    match (&config.command, &config.url) {
        (Some(program), _) => connect_program(program, config).await,
        (None, Some(url)) => connect_url(url, config).await,
        (None, None) => Err(Problem { text: "it has neither a command nor a url".into(), is_final: true }),
    }
}

async fn connect_program(program: &str, config: &McpConfig) -> Result<Connection, Problem> {
    // At each start: a command may have made what was not there before.
    let started = Started::find(&[&[program.to_owned()], &config.args[..]].concat(), &config.held);
    let started = started.map_err(|text| Problem { text, is_final: true })?;
    let cannot = |error: std::io::Error| {
        let todo = if error.kind() == ErrorKind::PermissionDenied {
            Some(format!("run `chmod +x {program}`, or name its interpreter in `command` and it in `args`"))
        } else {
            hint_of_arguments(program)
        };
        let todo = todo.map(|todo| format!("; {todo}")).unwrap_or_default();
        Problem {
            text: format!("{program} cannot be started: {error}{todo}"),
            is_final: matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied),
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
    let reader = AbortOnDrop(tokio::spawn(keep_tail(errors, Arc::clone(&complaint))));
    let mut process = Process { child, complaint, _group: group, reader };
    let changed = Arc::new(Notify::new());
    match Listener(Arc::clone(&changed)).serve((output, input)).await {
        Ok(service) => Ok(Connection { service, changed, process: Some(process) }),
        Err(error) => Err(process.explain_failure(&root_cause(&error)).await),
    }
}

async fn connect_url(url: &str, config: &McpConfig) -> Result<Connection, Problem> {
    let mut headers = HashMap::new();
    for (name, value) in &config.headers {
        let wrong = |()| Problem { text: format!("the header {name} cannot be sent"), is_final: true };
        let value = HeaderValue::from_str(value.expose_secret()).map_err(|_| ()).map_err(wrong)?;
        headers.insert(HeaderName::try_from(name).map_err(|_| ()).map_err(wrong)?, value);
    }
    let settings = StreamableHttpClientTransportConfig::with_uri(url).custom_headers(headers);
    // The crate's own client panics where there are no certificates.
    let builder = reqwest::Client::builder().pool_max_idle_per_host(0).redirect(same_origin());
    let client = client_for(url, builder);
    let client = client.map_err(|error| Problem { text: error.to_string(), is_final: true })?;
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
    /// Explains why it did not start, with the last lines of its standard error.
    async fn explain_failure(&mut self, error: &str) -> Problem {
        let status = timeout(EXPLAINS_WITHIN, self.child.wait()).await.ok().and_then(Result::ok);
        // A program that has ended has said all, but that may not have been read yet.
        if status.is_some() {
            let _ = timeout(EXPLAINS_WITHIN, &mut self.reader.0).await;
        }
        let why = status.map_or_else(|| error.to_owned(), |status| format!("it ended ({status})"));
        let said = self.complaint.lock().map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let said = said.unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
        let said = if said.is_empty() { said } else { format!("; it said: {said}") };
        Problem::new(format!("it did not start: {why}{said}"))
    }
}

async fn keep_tail(mut errors: ChildStderr, tail: Arc<Mutex<Vec<u8>>>) {
    let mut buffer = [0; 1024];
    while let Ok(count @ 1..) = errors.read(&mut buffer).await {
        if let Ok(mut tail) = tail.lock() {
            tail.extend_from_slice(&buffer[..count]);
            let surplus = tail.len().saturating_sub(COMPLAINT);
            tail.drain(..surplus);
        }
    }
}
