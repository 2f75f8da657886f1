//! One model server: sends requests, returns answers, and describes failures in clear words.
//!
//! Written on hyper's connections (`pool`), because this is the path of every request and a general client
//! costs as much again as all the rest (see docs/performance.md). `hyper` stays inside this file, `pool.rs`,
//! `connector.rs` and the bodies. Dropping an [`UpstreamResponse`], or the future that makes one, closes the
//! connection, and vLLM stops working on the request within a quarter of a second. Called by `relay` and
//! `server`.

use std::borrow::Cow;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use hyper::body::Body as _;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::body::Incoming;
use super::config::{Address, OwnWire, UpstreamConfig};
use super::connector::new_connector;
use super::failure::UpstreamError;
use super::headers::{HOPS, correct_length, next_hop, remove_headers, strip_hop_by_hop};
use super::model_facts::KnownModels;
use super::outgoing::Outgoing;
use super::pool::Pool;
use super::probes::Probes;
use super::queue::QueueClient;
use super::response::{UpstreamResponse, UpstreamResult};
use super::router_headers::RouterHeaders;
use super::server::Server;
use super::server_rules::ServerRules;
use super::setup_error::{SetupError, SetupProblem};
use super::state::UpstreamState;
use wire::ServerTraits;
use wire::units::{Secret, format_duration};
use wire::{ErrorCode, Object};

/// The longest time that a probe may delay a request.
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);
/// The time after a failed probe in which a server is not asked for its version again.
const PROBE_AGAIN: Duration = Duration::from_secs(10);

/// The path of nearly all requests, which is parsed once for each upstream.
pub const CHAT_PATH: &str = "/v1/chat/completions";

/// The beginning of vLLM's fingerprints, before its version.
const VLLM: &str = "vllm-";

/// One upstream of the configuration.
#[derive(Debug)]
pub struct Upstream {
    /// Its name in logs and errors.
    pub name: String,
    /// The name, shared with its answers.
    shared_name: Arc<str>,
    /// Its health, load and models.
    pub state: UpstreamState,
    /// The APIs that it answers itself.
    pub wires: Vec<OwnWire>,
    address: Address,
    /// The path of its chat completions; `None` for a replay that was not started.
    chat_path: Option<PathAndQuery>,
    pub(super) authorization: Option<HeaderValue>,
    /// Whether the client's own key stays here, even if the upstream has none.
    pub(super) client_keys_end_here: bool,
    timeout: Option<Duration>,
    /// The headers that it gets if it is a router.
    pub(super) router: RouterHeaders,
    pool: Pool,
    target: RwLock<ServerTraits>,
    probed: OnceCell<()>,
    /// When the last probe failed.
    probe_failed: Mutex<Option<Instant>>,
    /// The facts that are known about its models.
    pub models: KnownModels,
    /// The rules that its refusals have taught.
    pub rules: ServerRules,
    pub(super) probes: Probes,
}

/// A request to an upstream.
#[derive(Debug)]
pub struct Call {
    /// Its method.
    pub method: Method,
    /// Path and query as the client wrote them, for example `/v1/chat/completions`.
    pub path_and_query: Cow<'static, str>,
    /// The client's headers; hop-by-hop ones and the client's key (when the upstream has its own) are left
    /// out here.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Outgoing,
    /// True to pass an encoded answer on as it is; false to get it decoded.
    pub verbatim: bool,
}

impl Upstream {
    /// A client for this upstream.
    ///
    /// # Errors
    /// When the key is not a valid header value, or TLS cannot be set up.
    pub fn new(config: &UpstreamConfig) -> Result<Self, SetupError> {
        let failed = |problem| SetupError { upstream: config.name.clone(), problem };
        let authorization = config.api_key.as_ref().map(bearer_header).transpose().map_err(failed)?;
        let shared_name: Arc<str> = config.name.as_str().into();
        Ok(Self {
            name: config.name.clone(),
            rules: ServerRules::new(Arc::clone(&shared_name)),
            shared_name,
            state: UpstreamState::new(config),
            wires: config.wires.clone(),
            address: config.url.clone(),
            chat_path: config.url.endpoint_path(CHAT_PATH).and_then(Result::ok),
            authorization,
            client_keys_end_here: config.client_keys_end_here,
            timeout: config.timeout,
            router: RouterHeaders::new(config).map_err(failed)?,
            pool: new_pool(&config.url).map_err(failed)?,
            target: RwLock::default(),
            probed: OnceCell::new(),
            probe_failed: Mutex::default(),
            models: KnownModels::default(),
            probes: Probes::default(),
        })
    }

