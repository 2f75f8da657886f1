//! The way from a run to its model: one call over the relay, as a whole reply or as a stream whose pieces are reported.
//!
//! Everything that the agents ask of the relay is asked here. Decides nothing: what a reply or a failure means is `run`'s
//! business. Called by `driver`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};
use serde_json::{Value, json};

use super::activity::{Activity, Observer};
use super::budget::Tokens;
use super::call::RequestedCall;
use super::event::{EventKind, ModelReply};
use super::failure::{FailureKind, ModelFailure};
use super::reading;
use super::step::{CallPurpose, ModelStep};
use relay::{Opened, Origin, Relay, ReplyStream, RequestProgress, StreamPart};
use telemetry::{Account, Recording, RequestRecord, RequestStart, RowFacts};
use translate::Reply;
use wire::turn::{FinishReason, Note, Turn, TurnEvent};
use wire::{ApiError, ErrorCode};

/// A model as one run asks it.
pub(super) struct ModelClient {
    pub(super) relay: Arc<Relay>,
    /// The model's name.
    pub(super) model: String,
    pub(super) temperature: f64,
    /// The client's own key, for upstreams that have none.
    pub(super) authorization: Option<HeaderValue>,
    /// The account that each call's cost is added to.
    pub(super) account: Option<Arc<dyn Account>>,
    /// Replies are asked for as streams, so that their pieces can be reported.
    pub(super) streams: bool,
    /// What becomes of its calls in the log and in the rows of what was used.
    pub(super) recording: Recording,
    /// The agent's name and its run, for those rows.
    pub(super) row: RowFacts,
}

impl ModelClient {
    /// Makes one call and gives what came of it. `id` names the call in the log.
    pub(super) async fn call(&self, step: ModelStep, id: String, observer: &Observer) -> EventKind {
        let began = Instant::now();
        let (purpose, within) = (step.purpose, Duration::from_millis(step.within));
        let start = RequestStart::new(id, "agent model call".to_owned(), "agent_model");
        let record = RequestRecord::of_run(start, &self.recording, self.row.clone());
        record.model(&self.model);
        let progress = Arc::default();
        let asked = Box::pin(self.ask(step, &record, observer, &progress));
        let asked = within_model_time(within, &progress, asked).await;
        let took = clock::millis(began.elapsed());
        let error_code = match &asked {
            Some(Err(error)) => error.code.map(ErrorCode::as_str),
            Some(Ok(_)) => None,
            None => Some(ErrorCode::ModelTimeout.as_str()),
        };
        let kind = match asked {
            Some(Ok(Some(replied))) if purpose == CallPurpose::Summary => {
                EventKind::Summarised(reply(replied, took))
            }
            Some(Ok(Some(replied))) => EventKind::ModelReplied(reply(replied, took)),
            Some(Ok(None)) => EventKind::LoopDetected,
            Some(Err(error)) => EventKind::ModelFailed(failure(&error)),
            None => EventKind::ModelFailed(too_slow(within)),
        };
        let is_reply = matches!(kind, EventKind::ModelReplied(_) | EventKind::Summarised(_));
        record.model_call_ended(is_reply, error_code, self.account.as_deref());
        kind
    }

    /// `None`: the loop guard found that the conversation repeats itself.
    async fn ask(
        &self,
        step: ModelStep,
        record: &RequestRecord,
        observer: &Observer,
        progress: &Arc<RequestProgress>,
    ) -> Result<Option<Replied>, ApiError> {
        let purpose = step.purpose;
        let body = Bytes::from(self.body(step).to_string());
        let mut headers = HeaderMap::new();
        headers.extend(self.authorization.clone().map(|key| (header::AUTHORIZATION, key)));
        let origin = Origin::internal(headers, record.clone());
        let origin = Origin { is_agent: true, progress: Arc::clone(progress), ..origin };
        let request = self.relay.read(body, origin).await?;
        record.likely_upstream(request.likely_upstream());
        if request.loop_found.is_some() && purpose == CallPurpose::Iteration {
            return Ok(None);
        }
        let opened = Arc::clone(&self.relay).answer(request).await?;
        // A summary is the run's own business.
        let observer: &Observer = if purpose == CallPurpose::Summary { &|_| {} } else { observer };
        turn(opened, observer).await.map(Some)
    }

    fn body(&self, step: ModelStep) -> Value {
        let mut body = json!({
            "model": self.model, "messages": step.messages, "temperature": self.temperature,
            "max_tokens": step.max_tokens, "stream": self.streams,
        });
        if self.streams {
            body["stream_options"] = json!({"include_usage": true});
        }
        if !step.tools.is_empty() {
            body["tools"] = Value::Array(step.tools);
            body["tool_choice"] = "auto".into();
        }
        if let Some(format) = step.format {
            body["response_format"] = format;
        }
        body
    }
}

/// Runs a model call for at most this long, the time apart for which it waits for an upstream to come back.
async fn within_model_time<T>(
    within: Duration,
    progress: &RequestProgress,
    mut call: impl Future<Output = T> + Unpin,
) -> Option<T> {
    let began = tokio::time::Instant::now();
    loop {
        let end = began + within + progress.waited();
        tokio::select! {
            biased;
            done = &mut call => return Some(done),
            // It may still wait, or have waited meanwhile.
            () = tokio::time::sleep_until(end) => {
                if tokio::time::Instant::now() >= began + within + progress.waited() {
                    return None;
                }
            }
        }
    }
}

