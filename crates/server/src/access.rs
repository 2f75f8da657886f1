//! The checks before every route: who may ask, for what, and how much. Where keys are configured, clients
//! need one. Without keys, other sites' pages in a person's browser are refused wherever respool adds
//! something of its own (an upstream's key, an agent).

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method, Request, header};
use tokio_util::sync::CancellationToken;

use super::admin_routes::{has_dot_segments, is_below_route, is_for_clients, likely_path};
use super::config::ServerConfig;
use super::key_digest::{digest_key, short_digest};
use super::key_file::KeyList;
use super::key_reading::{KeyFile, KeyFileError};
use super::keys::{ClientKey, KEY_HEADERS, KeyQuota, KeyRing, key_in_headers};
use super::meter::{Meters, read_clocks};
use super::metered_request::MeteredRequest;
use super::origin_check::OriginCheck;
use super::page::session::{self, Denied, Sessions, Viewer};
use super::paths::{CHAT, OPEN, is_hook, is_own, is_page};
use super::proxies::client_address;
use super::wrong_keys::{Neighbour, WrongKeys};
use alerts::Alerts;
use store::{Store, StoreError};
use telemetry::{Account, Accounts};
use upstream::hop_count;
use wire::units::UnusableSetting;
use wire::{ApiError, ErrorCode};

/// This route reveals nothing and uses nothing.
const HEALTH: &str = "/health";
/// The beginnings of routes that only operators may use.
const OPERATORS: [&str; 2] = ["/v1/approvals", "/v1/outbox"];
/// A request that has come through this many respools goes in a circle.
const MOST_HOPS: u32 = 3;
/// The pause between two checks of the file of keys.
const EVERY: Duration = Duration::from_secs(1);

/// The checks before the routes.
#[derive(Debug)]
pub struct Access {
    settings: RwLock<Arc<AccessSettings>>,
    ring: RwLock<Arc<KeyRing>>,
    file: Mutex<Option<KeyFile>>,
    meters: Meters,
    /// Whether a wrong key was sent since the start: only then are addresses looked up.
    had_wrong_keys: AtomicBool,
    wrong: Mutex<WrongKeys>,
    /// The sessions of the page's viewers.
    sessions: Sessions,
}

/// The settings that a changed configuration replaces.
#[derive(Debug)]
struct AccessSettings {
    config: ServerConfig,
    origin_check: OriginCheck,
    /// Whether requests without a key go upstream with one of respool's.
    uses_own_key: bool,
}

impl AccessSettings {
    fn new(config: &ServerConfig, uses_own_key: bool) -> Self {
        Self { config: config.clone(), origin_check: OriginCheck::new(config), uses_own_key }
    }

    /// Refuses an administrative route, unless the owner allows them and the key may use them.
    fn check_administrative(
        &self,
        path: &str,
        key: Option<&ClientKey>,
        has_operators: bool,
    ) -> Result<(), ApiError> {
        if !self.config.allow_admin_routes {
            if let Some(error) = misspelt_path(path) {
                return Err(error);
            }
            let path = path.escape_default();
            let what = format!(
                "respool does not pass `{path}` on, because it is no route for inference or information that respool knows, and may change \
                 the model server. Ask the server itself, or set `pass_routes = [\"{path}\"]`, or `allow_admin_routes = true` for all \
                 such routes, in respool.toml"
            );
            return Err(ApiError::new(403, ErrorCode::AdministrativeRoute, what));
        }
        if has_operators && !key.is_some_and(|key| key.is_operator) {
            let what = "this may be an administrative route of the model server: it needs an operator's key";
            return Err(ApiError::new(403, ErrorCode::OperatorsOnly, what));
        }
        Ok(())
    }
}

/// Returns the error of a path that is a slip of the client's.
fn misspelt_path(path: &str) -> Option<ApiError> {
    let shown = path.escape_default();
    let what = if matches!(path, "/v1" | "/v1/") {
        format!("`{shown}` is a base URL: the client adds the rest of the path, such as `/chat/completions`")
    } else {
        let likely = likely_path(path)?;
        let hint =
            if path.starts_with("/v1/v1/") { "the base URL ends in /v1 once: use" } else { "did you mean" };
        format!("there is no path `{shown}`: {hint} `{}`", likely.escape_default())
    };
    Some(ApiError::new(404, ErrorCode::NotFound, what))
}

/// The reason why a login on the page is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum LoginError {
    #[error("This key is not known.")]
    Unknown,
    #[error("This is a client's key. Log in with an operator key.")]
    Client,
    #[error("{0}")]
    TooManyWrongKeys(String),
}

