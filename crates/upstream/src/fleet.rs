//! All upstreams together: which of them serve a model, in which order a conversation asks them, and the
//! lists of models, which are asked for in the background.
//!
//! Does not send requests: `relay` does, one upstream after the other.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::join_all;
use http::HeaderMap;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::balance::rank_upstreams;
use super::client::Upstream;
use super::listed_model::NoModelList;
use super::rule_file::RuleFile;

/// Lists of models are asked for again at most so often.
pub const LISTS_EVERY: Duration = Duration::from_secs(10);

/// A list of models takes no longer.
const LIST_WITHIN: Duration = Duration::from_secs(5);

/// A request for a model that no upstream is known to serve waits this long for fresh lists.
const PATIENCE: Duration = Duration::from_millis(500);

/// The configured upstreams, the default one first.
#[derive(Debug)]
pub struct Fleet {
    upstreams: Arc<[Arc<Upstream>]>,
    every: Duration,
    wanted: Notify,
    /// True while lists are asked for; ticks for each that came.
    asking: watch::Sender<bool>,
    asked: Mutex<Option<Instant>>,
}

/// Who serves a model, in the order in which a conversation asks them.
#[derive(Debug)]
pub enum Serving {
    /// These do.
    Known(Arc<[Arc<Upstream>]>),
    /// No upstream is known to; these may.
    Possible(Arc<[Arc<Upstream>]>),
    /// No upstream does.
    NotServed,
}

impl Fleet {
    /// Makes the fleet. `every`: the shortest time between two requests for lists of models.
    pub fn new(upstreams: Vec<Arc<Upstream>>, every: Duration) -> Self {
        let (wanted, asking, asked) = (Notify::new(), watch::Sender::new(false), Mutex::new(None));
        Self { upstreams: upstreams.into(), every, wanted, asking, asked }
    }

    /// Returns the upstreams, the default one first.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Upstream>> {
        self.upstreams.iter()
    }

    /// Puts the configuration of these upstreams into effect: their bounds apply to the requests in progress
    /// too.
    pub fn take_effect(&self) {
        self.iter().for_each(|upstream| upstream.state.take_effect());
    }

    /// Returns true when there is a choice.
    pub fn is_several(&self) -> bool {
        self.upstreams.len() > 1
    }

    /// Returns true when it matters on whose behalf a request comes.
    pub fn distinguishes_clients(&self) -> bool {
        self.is_several()
            || self.iter().any(|upstream| upstream.state.is_bounded() || !upstream.router.is_empty())
    }

    /// Finds the upstreams of a model (as upstreams call it). A single upstream gets everything, and judges
    /// for itself. Without a model the default one chooses what to answer with; the others stand in for it.
    pub fn find_servers(&self, model: &str, conversation: u64) -> Serving {
        if !self.is_several() || model.is_empty() {
            return Serving::Known(Arc::clone(&self.upstreams));
        }
        let which = |answer| -> Vec<&Arc<Upstream>> {
            self.iter().filter(|upstream| upstream.state.serves_model(model) == answer).collect()
        };
        // One that refuses its key or its certificate would hide that no other knows the model.
        let unknown = || which(None).into_iter().filter(|upstream| upstream.state.refusal().is_none());
        match (which(Some(true)), unknown().collect::<Vec<_>>()) {
            (known, _) if !known.is_empty() => Serving::Known(order_upstreams(conversation, &known)),
            (_, unknown) if !unknown.is_empty() => Serving::Possible(order_upstreams(conversation, &unknown)),
            _ => Serving::NotServed,
        }
    }

    /// Returns all models that are known to be served.
    pub fn known_models(&self) -> Vec<String> {
        let mut models: Vec<String> = Vec::new();
        for model in self.iter().filter_map(|upstream| upstream.known_models()).flatten() {
            if !models.contains(&model) {
                models.push(model);
            }
        }
        models
    }

    /// Returns the upstreams whose models are not known because they refuse the key or the certificate, each
    /// with the reason.
    pub fn refusals(&self) -> impl Iterator<Item = (&Arc<Upstream>, NoModelList)> {
        let unknown = self.iter().filter(|upstream| upstream.state.models().is_none());
        unknown.filter_map(|upstream| Some((upstream, upstream.state.refusal()?)))
    }

    /// Asks for new lists, because a model is unknown or an upstream is back.
    pub fn want_lists(&self) {
        self.wanted.notify_one();
    }

    /// Waits a moment for fresh lists, unless they are fresh already or an upstream is known to serve the
    /// model.
    pub async fn await_fresh_lists(&self, model: &str) {
        let mut asking = self.asking.subscribe();
        let asked = *self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = asked.is_none_or(|asked| asked.elapsed() >= self.every);
        if is_due {
            self.asking.send_replace(true);
        }
        self.want_lists();
        let known = || self.iter().any(|upstream| upstream.state.serves_model(model) == Some(true));
        let fresh = asking.wait_for(|asking| !asking || known());
        // The request itself asks those that were too slow.
        let _ = timeout(PATIENCE, fresh).await;
    }

    /// Tells the upstreams about changes that other programs make to the file of their rules, until `end`.
    pub async fn watch_rules(self: Arc<Self>, file: Arc<RuleFile>, end: CancellationToken) {
        file.watch(|| self.iter().for_each(|upstream| upstream.rules.reload()), end).await;
    }

    /// Asks for lists of models until `end`: at once, when they are wanted, and regularly as long as one is
    /// not known.
    pub async fn keep_lists(self: Arc<Self>, end: CancellationToken) {
        let keep = async {
            loop {
                // All earlier wishes are fulfilled now.
                let _ = self.wanted.notified().now_or_never();
                self.ask_all().await;
                let soonest = Instant::now() + self.every;
                let may_list_models = self.iter().any(|upstream| upstream.state.may_list_models());
                tokio::select! {
                    () = self.wanted.notified() => {}
                    () = sleep(self.every), if may_list_models => {}
                }
                sleep_until(soonest).await;
            }
        };
        end.run_until_cancelled(keep).await;
    }

    async fn ask_all(&self) {
        self.asking.send_replace(true);
        join_all(self.iter().filter(|upstream| !upstream.state.names_its_models()).map(|upstream| async {
            if ask_for_models(upstream).await {
                self.asking.send_replace(true);
            }
        }))
        .await;
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        self.asking.send_replace(false);
    }
}

