//! `POST /v1/responses` and `/v1/messages`: the routes of Codex, Claude Code and the newer SDKs.
//!
//! A request is read into the chat request that asks the same (`reading`), which is answered like any other
//! (`source`); the turn leaves in the client's own form (`writer`). The readers and writers of both forms are
//! in `translate`; when a head leaves is in `reply`.

mod api;
mod background;
mod count_tokens;
mod errors;
mod failed_streams;
mod kept;
mod native;
mod reading;
mod reply;
mod source;
pub(super) mod stored;
mod turn;
mod unwritten;
mod writer;

pub(super) use self::api::{Call, with_request_id};
pub(super) use self::background::watch_responses;
pub(super) use self::errors::{error_form, refuse_unrouted};
pub use self::failed_streams::FailedStreams;
pub use self::kept::KeptResponses;
pub(super) use self::turn::answer_agent_api;
