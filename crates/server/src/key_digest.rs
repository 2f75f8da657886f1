//! The digest of a key, which stands for it everywhere but in the configuration. Pure.

use sha2::{Digest as _, Sha256};

/// The digest of a key: its SHA-256.
pub(super) type KeyDigest = [u8; 32];

/// Returns true for a key that can be guessed over the network: one of 16 random signs cannot.
pub(super) fn is_short(key: &str) -> bool {
    key.len() < 16
}

/// Returns the name of a key that has none: it stays when other keys of the list come and go.
pub(super) fn default_name(list: &str, key: &str) -> String {
    let [first, second, third, ..] = digest_key(key.as_bytes());
    format!("{list}[{first:02x}{second:02x}{third:02x}]")
}

/// Returns the digest of a key.
pub(super) fn digest_key(key: &[u8]) -> KeyDigest {
    Sha256::digest(key).into()
}
