//! One model call of a run: its request, its record, and the event that it becomes.
//!
//! Decides nothing: the meaning of a reply or a failure is the business of `run`. Called by `driver`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use http::HeaderValue;
use serde_json::{Value, json};

use super::activity::{Activity, Observer};
use super::budget::Tokens;
use super::call::RequestedCall;
use super::chat_model::{ChatModel, ModelAnswer, ModelRequest};
use super::event::{EventKind, ModelReply};
use super::failure::{FailureKind, ModelFailure};
use super::reading;
use super::step::{CallPurpose, ModelStep};
use telemetry::{Account, Recording, RequestRecord, RequestStart, RowFacts};
use wire::turn::{FinishReason, Note, Turn};
use wire::{ApiError, ErrorCode};

/// A model as one run asks it.
pub(super) struct ModelClient {
    pub(super) model: Arc<dyn ChatModel>,
    /// The model's name.
    pub(super) model_id: String,
    pub(super) temperature: f64,
    /// The client's own key, for upstreams that have none.
    pub(super) authorization: Option<HeaderValue>,
    /// The account that each call's cost is added to.
    pub(super) account: Option<Arc<dyn Account>>,
    /// Replies are asked for as streams, so that their pieces can be reported.
    pub(super) streams: bool,
    /// Where its calls are recorded: the log, the usage rows.
    pub(super) recording: Recording,
    /// The agent's name and its run, for those rows.
    pub(super) row: RowFacts,
}

impl ModelClient {
    /// Makes one call. Returns the event of its end. `id` names the call in the log.
    pub(super) async fn call_model(
        &self,
        step: ModelStep,
        id: String,
        observer: &Arc<Observer>,
    ) -> EventKind {
        let began = Instant::now();
        let (purpose, within) = (step.purpose, Duration::from_millis(step.within));
        let start = RequestStart::new(id, "agent model call", "agent_model");
        let record = RequestRecord::begin_for_run(start, &self.recording, self.row.clone());
        record.set_model(&self.model_id);
        let request = ModelRequest {
            body: self.request_body(step),
            authorization: self.authorization.clone(),
            record: record.clone(),
            within,
            stop_at_loops: purpose == CallPurpose::Iteration,
        };
        let arrived = Arc::new(Arrived::default());
        let (noted, observer) = (Arc::clone(&arrived), Arc::clone(observer));
        let noting = move |activity: Activity<'_>| {
            noted.note(activity);
            // A summary is the run's own business.
            if purpose != CallPurpose::Summary {
                observer(activity);
            }
        };
        let answer = Arc::clone(&self.model).ask(request, &noting).await;
        let took = clock::to_millis(began.elapsed());
        let error_code = match &answer {
            Err(error) => error.code.map(ErrorCode::as_str),
            Ok(ModelAnswer::TimedOut) => Some(ErrorCode::ModelTimeout.as_str()),
            Ok(_) => None,
        };
        let kind = match answer {
            Ok(ModelAnswer::Reply { turn, earlier_prompts }) => {
                let model = self.model_id.clone();
                let reply = ModelReply { model, earlier_prompts, took, ..model_reply(turn) };
                if purpose == CallPurpose::Summary {
                    EventKind::Summarised(reply)
                } else {
                    EventKind::ModelReplied(reply)
                }
            }
            Ok(ModelAnswer::LoopFound) => EventKind::LoopDetected,
            Ok(ModelAnswer::TimedOut) => EventKind::ModelFailed(too_slow(within)),
            Err(error) => EventKind::ModelFailed(model_failure(&error, arrived.is_reasoning_alone())),
        };
        let is_reply = matches!(kind, EventKind::ModelReplied(_) | EventKind::Summarised(_));
        record.record_model_call_end(is_reply, error_code, self.account.as_deref());
        kind
    }

    fn request_body(&self, step: ModelStep) -> Value {
        let mut body = json!({
            "model": self.model_id, "messages": step.messages, "temperature": self.temperature,
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

/// The kinds of pieces that have arrived of a reply that streams.
#[derive(Default)]
struct Arrived {
    reasoning: AtomicBool,
    content: AtomicBool,
}

impl Arrived {
    fn note(&self, activity: Activity<'_>) {
        match activity {
            Activity::Reasoning(_) => self.reasoning.store(true, Ordering::Relaxed),
            Activity::Content(_) => self.content.store(true, Ordering::Relaxed),
            _ => {}
        }
    }

    fn is_reasoning_alone(&self) -> bool {
        self.reasoning.load(Ordering::Relaxed) && !self.content.load(Ordering::Relaxed)
    }
}

/// Returns a reply as the run keeps it.
fn model_reply(turn: Turn) -> ModelReply {
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
        ..ModelReply::default()
    }
}

/// Returns how a run may react to an error of its model. `broke_off_reasoning`: reasoning came, and no piece
/// of an answer.
fn model_failure(error: &ApiError, broke_off_reasoning: bool) -> ModelFailure {
    use ErrorCode as Code;
    let kind = match (error.code, error.status) {
        (Some(Code::TruncatedToolCall | Code::UnusableToolCall | Code::UnknownTool | Code::NoAnswer), _) => {
            FailureKind::Unreadable
        }
        (Some(Code::ContextLengthExceeded), _) => FailureKind::Overflow,
        (Some(Code::UpstreamTimeout), _) | (_, 408) => FailureKind::TimedOut,
        (Some(Code::NoUpstream | Code::UpstreamNotJson | Code::UpstreamInvalidJson), _) => FailureKind::Final,
        // The relay has tried again, and waited. But once a piece of a reply has left, the relay does not
        // repeat it. The run does, if only reasoning has left.
        _ if error.is_final && !broke_off_reasoning => FailureKind::Final,
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
    use super::*;

    #[test]
    fn broken_reasoning_is_asked_for_again() {
        let check = |status, is_final, broke_off_reasoning, expected| {
            let error =
                ApiError { is_final, ..ApiError::new(status, ErrorCode::UpstreamClosed, "it closed") };
            assert_eq!(model_failure(&error, broke_off_reasoning).kind, expected, "{error:?}");
        };
        check(502, true, true, FailureKind::Transient);
        check(502, true, false, FailureKind::Final);
        check(502, false, false, FailureKind::Transient);
        check(400, true, true, FailureKind::Final);
    }
}
