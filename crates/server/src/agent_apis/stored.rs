//! `GET` and `DELETE /v1/responses/{id}`, `/cancel` and `/input_items`: the responses that a client keeps,
//! for the key that made them.

use std::sync::Arc;

use axum::extract::{FromRequest, FromRequestParts as _, Path, Request, State};
use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use serde_json::{Value, json};
use url::form_urlencoded;

use super::api::upstream_headers;
use super::kept::ended_response;
use super::unwritten::ResponseChange;
use crate::app::App;
use crate::front::begin_record;
use crate::respond::store_failed;
use crate::{respond, transparent};
use agent::client_digest;
use store::{KeptResponse, Store};
use telemetry::RequestRecord;
use translate::responses::{item_id, with_status};
use wire::{ApiError, ErrorCode, array_elements};

/// The items of a page by default, and at most.
const PAGE: usize = 20;
const MOST: usize = 100;

/// A request for a kept response: the client and the id.
pub(crate) struct Asking {
    app: App,
    id: String,
    client: String,
    query: Option<String>,
    record: RequestRecord,
}

/// Answers `GET /v1/responses/{id}`.
pub(crate) async fn get_response(asking: Asking) -> Response {
    let is_streamed = query_value(asking.query.as_deref(), "stream").is_some_and(|stream| stream == "true");
    if is_streamed {
        let what = "a kept response is not streamed: leave `stream` out";
        let error = ApiError::bad_request(ErrorCode::UnsupportedValue, what).with_param("stream");
        return asking.answer_body(Err(error));
    }
    let found = asking.find_response().await.map(|response| response.body);
    asking.answer_body(found)
}

/// Answers `DELETE /v1/responses/{id}`.
pub(crate) async fn delete_response(asking: Asking) -> Response {
    let deleted = asking.delete_response().await;
    asking.answer_body(deleted)
}

/// Answers `POST /v1/responses/{id}/cancel`: ends a response in the background. An ended one stays unchanged.
pub(crate) async fn cancel_response(asking: Asking) -> Response {
    let cancelled = asking.cancel_response().await;
    asking.answer_body(cancelled)
}

/// Answers `GET /v1/responses/{id}/input_items` with a page of the request's own items.
pub(crate) async fn input_items(asking: Asking) -> Response {
    let page = Page::from_query(asking.query.as_deref());
    let listed = asking.find_response().await.and_then(|response| page.list_items(&response.input));
    asking.answer_body(listed)
}

impl FromRequest<App> for Asking {
    type Rejection = Response;

    /// Passes the request on where servers answer this API themselves and no such response is kept: it may be
    /// one of theirs.
    async fn from_request(request: Request, app: &App) -> Result<Self, Response> {
        let (mut parts, body) = request.into_parts();
        let path = Path::<String>::from_request_parts(&mut parts, app).await;
        let Path(id) = path.map_err(IntoResponse::into_response)?;
        let headers = upstream_headers(parts.headers.clone());
        let key = headers.get(header::AUTHORIZATION).map_or(&[][..], |key| key.as_bytes());
        let client = client_digest(key);
        if app.relay.leaves_wires() && !is_kept(app, &id, &client).await {
            let request = Request::from_parts(parts, body);
            return Err(transparent::pass_through(State(app.clone()), request).await);
        }
        let name = format!("{} {}", parts.method, parts.uri.path());
        let record = begin_record(app, &parts.headers, &parts.extensions, name, "responses");
        if let Some(error) = app.access.foreign_page(&parts.headers) {
            return Err(respond::finish_response(respond::error_response(&error), &record));
        }
        let query = parts.uri.query().map(str::to_owned);
        Ok(Self { app: app.clone(), id, client, query, record })
    }
}

async fn is_kept(app: &App, id: &str, client: &str) -> bool {
    let Some(store) = app.agent_apis.responses.existing_store().await else { return false };
    matches!(store.response(id, client).await, Ok(Some(_)))
}

impl Asking {
    async fn store(&self) -> Result<&Arc<Store>, ApiError> {
        self.app.agent_apis.responses.existing_store().await.ok_or_else(|| unknown_response(&self.id))
    }

    async fn find_response(&self) -> Result<KeptResponse, ApiError> {
        let store = self.store().await?;
        let found = store.response(&self.id, &self.client).await.map_err(store_failed)?;
        found.ok_or_else(|| unknown_response(&self.id))
    }

