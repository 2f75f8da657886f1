//! One reply in a client's own form, whichever of the two APIs it is.
//!
//! It takes the steps of the turn. Called by `reply`.

use relay::ReplyWishes;
use translate::messages::MessageEvents;
use translate::responses::{FinishedResponse, ResponseEvents};
use wire::ApiError;
use wire::turn::TurnEvent;

/// Writes the events of one reply.
pub(super) enum Writer {
    /// For a client of the Responses API.
    Responses(ResponseEvents),
    /// For a client of the Messages API, with the request's id.
    Messages(MessageEvents, String),
}

impl Writer {
    /// Returns the client's wishes about the reply.
    pub(super) fn wishes(&self) -> ReplyWishes {
        match self {
            Self::Responses(events) => {
                ReplyWishes { is_unseen: false, may_trim: events.may_trim(), free_text: events.patterns() }
            }
            Self::Messages(..) => ReplyWishes::default(),
        }
    }

    /// Returns the bytes of the request that are held until the reply has ended.
    pub(super) fn bytes_to_keep(&self) -> usize {
        match self {
            Self::Responses(events) => events.input_bytes(),
            Self::Messages(..) => 0,
        }
    }

    /// Sets the model that answers, if it is another one than was asked.
    pub(super) fn set_model(&mut self, model: String) {
        match self {
            Self::Responses(events) => events.set_model(model),
            Self::Messages(events, _) => events.set_model(model),
        }
    }

    pub(super) fn write_begin(&mut self, out: &mut Vec<u8>) {
        match self {
            Self::Responses(events) => events.begin(out),
            Self::Messages(events, _) => events.begin(out),
        }
    }

    pub(super) fn write_heartbeat(&mut self, out: &mut Vec<u8>) {
        match self {
            Self::Responses(events) => events.heartbeat(out),
            Self::Messages(events, _) => events.heartbeat(out),
        }
    }

    /// Writes one step of the turn.
    pub(super) fn write_event(&mut self, event: &TurnEvent, out: &mut Vec<u8>) {
        match self {
            Self::Responses(events) => {
                if matches!(event, TurnEvent::Finish(_)) {
                    events.set_end_time(clock::now_in_seconds());
                }
                events.write(event, out);
            }
            Self::Messages(events, _) => events.write(event, out),
        }
    }

    /// Adds the log probabilities of the next text. The Messages API has none.
    pub(super) fn add_logprobs(&mut self, logprobs: &str) {
        if let Self::Responses(events) = self {
            events.add_logprobs(logprobs);
        }
    }

    /// Writes steps that arrived together. Pieces of a text leave as one, because an event of these APIs is
    /// larger than a chunk. These APIs have only the first choice.
    pub(super) fn write_all(&mut self, steps: impl IntoIterator<Item = TurnEvent>, out: &mut Vec<u8>) {
        let mut joined: Option<TurnEvent> = None;
        for event in steps {
            let Some(begun) = &mut joined else {
                joined = Some(event);
                continue;
            };
            if let Some(next) = begun.append_same_kind(event) {
                self.write_event(begun, out);
                joined = Some(next);
            }
        }
        joined.iter().for_each(|event| self.write_event(event, out));
    }

    /// Writes the failure. `code`: of the event that ends a Responses stream.
    pub(super) fn write_failure(&mut self, error: &ApiError, code: &str, out: &mut Vec<u8>) {
        match self {
            Self::Responses(events) => events.fail(code, error, out),
            Self::Messages(events, request_id) => events.fail(error, request_id, out),
        }
    }

    /// Takes the reply to keep; `None` if it failed or its client does not want it kept.
    pub(super) fn take_kept(&mut self) -> Option<FinishedResponse> {
        match self {
            Self::Responses(events) if !events.has_failed() => events.to_stored(),
            _ => None,
        }
    }

    /// Returns the whole object, once the turn has ended.
    pub(super) fn whole_object(&self) -> Option<&str> {
        match self {
            Self::Responses(events) => events.finished_response(),
            Self::Messages(events, _) => events.message_json(),
        }
    }
}
