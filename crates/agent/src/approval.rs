//! Approvals: which calls need a person's consent, what is asked, and what was decided. Plain data that the
//! store keeps.
//!
//! A request holds the exact inputs of the calls; after consent exactly these run. Nothing here waits: `run`
//! has a phase for it, so an approval outlives the process. Times are milliseconds since 1970; spans are
//! milliseconds.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};

use serde::{Deserialize, Serialize};

use super::call::RequestedCall;
use tools::Effect;

/// The consent that a call of a tool needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// Nothing: it runs.
    #[default]
    Auto,
    /// The consent of a person.
    Confirm,
    /// It never runs: its inputs are a draft that a person gets.
    Manual,
}

/// How an approval ends that no one decides in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnTimeout {
    /// The calls are rejected.
    #[default]
    Reject,
    /// The person is reminded, and the calls still wait.
    Escalate,
}

/// How a rejection changes the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnRejection {
    /// The model learns of it, and goes on.
    #[default]
    TellModel,
    /// The run ends as failed.
    EndRun,
}

impl OnRejection {
    const fn fallback() -> Self {
        Self::EndRun
    }
}

/// Which work of an expert asks for consent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Requester {
    /// A conversation.
    Conversation,
    /// The process of this name.
    Process(String),
}

impl Requester {
    /// Returns the process, if it is one.
    pub fn process_name(&self) -> Option<&str> {
        match self {
            Self::Conversation => None,
            Self::Process(name) => Some(name),
        }
    }

    /// Returns the kind, for programs.
    pub fn kind_name(&self) -> &'static str {
        match self {
            Self::Conversation => "conversation",
            Self::Process(_) => "process",
        }
    }
}

impl fmt::Display for Requester {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.kind_name())?;
        self.process_name().map_or(Ok(()), |name| write!(out, " {name}"))
    }
}

/// How a run deals with approvals.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ApprovalRules {
    /// How long a request waits; `None`: for ever.
    pub timeout: Option<u64>,
    /// The consequence of a timeout.
    pub on_timeout: OnTimeout,
    /// The consequence of a rejection.
    pub on_rejection: OnRejection,
    /// Tools that only propose something: the model learns when one is rejected, whatever else a rejection
    /// does.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub proposals: BTreeSet<String>,
    /// The requester that its requests name. Only runs of experts have one, and those of older versions do
    /// not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requester: Option<Requester>,
}

impl ApprovalRules {
    /// Returns true if these calls only propose something.
    pub(crate) fn is_all_proposals<'a>(&self, calls: impl IntoIterator<Item = &'a RequestedCall>) -> bool {
        calls.into_iter().all(|call| self.proposals.contains(call.name.as_str()))
    }
}

/// The calls of one reply that need consent, as the person is shown them and as they will run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalRequest {
    /// Its id, unique among all runs.
    pub id: String,
    /// The calls with their exact inputs.
    pub calls: Vec<RequestedCall>,
    /// The text that the model wrote with the calls, or the end of its reasoning if it wrote none.
    pub reason: String,
    /// That text alone.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub content: String,
    /// When it times out.
    pub expires: Option<u64>,
    /// The consequence of a timeout: a later decision counts only after an escalation.
    #[serde(default)]
    pub on_timeout: OnTimeout,
    /// The consequence of a rejection. Requests of older versions do not say it: tasks of experts ended.
    #[serde(default = "OnRejection::fallback")]
    pub on_rejection: OnRejection,
    /// Who asks, where that is an expert. Requests of older versions do not say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requester: Option<Requester>,
    /// The effects of the calls as the person was shown them, by the calls' ids, where they are known.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub effects: BTreeMap<String, Effect>,
}

impl ApprovalRequest {
    /// Returns true if a person may approve this call with other inputs: not where the change was shown that
    /// it makes.
    pub fn can_change(&self, call: &str) -> bool {
        self.effects.get(call).is_none_or(|effect| effect.change.is_none())
    }

    /// Returns true if its time ran out, and that was reported to a person, who may still decide.
    pub fn is_overdue(&self, now: u64) -> bool {
        self.on_timeout == OnTimeout::Escalate && self.expires.is_some_and(|expires| expires < now)
    }
}

