//! Anthropic's Messages API: its requests become chat requests, and a turn becomes its events or its message
//! object.
//!
//! This module asks no model: the relay knows only the chat request and the turn. Pure. Called by `server`.

mod blocks;
mod errors;
mod events;
mod models;
mod request;
mod tools;

pub use errors::{error_json, final_status, http_error};
pub use events::MessageEvents;
pub use models::{model_json, models_json, token_count_json};
pub use request::{AskedMessage, ReadMessage, ShownThinking, read_message};
