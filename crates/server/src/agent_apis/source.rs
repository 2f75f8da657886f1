//! The source of a reply's turn: the relay, or an agent's run.

use bytes::Bytes;
use http::HeaderValue;

use crate::agent::{RunOutput, RunReply};
use crate::announced_progress::AnnouncedProgress;
use crate::app::App;
use crate::front::{TurnAnswer, begin_turn};
use crate::respond;
use crate::stream_head::Pending;
use relay::{Opened, Origin, ReadRequest, ReplyStream, StreamPart};
use translate::{ClientProgram, Reply};
use wire::ApiError;
use wire::turn::{ChoiceEvent, TurnEvent, Usage};

/// The source of a turn.
pub(super) enum Source {
    /// The relay, once it has an answer, and what a stream's client learns until then.
    Opening(Pending<Opened>, Option<AnnouncedProgress>),
    /// An agent's run.
    Agent(Box<RunReply>),
    /// The relay's stream.
    Open(Box<ReplyStream>),
    /// A piece that is known already.
    Known(Option<Piece>),
}

/// The next output of a source.
pub(super) enum Piece {
    /// The source is open now.
    Opened,
    Steps(Vec<ChoiceEvent>),
    Event(TurnEvent),
    Whole(Box<Reply>),
    End(Option<Usage>),
    Failed(ApiError),
}

impl Source {
    /// Begins to answer a chat request; returns the source of its turn and the program that asks.
    ///
    /// # Errors
    /// Those of [`begin_turn`].
    pub(super) async fn begin(
        app: &App,
        chat: Bytes,
        origin: Origin,
    ) -> Result<(Self, ClientProgram), ApiError> {
        Ok(match begin_turn(app, chat, origin).await? {
            TurnAnswer::Run(run) => {
                let program = run.client_program();
                (Self::Agent(run), program)
            }
            TurnAnswer::Model(request) => {
                let program = request.profile().program;
                let announced = AnnouncedProgress::new(&request);
                (Self::Opening(Box::pin(open_reply(request)), announced), program)
            }
        })
    }

    /// Returns the id of the agent's run, as a header.
    pub(super) fn run_id(&self) -> Option<HeaderValue> {
        if let Self::Agent(run) = self { run.run_id() } else { None }
    }

    /// Takes what is announced of the reply before it begins.
    pub(super) fn take_announced(&mut self) -> Option<AnnouncedProgress> {
        if let Self::Opening(_, announced) = self { announced.take() } else { None }
    }

    /// Waits for the next piece. Safe to cancel.
    pub(super) async fn next_piece(&mut self) -> Piece {
        match self {
            Self::Opening(work, _) => {
                *self = work.await.map_or_else(|error| Self::Known(Some(Piece::Failed(error))), Self::from);
                Piece::Opened
            }
            Self::Open(stream) => match stream.next().await {
                StreamPart::Steps(steps) => Piece::Steps(steps),
                // These go to clients of chat completions only.
                StreamPart::Frames(_) => Piece::Failed(respond::wrong_form()),
                StreamPart::Failed(error) => Piece::Failed(error),
                StreamPart::End => Piece::End(stream.usage()),
            },
            Self::Agent(answer) => match answer.next().await {
                RunOutput::Progress(text) => Piece::Event(TurnEvent::Reasoning(text)),
                RunOutput::Answer(reply) => Piece::Whole(reply),
                RunOutput::Failed(error) => Piece::Failed(error),
            },
            Self::Known(piece) => piece.take().unwrap_or_else(|| Piece::Failed(respond::wrong_form())),
        }
    }
}

impl Source {
    /// Returns a source that has failed already.
    pub(super) fn from_error(error: ApiError) -> Self {
        Self::Known(Some(Piece::Failed(error)))
    }
}

impl From<Opened> for Source {
    fn from(opened: Opened) -> Self {
        match opened {
            Opened::Stream(stream) => Self::Open(stream),
            Opened::Reply(reply) => Self::Known(Some(Piece::Whole(reply))),
            Opened::Body(_) => Self::Known(None),
        }
    }
}

/// Opens a reply. With `reasoning = "drop"` it removes the reasoning of a whole reply; a stream omits it
/// itself.
async fn open_reply(request: ReadRequest) -> Result<Opened, ApiError> {
    let shows_reasoning = request.profile().reply.reasoning.is_some();
    let mut opened = request.answer().await?;
    if let Opened::Reply(reply) = &mut opened
        && !shows_reasoning
    {
        reply.choices.iter_mut().for_each(|choice| choice.turn.reasoning.clear());
    }
    Ok(opened)
}
