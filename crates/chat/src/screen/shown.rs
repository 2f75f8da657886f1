//! The events of a run as the screen takes them, and questions.

use serde_json::{Map, Value};

use super::super::approval::{Asking, OutputTail};
use agent::{Activity, CallPurpose, FailureKind, ToolEnd};
use wire::visible::one_line;

const TOO_LONG: &str = "the conversation does not fit into the model's window, so it is shortened";

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
        /// Why calls in it were not made.
        refused: Vec<String>,
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

/// Says which calls are not made, each once. `refused`: their names, as the model wrote them, and why.
fn refused_calls(refused: &[(String, String)]) -> Vec<String> {
    let mut texts: Vec<String> = Vec::new();
    for (name, why) in refused {
        let name = one_line(name, 60);
        let text = match why.as_str() {
            "undeclared" => format!("the model called {name}, but has no such tool: that call was not made"),
            "truncated" => format!("the token limit cut the model's call of {name}: it was not made"),
            _ => format!("the model's call of {name} could not be read and was not made"),
        };
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    texts
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
                refused: refused_calls(&said.refused),
            },
            Activity::ModelFailed { failure, is_retried, .. } => {
                let text = match failure.kind {
                    // The server's own words advise to shorten the messages, which is done now.
                    FailureKind::Overflow if is_retried => TOO_LONG.to_owned(),
                    _ => failure.text.clone(),
                };
                Self::ModelFailed { text, again: is_retried }
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

/// Why the model is asked again after this reply without calls.
pub(super) fn why_unusable(content: &str) -> &'static str {
    if content.trim().is_empty() {
        "the reply was empty"
    } else {
        "the reply looks like a call that could not be read"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_are_not_made_are_named() {
        let call = |name: &str, why: &str| (name.to_owned(), why.to_owned());
        let all = [
            call("fly", "undeclared"),
            call("fly", "undeclared"),
            call("read_file", "unreadable"),
            call("write_file", "truncated"),
        ];
        assert_eq!(
            refused_calls(&all),
            [
                "the model called fly, but has no such tool: that call was not made",
                "the model's call of read_file could not be read and was not made",
                "the token limit cut the model's call of write_file: it was not made"
            ]
        );
    }
}
