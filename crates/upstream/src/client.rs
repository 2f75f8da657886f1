//! One model server: sends requests, hands back answers, and says in clear words what went wrong on the way.
//!
//! Written on hyper's connections (`pool`), because this is the path of every request and a general client costs as much
//! again as all the rest (see docs/performance.md). `hyper` stays inside this file, `pool.rs` and `body.rs`. Dropping an [`UpstreamResponse`], or the
//! future that makes one, closes the connection, and vLLM stops working on the request within a quarter of a second.
//! Called by `relay` and `server`.

use std::sync::{Mutex, PoisonError, RwLock};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::FutureExt as _;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use hyper_rustls::ConfigBuilderExt as _;
use hyper_util::client::legacy::connect::HttpConnector;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::body::{Incoming, Outgoing};
use super::config::{Address, OwnWire, UpstreamConfig};
use super::failure::{Tier, UpstreamError};
use super::gate::Place;
use super::health::Probes;
use super::learned_rules::LearnedRules;
use super::pool::{Pool, Unanswered};
use super::state::UpstreamState;
use super::window::Windows;
use http_client::chain;
use wire::Target;
use wire::units::Secret;
use wire::{ErrorCode, Object};

/// How much of an error's body is read, and how long it may take. Some servers echo the whole request in it.
const EXCERPT: usize = 1 << 20;
const EXCERPT_WITHIN: Duration = Duration::from_secs(3);

/// How long the end of a body is waited for once the JSON object in it is complete.
const END_WITHIN: Duration = Duration::from_secs(2);

/// How long a probe may hold up a request.
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);
/// So long a server whose probe failed is not asked for its version again.
const PROBE_AGAIN: Duration = Duration::from_secs(10);
/// After so long a silence the system asks whether the other end of a connection is still there.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// The header that counts the respools that a request has come through.
static HOPS: HeaderName = HeaderName::from_static("x-respool-hops");

/// How many respools a request has come through.
pub fn hops(headers: &HeaderMap) -> u32 {
    let hops = headers.get(&HOPS).and_then(|hops| hops.to_str().ok());
    hops.and_then(|hops| hops.parse().ok()).unwrap_or_default()
}

/// The headers of a question of respool's own that a client's request leads to: nothing of the client's but its key, and the number of
/// respools that the request has come through.
pub fn question_headers(headers: &HeaderMap) -> HeaderMap {
    let kept = [header::AUTHORIZATION, HOPS.clone()];
    kept.into_iter().filter_map(|name| headers.get(&name).cloned().map(|value| (name, value))).collect()
}

/// Headers that belong to one connection, not to the message (RFC 9110, section 7.6.1).
static HOP_BY_HOP: [HeaderName; 9] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// One upstream of the configuration.
#[derive(Debug)]
pub struct Upstream {
    /// Its name in logs and errors.
    pub name: String,
    /// Its health, load and models.
    pub state: UpstreamState,
    /// The APIs that it answers itself.
    pub wires: Vec<OwnWire>,
    address: Address,
    authorization: Option<HeaderValue>,
    /// The client's own does not go along, even where there is no other.
    client_keys_end_here: bool,
    timeout: Option<Duration>,
    pool: Pool,
    target: RwLock<Target>,
    probed: OnceCell<()>,
    /// When the last probe failed.
    probe_failed: Mutex<Option<Instant>>,
    pub(super) windows: Windows,
    pub(super) learned_rules: LearnedRules,
    pub(super) probes: Probes,
}

/// A request to an upstream.
#[derive(Debug)]
pub struct Call {
    /// Its method.
    pub method: Method,
    /// Path and query as the client wrote them, for example `/v1/chat/completions`.
    pub path_and_query: String,
    /// The client's headers; hop-by-hop ones and the client's key (when the upstream has its own) are left out here.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Outgoing,
    /// True to pass an encoded answer on as it is; false to get it decoded.
    pub verbatim: bool,
}

