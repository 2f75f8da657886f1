//! Protects reasoning that a client keeps for respool: sealed (others can neither read nor change it) or
//! signed (others can read it, but not change it).
//!
//! Clients of the Responses and Messages APIs carry reasoning back as `encrypted_content` or with a
//! `signature`. Returned reasoning is used only if it was made with the same secret. Texts are sealed with
//! AES-256-GCM-SIV (RFC 8452), which needs no random nonce: the same text is sealed in the same way.
//! Called by `responses` and `messages`.

use aes_gcm_siv::aead::{Aead as _, KeyInit as _, Payload};
use aes_gcm_siv::{Aes256GcmSiv, Nonce};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, UnboundKey};
use ring::hmac;

/// The beginning of a sealed text. The number is the version of its form.
const SEALED: &str = "respool.sealed.2.";
/// The beginning of what respool 0.2.0 and earlier sealed with ChaCha20-Poly1305. It stays readable.
const SEALED_1: &str = "respool.sealed.1.";
/// The beginning of a signature.
const SIGNED: &str = "respool.signed.1.";

/// Seals and opens with one secret.
#[derive(Debug)]
pub struct Sealer {
    sealing: Aes256GcmSiv,
    opening_1: LessSafeKey,
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
        let sealing = Aes256GcmSiv::new_from_slice(key_for("respool reasoning AES-GCM-SIV").as_ref());
        let opening_1 = UnboundKey::new(&CHACHA20_POLY1305, key_for("respool reasoning sealing").as_ref());
        Self {
            sealing: sealing.expect("32 bytes are a key"),
            opening_1: LessSafeKey::new(opening_1.expect("32 bytes are a key")),
            signing: hmac::Key::new(hmac::HMAC_SHA256, key_for("respool reasoning signatures").as_ref()),
        }
    }

    /// Seals a text.
    pub fn seal(&self, text: &str) -> String {
        let payload = Payload { msg: text.as_bytes(), aad: SEALED.as_bytes() };
        match self.sealing.encrypt(&Nonce::default(), payload) {
            Ok(sealed) => format!("{SEALED}{}", URL_SAFE_NO_PAD.encode(sealed)),
            // Only texts beyond 64 GB do not fit the cipher.
            Err(_) => String::new(),
        }
    }

    /// Opens a text that was sealed with this secret; `None` for any other.
    pub fn open(&self, sealed: &str) -> Option<String> {
        let Some(text) = sealed.strip_prefix(SEALED) else { return self.open_1(sealed) };
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let payload = Payload { msg: &bytes, aad: SEALED.as_bytes() };
        String::from_utf8(self.sealing.decrypt(&Nonce::default(), payload).ok()?).ok()
    }

    fn open_1(&self, sealed: &str) -> Option<String> {
        let bytes = URL_SAFE_NO_PAD.decode(sealed.strip_prefix(SEALED_1)?).ok()?;
        let (nonce, text) = bytes.split_at_checked(NONCE_LEN)?;
        let nonce = ring::aead::Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut text = text.to_vec();
        let opened = self.opening_1.open_in_place(nonce, Aad::from(SEALED_1), &mut text).ok()?;
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
        for foreign in ["", "gAAAAABo", SEALED, SIGNED, SEALED_1, "respool.sealed.1.AAAA"] {
            assert!(ours.open(foreign).is_none() && !ours.is_signed("", foreign), "{foreign}");
        }
    }

    #[test]
    fn stored_forms_stay_readable() {
        let sealer = Sealer::new(b"secret");
        insta::assert_snapshot!(format!("{}\n{}", sealer.seal("why"), sealer.sign("why")));
        let version_1 = "respool.sealed.1.IizTZTn_BN0Dg4sc_7GT9c3U4c2mfiOb5F3ETyCq6Q";
        assert_eq!(sealer.open(version_1).as_deref(), Some("why"));
    }
}
