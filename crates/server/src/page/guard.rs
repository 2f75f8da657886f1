//! Who may see the page and press its buttons, and the forms that they send.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::response::Response;
use http::request::Parts;
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

/// Who looks at a page; a visitor who may not see it gets another one.
impl FromRequestParts<App> for Viewer {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Response> {
        find_viewer(app, &parts.headers).map_err(|denied| refuse_visitor(&denied))
    }
}

pub(super) fn find_viewer(app: &App, headers: &HeaderMap) -> Result<Viewer, Denied> {
    Ok(Viewer { has_experts: has_experts(app), ..app.access.page_viewer(headers)? })
}

/// Returns true if there are experts to show.
fn has_experts(app: &App) -> bool {
    let is_any = |experts: &Experts| experts.iter().next().is_some() || !experts.load_problems().is_empty();
    app.experts.as_deref().is_some_and(is_any)
}

/// A button that was pressed: by whom, and its form. A visitor who may not press it gets another page.
pub(super) struct Pressed {
    pub(super) viewer: Viewer,
    pub(super) form: Form,
}

impl FromRequest<App> for Pressed {
    type Rejection = Response;

    async fn from_request(request: Request, app: &App) -> Result<Self, Response> {
        let (mut parts, body) = request.into_parts();
        let viewer = Viewer::from_request_parts(&mut parts, app).await?;
        let form = read_form(body).await.map_err(|response| *response)?;
        let is_own = app.access.is_own_origin(&parts.headers) && viewer.knows_csrf(form.get("csrf"));
        if is_own { Ok(Self { viewer, form }) } else { Err(refuse_visitor(&Denied::Forged)) }
    }
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
