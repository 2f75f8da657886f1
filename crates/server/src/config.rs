//! `listen`, `trusted_hosts`, `client_keys` and their like, and `[limits]`: where the server listens, who may ask and what it bounds.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;

use wire::units::{Secret, Size, deserialize_duration};

/// The settings of the server: the address, who may ask, and the bounds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerConfig {
    /// Where to listen.
    pub listen: Listen,
    /// Names under which agents and runs are reached, beside those that only this machine or network can have.
    pub trusted_hosts: Vec<String>,
    /// Origins under which a proxy shows the page, where it does not pass the host name on.
    pub trusted_origins: Vec<String>,
    /// The keys of which a client must send one; none: nobody is asked for a key. Once the configuration is loaded, this
    /// holds those of `client_keys_env` too.
    pub client_keys: Vec<Secret>,
    /// The file that holds keys with names and limits.
    pub client_keys_file: Option<PathBuf>,
    /// The environment variable that holds keys, between commas or spaces.
    pub client_keys_env: Option<String>,
    /// The keys that see and end the runs of all clients, read from the variable that `operator_keys_env` names.
    pub operator_keys: Vec<Secret>,
    /// The environment variable that holds keys of operators.
    pub operator_keys_env: Option<String>,
    /// Listen on an address that others reach, although clients need no key.
    pub allow_unauthenticated: bool,
    /// Pass administrative routes of the model server on.
    pub allow_admin_routes: bool,
    /// Routes of the model server that are passed on besides those for inference and information; `/*` at the end stands for
    /// all that is below.
    pub pass_routes: Vec<String>,
    /// `[limits]`.
    pub limits: LimitsConfig,
}

impl ServerConfig {
    /// True where clients need a key. Keys that are only for operators close an address that others reach,
    /// also through a proxy, but not one of this machine.
    pub fn asks_for_keys(&self) -> bool {
        !self.client_keys.is_empty()
            || self.client_keys_file.is_some()
            || self.client_keys_env.is_some()
            || (self.operator_keys_env.is_some() && self.is_reached_by_others())
    }

    /// Whether others than this machine reach the address, as far as the settings say.
    fn is_reached_by_others(&self) -> bool {
        !(self.listen.is_loopback() && self.trusted_hosts.is_empty() && self.trusted_origins.is_empty())
    }

    /// True where some key may be an operator's. A file of keys is not looked into.
    pub fn may_have_operators(&self) -> bool {
        !self.operator_keys.is_empty() || self.operator_keys_env.is_some() || self.client_keys_file.is_some()
    }
}

/// An address to listen on, `HOST:PORT`. The host may be a name, an IPv4 address or an IPv6 address in brackets; port 0
/// lets the system choose. Without a host (`:8003`) it is loopback, so that nothing is open by accident.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// A name or an address, an IPv6 one without its brackets.
    pub host: String,
    /// The port, 0 for any that is free.
    pub port: u16,
}

impl Default for Listen {
    fn default() -> Self {
        Self { host: "127.0.0.1".into(), port: 8003 }
    }
}

impl Listen {
    /// True when only this machine can reach it.
    pub fn is_loopback(&self) -> bool {
        let is_name = self.host == "localhost" || self.host.ends_with(".localhost");
        is_name || self.host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            |why: &str| format!("{text:?} is not an address to listen on: {why}, as \"127.0.0.1:8003\"");
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

/// `[limits]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsConfig {
    /// The largest request body.
    pub max_body: Size,
    /// All request bodies together, from their first byte to the end of their requests.
    pub max_bodies: Size,
    /// Tool results since the last real user message after which the loop guard answers.
    pub max_tool_results: usize,
    /// Identical consecutive calls after which the loop guard answers.
    pub max_repeats: usize,
    /// How long a true HTTP status is waited for before the head of a stream is sent.
    #[serde(deserialize_with = "deserialize_duration")]
    pub commit_after: Duration,
    /// The pause between heartbeats while upstream is silent.
    #[serde(deserialize_with = "deserialize_duration")]
    pub heartbeat: Duration,
    /// How long a client may take for the head of a request, send nothing in the middle of a body, or take nothing of a
    /// reply.
    #[serde(deserialize_with = "deserialize_duration")]
    pub client_timeout: Duration,
    /// How long streams in flight may go on after SIGTERM.
    #[serde(deserialize_with = "deserialize_duration")]
    pub drain: Duration,
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            max_body: Size::mib(32),
            max_bodies: Size::mib(512),
            max_tool_results: 500,
            max_repeats: 8,
            commit_after: Duration::from_secs(2),
            heartbeat: Duration::from_secs(10),
            client_timeout: Duration::from_mins(1),
            drain: Duration::from_secs(30),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
