//! The available models and the sizes of their windows. The product asks the relay for both.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::time::{Instant, sleep};

use agent::Tokens;
use wire::visible::one_line;

/// The most models that are named.
const MOST_NAMES: usize = 10;
/// The pause before an endpoint that is not ready is asked again, and how long that is done.
const WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_mins(10);

/// A model as an endpoint lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedModel {
    /// Its id.
    pub id: String,
    /// Its window in tokens, where the endpoint or the configuration says.
    pub window: Option<u64>,
}

/// Why no model is known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoModels {
    /// No endpoint is configured.
    #[error("no upstream is configured")]
    NoUpstream,
    /// The endpoint cannot be used, for this reason.
    #[error("{0}")]
    Unusable(String),
    /// The endpoint is not ready yet, in its words.
    #[error("{0}")]
    NotReady(String),
    /// The endpoint of this name lists none.
    #[error("`{0}` lists no models: is its URL right?")]
    NoneListed(String),
    /// The person did not wait.
    #[error("stopped")]
    Stopped,
}

/// A model, and the models that the endpoints list instead if none lists it.
pub(super) type FoundModel = (ListedModel, Option<Vec<String>>);

/// The port to the models of the configured endpoints.
pub trait ModelDirectory: Send + Sync {
    /// Asks each endpoint for its models, in the order of the configuration. There is at least one endpoint.
    fn list_models(&self) -> Vec<BoxFuture<'_, Result<Vec<ListedModel>, NoModels>>>;

    /// Returns the names that stand for other models, each with the model.
    fn aliases(&self) -> Vec<(String, String)>;

    /// Returns the model that an id stands for.
    fn target(&self, id: &str) -> String;

    /// Returns the window that the configuration gives to the model of this id.
    fn configured_window(&self, id: &str) -> Option<u64>;

    /// Returns true for a model that is known to take no pictures.
    fn takes_only_text(&self, id: &str) -> bool;
}

/// Returns the cost of tokens of a model, for people; `None` without a price.
pub type PriceOf = Arc<dyn Fn(&str, Tokens) -> Option<String> + Send + Sync>;

/// Finds the model of this id, or the first that the endpoint names. If no endpoint lists it, the models that
/// they list come with it.
///
/// # Errors
/// When none is named and none can be found.
pub(super) async fn find_model(
    models: &Arc<dyn ModelDirectory>,
    id: Option<&str>,
) -> Result<FoundModel, NoModels> {
    let Some(id) = id else {
        let first = models.list_models().into_iter().next().ok_or(NoModels::NoUpstream)?;
        let listed = first.await?.into_iter().next().ok_or(NoModels::NoUpstream)?;
        let window = models.configured_window(&listed.id).or(listed.window);
        return Ok((ListedModel { window, ..listed }, None));
    };
    let found = find_first(models.list_models().into_iter(), &models.target(id)).await;
    let doubt = found.as_ref().err().cloned();
    let window = models.configured_window(id).or(found.ok().and_then(|model| model.window));
    Ok((ListedModel { id: id.to_owned(), window }, doubt))
}

/// Finds a model as [`find_model`] does, and waits for an endpoint that is not ready yet. `waits` gets the
/// reason each time.
///
/// # Errors
/// As for [`find_model`].
pub(super) async fn await_model(
    models: &Arc<dyn ModelDirectory>,
    id: Option<&str>,
    waits: impl Fn(String),
) -> Result<FoundModel, NoModels> {
    let end = Instant::now() + LONGEST_WAIT;
    loop {
        match find_model(models, id).await {
            Err(NoModels::NotReady(why)) if Instant::now() < end => waits(why),
            found => return found,
        }
        sleep(WAIT).await;
    }
}

/// Says that no endpoint lists a model, and which ones they list.
pub(super) fn doubt_text(available: &[String]) -> String {
    let more = if available.len() > MOST_NAMES { ", … (/model lists all)" } else { "" };
    let names: Vec<String> = available.iter().take(MOST_NAMES).map(|name| one_line(name, 100)).collect();
    match available {
        [] => "it is not known whether an upstream has it, because none lists its models now".to_owned(),
        _ => {
            format!("no upstream lists this model. Available models: {}{more}", names.join(", "))
        }
    }
}

/// Returns the model of this id from the endpoint that lists it first: others may not answer at all.
///
/// # Errors
/// The models that the endpoints list instead.
async fn find_first(
    asked: impl Iterator<Item = impl Future<Output = Result<Vec<ListedModel>, NoModels>>>,
    id: &str,
) -> Result<ListedModel, Vec<String>> {
    let mut asked: FuturesUnordered<_> = asked.collect();
    let mut others = Vec::new();
    while let Some(listed) = asked.next().await {
        for model in listed.unwrap_or_default() {
            if model.id == id {
                return Ok(model);
            }
            others.push(model.id);
        }
    }
    Err(others)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A directory of one model, whose endpoint is ready when it was asked this often.
    struct Slow(AtomicUsize);

    impl ModelDirectory for Slow {
        fn list_models(&self) -> Vec<BoxFuture<'_, Result<Vec<ListedModel>, NoModels>>> {
            let model = ListedModel { id: "a".into(), window: None };
            let left = self.0.fetch_sub(1, Ordering::Relaxed);
            let listed = if left > 0 { Err(NoModels::NotReady("loading".into())) } else { Ok(vec![model]) };
            vec![Box::pin(std::future::ready(listed))]
        }

        fn aliases(&self) -> Vec<(String, String)> {
            Vec::new()
        }

        fn target(&self, id: &str) -> String {
            id.to_owned()
        }

        fn configured_window(&self, _: &str) -> Option<u64> {
            None
        }

        fn takes_only_text(&self, _: &str) -> bool {
            false
        }
    }

    /// Regression: the chat ended when the server was still loading.
    #[tokio::test(start_paused = true)]
    async fn a_server_that_loads_is_awaited() {
        let ask = async |asked: usize| {
            let (models, waits): (Arc<dyn ModelDirectory>, _) =
                (Arc::new(Slow(AtomicUsize::new(asked))), AtomicUsize::new(0));
            let count = |_: String| {
                waits.fetch_add(1, Ordering::Relaxed);
            };
            let found = await_model(&models, None, count).await;
            (found.map(|(model, _)| model.id), waits.into_inner())
        };
        assert_eq!(ask(0).await, (Ok("a".into()), 0));
        assert_eq!(ask(3).await, (Ok("a".into()), 3));
        assert_eq!(ask(1_000).await.0, Err(NoModels::NotReady("loading".into())));
    }

    #[tokio::test]
    async fn a_silent_endpoint_does_not_delay_the_others() {
        let model = |id: &str| ListedModel { id: id.into(), window: None };
        // `None`: it never answers.
        let down = || NoModels::Unusable("down".into());
        let answer = |listed: Option<Result<Vec<ListedModel>, NoModels>>| async move {
            match listed {
                Some(listed) => listed,
                None => std::future::pending().await,
            }
        };
        let asked = [answer(None), answer(Some(Err(down()))), answer(Some(Ok(vec![model("b")])))];
        let found = tokio::time::timeout(Duration::from_secs(5), find_first(asked.into_iter(), "b")).await;
        assert_eq!(found.expect("it waits for all"), Ok(model("b")));
        let asked = [answer(Some(Ok(vec![model("a")]))), answer(Some(Err(down())))];
        assert_eq!(find_first(asked.into_iter(), "c").await, Err(vec!["a".to_owned()]));
        assert_eq!(doubt_text(&["a".to_owned()]), "no upstream lists this model. Available models: a");
        assert!(doubt_text(&[]).starts_with("it is not known"));
    }
}
