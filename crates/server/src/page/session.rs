//! Who looks at the page: an operator's key, once entered, becomes a signed cookie; every button carries a
//! mark that belongs to it.
//!
//! The cookie holds no key: it names one by a keyed digest, so a key that is taken away ends its sessions.
//! The signing key is made by each process, so a restart ends all sessions; processes that share a database
//! share it, and the list of sessions that were ended before their time.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use http::{HeaderMap, header};
use ring::hmac;
use tokio::sync::Notify;

use store::EndedSession;
use wire::digest::{hex, is_same_secret};

/// The cookie's name.
pub(crate) const COOKIE: &str = "respool_session";
/// How long a session lasts, in milliseconds.
const LASTS: u64 = 12 * 3_600 * 1_000;

/// Makes and reads sessions.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    key: OnceLock<hmac::Key>,
    /// The signatures of sessions that were ended before their time, with the time.
    ended: Mutex<HashMap<String, u64>>,
    has_ended: Notify,
}

/// Who looks at the page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Viewer {
    /// The name of the operator's key; empty where clients have none.
    pub(super) name: String,
    /// The mark that each button carries.
    pub(super) csrf: String,
    /// Whether there are experts to show.
    pub(super) has_experts: bool,
}

/// The reason why a visitor may not see the page, or press a button.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    /// There is no session, or it is over.
    NoSession,
    /// The request came from another site's page, or under a stranger's host name.
    Foreign(String),
    /// The button does not carry the session's mark.
    Forged,
}

impl Viewer {
    /// True when a button carries this viewer's mark.
    pub(super) fn knows_csrf(&self, csrf: &str) -> bool {
        is_same_secret(self.csrf.as_bytes(), csrf.as_bytes())
    }
}

impl Sessions {
    /// Signs with this secret. Sessions that were begun before keep their key.
    pub(crate) fn use_secret(&self, secret: &[u8; 32]) {
        let _ = self.key.set(hmac::Key::new(hmac::HMAC_SHA256, secret));
    }

    fn key(&self) -> &hmac::Key {
        self.key.get_or_init(|| hmac::Key::new(hmac::HMAC_SHA256, &rand::random::<[u8; 32]>()))
    }

    fn keyed_mark(&self, purpose: &str, of: &[u8]) -> String {
        let mut context = hmac::Context::with_key(self.key());
        context.update(purpose.as_bytes());
        context.update(&[0]);
        context.update(of);
        hex(context.sign().as_ref())
    }

    /// The cookie's value for the operator whose key has this digest.
    pub(crate) fn begin_session(&self, digest: &[u8], now: u64) -> String {
        let named = format!("{}.{}", now + LASTS, self.keyed_mark("operator", digest));
        let signature = self.keyed_mark("session", named.as_bytes());
        format!("{named}.{signature}")
    }

    /// The digest, among these, of the operator's key that a cookie names, if it holds.
    pub(crate) fn read_cookie<'a, T>(
        &self,
        cookie: &str,
        now: u64,
        mut operators: impl Iterator<Item = (&'a [u8], T)>,
    ) -> Option<T> {
        let (named, signature) = cookie.rsplit_once('.')?;
        let expected = self.keyed_mark("session", named.as_bytes());
        let is_ended = self.lock_ended().contains_key(signature);
        let is_signed = !is_ended & is_same_secret(expected.as_bytes(), signature.as_bytes());
        let (until, operator) = named.split_once('.')?;
        if !is_signed || until.parse::<u64>().ok()? <= now {
            return None;
        }
        operators.find(|(digest, _)| self.keyed_mark("operator", digest) == operator).map(|(_, found)| found)
    }

    /// Ends a session that holds: its cookie opens nothing any more.
    pub(crate) fn end_session(&self, cookie: &str, now: u64) {
        let parts = cookie.rsplit_once('.').and_then(|(named, signature)| {
            let (until, _) = named.split_once('.')?;
            Some((until.parse::<u64>().ok()?, signature))
        });
        let mut ended = self.lock_ended();
        ended.retain(|_, until| *until > now);
        if let Some((until, signature)) = parts {
            ended.insert(signature.to_owned(), until);
            self.has_ended.notify_one();
        }
    }

    /// Waits until a session is ended here.
    pub(crate) async fn wait_for_end(&self) {
        self.has_ended.notified().await;
    }

    /// Ends the sessions that were ended at any process. Returns those of this one that are not among them.
    pub(crate) fn exchange_ended(&self, shared: Vec<EndedSession>, now: u64) -> Vec<EndedSession> {
        let mut ended = self.lock_ended();
        ended.retain(|_, until| *until > now);
        let mut own = ended.clone();
        for EndedSession { signature, until } in shared {
            own.remove(&signature);
            ended.insert(signature, until);
        }
        own.into_iter().map(|(signature, until)| EndedSession { signature, until }).collect()
    }

