//! Learns about the models behind an upstream: their windows, and how many bytes of a request make a token.
//!
//! Windows come from `/v1/models` (vLLM's `max_model_len`, llama.cpp's `n_ctx`), which is asked together with
//! the first large request and now and then again, and from the words of refusals; the bytes of a token from
//! the usage of replies. Servers are also asked for their version, and for the parser or the chat template
//! they use, which shows what their models write (`server`). Called by `relay` and `cli`.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use tokio::time::{Instant, timeout};

use super::client::{Call, Upstream};
use super::headers::question_headers;
use super::listed_model::ListedModel;
use super::server::Server;
use adapt::Rule;
use wire::Object;

/// How long an answer holds: a server may be started again with another window.
const FRESH: Duration = Duration::from_mins(5);
/// How long `/v1/models` and `/tokenize` may take to answer. The latter takes about 0.1 s for 150 KB.
const WITHIN: Duration = Duration::from_secs(2);
/// The fields of a chat request that `/tokenize` reads.
const TOKENIZED: [&str; 8] = [
    "model",
    "messages",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
];

/// Returns true if a model is known to take no pictures or no sounds; `rule` replaces them.
pub fn takes_no_media(upstream: &Upstream, model: &str, rule: &Rule) -> bool {
    upstream.models.facts_of(model).is_harmony || upstream.rules.get(model).contains(rule)
}

impl Upstream {
    /// Returns the models that the server serves, by the configuration or its own list; `None`: not known.
    pub fn known_models(&self) -> Option<Vec<String>> {
        let listed = || self.models.listed.read().unwrap_or_else(PoisonError::into_inner).clone();
        self.state.models().or_else(listed)
    }

    /// Asks `/v1/models` unless that was done lately or is being done. `headers`: the client's, for its key.
    pub async fn learn_models(&self, headers: &HeaderMap) {
        let Ok(mut asked) = self.models.asked.try_lock() else { return };
        if asked.is_some_and(|at| at.elapsed() < FRESH) {
            return;
        }
        let answer = self.ask_models(question_headers(headers), WITHIN).await;
        // A server that fails to answer is not asked again at once.
        *asked = Some(Instant::now());
        if let Ok(models) = answer {
            self.learn_server(&models, headers).await;
        }
    }

    /// Learns the models in a task of its own, so that a quicker reply does not end it and the next request
    /// does not begin again.
    pub fn learn_models_aside(self: &Arc<Self>, headers: &HeaderMap) {
        let is_due =
            self.models.asked.try_lock().is_ok_and(|asked| asked.is_none_or(|at| at.elapsed() >= FRESH));
        if is_due {
            let (upstream, headers) = (Arc::clone(self), question_headers(headers));
            tokio::spawn(async move { upstream.learn_models(&headers).await });
        }
    }

    /// Learns from an answer of `/v1/models`. A request without `model` goes to the first.
    pub(super) fn learn_list(&self, models: &[ListedModel]) {
        let names = models.iter().map(|model| model.id.clone()).filter(|id| !id.is_empty()).collect();
        *self.models.listed.write().unwrap_or_else(PoisonError::into_inner) = Some(names);
        *self.models.server.write().unwrap_or_else(PoisonError::into_inner) =
            models.iter().find_map(|model| model.server);
        let is_any = |server: Server| models.iter().any(|model| model.server == Some(server));
        self.update_traits(|traits| {
            traits.is_ollama = is_any(Server::Ollama);
            traits.is_sglang = is_any(Server::SgLang);
            traits.is_llama_cpp = is_any(Server::LlamaCpp);
        });
        for (name, model) in names_of(models) {
            self.models.learn(name, |facts| {
                facts.window = model.window.or(facts.window);
                facts.is_harmony = model.is_harmony;
                facts.prior = model.prior.or(facts.prior);
            });
        }
    }

    /// Asks a server for its version, and for what its models write where the name of one of them does not
    /// say it.
    async fn learn_server(&self, list: &[ListedModel], headers: &HeaderMap) {
        let Some((server, Some(page))) = self.ask_server(list, headers).await else { return };
        if let Some(version) = server.describe_version(&page) {
            self.rules.note_server(&version);
        }
        let prior = server.preferred_dialects(&page);
        for (name, _) in names_of(list).filter(|(_, model)| model.prior.is_empty()) {
            self.models.learn(name, |facts| facts.prior = prior.or(facts.prior));
        }
    }

    /// Returns the program behind this list of models, and its page about itself if it has one.
    pub async fn ask_server(
        &self,
        list: &[ListedModel],
        headers: &HeaderMap,
    ) -> Option<(Server, Option<Bytes>)> {
        let server = list.iter().find_map(|model| model.server)?;
        let Some(path) = server.own_page() else { return Some((server, None)) };
        let asked = timeout(WITHIN, Box::pin(self.get_json(path, question_headers(headers)))).await;
        let page = match asked {
            Ok(Ok((StatusCode::OK, page))) => Some(page),
            _ => None,
        };
        Some((server, page))
    }

    /// Returns the tokens of a request's prompt as the server counts them; exact for models with a chat
    /// template. `None` when it does not answer in time; it is then not asked for a while.
    pub async fn count_tokens(&self, request: &Object<'_>, headers: &HeaderMap) -> Option<u64> {
        let failed = *self.models.uncounted.read().unwrap_or_else(PoisonError::into_inner);
        if failed.is_some_and(|at| at.elapsed() < FRESH) {
            return None;
        }
        let counted = timeout(WITHIN, Box::pin(self.send(tokenize_call(request, headers)))).await;
        match counted {
            Ok(Ok(mut answer)) if answer.status().is_success() => {
                // The answer lists every token.
                let body = timeout(WITHIN, Box::pin(answer.read_whole(32 << 20))).await.ok()?.ok()?;
                Object::parse(std::str::from_utf8(&body).ok()?).ok()?.number("count")
            }
            // It has nothing against being asked, only against this request.
            Ok(Ok(answer)) if answer.status() == StatusCode::BAD_REQUEST => None,
            _ => {
                *self.models.uncounted.write().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
                None
            }
        }
    }
}

/// Returns the question how many tokens a request's prompt has.
fn tokenize_call(request: &Object<'_>, headers: &HeaderMap) -> Call {
    let mut asked = request.clone();
    for (key, _) in request.iter().filter(|(key, _)| !TOKENIZED.contains(key)) {
        asked.remove(key);
    }
    let mut headers = question_headers(headers);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Call {
        method: Method::POST,
        path_and_query: "/tokenize".into(),
        headers,
        body: Bytes::from(asked.to_json()).into(),
        verbatim: false,
    }
}

/// Yields the names of the models with them; the first model also stands for requests that name none.
fn names_of(models: &[ListedModel]) -> impl Iterator<Item = (&str, &ListedModel)> {
    let named = models.iter().map(|model| (model.id.as_str(), model));
    named.chain(models.first().map(|model| ("", model)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model_list::tests::parse_models;

    #[test]
    fn ollama_is_known_by_its_list() {
        let upstream = Upstream::new(&crate::UpstreamConfig::default()).unwrap();
        upstream.learn_list(&parse_models(r#"{"data":[{"id":"llama3.3","owned_by":"library"}]}"#));
        assert!(upstream.server_traits().is_ollama);
        upstream.learn_list(&parse_models(r#"{"data":[{"id":"llama3.3","owned_by":"vllm"}]}"#));
        assert!(!upstream.server_traits().is_ollama);
    }
}
