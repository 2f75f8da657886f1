//! Requests that a web page sends through a person's browser: recognised by their headers, and refused unless
//! the page is respool's own. Pure. Called by `access`, where clients have no keys; a stranger's page has
//! none.

use std::net::IpAddr;

use http::{HeaderMap, HeaderValue, header};

use super::config::ServerConfig;
use wire::{ApiError, ErrorCode};

/// A name below one of these cannot be registered on the internet.
const PRIVATE: [&str; 5] = [".localhost", ".local", ".internal", ".lan", ".home.arpa"];

/// The header in which a browser describes the page that sent a request. A page cannot change it, and other
/// clients do not send it.
const FETCH_SITE: &str = "sec-fetch-site";

/// The names under which respool is reached.
#[derive(Debug, Default)]
pub(super) struct OriginCheck {
    /// Trusted names that lead here, in lower case.
    trusted: Vec<String>,
    checks_hosts: bool,
}

impl OriginCheck {
    /// Takes the configured names. The machine's own name is trusted too.
    pub(super) fn new(config: &ServerConfig) -> Self {
        let own = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
        let trusted = config.trusted_hosts.iter().cloned().chain(own);
        Self {
            trusted: trusted.map(|name| name.to_ascii_lowercase()).collect(),
            checks_hosts: config.listen.is_loopback() || !config.trusted_hosts.is_empty(),
        }
    }

    /// Refuses a request of a page of another site (`origin`, `sec-fetch-site`), and one of a page whose own
    /// name was made to lead here (`host`).
    pub(super) fn refuse_foreign(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        // A value that is not text is not trusted. A header that comes twice must be right each time.
        let texts =
            |name| headers.get_all(name).iter().map(|value: &HeaderValue| value.to_str().unwrap_or("null"));
        let host = texts(header::HOST.as_str()).next();
        for origin in texts(header::ORIGIN.as_str()) {
            let authority = origin.split_once("://").map_or(origin, |(_, authority)| authority);
            if host != Some(authority) || !self.is_certain(&name_of(authority)) {
                return Err(foreign_origin("origin"));
            }
        }
        if texts(FETCH_SITE).any(|site| site == "cross-site" || site == "same-site") {
            return Err(foreign_origin(FETCH_SITE));
        }
        let mut names = texts(header::HOST.as_str()).filter(|_| self.checks_hosts).map(name_of);
        let Some(name) = names.find(|name| !self.is_private(name)) else { return Ok(()) };
        let what = format!(
            "The host name `{}` of this request is not trusted: a stranger's web page could have chosen it. If it is yours, add it \
             to `trusted_hosts` in respool.toml",
            name.escape_default()
        );
        Err(ApiError::bad_request(ErrorCode::UntrustedHost, what))
    }

    /// Returns true for a name that no stranger can have chosen.
    fn is_private(&self, name: &str) -> bool {
        self.is_certain(name) || !name.contains('.') || PRIVATE.iter().any(|private| name.ends_with(private))
    }

    /// Returns true for an address, `localhost`, or a name that is known to be this machine's.
    fn is_certain(&self, name: &str) -> bool {
        name == "localhost" || name.parse::<IpAddr>().is_ok() || self.trusted.iter().any(|own| own == name)
    }
}

fn foreign_origin(name: &str) -> ApiError {
    let what = format!(
        "A web page from another site sent this request (header `{name}`). respool does not answer it, because it adds its own key or runs \
         agents here: give clients keys (`client_keys` in respool.toml)"
    );
    ApiError::new(403, ErrorCode::ForeignOrigin, what)
}

