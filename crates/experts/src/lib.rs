//! Experts: packages in the `OpenExperts` format 1.0. A package is a directory of YAML and markdown; this module reads and checks it,
//! builds its system prompt, and executes its processes. Nothing in a package is ever executed as code.
//!
//! Reading and checking are pure, except `files` and `package`, which read the directory. `experts` keeps the installed ones with their
//! bound tools, and builds an agent for each run.

mod archive;
mod assembly;
mod bindings;
mod bound;
mod catalog;
mod check;
mod clock;
mod component;
pub mod config;
mod delivery;
mod diagnostic;
mod duration;
mod execution;
mod experts;
mod fields;
mod files;
mod foreign;
mod git;
mod grants;
mod hook_secrets;
mod hooks;
mod invocation;
mod isolated;
mod label;
mod learning;
mod library;
mod manifest;
mod markdown;
mod name;
mod notices;
mod operations;
mod outputs;
mod own_files;
mod package;
mod path;
mod policy;
mod prompt;
mod registry;
mod resolve;
mod resume;
mod scheduler;
mod settings;
mod skill;
mod source;
mod state;
#[cfg(test)]
mod tests;
mod tools;
mod trigger;
mod workspace;
mod yaml;

pub use assembly::{ModelAccess, ModelAccesses};
pub use bindings::{Binding, BindingType, Bindings, ChannelBinding};
pub use bound::{BindingCheck, BindingProblem, check_binding};
pub use catalog::{Catalog, Current, Snapshot};
pub use component::{
    Function, FunctionSession, Knowledge, KnowledgeKind, Operation, Parameter, Process, Scope, State, Tool,
};
pub use config::{ExpertConfig, ExpertsConfig};
pub use delivery::{MessageKind, message_json};
pub use diagnostic::{At, Code, Diagnostic, Severity, Spanned, visible};
pub use duration::Length;
pub use execution::{DryRun, Goal, Worker};
pub use experts::{Expert, Experts};
pub use fields::Listing;
pub use grants::{LEARNS_ALONE, VersionStep, learns_alone};
pub use hook_secrets::{HookSecrets, SecretPlace};
pub use hooks::{Accepted, Hook, HookError, Hooks, fire};
pub use invocation::{Invocation, InvocationLane, Origin};
pub use label::{MODEL_PREFIX, is_agent_of};
pub use learning::{LearningEntry, LearningError, LearningFiles, PACKAGE_SCOPE};
pub use library::{Installed, Library, Lock, Plan, Record, Removal, digest};
pub use manifest::{
    Components, Concurrency, KeyField, Manifest, ModeField, Trigger, TriggerKind, TriggerSession,
};
pub use own_files::BINDINGS;
pub use package::{Loaded, Package, Persona, load};
pub use policy::{Learning, OnTimeout, Override, Policy, Tier, Tiers};
pub use prompt::{LONG_PROMPT, system_prompt};
pub use registry::{REGISTRY, RegistryEntry, registry_page, write_registry};
pub use resolve::{Lane, to_json as resolved};
pub use scheduler::{Held, Scheduler};
pub use settings::{
    Backoff, Delivery, DeliveryFields, Execution, ExecutionFields, Format, OnFailure, SlaBreach,
};
pub use source::Source;
pub use state::prepare as prepare_state;
pub use trigger::{
    Event, Proof, Schedule, Signature, Watch, events_of, fenced, fenced_json, invocation, why_off,
};

/// The file that makes a directory a package.
pub const MANIFEST: &str = "expert.yaml";
