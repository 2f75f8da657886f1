//! The consent to one call that a person approved while its run waited.

use futures::future::BoxFuture;

use tools::{Approver, Consent, Effect, Invocation, Question, QuestionKind};

/// Says yes to exactly one call: the recorded one.
pub(super) struct ApprovedCall<'a> {
    pub(super) invocation: &'a Invocation,
    /// Who decided.
    pub(super) by: &'a str,
    /// The effect that the person was shown.
    pub(super) effect: Option<&'a Effect>,
}

impl Approver for ApprovedCall<'_> {
    fn prior_consent(&self) -> Option<&str> {
        Some(self.by)
    }

    fn agreed_effect(&self) -> Option<&Effect> {
        self.effect
    }

    fn approve<'a>(&'a self, question: Question<'a>) -> BoxFuture<'a, Consent> {
        let is_same = question.kind == QuestionKind::Call
            && question.tool == self.invocation.name
            && *question.arguments == self.invocation.arguments;
        Box::pin(std::future::ready(Consent::from_answer(is_same)))
    }
}