    /// A client for an upstream whose configuration has changed. Requests at work there count where name and
    /// address are the same.
    ///
    /// # Errors
    /// Those of [`Upstream::new`].
    pub fn succeeding(before: &Self, config: &UpstreamConfig) -> Result<Self, SetupError> {
        let new = Self::new(config)?;
        let is_same = before.name == config.name && before.address == config.url;
        let state = if is_same { UpstreamState::succeeding(&before.state, config) } else { new.state };
        Ok(Self { state, ..new })
    }

    /// Returns its address.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Returns its name, for those that keep it.
    pub fn shared_name(&self) -> &Arc<str> {
        &self.shared_name
    }

    /// Adds the headers that a router reads, except for those that the client has sent itself.
    pub fn add_router_headers(&self, headers: &mut HeaderMap, who: QueueClient) {
        self.router.add_to(headers, who);
    }

    /// The facts that are known about this upstream.
    pub fn server_traits(&self) -> ServerTraits {
        self.target.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Lets `learn` add to what is known.
    pub fn update_traits<T>(&self, learn: impl FnOnce(&mut ServerTraits) -> T) -> T {
        learn(&mut self.target.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sends a request and waits for the head of its answer, whatever its status.
    ///
    /// # Errors
    /// When no answer comes.
    pub async fn send(&self, call: Call) -> UpstreamResult<Box<UpstreamResponse>> {
        let deadline = self.timeout.map(|timeout| Instant::now() + timeout);
        let length = call.body.size_hint().exact();
        let mut request = http::Request::new(call.body);
        *request.uri_mut() = self.request_uri(&call.path_and_query)?;
        *request.method_mut() = call.method;
        *request.headers_mut() = self.outgoing_headers(call.headers, length);
        // Pinned here: a future that is handed on is moved each time.
        let mut sent = pin!(self.pool.send_request(request));
        let sent = match deadline {
            None => sent.await,
            Some(at) => tokio::time::timeout_at(at, sent.as_mut()).await.map_err(|_| self.timeout_error())?,
        };
        let (head, body) = sent
            .map_err(|error| {
                error.as_upstream_error(&self.name, &self.address.endpoint_url("").unwrap_or_default())
            })?
            .into_parts();
        let mut headers = head.headers;
        let body = if call.verbatim { Incoming::plain(body) } else { Incoming::decode(body, &mut headers) };
        let (upstream, status) = (Arc::clone(&self.shared_name), head.status);
        Ok(Box::new(UpstreamResponse { upstream, status, headers, body, first: None, deadline, place: None }))
    }

    /// Asks once for vLLM's version; concurrent calls wait, later calls return at once. A server without a
    /// version is not asked again; one that does not answer is asked again after `PROBE_AGAIN`, so that its
    /// requests do not wait one by one.
    pub async fn probe_version(&self) {
        let failed = || self.probe_failed.lock().unwrap_or_else(PoisonError::into_inner);
        let ask = async {
            if self.server_traits().version.is_some() {
                return Ok(());
            }
            if failed().is_some_and(|at| at.elapsed() < PROBE_AGAIN) {
                return Err(());
            }
            let asked =
                tokio::time::timeout(PROBE_TIMEOUT, self.get_json("/version", HeaderMap::new())).await;
            let Ok(Ok((_, body))) = asked else {
                *failed() = Some(Instant::now());
                return Err(());
            };
            let object = std::str::from_utf8(&body).ok().and_then(|text| Object::parse(text).ok());
            if let Some(text) = object.and_then(|object| object.string("version")) {
                self.learn_fingerprint(&format!("{VLLM}{text}"));
            }
            Ok(())
        };
        let _: Result<&(), ()> = self.probed.get_or_try_init(|| ask).await;
    }

    /// Takes the version from a reply's `system_fingerprint`, as JSON text: `"vllm-0.32.0-d13fe2ed"` (since
    /// 0.22), or llama.cpp's `"b11434-1f2e3d4"`.
    pub fn learn_fingerprint(&self, fingerprint: &str) {
        let fingerprint = fingerprint.trim_matches('"');
        if is_llama_build(fingerprint) {
            return self.rules.note_server(&format!("{} {fingerprint}", Server::LlamaCpp.name()));
        }
        // What stands after a further `-` is no part of the version.
        let text = fingerprint.strip_prefix(VLLM).and_then(|text| text.split('-').next());
        let Some((text, version)) = text.and_then(|text| Some((text, parse_version(text)?))) else { return };
        if self.server_traits().version != Some(version) {
            self.update_traits(|target| target.version = Some(version));
        }
        self.rules.note_server(&format!("vllm {text}"));
    }

    /// Asks for a small JSON document; `headers` go along.
    ///
    /// # Errors
    /// When no answer comes.
    pub async fn get_json(
        &self,
        path: &str,
        headers: HeaderMap,
    ) -> Result<(StatusCode, Bytes), UpstreamError> {
        let call = Call {
            method: Method::GET,
            path_and_query: Cow::Owned(path.to_owned()),
            headers,
            body: Outgoing::empty(),
            verbatim: false,
        };
        let mut answer = self.send(call).await.map_err(|error| *error)?;
        let status = answer.status();
        Ok((status, answer.read_whole(4 << 20).await.map_err(|error| *error)?))
    }

    /// Path and query only: the pool knows the host.
    fn request_uri(&self, path_and_query: &str) -> Result<Uri, UpstreamError> {
        if let Some(path) = self.chat_path.as_ref().filter(|_| path_and_query == CHAT_PATH) {
            return Ok(path.clone().into());
        }
        let Some(path) = self.address.endpoint_path(path_and_query) else {
            return Err(UpstreamError::new_broken(
                &self.name,
                500,
                ErrorCode::ReplayNotStarted,
                "is a replay that was not started",
                "",
            ));
        };
        path.map(Uri::from).map_err(|error| {
            UpstreamError::new_broken(
                &self.name,
                400,
                ErrorCode::BadPath,
                "cannot be asked for this path",
                error.to_string(),
            )
        })
    }

    /// Returns true for an error that says that the key of the configuration, and no client's, is refused: no
    /// request can succeed here until the owner corrects it.
    pub fn is_own_key_refused(&self, error: &UpstreamError) -> bool {
        self.sends_no_client_keys() && error.error.code == Some(ErrorCode::UpstreamCredentialsRefused)
    }

    fn sends_no_client_keys(&self) -> bool {
        self.authorization.is_some() || self.client_keys_end_here
    }

    /// `length`: that of the body, in bytes, where it is known.
    fn outgoing_headers(&self, mut headers: HeaderMap, length: Option<u64>) -> HeaderMap {
        strip_hop_by_hop(&mut headers);
        headers.insert(HOPS.clone(), next_hop(&headers));
        remove_headers(&mut headers, |name| matches!(name, "host" | "expect"));
        correct_length(&mut headers, length);
        if self.sends_no_client_keys() {
            // This server must not see the client's own credentials.
            for name in ["authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie"] {
                headers.remove(name);
            }
        }
        headers.extend(self.authorization.clone().map(|key| (header::AUTHORIZATION, key)));
        headers
    }

    fn timeout_error(&self) -> UpstreamError {
        let limit = self.timeout.map(|limit| format!(" ({})", format_duration(limit))).unwrap_or_default();
        let what = format!("did not answer within its `timeout`{limit}");
        UpstreamError::new_broken(&self.name, 504, ErrorCode::UpstreamTimeout, &what, "")
    }
}

fn new_pool(address: &Address) -> Result<Pool, SetupProblem> {
    let connector = new_connector(address.is_tls())?;
    let url = address.endpoint_url("").unwrap_or_else(|| "http://replay.invalid".to_owned());
    Pool::new(connector, Uri::try_from(url).map_err(SetupProblem::Address)?)
}

fn bearer_header(key: &Secret) -> Result<HeaderValue, SetupProblem> {
    let value = HeaderValue::from_str(&format!("Bearer {}", key.expose_secret()));
    let mut value = value.map_err(|_| SetupProblem::Key)?;
    value.set_sensitive(true);
    Ok(value)
}

/// Returns true for the build of a llama.cpp: `b`, a number, `-` and a commit.
fn is_llama_build(text: &str) -> bool {
    let number = text.strip_prefix('b').and_then(|rest| rest.split_once('-'));
    number.is_some_and(|(number, _)| number.parse::<u32>().is_ok())
}

/// `0.32.0rc1` as (0, 32).
fn parse_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use adapt::{Rule, RuleSet};

    fn check(fingerprints: [(&str, usize); 4]) {
        let upstream = Upstream::new(&UpstreamConfig::default()).unwrap();
        upstream.learn_fingerprint(fingerprints[0].0);
        upstream.rules.learn("m", &RuleSet::from([Rule::ToolPattern]));
        for (fingerprint, rules) in fingerprints {
            upstream.learn_fingerprint(fingerprint);
            assert_eq!(upstream.rules.get("m").len(), rules, "{fingerprint}");
        }
    }

    #[test]
    fn another_build_forgets_the_rules() {
        let same = r#""b11434-1f2e3d4""#;
        check([(same, 1), (r#""fp_ollama""#, 1), (r#""vllm-own-name""#, 1), (r#""b11500-5a6b7c8""#, 0)]);
        let same = r#""vllm-0.32.0-d13fe2ed""#;
        check([
            (same, 1),
            (r#""vllm-0.32.0-0b5e77aa""#, 1),
            (r#""fp_1""#, 1),
            (r#""vllm-0.32.1-d13fe2ed""#, 0),
        ]);
    }
}
