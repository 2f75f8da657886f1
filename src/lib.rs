//! respool: one binary between OpenClaw (or any OpenAI client) and vLLM. It asks upstream in the way that works, turns
//! what comes back into one clean *turn*, and spools that turn out again as SSE or JSON.
//!
//! The modules are layers; one may import only lower ones (see ARCHITECTURE.md, a test enforces it).

pub mod agent;
pub mod alerts;
pub mod chat;
pub mod cli;
pub mod config;
mod diff;
pub mod expert;
pub mod relay;
pub mod server;
pub mod tools;
pub mod usage;

use ::http_client;
pub use ::store;
pub use ::telemetry as observe;
pub use ::telemetry::otlp;
pub use ::translate;
pub use ::translate::tokens;
pub use ::upstream;
pub use ::wire;
use ::wire::visible;
pub use ::wire::{sse, turn, units};
