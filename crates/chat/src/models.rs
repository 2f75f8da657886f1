//! Which models there are, and how much of a conversation they can read: what the endpoints list, and what the configuration
//! says of them.

use std::time::Duration;

use futures::StreamExt as _;
use futures::future::join_all;
use futures::stream::FuturesUnordered;
use http::HeaderMap;
use serde_json::Value;

use relay::Relay;
use upstream::Upstream;

/// How long an endpoint may take to list its models.
const WITHIN: Duration = Duration::from_secs(15);

/// A model as the endpoint lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Model {
    pub(super) id: String,
    /// Tokens, where the endpoint or the configuration says.
    pub(super) window: Option<u64>,
}

/// The model of this id, or the first that the endpoint names; false: no endpoint lists it.
///
/// # Errors
/// When none is named and none can be found.
pub(super) async fn find(relay: &Relay, id: Option<&str>) -> Result<(Model, bool), String> {
    let Some(id) = id else {
        let upstream = relay.upstreams().next().ok_or("no upstream is configured")?;
        let listed = models(upstream).await?.into_iter().next().ok_or("it lists no models")?;
        let window = relay.configured_window(&listed.id).or(listed.window);
        return Ok((Model { window, ..listed }, true));
    };
    let asked = relay.upstreams().map(|upstream| models(upstream));
    let found = first(asked, relay.target(id)).await;
    let is_listed = found.is_some();
    let window = relay.configured_window(id).or(found.and_then(|model| model.window));
    Ok((Model { id: id.to_owned(), window }, is_listed))
}

/// The model of this id from the endpoint that lists it first: others may not answer at all.
async fn first(
    asked: impl Iterator<Item = impl Future<Output = Result<Vec<Model>, String>>>,
    id: &str,
) -> Option<Model> {
    let mut asked: FuturesUnordered<_> = asked.collect();
    while let Some(listed) = asked.next().await {
        let found = listed.unwrap_or_default().into_iter().find(|model| model.id == id);
        if found.is_some() {
            return found;
        }
    }
    None
}

/// The models of each endpoint, in the order of the configuration; all are asked at once.
pub(super) async fn all(relay: &Relay) -> Vec<Result<Vec<Model>, String>> {
    join_all(relay.upstreams().map(|upstream| models(upstream))).await
}

/// The models of an endpoint.
///
/// # Errors
/// What is wrong, for people.
async fn models(upstream: &Upstream) -> Result<Vec<Model>, String> {
    let asked = tokio::time::timeout(WITHIN, upstream.get_json("/v1/models", HeaderMap::new())).await;
    let (status, body) = match asked {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => return Err(error.error.message),
        Err(_) => return Err(format!("`{}` does not answer within {} s", upstream.name, WITHIN.as_secs())),
    };
    match status.as_u16() {
        200 => {
            upstream.learn_list(&body);
            read(&body).ok_or_else(|| format!("`{}` lists no models: is its URL right?", upstream.name))
        }
        401..=403 => Err(format!(
            "`{}` refuses the key (HTTP {status}): set `api_key` or `api_key_env` of this [[upstream]]",
            upstream.name,
            status = status.as_u16()
        )),
        status => Err(format!("`{}` answers HTTP {status} when asked for its models", upstream.name)),
    }
}

fn read(body: &[u8]) -> Option<Vec<Model>> {
    let list: Value = serde_json::from_slice(body).ok()?;
    let model = |model: &Value| Some(Model { id: model["id"].as_str()?.to_owned(), window: window(model) });
    let models: Vec<Model> = list["data"].as_array()?.iter().filter_map(model).collect();
    (!models.is_empty()).then_some(models)
}

/// vLLM says `max_model_len`; others have other names.
fn window(model: &Value) -> Option<u64> {
    let metadata = &model["metadata"];
    [&model["max_model_len"], &model["context_length"], &model["context_window"], &metadata["context_length"]]
        .into_iter()
        .find_map(Value::as_u64)
        .filter(|window| *window > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_endpoint_that_does_not_answer_holds_nobody_up_when_another_has_the_model() {
        let model = |id: &str| Model { id: id.into(), window: None };
        // `None`: it never answers.
        let answer = |listed: Option<Result<Vec<Model>, String>>| async move {
            match listed {
                Some(listed) => listed,
                None => std::future::pending().await,
            }
        };
        let asked = [answer(None), answer(Some(Err("down".into()))), answer(Some(Ok(vec![model("b")])))];
        let found = tokio::time::timeout(Duration::from_secs(5), first(asked.into_iter(), "b")).await;
        assert_eq!(found.expect("it waits for all"), Some(model("b")));
        let asked = [answer(Some(Ok(vec![model("a")]))), answer(Some(Err("down".into())))];
        assert_eq!(first(asked.into_iter(), "c").await, None);
    }

    #[test]
    fn windows_have_many_names() {
        let body = br#"{"data":[{"id":"a","max_model_len":4096},{"id":"b","metadata":{"context_length":131072}},{"id":"c"},{}]}"#;
        let found: Vec<(String, Option<u64>)> =
            read(body).unwrap().into_iter().map(|model| (model.id, model.window)).collect();
        let expected = [("a", Some(4096)), ("b", Some(131_072)), ("c", None)];
        assert_eq!(found, expected.map(|(id, window)| (id.to_owned(), window)));
        assert_eq!(read(b"{\"data\":[]}"), None);
        assert_eq!(read(b"<html>"), None);
    }
}
