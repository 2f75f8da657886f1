//! Whose each path is: respool's own, a hook's, the page's, or a model server's. Pure. `admin_routes` lists
//! the model servers' routes that clients may use.

use http::Method;

/// Chat completions. A base URL that was written without its `/v1` is the commonest slip, and costs nothing
/// to forgive.
pub(super) const CHAT: [&str; 2] = ["/v1/chat/completions", "/chat/completions"];
/// These ask for no key: monitoring has none. vLLM keeps them open too.
pub(super) const OPEN: [&str; 3] = ["/health", "/ready", "/metrics"];
/// Routes of respool's own, and those below them: they use no model, or find it in their own way.
const OWN: [&str; 6] = ["/v1/runs", "/v1/approvals", "/v1/outbox", "/hooks", "/v1/usage", "/ui"];
/// Routes that cost nothing.
const COST_NOTHING: [&str; 6] =
    ["/v1/runs", "/v1/approvals", "/v1/outbox", "/tokenize", "/detokenize", "/v1/usage"];

/// Returns true for a path of respool's own, whether it has such a route or not: none of these goes upstream.
pub(super) fn is_own(path: &str) -> bool {
    OWN.iter().any(|own| is_below(path, own))
}

/// Returns true for a route that uses a model.
pub(super) fn uses_model(path: &str) -> bool {
    !COST_NOTHING.iter().any(|free| is_below(path, free))
}

/// Returns true for the paths of the page, which ask for a session of their own and not for a client's key.
pub(super) fn is_page(path: &str) -> bool {
    // Browsers ask for the icon by themselves.
    matches!(path, "/" | "/favicon.ico") || path.starts_with("/ui/")
}

/// Returns true for a request to a hook, which only the hook's secret admits. Anything else below `/hooks` is
/// admitted like any other request.
pub(super) fn is_hook(method: &Method, path: &str) -> bool {
    let mut parts = path.split('/');
    method == Method::POST
        && (parts.next(), parts.next()) == (Some(""), Some("hooks"))
        && parts.next().is_some_and(|expert| !expert.is_empty())
        && parts.next().is_some_and(|trigger| !trigger.is_empty())
        && parts.next().is_none()
}

/// Returns true for `DELETE /v1/responses/{id}` and `POST /v1/responses/{id}/cancel`: the client made the
/// response itself.
pub(super) fn is_for_kept_response(method: &Method, path: &str) -> bool {
    let path = path.strip_prefix("/v1").unwrap_or(path);
    let Some(rest) = path.strip_prefix("/responses/") else { return false };
    let id = if method == Method::DELETE { Some(rest) } else { rest.strip_suffix("/cancel") };
    id.is_some_and(|id| !id.is_empty() && !id.contains('/'))
}

fn is_below(path: &str, route: &str) -> bool {
    path.strip_prefix(route).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_paths_are_whole_segments() {
        for (path, expected) in [
            ("/v1/runs", true),
            ("/v1/runs/a/cancel", true),
            ("/hooks/a/b", true),
            ("/v1/runs_of_others", false),
            ("/v1/usages", false),
            ("/v1/completions", false),
        ] {
            assert_eq!(is_own(path), expected, "{path}");
        }
    }

    #[test]
    fn a_hook_has_an_expert_and_a_trigger() {
        for path in ["/hooks/a/b", "/hooks/a/b%2Fc", "/hooks/a/.."] {
            assert!(is_hook(&Method::POST, path), "{path}");
        }
        for path in [
            "/hooks",
            "/hooks/",
            "/hooks/a",
            "/hooks/a/",
            "/hooks//b",
            "/hooks/a/b/",
            "/hooks/a/b/c",
            "//hooks/a/b",
            "/Hooks/a/b",
            "/v1/hooks/a/b",
            "hooks/a/b",
        ] {
            assert!(!is_hook(&Method::POST, path), "{path}");
        }
        assert!(!is_hook(&Method::GET, "/hooks/a/b"));
    }
}
