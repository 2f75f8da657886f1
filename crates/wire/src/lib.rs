//! Reads and writes OpenAI's formats without losing the fields that respool does not know.
//!
//! Requests and replies are held as spans of the original text; only what must change is rewritten. Nothing
//! here decides anything: `translate` does. Called by `translate`, `relay` and `upstream`.
//!
//! [`turn`] is the internal form of a reply, [`sse`] cuts event streams into frames, [`units`] reads
//! durations and sizes of the configuration, [`digest`] is for keys and names, and [`visible`] makes text
//! safe to print. The crate is pure: no
//! async, no I/O, no clock, no randomness.

pub mod digest;
pub mod pattern;
pub mod settings;
pub mod sse;
pub mod turn;
pub mod units;
pub mod visible;

mod controls;
mod error;
mod error_code;
mod form;
mod known;
mod object;
mod pieces;
mod prune;
mod reply;
mod request;
mod scan;
mod target;
mod usage_row;

pub use controls::escape_controls;
pub use error::{ApiError, Cause};
pub use error_code::{CERTIFICATE_REFUSED_TODO, ErrorCode, KEY_REFUSED_TODO, is_request_fault};
pub use form::{FormField, FormReader};
pub use known::{KnownMessage, KnownParts, KnownTools};
pub use object::{
    Object, ValueText, array_elements, array_objects, decode_string, encode_string, first_element,
    is_empty_array, mend_strings,
};
pub use pieces::Pieces;
pub use prune::{Edit, Editor, Shape, Tag, prune_json};
pub use reply::{Choice, Completion, NativeToolCall, REPLY, content_text, parse_usage, pruned_logprobs};
pub use request::{BadRequest, ChatRequest, DeclaredTool, Message, ToolChoice};
pub use scan::{Malformed, Scanner, string_between};
pub use target::ServerTraits;
pub use usage_row::{EarlierAttempt, RequestDetails, UsageRow};
