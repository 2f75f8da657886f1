//! respool: one binary between OpenClaw (or any OpenAI client) and vLLM. It asks upstream in the way that
//! works, turns what comes back into one clean *turn*, and spools that turn out again as SSE or JSON.
//!
//! The modules are layers; one may import only lower ones (see ARCHITECTURE.md, a test enforces it).

#[cfg(feature = "chat")]
mod chat_port;
pub mod cli;
mod relay_ports;

pub use ::adapt;
pub use ::agent;
pub use ::alerts;
#[cfg(feature = "chat")]
pub use ::chat;
pub use ::experts as expert;
use ::http_client;
pub use ::openexperts;
pub use ::relay;
pub use ::server;
pub use ::settings as config;
pub use ::store;
pub use ::telemetry as observe;
pub use ::telemetry::otlp;
pub use ::tools;
use ::tools::diff;
pub use ::translate;
pub use ::translate::tokens;
pub use ::upstream;
pub use ::usage;
pub use ::wire;
use ::wire::visible;
pub use ::wire::{sse, turn, units};
