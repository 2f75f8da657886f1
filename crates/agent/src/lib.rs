//! The agent: the reasoning-to-tool loop that runs inside respool.
//!
//! The modules import each other in one direction (`tests/it/architecture.rs`). From the bottom: plain data
//! that the store keeps (`call`, `failure`, `outcome`, `approval`, `setup`, `event`); what decides (`run` and
//! what it stands on); what executes one run (`model_client`, `journal`, `driver`); what holds many
//! (`active`, `resume`, `agents`, `conversation`).

mod active;
mod activity;
pub mod agents;
mod approval;
mod budget;
mod call;
mod chat_model;
mod cleanup;
pub mod config;
mod context;
mod conversation;
mod correction;
mod definition;
mod driver;
mod event;
mod facts;
mod failure;
mod journal;
mod model_client;
mod neutralize;
mod new_setup;
mod outcome;
mod progress;
mod prompt;
mod readable_inputs;
mod reading;
pub mod report;
mod request;
mod resume;
mod resume_error;
mod run;
mod run_snapshot;
mod setup;
mod step;
mod stored;
mod telemetry;
mod transcript;
mod unanswered;
mod watch;
mod weights;
mod work;

pub use active::RunOptions;
pub use activity::{Activity, Observer};
pub use agents::{
    Agents, DecideError, OPERATOR_KEY, OperatorError, approval_details, facts_of_work, operator_name,
    read_facts, record_decision,
};
pub use approval::{ApprovalRequest, ApprovalRules, Decision, OnRejection, OnTimeout, Requester, Tier};
pub use budget::Tokens;
pub use call::{CallOutcome, RequestedCall, ToolEnd};
pub use chat_model::{ChatModel, ModelAnswer, ModelFacts, ModelRequest};
pub use config::{AgentConfig, OnDisconnect, Parser, Progress, ReadFirst};
pub use conversation::{Conversation, PastConversation, Spent};
pub use definition::{Agent, ChildRuns, Notice, Notices, Supervision};
pub use driver::WorkEnd;
pub use event::{ChildEnd, Event, EventKind, ModelReply};
pub use facts::{ChildFacts, FactsError, MadeCall, RunFacts};
pub use failure::{FailureKind, ModelFailure};
pub use outcome::{Limit, Outcome};
pub use readable_inputs::readable_inputs;
pub use request::{AgentRequest, client_digest};
pub use resume_error::ResumeError;
pub use run::Run;
pub use run_snapshot::RunSnapshot;
pub use setup::{
    CallForm, CallStyle, EndsRun, Executor, Limits, ModelSizes, OfferedTool, SettledCall, Setup,
};
pub use step::{Action, CallPurpose, ChildStep, ModelStep, Step, Suspension, ToolStep, UnexpectedEvent};
pub use transcript::{Entry, Exchange, Iteration, ToolRecord, ToolResult};
pub use watch::{Watch, WatchEvent, WorkReport};
pub use work::entry_of_work;
