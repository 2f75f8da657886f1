//! The ports of `agent`, `chat` and `alerts` to model servers, served by the relay. Those crates do not know
//! it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{BoxFuture, join_all};
use http::{HeaderMap, HeaderValue, header};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use agent::{Activity, ChatModel, ModelAnswer, ModelFacts, ModelRequest, Observer};
use alerts::{Rule, UpstreamProbes, UpstreamSignal};
use relay::{Awaited, Opened, Origin, Relay, ReplyStream, RequestProgress, StreamPart, WaitEnd};
use tool_call_parser::PreferredDialects;
use translate::Reply;
use upstream::{Health, NoModelList, Upstream};
use wire::turn::{Turn, TurnEvent};
use wire::{ApiError, ErrorCode};

/// An upstream whose probe takes longer is down.
const PROBE_WITHIN: Duration = Duration::from_secs(5);
const WAITING_REPORTED_EVERY: Duration = Duration::from_millis(500);

/// The models behind a relay, for agents and for the terminal.
#[derive(Clone, Debug)]
pub(crate) struct RelayedModels(pub(crate) Arc<Relay>);

impl ChatModel for RelayedModels {
    fn ask(
        self: Arc<Self>,
        request: ModelRequest,
        observer: &Observer,
    ) -> BoxFuture<'_, Result<ModelAnswer, ApiError>> {
        Box::pin(async move {
            let (progress, within) = (Arc::default(), request.within);
            let asked = Box::pin(ask_relay(&self.0, request, observer, &progress));
            tokio::select! {
                biased;
                answer = limit_model_time(within, &progress, asked) => {
                    answer.unwrap_or(Ok(ModelAnswer::TimedOut))
                }
                never = report_waiting(&progress, observer) => match never {},
            }
        })
    }

    fn learn_models<'a>(&'a self, authorization: Option<&'a HeaderValue>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let headers = request_headers(authorization.cloned());
            join_all(self.0.upstreams().map(|upstream| upstream.learn_models(&headers))).await;
        })
    }

    fn facts(&self, id: &str, target: &str) -> ModelFacts {
        let facts: Vec<_> = self.0.upstreams().map(|upstream| upstream.models.facts_of(target)).collect();
        let announced = facts.iter().map(|facts| facts.prior);
        ModelFacts {
            window: facts.iter().filter_map(|facts| facts.window).min(),
            is_harmony: facts.iter().any(|facts| facts.is_harmony),
            configured_dialects: self.0.config().modes_for(id).dialects,
            announced_dialects: announced.fold(PreferredDialects::default(), PreferredDialects::union),
        }
    }
}

fn request_headers(authorization: Option<HeaderValue>) -> HeaderMap {
    authorization.map(|key| (header::AUTHORIZATION, key)).into_iter().collect()
}

async fn ask_relay(
    relay: &Arc<Relay>,
    request: ModelRequest,
    observer: &Observer,
    progress: &Arc<RequestProgress>,
) -> Result<ModelAnswer, ApiError> {
    let ModelRequest { body, authorization, record, stop_at_loops, .. } = request;
    let origin = Origin::internal(request_headers(authorization), record.clone());
    let origin = Origin { is_agent: true, progress: Arc::clone(progress), ..origin };
    let request = relay.read(Bytes::from(body.to_string()), origin).await?;
    record.set_likely_upstream(request.likely_upstream());
    if request.is_stopped_by_loop_guard() && stop_at_loops {
        return Ok(ModelAnswer::LoopFound);
    }
    match request.ask_model().await? {
        Opened::Reply(reply) => Ok(answer_of_reply(*reply)),
        Opened::Stream(stream) => answer_of_stream(*stream, observer).await,
        Opened::Body(_) => Err(unreadable_reply()),
    }
}

fn unreadable_reply() -> ApiError {
    ApiError::new(500, ErrorCode::NoTurn, "the reply was forwarded unread")
}

/// Runs a model call for at most `within`, apart from the time for which it waits for an upstream to come
/// back.
async fn limit_model_time<T>(
    within: Duration,
    progress: &RequestProgress,
    mut call: impl Future<Output = T> + Unpin,
) -> Option<T> {
    let began = Instant::now();
    loop {
        let end = began + within + progress.waiting_time();
        tokio::select! {
            biased;
            done = &mut call => return Some(done),
            // It may still wait, or have waited meanwhile.
            () = sleep_until(end) => {
                if Instant::now() >= began + within + progress.waiting_time() {
                    return None;
                }
            }
        }
    }
}

/// Reports why the request waits for a server, whenever that changes.
async fn report_waiting(progress: &RequestProgress, observer: &Observer) -> Infallible {
    let mut reported = None;
    loop {
        sleep(WAITING_REPORTED_EVERY).await;
        let text = progress.current_wait().map(|awaited| waiting_text(&awaited));
        if text != reported {
            observer(Activity::ServerAwaited(text.as_deref()));
            reported = text;
        }
    }
}

fn waiting_text(Awaited { cause, end }: &Awaited) -> String {
    let seconds = |end: &Instant| end.saturating_duration_since(Instant::now()).as_secs();
    match end {
        WaitEnd::At(end) => format!("{cause}; trying again in {} s", seconds(end)),
        WaitEnd::Before(end) => format!("{cause}; trying again for {} s", seconds(end)),
        WaitEnd::Unknown => cause.clone(),
    }
}

/// Returns the first choice of a whole reply.
fn answer_of_reply(reply: Reply) -> ModelAnswer {
    let turn = reply.choices.into_iter().next().map(|choice| choice.turn).unwrap_or_default();
    ModelAnswer::Reply { turn: Turn { usage: reply.usage, ..turn }, earlier_prompts: reply.earlier_prompts }
}

