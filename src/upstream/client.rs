//! One model server: sends requests, hands back answers, and says in clear words what went wrong on the way.
//!
//! `reqwest` stays inside this file. Dropping an [`Answer`], or the future that makes one, closes the connection, and vLLM
//! stops working on the request within a quarter of a second. Called by `relay` and `server`.

use std::error::Error as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::stream::BoxStream;
use futures::{FutureExt as _, Stream, StreamExt as _, TryStreamExt as _};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};

use super::config::{Address, UpstreamConfig};
use super::failure::UpstreamError;
use crate::translate::Target;
use crate::units::Secret;
use crate::wire::Object;

/// A server that does not even accept a connection for so long is not there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long an unused connection is kept: less than uvicorn's 5 s, so that none is used while vLLM is closing it.
const IDLE: Duration = Duration::from_secs(4);

/// How much of an error's body is read, and how long it may take. Some servers echo the whole request in it.
const EXCERPT: usize = 1 << 20;
const EXCERPT_WITHIN: Duration = Duration::from_secs(3);

/// How long a probe may hold up a request.
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);

/// Headers that belong to one connection, not to the message (RFC 9110, section 7.6.1).
const HOP_BY_HOP: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// One upstream of the configuration.
#[derive(Debug)]
pub struct Upstream {
    /// Its name in logs and errors.
    pub name: String,
    address: Address,
    authorization: Option<HeaderValue>,
    timeout: Option<Duration>,
    decoding: reqwest::Client,
    verbatim: reqwest::Client,
    target: RwLock<Target>,
    probed: AtomicBool,
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
    pub body: reqwest::Body,
    /// True to pass an encoded answer on as it is; false to get it decoded.
    pub verbatim: bool,
}

/// An upstream's answer: its head, and its body as it comes.
#[derive(Debug)]
pub struct Answer {
    upstream: String,
    response: reqwest::Response,
}

impl Call {
    /// For methods without a body.
    pub fn no_body() -> reqwest::Body {
        reqwest::Body::default()
    }