impl Access {
    /// Builds the checks. `uses_own_key`: an upstream has a key of its own, which is sent instead of a
    /// client's.
    ///
    /// # Errors
    /// When the file of keys is unusable.
    pub fn new(config: &ServerConfig, uses_own_key: bool) -> Result<Self, Vec<UnusableSetting>> {
        let opened = config.client_keys_file.as_deref().map(KeyFile::open).transpose();
        let unusable = |whys: Vec<KeyFileError>| {
            whys.into_iter().map(|why| UnusableSetting::new(&["client_keys_file"], why)).collect::<Vec<_>>()
        };
        let (file, list) = opened.map_err(unusable)?.unzip();
        let meters = Meters::default();
        let ring = KeyRing::new(config, list.unwrap_or_default(), &meters);
        Ok(Self {
            settings: RwLock::new(Arc::new(AccessSettings::new(config, uses_own_key))),
            ring: RwLock::new(Arc::new(ring)),
            file: Mutex::new(file),
            meters,
            had_wrong_keys: AtomicBool::new(false),
            wrong: Mutex::default(),
            sessions: Sessions::default(),
        })
    }

    /// Keeps the operators' names in the store for the command line, until `stop`, and signs the page's
    /// sessions with its secret as soon as it tells that. A logout holds for all processes of the store.
    /// Only for `serve`: other commands can be started with any configuration.
    pub async fn keep_operators(self: Arc<Self>, store: Arc<Store>, stop: CancellationToken) {
        let (mut kept, mut has_secret) = (None, false);
        loop {
            if !has_secret {
                has_secret = self.share_sessions(&store).await.is_ok();
            }
            let keys = self.key_ring().operator_keys();
            if kept.as_ref() != Some(&keys) && store.set_operators(keys.clone()).await.is_ok() {
                kept = Some(keys);
            }
            let ended = self.sessions.exchange_ended(store.ended_sessions(), read_clocks().since_1970);
            if !ended.is_empty() {
                // What fails is tried again.
                let _ = store.end_sessions(ended).await;
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.sessions.wait_for_end() => {}
                () = tokio::time::sleep(EVERY) => {}
            }
        }
    }

    /// Signs the page's sessions with the key that all processes of the store have, unless one was begun
    /// already.
    ///
    /// # Errors
    /// When the store cannot tell it.
    pub async fn share_sessions(&self, store: &Store) -> Result<(), StoreError> {
        let secret = store.shared_secret("page sessions", rand::random()).await?;
        self.sessions.use_secret(&secret);
        Ok(())
    }

