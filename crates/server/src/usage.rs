//! `GET /v1/usage`: what was used, by model, key, agent and day. A client sees its own requests, an operator
//! all; where clients have no keys, and so are not distinguished, all are seen.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::Value;
use url::form_urlencoded;

use super::app::App;
use super::metered_request::MeteredRequest;
use super::own_route::{begin_own_record, finish_response};
use super::respond::store_failed;
use ::usage::parse_dimensions;
use store::{Dimension, UsageQuery};
use wire::units::parse_duration;
use wire::{ApiError, ErrorCode};

/// How far back a question goes that does not say.
const SINCE: Duration = Duration::from_hours(7 * 24);

pub(super) async fn answer_usage(State(app): State<App>, request: Request) -> Response {
    let record = begin_own_record(&app, &request, "GET /v1/usage", "usage");
    let page = app.access.foreign_page(request.headers());
    let key = own_key(&request);
    let query = request.uri().query().unwrap_or_default().to_owned();
    let found = async {
        page.map_or(Ok(()), Err)?;
        usage_report(&app, &query, key).await
    };
    finish_response(found.await, &record)
}

/// The key whose requests alone are shown.
fn own_key(request: &Request) -> Option<String> {
    let visit = request.extensions().get::<Arc<MeteredRequest>>()?;
    (!visit.key.is_operator).then(|| visit.key.name.clone())
}

async fn usage_report(app: &App, query: &str, key: Option<String>) -> Result<Value, ApiError> {
    let (query, costs) = read_query(query, key)?;
    Ok(app.usage.records().report(query).await.map_err(store_failed)?.to_json(costs))
}

/// `since=7d&by=model,day&costs=true`.
fn read_query(query: &str, key: Option<String>) -> Result<(UsageQuery, bool), ApiError> {
    let wrong = |name: &str, why: &dyn fmt::Display| {
        ApiError::bad_request(ErrorCode::InvalidValue, why.to_string()).with_param(name)
    };
    let (mut since, mut by, mut costs) = (SINCE, "model".to_owned(), false);
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*name {
            "since" => since = parse_duration(&value).map_err(|why| wrong("since", &why))?,
            "by" => value.as_ref().clone_into(&mut by),
            "costs" => costs = matches!(&*value, "true" | "1" | ""),
            other => {
                let why = format!(
                    "`{}` is not a parameter of this route. Available parameters: since, by, costs",
                    other.escape_default()
                );
                return Err(wrong("query", &why));
            }
        }
    }
    let by = parse_dimensions(&by).map_err(|why| wrong("by", &why))?;
    let only = key.map(|key| (Dimension::Key, key)).into_iter().collect();
    Ok((UsageQuery { since: clock::time_ago(since), until: u64::MAX, by, only }, costs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_question_says() {
        let check = |query: &str| {
            read_query(query, Some("alice".into())).map_err(|error| (error.status, error.param))
        };
        let (found, costs) = check("since=1h&by=key%2Cday&costs=true").unwrap();
        assert_eq!(
            (found.by, found.only, costs),
            (vec![Dimension::Key, Dimension::Day], vec![(Dimension::Key, "alice".to_owned())], true)
        );
        assert!(!check("").unwrap().1);
        assert_eq!(check("by=colour").unwrap_err(), (400, Some("by".into())));
        assert_eq!(check("since=soon").unwrap_err(), (400, Some("since".into())));
        assert_eq!(check("x=1").unwrap_err(), (400, Some("query".into())));
    }
}
