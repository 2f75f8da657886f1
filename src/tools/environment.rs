//! Which of respool's variables a child process gets. On a server a short list: all else could be a secret. In the chat a
//! person sits, and their tools need their settings (`CARGO_HOME`, `VIRTUAL_ENV`, `SSH_AUTH_SOCK`): all but what looks like
//! a secret. `[tools.local] pass_env` adds to both. Pure. Used by `process` and `local`.

use super::config::LocalConfig;
use super::wanted::matches;

/// What a child may know where nobody sits.
const SHORT: [&str; 15] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TMPDIR",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_RUNTIME_DIR",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
];
/// A name with one of these in it names a secret, or leads to one.
const SECRET_PARTS: [&str; 10] = [
    "KEY",
    "TOKEN",
    "SECRET",
    "PASSW",
    "PASSPHRASE",
    "CREDENTIAL",
    "COOKIE",
    "PRIVATE",
    "WEBHOOK",
    "CONNECTION_STRING",
];
/// So does one of these as a whole word of a name; respool's own settings may hold any.
const SECRET_WORDS: [&str; 8] = ["PASS", "PWD", "PAT", "AUTH", "BEARER", "DSN", "JWT", "RESPOOL"];
/// These have such words and hold no secret.
const HARMLESS: [&str; 3] = ["PWD", "OLDPWD", "SSH_AUTH_SOCK"];

/// What passes from respool's environment to a child's; by default the short list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Passing {
    is_persons: bool,
    also: Vec<String>,
    keys: Vec<String>,
}

impl Passing {
    /// `is_persons`: a person started this process for themselves.
    pub(super) fn new(config: &LocalConfig, is_persons: bool) -> Self {
        Self { is_persons, also: config.pass_env.clone(), keys: config.key_variables.clone() }
    }

    /// True for a variable that passes. One that is named passes whatever it holds; a pattern lets no secret through.
    pub(super) fn lets(&self, name: &str, value: &str) -> bool {
        if self.also.iter().any(|named| named == name) {
            return true;
        }
        let is_wanted = self.is_persons
            || SHORT.contains(&name)
            || name.starts_with("LC_")
            || self.also.iter().any(|pattern| matches(pattern, name));
        is_wanted && !self.keys.iter().any(|key| key == name) && !looks_secret(name, value)
    }
}

fn looks_secret(name: &str, value: &str) -> bool {
    let upper = name.to_ascii_uppercase();
    let is_named = SECRET_PARTS.iter().any(|part| upper.contains(part))
        || upper.split('_').any(|word| SECRET_WORDS.contains(&word));
    (is_named && !HARMLESS.contains(&name)) || has_password(value) || value.starts_with("-----BEGIN ")
}

/// `scheme://user:password@host`, as of databases and proxies; of a web address the user alone may be a token.
fn has_password(value: &str) -> bool {
    let Some((scheme, rest)) = value.split_once("://") else { return false };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    authority.rsplit_once('@').is_some_and(|(user, _)| user.contains(':') || scheme.starts_with("http"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How a variable fares on a server, in a chat, and with `pass_env` on a server.
    fn check(name: &str, value: &str, expected: [bool; 3]) {
        let config = LocalConfig { key_variables: vec!["VLLM".into()], ..LocalConfig::default() };
        let also = ["EXACT_TOKEN", "CARGO_*", "VLL*"].map(str::to_owned).to_vec();
        let asked = LocalConfig { pass_env: also, ..config.clone() };
        let found = [(&config, false), (&config, true), (&asked, false)]
            .map(|(config, is_persons)| Passing::new(config, is_persons).lets(name, value));
        assert_eq!(found, expected, "{name}={value}");
    }

    #[test]
    fn a_server_passes_a_short_list_a_chat_all_but_secrets_and_both_what_is_asked_for() {
        check("PATH", "/bin", [true, true, true]);
        check("LC_ALL", "C", [true, true, true]);
        check("VIRTUAL_ENV", "/home/you/venv", [false, true, false]);
        check("SSH_AUTH_SOCK", "/tmp/agent", [false, true, false]);
        check("CARGO_HOME", "/home/you/.cargo", [false, true, true]);
        check("CARGO_REGISTRY_TOKEN", "x", [false, false, false]);
        check("EXACT_TOKEN", "x", [false, false, true]);
        check("VLLM", "x", [false, false, false]);
    }

    #[test]
    fn secrets_are_known_by_their_names_or_their_form() {
        for name in [
            "OPENAI_API_KEY",
            "apikey",
            "GITHUB_TOKEN",
            "AWS_SECRET_ACCESS_KEY",
            "PGPASSWORD",
            "MYSQL_PWD",
            "GITHUB_PAT",
            "NPM_CONFIG__AUTH",
            "RESPOOL__UPSTREAM__0__HEADERS",
        ] {
            assert!(looks_secret(name, "x"), "{name}");
        }
        for (name, value, expected) in [
            ("DATABASE_URL", "postgres://me:pw@db/x", true),
            ("DATABASE_URL", "postgres://db/x", false),
            ("https_proxy", "http://proxy:3128", false),
            ("GIT_REMOTE", "ssh://git@host/x:y", false),
            ("CERT", "-----BEGIN PRIVATE KEY-----", true),
            ("PYTHONPATH", "src", false),
            ("GPG_TTY", "/dev/pts/1", false),
            ("OLDPWD", "/", false),
        ] {
            assert_eq!(looks_secret(name, value), expected, "{name}={value}");
        }
    }
}
