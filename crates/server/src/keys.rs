//! The keys of clients: which key a request carries, and what is known of it. Keys are known by their digest.
//! Called by `access`.

use std::collections::HashMap;
use std::sync::Arc;

use http::{HeaderMap, HeaderValue, header};

use super::config::ServerConfig;
use super::key_digest::{KeyDigest, default_name, digest_key, is_short};
use super::key_file::{KeyList, NamedKey};
use super::key_limits::KeyLimits;
use super::meter::{Meter, Meters};
use agent::client_digest;
use store::OperatorKey;
use telemetry::Account;
use wire::digest::hex;

/// The header of Anthropic's clients.
const X_API_KEY: &str = "x-api-key";

/// The headers in which a client may bring a key.
pub(super) const KEY_HEADERS: [&str; 2] = ["authorization", X_API_KEY];

/// The facts about a key, without the key itself.
#[derive(Debug)]
pub(super) struct ClientKey {
    /// The key's name in logs; its place in the configuration if it has no name.
    pub(super) name: String,
    /// Whether it may see and end the runs of all clients, and use administrative routes if these are passed
    /// on.
    pub(super) is_operator: bool,
    /// Whether it is short enough to be guessed.
    pub(super) is_short: bool,
    /// Its limits.
    pub(super) limits: KeyLimits,
    /// The counters for its limits.
    pub(super) meter: Arc<Meter>,
    /// The header that identifies its owner within respool, in place of the one that the key came in. It
    /// never leaves respool.
    pub(super) identity: HeaderValue,
}

/// The amounts that a key may use; `None`: no limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyQuota {
    /// The key's name in logs.
    pub name: String,
    /// Whether it is an operator's.
    pub is_operator: bool,
    /// Tokens of prompts and replies in one UTC day.
    pub tokens_per_day: Option<u64>,
    /// Requests in any minute.
    pub requests_per_minute: Option<u32>,
    /// Requests at a time.
    pub max_concurrency: Option<u32>,
}

impl KeyQuota {
    fn from_key(key: &ClientKey) -> Self {
        Self {
            name: key.name.clone(),
            is_operator: key.is_operator,
            tokens_per_day: key.limits.tokens_per_day,
            requests_per_minute: key.limits.requests_per_minute,
            max_concurrency: key.limits.max_concurrency,
        }
    }
}

impl Account for ClientKey {
    fn key_name(&self) -> &str {
        &self.name
    }

    fn is_restricted(&self) -> bool {
        self.limits.is_restricted()
    }
}

/// All keys that are accepted.
///
/// They are looked up by digest in a table whose hash function has a new seed in each process, so the time
/// does not reveal how much of a key is right.
#[derive(Debug, Default)]
pub(super) struct KeyRing {
    by_digest: HashMap<KeyDigest, Arc<ClientKey>>,
    by_client: HashMap<String, Arc<ClientKey>>,
    has_operators: bool,
}

impl KeyRing {
    /// Collects the keys of the configuration, its environment and a file.
    pub(super) fn new(config: &ServerConfig, list: KeyList, meters: &Meters) -> Self {
        let mut ring = Self::default();
        let lists = [
            ("client_keys", &config.client_keys, config.client_keys_env.as_ref(), false),
            // A key that is in both is an operator's.
            ("operator_keys", &config.operator_keys, config.operator_keys_env.as_ref(), true),
        ];
        for (key_list, keys, variable, is_operator) in lists {
            let place = if variable.is_some() { format!("{key_list}_env") } else { key_list.to_owned() };
            for key in keys {
                let name = default_name(&place, key.expose_secret());
                let meter = meters.meter_for(&name);
                let identity = identity_header(&format!("Bearer {}", key.expose_secret()));
                let limits = if is_operator { KeyLimits::default() } else { list.every.clone() };
                let (key_digest, is_short) =
                    (digest_key(key.expose_secret().as_bytes()), is_short(key.expose_secret()));
                ring.add(key_digest, ClientKey { name, is_operator, is_short, limits, meter, identity });
            }
        }
        for named in list.keys {
            let meter = meters.meter_for(&named.name);
            let identity = identity_header(&format!("Client {}", named.name));
            let before = ring.by_digest.get(&named.digest).is_some_and(|key| key.is_operator);
            let NamedKey { name, digest, is_operator, limits, is_short } = named;
            let is_operator = is_operator || before;
            ring.add(digest, ClientKey { name, is_operator, is_short, limits, meter, identity });
        }
        ring
    }

    fn add(&mut self, key_digest: KeyDigest, key: ClientKey) {
        let key = Arc::new(key);
        self.has_operators |= key.is_operator;
        self.by_client.insert(client_digest(key.identity.as_bytes()), Arc::clone(&key));
        self.by_digest.insert(key_digest, key);
    }

    /// Returns the facts about a key.
    pub(super) fn find(&self, key: &[u8]) -> Option<&Arc<ClientKey>> {
        self.by_digest.get(&digest_key(key))
    }

    /// Returns the key of the client with this digest, as runs store it.
    pub(super) fn find_client(&self, client: &str) -> Option<&Arc<ClientKey>> {
        self.by_client.get(client)
    }

