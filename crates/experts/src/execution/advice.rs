//! The recommendation in an escalation after a failure: the agent's own. An agent that has not given one is
//! asked once, without tools, unless it was the model that failed.

use super::attempt::Attempt;
use super::task::AdviceTask;
use super::worker::Worker;
use crate::tools::FAIL;
use agent::{AgentRequest, MadeCall, Outcome, RunOptions, WorkEnd};
use wire::ErrorCode;

/// The most characters of a recommendation.
const LONGEST: usize = 2_000;
/// Stands in for a recommendation that the agent could not give.
const WITHOUT_ADVICE: &str = "Correct the cause, then have it tried again: what took effect before is not done again. Firing the trigger would do all of it.";

/// How a process has failed for good.
#[derive(Clone, Copy)]
pub(super) struct FinalFailure<'a> {
    pub(super) outcome: &'a Outcome,
    /// Why, for the agent.
    pub(super) reason: &'a str,
    /// The calls of all attempts.
    pub(super) calls: &'a [MadeCall],
}

/// Advice to a person, and who gives it.
pub(super) struct Recommendation {
    pub(super) text: String,
    /// `agent` or `respool`.
    pub(super) by: &'static str,
}

impl Recommendation {
    /// Returns the recommendation for a failure that has no advice of its own.
    pub(super) fn from_respool() -> Self {
        Self { text: WITHOUT_ADVICE.to_owned(), by: "respool" }
    }
}

impl Worker {
    /// Finds the advice about a process that has failed for good.
    pub(super) async fn recommend(&self, attempt: &Attempt<'_>, failure: FinalFailure<'_>) -> Recommendation {
        let text = match given_recommendation(failure.outcome) {
            Some(text) => Some(text),
            None if can_be_asked(failure.outcome) => self.ask_for_recommendation(attempt, failure).await,
            None => None,
        };
        match text {
            Some(text) => Recommendation { text: text.chars().take(LONGEST).collect(), by: "agent" },
            None => Recommendation::from_respool(),
        }
    }

    async fn ask_for_recommendation(
        &self,
        attempt: &Attempt<'_>,
        FinalFailure { reason, calls, .. }: FinalFailure<'_>,
    ) -> Option<String> {
        let agent = self.experts.adviser_agent(&attempt.expert, attempt.is_private())?;
        let (name, inputs) = (&attempt.process.name.value, &attempt.inputs);
        let question = AdviceTask { name, inputs, reason, calls }.text();
        let options = RunOptions { is_detached: true, ..RunOptions::default() };
        let request = AgentRequest::from_task(&question);
        let mut watch = self.experts.agents.start_run(&agent, request, options).await.ok()?;
        match &watch.wait_for_end().await.end {
            WorkEnd::Finished(outcome) => advice_text(outcome),
            _ => None,
        }
    }
}

/// Returns the recommendation that the agent gave when it ended the attempt.
fn given_recommendation(outcome: &Outcome) -> Option<String> {
    let by = outcome.ended_by.as_ref().filter(|call| call.name == FAIL)?;
    let arguments = by.parsed_arguments();
    let text = arguments["recommendation"].as_str()?.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// Returns true if the model can be expected to answer: it was not the one that failed.
fn can_be_asked(outcome: &Outcome) -> bool {
    outcome.failure.as_ref().is_none_or(|failure| {
        let code = ErrorCode::from_name(&failure.code);
        matches!(
            code,
            Some(ErrorCode::ToolUnavailable | ErrorCode::ApprovalRejected | ErrorCode::ApprovalTimeout)
        )
    })
}

fn advice_text(outcome: &Outcome) -> Option<String> {
    let is_answer = outcome.has_answer() && outcome.limit.is_none();
    is_answer.then(|| outcome.content.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use agent::{FailureKind, ModelFailure, RequestedCall};

    #[test]
    fn the_agents_recommendation_comes_first() {
        let ended = |arguments: Value| Outcome {
            ended_by: Some(RequestedCall {
                name: FAIL.into(),
                arguments: arguments.to_string(),
                ..RequestedCall::default()
            }),
            ..Outcome::default()
        };
        let given = |arguments| given_recommendation(&ended(arguments));
        assert_eq!(
            given(json!({"reason": "r", "recommendation": " Call her. "})).as_deref(),
            Some("Call her.")
        );
        assert_eq!(given(json!({"reason": "r", "recommendation": " "})), None);
        assert_eq!(given(json!({"reason": "r"})), None);
        assert_eq!(given_recommendation(&Outcome::default()), None);
    }

    #[test]
    fn failed_models_are_not_asked() {
        let failed = |code: ErrorCode| {
            let (kind, text) = (FailureKind::Final, String::new());
            let failure = ModelFailure { kind, status: 500, code: code.to_string(), text, wait: None };
            can_be_asked(&Outcome { failure: Some(failure), ..Outcome::default() })
        };
        assert!(failed(ErrorCode::ToolUnavailable) && failed(ErrorCode::ApprovalRejected));
        assert!(!failed(ErrorCode::ModelTimeout) && !failed(ErrorCode::NoUpstream));
        assert!(can_be_asked(&Outcome::default()));
    }
}