    /// Reads the file of keys again when it changes, until `stop`, and tells `alerts` what is wrong with it.
    pub async fn watch_key_file(self: Arc<Self>, alerts: Arc<Alerts>, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(EVERY) => {}
            }
            let access = Arc::clone(&self);
            if let Ok(problem) = tokio::task::spawn_blocking(move || access.read_again()).await {
                alerts.note_key_file(problem);
            }
        }
    }

    /// Accepts these keys from now on, in addition to those of the file, whose path stays. `uses_own_key` as
    /// for [`Access::new`].
    pub fn change_keys(&self, config: &ServerConfig, uses_own_key: bool) {
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) =
            Arc::new(AccessSettings::new(config, uses_own_key));
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let list = file.as_ref().map(KeyFile::list).unwrap_or_default();
        let ring = KeyRing::new(config, list, &self.meters);
        *self.ring.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(ring);
    }

    /// Returns what each key may use, by name.
    pub fn quotas(&self) -> Vec<KeyQuota> {
        self.key_ring().quotas()
    }

    /// Returns the names of all keys, in order.
    pub fn key_names(&self) -> Vec<String> {
        self.key_ring().key_names()
    }

    fn settings(&self) -> Arc<AccessSettings> {
        Arc::clone(&self.settings.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the address of the client on a connection from `peer`.
    pub(super) fn client_address(&self, peer: Option<IpAddr>, headers: &HeaderMap) -> Option<IpAddr> {
        let settings = self.settings();
        peer.map(|peer| client_address(peer, headers, &settings.config.trusted_proxies))
    }

    /// Reads the file of keys if it has changed. Returns what is wrong with it.
    fn read_again(&self) -> Option<String> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let file = file.as_mut()?;
        if let Some(list) = file.read_changes() {
            self.accept_list(list);
        }
        let is_empty = self.key_ring().len() == 0;
        let empty = || is_empty.then(|| "it has no key, so every request is refused: add one".to_owned());
        file.fault().map(str::to_owned).or_else(empty)
    }

    fn accept_list(&self, list: KeyList) {
        let ring = KeyRing::new(&self.settings().config, list, &self.meters);
        match ring.len() {
            0 => tracing::error!(
                target: "respool::server",
                "the changed file of client keys has no key: every request is refused until it has one"
            ),
            keys => tracing::info!(target: "respool::server", keys, "the client keys were read again"),
        }
        *self.ring.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(ring);
    }

    fn key_ring(&self) -> Arc<KeyRing> {
        Arc::clone(&self.ring.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Admits a request. Where clients have keys, it adds the client to the request's extensions.
    ///
    /// # Errors
    /// 401 without a required key; 429 after too many wrong ones; 403 and 400 for a request of another
    /// site's page; 403 for administrative routes.
    pub(super) fn admit_request<B>(
        &self,
        request: &mut Request<B>,
        peer: Option<IpAddr>,
    ) -> Result<Option<Arc<MeteredRequest>>, ApiError> {
        refuse_method(request.method())?;
        refuse_loop(request.headers())?;
        let path = request.uri().path();
        let settings = self.settings();
        let key = if is_hook(request.method(), path) {
            None
        } else if !settings.config.asks_for_keys() {
            if settings.uses_own_key && path != HEALTH {
                settings.origin_check.refuse_foreign(request.headers())?;
            }
            let operator = self.operator_of(request, peer)?;
            if let Some(operator) = operator {
                // On these routes a client's key goes upstream, and an operator's key must not.
                KEY_HEADERS.iter().for_each(|name| drop(request.headers_mut().remove(*name)));
                let metered = MeteredRequest::new(operator);
                request.extensions_mut().insert(Arc::clone(&metered));
                self.check_path(request.method(), request.uri().path(), Some(metered.key.as_ref()))?;
                return Ok(Some(metered));
            }
            None
        } else if OPEN.contains(&path) || is_page(path) {
            None
        } else {
            Some(self.key_of(request.headers(), peer)?)
        };
        let metered = key.map(MeteredRequest::new);
        if let Some(metered) = &metered {
            // The record of a request that is refused below names its key.
            request.extensions_mut().insert(Arc::clone(metered));
        }
        let key = metered.as_ref().map(|metered| metered.key.as_ref());
        self.check_path(request.method(), request.uri().path(), key)?;
        if let Some(key) = key {
            request.headers_mut().insert(header::AUTHORIZATION, key.identity.clone());
        }
        Ok(metered)
    }

    /// Refuses administrative routes, and paths that a server would take for another one.
    fn check_path(&self, method: &Method, path: &str, key: Option<&ClientKey>) -> Result<(), ApiError> {
        // The hot route needs none of these checks.
        if CHAT.contains(&path) {
            return Ok(());
        }
        refuse_dot_segments(path)?;
        let settings = self.settings();
        if !is_for_everybody(&settings.config, method, path) {
            settings.check_administrative(path, key, self.key_ring().has_operators())?;
        }
        Ok(())
    }

    /// Returns the operator's key that a request carries, where clients need no key. Any other key is the
    /// client's own, except on routes for operators.
    ///
    /// # Errors
    /// When a route for operators gets a wrong key.
    fn operator_of<B>(
        &self,
        request: &Request<B>,
        peer: Option<IpAddr>,
    ) -> Result<Option<Arc<ClientKey>>, ApiError> {
        let (headers, path, config) = (request.headers(), request.uri().path(), &self.settings().config);
        let Some(sent) = key_in_headers(headers).filter(|_| self.has_operators()) else { return Ok(None) };
        let is_administrative =
            || config.allow_admin_routes && !is_for_everybody(config, request.method(), path);
        if OPERATORS.iter().any(|route| path.starts_with(route)) || is_administrative() {
            return self.key_of(headers, peer).map(Some);
        }
        Ok(self.key_ring().find(sent).cloned())
    }

    fn key_of(&self, headers: &HeaderMap, peer: Option<IpAddr>) -> Result<Arc<ClientKey>, ApiError> {
        let sent = key_in_headers(headers).ok_or_else(missing_key)?;
        let key = self.key_ring().find(sent).cloned();
        let Some(from) = peer.map(Neighbour::from) else { return key.ok_or_else(|| unknown_key(sent)) };
        if let Some(wait) = self.required_wait(from)
            && !key.as_ref().is_some_and(|key| !key.is_short || key.meter.knows_neighbour(from))
        {
            let what = format!(
                "too many wrong keys came from this address: try again in {wait} s (long keys, and those that were used from it before, \
                 still work)"
            );
            let mut error = ApiError::new(429, ErrorCode::TooManyWrongKeys, what);
            error.retry_after = Some(wait);
            return Err(error);
        }
        let Some(key) = key else {
            self.count_wrong(from, peer);
            return Err(unknown_key(sent));
        };
        key.meter.used_from(from);
        Ok(key)
    }

    fn required_wait(&self, from: Neighbour) -> Option<u64> {
        if !self.had_wrong_keys.load(Ordering::Relaxed) {
            return None;
        }
        self.wrong.lock().unwrap_or_else(PoisonError::into_inner).required_wait(from, read_clocks().steady)
    }

    fn count_wrong(&self, from: Neighbour, peer: Option<IpAddr>) {
        self.had_wrong_keys.store(true, Ordering::Relaxed);
        if self
            .wrong
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .count_wrong_key(from, read_clocks().steady)
        {
            let address = peer.map(|address| address.to_string());
            tracing::warn!(target: "respool::server", address, "many wrong keys: short keys from this address are refused for a while");
        }
    }

    /// Refuses a request of another site's page to agents and runs, which no page needs. A client that has a
    /// key is not such a page.
    pub(super) fn foreign_page(&self, headers: &HeaderMap) -> Option<ApiError> {
        let settings = self.settings();
        if settings.config.asks_for_keys() {
            None
        } else {
            settings.origin_check.refuse_foreign(headers).err()
        }
    }

    /// Returns the viewer of the page: an operator with a session, or any visitor where clients need no keys,
    /// except a page of another site.
    ///
    /// # Errors
    /// The reason for the refusal.
    pub(super) fn page_viewer(&self, headers: &HeaderMap) -> Result<Viewer, Denied> {
        let settings = self.settings();
        if !settings.config.asks_for_keys() {
            let refused = settings.origin_check.refuse_foreign(headers);
            refused.map_err(|error| Denied::Foreign(error.message))?;
            return Ok(self
                .operator_with_session(headers)
                .unwrap_or_else(|| self.sessions.session_viewer("", "")));
        }
        self.operator_with_session(headers).ok_or(Denied::NoSession)
    }

    fn operator_with_session(&self, headers: &HeaderMap) -> Option<Viewer> {
        let cookie = session::session_cookie(headers)?;
        let ring = self.key_ring();
        let key = self.sessions.read_cookie(cookie, read_clocks().since_1970, ring.operators())?;
        Some(self.sessions.session_viewer(&key.name, cookie))
    }

    /// Returns the cookie for an operator's key.
    ///
    /// # Errors
    /// The reason for the refusal.
    pub(super) fn open_session(&self, key: &str, peer: Option<IpAddr>) -> Result<String, LoginError> {
        let found = self.find_operator(key, peer);
        let client = peer.map(|peer| peer.to_string());
        match &found {
            Ok(found) => {
                tracing::info!(target: "respool::server", by = found.name, client, "an operator logged in on the page");
            }
            Err(error) => {
                tracing::warn!(target: "respool::server", client, %error, "a login on the page was refused");
            }
        }
        found.map(|_| self.sessions.begin_session(&digest_key(key.as_bytes()), read_clocks().since_1970))
    }

    fn find_operator(&self, key: &str, peer: Option<IpAddr>) -> Result<Arc<ClientKey>, LoginError> {
        let mut headers = HeaderMap::new();
        let value = HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| LoginError::Unknown)?;
        headers.insert(header::AUTHORIZATION, value);
        let found = self.key_of(&headers, peer).map_err(|error| match error.code {
            Some(ErrorCode::TooManyWrongKeys) => LoginError::TooManyWrongKeys(error.message),
            _ => LoginError::Unknown,
        })?;
        if found.is_operator { Ok(found) } else { Err(LoginError::Client) }
    }

    /// Ends the session of a request, if it has one.
    pub(super) fn end_session(&self, headers: &HeaderMap) {
        if let Some(cookie) = session::session_cookie(headers) {
            self.sessions.end_session(cookie, read_clocks().since_1970);
        }
    }

    /// Returns true if some keys are operators'.
    pub(super) fn has_operators(&self) -> bool {
        self.key_ring().has_operators()
    }

    /// Returns true if the key of this name exists and may not use this model or agent.
    pub(super) fn is_refused_to(&self, key: &str, model: &str, is_agent: bool) -> bool {
        self.key_ring().key_named(key).is_some_and(|key| !key.limits.permits(model, is_agent))
    }

    /// Returns true if respool's own page sent a form.
    pub(super) fn is_own_origin(&self, headers: &HeaderMap) -> bool {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        if text("sec-fetch-site").is_some_and(|site| site != "same-origin" && site != "none") {
            return false;
        }
        let Some(origin) = text("origin") else { return true };
        let authority = origin.split_once("://").map_or("", |(_, authority)| authority);
        text("host") == Some(authority)
            || self.settings().config.trusted_origins.iter().any(|trusted| trusted == origin)
    }

    /// Removes the headers with which an upstream lets pages of other sites read its answers.
    pub(super) fn guard_answer(&self, headers: &mut HeaderMap) {
        let settings = self.settings();
        if !settings.uses_own_key && !settings.config.asks_for_keys() {
            return;
        }
        let is_for_pages = |name: &&http::HeaderName| name.as_str().starts_with("access-control-");
        let for_pages: Vec<_> = headers.keys().filter(is_for_pages).cloned().collect();
        for name in for_pages {
            headers.remove(name);
        }
    }
}

/// Returns true for a route of respool's own, and for a route of the model server that every client may use.
pub fn is_for_everybody(config: &ServerConfig, method: &Method, path: &str) -> bool {
    let is_respools = OPEN.contains(&path) || is_page(path) || is_own(path);
    let mut routes = config.pass_routes.iter();
    is_respools || is_for_clients(method, path) || routes.any(|route| is_below_route(route, path))
}

fn missing_key() -> ApiError {
    let what = "respool asks for a key: send `authorization: Bearer KEY` or `x-api-key: KEY` with one of its `client_keys`";
    ApiError::new(401, ErrorCode::InvalidApiKey, what)
}

/// The error names the key by the beginning of its digest, as logs and `sha256sum` do.
fn unknown_key(sent: &[u8]) -> ApiError {
    let what = match variable_in_place_of_key(sent) {
        Some(name) => format!(
            "the client sent the text `${{{name}}}` in place of a key, because `{name}` is not set in its environment: \
             set it where the client runs (OpenClaw: in ~/.openclaw/.env)"
        ),
        None => format!(
            "respool does not know the key that was sent, whose SHA-256 begins with {}: send one of its `client_keys`",
            short_digest(sent)
        ),
    };
    ApiError::new(401, ErrorCode::InvalidApiKey, what)
}

/// Returns the name of the variable that a client should have replaced: OpenClaw sends `${NAME}` where it is
/// not set.
fn variable_in_place_of_key(sent: &[u8]) -> Option<&str> {
    let name = std::str::from_utf8(sent).ok()?.strip_prefix("${")?.strip_suffix('}')?;
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte == b'_' || byte.is_ascii_alphanumeric());
    is_name.then_some(name)
}

