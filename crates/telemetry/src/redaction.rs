//! Replaces what looks like a secret in a text that is kept. Pure. It knows the forms of common keys; a
//! password without a name or form stays.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::Regex;

use wire::pattern::compile_pattern;

/// Keys of well-known services, tokens of the web, and private keys.
static SECRET: LazyLock<Regex> = LazyLock::new(|| {
    compile_pattern(concat!(
        r"\bsk-[A-Za-z0-9_-]{16,}",
        r"|\b(?:gh[pousr]_|github_pat_|glpat-)[A-Za-z0-9_-]{20,}",
        r"|\bxox[a-z]-[A-Za-z0-9-]{10,}",
        r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
        r"|\bAIza[A-Za-z0-9_-]{35}",
        r"|\bhf_[A-Za-z0-9]{30,}",
        r"|\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]+",
        r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?-----END [A-Z ]*PRIVATE KEY-----",
    ))
});

/// A value with a name that says that it is a secret, also in JSON within JSON. The first group stays.
static NAMED: LazyLock<Regex> = LazyLock::new(|| {
    compile_pattern(concat!(
        r#"(?i)(\b(?:api[_-]?key|access[_-]?token|auth[_-]?token|client[_-]?secret|secret[_-]?key|password|passwd)"#,
        r#"\\*"?\s*[:=]\s*\\*"?|\bbearer\s+)([^\s"'\\,;@&}\]]{6,})"#,
    ))
});

/// The password of an address.
static IN_ADDRESS: LazyLock<Regex> =
    LazyLock::new(|| compile_pattern(r#"(://[^/\s:@"\\]{1,64}:)[^\s"'\\@/]{3,}@"#));

/// Returns the text without what looks like a secret.
pub(super) fn redact_secrets(text: &str) -> Cow<'_, str> {
    let mut text = Cow::Borrowed(text);
    for (pattern, replacement) in
        [(&SECRET, "[redacted]"), (&NAMED, "${1}[redacted]"), (&IN_ADDRESS, "${1}[redacted]@")]
    {
        if let Cow::Owned(changed) = pattern.replace_all(&text, replacement) {
            text = Cow::Owned(changed);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        assert_eq!(redact_secrets(text), expected);
    }

    #[test]
    fn secrets_are_replaced() {
        check("use sk-proj-abcdefghijklmnop1234.", "use [redacted].");
        check("ghp_abcdefghijklmnopqrstuvwxyz0123 and AKIAABCDEFGHIJKLMNOP", "[redacted] and [redacted]");
        check(r#"{"password": "hunter22", "a": 1}"#, r#"{"password": "[redacted]", "a": 1}"#);
        check(
            r#"{"arguments":"{\"api_key\":\"abcdef123\"}"}"#,
            r#"{"arguments":"{\"api_key\":\"[redacted]\"}"}"#,
        );
        check("Authorization: Bearer abc.def-123", "Authorization: Bearer [redacted]");
        check("PASSWORD=s3cretword\\nNEXT=1", "PASSWORD=[redacted]\\nNEXT=1");
        check("postgres://user:s3cret!@db/x", "postgres://user:[redacted]@db/x");
        check("-----BEGIN RSA PRIVATE KEY-----\\nMII\\n-----END RSA PRIVATE KEY-----", "[redacted]");
    }

    #[test]
    fn other_text_stays() {
        for text in [
            r#"{"messages":[{"role":"user","content":"What is a password?"}]}"#,
            r#"{"properties":{"password":{"type":"string"}}}"#,
            "the bearer of bad news",
            "http://127.0.0.1:8003/v1 and sk-learn",
            r#"{"max_tokens":100,"tokens":"abcdefgh"}"#,
        ] {
            check(text, text);
        }
    }
}