    /// A body that is passed on as it comes.
    pub fn streamed_body<E>(pieces: impl Stream<Item = Result<Bytes, E>> + Send + 'static) -> reqwest::Body
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>> + 'static,
    {
        reqwest::Body::wrap_stream(pieces)
    }
}

impl Upstream {
    /// A client for this upstream.
    ///
    /// # Errors
    /// When the key cannot stand in a header, or TLS cannot be set up.
    pub fn new(config: &UpstreamConfig) -> Result<Self, String> {
        let name = config.name.clone();
        let failed = |error: reqwest::Error| format!("upstream `{name}`: {}", chain(&error));
        let authorization = config.api_key.as_ref().map(|key| bearer(key, &config.name)).transpose()?;
        Ok(Self {
            name: config.name.clone(),
            address: config.url.clone(),
            authorization,
            timeout: config.timeout,
            decoding: builder().build().map_err(failed)?,
            verbatim: builder().no_gzip().no_brotli().no_deflate().no_zstd().build().map_err(failed)?,
            target: RwLock::default(),
            probed: AtomicBool::new(false),
        })
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
    pub async fn send(&self, call: Call) -> Result<Answer, UpstreamError> {
        let Some(url) = self.address.endpoint(&call.path_and_query) else {
            let what = "is a replay that was not started";
            return Err(UpstreamError::broken(&self.name, 500, "replay_not_started", what, ""));
        };
        let client = if call.verbatim { &self.verbatim } else { &self.decoding };
        let mut request =
            client.request(call.method, url).headers(self.outgoing(call.headers)).body(call.body);
        if let Some(timeout) = self.timeout {
            request = request.timeout(timeout);
        }
        let response = request.send().await.map_err(|error| self.unanswered(&error))?;
        Ok(Answer { upstream: self.name.clone(), response })
    }

    /// Asks once for vLLM's version; later calls return at once. A server that does not tell is not asked again.
    pub async fn probe_version(&self) {
        if self.probed.swap(true, Ordering::Relaxed) || self.target().version.is_some() {
            return;
        }
        let Ok(Ok((_, body))) = tokio::time::timeout(PROBE_TIMEOUT, self.get_json("/version")).await else {
            // It did not answer: a later request may ask again.
            self.probed.store(false, Ordering::Relaxed);
            return;
        };
        let object = std::str::from_utf8(&body).ok().and_then(|text| Object::parse(text).ok());
        let version =
            object.and_then(|object| object.string("version")).and_then(|text| parse_version(&text));
        self.learn(|target| target.version = target.version.or(version));
    }

    /// Takes the version from a reply's `system_fingerprint` (`"vllm-0.32.0-d13fe2ed"`, as JSON text; since 0.22).
    pub fn learn_fingerprint(&self, fingerprint: &str) {
        let Some(text) = fingerprint.trim_matches('"').strip_prefix("vllm-") else { return };
        if let Some(version) = parse_version(text).filter(|version| self.target().version != Some(*version)) {
            self.learn(|target| target.version = Some(version));
        }
    }

    /// Asks for a small JSON document, for checks and version probes; `None` when there is none.
    pub async fn get_json(&self, path: &str) -> Result<(StatusCode, Bytes), UpstreamError> {
        let call = Call {
            method: Method::GET,
            path_and_query: path.to_owned(),
            headers: HeaderMap::new(),
            body: reqwest::Body::default(),
            verbatim: false,
        };
        let answer = self.send(call).await?;
        let status = answer.status();
        Ok((status, answer.whole(4 << 20).await?))
    }

    /// Posts a JSON text and waits for the whole answer.
    pub async fn post_json(&self, path: &str, body: &str) -> Result<(StatusCode, Bytes), UpstreamError> {
        let json = HeaderValue::from_static("application/json");
        let call = Call {
            method: Method::POST,
            path_and_query: path.to_owned(),
            headers: HeaderMap::from_iter([(header::CONTENT_TYPE, json)]),
            body: body.to_owned().into(),
            verbatim: false,
        };
        let answer = self.send(call).await?;
        let status = answer.status();
        Ok((status, answer.whole(32 << 20).await?))
    }

    fn outgoing(&self, mut headers: HeaderMap) -> HeaderMap {
        strip_hop_by_hop(&mut headers);
        headers.remove(header::HOST);
        headers.remove(header::CONTENT_LENGTH);
        headers.remove(header::EXPECT);
        if let Some(authorization) = &self.authorization {
            headers.insert(header::AUTHORIZATION, authorization.clone());
        }
        headers
    }

    fn unanswered(&self, error: &reqwest::Error) -> UpstreamError {
        let details = chain(error);
        let lower = details.to_lowercase();
        let broken =
            |status, code, what: &str| UpstreamError::broken(&self.name, status, code, what, details.clone());
        let at = self.address.endpoint("").unwrap_or_default();
        if error.is_timeout() && !error.is_connect() {
            return broken(504, "upstream_timeout", "did not answer within its `timeout`");
        }
        if lower.contains("dns") || lower.contains("lookup") {
            return broken(503, "upstream_dns", &format!("has a host name that cannot be resolved: {at}"));
        }
        if lower.contains("certificate") || lower.contains("tls") || lower.contains("handshake") {
            return broken(
                502,
                "upstream_tls",
                &format!("cannot be reached over TLS at {at}: {}", last(error)),
            );
        }
        if error.is_timeout() {
            return broken(
                503,
                "upstream_unreachable",
                &format!("does not accept connections at {at} (timed out)"),
            );
        }
        if error.is_connect() {
            return broken(
                503,
                "upstream_unreachable",
                &format!("cannot be reached at {at}: {}", last(error)),
            );
        }
        broken(502, "upstream_closed", "closed the connection without answering")
    }
}

impl Answer {
    /// The status.
    pub fn status(&self) -> StatusCode {
        self.response.status()
    }

    /// The headers.
    pub fn headers(&self) -> &HeaderMap {
        self.response.headers()
    }

