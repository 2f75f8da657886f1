//! The environment variables that a child process gets: those on a list, because any other may be a secret.
//! On a server the list is short. In the chat it is longer, because the person's tools need their settings
//! (`CARGO_HOME`, `VIRTUAL_ENV`, `SSH_AUTH_SOCK`). `[tools.local] pass_env` adds to both. Pure. Used by
//! `process` and `local`.

use super::config::LocalConfig;
use wire::pattern::matches_stars;

/// The variables for children on a server.
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
/// Further variables for children of the chat: the places and settings of languages, compilers, package
/// managers and version control. None of these names is known to hold a secret.
const PERSONS: [&str; 4] = [
    // The machine and the person.
    "PWD OLDPWD HOSTNAME SHLVL COLUMNS LINES NO_COLOR CI TEMP TMP USERNAME XDG_STATE_HOME XDG_BIN_HOME \
     XDG_DATA_DIRS XDG_CONFIG_DIRS NPROC SOURCE_DATE_EPOCH LOCALE_ARCHIVE MANPATH INFOPATH TERMINFO TERMINFO_DIRS",
    // Compilers and linkers.
    "CC CXX CPP LD AR AS CFLAGS CXXFLAGS CPPFLAGS LDFLAGS LD_LIBRARY_PATH LIBRARY_PATH CPATH C_INCLUDE_PATH \
     CPLUS_INCLUDE_PATH PKG_CONFIG_PATH MAKEFLAGS CMAKE_PREFIX_PATH CMAKE_GENERATOR CMAKE_BUILD_PARALLEL_LEVEL \
     CCACHE_DIR SCCACHE_DIR SDKROOT MACOSX_DEPLOYMENT_TARGET DEVELOPER_DIR CUDA_HOME CUDA_PATH \
     CUDA_VISIBLE_DEVICES",
    // Languages.
    "CARGO_HOME CARGO_TARGET_DIR CARGO_BUILD_JOBS CARGO_NET_OFFLINE RUSTUP_HOME RUSTUP_TOOLCHAIN RUSTFLAGS \
     RUSTDOCFLAGS RUSTC_WRAPPER RUST_BACKTRACE RUST_LOG VIRTUAL_ENV CONDA_PREFIX CONDA_DEFAULT_ENV CONDA_EXE \
     PYENV_ROOT PYENV_VERSION PYTHONPATH PYTHONHOME PIPX_HOME UV_CACHE_DIR POETRY_HOME HF_HOME GOPATH GOROOT \
     GOBIN GOFLAGS GOCACHE GOMODCACHE GOPRIVATE CGO_ENABLED JAVA_HOME MAVEN_HOME M2_HOME GRADLE_HOME \
     GRADLE_USER_HOME ANDROID_HOME ANDROID_SDK_ROOT SDKMAN_DIR NVM_DIR NVM_BIN NODE_ENV NODE_PATH NODE_OPTIONS \
     PNPM_HOME VOLTA_HOME FNM_DIR DENO_DIR BUN_INSTALL GEM_HOME GEM_PATH BUNDLE_PATH RBENV_ROOT ASDF_DIR \
     ASDF_DATA_DIR MISE_DATA_DIR DOTNET_ROOT OPAMROOT STACK_ROOT NIX_PATH NIX_PROFILES",
    // Addresses of other programs. A key that stays with its agent cannot be read.
    "SSH_AUTH_SOCK DOCKER_HOST KUBECONFIG",
];
/// Proxies, in upper or lower case; their values are checked.
const PROXIES: [&str; 4] = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"];
/// A name that contains one of these belongs to a secret, or leads to one.
const SECRET_PARTS: [&str; 12] = [
    "KEY",
    "TOKEN",
    "SECRET",
    "PASSW",
    "PASSPHRASE",
    "CREDENTIAL",
    "CREDS",
    "OAUTH",
    "COOKIE",
    "PRIVATE",
    "WEBHOOK",
    "CONNECTION_STRING",
];
/// A name with one of these as a whole word does too; respool's own settings may hold any secret.
const SECRET_WORDS: [&str; 10] =
    ["PASS", "PWD", "PAT", "AUTH", "BEARER", "DSN", "JWT", "SAS", "CRED", "RESPOOL"];
/// These names contain such words but hold no secret.
const HARMLESS: [&str; 3] = ["PWD", "OLDPWD", "SSH_AUTH_SOCK"];

/// Tokens of well-known services begin like this.
const SECRET_BEGINNINGS: [&str; 24] = [
    "-----BEGIN ",
    "sk-",
    "sk_live_",
    "sk_test_",
    "rk_live_",
    "AKIA",
    "ASIA",
    "AIza",
    "ya29.",
    "xoxa-",
    "xoxb-",
    "xoxp-",
    "xapp-",
    "ghp_",
    "gho_",
    "ghs_",
    "github_pat_",
    "glpat-",
    "hf_",
    "npm_",
    "pypi-",
    "dop_v1_",
    "SG.",
    "eyJ",
];

/// Decides which variables of respool's environment a child gets; by default the short list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Passing {
    is_persons: bool,
    also: Vec<String>,
    keys: Vec<String>,
}

impl Passing {
    /// Makes the list of variables. `is_persons`: a person started this process for themselves.
    pub(super) fn new(config: &LocalConfig, is_persons: bool) -> Self {
        Self { is_persons, also: config.pass_env.clone(), keys: config.key_variables.clone() }
    }

