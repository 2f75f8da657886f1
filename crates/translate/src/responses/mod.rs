//! OpenAI's Responses API: its requests become chat requests, and a turn becomes its events or its response
//! object.
//!
//! This module asks no model: the relay knows only the chat request and the turn. Pure. Called by `server`.

mod errors;
mod events;
mod input;
mod kept;
mod names;
mod object;
mod request;
mod stored;
mod tools;

pub use errors::{fails_as_stream, failure_code};
pub use events::ResponseEvents;
pub use kept::{
    FinishedResponse, conversation_items, item_id, output_items_named, with_failure, with_status,
};
pub use names::{NamedTool, ToolKind, ToolNames};
pub use request::{AskedResponse, ReadResponse, read_response};
pub use stored::{ItemReferences, RecalledItems, find_references};
