//! Learns about the models behind an upstream: their windows, and how many bytes of a request make a token.
//!
//! Windows come from `/v1/models` (vLLM's `max_model_len`, llama.cpp's `n_ctx`), which is asked together with
//! the first large request and now and then again, and from the words of refusals; the bytes of a token from
//! the usage of replies. Servers are also asked for their version, and for the parser or the chat template
//! they use, which shows what their models write (`server`). Called by `relay` and `cli`.

use std::ops::RangeInclusive;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use tokio::time::{Instant, timeout};

use super::client::{Call, Upstream};
use super::headers::question_headers;
use super::model_facts::ModelFacts;
use super::model_list::{ListedModel, is_gpt_oss};
use super::server::Server;
use wire::Object;

/// How long an answer holds: a server may be started again with another window.
const FRESH: Duration = Duration::from_mins(5);
/// How long `/v1/models` and `/tokenize` may take to answer. The latter takes about 0.1 s for 150 KB.
const WITHIN: Duration = Duration::from_secs(2);
/// A server that accepts any name must not fill the memory.
const MOST_MODELS: usize = 256;
/// Smaller requests are mostly frame, and say little about how long tokens are.
const SIGNIFICANT: usize = 4096;
/// Bytes for a thousand tokens of text. Images have far more, and some servers do not count what they had in
/// their cache.
const PLAUSIBLE: RangeInclusive<u64> = 1_000..=10_000;
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

impl Upstream {
    /// Returns the facts that are known about this model.
    pub fn model_facts(&self, model: &str) -> ModelFacts {
        let models = self.windows.models.read().unwrap_or_else(PoisonError::into_inner);
        let facts = models.get(model).copied().unwrap_or_default();
        ModelFacts { is_harmony: facts.is_harmony || is_gpt_oss(model), ..facts }
    }

    /// Adds to what is known of a model.
    pub fn learn_model(&self, model: &str, learn: impl FnOnce(&mut ModelFacts)) {
        let mut models = self.windows.models.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = models.get_mut(model) {
            learn(known);
        } else if models.len() < MOST_MODELS {
            learn(models.entry(model.to_owned()).or_default());
        }
    }

    /// Notes that a model has reasoned although the request switched that off. Returns true the first time.
    pub fn note_disobedience(&self, model: &str) -> bool {
        let mut is_new = false;
        self.learn_model(model, |facts| is_new = !std::mem::replace(&mut facts.ignores_off, true));
        is_new
    }

    /// Returns the models that the server serves, by the configuration or its own list; `None`: not known.
    pub fn known_models(&self) -> Option<Vec<String>> {
        let listed = || self.windows.listed.read().unwrap_or_else(PoisonError::into_inner).clone();
        self.state.models().or_else(listed)
    }

    /// Returns true when the server has listed this model, or answered a request for it.
    pub fn has_seen_model(&self, model: &str) -> bool {
        self.windows.models.read().unwrap_or_else(PoisonError::into_inner).contains_key(model)
    }

    /// Learns that the server answers for this model. Returns false if too many names are known for one more
    /// to label metrics; a client may have invented them.
    pub fn learn_served_model(&self, model: &str) -> bool {
        self.learn_model(model, |_| {});
        self.has_seen_model(model)
    }

    /// Learns from a reply how many tokens a request of this many bytes had.
    pub fn learn_usage(&self, model: &str, bytes: usize, tokens: u64) {
        if bytes < SIGNIFICANT || tokens == 0 {
            return;
        }
        let seen = bytes as u64 * 1000 / tokens;
        if !PLAUSIBLE.contains(&seen) {
            return;
        }
        self.learn_model(model, |facts| {
            // It answered this prompt, so its window is larger, whatever its list says.
            facts.window = facts.window.filter(|window| *window >= tokens);
            // Later replies count more: the conversation may have turned to another kind of text.
            facts.bytes_per_1000 = Some(facts.bytes_per_1000.map_or(seen, |known| known.midpoint(seen)));
        });
    }

    /// Asks `/v1/models` unless that was done lately or is being done. `headers`: the client's, for its key.
    pub async fn learn_models(&self, headers: &HeaderMap) {
        let Ok(mut asked) = self.windows.asked.try_lock() else { return };
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
            self.windows.asked.try_lock().is_ok_and(|asked| asked.is_none_or(|at| at.elapsed() >= FRESH));
        if is_due {
            let (upstream, headers) = (Arc::clone(self), question_headers(headers));
            tokio::spawn(async move { upstream.learn_models(&headers).await });
        }
    }

    /// Learns from an answer of `/v1/models`. A request without `model` goes to the first.
    pub(super) fn learn_list(&self, models: &[ListedModel]) {
        let names = models.iter().map(|model| model.id.clone()).filter(|id| !id.is_empty()).collect();
        *self.windows.listed.write().unwrap_or_else(PoisonError::into_inner) = Some(names);
        *self.windows.server.write().unwrap_or_else(PoisonError::into_inner) =
            models.iter().find_map(|model| model.server);
        let is_any = |server: Server| models.iter().any(|model| model.server == Some(server));
        let found = (is_any(Server::Ollama), is_any(Server::LlamaCpp));
        let known = self.server_traits();
        if (known.is_ollama, known.is_llama_cpp) != found {
            self.update_traits(|traits| (traits.is_ollama, traits.is_llama_cpp) = found);
        }
        for (name, model) in names_of(models) {
            self.learn_model(name, |facts| {
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
            self.learn_model(name, |facts| facts.prior = prior.or(facts.prior));
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
        let failed = *self.windows.uncounted.read().unwrap_or_else(PoisonError::into_inner);
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
                *self.windows.uncounted.write().unwrap_or_else(PoisonError::into_inner) =
                    Some(Instant::now());
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

    #[test]
    fn disobedience_is_new_once() {
        let upstream = Upstream::new(&crate::UpstreamConfig::default()).unwrap();
        assert!(upstream.note_disobedience("m") && !upstream.note_disobedience("m"));
        assert!(upstream.note_disobedience("other"));
    }

    #[test]
    fn later_replies_weigh_more() {
        let upstream = Upstream::new(&crate::UpstreamConfig::default()).unwrap();
        upstream.learn_usage("m", 100, 60);
        upstream.learn_usage("m", 1 << 20, 1_000);
        assert_eq!(upstream.model_facts("m").bytes_per_1000, None);
        for (bytes, expected) in [(40_000, 4000), (60_000, 5000)] {
            upstream.learn_usage("m", bytes, 10_000);
            assert_eq!(upstream.model_facts("m").bytes_per_1000, Some(expected));
        }
        for (window, expected) in [(10_000, Some(10_000)), (9_999, None)] {
            upstream.learn_model("m", |facts| facts.window = Some(window));
            upstream.learn_usage("m", 50_000, 10_000);
            assert_eq!(upstream.model_facts("m").window, expected, "it answered a prompt of 10,000 tokens");
        }
    }

    #[test]
    fn made_up_names_do_not_fill_the_memory() {
        let upstream = Upstream::new(&crate::UpstreamConfig::default()).unwrap();
        (0..1000).for_each(|name| upstream.learn_usage(&name.to_string(), 40_000, 10_000));
        assert_eq!(upstream.windows.models.read().unwrap().len(), MOST_MODELS);
    }
}