/// An upstream's answer: its head, and its body as it comes.
#[derive(Debug)]
pub struct UpstreamResponse {
    upstream: String,
    status: StatusCode,
    headers: HeaderMap,
    body: Incoming,
    /// What was read ahead.
    first: Option<Bytes>,
    deadline: Option<Instant>,
    place: Option<Place>,
}

impl Upstream {
    /// A client for this upstream.
    ///
    /// # Errors
    /// When the key cannot stand in a header, or TLS cannot be set up.
    pub fn new(config: &UpstreamConfig) -> Result<Self, String> {
        let authorization = config.api_key.as_ref().map(|key| bearer(key, &config.name)).transpose()?;
        Ok(Self {
            name: config.name.clone(),
            state: UpstreamState::new(config),
            wires: config.wires.clone(),
            address: config.url.clone(),
            authorization,
            client_keys_end_here: config.client_keys_end_here,
            timeout: config.timeout,
            pool: pool(&config.url).map_err(|error| format!("upstream `{}`: {error}", config.name))?,
            target: RwLock::default(),
            probed: OnceCell::new(),
            probe_failed: Mutex::default(),
            windows: Windows::default(),
            learned_rules: LearnedRules::default(),
            probes: Probes::default(),
        })
    }

    /// A client for this upstream, which was configured otherwise before: under the same name at the same address the requests that
    /// are at work there count.
    ///
    /// # Errors
    /// As [`Upstream::new`].
    pub fn succeeding(before: &Self, config: &UpstreamConfig) -> Result<Self, String> {
        let new = Self::new(config)?;
        let is_same = before.name == config.name && before.address == config.url;
        let state = if is_same { UpstreamState::succeeding(&before.state, config) } else { new.state };
        Ok(Self { state, ..new })
    }

