//! `listen`, `trusted_hosts`, `client_keys` and similar keys, and `[limits]`: the address of the server, its
//! clients and its limits.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;

use super::proxies::Network;
use wire::settings::{FormError, Scalar};
use wire::units::{InvalidValue, Secret, Size, deserialize_duration};

wire::settings! {
    /// The settings of the server: the address, who may ask, and the bounds.
    #[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
    #[serde(default)]
    pub struct ServerConfig {
        /// Where respool listens, HOST:PORT. Port 0 takes any free port; without a host it is loopback.
        pub listen: Listen = Listen::default();
        /// Further host names under which respool answers when `listen` is loopback. It always answers to
        /// addresses, `localhost`, names without a dot or of a private network, and the machine's own name.
        /// Checked where clients have no keys: for agents and runs, and for every request if an upstream has
        /// an `api_key` (docs/security.md).
        pub trusted_hosts: Vec<String> = Vec::new(), with_form(HOST), with_example(r#"["llm.example.org"]"#);
        /// Origins of the page behind a proxy that does not pass on the host name (docs/keys.md).
        pub trusted_origins: Vec<String> = Vec::new(),
            with_form(ORIGIN),
            with_example(r#"["https://llm.example.org"]"#);
        /// Addresses or networks of proxies in front of respool. For what comes from them, the client's
        /// address is the one in `X-Forwarded-For` (docs/keys.md).
        pub trusted_proxies: Vec<Network> = Vec::new(), with_example(r#"["127.0.0.1", "10.0.0.0/8"]"#);
        /// Each client must send one of these keys as `authorization: Bearer KEY` on every route but
        /// `/health`, `/ready` and `/metrics`. respool does not pass them on to upstreams
        /// (docs/keys.md).
        pub client_keys: Vec<Secret> = Vec::new(), with_example(r#"["sk-team-a", "sk-team-b"]"#);
        /// The file of named keys and what each of them allows: models, agents, requests a minute, tokens a
        /// day, requests at a time (docs/keys.md). It is read again when it changes.
        pub client_keys_file: Option<PathBuf> = None,
            when_unset("no keys with names", r#""/etc/respool/keys.toml""#);
        /// The environment variable that holds the keys, separated by commas or spaces.
        pub client_keys_env: Option<String> = None, when_unset("the keys in `client_keys`", r#""RESPOOL_CLIENT_KEYS""#);
        /// The environment variable that holds operator keys, separated by commas or spaces. They are client
        /// keys too; operators see and end the runs of all clients, and decide about approvals. Without
        /// `client_keys` of any form, other clients of a loopback address need no key.
        pub operator_keys_env: Option<String> = None,
            when_unset("the key in `RESPOOL_OPERATOR_KEY`; without one, no client is an operator", r#""RESPOOL_OPERATOR_KEYS""#);
        /// Let respool start on an address other than loopback without client keys. Everyone who can reach
        /// the address can then use its models and agents, and an upstream's `api_key`.
        pub allow_unauthenticated: bool = false;
        /// Pass on all routes of the model server, also those that change it, such as `/sleep`,
        /// `/collective_rpc` and `/v1/load_lora_adapter` (docs/keys.md). If there are operator keys, the
        /// routes that respool does not know are for operators only.
        pub allow_admin_routes: bool = false;
        /// Routes of the model server to pass on besides those for inference and information that respool
        /// knows (docs/keys.md). `/*` at the end stands for everything below.
        pub pass_routes: Vec<String> = Vec::new(), with_form(ROUTE), with_example(r#"["/v1/files", "/v1/files/*"]"#);
        sections {
            /// `[limits]`.
            pub limits: LimitsConfig = LimitsConfig::default();
        }
        derived {
            /// The keys that see and end the runs of all clients, read from the variable that
            /// `operator_keys_env` names.
            pub operator_keys: Vec<Secret> = Vec::new();
        }
    }
}

impl ServerConfig {
    /// The fewest characters of a key that cannot be guessed over the network.
    pub const SHORTEST_KEY: usize = 16;

    /// Returns true if clients need a key. Operator keys alone protect an address that others reach, also
    /// through a proxy, but not an address of this machine.
    pub fn asks_for_keys(&self) -> bool {
        !self.client_keys.is_empty()
            || self.client_keys_file.is_some()
            || self.client_keys_env.is_some()
            || (self.operator_keys_env.is_some() && self.is_reached_by_others())
    }

    /// Returns true if other machines reach the address, according to the settings.
    fn is_reached_by_others(&self) -> bool {
        let has_proxy = !self.trusted_origins.is_empty() || !self.trusted_proxies.is_empty();
        has_proxy || !self.listen.is_loopback() || !self.trusted_hosts.is_empty()
    }

    /// Returns true if some key may be an operator's. A file of keys is not read.
    pub fn may_have_operators(&self) -> bool {
        !self.operator_keys.is_empty() || self.operator_keys_env.is_some() || self.client_keys_file.is_some()
    }
}

/// An address to listen on, `HOST:PORT`. The host may be a name, an IPv4 address or an IPv6 address in
/// brackets; port 0 lets the system choose. Without a host (`:8003`) it is loopback, so that nothing is open
/// by accident.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// A name or an address, an IPv6 one without its brackets.
    pub host: String,
    /// The port, 0 for any free one.
    pub port: u16,
}

impl Default for Listen {
    fn default() -> Self {
        Self { host: "127.0.0.1".into(), port: 8003 }
    }
}

impl Listen {
    /// Returns true if only this machine can reach it.
    pub fn is_loopback(&self) -> bool {
        let is_name = self.host == "localhost" || self.host.ends_with(".localhost");
        is_name || self.host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
    }

    /// Returns host and port at which this machine reaches it.
    pub fn local_address(&self) -> String {
        let host = match self.host.as_str() {
            "0.0.0.0" => "127.0.0.1",
            "::" => "::1",
            host => host,
        };
        Self { host: host.to_owned(), port: self.port }.to_string()
    }
}

impl FromStr for Listen {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let wrong = |why: &str| {
            InvalidValue::form(text, "an address to listen on", format!("{why}, such as \"127.0.0.1:8003\""))
        };
        if let Ok(port) = text.trim().parse::<u16>() {
            let advice = format!("the host is missing; write \"127.0.0.1:{port}\"");
            return Err(InvalidValue::form(text, "an address to listen on", advice));
        }
        if text.contains("://") || text.contains('/') {
            return Err(wrong("write HOST:PORT without scheme or path"));
        }
        let (host, port) =
            text.trim().rsplit_once(':').ok_or_else(|| wrong("the port is missing; write HOST:PORT"))?;
        let port = port.parse().map_err(|_| wrong("the port must be a number from 0 to 65535"))?;
        let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let valid = |host: &str| host.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c));
        match (host, bare) {
            ("", _) => Ok(Self { port, ..Self::default() }),
            (_, Some(v6)) if v6.parse::<std::net::Ipv6Addr>().is_ok() => Ok(Self { host: v6.into(), port }),
            (host, None) if host.contains(':') => {
                Err(wrong("an IPv6 address needs brackets ([::1]:8003); write HOST:PORT"))
            }
            (host, None) if valid(host) => Ok(Self { host: host.into(), port }),
            _ => Err(wrong("the host is neither a name nor an address; write HOST:PORT")),
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(out, "[{}]:{}", self.host, self.port)
        } else {
            write!(out, "{}:{}", self.host, self.port)
        }
    }
}

impl<'de> Deserialize<'de> for Listen {
    fn deserialize<D: serde::Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        String::deserialize(source)?.parse().map_err(serde::de::Error::custom)
    }
}

wire::text_setting!(Listen, "an address");

const HOST: Scalar = Scalar::Form("a host name", check_host);
const ORIGIN: Scalar = Scalar::Form("an origin", check_origin);
const ROUTE: Scalar = Scalar::Form("a route", check_route);

fn check_host(text: &str) -> Result<(), FormError> {
    let is_name = !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c));
    check_form(is_name, text, "a host name", r#"write the name alone, such as "llm.example.org""#)
}

fn check_origin(text: &str) -> Result<(), FormError> {
    let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")).unwrap_or_default();
    let is_origin =
        !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || "-._:[]".contains(c));
    let advice = r#"write the scheme and the host alone, such as "https://llm.example.org""#;
    check_form(is_origin, text, "an origin", advice)
}

fn check_route(text: &str) -> Result<(), FormError> {
    let path = text.strip_suffix("/*").unwrap_or(text);
    let is_route = path.starts_with('/') && !path.contains(['*', '?', '#', ' ']);
    let advice = r#"write a path, such as "/v1/files", with `/*` at its end for everything below"#;
    check_form(is_route, text, "a route", advice)
}

fn check_form(is_valid: bool, text: &str, form: &'static str, advice: &'static str) -> Result<(), FormError> {
    if is_valid { Ok(()) } else { Err(InvalidValue::form(text, form, advice).into()) }
}

wire::settings! {
    /// `[limits]`.
    #[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct LimitsConfig {
        /// The largest request body; a larger one is answered with 413.
        pub max_body: Size = Size::mib(32);
        /// The room for all request bodies together, while requests are read, wait or stream. A request that
        /// finds no room waits a few seconds, then gets 503 with `Retry-After`.
        pub max_bodies: Size = Size::mib(512);
        /// Tool results since the last real user message after which respool ends the loop.
        pub max_tool_results: usize = 500;
        /// Identical consecutive tool calls (or cycles of two or three) after which respool ends the loop;
        /// the model is warned at half of them. For one tool that is tried in vain with changing arguments,
        /// four times as many.
        pub max_repeats: usize = 8;
        /// How long respool waits for a silent upstream's true status before it sends a stream's head.
        #[serde(deserialize_with = "deserialize_duration")]
        pub commit_after: Duration = Duration::from_secs(2), allow_zero();
        /// The pause between heartbeats while the upstream is silent.
        #[serde(deserialize_with = "deserialize_duration")]
        pub heartbeat: Duration = Duration::from_secs(10);
        /// How long a client may take to send a request's head, pause within a body, or read nothing of a
        /// reply. A body may take a second more for each 8 KiB of it.
        #[serde(deserialize_with = "deserialize_duration")]
        pub client_timeout: Duration = Duration::from_mins(1);
        /// How long streams in progress may continue after SIGTERM.
        #[serde(deserialize_with = "deserialize_duration")]
        pub drain: Duration = Duration::from_secs(30), allow_zero();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_reaches_every_listener() {
        for (listen, expected) in [
            ("127.0.0.1:8003", "127.0.0.1:8003"),
            ("0.0.0.0:8003", "127.0.0.1:8003"),
            ("[::]:8003", "[::1]:8003"),
            ("[::1]:8003", "[::1]:8003"),
            ("box.local:8003", "box.local:8003"),
        ] {
            assert_eq!(listen.parse::<Listen>().unwrap().local_address(), expected);
        }
    }

    #[test]
    fn loopback_is_known_by_name_and_address() {
        for (text, expected) in [
            (":1", true),
            ("localhost:1", true),
            ("127.1.2.3:1", true),
            ("[::1]:1", true),
            ("0.0.0.0:1", false),
            ("[::]:1", false),
            ("192.168.1.2:1", false),
            ("box:1", false),
        ] {
            assert_eq!(text.parse::<Listen>().unwrap().is_loopback(), expected, "{text}");
        }
    }

    #[test]
    fn addresses_to_listen_on() {
        for (text, expected) in [
            ("127.0.0.1:8003", Some("127.0.0.1:8003")),
            ("127.0.0.1:0", Some("127.0.0.1:0")),
            (":0", Some("127.0.0.1:0")),
            ("localhost:80", Some("localhost:80")),
            ("my_box-1.example.org:80", Some("my_box-1.example.org:80")),
            ("[::1]:8003", Some("[::1]:8003")),
            ("0.0.0.0:8003", Some("0.0.0.0:8003")),
            ("::1:8003", None),
            ("[nonsense]:1", None),
            ("127.0.0.1", None),
            ("127.0.0.1:70000", None),
            ("http://127.0.0.1:8003", None),
            ("a b:1", None),
            ("", None),
        ] {
            let parsed = text.parse::<Listen>().ok().map(|listen| listen.to_string());
            assert_eq!(parsed.as_deref(), expected, "{text}");
        }
    }
}
