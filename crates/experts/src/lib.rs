//! Experts in service: packages in the `OpenExperts` format (crate `openexperts`), installed, bound to tools
//! and executed as agents. Triggers put invocations into the queue, `execution` runs them, and `delivery`
//! brings the results to people.
//!
//! `experts` keeps the installed ones with their bound tools, and builds an agent for each run.

mod assembly;
mod bound;
mod catalog;
pub mod config;
mod delivery;
mod epoch;
mod error;
mod execution;
mod experts;
mod file_error;
mod file_name;
mod git;
mod hook_secrets;
mod hooks;
mod invocation;
mod isolated;
mod knowledge;
mod learning;
mod library;
mod message;
mod model_access;
mod name_claim;
mod notices;
mod operations;
mod outbox;
mod readiness;
mod registry;
mod requests;
mod restriction;
mod resume;
mod run_event;
mod scheduler;
mod service;
mod source;
mod state;
mod tools;
mod trigger;
mod workspace;

pub use bound::{BindingCheck, BindingProblem, CheckedBindings, check_binding};
pub use catalog::{Catalog, Current, Snapshot};
pub use config::{ExpertConfig, ExpertsConfig};
pub use error::ExpertError;
pub use execution::{
    DryRun, OpenTask, Retried, RetryError, Worker, WorkerScope, cancel_invocation, drop_rejected, drop_task,
    open_tasks, retry_task, settled_operations,
};
pub use experts::{Expert, Experts, describe_off};
pub use hook_secrets::{HookSecrets, SecretPlace};
pub use hooks::{Accepted, Hook, HookError, Hooks, fire_trigger};
pub use invocation::{Invocation, InvocationLane, Origin};
pub use learning::{LearningEntry, LearningError, LearningFiles, PACKAGE_SCOPE};
pub use library::{Installed, Library, Lock, Plan, Record, Removal, Stays, digest};
pub use message::{MessageKind, message_json};
pub use model_access::{FindShortage, ModelAccess, ModelAccesses};
pub use readiness::{Checked, Readiness};
pub use registry::{REGISTRY, RegistryEntry, registry_page, write_registry};
pub use requests::{MARKED_DONE, read_message, read_outbox};
pub use restriction::{RestrictedOperation, find_restricted};
pub use run_event::{Obstacle, event_of_run, find_obstacle};
pub use scheduler::{Held, Scheduler};
pub use source::Source;
pub use state::{copy_state, prepare as prepare_state};
pub use trigger::{
    Event, PayloadError, Proof, Signature, events_of, fence_text, fenced_json, invocation, why_off,
};
