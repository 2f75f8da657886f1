//! `[[upstream]]`: a model server, and where its routes are.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use http::uri::{InvalidUri, PathAndQuery};
use serde::Deserialize;
use url::Url;

use wire::units::{InvalidValue, Secret, deserialize_optional_duration};

wire::string_enum! {
    /// Another API than chat completions that a model server may answer itself.
    OwnWire {
        /// `POST /v1/responses`.
        #[default]
        Responses = "responses",
        /// `POST /v1/messages` and `/v1/messages/count_tokens`.
        Messages = "messages",
    }
}

wire::settings! {
    /// One `[[upstream]]`.
    #[derive(Clone, Debug, PartialEq, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct UpstreamConfig {
        /// Its name in logs, metrics and agents' settings.
        pub name: String = String::new(), when_unset("host and port of `url`", r#""box""#);
        /// The server, with or without `/v1`; or `replay:DIR` for recorded replies. If no upstream is
        /// configured, it is `http://127.0.0.1:8000`.
        pub url: Address = Address::default(), must_be_set(r#""http://127.0.0.1:8000""#);
        /// The key that is sent instead of the client's.
        pub api_key: Option<Secret> = None, when_unset("the client's own key is passed on", r#""sk-local""#);
        /// The environment variable that holds the key.
        pub api_key_env: Option<String> = None, when_unset("the key in `api_key`", r#""VLLM_API_KEY""#);
        /// The models it serves. With several upstreams, it gets requests for these models only.
        pub models: Option<Vec<String>> = None, when_unset("the list in its `/v1/models`", r#"["gpt-oss-120b"]"#);
        /// Its share of the conversations among upstreams that serve the same model.
        pub weight: u32 = 1;
        /// APIs that the server answers itself, `responses` or `messages`: their requests are passed on
        /// unchanged. respool answers the others from chat completions (docs/clients.md).
        pub wires: Vec<OwnWire> = Vec::new(), with_example(r#"["responses"]"#);
        /// How many requests it gets at a time; further requests wait in a queue.
        pub max_concurrency: Option<usize> = None, when_unset("no limit", "64");
        /// With `max_concurrency`: how many requests may wait for a free slot; any further request gets a 429
        /// that says when to try again.
        pub max_queue: usize = 128, with_minimum(0);
        /// The header in which it gets the conversation's name, if it is a router that keeps conversations
        /// together by one (docs/upstreams.md).
        pub session_header: Option<String> = None, when_unset("none is added", r#""x-smg-routing-key""#);
        /// The `x-gateway-inference-objective` that it gets with requests that are `interactive`, `subagent`
        /// or `background`.
        pub objectives: BTreeMap<String, String> = BTreeMap::new(), with_example(r#"{ background = "batch" }"#);
        /// How long one request may take in total.
        #[serde(deserialize_with = "deserialize_optional_duration")]
        pub timeout: Option<Duration> = None, when_unset("no limit", r#""30m""#);
        derived {
            /// The client's key is for respool alone, and does not go along. Follows from `client_keys`.
            pub client_keys_end_here: bool = false;
        }
    }
}

impl UpstreamConfig {
    /// An upstream of which only the address is known.
    pub fn with_address(url: Address) -> Self {
        Self { url, ..Self::default() }.with_default_name()
    }

    /// Calls it by its URL's host and port when it has no name: metrics show it, and a path may be secret.
    #[must_use]
    pub fn with_default_name(mut self) -> Self {
        if self.name.is_empty() {
            self.name = self.url.without_scheme();
        }
        self
    }
}

/// Where an upstream is: `http://…`, `https://…` (with or without `/v1`) or `replay:DIR`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// An OpenAI-compatible server.
    Http {
        /// The base of everything that is not below `/v1`, without a final slash.
        root: String,
        /// The base of what OpenAI's API has below `/v1`, without a final slash.
        api: String,
    },
    /// A directory of recorded replies.
    Replay(PathBuf),
}

impl Default for Address {
    fn default() -> Self {
        Self::Http { root: "http://127.0.0.1:8000".into(), api: "http://127.0.0.1:8000/v1".into() }
    }
}

impl Address {
    /// The URL for a path as respool's own clients write it: `/v1/…` or, say, `/tokenize?x=y`. `None` for a
    /// replay.
    pub fn endpoint_url(&self, path_and_query: &str) -> Option<String> {
        let Self::Http { root, api } = self else { return None };
        match path_and_query.strip_prefix("/v1") {
            Some(rest) if rest.is_empty() || rest.starts_with(['/', '?']) => Some(format!("{api}{rest}")),
            _ => Some(format!("{root}{path_and_query}")),
        }
    }

    /// The path and query of the URL that [`Address::endpoint`] returns.
    pub(super) fn endpoint_path(&self, path_and_query: &str) -> Option<Result<PathAndQuery, InvalidUri>> {
        let url = self.endpoint_url(path_and_query)?;
        let rest = url.split_once("://").map_or(&*url, |(_, rest)| rest);
        Some(PathAndQuery::try_from(rest.find('/').map_or("/", |at| &rest[at..])))
    }

    /// True for `https`.
    pub fn is_tls(&self) -> bool {
        matches!(self, Self::Http { root, .. } if root.starts_with("https://"))
    }

    /// The address without its scheme: what a nameless upstream is called.
    fn without_scheme(&self) -> String {
        match self {
            Self::Http { root, .. } => {
                let rest = root.split_once("://").map_or(root.as_str(), |(_, rest)| rest);
                rest.split('/').next().unwrap_or_default().to_owned()
            }
            Self::Replay(_) => self.to_string(),
        }
    }

    fn parse_http(text: &str, url: &Url) -> Result<Self, InvalidValue> {
        let wrong = |why: &'static str| Err(not_a_base(text, why));
        if !url.username().is_empty() || url.password().is_some() {
            return Err(InvalidValue::Unnamed(
                "the URL holds a user name or password; put the key into api_key or api_key_env",
            ));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return wrong("it has a query or a fragment; leave out what follows \"?\" or \"#\"");
        }
        let base = url.as_str().trim_end_matches('/').to_owned();
        if ["/completions", "/models", "/embeddings", "/responses"].iter().any(|route| base.ends_with(route))
        {
            return wrong(
                "it names a single route; write the part before it, such as \"http://127.0.0.1:8000\"",
            );
        }
        let versioned = url.path_segments().into_iter().flatten().any(is_version);
        Ok(match base.strip_suffix("/v1") {
            Some(root) => Self::Http { root: root.to_owned(), api: base },
            None if versioned => Self::Http { root: base.clone(), api: base },
            None => Self::Http { api: format!("{base}/v1"), root: base },
        })
    }
}

fn not_a_base(text: &str, why: impl Into<Cow<'static, str>>) -> InvalidValue {
    InvalidValue::form(&without_secrets(text), "a base URL", why)
}

/// A URL that is wrong, for the message: what is before `@` and behind `?` or `#` may be a key.
fn without_secrets(text: &str) -> String {
    let text = text.split(['?', '#']).next().unwrap_or_default();
    match text.rsplit_once('@') {
        Some((before, host)) => {
            let scheme =
                before.split_once("://").map(|(scheme, _)| format!("{scheme}://")).unwrap_or_default();
            format!("{scheme}…@{host}")
        }
        None => text.to_owned(),
    }
}

/// True for a path segment such as `v1` or `v1beta`: the base then says where the API is
/// (`https://host/v1/openai`).
fn is_version(segment: &str) -> bool {
    let number = segment.strip_prefix('v').and_then(|rest| rest.strip_prefix(|c: char| c.is_ascii_digit()));
    number.is_some_and(|rest| rest.is_empty() || rest.starts_with("alpha") || rest.starts_with("beta"))
}

impl FromStr for Address {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let text = text.trim();
        let wrong = |why: String| Err(not_a_base(text, why));
        match text.strip_prefix("replay:") {
            Some("") => {
                return Err(InvalidValue::Unnamed(
                    "replay: needs a directory, such as \"replay:fixtures/replay\"",
                ));
            }
            Some(directory) => return Ok(Self::Replay(PathBuf::from(directory))),
            None if text.is_empty() => return wrong("it is empty; write \"http://127.0.0.1:8000\"".into()),
            None => {}
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            // A slip such as `http//box` or `http:/box`.
            let slips = ["http//", "http:/", "https//", "https:/"];
            let slip = slips.iter().find_map(|slip| Some((slip, text.strip_prefix(slip)?)));
            let (scheme, host) =
                slip.map_or(("http", text), |(slip, rest)| (slip.trim_end_matches(['/', ':']), rest));
            let is_wrong = if slip.is_some() { "is incomplete" } else { "is missing" };
            return wrong(format!("the scheme {is_wrong}; write \"{scheme}://{}\"", without_secrets(host)));
        };
        if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
            return wrong("only http, https and replay:DIR are possible".into());
        }
        if rest.is_empty() || rest.starts_with('/') {
            return wrong("the host is missing; write it as \"http://127.0.0.1:8000\"".into());
        }
        match Url::parse(text) {
            Ok(url) => Self::parse_http(text, &url),
            Err(why) => wrong(format!("{why}; write it as \"http://127.0.0.1:8000\"")),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http { root, .. } => out.write_str(root),
            Self::Replay(directory) => write!(out, "replay:{}", directory.display()),
        }
    }
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: serde::Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        String::deserialize(source)?.parse().map_err(serde::de::Error::custom)
    }
}

wire::text_setting!(Address, "a base URL");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_with_and_without_v1() {
        for (text, root, chat) in [
            ("http://127.0.0.1:8000", "http://127.0.0.1:8000", "http://127.0.0.1:8000/v1/chat/completions"),
            ("http://127.0.0.1:8000/", "http://127.0.0.1:8000", "http://127.0.0.1:8000/v1/chat/completions"),
            (
                "HTTP://127.0.0.1:8000/v1",
                "http://127.0.0.1:8000",
                "http://127.0.0.1:8000/v1/chat/completions",
            ),
            (
                "http://127.0.0.1:8000/v1//",
                "http://127.0.0.1:8000",
                "http://127.0.0.1:8000/v1/chat/completions",
            ),
            (
                "https://box.example/llm/v1/",
                "https://box.example/llm",
                "https://box.example/llm/v1/chat/completions",
            ),
            (
                "https://box.example/llm",
                "https://box.example/llm",
                "https://box.example/llm/v1/chat/completions",
            ),
            (
                "https://a.example/v1/openai",
                "https://a.example/v1/openai",
                "https://a.example/v1/openai/chat/completions",
            ),
            (
                "http://gpus.example/v100",
                "http://gpus.example/v100",
                "http://gpus.example/v100/v1/chat/completions",
            ),
            ("http://[::1]:80", "http://[::1]", "http://[::1]/v1/chat/completions"),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), root, "{text}");
            assert_eq!(address.endpoint_url("/v1/chat/completions").as_deref(), Some(chat), "{text}");
            assert_eq!(address.endpoint_url("/tokenize?a=b"), Some(format!("{root}/tokenize?a=b")), "{text}");
            assert_eq!(root.parse::<Address>().as_ref(), Ok(&address), "{text} written and read again");
        }
    }

    #[test]
    fn paths_like_v1_are_not_below_it() {
        let address = Address::default();
        assert_eq!(address.endpoint_url("/v10/x").as_deref(), Some("http://127.0.0.1:8000/v10/x"));
        assert_eq!(address.endpoint_url("/v1?x").as_deref(), Some("http://127.0.0.1:8000/v1?x"));
    }

    #[test]
    fn addresses_that_are_none_say_why() {
        for (text, why) in [
            ("", "it is empty; write \"http://127.0.0.1:8000\""),
            ("127.0.0.1:8000", "the scheme is missing; write \"http://127.0.0.1:8000\""),
            ("localhost:8000/v1", "the scheme is missing"),
            ("http//box:8000", "write \"http://box:8000\""),
            ("https:/box", "write \"https://box\""),
            ("ftp://box", "only http, https and replay:DIR"),
            ("http://", "the host is missing"),
            ("http:///v1", "the host is missing"),
            ("http://a b", "is not a base URL"),
            ("http://box:99999", "invalid port"),
            ("http://user:pass@box", "api_key"),
            ("http://box?x=y", "query"),
            ("http://box#x", "fragment"),
            ("http://box/v1/chat/completions", "single route"),
            ("replay:", "needs a directory"),
        ] {
            let error = text.parse::<Address>().expect_err(text).to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn a_nameless_upstream_is_called_by_its_address() {
        let name = |url: &str| UpstreamConfig::with_address(url.parse().unwrap()).name;
        assert_eq!(name("https://box.example:444/x/v1"), "box.example:444");
        assert_eq!(name("replay:some/dir"), "replay:some/dir");
    }
}