    /// Returns true if a child gets the variable. A name passes the variable whatever its value; a pattern
    /// passes no secret.
    pub(super) fn allows_variable(&self, name: &str, value: &str) -> bool {
        if self.also.iter().any(|named| named == name) {
            return true;
        }
        let is_wanted = SHORT.contains(&name)
            || name.starts_with("LC_")
            || (self.is_persons && is_persons(name))
            || self.also.iter().any(|pattern| matches_stars(pattern, name));
        is_wanted && !self.keys.iter().any(|key| key == name) && !looks_secret(name, value)
    }
}

fn is_persons(name: &str) -> bool {
    PERSONS.iter().any(|group| group.split(' ').any(|known| known == name))
        || PROXIES.contains(&name.to_ascii_uppercase().as_str())
}

fn looks_secret(name: &str, value: &str) -> bool {
    let upper = name.to_ascii_uppercase();
    let is_named = SECRET_PARTS.iter().any(|part| upper.contains(part))
        || upper.split('_').any(|word| SECRET_WORDS.contains(&word));
    (is_named && !HARMLESS.contains(&name)) || has_password(value) || begins_secret(value)
}

/// Returns true if the value, or a word of it as in `--header x=sk-…`, begins like a token.
fn begins_secret(value: &str) -> bool {
    let is_secret = |text: &str| SECRET_BEGINNINGS.iter().any(|beginning| text.starts_with(beginning));
    is_secret(value.trim_start())
        || value.split(|c: char| c.is_whitespace() || "=:,;\"'".contains(c)).any(is_secret)
}

/// Returns true for a value with `scheme://user:password@host`, as of databases and proxies; in a web
/// address the user alone may be a token. A proxy may be written without a scheme.
fn has_password(value: &str) -> bool {
    let authority = |rest: &str| rest.split(['/', '?', '#', ' ', ',']).next().unwrap_or_default().to_owned();
    let mut parts = value.split("://");
    let mut before = parts.next().unwrap_or_default().to_owned();
    let user = |authority: &str| authority.rsplit_once('@').map(|(user, _)| user.to_owned());
    if user(&authority(&before)).is_some_and(|user| user.contains(':')) {
        return true;
    }
    parts.any(|rest| {
        let is_web = before.ends_with("http") || before.ends_with("https");
        rest.clone_into(&mut before);
        user(&authority(rest)).is_some_and(|user| is_web || user.contains(':'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `expected`: whether the variable passes on a server, in a chat, and with `pass_env` on a server.
    fn check(name: &str, value: &str, expected: [bool; 3]) {
        let config = LocalConfig { key_variables: vec!["VLLM".into()], ..LocalConfig::default() };
        let also = ["EXACT_TOKEN", "CARGO_*", "VLL*"].map(str::to_owned).to_vec();
        let asked = LocalConfig { pass_env: also, ..config.clone() };
        let found = [(&config, false), (&config, true), (&asked, false)]
            .map(|(config, is_persons)| Passing::new(config, is_persons).allows_variable(name, value));
        assert_eq!(found, expected, "{name}={value}");
    }

    #[test]
    fn servers_and_chats_pass_their_own_lists_of_variables() {
        check("PATH", "/bin", [true, true, true]);
        check("LC_ALL", "C", [true, true, true]);
        check("VIRTUAL_ENV", "/home/you/venv", [false, true, false]);
        check("SSH_AUTH_SOCK", "/tmp/agent", [false, true, false]);
        check("CARGO_HOME", "/home/you/.cargo", [false, true, true]);
        check("CARGO_REGISTRY_TOKEN", "x", [false, false, false]);
        check("EXACT_TOKEN", "x", [false, false, true]);
        check("VLLM", "x", [false, false, false]);
        check("HTTPS_PROXY", "http://proxy:3128", [false, true, false]);
        check("https_proxy", "http://me:pw@proxy:3128", [false, false, false]);
        check("CARGO_HOME", "sk-ant-abc", [false, false, false]);
    }

    #[test]
    fn unlisted_variables_do_not_pass() {
        for (name, value) in [
            ("GITHUB_OAUTH", "x"),
            ("DB_CREDS", "x"),
            ("AZURE_SAS", "x"),
            ("ANTHROPIC", "sk-ant-api03-x"),
            ("AWS_ID", "AKIAIOSFODNN7EXAMPLE"),
            ("SLACK", "xoxb-1-2"),
            ("BASH_ENV", "/tmp/x"),
            ("LD_PRELOAD", "/tmp/x.so"),
            ("GIT_CONFIG_PARAMETERS", "x"),
            ("ANYTHING", "plain"),
        ] {
            check(name, value, [false, false, false]);
        }
        // The pattern matches all names; a likely secret still does not pass.
        let all = LocalConfig { pass_env: vec!["*".into()], ..LocalConfig::default() };
        let all = Passing::new(&all, true);
        assert!(all.allows_variable("ANYTHING", "plain"));
        for (name, value) in
            [("GITHUB_OAUTH", "x"), ("DB_CREDS", "x"), ("AZURE_SAS", "x"), ("A", "xoxb-1"), ("B", "id=AKIAX")]
        {
            assert!(!all.allows_variable(name, value), "{name}={value}");
        }
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
            ("HTTP_PROXY", "me:pw@proxy:3128", true),
            ("GOFLAGS", "-x -y=https://me@host/z", true),
            ("NODE_OPTIONS", "--require sk-x", true),
            ("PATH", "/usr/bin:/home/me@work/bin", false),
        ] {
            assert_eq!(looks_secret(name, value), expected, "{name}={value}");
        }
    }
}