/// Returns the turn of a reply that streams.
///
/// # Errors
/// When the stream breaks off, or was not read as a turn.
async fn answer_of_stream(mut stream: ReplyStream, observer: &Observer) -> Result<ModelAnswer, ApiError> {
    loop {
        match stream.next().await {
            StreamPart::Steps(steps) => steps.iter().for_each(|step| report_text(&step.event, observer)),
            // An engine reads all replies to a run.
            StreamPart::Frames(_) => {}
            StreamPart::Failed(error) => return Err(error),
            StreamPart::End => {
                let turn = Turn { usage: stream.usage(), ..stream.turn().ok_or_else(unreadable_reply)? };
                return Ok(ModelAnswer::Reply { turn, earlier_prompts: stream.earlier_prompts() });
            }
        }
    }
}

/// Reports the text of a step.
fn report_text(event: &TurnEvent, observer: &Observer) {
    match event {
        TurnEvent::Reasoning(text) => observer(Activity::Reasoning(text)),
        TurnEvent::Content(text) => observer(Activity::Content(text)),
        _ => {}
    }
}

/// The upstreams of the relay that is in effect, for alerts.
#[derive(Debug)]
pub(crate) struct RelayProbes(pub(crate) watch::Receiver<Arc<Relay>>);

impl UpstreamProbes for RelayProbes {
    fn probe(&self) -> BoxFuture<'_, Vec<UpstreamSignal>> {
        let relay = Arc::clone(&self.0.borrow());
        Box::pin(async move { join_all(relay.upstreams().map(probe_upstream)).await })
    }

    fn missing_models(&self) -> Vec<(String, String)> {
        self.0.borrow().missing_models()
    }
}

async fn probe_upstream(upstream: &Arc<Upstream>) -> UpstreamSignal {
    let health = timeout(PROBE_WITHIN, upstream.health_since(Instant::now())).await;
    // A web server answers too.
    let listed = upstream.ask_models(HeaderMap::new(), PROBE_WITHIN).await;
    let asks_for_key = listed.as_ref().is_err_and(NoModelList::waits_for_client_key);
    let is_up = health == Ok(Health::Up);
    let is_certain = |problem: &NoModelList| problem.is_wrong_address() || problem.is_refusal();
    let problem = match listed {
        Err(problem) if !is_up || is_certain(&problem) => Some((rule_of(&problem), problem.to_string())),
        _ => (!is_up).then(|| (Rule::UpstreamDown, "it does not answer".to_owned())),
    };
    let (circuit, ..) = upstream.state.circuit_report();
    UpstreamSignal {
        name: upstream.name.clone(),
        problem,
        asks_for_key,
        is_open: circuit != "closed",
        silence: upstream.state.silence(),
        admits: upstream.state.admits(),
    }
}

/// Returns the rule of an upstream that cannot be used.
fn rule_of(problem: &NoModelList) -> Rule {
    match problem {
        NoModelList::KeyRefused(..) | NoModelList::KeyMissing { .. } => Rule::KeyRefused,
        problem if problem.is_refusal() => Rule::CertificateRefused,
        _ => Rule::UpstreamDown,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    fn awaited(end: WaitEnd) -> Awaited {
        Awaited { cause: "connection refused".into(), end }
    }

    /// Regression: in the chat a dead server looked like a slow model.
    #[tokio::test(start_paused = true)]
    async fn the_reason_of_a_wait_is_reported() {
        let (progress, texts) = (RequestProgress::default(), Arc::new(Mutex::new(Vec::new())));
        let heard = Arc::clone(&texts);
        let observer = move |activity: Activity<'_>| {
            if let Activity::ServerAwaited(text) = activity {
                heard.lock().unwrap().push(text.map(str::to_owned));
            }
        };
        let waits = async {
            let end = Instant::now() + Duration::from_millis(2_900);
            let waiting = progress.begin_waiting(awaited(WaitEnd::Before(end)));
            sleep(Duration::from_millis(1_200)).await;
            drop(waiting);
            sleep(Duration::from_secs(1)).await;
        };
        tokio::select! { () = waits => {}, _ = report_waiting(&progress, &observer) => {} }
        let text = |seconds: u64| Some(format!("connection refused; trying again for {seconds} s"));
        assert_eq!(*texts.lock().unwrap(), [text(2), text(1), None]);
        let in_time = waiting_text(&awaited(WaitEnd::At(Instant::now() + Duration::from_secs(6))));
        assert_eq!(in_time, "connection refused; trying again in 6 s");
    }

    /// A server takes one to five minutes to start, and a model call may take one.
    #[tokio::test(start_paused = true)]
    async fn waiting_for_a_server_is_not_model_time() {
        const MINUTE: Duration = Duration::from_mins(1);
        let within = |waits: Duration, works: Duration| async move {
            let (began, progress) = (Instant::now(), RequestProgress::default());
            let call = Box::pin(async {
                sleep(works / 2).await;
                let waiting = progress.begin_waiting(awaited(WaitEnd::Unknown));
                sleep(waits).await;
                drop(waiting);
                sleep(works / 2).await;
            });
            let done = limit_model_time(MINUTE, &progress, call).await;
            (done.is_some(), began.elapsed())
        };
        assert_eq!(within(5 * MINUTE, MINUTE * 9 / 10).await, (true, 5 * MINUTE + MINUTE * 9 / 10));
        assert_eq!(within(5 * MINUTE, MINUTE * 3 / 2).await, (false, 6 * MINUTE), "its own time is over");
        assert_eq!(within(Duration::ZERO, 2 * MINUTE).await, (false, MINUTE));
    }
}
