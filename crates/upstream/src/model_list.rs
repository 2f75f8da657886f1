//! The question which models a server has, and the one judgement of its answer: the list of models that
//! clients see, `/ready`, the page, alerts, `respool check` and the other commands all follow it.

use std::time::Duration;

use http::header::AUTHORIZATION;
use http::{HeaderMap, StatusCode};
use serde_json::Value;
use tokio::time::timeout;

use super::client::Upstream;
use super::listed_model::{ListedModel, NoModelList, read_list};

impl Upstream {
    /// Returns true if the server is another respool.
    pub async fn is_respool(&self, within: Duration) -> bool {
        let asked = timeout(within, self.get_json("/health", HeaderMap::new())).await;
        let health =
            asked.ok().and_then(Result::ok).and_then(|(_, body)| serde_json::from_slice::<Value>(&body).ok());
        health.is_some_and(|health| health["name"] == "respool")
    }

    /// Asks the server for its models, and learns from the answer.
    ///
    /// # Errors
    /// [`NoModelList`] if the server does not list them within this time.
    pub async fn ask_models(
        &self,
        headers: HeaderMap,
        within: Duration,
    ) -> Result<Vec<ListedModel>, NoModelList> {
        // What a client's own key opens or not is no fact for others.
        let is_own = self.authorization.is_some() || !headers.contains_key(AUTHORIZATION);
        let answer = query_models(self, headers, within).await;
        if is_own && self.state.note_list(answer.as_deref()) {
            let names = self.state.models().unwrap_or_default().join(",");
            tracing::info!(target: "respool::upstream", upstream = self.name, models = names, "this upstream lists its models");
        }
        answer
    }
}

async fn query_models(
    upstream: &Upstream,
    headers: HeaderMap,
    within: Duration,
) -> Result<Vec<ListedModel>, NoModelList> {
    let has_key = upstream.authorization.is_some() || headers.contains_key(AUTHORIZATION);
    // Boxed: the future is large, and part of those of requests.
    let asked = timeout(within, Box::pin(upstream.get_json("/v1/models", headers))).await;
    let answered = asked.map_err(|_| NoModelList::Silent(within))?;
    let (status, body) = answered.map_err(|error| NoModelList::Unreachable(Box::new(error)))?;
    match status {
        status if status.is_success() => {}
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN if has_key => {
            return Err(NoModelList::KeyRefused(status, body));
        }
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            let clients_may_help = !upstream.client_keys_end_here;
            return Err(NoModelList::KeyMissing { status, body, clients_may_help });
        }
        status => return Err(NoModelList::Status(status, body)),
    }
    let is_page = body.trim_ascii_start().starts_with(b"<");
    let models = read_list(&body).ok_or(NoModelList::NotAList { is_page })?;
    upstream.learn_list(&models);
    Ok(models)
}

#[cfg(test)]
pub(super) mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::server::Server;

    pub(in super::super) fn parse_models(body: &str) -> Vec<ListedModel> {
        read_list(body.as_bytes()).unwrap()
    }

    fn summaries(body: &str) -> Vec<(String, Option<u64>, bool)> {
        parse_models(body).into_iter().map(|model| (model.id, model.window, model.is_harmony)).collect()
    }

    #[test]
    fn windows_as_vllm_lists_them() {
        let captured = include_str!("../../../fixtures/vllm/v0.32.0-llama-hermes/50-models.resp.http");
        let (_, body) = captured.split_once("\r\n\r\n").unwrap();
        assert_eq!(summaries(body), [("tiny".to_owned(), Some(2048), false)]);
        let renamed = r#"{"data":[{"id":"big","root":"openai/gpt-oss-120b"},{"id":3}]}"#;
        assert!(parse_models(renamed).iter().all(|model| !model.prior.is_empty()));
        assert_eq!(summaries(renamed), [("big".to_owned(), None, true)]);
    }

    #[test]
    fn windows_have_many_names() {
        for (entry, expected) in [
            (r#"{"id":"a","max_model_len":4096}"#, Some(4096)),
            (r#"{"id":"a","meta":{"n_ctx":65536,"n_ctx_train":131072}}"#, Some(65_536)),
            (r#"{"id":"a","metadata":{"context_length":131072}}"#, Some(131_072)),
            (r#"{"id":"a","context_length":0}"#, None),
        ] {
            assert_eq!(parse_models(&format!(r#"{{"data":[{entry}]}}"#))[0].window, expected, "{entry}");
        }
    }

    #[test]
    fn servers_are_known_by_their_lists() {
        let list = parse_models(r#"{"data":[{"id":"a","owned_by":"sglang"},{"id":"b","owned_by":"me"}]}"#);
        let servers: Vec<_> = list.into_iter().map(|model| model.server).collect();
        assert_eq!(servers, [Some(Server::SgLang), None]);
    }

    #[test]
    fn other_answers_are_no_list() {
        for body in ["[]", "{}", r#"{"data":{}}"#, "<html>", ""] {
            assert!(read_list(body.as_bytes()).is_none(), "{body}");
        }
        assert!(parse_models(r#"{"data":[]}"#).is_empty());
    }

    #[test]
    fn wrong_addresses_are_recognised() {
        let status = |status| NoModelList::Status(status, Bytes::new());
        assert!(
            NoModelList::NotAList { is_page: true }.is_wrong_address()
                && status(StatusCode::NOT_FOUND).is_wrong_address()
        );
        assert!(!status(StatusCode::SERVICE_UNAVAILABLE).is_wrong_address());
        assert!(!NoModelList::Silent(Duration::from_secs(1)).is_wrong_address());
    }
}
