//! Who may see the page and press its buttons, and the forms that they send.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::response::Response;
use http::{HeaderMap, StatusCode};
use url::form_urlencoded;

use super::layout;
use super::response::{page_response, redirect_response};
use super::session::{Denied, Viewer};
use crate::app::App;
use experts::Experts;

/// The largest form.
const LARGEST_FORM: usize = 64 << 10;
/// How long a browser may take to send a form.
const FORM_WITHIN: Duration = Duration::from_secs(30);

/// Returns the viewer, or the answer for a visitor who may not see the page.
pub(super) fn require_viewer(app: &App, headers: &HeaderMap) -> Result<Viewer, Box<Response>> {
    let viewer = app.access.page_viewer(headers).map_err(|denied| Box::new(refuse_visitor(&denied)))?;
    Ok(Viewer { has_experts: has_experts(app), ..viewer })
}

/// Returns true if there are experts to show.
fn has_experts(app: &App) -> bool {
    let is_any = |experts: &Experts| experts.iter().next().is_some() || !experts.load_problems().is_empty();
    app.experts.as_deref().is_some_and(is_any)
}

/// Returns the viewer who pressed a button and the form, or the answer for a visitor who may not press it.
pub(super) async fn authorize_post(
    app: &App,
    request: axum::extract::Request,
) -> Result<(Viewer, Form), Box<Response>> {
    let (parts, body) = request.into_parts();
    let viewer = require_viewer(app, &parts.headers)?;
    let form = read_form(body).await?;
    let is_own = app.access.is_own_origin(&parts.headers) && viewer.knows_csrf(form.get("csrf"));
    if is_own { Ok((viewer, form)) } else { Err(Box::new(refuse_visitor(&Denied::Forged))) }
}

/// Returns true if the viewer may decide. Approvals need an operator's key here as on the API. Where clients
/// have no keys, there are no operators.
pub(super) fn may_decide(viewer: &Viewer) -> bool {
    !viewer.name.is_empty()
}

/// The fields of a form.
#[derive(Debug, Default)]
pub(super) struct Form(Vec<(String, String)>);

impl Form {
    pub(super) fn get(&self, name: &str) -> &str {
        self.0.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }

    /// Returns the values of a field that may stand there more than once.
    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(known, _)| known == name).map(|(_, value)| &**value)
    }
}

pub(super) async fn read_form(body: Body) -> Result<Form, Box<Response>> {
    let read = tokio::time::timeout(FORM_WITHIN, axum::body::to_bytes(body, LARGEST_FORM)).await;
    let body: Bytes = read.ok().and_then(Result::ok).ok_or_else(|| {
        let text = "The form could not be read. Go back and submit it again.";
        Box::new(page_response(StatusCode::BAD_REQUEST, layout::message_page("Form not read", text)))
    })?;
    Ok(Form(form_urlencoded::parse(&body).into_owned().collect()))
}

pub(super) fn refuse_visitor(denied: &Denied) -> Response {
    match denied {
        Denied::NoSession => redirect_response("/ui/login"),
        Denied::Foreign(why) => {
            page_response(StatusCode::FORBIDDEN, layout::message_page("Request from another site", why))
        }
        Denied::Forged => {
            let text = "This button was not pressed on respool's own page, or respool has restarted since the page was loaded. Load the page again.";
            page_response(StatusCode::FORBIDDEN, layout::message_page("Not accepted", text))
        }
    }
}