    fn lock_ended(&self) -> MutexGuard<'_, HashMap<String, u64>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The viewer of a session; without a cookie, the one of a page that asks for no key.
    pub(crate) fn session_viewer(&self, name: &str, cookie: &str) -> Viewer {
        let csrf = self.keyed_mark("button", cookie.as_bytes());
        Viewer { name: name.to_owned(), csrf, has_experts: false }
    }
}

/// The cookie of a request.
pub(crate) fn session_cookie(headers: &HeaderMap) -> Option<&str> {
    let all = headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    let mut pairs = all.flat_map(|text| text.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == COOKIE).map(|(_, value)| value)
}

/// The header that gives a browser its cookie. `is_secure`: it came over TLS.
pub(super) fn set_cookie(value: &str, is_secure: bool) -> String {
    let secure = if is_secure { "; Secure" } else { "" };
    let age = if value.is_empty() { 0 } else { LASTS / 1_000 };
    format!("{COOKIE}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={age}{secure}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_ends_with_key_and_time() {
        let (sessions, now) = (Sessions::default(), 1_000_000);
        let cookie = sessions.begin_session(b"digest of alice", now);
        let read = |cookie: &str, now: u64, digest: &[u8]| {
            sessions.read_cookie(cookie, now, [(digest, "alice")].into_iter())
        };
        assert_eq!(read(&cookie, now + LASTS - 1, b"digest of alice"), Some("alice"));
        assert_eq!(read(&cookie, now + LASTS, b"digest of alice"), None, "its time is over");
        assert_eq!(read(&cookie, now, b"digest of bob"), None, "the key was taken away");
        assert_eq!(read(&cookie.replacen('1', "9", 1), now, b"digest of alice"), None, "somebody changed it");
        let others = Sessions::default().begin_session(b"digest of alice", now);
        assert_eq!(read(&others, now, b"digest of alice"), None, "another process signed it");
        let other = sessions.begin_session(b"digest of alice", now + 1);
        sessions.end_session(&cookie, now);
        assert_eq!(read(&cookie, now, b"digest of alice"), None, "its operator logged out");
        assert_eq!(read(&other, now, b"digest of alice"), Some("alice"), "the session of another browser");
        sessions.end_session(&other, now + 2 * LASTS);
        assert_eq!(sessions.lock_ended().len(), 1, "sessions whose time is over are forgotten");
        ["", ".", "a.b.c", "9999999999999999999999.x.y"]
            .iter()
            .for_each(|text| assert_eq!(read(text, now, b"x"), None));
    }

    #[test]
    fn sessions_end_at_all_processes() {
        let (here, there, now) = (Sessions::default(), Sessions::default(), 1_000_000);
        [&here, &there].iter().for_each(|sessions| sessions.use_secret(&[7; 32]));
        let cookie = here.begin_session(b"alice", now);
        here.end_session(&cookie, now);
        let ended = here.exchange_ended(Vec::new(), now);
        assert_eq!(there.exchange_ended(ended.clone(), now), []);
        assert_eq!(there.read_cookie(&cookie, now, [(&b"alice"[..], ())].into_iter()), None);
        assert_eq!(here.exchange_ended(Vec::new(), now), ended, "what was not kept is tried again");
        assert_eq!(here.exchange_ended(ended, now), [], "all know it");
        assert_eq!(here.exchange_ended(Vec::new(), now + LASTS), [], "its time is over");
    }

    #[test]
    fn a_button_belongs_to_its_session() {
        let sessions = Sessions::default();
        let (one, other) =
            (sessions.session_viewer("a", "cookie 1"), sessions.session_viewer("a", "cookie 2"));
        assert!(one.knows_csrf(&one.csrf) && !one.knows_csrf(&other.csrf) && !one.knows_csrf(""));
    }

    #[test]
    fn cookies_are_found_and_closed_to_scripts() {
        let headers =
            HeaderMap::from_iter([(header::COOKIE, "a=b; respool_session=x.y.z;c=d".parse().unwrap())]);
        assert_eq!(session_cookie(&headers), Some("x.y.z"));
        assert_eq!(session_cookie(&HeaderMap::new()), None);
        let text = set_cookie("x", true);
        assert!(
            ["HttpOnly", "SameSite=Strict", "Secure", "Path=/"].iter().all(|word| text.contains(word)),
            "{text}"
        );
        assert!(!set_cookie("x", false).contains("Secure") && set_cookie("", false).contains("Max-Age=0"));
    }
}
