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
mod http_client;
pub mod observe;
pub mod otlp;
pub mod relay;
pub mod server;
pub mod store;
pub mod tokens;
pub mod tools;
pub mod translate;
pub mod upstream;
pub mod usage;

pub use ::wire;
use ::wire::{pattern, visible};
pub use ::wire::{sse, turn, units};
