//! `/approvals`, `/approve` and `/reject`: calls of agents and experts that wait for a person's consent.
//! Only a line that the person types is a command; the model cannot write one. A decision needs an
//! operator's key, as it does on the command line: the assistant runs commands too.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::Value;

use agent::{ApprovalRequest, Decision, OperatorError, approval_details, operator_name, record_decision};
use store::{ApprovalRow, ApprovalState, Store, StoreError};
use wire::visible::{make_visible, one_line};

/// The most requests in the list.
const MOST: usize = 100;
/// The longest line of a list.
const LONGEST: usize = 200;

/// A command about approvals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ApprovalCommand {
    /// Show one, or list all.
    Show(Option<String>),
    /// Let the calls of a request run.
    Approve(Option<String>),
    /// Refuse them: the id and the reason.
    Reject(Option<String>),
}

/// Why a command about approvals failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApprovalError {
    #[error("the store of runs is not open, so no approval can wait in it")]
    NoStore,
    #[error("name the approval: {0}; /approvals lists those that wait")]
    NotNamed(&'static str),
    #[error("there is no approval {0}; /approvals lists those that wait")]
    Unknown(String),
    #[error("the approval {0} was written by another version")]
    OtherVersion(String),
    /// The decision cannot be made any more, for this reason.
    #[error("{0}")]
    NotDecided(String),
    #[error(transparent)]
    Operator(#[from] OperatorError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Finds the event that a run is for; `None` for a run without one.
pub type EventOfRun = Arc<dyn Fn(String) -> BoxFuture<'static, Option<Value>> + Send + Sync>;

/// The requests for consent, and who may decide about them.
pub(super) struct Approvals {
    /// `None` when nothing is stored.
    pub(super) store: Option<Arc<Store>>,
    /// The operator's key of the person, if they gave one.
    pub(super) operator_key: Option<String>,
    pub(super) event_of_run: EventOfRun,
}

impl Approvals {
    /// Runs a command and returns its result for the person.
    ///
    /// # Errors
    /// [`ApprovalError`].
    pub(super) async fn run_command(&self, wanted: ApprovalCommand) -> Result<String, ApprovalError> {
        let store = self.store.as_ref().ok_or(ApprovalError::NoStore)?;
        match wanted {
            ApprovalCommand::Show(None) => Ok(list_approvals(store).await?),
            ApprovalCommand::Show(Some(id)) => {
                let row = find_approval(store, &id).await?;
                let mut shown = approval_details(store, &row).await?;
                if let Some(event) = (self.event_of_run)(row.run).await {
                    shown["event"] = event;
                }
                Ok(make_visible(&format!("{shown:#}")))
            }
            ApprovalCommand::Approve(id) => {
                let (id, _) = split_id(id.as_deref(), "/approve ID")?;
                self.decide_approval(store, id, Decision::approve_all).await?;
                Ok(format!("{id} is approved; a running `respool serve` continues its run"))
            }
            ApprovalCommand::Reject(text) => {
                let (id, why) = split_id(text.as_deref(), "/reject ID [WHY]")?;
                let comment = Some(why.to_owned()).filter(|why| !why.is_empty());
                let reject = |request: &ApprovalRequest, by: &str| Decision {
                    request: request.id.clone(),
                    by: by.to_owned(),
                    comment,
                    ..Decision::default()
                };
                self.decide_approval(store, id, reject).await?;
                Ok(format!("{id} is rejected"))
            }
        }
    }

    async fn decide_approval(
        &self,
        store: &Store,
        id: &str,
        make: impl FnOnce(&ApprovalRequest, &str) -> Decision,
    ) -> Result<(), ApprovalError> {
        let by = operator_name(store, self.operator_key.as_deref(), "terminal chat").await?;
        let row = find_approval(store, id).await?;
        let request = serde_json::from_str(&row.body);
        let request = request.map_err(|_| ApprovalError::OtherVersion(id.to_owned()))?;
        let recorded = record_decision(store, &make(&request, &by)).await;
        recorded.map_err(|error| ApprovalError::NotDecided(error.describe_for(id)))
    }
}

/// Splits the text after a command into the id at its beginning and the rest.
fn split_id<'a>(text: Option<&'a str>, usage: &'static str) -> Result<(&'a str, &'a str), ApprovalError> {
    let text = text.ok_or(ApprovalError::NotNamed(usage))?;
    let (id, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    Ok((id, rest.trim()))
}

async fn list_approvals(store: &Store) -> Result<String, StoreError> {
    let rows = store.approvals(ApprovalState::Waiting, MOST).await?;
    let line = |row: &ApprovalRow| {
        let request: ApprovalRequest = serde_json::from_str(&row.body).unwrap_or_default();
        let calls = request.calls.iter().map(|call| format!("{} {}", call.name, call.arguments));
        let requester =
            request.requester.as_ref().map(|requester| format!("  {requester}")).unwrap_or_default();
        let calls = calls.collect::<Vec<_>>().join("; ");
        one_line(&format!("{}  {}{requester}  {calls}", row.id, row.agent), LONGEST)
    };
    if rows.is_empty() {
        return Ok("nothing waits for consent".to_owned());
    }
    Ok(rows.iter().map(line).collect::<Vec<_>>().join("\n"))
}

async fn find_approval(store: &Store, id: &str) -> Result<ApprovalRow, ApprovalError> {
    store.approval(id).await?.ok_or_else(|| ApprovalError::Unknown(id.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent::{RequestedCall, Requester};
    use store::{Append, ApprovalChange, NewRun, OperatorKey, Status, StoreConfig};

    async fn waiting(dir: &std::path::Path) -> Arc<Store> {
        let config = StoreConfig { state_dir: dir.to_owned(), ..StoreConfig::default() };
        let store = Arc::new(Store::open(&config).unwrap());
        let new = NewRun { id: "run".into(), agent: "expert/desk".into(), ..NewRun::default() };
        store.begin(new).await.unwrap();
        for (seq, id) in [(0, "one"), (1, "two")] {
            let arguments = "{\"stage\":\"\u{1b}[2J4\"}".to_owned();
            let call = RequestedCall {
                id: "c1".into(),
                name: "crm__move".into(),
                arguments,
                ..RequestedCall::default()
            };
            let request = ApprovalRequest {
                requester: (id == "two").then_some(Requester::Conversation),
                id: id.into(),
                calls: vec![call],
                reason: "why".into(),
                expires: None,
                ..ApprovalRequest::default()
            };
            let body = serde_json::to_string(&request).unwrap();
            let approval = Some(ApprovalChange::Requested { id: id.into(), expires: None, body });
            let status = Status::AwaitingApproval;
            let event = Some((seq, "requested", String::new()));
            let change = Append::status("run", Store::FIRST_EPOCH, seq, status);
            store.append(Append { event, approval, ..change }).await.unwrap();
        }
        store
    }

    #[tokio::test]
    async fn decisions_need_an_operators_key() {
        let dir = tempfile::tempdir().unwrap();
        let store = waiting(dir.path()).await;
        let with = |key: Option<&str>| Approvals {
            store: Some(Arc::clone(&store)),
            operator_key: key.map(str::to_owned),
            event_of_run: Arc::new(|run| Box::pin(async move { (run == "run").then(|| "a ticket".into()) })),
        };
        let refusal = async |by: &Approvals, wanted: ApprovalCommand| {
            by.run_command(wanted).await.unwrap_err().to_string()
        };
        let (operator, keyless, guesser) = (with(Some("sk-anna")), with(None), with(Some("sk-mine")));
        let listed = keyless.run_command(ApprovalCommand::Show(None)).await.unwrap();
        assert!(listed.contains("one  expert/desk  crm__move") && !listed.contains('\u{1b}'), "{listed}");
        assert!(listed.contains("two  expert/desk  conversation  crm__move"), "{listed}");
        let shown = keyless.run_command(ApprovalCommand::Show(Some("one".into()))).await.unwrap();
        assert!(
            shown.contains("\"reason\": \"why\"")
                && shown.contains("\"event\": \"a ticket\"")
                && !shown.contains('\u{1b}'),
            "{shown}"
        );
        for wanted in
            [ApprovalCommand::Approve(Some("one".into())), ApprovalCommand::Reject(Some("one".into()))]
        {
            assert!(refusal(&keyless, wanted.clone()).await.contains("RESPOOL_OPERATOR_KEY"));
            assert!(refusal(&guesser, wanted).await.contains("no operator is known"));
        }
        let digest = "6cb9b97054a7581b061237873eaaf81333879847f2769ca5d6b9b59b9618a213".to_owned();
        store.set_operators(vec![OperatorKey { digest, name: "anna".into() }]).await.unwrap();
        let refused = refusal(&guesser, ApprovalCommand::Approve(Some("one".into()))).await;
        assert!(refused.contains("is not one of the operators' keys"), "{refused}");
        assert!(refusal(&operator, ApprovalCommand::Approve(None)).await.contains("/approve ID"));
        operator.run_command(ApprovalCommand::Approve(Some("one".into()))).await.unwrap();
        operator.run_command(ApprovalCommand::Reject(Some("two  not now".into()))).await.unwrap();
        let again = refusal(&operator, ApprovalCommand::Reject(Some("one".into()))).await;
        assert!(again.contains("the approval one is over"), "{again}");
        let decision = async |id: &str| -> Decision {
            serde_json::from_str(&store.approval(id).await.unwrap().unwrap().decision.unwrap()).unwrap()
        };
        let (one, two) = (decision("one").await, decision("two").await);
        assert_eq!((one.approved, one.by.as_str()), (vec!["c1".to_owned()], "anna, terminal chat"));
        assert_eq!((two.approved.len(), two.comment.as_deref()), (0, Some("not now")));
        let unknown = refusal(&operator, ApprovalCommand::Approve(Some("other".into()))).await;
        assert!(unknown.contains("there is no"), "{unknown}");
        assert_eq!(
            operator.run_command(ApprovalCommand::Show(None)).await.unwrap(),
            "nothing waits for consent"
        );
    }
}
