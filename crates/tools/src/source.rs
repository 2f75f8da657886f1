//! The sources of tools, as the gate in `set.rs` sees them: their offers, the subject of a call, and running
//! it.
//!
//! [`Source::run_call`] takes a [`Permit`], and only [`request_permit`] can make one: no path to a tool
//! avoids the policy.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Map, Value};

use super::config::Verdict;
use super::contract::{
    Approver, Consent, Invocation, Preview, Question, QuestionKind, Target, ToolError, ToolOutput,
};
use super::offer::Offer;
use super::policy::held::Policies;
use super::policy::{Judgement, Plan, Subject};
use super::record::Record;
use wire::visible::make_visible;

/// Tools of one origin.
#[async_trait]
pub(super) trait Source: Send + Sync {
    /// Returns the tools on offer now. The tools of a server that is down stay on offer.
    fn offers(&self) -> Vec<Offer>;

    /// Waits a moment for a tool that this source does not offer and may offer later.
    ///
    /// # Errors
    /// When the source does not know now whether it has the tool.
    async fn await_tool(&self, _: &str) -> Result<(), ToolError> {
        Ok(())
    }

    /// Returns the subject of a call, for the policy.
    ///
    /// # Errors
    /// For arguments that cannot be read: the call does not run.
    async fn subject(&self, offer: &Offer, arguments: &Map<String, Value>) -> Result<Subject, ToolError>;

    /// Notes that a person agreed to a call of this tool.
    fn note_consent(&self, _tool: &str) {}

    /// Returns true for a tool that changes nothing, by its own account.
    fn only_looks(&self, _: &Offer) -> bool {
        false
    }

    /// Returns the change that a call would make, for the person who is asked.
    ///
    /// # Errors
    /// When it is already clear that the call will fail: the person is not asked.
    async fn preview_call(&self, _: &Invocation) -> Result<Option<Preview>, ToolError> {
        Ok(None)
    }

    /// Runs a call that can change nothing and needs no consent; `None` for any other.
    async fn look(&self, _: &Invocation) -> Option<ToolOutput> {
        None
    }

    /// Runs the call; `approver` may be asked for more than was permitted.
    async fn run_call(
        &self,
        invocation: &Invocation,
        permit: Permit,
        approver: Option<&dyn Approver>,
    ) -> Result<ToolOutput, ToolError>;
}

/// The policy's consent to one call.
#[derive(Clone)]
pub(super) struct Permit {
    policy: Arc<Policies>,
    subject: Subject,
    verdict: Verdict,
    /// The way to run its command, if a pattern allows it.
    plan: Option<Plan>,
}

impl Permit {
    /// Returns the way to run the command; `None` to run it as it was written.
    pub(super) fn plan(&self) -> Option<&Plan> {
        self.plan.as_ref()
    }

    /// Returns the target of the call, for people.
    pub(super) fn target(&self) -> &Target {
        &self.subject.target
    }

    /// Returns true if these are the paths that were judged.
    pub(super) fn has_judged(&self, paths: &[String]) -> bool {
        self.subject.paths == paths
    }

    /// Returns true if the consent covers this path too, as for a file below a directory that is searched.
    pub(super) fn covers(&self, path: &str) -> bool {
        let subject = Subject { paths: vec![path.to_owned()], ..self.subject.clone() };
        match self.policy.judge(&subject).verdict {
            Verdict::Allow => true,
            Verdict::Ask => self.verdict == Verdict::Ask,
            Verdict::Deny => false,
        }
    }
}

/// Asks the policy about a call and, where it says `ask`, the person. Nothing else makes permits.
///
/// # Errors
/// When the policy or the person denies the call, or it is clear that it would fail.
pub(super) async fn request_permit(
    source: &dyn Source,
    subject: Subject,
    policy: Arc<Policies>,
    invocation: &Invocation,
    approver: Option<&dyn Approver>,
    record: &mut Record<'_>,
) -> Result<Permit, ToolError> {
    let Judgement { verdict, source: because, plan, is_by_default } = policy.judge(&subject);
    record.note_rule(&because);
    let deny = |reason: &str| Err(denial_error(&invocation.name, reason));
    match (verdict, approver.filter(|approver| approver.is_present())) {
        (Verdict::Allow, _) => {}
        (Verdict::Deny, _) => return deny(&format!("denied by {because}")),
        (Verdict::Ask, None) => return deny(&format!("{because} says ask, and no person can be asked")),
        (Verdict::Ask, Some(approver)) => {
            let preview = match source.preview_call(invocation).await? {
                Some(Preview::Change { diff: text, .. }) => text,
                Some(Preview::Reach(text)) => Some(text),
                None => None,
            };
            let preview = preview.as_deref().map(make_visible);
            let Invocation { name: tool, arguments, .. } = invocation;
            let (kind, target) = (QuestionKind::Call, &subject.target);
            let question = Question { kind, tool, arguments, target, preview, is_by_default };
            if let Consent::Refused(reason) = approver.approve(question).await {
                record.note_refusal("the person");
                return deny(&reason);
            }
            record.note_approval(approver);
            source.note_consent(&invocation.name);
        }
    }
    Ok(Permit { policy, subject, verdict, plan })
}

/// Returns the error of a call that may not run, with the reason.
pub(super) fn denial_error(tool: &str, reason: &str) -> ToolError {
    ToolError::Denied(format!(
        "`{tool}` did not run: {reason}. The same call will be denied again; find another way, or say what is missing."
    ))
}

/// Runs a call and ends it after `limit`.
pub(super) async fn run_with_limit<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, ToolError>>,
) -> Result<T, ToolError> {
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| Err(timeout_error(limit, "")))
}

/// Returns the error of a call that took longer than `limit`, with the output that it had.
pub(super) fn timeout_error(limit: Duration, output: &str) -> ToolError {
    let note = format!("[stopped after {}; it may have done a part of its work]", format_seconds(limit));
    ToolError::TimedOut(if output.is_empty() { note } else { format!("{}\n\n{note}", output.trim_end()) })
}

fn format_seconds(limit: Duration) -> String {
    if limit.subsec_millis() == 0 {
        format!("{} s", limit.as_secs())
    } else {
        format!("{} ms", limit.as_millis())
    }
}
