//! respool: one binary between OpenClaw (or any OpenAI client) and vLLM. It asks upstream in the way that
//! works, turns what comes back into one clean *turn*, and spools that turn out again as SSE or JSON.
//!
//! The crates below `crates/` do this (see ARCHITECTURE.md); here is the program that they make.

#[cfg(feature = "chat")]
mod chat_port;
pub mod cli;
mod relay_ports;
