//! SHA-256, hexadecimal text, and the comparison of secrets. Pure.

use ring::{digest, hmac};

/// Returns the SHA-256 of these bytes.
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut found = [0; 32];
    found.copy_from_slice(digest::digest(&digest::SHA256, bytes).as_ref());
    found
}

/// Writes bytes as hexadecimal digits, in lower case.
pub fn hex(bytes: &[u8]) -> String {
    let digit = |number: u8| char::from_digit(number.into(), 16).unwrap_or_default();
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// Returns true if two secrets are equal. The time that it takes does not depend on where they differ.
pub fn is_same_secret(one: &[u8], other: &[u8]) -> bool {
    let key = hmac::Key::new(hmac::HMAC_SHA256, b"comparison");
    hmac::verify(&key, one, hmac::sign(&key, other).as_ref()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_written_as_other_programs_write_them() {
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hex(&sha256(b"abc")), expected);
        assert_eq!(hex(&[0, 0x0f, 0xf0]), "000ff0");
    }

    #[test]
    fn secrets_are_equal_as_a_whole() {
        assert!(is_same_secret(b"a secret", b"a secret") && is_same_secret(b"", b""));
        for other in ["", "a", "a secre", "a secret\0", "A secret"] {
            assert!(!is_same_secret(b"a secret", other.as_bytes()), "{other:?}");
        }
    }
}
