//! One reply in a client's own form, whichever of the two APIs it is.
//!
//! Takes the relay's chunks or its whole reply. Called by `reply`.

use bytes::Bytes;

use super::now;
use crate::relay::Origin;
use crate::sse::Frames;
use crate::translate::messages::MessageEvents;
use crate::translate::responses::{FinishedResponse, ResponseEvents};
use crate::translate::{ChunkEvents, Reply};
use crate::turn::TurnEvent;
use crate::wire::ApiError;

/// Writes the events of one reply.
pub(super) enum Writer {
    /// To a client of the Responses API.
    Responses(ResponseEvents),
    /// To a client of the Messages API; the request's id.
    Messages(MessageEvents, String),
}

impl Writer {
    /// The origin of a request, with what its client says of the way to answer it.
    pub(super) fn asking(&self, origin: Origin) -> Origin {
        match self {
            Self::Responses(events) => {
                Origin { may_trim: events.may_trim(), free_text: events.patterns(), ..origin }
            }
            Self::Messages(..) => origin,
        }
    }

    /// The bytes of the request that are held until the reply has ended.
    pub(super) fn bytes_to_keep(&self) -> usize {
        match self {
            Self::Responses(events) => events.input_bytes(),
            Self::Messages(..) => 0,
        }
    }

    pub(super) fn begin(&mut self, out: &mut Vec<u8>) {
        match self {
            Self::Responses(events) => events.begin(out),
            Self::Messages(events, _) => events.begin(out),
        }
    }

    pub(super) fn heartbeat(&mut self, out: &mut Vec<u8>) {
        match self {
            Self::Responses(events) => events.heartbeat(out),
            Self::Messages(events, _) => events.heartbeat(out),
        }
    }

    pub(super) fn tell(&mut self, event: &TurnEvent, out: &mut Vec<u8>) {
        match self {
            Self::Responses(events) => events.tell(event, out),
            Self::Messages(events, _) => events.tell(event, out),
        }
    }

    pub(super) fn tell_reply(&mut self, reply: &Reply, out: &mut Vec<u8>) {
        match self {
            Self::Responses(events) => {
                events.ends_at(now());
                events.tell_reply(reply, out);
            }
            Self::Messages(events, _) => events.tell_reply(reply, out),
        }
    }

    /// `code`: of the event that ends a Responses stream.
    pub(super) fn fail(&mut self, error: &ApiError, code: &str, out: &mut Vec<u8>) {
        match self {
            Self::Responses(events) => events.fail(code, error, out),
            Self::Messages(events, request_id) => events.fail(error, request_id, out),
        }
    }

    /// The reply as it is kept. Nothing of one that failed, or that its client does not want kept.
    pub(super) fn take_kept(&mut self) -> Option<FinishedResponse> {
        match self {
            Self::Responses(events) if !events.has_failed() => events.to_keep(),
            _ => None,
        }
    }

    /// The whole object, once the turn has ended.
    pub(super) fn whole(&self) -> Option<&str> {
        match self {
            Self::Responses(events) => events.response(),
            Self::Messages(events, _) => events.message(),
        }
    }
}

/// Reads the relay's chunks for a writer.
pub(super) struct Chunks {
    frames: Frames,
    events: ChunkEvents,
    told: usize,
}

impl Chunks {
    /// `largest`: the most bytes a chunk may have.
    pub(super) fn new(largest: usize) -> Self {
        Self { frames: Frames::new(largest), events: ChunkEvents::default(), told: 0 }
    }

    /// Tells what these bytes hold. The relay wrote them, so each frame is whole and text. Pieces of a text that came together
    /// leave together: an event of these APIs costs more than a chunk.
    pub(super) fn tell(&mut self, bytes: Bytes, writer: &mut Writer, out: &mut Vec<u8>) {
        self.frames.push(bytes);
        let mut joined: Option<TurnEvent> = None;
        while let Ok(Some(frame)) = self.frames.next_frame() {
            let Ok(Some(payload)) = frame.data() else { continue };
            for event in self.events.read(&payload) {
                self.told += event.text_len();
                let Some(begun) = &mut joined else {
                    joined = Some(event);
                    continue;
                };
                if let Some(next) = begun.join(event) {
                    writer.tell(begun, out);
                    joined = Some(next);
                }
            }
        }
        joined.iter().for_each(|event| writer.tell(event, out));
    }

    /// The bytes of text that were told.
    pub(super) fn told(&self) -> usize {
        self.told
    }

    pub(super) fn finish(&self, writer: &mut Writer, fills_window: bool, out: &mut Vec<u8>) {
        if let Writer::Messages(events, _) = &mut *writer
            && fills_window
        {
            events.filled_window();
        }
        if let (Writer::Messages(events, _), Some(sequence)) = (&mut *writer, self.events.stop_sequence()) {
            events.stopped_by(sequence);
        }
        if let Writer::Messages(events, _) = &mut *writer
            && self.events.has_refused()
        {
            events.refused();
        }
        if let Writer::Responses(events) = &mut *writer {
            events.ends_at(now());
        }
        writer.tell(&self.events.finish(), out);
    }
}
