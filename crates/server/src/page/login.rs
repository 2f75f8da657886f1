//! The way in, where clients have keys: an operator's key, once.

use axum::extract::{Request, State};
use axum::response::Response;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use maud::{Markup, html};
use url::Url;

use super::guard::{Pressed, read_form, refuse_visitor};
use super::layout;
use super::response::{page_response, redirect_response};
use super::session::{Denied, set_cookie};
use crate::app::{App, Peer};

pub(super) async fn show_login(State(app): State<App>, headers: HeaderMap) -> Response {
    match app.access.page_viewer(&headers) {
        // Where clients have no keys, a visitor sees the page without a session too.
        Ok(viewer) if !viewer.name.is_empty() || !app.access.has_operators() => redirect_response("/"),
        Ok(_) | Err(Denied::NoSession) => {
            page_response(StatusCode::OK, login_markup(&app, &page_before(&headers), ""))
        }
        Err(denied) => refuse_visitor(&denied),
    }
}

pub(super) async fn log_in(State(app): State<App>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    if !app.access.is_own_origin(&parts.headers) {
        return refuse_visitor(&Denied::Forged);
    }
    let form = match read_form(body).await {
        Ok(form) => form,
        Err(response) => return *response,
    };
    let peer = parts.extensions.get::<Peer>().map(|peer| peer.0);
    match app.access.open_session(form.get("key").trim(), peer) {
        Ok(cookie) => with_cookie(redirect_response(own_page(form.get("to"))), &cookie, &parts.headers),
        Err(why) => {
            let page = login_markup(&app, own_page(form.get("to")), &why.to_string());
            page_response(StatusCode::FORBIDDEN, page)
        }
    }
}

pub(super) async fn log_out(State(app): State<App>, headers: HeaderMap, _: Pressed) -> Response {
    app.access.end_session(&headers);
    with_cookie(redirect_response("/ui/login"), "", &headers)
}

/// A browser that sends an origin of TLS reached respool, or the proxy before it, over TLS.
fn with_cookie(mut response: Response, cookie: &str, headers: &HeaderMap) -> Response {
    let is_secure =
        headers.get(header::ORIGIN).is_some_and(|origin| origin.as_bytes().starts_with(b"https://"));
    if let Ok(value) = HeaderValue::from_str(&set_cookie(cookie, is_secure)) {
        response.headers_mut().insert(header::SET_COOKIE, value);
    }
    response
}

/// Returns the address of the page from which a visitor came to log in.
fn page_before(headers: &HeaderMap) -> String {
    let referer = headers.get(header::REFERER).and_then(|referer| referer.to_str().ok());
    let address = referer.and_then(|referer| Url::parse(referer).ok());
    let path = address.map(|mut address| {
        address.set_fragment(None);
        address[url::Position::BeforePath..].to_owned()
    });
    own_page(&path.unwrap_or_default()).to_owned()
}

/// Returns the address of a page below `/ui/`, or of the first page for any other.
fn own_page(address: &str) -> &str {
    let is_own = address.starts_with("/ui/") && !address.starts_with("/ui/login");
    if is_own { address } else { "/" }
}

fn login_markup(app: &App, to: &str, why: &str) -> Markup {
    let main = html! {
        section class="narrow" {
            h1 { "Log in" }
            @if app.access.has_operators() {
                p { "Log in with an operator key: that in " code { "RESPOOL_OPERATOR_KEY" } " when respool was started, one of " code { "operator_keys_env" } ", or one that is marked as an operator's in " code { "client_keys_file" } "." }
                @if !why.is_empty() { p class="problem" role="alert" { (why) } }
                form method="post" action="/ui/login" {
                    input type="hidden" name="to" value=(to);
                    label for="key" { "Operator key" }
                    input id="key" name="key" type="password" autocomplete="current-password" required autofocus;
                    button type="submit" { "Log in" }
                }
            } @else {
                p class="problem" { "No operator key is configured. Start respool with one in the environment variable " code { "RESPOOL_OPERATOR_KEY" } ", or name another variable in " code { "operator_keys_env" } " of respool.toml." }
            }
        }
    };
    layout::plain_document("Log in", &html! {}, &main)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_leads_back_to_the_page_before() {
        let check = |referer: &str, expected: &str| {
            let headers = HeaderMap::from_iter([(header::REFERER, HeaderValue::from_str(referer).unwrap())]);
            assert_eq!(page_before(&headers), expected, "{referer}");
        };
        check("http://127.0.0.1:8003/ui/approvals?x=1#a", "/ui/approvals?x=1");
        check("http://127.0.0.1:8003/", "/");
        check("http://127.0.0.1:8003/ui/login", "/");
        check("https://evil.example//ui.example/", "/");
        assert_eq!(page_before(&HeaderMap::new()), "/");
        assert_eq!(own_page("//evil.example/ui/"), "/");
    }
}