    /// The media type without parameters, in lower case; empty when missing.
    pub fn media_type(&self) -> String {
        let value = self
            .headers()
            .get(header::CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
    }

    /// The next piece of the body as it arrives; `None` at its end. Safe to cancel.
    pub async fn piece(&mut self) -> Result<Option<Bytes>, UpstreamError> {
        let piece = self.response.chunk().await;
        piece.map_err(|error| cut_off(&self.upstream, &error))
    }

    /// A piece that has arrived already; `None` when there is none yet.
    pub fn ready_piece(&mut self) -> Option<Result<Option<Bytes>, UpstreamError>> {
        self.piece().now_or_never()
    }

    /// The upstream's name.
    pub fn upstream(&self) -> &str {
        &self.upstream
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
    pub async fn whole(mut self, limit: usize) -> Result<Bytes, UpstreamError> {
        let Some(first) = self.piece().await? else { return Ok(Bytes::new()) };
        let Some(second) = self.piece().await? else { return self.within(first, limit) };
        let mut body = BytesMut::from(&first[..]);
        body.extend_from_slice(&second);
        while let Some(piece) = self.piece().await? {
            if body.len() + piece.len() > limit {
                return Err(self.too_long(limit));
            }
            body.extend_from_slice(&piece);
        }
        self.within(body.freeze(), limit)
    }

    /// The head and the body for passing on; hop-by-hop headers are left out.
    pub fn into_parts(self) -> (StatusCode, HeaderMap, BoxStream<'static, Result<Bytes, String>>) {
        let mut headers = self.response.headers().clone();
        strip_hop_by_hop(&mut headers);
        let status = self.response.status();
        let pieces = self
            .response
            .bytes_stream()
            .map_err(|error| format!("the upstream's reply broke off: {}", chain(&error)));
        (status, headers, pieces.boxed())
    }

    fn within(&self, body: Bytes, limit: usize) -> Result<Bytes, UpstreamError> {
        if body.len() > limit { Err(self.too_long(limit)) } else { Ok(body) }
    }

    fn too_long(&self, limit: usize) -> UpstreamError {
        let what = format!("sent a reply of more than {limit} bytes (`limits.max_body`)");
        UpstreamError::broken(&self.upstream, 502, "upstream_reply_too_long", &what, "")
    }
}

/// Takes out the headers of the one connection, and those that `connection` names.
fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<String> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(',').map(|name| name.trim().to_ascii_lowercase()))
        .collect();
    for name in HOP_BY_HOP.into_iter().chain(named.iter().map(String::as_str)) {
        headers.remove(name);
    }
}

fn builder() -> reqwest::ClientBuilder {
    // A proxy passes redirects on, and a chat request that is redirected points to a wrong `url`.
    reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_idle_timeout(IDLE)
        .tcp_nodelay(true)
        .no_proxy()
        .http1_only()
}

fn bearer(key: &Secret, name: &str) -> Result<HeaderValue, String> {
    let value = HeaderValue::from_str(&format!("Bearer {}", key.expose()));
    let mut value = value
        .map_err(|_| format!("the key of upstream `{name}` holds characters that no header can carry"))?;
    value.set_sensitive(true);
    Ok(value)
}

fn cut_off(name: &str, error: &reqwest::Error) -> UpstreamError {
    let details = chain(error);
    if error.is_timeout() {
        return UpstreamError::broken(
            name,
            504,
            "upstream_timeout",
            "did not finish within its `timeout`",
            details,
        );
    }
    if details.to_lowercase().contains("decod") && !error.is_body() {
        let what = "sent a reply whose content-encoding cannot be decoded";
        return UpstreamError::broken(name, 502, "upstream_bad_encoding", what, details);
    }
    let what = "broke off in the middle of its reply";
    UpstreamError::broken(name, 502, "upstream_broke_off", what, details)
}

/// `0.32.0rc1` as (0, 32).
fn parse_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn last(error: &reqwest::Error) -> String {
    chain(error).rsplit(": ").next().unwrap_or_default().to_owned()
}

/// The error and its causes, outermost first.
fn chain(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
