//! The checks before the routes, without a server.

use super::*;
use http::HeaderValue;
use wire::units::Secret;

fn request(path: &str, headers: &[(&str, &str)]) -> Request<()> {
    let request = Request::builder().uri(path);
    headers.iter().fold(request, |request, (name, value)| request.header(*name, *value)).body(()).unwrap()
}

fn refusal(access: &Access, path: &str, headers: &[(&str, &str)]) -> Option<(u16, String)> {
    let error = access.admit_request(&mut request(path, headers), None).err()?;
    assert!(!error.message.contains("sk-"), "{}", error.message);
    Some((error.status, error.code.map(ErrorCode::as_str).unwrap_or_default().to_owned()))
}

fn access(config: &ServerConfig, uses_own_key: bool) -> Access {
    Access::new(config, uses_own_key).unwrap()
}

fn secrets(keys: &[&str]) -> Vec<Secret> {
    keys.iter().copied().map(Secret::new).collect()
}

#[test]
fn configured_keys_are_required() {
    let client_keys = secrets(&["sk-a", "sk-b"]);
    let access = access(&ServerConfig { client_keys, ..ServerConfig::default() }, true);
    let check = |path: &str, headers: &[(&str, &str)], is_answered: bool| {
        let expected = (!is_answered).then(|| (401, "invalid_api_key".to_owned()));
        assert_eq!(refusal(&access, path, headers), expected, "{path} {headers:?}");
    };
    for value in ["Bearer sk-a", "bearer sk-b"] {
        check("/v1/models", &[("authorization", value)], true);
    }
    for value in
        ["Bearer sk-", "Bearer sk-ab", "Bearer ", "Bearer", "sk-a", "Basic sk-a", "Bearer  sk-a", "é"]
    {
        check("/v1/models", &[("authorization", value)], false);
    }
    check("/v1/chat/completions", &[], false);
    check("/v1/messages", &[("x-api-key", "sk-a")], true);
    check("/v1/messages", &[("x-api-key", "sk-c")], false);
    check("/tokenize", &[], false);
    OPEN.into_iter().for_each(|path| check(path, &[], true));
    let mut preflight = Request::builder().method("OPTIONS").uri("/v1/models").body(()).unwrap();
    assert!(
        access.admit_request(&mut preflight, None).is_err(),
        "it would go upstream with respool's own key"
    );
    let page = request("/v1/runs", &[("host", "evil.example"), ("origin", "http://evil.example")]);
    assert_eq!(access.foreign_page(page.headers()), None, "a stranger's page has no key");
    let open = Access::new(&ServerConfig::default(), false).unwrap();
    assert_eq!(refusal(&open, "/v1/models", &[]), None);
}

#[test]
fn a_key_is_one_client_in_every_form() {
    let client_keys = secrets(&["sk-a"]);
    let access = access(&ServerConfig { client_keys, ..ServerConfig::default() }, false);
    for header in [("authorization", "Bearer sk-a"), ("authorization", "BEARER sk-a"), ("x-api-key", "sk-a")]
    {
        let mut request = request("/v1/runs", &[header]);
        access.admit_request(&mut request, None).unwrap();
        assert_eq!(request.headers()["authorization"], "Bearer sk-a", "{header:?}");
        assert_eq!(
            request.extensions().get::<Arc<MeteredRequest>>().unwrap().key.name,
            "client_keys[a4a6d3]"
        );
    }
}

#[test]
fn pages_are_checked_where_respool_lends_its_key() {
    let foreign = [("host", "127.0.0.1:8003"), ("origin", "https://evil.example")];
    let rebound = [("host", "evil.example:8003")];
    let (lends, plain) = (access(&ServerConfig::default(), true), access(&ServerConfig::default(), false));
    for path in ["/v1/chat/completions", "/v1/models", "/v1/embeddings", "/version", "/ready", "/metrics"] {
        assert_eq!(refusal(&lends, path, &foreign), Some((403, "foreign_origin".into())), "{path}");
        assert_eq!(refusal(&lends, path, &rebound), Some((400, "untrusted_host".into())), "{path}");
        assert_eq!(refusal(&plain, path, &foreign), None, "{path}");
        assert_eq!(refusal(&plain, path, &rebound), None, "{path}");
    }
    assert_eq!(refusal(&lends, "/health", &foreign), None);
    assert_eq!(refusal(&lends, "/v1/models", &[("host", "127.0.0.1:8003")]), None);
}