/// Refuses the methods that speak to a proxy, or of the request itself: an answer to `TRACE` repeats its
/// headers, and with them respool's key for the upstream.
fn refuse_method(method: &Method) -> Result<(), ApiError> {
    if matches!(*method, Method::CONNECT | Method::TRACE) {
        let what =
            format!("respool does not pass `{method}` on: use `GET`, `POST` or another method of the API");
        return Err(ApiError::new(405, ErrorCode::MethodNotAllowed, what));
    }
    Ok(())
}

/// Refuses a request that has come through too many respools: it goes in a circle.
fn refuse_loop(headers: &HeaderMap) -> Result<(), ApiError> {
    if hop_count(headers) < MOST_HOPS {
        return Ok(());
    }
    let what = format!(
        "this request has come through respool {MOST_HOPS} times: a `url` of [[upstream]] leads back to a respool that the request came \
         from. Set it to the model server's address"
    );
    Err(ApiError::bad_request(ErrorCode::RequestLoop, what))
}

/// Refuses a path that a server would take for another one: it could leave the upstream's base URL, with
/// respool's key.
fn refuse_dot_segments(path: &str) -> Result<(), ApiError> {
    if has_dot_segments(path) {
        let what =
            "the path has `.` or `..` between slashes, which respool does not pass on: write the path itself";
        return Err(ApiError::bad_request(ErrorCode::BadPath, what));
    }
    Ok(())
}

impl Accounts for Access {
    fn find_account(&self, client: &str) -> Option<Arc<dyn Account>> {
        let ring = self.key_ring();
        let key: Arc<dyn Account> = ring.find_client(client)?.clone();
        Some(key)
    }
}

#[cfg(test)]
mod tests;