/// A turn with what its reply cost.
struct Replied {
    turn: Turn,
    /// Prompt tokens of earlier attempts, which the turn's usage leaves out.
    earlier_prompts: u64,
}

/// The first choice of a reply.
///
/// # Errors
/// When the stream breaks off, or the reply was not read as a turn.
async fn turn(opened: Opened, observer: &Observer) -> Result<Replied, ApiError> {
    let turn = match opened {
        Opened::Reply(reply) => Some(of_reply(*reply)),
        Opened::Stream(stream) => of_stream(*stream, observer).await?,
        Opened::Body(_) => None,
    };
    turn.ok_or_else(|| ApiError::new(500, ErrorCode::NoTurn, "the reply was forwarded unread"))
}

fn of_reply(reply: Reply) -> Replied {
    let turn = reply.choices.into_iter().next().map(|choice| choice.turn).unwrap_or_default();
    Replied { turn: Turn { usage: reply.usage, ..turn }, earlier_prompts: reply.earlier_prompts }
}

async fn of_stream(mut stream: ReplyStream, observer: &Observer) -> Result<Option<Replied>, ApiError> {
    loop {
        match stream.next().await {
            StreamPart::Steps(steps) => steps.iter().for_each(|step| report(&step.event, observer)),
            // An engine reads all replies to a run.
            StreamPart::Frames(_) => {}
            StreamPart::Failed(error) => return Err(error),
            StreamPart::End => {
                let turn = stream.turn().map(|turn| Turn { usage: stream.usage(), ..turn });
                return Ok(turn.map(|turn| Replied { turn, earlier_prompts: stream.earlier_prompts() }));
            }
        }
    }
}

/// Reports the text of a step.
fn report(event: &TurnEvent, observer: &Observer) {
    match event {
        TurnEvent::Reasoning(text) => observer(Activity::Reasoning(text)),
        TurnEvent::Content(text) => observer(Activity::Content(text)),
        _ => {}
    }
}

/// A reply as the run keeps it.
fn reply(Replied { turn, earlier_prompts }: Replied, took: u64) -> ModelReply {
    let usage = turn.usage.unwrap_or_default();
    let dialect = |note: &Note| match note {
        Note::Dialect(name) => Some((*name).to_owned()),
        _ => None,
    };
    let tokens = Tokens {
        prompt: usage.prompt,
        completion: usage.completion,
        reasoning: usage.reasoning.unwrap_or_default(),
        cached: usage.cached.unwrap_or_default(),
    };
    ModelReply {
        dialects: turn.notes.iter().filter_map(dialect).collect(),
        refused: turn.notes.iter().filter_map(reading::refusal_of).collect(),
        cut: turn.finish == Some(FinishReason::Length),
        calls: turn.calls.into_iter().map(reading::requested_call).collect::<Vec<RequestedCall>>(),
        content: turn.content,
        reasoning: turn.reasoning,
        tokens,
        earlier_prompts,
        took,
    }
}

/// What may be done about an error of the relay.
fn failure(error: &ApiError) -> ModelFailure {
    use ErrorCode as Code;
    let kind = match (error.code, error.status) {
        (Some(Code::TruncatedToolCall | Code::UnusableToolCall | Code::UnknownTool | Code::NoAnswer), _) => {
            FailureKind::Unreadable
        }
        (Some(Code::ContextLengthExceeded), _) => FailureKind::Overflow,
        (Some(Code::UpstreamTimeout), _) | (_, 408) => FailureKind::TimedOut,
        (Some(Code::NoUpstream | Code::UpstreamNotJson | Code::UpstreamInvalidJson), _) => FailureKind::Final,
        // The relay has tried again, and waited.
        _ if error.is_final => FailureKind::Final,
        (_, 429 | 500..) => FailureKind::Transient,
        _ => FailureKind::Final,
    };
    let wait = error.retry_after.map(|seconds| seconds.saturating_mul(1_000));
    let code = error.code.map_or_else(String::new, |code| code.to_string());
    ModelFailure { kind, status: error.status, code, text: error.message.clone(), wait }
}

fn too_slow(within: Duration) -> ModelFailure {
    ModelFailure {
        kind: FailureKind::TimedOut,
        status: 504,
        code: ErrorCode::ModelTimeout.to_string(),
        text: format!("the model did not reply within {} s", within.as_secs_f32()),
        wait: None,
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, sleep};

    use super::*;

    /// A server takes one to five minutes to start, and a model call may take one.
    #[tokio::test(start_paused = true)]
    async fn waiting_for_a_server_does_not_count_as_the_models_time() {
        const MINUTE: Duration = Duration::from_mins(1);
        let within = |waits: Duration, works: Duration| async move {
            let (began, progress) = (Instant::now(), RequestProgress::default());
            let call = Box::pin(async {
                sleep(works / 2).await;
                let waiting = progress.begin_waiting();
                sleep(waits).await;
                drop(waiting);
                sleep(works / 2).await;
            });
            let done = within_model_time(MINUTE, &progress, call).await;
            (done.is_some(), began.elapsed())
        };
        assert_eq!(within(5 * MINUTE, MINUTE * 9 / 10).await, (true, 5 * MINUTE + MINUTE * 9 / 10));
        assert_eq!(within(5 * MINUTE, MINUTE * 3 / 2).await, (false, 6 * MINUTE), "its own time is over");
        assert_eq!(within(Duration::ZERO, 2 * MINUTE).await, (false, MINUTE));
    }
}