/// Keys for operators alone close no address of this machine, and no upstream gets such a key.
#[test]
fn an_operators_key_turns_no_client_away() {
    let config = ServerConfig {
        operator_keys: secrets(&["sk-root"]),
        operator_keys_env: Some("V".into()),
        ..ServerConfig::default()
    };
    let local = access(&config, false);
    for header in [("authorization", "Bearer sk-root"), ("x-api-key", "sk-root")] {
        let mut request = request("/v1/chat/completions", &[header]);
        let visit = local.admit_request(&mut request, None).unwrap();
        assert!(visit.is_some_and(|visit| visit.key.is_operator), "{header:?}");
        assert!(!request.headers().contains_key(header.0), "{header:?} goes no further");
    }
    let mut own = request("/v1/chat/completions", &[("authorization", "Bearer sk-of-the-upstream")]);
    assert!(local.admit_request(&mut own, None).unwrap().is_none());
    assert_eq!(own.headers()["authorization"], "Bearer sk-of-the-upstream");
    assert_eq!(refusal(&local, "/v1/models", &[]), None);
    let wrong = [("authorization", "Bearer sk-wrong")];
    assert_eq!(refusal(&local, "/v1/approvals", &wrong), Some((401, "invalid_api_key".into())));
    let listen = "0.0.0.0:1".parse().unwrap();
    let open = access(&ServerConfig { listen, ..config }, false);
    assert_eq!(refusal(&open, "/v1/models", &[]), Some((401, "invalid_api_key".into())));
}

/// An answer to `TRACE` would repeat the upstream's key.
#[test]
fn other_methods_are_refused() {
    let open = access(&ServerConfig::default(), true);
    for (method, is_refused) in
        [("TRACE", true), ("CONNECT", true), ("GET", false), ("PATCH", false), ("OPTIONS", false)]
    {
        let mut request = request("/v1/responses/resp_1", &[]);
        *request.method_mut() = method.parse().unwrap();
        let error = open.admit_request(&mut request, None).err();
        assert_eq!(error.map(|error| error.status), is_refused.then_some(405), "{method}");
    }
}

#[test]
fn administrative_routes_need_permission() {
    let check = |config: &ServerConfig, key: &str, expected: Option<&str>| {
        let bearer = format!("Bearer {key}");
        let headers: &[(&str, &str)] =
            if key.is_empty() { &[] } else { &[("authorization", bearer.as_str())] };
        let found = refusal(&access(config, false), "/collective_rpc", headers);
        let expected = expected.map(|code| (403, code.to_owned()));
        assert_eq!(found, expected, "{config:?} {key}");
    };
    let none = ServerConfig::default();
    let keys = ServerConfig {
        client_keys: secrets(&["sk-a"]),
        operator_keys: secrets(&["sk-root"]),
        ..none.clone()
    };
    let allowing = |config: &ServerConfig| ServerConfig { allow_admin_routes: true, ..config.clone() };
    check(&none, "", Some("administrative_route"));
    check(&keys, "sk-root", Some("administrative_route"));
    check(&allowing(&none), "", None);
    check(&allowing(&keys), "sk-a", Some("operators_only"));
    check(&allowing(&keys), "sk-root", None);
    let clients = ServerConfig { operator_keys: vec![], ..allowing(&keys) };
    check(&clients, "sk-a", None);
}

/// Regression: a client with a wrong key could not be found, nor the key that asked for a forbidden route.
#[test]
fn refusals_tell_keys_apart() {
    let access = access(&ServerConfig { client_keys: secrets(&["sk-a"]), ..ServerConfig::default() }, false);
    let refused = |path: &str, headers: &[(&str, &str)]| {
        let mut request = request(path, headers);
        let error = access.admit_request(&mut request, None).unwrap_err();
        let key = request.extensions().get::<Arc<MeteredRequest>>().map(|metered| metered.key.name.clone());
        (error.message, key)
    };
    let (without, _) = refused("/v1/models", &[]);
    assert!(without.starts_with("respool asks for a key"), "{without}");
    let (wrong, _) = refused("/v1/models", &[("authorization", "Bearer sk-b")]);
    assert!(wrong.contains("SHA-256 begins with 18519d:"), "{wrong}");
    let (unset, _) = refused("/v1/models", &[("authorization", "Bearer ${RESPOOL_KEY}")]);
    assert!(unset.contains("`RESPOOL_KEY` is not set in its environment"), "{unset}");
    let (other, _) = refused("/v1/models", &[("authorization", "Bearer ${se cret}")]);
    assert!(!other.contains("secret") && other.contains("SHA-256"), "{other}");
    let (_, key) = refused("/sleep", &[("authorization", "Bearer sk-a")]);
    assert_eq!(key.as_deref(), Some("client_keys[a4a6d3]"));
}