fn order_upstreams(conversation: u64, upstreams: &[&Arc<Upstream>]) -> Arc<[Arc<Upstream>]> {
    let weighted = upstreams.iter().map(|upstream| (upstream.name.as_str(), upstream.state.weight()));
    rank_upstreams(conversation, weighted)
        .into_iter()
        .map(|position| Arc::clone(upstreams[position]))
        .collect()
}

/// Returns true when there is a list.
async fn ask_for_models(upstream: &Upstream) -> bool {
    // Without a key of its own the upstream may refuse: only clients have one then, and theirs are not used
    // unasked.
    match upstream.ask_models(HeaderMap::new(), LIST_WITHIN).await {
        Ok(_) => true,
        Err(problem @ (NoModelList::KeyRefused(..) | NoModelList::KeyMissing { .. })) => {
            // Other refusals are alerts.
            if upstream.state.note_refused_list() && problem.waits_for_client_key() {
                tracing::warn!(
                    target: "respool::upstream",
                    upstream = upstream.name,
                    "this upstream does not list its models without a key; write `models` or `api_key` under its [[upstream]]"
                );
            }
            false
        }
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Address, UpstreamConfig};
    use testing::idle_time::IdleTime;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use wire::units::Secret;

    const EVERY: Duration = Duration::from_secs(10);

    /// A server with one route, whose models can be changed; none: it is not ready; `401`: it refuses.
    async fn server(models: &Arc<Mutex<Vec<&'static str>>>, asked: &Arc<Mutex<usize>>) -> Arc<Upstream> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url: Address = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let (models, asked) = (Arc::clone(models), Arc::clone(asked));
        tokio::spawn(async move {
            loop {
                let (mut socket, _) = listener.accept().await.unwrap();
                *asked.lock().unwrap() += 1;
                let list: Vec<String> =
                    models.lock().unwrap().iter().map(|model| format!(r#"{{"id":"{model}"}}"#)).collect();
                let body = format!(r#"{{"data":[{}]}}"#, list.join(","));
                let status = match models.lock().unwrap().first() {
                    None => "503 Service Unavailable",
                    Some(&"401") => "401 Unauthorized",
                    Some(_) => "200 OK",
                };
                let head =
                    format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}", body.len());
                let _ = socket.read(&mut [0; 1024]).await;
                let _ = socket.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).await;
            }
        });
        Arc::new(Upstream::new(&UpstreamConfig::with_address(url)).unwrap())
    }

    fn names(serving: Serving) -> Vec<String> {
        match serving {
            Serving::Known(order) => order.iter().map(|upstream| upstream.name.clone()).collect(),
            Serving::Possible(order) => order.iter().map(|upstream| format!("{}?", upstream.name)).collect(),
            Serving::NotServed => vec![],
        }
    }

    #[tokio::test]
    async fn lists_are_requested_only_when_wanted() {
        let time = IdleTime::begin();
        let (models, asked) = (Arc::new(Mutex::new(vec!["one"])), Arc::default());
        let here = server(&models, &asked).await;
        let named = UpstreamConfig {
            name: "named".into(),
            models: Some(vec!["two".into()]),
            ..UpstreamConfig::default()
        };
        let fleet =
            Arc::new(Fleet::new(vec![Arc::clone(&here), Arc::new(Upstream::new(&named).unwrap())], EVERY));
        let end = CancellationToken::new();
        let keeper = tokio::spawn(Arc::clone(&fleet).keep_lists(end.clone()));
        assert_eq!(names(fleet.find_servers("one", 0)), [format!("{}?", here.name)]);
        fleet.await_fresh_lists("one").await;
        assert_eq!(names(fleet.find_servers("one", 0)), [here.name.as_str()]);
        assert_eq!(names(fleet.find_servers("two", 0)), ["named"]);
        *models.lock().unwrap() = vec!["three"];
        for _ in 0..20 {
            fleet.await_fresh_lists("three").await;
        }
        assert_eq!((names(fleet.find_servers("three", 0)).len(), *asked.lock().unwrap()), (0, 1), "too soon");
        time.pass(3 * EVERY).await;
        assert_eq!(
            names(fleet.find_servers("three", 0)),
            [here.name.as_str()],
            "asked for as soon as that was due"
        );
        assert_eq!(*asked.lock().unwrap(), 2);
        assert_eq!(fleet.known_models(), ["three", "two"]);
        time.pass(3 * EVERY).await;
        assert_eq!(*asked.lock().unwrap(), 2, "nobody wants to know");
        models.lock().unwrap().clear();
        fleet.want_lists();
        time.pass(2 * EVERY).await;
        assert_eq!(
            fleet.known_models(),
            ["three", "two"],
            "what was known of one that does not answer holds"
        );
        end.cancel();
        keeper.await.unwrap();
    }

    #[tokio::test]
    async fn a_silent_upstream_is_asked_until_it_lists_models() {
        let time = IdleTime::begin();
        let (models, asked) = (Arc::new(Mutex::new(vec![])), Arc::default());
        let here = server(&models, &asked).await;
        let fleet = Arc::new(Fleet::new(vec![Arc::clone(&here)], EVERY));
        let end = CancellationToken::new();
        tokio::spawn(Arc::clone(&fleet).keep_lists(end.clone()));
        time.pass(EVERY / 2).await;
        assert_eq!(here.state.models(), None);
        *models.lock().unwrap() = vec!["one"];
        time.pass(2 * EVERY).await;
        assert_eq!(here.state.models(), Some(vec!["one".to_owned()]));
        end.cancel();
    }

    #[tokio::test]
    async fn one_that_refuses_its_list_is_left_alone() {
        let time = IdleTime::begin();
        let (models, asked) = (Arc::new(Mutex::new(vec!["401"])), Arc::default());
        let here = server(&models, &asked).await;
        let fleet = Arc::new(Fleet::new(vec![Arc::clone(&here)], EVERY));
        let end = CancellationToken::new();
        tokio::spawn(Arc::clone(&fleet).keep_lists(end.clone()));
        time.pass(3 * EVERY).await;
        assert_eq!((here.state.models(), *asked.lock().unwrap()), (None, 1));
        end.cancel();
    }

    /// Regression: a misspelt model was answered with the error of an upstream whose key is wrong.
    #[tokio::test]
    async fn refusals_hide_no_unknown_model() {
        let (models, asked) = (Arc::new(Mutex::new(vec!["401"])), Arc::default());
        let refuses = server(&models, &asked).await;
        let check = async |api_key: Option<&str>, client_keys_end_here, expected: (&[&str], &[&str])| {
            let config = UpstreamConfig {
                name: "keyed".into(),
                api_key: api_key.map(Secret::new),
                client_keys_end_here,
                ..UpstreamConfig::with_address(refuses.address().clone())
            };
            let other = UpstreamConfig { models: Some(vec!["one".into()]), ..UpstreamConfig::default() };
            let all = [&config, &other].map(|config| Arc::new(Upstream::new(config).unwrap()));
            let fleet = Fleet::new(all.to_vec(), EVERY);
            assert_eq!(names(fleet.find_servers("two", 0)), ["keyed?"], "it was not asked yet");
            fleet.ask_all().await;
            let refusals: Vec<_> = fleet.refusals().map(|(it, why)| format!("{}: {why}", it.name)).collect();
            assert_eq!(names(fleet.find_servers("two", 0)), expected.0);
            assert_eq!(refusals, expected.1);
        };
        check(Some("wrong"), false, (&[], &["keyed: it rejects the key (HTTP 401)"])).await;
        check(None, true, (&[], &["keyed: it asks for a key (HTTP 401)"])).await;
        check(None, false, (&["keyed?"], &[])).await;
    }
}