    /// Where it is.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// What is known of this upstream.
    pub fn target(&self) -> Target {
        self.target.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Lets `learn` add to what is known.
    pub fn learn<T>(&self, learn: impl FnOnce(&mut Target) -> T) -> T {
        learn(&mut self.target.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sends a request and waits for the head of its answer, whatever its status.
    ///
    /// # Errors
    /// When no answer comes.
    pub async fn send(&self, call: Call) -> Result<UpstreamResponse, UpstreamError> {
        let deadline = self.timeout.map(|timeout| Instant::now() + timeout);
        let mut request = http::Request::new(call.body);
        *request.uri_mut() = self.uri(&call.path_and_query)?;
        *request.method_mut() = call.method;
        *request.headers_mut() = self.outgoing(call.headers);
        let sent = self.pool.request(request);
        let sent = match deadline {
            None => sent.await,
            Some(at) => tokio::time::timeout_at(at, sent).await.map_err(|_| self.timed_out("answer"))?,
        };
        let (head, body) = sent.map_err(|error| self.unanswered(&error))?.into_parts();
        let mut headers = head.headers;
        let body = if call.verbatim { Incoming::plain(body) } else { Incoming::decoded(body, &mut headers) };
        let (upstream, status) = (self.name.clone(), head.status);
        Ok(UpstreamResponse { upstream, status, headers, body, first: None, deadline, place: None })
    }

    /// Asks once for vLLM's version; others wait meanwhile, later calls return at once. A server that does not say is not
    /// asked again; one that does not answer is asked again after `PROBE_AGAIN`, so that its requests do not wait in single file.
    pub async fn probe_version(&self) {
        let failed = || self.probe_failed.lock().unwrap_or_else(PoisonError::into_inner);
        let ask = async {
            if self.target().version.is_some() {
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
            let version =
                object.and_then(|object| object.string("version")).and_then(|text| parse_version(&text));
            self.learn(|target| target.version = target.version.or(version));
            Ok(())
        };
        let _: Result<&(), ()> = self.probed.get_or_try_init(|| ask).await;
    }

    /// Takes the version from a reply's `system_fingerprint` (`"vllm-0.32.0-d13fe2ed"`, as JSON text; since 0.22).
    pub fn learn_fingerprint(&self, fingerprint: &str) {
        let Some(text) = fingerprint.trim_matches('"').strip_prefix("vllm-") else { return };
        if let Some(version) = parse_version(text).filter(|version| self.target().version != Some(*version)) {
            let known = self.learn(|target| target.version.replace(version));
            if known.is_some() {
                self.forget_rules();
            }
        }
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
            path_and_query: path.to_owned(),
            headers,
            body: Outgoing::empty(),
            verbatim: false,
        };
        let answer = self.send(call).await?;
        let status = answer.status();
        Ok((status, answer.whole(4 << 20).await?))
    }

    /// Path and query only: the pool knows the host.
    fn uri(&self, path_and_query: &str) -> Result<Uri, UpstreamError> {
        let Some(url) = self.address.endpoint(path_and_query) else {
            return Err(UpstreamError::broken(
                &self.name,
                500,
                ErrorCode::ReplayNotStarted,
                "is a replay that was not started",
                "",
            ));
        };
        let rest = url.split_once("://").map_or(&*url, |(_, rest)| rest);
        let path = rest.find('/').map_or("/", |at| &rest[at..]);
        PathAndQuery::try_from(path).map(Uri::from).map_err(|error| {
            UpstreamError::broken(
                &self.name,
                400,
                ErrorCode::BadPath,
                "cannot be asked for this path",
                error.to_string(),
            )
        })
    }

    fn outgoing(&self, mut headers: HeaderMap) -> HeaderMap {
        strip_hop_by_hop(&mut headers);
        let hops = hops(&headers).saturating_add(1);
        headers.insert(HOPS.clone(), HeaderValue::from(hops));
        headers.remove(header::HOST);
        headers.remove(header::CONTENT_LENGTH);
        headers.remove(header::EXPECT);
        if self.authorization.is_some() || self.client_keys_end_here {
            // The client's own credentials are not this server's business.
            for name in ["authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie"] {
                headers.remove(name);
            }
        }
        headers.extend(self.authorization.clone().map(|key| (header::AUTHORIZATION, key)));
        headers
    }

    fn timed_out(&self, what: &str) -> UpstreamError {
        let what = format!("did not {what} within its `timeout`");
        UpstreamError::broken(&self.name, 504, ErrorCode::UpstreamTimeout, &what, "")
    }

    fn unanswered(&self, error: &Unanswered) -> UpstreamError {
        let details = match error {
            Unanswered::Connect(error) => chain(error.as_ref()),
            Unanswered::Exchange(error) => chain(error),
        };
        let lower = details.to_lowercase();
        let last = details.rsplit(": ").next().unwrap_or_default();
        let broken =
            |status, code, what: &str| UpstreamError::broken(&self.name, status, code, what, details.clone());
        let at = self.address.endpoint("").unwrap_or_default();
        if lower.contains("dns error") || lower.contains("failed to lookup") {
            return broken(
                503,
                ErrorCode::UpstreamDns,
                &format!("has a host name that cannot be resolved: {at}"),
            );
        }
        if lower.contains("certificate")
            || lower.contains("tls")
            || lower.contains("handshake")
            || lower.contains("corrupt message")
        {
            return broken(
                502,
                ErrorCode::UpstreamTls,
                &format!("cannot be reached over TLS at {at}: {last}"),
            );
        }
        if matches!(error, Unanswered::Connect(_)) {
            return broken(
                503,
                ErrorCode::UpstreamUnreachable,
                &format!("cannot be reached at {at}: {last}"),
            );
        }
        if matches!(error, Unanswered::Exchange(error) if error.is_user()) {
            return broken(
                400,
                ErrorCode::IncompleteBody,
                &format!("was not sent the whole request body: {last}"),
            );
        }
        if matches!(error, Unanswered::Exchange(error) if error.is_parse()) {
            return broken(
                502,
                ErrorCode::UpstreamNotHttp,
                &format!("answers with something that is not HTTP/1.1: {last}"),
            );
        }
        // Not a byte came back: as when a server restarts behind its load balancer.
        let closed = broken(502, ErrorCode::UpstreamClosed, "closed the connection without answering");
        UpstreamError { tier: Tier::Transient, ..closed }
    }
}

impl UpstreamResponse {
    /// The upstream's name.
    pub fn upstream(&self) -> &str {
        &self.upstream
    }

    /// The status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The headers.
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// The media type without parameters, in lower case; empty when missing.
    pub fn media_type(&self) -> String {
        let value =
            self.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
    }

    /// Lets go of the headers. They share the buffer that they were read into, and a stream may last for an hour.
    pub fn release_headers(&mut self) {
        self.headers = HeaderMap::new();
    }

    /// Holds a place at the upstream until the answer is read or dropped.
    #[must_use]
    pub fn holding(self, place: Option<Place>) -> Self {
        Self { place, ..self }
    }

    /// Waits until the body has begun, or is known to be empty.
    ///
    /// # Errors
    /// When it breaks off before.
    pub async fn begun(&mut self) -> Result<(), UpstreamError> {
        self.first = self.piece().await?;
        Ok(())
    }

    /// The next piece of the body as it arrives; `None` at its end. Safe to cancel.
    pub async fn piece(&mut self) -> Result<Option<Bytes>, UpstreamError> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        let piece = match self.deadline {
            None => Ok(self.body.piece().await),
            // The clock first: an upstream that never pauses would not let it have its turn.
            Some(at) if Instant::now() >= at => Err(()),
            Some(at) => tokio::time::timeout_at(at, self.body.piece()).await.map_err(drop),
        };
        let late = || {
            let what = "did not finish within its `timeout`";
            UpstreamError::broken(&self.upstream, 504, ErrorCode::UpstreamTimeout, what, "")
        };
        piece.map_err(|()| late())?.map_err(|fault| fault.as_upstream_error(&self.upstream))
    }

    /// A piece that has arrived already; `None` when there is none yet.
    pub fn ready_piece(&mut self) -> Option<Result<Option<Bytes>, UpstreamError>> {
        self.piece().now_or_never()
    }

    /// The beginning of an error's body, as text; waits no longer than a few seconds for it.
    pub async fn excerpt(mut self) -> String {
        let mut body = BytesMut::new();
        let read = async {
            while let Ok(Some(piece)) = self.piece().await {
                body.extend_from_slice(&piece);
                if body.len() > EXCERPT {
                    break;
                }
            }
        };
        // An error whose text does not come is an error all the same.
        let _ = tokio::time::timeout(EXCERPT_WITHIN, read).await;
        body.truncate(EXCERPT);
        String::from_utf8_lossy(&body).into_owned()
    }

    /// The whole body, of at most `limit` bytes.
    ///
    /// # Errors
    /// When it breaks off, cannot be decoded, or is longer.
    pub async fn whole(self, limit: usize) -> Result<Bytes, UpstreamError> {
        self.gather(limit, false).await
    }

    /// The same of a body that should be one JSON object: once that is complete, the end of the body is waited for only
    /// `END_WITHIN`, and does not have to be clean. Some servers never send it.
    ///
    /// # Errors
    /// As [`UpstreamResponse::whole`].
    pub async fn whole_json(self, limit: usize) -> Result<Bytes, UpstreamError> {
        self.gather(limit, true).await
    }

    async fn gather(mut self, limit: usize, is_json: bool) -> Result<Bytes, UpstreamError> {
        let Some(first) = self.piece().await? else { return Ok(Bytes::new()) };
        // Most bodies come in one piece, which is not copied.
        let (mut body, mut end_at) = (Gathered::One(first), None);
        loop {
            if body.as_slice().len() > limit {
                return Err(self.too_long(limit));
            }
            let piece = match self.ready_piece() {
                Some(piece) => piece,
                None if is_json && is_object(body.as_slice()) => {
                    let end_at = *end_at.get_or_insert_with(|| Instant::now() + END_WITHIN);
                    tokio::time::timeout_at(end_at, self.piece()).await.unwrap_or(Ok(None))
                }
                None => self.piece().await,
            };
            match piece {
                Ok(Some(piece)) => body.push(&piece),
                Ok(None) => return Ok(body.into_bytes()),
                // What could not be decoded may be wrong in itself.
                Err(error)
                    if is_json
                        && error.error.code == Some(ErrorCode::UpstreamBrokeOff)
                        && is_object(body.as_slice()) =>
                {
                    return Ok(body.into_bytes());
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The head, the body and its place, for passing on; hop-by-hop headers are left out.
    pub fn into_parts(self) -> (StatusCode, HeaderMap, Incoming, Option<Place>) {
        let mut headers = self.headers;
        strip_hop_by_hop(&mut headers);
        (self.status, headers, self.body, self.place)
    }

    fn too_long(&self, limit: usize) -> UpstreamError {
        let what = format!("sent a reply of more than {limit} bytes (`limits.max_body`)");
        UpstreamError::broken(&self.upstream, 502, ErrorCode::UpstreamReplyTooLong, &what, "")
    }
}

/// Takes out the headers of the one connection, and those that `connection` names.
/// A body in one piece, or copied together from several.
enum Gathered {
    One(Bytes),
    Several(BytesMut),
}

impl Gathered {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::One(bytes) => bytes,
            Self::Several(bytes) => bytes,
        }
    }

    fn push(&mut self, piece: &[u8]) {
        if let Self::One(first) = self {
            *self = Self::Several(BytesMut::from(&first[..]));
        }
        if let Self::Several(bytes) = self {
            bytes.extend_from_slice(piece);
        }
    }

    fn into_bytes(self) -> Bytes {
        match self {
            Self::One(bytes) => bytes,
            Self::Several(bytes) => bytes.freeze(),
        }
    }
}

/// True when a body is one complete JSON object.
fn is_object(body: &[u8]) -> bool {
    let text = body.trim_ascii_end();
    text.ends_with(b"}")
        && std::str::from_utf8(text)
            .is_ok_and(|text| Object::parse(text.trim_start_matches('\u{feff}')).is_ok())
}

fn strip_hop_by_hop(headers: &mut HeaderMap) {
    // Most messages have none, and to look is cheaper than to remove nine that are not there.
    if !headers.keys().any(|name| HOP_BY_HOP.contains(name)) {
        return;
    }
    let named: Vec<String> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(',').map(|name| name.trim().to_ascii_lowercase()))
        .collect();
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
    for name in named {
        headers.remove(name.as_str());
    }
}

fn pool(address: &Address) -> Result<Pool, String> {
    let mut tcp = HttpConnector::new();
    tcp.set_nodelay(true);
    tcp.enforce_http(false);
    // A server that loses its power, or a connection that a router forgets, ends a long wait for a reply too.
    tcp.set_keepalive(Some(KEEPALIVE));
    tcp.set_keepalive_interval(Some(KEEPALIVE / 2));
    tcp.set_keepalive_retries(Some(4));
    let tls = hyper_rustls::HttpsConnectorBuilder::new();
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| format!("TLS cannot be set up: {error}"))?;
    let config = if address.is_tls() {
        let roots = builder.with_native_roots();
        roots
            .map_err(|error| format!("the system's certificates cannot be read: {error}"))?
            .with_no_client_auth()
    } else {
        builder.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth()
    };
    let connector = tls.with_tls_config(config).https_or_http().enable_http1().wrap_connector(tcp);
    let url = address.endpoint("").unwrap_or_else(|| "http://replay.invalid".to_owned());
    Pool::new(connector, Uri::try_from(url).map_err(|error| format!("it has no usable address: {error}"))?)
}

fn bearer(key: &Secret, name: &str) -> Result<HeaderValue, String> {
    let value = HeaderValue::from_str(&format!("Bearer {}", key.expose()));
    let mut value = value
        .map_err(|_| format!("the key of upstream `{name}` holds characters that no header can carry"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// `0.32.0rc1` as (0, 32).
fn parse_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}