#[test]
fn an_upstream_does_not_open_respool_to_pages() {
    let check = |access: &Access, is_kept: bool| {
        let mut headers = HeaderMap::new();
        headers.insert("access-control-allow-origin", HeaderValue::from_static("*"));
        headers.insert("access-control-allow-credentials", HeaderValue::from_static("true"));
        headers.insert("content-type", HeaderValue::from_static("text/plain"));
        access.guard_answer(&mut headers);
        assert_eq!(headers.len(), if is_kept { 3 } else { 1 }, "{headers:?}");
    };
    check(&access(&ServerConfig::default(), true), false);
    check(&access(&ServerConfig { client_keys: secrets(&["k"]), ..ServerConfig::default() }, false), false);
    check(&access(&ServerConfig::default(), false), true);
}

#[test]
fn guessing_clients_wait_and_known_ones_pass() {
    let client_keys = secrets(&["sk-a", "sk-b", "sk-0123456789abcdef"]);
    let access = access(&ServerConfig { client_keys, ..ServerConfig::default() }, false);
    let from = |last: u8, key: &str| {
        let bearer = format!("Bearer {key}");
        let mut request = request("/v1/models", &[("authorization", &bearer)]);
        let peer = std::net::IpAddr::from([192, 0, 2, last]);
        access
            .admit_request(&mut request, Some(peer))
            .map_err(|error| (error.status, error.retry_after.is_some()))
            .err()
    };
    assert_eq!(from(1, "sk-a"), None);
    for guess in 0..20 {
        assert_eq!(from(1, &format!("guess-{guess}")), Some((401, false)));
    }
    assert_eq!(from(1, "sk-b"), Some((429, true)), "a right guess looks like a wrong one");
    assert_eq!(from(1, "sk-c"), Some((429, true)));
    assert_eq!(from(1, "sk-a"), None, "it was used from there before");
    assert_eq!(from(2, "sk-b"), None, "another address");
    assert_eq!(
        from(1, "sk-0123456789abcdef"),
        None,
        "nobody guesses this one: it is not shut out by others' guesses"
    );
    let mut without = request("/v1/models", &[]);
    let peer = std::net::IpAddr::from([192, 0, 2, 1]);
    assert_eq!(access.admit_request(&mut without, Some(peer)).unwrap_err().status, 401, "no key is no guess");
}

#[test]
fn clients_of_one_proxy_wait_apart() {
    let proxy = std::net::IpAddr::from([127, 0, 0, 1]);
    let trusted_proxies = vec!["127.0.0.0/8".parse().unwrap()];
    let config = ServerConfig { client_keys: secrets(&["sk-a"]), trusted_proxies, ..ServerConfig::default() };
    let access = access(&config, false);
    let from = |client: &str, key: &str| {
        let mut request = request("/v1/models", &[("authorization", key), ("x-forwarded-for", client)]);
        let client = access.client_address(Some(proxy), request.headers());
        access.admit_request(&mut request, client).map_err(|error| error.status).err()
    };
    for guess in 0..20 {
        assert_eq!(from("192.0.2.1", &format!("Bearer guess-{guess}")), Some(401));
    }
    assert_eq!(from("192.0.2.1", "Bearer sk-a"), Some(429));
    assert_eq!(from("192.0.2.2", "Bearer sk-a"), None);
}

#[test]
fn changed_keys_hold_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys.toml");
    std::fs::write(&path, "alice = 'sk-1'").unwrap();
    let config = ServerConfig { client_keys_file: Some(path.clone()), ..ServerConfig::default() };
    let access = access(&config, false);
    let status = |key: &str| {
        refusal(&access, "/v1/models", &[("authorization", &format!("Bearer {key}"))]).map(|found| found.0)
    };
    assert_eq!((status("sk-1"), status("sk-2")), (None, Some(401)));
    std::fs::write(&path, "alice = 'sk-2'").unwrap();
    access.read_again();
    assert_eq!((status("sk-1"), status("sk-2")), (Some(401), None));
    // Without any key no request is admitted; it does not mean that no request needs one.
    std::fs::write(&path, "").unwrap();
    assert!(access.read_again().unwrap().contains("it has no key"));
    assert_eq!(status("sk-2"), Some(401));
    assert_eq!(refusal(&access, "/v1/models", &[]).unwrap().0, 401);
}

#[test]
fn an_unusable_file_names_its_setting() {
    let config = ServerConfig { client_keys_file: Some("/nowhere".into()), ..ServerConfig::default() };
    let problems = Access::new(&config, false).unwrap_err();
    assert_eq!(problems[0].key, ["client_keys_file"]);
}

#[test]
fn a_path_stays_below_the_upstreams_base_url() {
    let access = access(&ServerConfig::default(), true);
    assert_eq!(refusal(&access, "/../tenant/v1/models", &[]), Some((400, "bad_path".into())));
    assert_eq!(refusal(&access, "/v1/%2e%2e/%2e%2e/tenant", &[]), Some((400, "bad_path".into())));
    assert_eq!(refusal(&access, "/v1/models/a.b", &[]), None);
}
