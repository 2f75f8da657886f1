//! The digest of a key, which stands for it everywhere but in the configuration. Pure.

use super::config::ServerConfig;
use wire::digest::{hex, sha256};

/// The digest of a key: its SHA-256.
pub(super) type KeyDigest = [u8; 32];

/// Returns true for a key that can be guessed over the network: one of 16 random signs cannot.
pub(super) fn is_short(key: &str) -> bool {
    key.len() < ServerConfig::SHORTEST_KEY
}

/// Returns the name of a key that has none: it stays when other keys of the list come and go.
pub(super) fn default_name(list: &str, key: &str) -> String {
    format!("{list}[{}]", short_digest(key.as_bytes()))
}

/// Returns the beginning of a key's digest, by which people tell keys apart.
pub(super) fn short_digest(key: &[u8]) -> String {
    hex(&digest_key(key)[..3])
}

/// Returns the digest of a key.
pub(super) fn digest_key(key: &[u8]) -> KeyDigest {
    sha256(key)
}