    /// Returns the key of this name.
    pub(super) fn key_named(&self, name: &str) -> Option<&Arc<ClientKey>> {
        self.by_digest.values().find(|key| key.name == name)
    }

    /// Returns true if some keys are operators'.
    pub(super) fn has_operators(&self) -> bool {
        self.has_operators
    }

    /// Returns the keys of operators, each with its digest.
    pub(super) fn operators(&self) -> impl Iterator<Item = (&[u8], &Arc<ClientKey>)> {
        let operators = self.by_digest.iter().filter(|(_, key)| key.is_operator);
        operators.map(|(digest, key)| (&digest[..], key))
    }

    /// Returns the keys of operators as they are stored, in order.
    pub(super) fn operator_keys(&self) -> Vec<OperatorKey> {
        let operators = self.operators();
        let mut keys: Vec<_> = operators
            .map(|(digest, key)| OperatorKey { digest: hex(digest), name: key.name.clone() })
            .collect();
        keys.sort_unstable_by(|one, other| one.digest.cmp(&other.digest));
        keys
    }

    /// Returns what each key may use, by name.
    pub(super) fn quotas(&self) -> Vec<KeyQuota> {
        let mut quotas: Vec<_> = self.by_digest.values().map(|key| KeyQuota::from_key(key)).collect();
        quotas.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        quotas
    }

    /// Returns the names of all keys, in order.
    pub(super) fn key_names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.by_digest.values().map(|key| key.name.clone()).collect();
        names.sort_unstable();
        names
    }

    /// Returns the number of keys.
    pub(super) fn len(&self) -> usize {
        self.by_digest.len()
    }
}

/// Returns the key that a request carries: `authorization: Bearer KEY` or `x-api-key: KEY`.
pub(super) fn key_in_headers(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.as_bytes().split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then_some(key)
    });
    bearer.or_else(|| headers.get(X_API_KEY).map(HeaderValue::as_bytes)).filter(|key| !key.is_empty())
}

/// Returns the identity as a header value. Configured keys and names fit into a header; otherwise it is
/// empty.
fn identity_header(text: &str) -> HeaderValue {
    let mut value = HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static(""));
    value.set_sensitive(true);
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::units::Secret;

    fn secrets(keys: &[&str]) -> Vec<Secret> {
        keys.iter().copied().map(Secret::new).collect()
    }

    #[test]
    fn only_a_whole_key_is_found() {
        let config = ServerConfig {
            client_keys: secrets(&["sk-a", "sk-b"]),
            operator_keys: secrets(&["sk-b", "sk-root"]),
            operator_keys_env: Some("V".into()),
            ..ServerConfig::default()
        };
        let list =
            KeyList::parse("alice = 'sk-alice'\nroot = 'sk-root'\n['*']\nmax_concurrency = 3").unwrap();
        let ring = KeyRing::new(&config, list, &Meters::default());
        let check = |key: &str, expected: Option<(&str, bool, Option<u32>)>| {
            let found = ring
                .find(key.as_bytes())
                .map(|key| (key.name.as_str(), key.is_operator, key.limits.max_concurrency));
            assert_eq!(found, expected, "{key}");
        };
        check("sk-a", Some(("client_keys[a4a6d3]", false, Some(3))));
        check("sk-b", Some(("operator_keys_env[18519d]", true, None)));
        check("sk-root", Some(("root", true, Some(3))));
        check("sk-alice", Some(("alice", false, Some(3))));
        ["sk-", "sk-ab", "", "SK-A", "sk-a "].iter().for_each(|key| check(key, None));
        assert!(ring.has_operators() && ring.len() == 4);
    }

    #[test]
    fn a_name_survives_its_key() {
        let ring = |text: &str| {
            KeyRing::new(&ServerConfig::default(), KeyList::parse(text).unwrap(), &Meters::default())
        };
        let (before, after) = (ring("alice = 'sk-1'"), ring("alice = 'sk-2'"));
        assert_eq!(before.find(b"sk-1").unwrap().identity, after.find(b"sk-2").unwrap().identity);
        assert!(after.find(b"sk-1").is_none());
        let client = client_digest(b"Client alice");
        assert_eq!(after.find_client(&client).unwrap().name, "alice");
    }

    #[test]
    fn where_a_key_is_looked_for() {
        let check = |headers: &[(&'static str, &'static str)], expected: Option<&str>| {
            let pairs =
                headers.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)));
            let headers: HeaderMap = pairs.collect();
            assert_eq!(key_in_headers(&headers), expected.map(str::as_bytes), "{headers:?}");
        };
        check(&[("authorization", "Bearer sk-a")], Some("sk-a"));
        check(&[("authorization", "bearer sk-a")], Some("sk-a"));
        check(&[("authorization", "Bearer  sk-a")], Some(" sk-a"));
        check(&[("x-api-key", "sk-a")], Some("sk-a"));
        check(&[("authorization", "Bearer sk-a"), ("x-api-key", "sk-b")], Some("sk-a"));
        for value in ["sk-a", "Basic sk-a", "Bearer", "Bearer ", ""] {
            check(&[("authorization", value)], None);
        }
    }
}
