//! Checks whether the sender of a request to a hook knows the hook's secret, sent as it is or used to sign
//! the request as in Standard Webhooks (<https://www.standardwebhooks.com>, `webhook-id`,
//! `webhook-timestamp`, `webhook-signature`). Comparisons take constant time. Pure.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;

use wire::digest::is_same_secret;
use wire::units::Secret;

/// How far the time of a signed request may be off, in seconds.
const SIGNED_WINDOW: u64 = 300;
/// Prefix of a secret whose rest is base64.
const PREFIX: &str = "whsec_";
/// The most signatures of one request that are checked: one per secret while secrets are being rotated.
const MOST_SIGNATURES: usize = 8;

/// The proof that a request brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof<'a> {
    /// Nothing.
    None,
    /// The secret itself.
    Bearer(&'a [u8]),
    /// A signature.
    Signed(Signature<'a>),
}

/// The headers of a signed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature<'a> {
    /// `webhook-id`: the same for each repeat of a message.
    pub id: &'a str,
    /// `webhook-timestamp`: seconds since 1970.
    pub timestamp: &'a str,
    /// `webhook-signature`: `v1,BASE64`, several separated by spaces.
    pub signatures: &'a str,
}

/// Why a proof is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It was not made with this secret.
    Wrong,
    /// It is right, but too old or from the future: it may be a replay.
    Stale,
}

/// Checks a proof. `now`: milliseconds since 1970.
///
/// # Errors
/// When it is missing, wrong or too old.
pub(crate) fn is_proven(secret: &Secret, proof: &Proof<'_>, body: &[u8], now: u64) -> Result<(), Refusal> {
    match proof {
        Proof::Bearer(sent) if is_same_secret(secret.expose_secret().as_bytes(), sent) => Ok(()),
        Proof::None | Proof::Bearer(_) => Err(Refusal::Wrong),
        Proof::Signed(signature) => check_signature(secret, signature, body, now),
    }
}

/// Checks a signature. `now`: milliseconds since 1970.
fn check_signature(secret: &Secret, sent: &Signature<'_>, body: &[u8], now: u64) -> Result<(), Refusal> {
    let key = key_of(secret);
    let signed = [sent.id.as_bytes(), b".", sent.timestamp.as_bytes(), b".", body].concat();
    let is_right = |signature: &str| {
        let received = signature.strip_prefix("v1,").and_then(|text| STANDARD.decode(text).ok());
        received.is_some_and(|received| hmac::verify(&key, &signed, &received).is_ok())
    };
    // With an empty id, all messages would be the same one.
    let is_signed = sent.signatures.split(' ').take(MOST_SIGNATURES).any(is_right);
    if !is_signed || sent.id.is_empty() {
        return Err(Refusal::Wrong);
    }
    let time: u64 = sent.timestamp.parse().map_err(|_| Refusal::Wrong)?;
    if time.abs_diff(now / 1_000) > SIGNED_WINDOW { Err(Refusal::Stale) } else { Ok(()) }
}

fn key_of(secret: &Secret) -> hmac::Key {
    let text = secret.expose_secret();
    let decoded = text.strip_prefix(PREFIX).and_then(|rest| STANDARD.decode(rest).ok());
    hmac::Key::new(hmac::HMAC_SHA256, decoded.as_deref().unwrap_or(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification's libraries.
    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const BODY: &[u8] = br#"{"test": 2432232314}"#;
    const SIGNED: Signature<'_> = Signature {
        id: "msg_p5jXN8AQM9LWM0D4loKWxJek",
        timestamp: "1614265330",
        signatures: "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    };
    const NOW: u64 = 1_614_265_330_000;

    fn check(sent: Signature<'_>, body: &[u8], now: u64, expected: Result<(), Refusal>) {
        assert_eq!(check_signature(&Secret::new(SECRET), &sent, body, now), expected, "{sent:?}");
    }

    #[test]
    fn only_the_specifications_signature_is_accepted() {
        check(SIGNED, BODY, NOW, Ok(()));
        let two = format!("v1,AAAA v1a,x {}", SIGNED.signatures);
        check(Signature { signatures: &two, ..SIGNED }, BODY, NOW, Ok(()));
        let wrong = Err(Refusal::Wrong);
        check(SIGNED, b"{}", NOW, wrong);
        check(Signature { id: "msg_other", ..SIGNED }, BODY, NOW, wrong);
        check(Signature { timestamp: "1614265331", ..SIGNED }, BODY, NOW, wrong);
        for signatures in
            ["", "v1,", "v1", "v1,g0hM9SsE", "v0,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=", "v1,!!"]
        {
            check(Signature { signatures, ..SIGNED }, BODY, NOW, wrong);
        }
        let many = format!("{}{}", "v1,AAAA ".repeat(MOST_SIGNATURES), SIGNED.signatures);
        check(Signature { signatures: &many, ..SIGNED }, BODY, NOW, wrong);
    }

    #[test]
    fn signatures_expire_after_five_minutes() {
        let window = SIGNED_WINDOW * 1_000;
        check(SIGNED, BODY, NOW + window, Ok(()));
        check(SIGNED, BODY, NOW - window, Ok(()));
        check(SIGNED, BODY, NOW + window + 1_000, Err(Refusal::Stale));
        check(SIGNED, BODY, NOW - window - 1_000, Err(Refusal::Stale));
    }

    #[test]
    fn plain_text_secrets_sign() {
        let secret = Secret::new("a plain secret of some length");
        let tag = hmac::sign(
            &hmac::Key::new(hmac::HMAC_SHA256, secret.expose_secret().as_bytes()),
            b"m1.1614265330.{}",
        );
        let signatures = format!("v1,{}", STANDARD.encode(tag));
        let sent = Signature { id: "m1", timestamp: "1614265330", signatures: &signatures };
        assert_eq!(check_signature(&secret, &sent, b"{}", NOW), Ok(()));
    }

    /// The parts are joined by dots, so an id with a dot must not stand for another message.
    #[test]
    fn malformed_ids_and_times_are_refused() {
        let secret = Secret::new("a plain secret of some length");
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.expose_secret().as_bytes());
        for (id, timestamp) in [("", "1614265330"), ("m1", "x"), ("m1", "-5"), ("m1", "")] {
            let signed = format!("{id}.{timestamp}.{{}}");
            let signatures = format!("v1,{}", STANDARD.encode(hmac::sign(&key, signed.as_bytes())));
            let sent = Signature { id, timestamp, signatures: &signatures };
            assert_eq!(check_signature(&secret, &sent, b"{}", NOW), Err(Refusal::Wrong), "{id} {timestamp}");
        }
    }

    #[test]
    fn bearer_secrets_must_match_exactly() {
        let secret = Secret::new(SECRET);
        let check = |sent: &str| is_proven(&secret, &Proof::Bearer(sent.as_bytes()), b"", NOW);
        assert_eq!(check(SECRET), Ok(()));
        for sent in ["", "whsec_", &SECRET[..20], &format!("{SECRET} "), &SECRET.to_lowercase()] {
            assert_eq!(check(sent), Err(Refusal::Wrong), "{sent}");
        }
    }
}