/// Returns the name or address of `HOST:PORT`, in lower case, without brackets and final dot.
fn name_of(authority: &str) -> String {
    let name = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, rest)) if rest.is_empty() || rest.starts_with(':') => address,
        // This cannot be an address.
        Some(_) => authority,
        None => authority.split_once(':').map_or(authority, |(name, _)| name),
    };
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    fn check_page(config: &ServerConfig, host: &str, origin: Option<&str>, expected: Option<(u16, &str)>) {
        let origin = origin.map(|origin| ("origin", origin));
        let headers = headers(&origin.into_iter().chain([("host", host)]).collect::<Vec<_>>());
        let error = OriginCheck::new(config).refuse_foreign(&headers).err();
        let found =
            error.as_ref().map(|error| (error.status, error.code.map(ErrorCode::as_str).unwrap_or_default()));
        assert_eq!(found, expected, "{host} {origin:?}");
    }

    #[test]
    fn loopback_answers_only_private_names() {
        let loopback =
            ServerConfig { trusted_hosts: vec!["LLM.example.org".into()], ..ServerConfig::default() };
        for host in [
            "127.0.0.1:8003",
            "127.0.0.1",
            "[::1]:8003",
            "192.168.1.2:8003",
            "localhost:8003",
            "localhost.",
            "box",
            "box:8003",
            "a.localhost",
            "box.local:80",
            "host.docker.internal:8003",
            "box.lan",
            "box.home.arpa",
            "llm.example.org:443",
            "llm.Example.org.",
        ] {
            check_page(&loopback, host, None, None);
        }
        // It is not known to be a browser, and a 403 would make OpenClaw disable its provider.
        let refused = Some((400, "untrusted_host"));
        for host in [
            "evil.example:8003",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "evil.local.example",
            "x.org",
            "[::1].evil.example",
        ] {
            check_page(&loopback, host, None, refused);
        }
        let open = ServerConfig { listen: "0.0.0.0:8003".parse().unwrap(), ..ServerConfig::default() };
        check_page(&open, "evil.example", None, None);
        let trusting = ServerConfig { trusted_hosts: vec!["llm.example.org".into()], ..open };
        check_page(&trusting, "evil.example", None, refused);
        assert_eq!(OriginCheck::new(&loopback).refuse_foreign(&HeaderMap::new()), Ok(()), "not a browser");
    }

    #[test]
    fn the_name_of_this_machine_is_its_own() {
        let pages = OriginCheck { trusted: vec!["box.example.org".into()], checks_hosts: true };
        assert_eq!(pages.refuse_foreign(&headers(&[("host", "box.example.org:8003")])), Ok(()));
        let own = nix::unistd::gethostname().unwrap().into_string().unwrap().to_ascii_lowercase();
        assert!(OriginCheck::new(&ServerConfig::default()).trusted.contains(&own));
    }

    #[test]
    fn foreign_origins_are_refused() {
        let config =
            ServerConfig { trusted_hosts: vec!["llm.example.org".into()], ..ServerConfig::default() };
        let check = |host: &str, origin: &str, expected| check_page(&config, host, Some(origin), expected);
        let refused = Some((403, "foreign_origin"));
        check("127.0.0.1:8003", "http://127.0.0.1:8003", None);
        check("[::1]:8003", "http://[::1]:8003", None);
        check("localhost:8003", "http://localhost:8003", None);
        check("llm.example.org", "https://llm.example.org", None);
        check("127.0.0.1:8003", "http://127.0.0.1:8004", refused);
        check("127.0.0.1:8003", "https://evil.example", refused);
        check("evil.example", "http://evil.example", refused);
        let mut twice = headers(&[("host", "127.0.0.1:8003"), ("origin", "http://127.0.0.1:8003")]);
        assert_eq!(OriginCheck::new(&config).refuse_foreign(&twice), Ok(()));
        twice.append("origin", "https://evil.example".parse().unwrap());
        assert!(OriginCheck::new(&config).refuse_foreign(&twice).is_err());
        let mut twice = headers(&[("host", "127.0.0.1:8003")]);
        twice.append("host", "evil.example".parse().unwrap());
        assert!(OriginCheck::new(&config).refuse_foreign(&twice).is_err());
        check("box.lan", "http://box.lan", refused);
        check("127.0.0.1:8003", "null", refused);
    }

    #[test]
    fn a_browser_is_recognised_without_origin() {
        let check = |site: &str, is_answered: bool| {
            let headers = headers(&[("host", "127.0.0.1:8003"), (FETCH_SITE, site)]);
            let refused = OriginCheck::new(&ServerConfig::default()).refuse_foreign(&headers);
            assert_eq!(refused.is_ok(), is_answered, "{site}");
        };
        // An image or a form of another page; a page on another port of this machine.
        check("cross-site", false);
        check("same-site", false);
        check("same-origin", true);
        check("none", true);
        let origin = HeaderValue::from_bytes(b"http://\xff").unwrap();
        let mut headers = headers(&[("host", "127.0.0.1:8003")]);
        headers.insert("origin", origin);
        assert!(OriginCheck::default().refuse_foreign(&headers).is_err());
    }
}
