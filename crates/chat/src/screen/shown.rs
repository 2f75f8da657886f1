//! The events of a run as the screen takes them, and questions.

use serde_json::{Map, Value};

use super::super::approval::{Asking, OutputTail};
use agent::{Activity, CallPurpose, ToolEnd};

/// Something to show: an event of the run, or a question.
#[derive(Debug)]
pub(crate) enum Shown {
    /// The model is asked for a summary, or for the next step.
    Asks {
        summary: bool,
    },
    /// The model's server is waited for, for this reason; `None`: no longer.
    ServerAwaited(Option<String>),
    Reasoning(String),
    Content(String),
    Replied {
        content: String,
        reasoning: String,
        calls: usize,
    },
    ModelFailed {
        text: String,
        again: bool,
    },
    Begins {
        tool: String,
        arguments: Map<String, Value>,
        again: bool,
    },
    /// A running command wrote this.
    Output(OutputTail),
    Ended {
        tool: String,
        ended: ToolEnd,
        display: Option<String>,
    },
    Note(String),
    Warning(String),
    NotKept,
    Asking(Asking),
}

impl Shown {
    pub(crate) fn from_activity(activity: Activity<'_>) -> Self {
        match activity {
            Activity::ModelAsked(why) => Self::Asks { summary: why == CallPurpose::Summary },
            Activity::ServerAwaited(why) => Self::ServerAwaited(why.map(str::to_owned)),
            Activity::Reasoning(text) => Self::Reasoning(text.to_owned()),
            Activity::Content(text) => Self::Content(text.to_owned()),
            Activity::ModelReplied(said) => Self::Replied {
                content: said.content.clone(),
                reasoning: said.reasoning.clone(),
                calls: said.calls.len(),
            },
            Activity::ModelFailed { failure, is_retried, .. } => {
                Self::ModelFailed { text: failure.text.clone(), again: is_retried }
            }
            Activity::ToolStarted { call, is_retry } => {
                let arguments = serde_json::from_str(&call.arguments).unwrap_or_default();
                Self::Begins { tool: call.name.clone(), arguments, again: is_retry }
            }
            Activity::ToolFinished { call, ended, display } => Self::Ended {
                tool: call.name.clone(),
                ended: ended.clone(),
                display: display.map(str::to_owned),
            },
            Activity::HandedOver(call) => Self::Note(format!("{}: handed over as a draft", call.name)),
            Activity::ApprovalRequested(request) => {
                let names: Vec<&str> = request.calls.iter().map(|call| call.name.as_str()).collect();
                Self::Note(format!("{}: your approval is needed", names.join(", ")))
            }
            Activity::NotStored => Self::NotKept,
        }
    }
}
