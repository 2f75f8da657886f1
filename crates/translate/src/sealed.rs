//! Protects reasoning that a client keeps for respool: sealed (others can neither read nor change it) or
//! signed (others can read it, but not change it).
//!
//! Clients of the Responses and Messages APIs carry reasoning back as `encrypted_content` or with a
//! `signature`. Returned reasoning is used only if it was made with the same secret. The nonce follows from
//! the text, so nothing here is random. Called by `responses` and `messages`.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac;

/// The beginning of a sealed text. The number is the version of its form, which stays readable.
const SEALED: &str = "respool.sealed.1.";
/// The beginning of a signature.
const SIGNED: &str = "respool.signed.1.";

/// Seals and opens with one secret.
#[derive(Debug)]
pub struct Sealer {
    sealing: LessSafeKey,
    nonces: hmac::Key,
    signing: hmac::Key,
}

impl Sealer {
    /// Derives the keys from a secret: any bytes that only this installation knows.
    #[expect(
        clippy::expect_used,
        clippy::missing_panics_doc,
        reason = "an HMAC-SHA256 tag has the length of the key"
    )]
    pub fn new(secret: &[u8]) -> Self {
        let root = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let key_for = |purpose: &str| hmac::sign(&root, purpose.as_bytes());
        let hmac_for = |purpose: &str| hmac::Key::new(hmac::HMAC_SHA256, key_for(purpose).as_ref());
        let sealing = UnboundKey::new(&CHACHA20_POLY1305, key_for("respool reasoning sealing").as_ref());
        Self {
            sealing: LessSafeKey::new(sealing.expect("32 bytes are a key")),
            nonces: hmac_for("respool reasoning nonces"),
            signing: hmac_for("respool reasoning signatures"),
        }
    }

    /// Seals a text.
    pub fn seal(&self, text: &str) -> String {
        let tag = hmac::sign(&self.nonces, text.as_bytes());
        let mut nonce = [0; NONCE_LEN];
        nonce.copy_from_slice(&tag.as_ref()[..NONCE_LEN]);
        let mut sealed = text.as_bytes().to_vec();
        let unique = Nonce::assume_unique_for_key(nonce);
        if self.sealing.seal_in_place_append_tag(unique, Aad::from(SEALED), &mut sealed).is_err() {
            // Only texts beyond 256 GB do not fit the cipher.
            return String::new();
        }
        format!("{SEALED}{}", URL_SAFE_NO_PAD.encode([&nonce[..], &sealed].concat()))
    }

    /// Opens a text that was sealed with this secret; `None` for any other.
    pub fn open(&self, sealed: &str) -> Option<String> {
        let bytes = URL_SAFE_NO_PAD.decode(sealed.strip_prefix(SEALED)?).ok()?;
        let (nonce, text) = bytes.split_at_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut text = text.to_vec();
        let opened = self.sealing.open_in_place(nonce, Aad::from(SEALED), &mut text).ok()?;
        String::from_utf8(opened.to_vec()).ok()
    }

    /// Signs a text that the client can read.
    pub fn sign(&self, text: &str) -> String {
        format!("{SIGNED}{}", URL_SAFE_NO_PAD.encode(hmac::sign(&self.signing, text.as_bytes())))
    }

    /// Returns true when the signature was made for this text with this secret.
    pub fn is_signed(&self, text: &str, signature: &str) -> bool {
        let tag = signature.strip_prefix(SIGNED).and_then(|tag| URL_SAFE_NO_PAD.decode(tag).ok());
        tag.is_some_and(|tag| hmac::verify(&self.signing, text.as_bytes(), &tag).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn sealed_and_signed_texts_are_known(text in any::<String>()) {
            let sealer = Sealer::new(b"secret");
            prop_assert_eq!(sealer.open(&sealer.seal(&text)), Some(text.clone()));
            prop_assert!(sealer.is_signed(&text, &sealer.sign(&text)));
        }
    }

    #[test]
    fn another_secret_or_a_changed_text_is_refused() {
        let (ours, other) = (Sealer::new(b"secret"), Sealer::new(b"another"));
        let sealed = ours.seal("because");
        assert!(!sealed.contains("because") && other.open(&sealed).is_none());
        for at in SEALED.len()..sealed.len() {
            let mut changed = sealed.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            assert_eq!(ours.open(&String::from_utf8(changed).unwrap()), None, "byte {at}");
        }
        let signature = ours.sign("because");
        assert!(!ours.is_signed("becaus", &signature) && !other.is_signed("because", &signature));
        for foreign in ["", "gAAAAABo", SEALED, SIGNED, "respool.sealed.1.AAAA"] {
            assert!(ours.open(foreign).is_none() && !ours.is_signed("", foreign), "{foreign}");
        }
    }

    #[test]
    fn the_form_of_version_1_stays_readable() {
        let sealer = Sealer::new(b"secret");
        insta::assert_snapshot!(format!("{}\n{}", sealer.seal("why"), sealer.sign("why")));
    }
}
