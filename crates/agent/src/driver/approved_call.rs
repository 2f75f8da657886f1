//! The consent to one call that a person approved while its run waited.

use async_trait::async_trait;

use tools::{Approver, Consent, Effect, Invocation, Question, QuestionKind};

/// Says yes to exactly one call: the recorded one.
pub(super) struct ApprovedCall<'a> {
    pub(super) invocation: &'a Invocation,
    /// Who decided.
    pub(super) by: &'a str,
    /// The effect that the person was shown.
    pub(super) effect: Option<&'a Effect>,
}

#[async_trait]
impl Approver for ApprovedCall<'_> {
    fn prior_consent(&self) -> Option<&str> {
        Some(self.by)
    }

    fn agreed_effect(&self) -> Option<&Effect> {
        self.effect
    }

    async fn approve(&self, question: Question<'_>) -> Consent {
        let is_same = question.kind == QuestionKind::Call
            && question.tool == self.invocation.name
            && *question.arguments == self.invocation.arguments;
        Consent::from_answer(is_same)
    }
}
