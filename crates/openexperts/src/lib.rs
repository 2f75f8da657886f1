//! Packages in the `OpenExperts` format 1.0. A package is a directory of YAML and markdown. This crate reads
//! and checks it, builds its system prompt, and compares two versions of it. Nothing in a package is ever
//! executed as code.
//!
//! [`load`] reads a directory and reports everything that is wrong with it. Everything else is pure, except
//! [`foreign`], which makes packages from skills. The crate has no async code and knows nothing about agents,
//! the store or the network.
//!
//! ```no_run
//! let loaded = openexperts::load(std::path::Path::new("support-desk"))?;
//! for finding in &loaded.diagnostics {
//!     eprint!("{}", finding.render(loaded.files.get(&finding.file).map(String::as_str)));
//! }
//! if let Some(package) = &loaded.package {
//!     println!("{}", openexperts::system_prompt(package));
//! }
//! # Ok::<(), std::io::Error>(())
//! ```

mod bindings;
mod check;
mod component;
#[cfg_attr(not(feature = "clocks"), path = "without_clocks.rs")]
mod cron;
mod diagnostic;
mod duration;
mod effect;
mod fields;
mod files;
pub mod foreign;
pub mod grants;
pub mod label;
mod load;
mod manifest;
pub mod markdown;
pub mod name;
pub mod outputs;
pub mod own_files;
mod package;
pub mod path;
pub mod payload;
mod policy;
pub mod prompt;
mod resolve;
mod settings;
pub mod skill;
pub mod starter;
#[cfg(test)]
mod tests;
mod watch;
mod yaml;

pub use bindings::{Binding, BindingType, Bindings, ChannelBinding};
pub use component::{
    Function, FunctionSession, Knowledge, KnowledgeKind, Operation, Parameter, Process, Scope, State, Tool,
};
pub use cron::CronError;
pub use cron::schedule::Schedule;
pub use diagnostic::{At, Code, Diagnostic, Severity, Spanned, suggest_nearest, visible};
pub use duration::Length;
pub use fields::Listing;
pub use grants::{LEARNS_ALONE, VersionStep, learns_alone, list_ended};
pub use label::{MODEL_PREFIX, is_agent_of};
pub use load::{Loaded, load};
pub use manifest::{
    ClockFields, Components, Concurrency, ConcurrencyFields, KeyField, Manifest, ModeField, Trigger,
    TriggerKind, TriggerSession,
};
pub use own_files::BINDINGS;
pub use package::{Package, Persona};
pub use policy::{Learning, OnReject, OnTimeout, Override, Policy, Tier, Tiers};
pub use prompt::{LONG_PROMPT, system_prompt};
pub use resolve::{Lane, to_json as resolved};
pub use settings::{
    Backoff, Delivery, DeliveryFields, Execution, ExecutionFields, Format, OnFailure, ProcessSettings,
    SlaBreach,
};
pub use watch::Watch;

/// The file that makes a directory a package.
pub const MANIFEST: &str = "expert.yaml";