    async fn delete_response(&self) -> Result<String, ApiError> {
        let store = self.store().await?;
        let deleted = store.remove_response(&self.id, &self.client).await.map_err(store_failed)?;
        if !deleted {
            return Err(unknown_response(&self.id));
        }
        self.app.agent_apis.responses.work_ends(&self.id);
        Ok(json!({"id": self.id, "object": "response", "deleted": true}).to_string())
    }

    async fn cancel_response(&self) -> Result<String, ApiError> {
        let response = self.find_response().await?;
        if response.request.is_some() {
            let body = with_status(&response.body, "cancelled");
            let end = ResponseChange::Ended(ended_response(&self.id, "cancelled", body));
            end.write_to(self.store().await?).await.map_err(store_failed)?;
            self.app.agent_apis.responses.work_ends(&self.id);
        } else if !is_of_background(&response.body) {
            let what = "only a response that was made with `background: true` can be cancelled";
            return Err(ApiError::bad_request(ErrorCode::UnsupportedValue, what));
        }
        self.find_response().await.map(|response| response.body)
    }

    fn answer_body(&self, body: Result<String, ApiError>) -> Response {
        let response = match body {
            Ok(body) => respond::json_response(StatusCode::OK, body),
            Err(error) => respond::error_response(&error),
        };
        respond::finish_response(response, &self.record)
    }
}

fn unknown_response(id: &str) -> ApiError {
    let what = format!(
        "Response with id '{}' not found: it was not stored, belongs to another key, or is no longer kept",
        id.escape_default()
    );
    ApiError::new(404, ErrorCode::ResponseNotFound, what)
}

fn is_of_background(body: &str) -> bool {
    wire::Object::parse(body).is_ok_and(|body| body.is_true("background"))
}

/// Returns a value of a query.
fn query_value(query: Option<&str>, name: &str) -> Option<String> {
    let mut pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
    pairs.find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
}

/// The requested part of a list of items.
#[derive(Debug, PartialEq, Eq)]
struct Page {
    limit: usize,
    /// Whether the first item comes first. As with OpenAI, the default is the last one first.
    is_ascending: bool,
    after: Option<String>,
}

impl Page {
    fn from_query(query: Option<&str>) -> Self {
        let limit = query_value(query, "limit").and_then(|limit| limit.parse().ok()).unwrap_or(PAGE);
        let is_ascending = query_value(query, "order").is_some_and(|order| order == "asc");
        Self { limit: limit.clamp(1, MOST), is_ascending, after: query_value(query, "after") }
    }

    fn list_items(&self, input: &str) -> Result<String, ApiError> {
        let mut items = array_elements(input).unwrap_or_default();
        if !self.is_ascending {
            items.reverse();
        }
        let place = |after: &str| {
            let found = items.iter().position(|item| item_id(item).as_deref() == Some(after));
            found.map(|at| at + 1).ok_or_else(|| {
                let what =
                    format!("`after` is `{}`, which is not an item of this response", after.escape_default());
                ApiError::bad_request(ErrorCode::InvalidValue, what).with_param("after")
            })
        };
        let rest = &items[self.after.as_deref().map_or(Ok(0), place)?..];
        let page = &rest[..rest.len().min(self.limit)];
        let id = |item: Option<&&str>| item.and_then(|item| item_id(item)).map_or(Value::Null, Value::from);
        Ok(format!(
            r#"{{"object":"list","data":[{}],"first_id":{},"last_id":{},"has_more":{}}}"#,
            page.join(","),
            id(page.first()),
            id(page.last()),
            page.len() < rest.len()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(query: &str, expected: &[&str], has_more: bool) {
        let input = r#"[{"id":"a"},{"id":"b"},{"id":"c"}]"#;
        let list: Value =
            serde_json::from_str(&Page::from_query(Some(query)).list_items(input).unwrap()).unwrap();
        let ids: Vec<&str> =
            list["data"].as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap()).collect();
        assert_eq!((ids.as_slice(), &list["has_more"]), (expected, &json!(has_more)), "{query}");
        assert_eq!(list["last_id"].as_str(), expected.last().copied());
    }

    #[test]
    fn a_page_of_items() {
        check("", &["c", "b", "a"], false);
        check("order=asc&limit=2", &["a", "b"], true);
        check("order=asc&after=b", &["c"], false);
        check("limit=0", &["c"], true);
        check("after=a", &[], false);
        let unknown = Page::from_query(Some("after=x")).list_items(r#"[{"id":"a"}]"#).unwrap_err();
        assert_eq!((unknown.status, unknown.param.as_deref()), (400, Some("after")));
    }
}
