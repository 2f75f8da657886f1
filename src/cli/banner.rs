//! The banner of `respool serve` on a terminal: the address of the page, the values to enter in clients, the
//! upstreams and their models, and the place of the log. Elsewhere the line `ready` says what a program
//! needs.

use std::io::{self, IsTerminal as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use super::reachability::{Reachability, ask_all};
use super::say::{flat_text, say_sentences_on_stderr, unbroken};
use settings::{Flags, Loaded, Settings};
use telemetry::LogFormat;
use upstream::Fleet;

/// The banner does not wait longer for the models of a server.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// The URL that `setup` uses by default.
const USUAL_URL: &str = "http://127.0.0.1:8003";

/// Returns true if a person reads standard error.
pub(super) fn is_wanted(settings: &Settings) -> bool {
    settings.log.format == LogFormat::Auto && io::stderr().is_terminal()
}

/// Prints the banner of a server that listens on this address.
pub(super) async fn print_banner(loaded: &Loaded, flags: &Flags, address: SocketAddr, fleet: &Fleet) {
    let upstreams = ask_all(fleet, ANSWER_WITHIN).await;
    say_sentences_on_stderr(&banner_text(loaded, flags, address, &upstreams));
}

fn banner_text(loaded: &Loaded, flags: &Flags, address: SocketAddr, upstreams: &[Reachability]) -> String {
    let url = local_url(address);
    let needs_keys = loaded.settings.server.asks_for_keys();
    let at = if url == USUAL_URL { String::new() } else { format!(" --url {url}") };
    let with_key = if needs_keys { " --key-env NAME" } else { "" };
    let setup = unbroken(&format!("respool setup openclaw{at}{with_key}"));
    let key = if needs_keys {
        "one of respool's client keys"
    } else if upstreams.iter().any(|upstream| upstream.asks_for_key) {
        "that of the model server"
    } else {
        "any text"
    };
    let server = &loaded.settings.server;
    let has_operators = !server.operator_keys.is_empty() || server.client_keys_file.is_some();
    let page = if needs_keys && !has_operators {
        format!("{url}/ (needs an operator key: set RESPOOL_OPERATOR_KEY, docs/keys.md)")
    } else {
        format!("{url}/")
    };
    let file = |path: &Option<std::path::PathBuf>| path.as_ref().map(|path| path.display().to_string());
    let log = file(&loaded.settings.log.file)
        .map_or("this terminal".to_owned(), |path| format!("this terminal, and {path}"));
    let mut rows =
        vec![("Page", page), ("OpenClaw", setup), ("Clients", format!("base URL {url}/v1, API key: {key}"))];
    for (index, upstream) in upstreams.iter().enumerate() {
        let name = if index == 0 { "Upstreams" } else { "" };
        rows.push((name, format!("{}: {}", upstream.name, models_of(upstream, flags))));
    }
    rows.push((
        "Settings",
        file(&loaded.file).unwrap_or_else(|| "defaults, environment and options; no file".to_owned()),
    ));
    rows.push(("Log", log));
    let rows: Vec<String> =
        rows.iter().map(|(name, text)| format!("  {name:<10} {}", flat_text(text))).collect();
    format!("\nrespool {} is ready. Ctrl-C stops it.\n\n{}\n", env!("CARGO_PKG_VERSION"), rows.join("\n"))
}

/// Lists the models of an upstream. The banner is short: `respool check` gives the cause of a problem.
fn models_of(upstream: &Reachability, flags: &Flags) -> String {
    match &upstream.problem {
        Some(problem) => format!("cannot be used yet: {problem}; `{}` says what to do", check_command(flags)),
        None => upstream.describe_models(),
    }
}

/// Returns the command that checks the configuration of a server with these flags.
pub(super) fn check_command(flags: &Flags) -> String {
    let config = flags.config.as_ref().map(|file| format!(" --config {}", file.display()));
    let upstream = flags.upstream.as_ref().map(|url| format!(" --upstream {url}"));
    ["respool check".to_owned(), config.unwrap_or_default(), upstream.unwrap_or_default()].concat()
}

/// Returns the URL at which this machine reaches the server.
fn local_url(address: SocketAddr) -> String {
    let ip = match address.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    format!("http://{}", SocketAddr::new(ip, address.port()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use settings::{Environment, resolve};

    #[test]
    fn the_check_is_of_the_same_configuration() {
        let of_url = Flags { upstream: Some("http://gpu:8000".into()), ..Flags::default() };
        assert_eq!(check_command(&of_url), "respool check --upstream http://gpu:8000");
        let of_file = Flags { config: Some("a.toml".into()), ..Flags::default() };
        assert_eq!(check_command(&of_file), "respool check --config a.toml");
    }

    /// Regression: any text was said to do for a server that asks for a key.
    #[test]
    fn the_key_of_a_server_is_asked_for() {
        let loaded = resolve(None, &Environment::new(), &Flags::default()).unwrap();
        let text = |asks_for_key| {
            let upstream = Reachability {
                name: "box".into(),
                problem: None,
                asks_for_key,
                is_respool: false,
                models: Vec::new(),
                took: Duration::ZERO,
            };
            banner_text(&loaded, &Flags::default(), "127.0.0.1:8003".parse().unwrap(), &[upstream])
        };
        assert!(text(false).contains("API key: any text"), "{}", text(false));
        assert!(text(true).contains("API key: that of the model server"), "{}", text(true));
    }

    #[test]
    fn the_url_is_one_that_this_machine_reaches() {
        for (address, expected) in [
            ("127.0.0.1:8003", "http://127.0.0.1:8003"),
            ("0.0.0.0:80", "http://127.0.0.1:80"),
            ("[::]:80", "http://[::1]:80"),
            ("192.0.2.1:80", "http://192.0.2.1:80"),
        ] {
            assert_eq!(local_url(address.parse().unwrap()), expected);
        }
    }
}
