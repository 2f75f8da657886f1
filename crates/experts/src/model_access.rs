//! How experts reach their models, and the settings that all agents of one run share. Filled by `cli`.

use std::collections::BTreeMap;
use std::sync::Arc;

use ::tools::Tools;
use agent::{Agent, AgentConfig, ChatModel, Supervision};
use openexperts::label::MODEL_PREFIX;

/// How experts reach their models.
#[derive(Clone)]
pub struct ModelAccesses {
    /// For experts without a setting of their own.
    pub default: ModelAccess,
    /// By the expert's name.
    pub by_name: BTreeMap<String, ModelAccess>,
}

/// How an expert reaches its model.
#[derive(Clone)]
pub struct ModelAccess {
    /// The way to its model.
    pub model: Arc<dyn ChatModel>,
    /// The model's name.
    pub model_id: String,
    /// The model as the upstreams know it.
    pub target: String,
    /// Its window in tokens, if configured.
    pub window: Option<u64>,
    /// The name under which reasoning and progress leave; `None`: they do not.
    pub reasoning: Option<&'static str>,
    /// Says why the agent of this name may begin nothing now, for people: a budget is spent.
    pub find_shortage: Arc<FindShortage>,
}

impl ModelAccess {
    /// Says that a budget of the expert of this name is spent; `None`: none is.
    pub fn shortage_of(&self, expert: &str) -> Option<String> {
        (self.find_shortage)(&format!("{MODEL_PREFIX}{expert}"))
    }
}

/// Returns why an agent may begin nothing now.
pub type FindShortage = dyn Fn(&str) -> Option<String> + Send + Sync;

/// Settings that the run of an expert and the runs of its isolated functions share.
#[derive(Clone)]
pub(super) struct AgentBase {
    pub(super) name: String,
    pub(super) config: AgentConfig,
    pub(super) access: ModelAccess,
}

impl AgentBase {
    /// Returns the same settings for the run of a function.
    pub(super) fn function_base(&self, function: &str) -> Self {
        Self { name: format!("{}/{function}", self.name), ..self.clone() }
    }

    /// Builds the agent.
    pub(super) fn agent(self, prompt: String, tools: Arc<dyn Tools>, supervision: Supervision) -> Agent {
        Agent {
            name: self.name.into(),
            config: self.config,
            prompt: Some(prompt),
            model: self.access.model,
            tools,
            target: self.access.target,
            window: self.access.window,
            reasoning: self.access.reasoning,
            supervision,
        }
    }
}
