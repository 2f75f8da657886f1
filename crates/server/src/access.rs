//! Who may ask, what for and how much: the checks before every route. Clients with a key, where keys are configured; else no page of a
//! stranger that a person's browser shows, wherever respool adds something of its own (an upstream's key, an agent).

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method, Request, header};
use tokio_util::sync::CancellationToken;

use super::admin_routes::{has_dot_segments, is_below_route, is_for_clients};
use super::hooks::is_hook;
use super::key_file::KeyList;
use super::key_reading::KeyFile;
use super::keys::{ClientKey, KEY_HEADERS, KeyRing, carried, digest};
use super::meter::{Meters, read_clocks};
use super::page::session::{self, Denied, Sessions, Viewer};
use super::pages::Pages;
use super::visit::Visit;
use super::wrong_keys::{Neighbour, WrongKeys};
use super::{CHAT, ServerConfig, page, permission};
use store::Store;
use telemetry::{Account, Accounts};
use upstream::hops;
use wire::units::UnusableSetting;
use wire::{ApiError, ErrorCode};

/// These ask for no key: what watches over a server has none. vLLM keeps them open too.
const OPEN: [&str; 3] = ["/health", "/ready", "/metrics"];
/// This one says nothing and uses nothing.
const HEALTH: &str = "/health";
/// Where the routes begin that only operators may use.
const OPERATORS: [&str; 2] = ["/v1/approvals", "/v1/outbox"];
/// A request that has come through so many respools comes from one of them again.
const MOST_HOPS: u32 = 3;
/// So often the file of keys is looked at, and what was used is written.
const EVERY: Duration = Duration::from_secs(1);

/// The checks before the routes.
#[derive(Debug)]
pub struct Access {
    terms: RwLock<Arc<Terms>>,
    ring: RwLock<Arc<KeyRing>>,
    file: Mutex<Option<KeyFile>>,
    meters: Meters,
    store: OnceLock<Arc<Store>>,
    /// Somebody sent a wrong key since the start: only then is it asked who.
    had_wrong_keys: AtomicBool,
    wrong: Mutex<WrongKeys>,
    /// Who looks at the page.
    sessions: Sessions,
}

/// What a changed configuration changes.
#[derive(Debug)]
struct Terms {
    config: ServerConfig,
    pages: Pages,
    /// Requests that bring no key go upstream with one of respool's.
    lends_key: bool,
}

impl Terms {
    fn new(config: &ServerConfig, lends_key: bool) -> Self {
        Self { config: config.clone(), pages: Pages::new(config), lends_key }
    }