/// A decision about a request. Calls that it does not name as approved are rejected.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// The request's id.
    pub request: String,
    /// The ids of the calls that are approved as they are.
    pub approved: Vec<String>,
    /// The inputs with which other calls are approved in place of their own, by the calls' ids. A version
    /// that does not know this field rejects them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub changed: BTreeMap<String, String>,
    /// Who decided, for the record: a person, or [`Decision::TIMEOUT`].
    pub by: String,
    /// The person's comment; the model reads it.
    pub comment: Option<String>,
}

impl Decision {
    /// Stands for the clock: the time was over.
    pub const TIMEOUT: &'static str = "timeout";

    /// Returns the decision that the clock makes.
    pub fn from_timeout(request: &ApprovalRequest) -> Self {
        Self { request: request.id.clone(), by: Self::TIMEOUT.to_owned(), ..Self::default() }
    }

    /// Approves all calls of a request.
    pub fn approve_all(request: &ApprovalRequest, by: &str) -> Self {
        let approved = request.calls.iter().map(|call| call.id.clone()).collect();
        Self { request: request.id.clone(), approved, by: by.to_owned(), ..Self::default() }
    }

    /// Approves calls with other inputs than their own.
    pub fn change_inputs(&mut self, changed: BTreeMap<String, String>) {
        self.approved.retain(|id| !changed.contains_key(id));
        self.changed = changed;
    }

    /// Returns true if this call runs, be it with other inputs.
    pub fn approves(&self, call: &RequestedCall) -> bool {
        self.approved.contains(&call.id) || self.changed.contains_key(&call.id)
    }

    /// Returns the ids of all calls that run.
    pub fn approved_calls(&self) -> Vec<&str> {
        self.approved.iter().chain(self.changed.keys()).map(String::as_str).collect()
    }

    /// Returns the result of an approved call as the model gets it: with what the person changed and says.
    pub(super) fn add_comment(&self, call: &RequestedCall, result: &str) -> String {
        let mut text = result.to_owned();
        if let Some(inputs) = self.changed.get(&call.id) {
            let _ = write!(text, "\n\n[The person who approved this call changed its inputs to: {inputs}]");
        }
        if let Some(comment) = &self.comment {
            let _ = write!(text, "\n\n[The person who approved this call says: {comment}]");
        }
        text
    }

    /// Returns the result that the model gets of a rejected call.
    pub(super) fn rejection_text(&self) -> String {
        let comment = self.comment.as_ref().map(|comment| format!(": {comment}")).unwrap_or_default();
        if self.by == Self::TIMEOUT {
            "not run: the call was not approved in time".to_owned()
        } else {
            format!("not run: the person who was asked rejected the call{comment}")
        }
    }
}

/// Returns the id of a run's approval request: derived from the run's seed, so that restoring a run gives the
/// same one.
pub(super) fn request_id(seed: u64, number: usize) -> String {
    let number = u64::try_from(number).unwrap_or(u64::MAX);
    let mixed = (seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    format!("{:012x}", (mixed ^ (mixed >> 29)) & 0xffff_ffff_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_escalated_requests_are_overdue() {
        let request = ApprovalRequest { expires: Some(5), ..ApprovalRequest::default() };
        let with = |on_timeout| ApprovalRequest { on_timeout, ..request.clone() };
        let (escalated, rejected) = (with(OnTimeout::Escalate), with(OnTimeout::Reject));
        assert!(escalated.is_overdue(6) && !escalated.is_overdue(5) && !rejected.is_overdue(6));
    }

    #[test]
    fn older_requests_name_no_requester() {
        let old = r#"{"id": "a", "calls": [], "reason": "why", "expires": null}"#;
        let request: ApprovalRequest = serde_json::from_str(old).unwrap();
        assert_eq!((request.reason.as_str(), request.requester), ("why", None));
        let rules: ApprovalRules = serde_json::from_str(r#"{"timeout": 5, "on_timeout": "reject"}"#).unwrap();
        assert_eq!((rules.timeout, rules.requester), (Some(5), None));
        for requester in [Requester::Conversation, Requester::Process("lend".into())] {
            let request = ApprovalRequest { requester: Some(requester), ..ApprovalRequest::default() };
            let text = serde_json::to_string(&request).unwrap();
            assert_eq!(serde_json::from_str::<ApprovalRequest>(&text).unwrap(), request);
        }
    }
}