    /// Refuses any other route, unless the owner allows them all and the key may use them.
    fn check_administrative(
        &self,
        path: &str,
        key: Option<&ClientKey>,
        has_operators: bool,
    ) -> Result<(), ApiError> {
        if !self.config.allow_admin_routes {
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

impl Access {
    /// As it is configured. `lends_key`: an upstream has a key of its own, which is sent instead of a client's.
    ///
    /// # Errors
    /// When the file of keys is of no use.
    pub fn new(config: &ServerConfig, lends_key: bool) -> Result<Self, Vec<UnusableSetting>> {
        let opened = config.client_keys_file.as_deref().map(KeyFile::open).transpose();
        let unusable = |whys: Vec<String>| {
            whys.into_iter().map(|why| UnusableSetting::new(&["client_keys_file"], why)).collect::<Vec<_>>()
        };
        let (file, list) = opened.map_err(unusable)?.unzip();
        let meters = Meters::default();
        let ring = KeyRing::new(config, list.unwrap_or_default(), &meters);
        Ok(Self {
            terms: RwLock::new(Arc::new(Terms::new(config, lends_key))),
            ring: RwLock::new(Arc::new(ring)),
            file: Mutex::new(file),
            meters,
            store: OnceLock::new(),
            had_wrong_keys: AtomicBool::new(false),
            wrong: Mutex::default(),
            sessions: Sessions::default(),
        })
    }

    /// From now on what clients use is kept in this store; what it says of today counts.
    pub async fn keep_in(&self, store: Arc<Store>) {
        if let Err(error) = self.meters.load(&store).await {
            tracing::error!(target: "respool::server", %error, "today's usage of the keys is unknown: it is counted from zero");
        }
        let _ = self.store.set(store);
    }

    /// Keeps in the store who the operators are, for the command line, until `stop`. Only for `serve`: other commands can be started with any
    /// configuration.
    pub async fn keep_operators(self: Arc<Self>, stop: CancellationToken) {
        let Some(store) = self.store.get() else { return };
        let mut kept = None;
        loop {
            let keys = self.ring().operator_keys();
            if kept.as_ref() != Some(&keys) && store.set_operators(keys.clone()).await.is_ok() {
                kept = Some(keys);
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(EVERY) => {}
            }
        }
    }

    /// Reads the file of keys again when it changes, and writes what clients use, until `stop`.
    pub async fn watch(self: Arc<Self>, stop: CancellationToken) {
        let mut is_saved = true;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(EVERY) => {}
            }
            let access = Arc::clone(&self);
            let _ = tokio::task::spawn_blocking(move || access.read_again()).await;
            let before = std::mem::replace(&mut is_saved, self.save().await);
            if before && !is_saved {
                tracing::error!(target: "respool::server", "usage of the keys is counted in memory until the store can be written again");
            }
        }
    }

    /// Writes what clients have used since the last time. False when that failed.
    pub async fn save(&self) -> bool {
        let Some(store) = self.store.get() else { return true };
        let saved = self.meters.save(store).await;
        saved
            .inspect_err(|error| tracing::debug!(target: "respool::server", %error, "what the keys used"))
            .is_ok()
    }

    /// From now on these keys hold, beside those of the file, whose path stays. `lends_key` as for [`Access::new`].
    pub fn change(&self, config: &ServerConfig, lends_key: bool) {
        *self.terms.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(Terms::new(config, lends_key));
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let list = file.as_ref().map(KeyFile::list).unwrap_or_default();
        let ring = KeyRing::new(config, list, &self.meters);
        *self.ring.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(ring);
    }

    fn terms(&self) -> Arc<Terms> {
        Arc::clone(&self.terms.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn read_again(&self) {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(list) = file.as_mut().and_then(KeyFile::changed) {
            self.accept(list);
        }
    }

    fn accept(&self, list: KeyList) {
        let ring = KeyRing::new(&self.terms().config, list, &self.meters);
        tracing::info!(target: "respool::server", keys = ring.len(), "the client keys were read again");
        *self.ring.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(ring);
    }

    fn ring(&self) -> Arc<KeyRing> {
        Arc::clone(&self.ring.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Lets a request pass, with who asks in its extensions where clients have keys.
    ///
    /// # Errors
    /// 401 without a key, where one is needed; 429 after too many wrong ones; 403 and 400 for what a stranger's page sends; 403 for
    /// administrative routes.
    pub(super) fn admit<B>(
        &self,
        request: &mut Request<B>,
        peer: Option<IpAddr>,
    ) -> Result<Option<Arc<Visit>>, ApiError> {
        refuse_method(request.method())?;
        refuse_loop(request.headers())?;
        let path = request.uri().path();
        let terms = self.terms();
        let key = if is_hook(request.method(), path) {
            None
        } else if !terms.config.asks_for_keys() {
            if terms.lends_key && path != HEALTH {
                terms.pages.refuse_foreign(request.headers())?;
            }
            let operator = self.operator_of(request, peer)?;
            if let Some(operator) = operator {
                // Whatever key a client brings goes upstream here, and this one must not.
                KEY_HEADERS.iter().for_each(|name| drop(request.headers_mut().remove(*name)));
                let visit = Visit::of(operator);
                request.extensions_mut().insert(Arc::clone(&visit));
                self.check_path(request.method(), request.uri().path(), Some(visit.key.as_ref()))?;
                return Ok(Some(visit));
            }
            None
        } else if OPEN.contains(&path) || page::is_path(path) {
            None
        } else {
            Some(self.key_of(request.headers(), peer)?)
        };
        self.check_path(request.method(), path, key.as_deref())?;
        let Some(key) = key else { return Ok(None) };
        request.headers_mut().insert(header::AUTHORIZATION, key.identity.clone());
        let visit = Visit::of(key);
        request.extensions_mut().insert(Arc::clone(&visit));
        Ok(Some(visit))
    }

    /// Refuses administrative routes, and paths that a server would take for another one.
    fn check_path(&self, method: &Method, path: &str, key: Option<&ClientKey>) -> Result<(), ApiError> {
        // The hot route needs none of these checks.
        if CHAT.contains(&path) {
            return Ok(());
        }
        leads_nowhere_else(path)?;
        let terms = self.terms();
        if !is_for_everybody(&terms.config, method, path) {
            terms.check_administrative(path, key, self.ring().has_operators())?;
        }
        Ok(())
    }

    /// The operator's key that a request carries, where clients need none. Any other key is the client's own,
    /// except on routes for operators.
    ///
    /// # Errors
    /// When a route for operators gets a wrong key.
    fn operator_of<B>(
        &self,
        request: &Request<B>,
        peer: Option<IpAddr>,
    ) -> Result<Option<Arc<ClientKey>>, ApiError> {
        let (headers, path, config) = (request.headers(), request.uri().path(), &self.terms().config);
        let Some(sent) = carried(headers).filter(|_| self.has_operators()) else { return Ok(None) };
        let is_administrative =
            || config.allow_admin_routes && !is_for_everybody(config, request.method(), path);
        if OPERATORS.iter().any(|route| path.starts_with(route)) || is_administrative() {
            return self.key_of(headers, peer).map(Some);
        }
        Ok(self.ring().find(sent).cloned())
    }

    fn key_of(&self, headers: &HeaderMap, peer: Option<IpAddr>) -> Result<Arc<ClientKey>, ApiError> {
        let what = "respool asks for a key: send `authorization: Bearer KEY` or `x-api-key: KEY` with one of its `client_keys`";
        let missing = || ApiError::new(401, ErrorCode::InvalidApiKey, what);
        let sent = carried(headers).ok_or_else(missing)?;
        let key = self.ring().find(sent).cloned();
        let Some(from) = peer.map(Neighbour::from) else { return key.ok_or_else(missing) };
        if let Some(wait) = self.wait(from)
            && !key.as_ref().is_some_and(|key| !key.is_short || key.meter.knows(from))
        {
            let what = format!(
                "too many wrong keys came from this address: try again in {wait} s (long keys, and those that were used from it before, \
                 still hold)"
            );
            let mut error = ApiError::new(429, ErrorCode::TooManyWrongKeys, what);
            error.retry_after = Some(wait);
            return Err(error);
        }
        let Some(key) = key else {
            self.count_wrong(from, peer);
            return Err(missing());
        };
        key.meter.used_from(from);
        Ok(key)
    }

    fn wait(&self, from: Neighbour) -> Option<u64> {
        if !self.had_wrong_keys.load(Ordering::Relaxed) {
            return None;
        }
        self.wrong.lock().unwrap_or_else(PoisonError::into_inner).wait(from, read_clocks().steady)
    }

    fn count_wrong(&self, from: Neighbour, peer: Option<IpAddr>) {
        self.had_wrong_keys.store(true, Ordering::Relaxed);
        if self.wrong.lock().unwrap_or_else(PoisonError::into_inner).count(from, read_clocks().steady) {
            let address = peer.map(|address| address.to_string());
            tracing::warn!(target: "respool::server", address, "many wrong keys: short keys from this address are refused for a while");
        }
    }

    /// Refuses what a stranger's page sends, for routes that are never a page's: agents and runs. A client that has a key is no
    /// stranger's page.
    pub(super) fn foreign_page(&self, headers: &HeaderMap) -> Option<ApiError> {
        let terms = self.terms();
        if terms.config.asks_for_keys() { None } else { terms.pages.refuse_foreign(headers).err() }
    }

    /// Who looks at the page: an operator with a session; anybody where clients need no keys, but no page of
    /// another site.
    ///
    /// # Errors
    /// Why nobody may look.
    pub(super) fn viewer(&self, headers: &HeaderMap) -> Result<Viewer, Denied> {
        let terms = self.terms();
        if !terms.config.asks_for_keys() {
            let refused = terms.pages.refuse_foreign(headers);
            refused.map_err(|error| Denied::Foreign(error.message))?;
            return Ok(self.operator_with_session(headers).unwrap_or_else(|| self.sessions.viewer("", "")));
        }
        self.operator_with_session(headers).ok_or(Denied::NoSession)
    }

    fn operator_with_session(&self, headers: &HeaderMap) -> Option<Viewer> {
        let cookie = session::cookie(headers)?;
        let ring = self.ring();
        let key = self.sessions.read(cookie, read_clocks().since_1970, ring.operators())?;
        Some(self.sessions.viewer(&key.name, cookie))
    }

    /// The cookie for an operator's key.
    ///
    /// # Errors
    /// Why it opens nothing, for people.
    pub(super) fn open_session(&self, key: &str, peer: Option<IpAddr>) -> Result<String, String> {
        let unknown = || "This key is not known.".to_owned();
        let mut headers = HeaderMap::new();
        let value = HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| unknown())?;
        headers.insert(header::AUTHORIZATION, value);
        let found = self.key_of(&headers, peer).map_err(|error| {
            if error.code == Some(ErrorCode::TooManyWrongKeys) { error.message } else { unknown() }
        })?;
        if !found.is_operator {
            return Err("This is a client's key. Log in with an operator key.".to_owned());
        }
        Ok(self.sessions.begin(&digest(key.as_bytes()), read_clocks().since_1970))
    }

    /// Ends the session of a request that holds.
    pub(super) fn end_session(&self, headers: &HeaderMap) {
        if let Some(cookie) = session::cookie(headers) {
            self.sessions.end(cookie, read_clocks().since_1970);
        }
    }

    /// True when some keys are operators'.
    pub(super) fn has_operators(&self) -> bool {
        self.ring().has_operators()
    }

    /// Returns true if the key of this name exists and may not use this model or agent.
    pub(super) fn is_refused_to(&self, key: &str, model: &str, is_agent: bool) -> bool {
        self.ring().key_named(key).is_some_and(|key| !key.limits.permits(model, is_agent))
    }

    /// True when a form was sent by respool's own page.
    pub(super) fn is_own_origin(&self, headers: &HeaderMap) -> bool {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        if text("sec-fetch-site").is_some_and(|site| site != "same-origin" && site != "none") {
            return false;
        }
        let Some(origin) = text("origin") else { return true };
        let authority = origin.split_once("://").map_or("", |(_, authority)| authority);
        text("host") == Some(authority)
            || self.terms().config.trusted_origins.iter().any(|trusted| trusted == origin)
    }

    /// An upstream that lets pages of any site read its answers does not speak for respool.
    pub(super) fn guard_answer(&self, headers: &mut HeaderMap) {
        let terms = self.terms();
        if !terms.lends_key && !terms.config.asks_for_keys() {
            return;
        }
        let is_for_pages = |name: &&http::HeaderName| name.as_str().starts_with("access-control-");
        let for_pages: Vec<_> = headers.keys().filter(is_for_pages).cloned().collect();
        for name in for_pages {
            headers.remove(name);
        }
    }
}

/// True for a route of respool's own, and for one of the model server that every client may use.
pub fn is_for_everybody(config: &ServerConfig, method: &Method, path: &str) -> bool {
    let is_own = OPEN.contains(&path) || page::is_path(path) || permission::is_own(path);
    let mut routes = config.pass_routes.iter();
    is_own || is_for_clients(method, path) || routes.any(|route| is_below_route(route, path))
}

/// Refuses the methods that speak to a proxy, or of the request itself: an answer to `TRACE` repeats its headers, and with them
/// respool's key for the upstream.
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
    if hops(headers) < MOST_HOPS {
        return Ok(());
    }
    let what = format!(
        "this request has come through respool {MOST_HOPS} times: an `url` of [[upstream]] leads back to a respool that the request came \
         from. Set it to the model server's address"
    );
    Err(ApiError::bad_request(ErrorCode::RequestLoop, what))
}

/// Refuses a path that a server would take for another one: it could leave the upstream's base URL, with respool's key.
fn leads_nowhere_else(path: &str) -> Result<(), ApiError> {
    if has_dot_segments(path) {
        let what =
            "the path has `.` or `..` between slashes, which respool does not pass on: write the path itself";
        return Err(ApiError::bad_request(ErrorCode::BadPath, what));
    }
    Ok(())
}

impl Accounts for Access {
    fn of_client(&self, client: &str) -> Option<Arc<dyn Account>> {
        self.ring().of_client(client).map(|key| -> Arc<dyn Account> { key.meter.clone() })
    }
}

#[cfg(test)]
mod tests;
