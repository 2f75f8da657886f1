//! `respool expert approvals`: lists calls that wait for a person's consent, and decides about them. Works on
//! the store directly; a server on the same store resumes the runs.
//!
//! Deciding needs an operator's key in `RESPOOL_OPERATOR_KEY`, because an agent that runs commands could run
//! this one. The key is checked against those that `respool serve` left in the store, not against the
//! configuration, which the caller chooses.

use std::collections::BTreeMap;

use clap::Subcommand;
use serde_json::Value;

use crate::cli::failure::{Failure, fail_with};
use crate::cli::listing::{ListArgs, Noun};
use crate::cli::runtime::new_runtime;
use crate::cli::say::{flat_text, say, say_on_stderr};
use agent::{
    ApprovalRequest, Decision, OPERATOR_KEY, OnRejection, approval_details, operator_name, readable_inputs,
    record_decision,
};
use experts::{Library, Obstacle, drop_rejected, event_of_run, find_obstacle};
use openexperts::is_agent_of;
use settings::Loaded;
use store::{ApprovalRow, ApprovalState, Store};
use wire::visible::make_visible;

/// The most requests that are read.
const MOST: usize = 10_000;
/// The most characters of an event in the list.
const LONGEST_EVENT: usize = 300;

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum ApprovalsCommand {
    /// List waiting calls, oldest first.
    #[command(after_help = "Example:\n  respool expert approvals list --expert support-desk")]
    List {
        /// List only those of this expert or agent
        #[arg(long, value_name = "NAME")]
        expert: Option<String>,
        #[command(flatten)]
        arguments: ListArgs,
    },
    /// Print one request with the exact inputs of its calls, as JSON.
    #[command(after_help = "Example:\n  respool expert approvals show APPROVAL")]
    Show {
        /// The approval, as `list` shows it
        approval: String,
    },
    /// Let calls run, with exactly the inputs that `show` prints.
    #[command(
        override_usage = "respool expert approvals approve <APPROVALS>... [--only <CALL>] [--set <INPUT=VALUE>] [--comment <COMMENT>]\n       respool expert approvals approve --expert <NAME> [--comment <COMMENT>]",
        after_help = "Examples:\n  respool expert approvals approve APPROVAL --only CALL\n  respool expert approvals approve APPROVAL --set 'body=The van costs 40 a day.'"
    )]
    Approve {
        /// The approvals, as `list` shows them
        #[arg(required_unless_present = "expert")]
        approvals: Vec<String>,
        /// All waiting calls of this expert or agent
        #[arg(long, conflicts_with = "approvals")]
        expert: Option<String>,
        /// Approve only these calls, by their ids in `show`, and reject the others
        #[arg(long, value_name = "CALL")]
        only: Vec<String>,
        /// Let the call run with this value of an input in place of its own
        #[arg(long, value_name = "INPUT=VALUE", conflicts_with = "expert")]
        set: Vec<String>,
        /// A comment, which the model reads with the results of the calls
        #[arg(long)]
        comment: Option<String>,
    },
    /// Reject calls, so that they do not run.
    #[command(
        override_usage = "respool expert approvals reject <APPROVALS>... [--comment <COMMENT>] [--drop]\n       respool expert approvals reject --expert <NAME> [--comment <COMMENT>] [--drop]",
        after_help = "Example:\n  respool expert approvals reject APPROVAL --comment 'Ask the customer first'\n  respool expert approvals reject APPROVAL --drop"
    )]
    Reject {
        /// The approvals, as `list` shows them
        #[arg(required_unless_present = "expert")]
        approvals: Vec<String>,
        /// All waiting calls of this expert or agent
        #[arg(long, conflicts_with = "approvals")]
        expert: Option<String>,
        /// The reason, which the model reads
        #[arg(long)]
        comment: Option<String>,
        /// Also end the invocations that asked, so that they are not escalated
        #[arg(long)]
        drop: bool,
    },
}

pub(super) fn run_approvals(loaded: &Loaded, command: ApprovalsCommand) -> Result<(), Failure> {
    let store = Store::open_in_place(&loaded.settings.store)?;
    // Of a database that several processes share, another one may have the package.
    let is_shared = loaded.settings.store.store.url.is_some();
    let library = (!is_shared).then(|| Library::new(&loaded.settings.experts.dir));
    let library = library.as_ref();
    new_runtime()?.block_on(async {
        match command {
            ApprovalsCommand::List { expert, arguments } => {
                list_approvals(&store, library, expert.as_deref(), &arguments).await
            }
            ApprovalsCommand::Show { approval } => show_approval(&store, library, &approval).await,
            ApprovalsCommand::Approve { approvals, expert, only, set, comment } => {
                let by = decider_name(&store).await?;
                let chosen = choose_approvals(&store, approvals, expert).await?;
                let requests: Vec<&ApprovalRequest> = chosen.iter().map(|(_, request)| request).collect();
                let changed = changed_inputs(&requests, &only, &set)?;
                let decision = |request: &ApprovalRequest| {
                    let mut decision = Decision::approve_all(request, &by);
                    if !only.is_empty() {
                        decision.approved.clone_from(&only);
                    }
                    decision.comment.clone_from(&comment);
                    decision.change_inputs(changed.clone());
                    decision
                };
                for (row, _) in &chosen {
                    refuse_lost_calls(&store, library, row).await?;
                }
                let leaves_some = |request: &ApprovalRequest| {
                    ends_task(request)
                        && !only.is_empty()
                        && request.calls.iter().any(|call| !only.contains(&call.id))
                };
                let partly = chosen.iter().filter(|(_, request)| leaves_some(request));
                let partly: Vec<String> = partly.map(|(row, _)| row.run.clone()).collect();
                let (mut runs, problems) = decide_all(&store, chosen, decision, "approved").await;
                runs.retain(|run| partly.contains(run));
                say_failed_tasks(&store, &runs).await?;
                fail_with(&problems)
            }
            ApprovalsCommand::Reject { approvals, expert, comment, drop } => {
                let by = decider_name(&store).await?;
                let decision = |request: &ApprovalRequest| Decision {
                    request: request.id.clone(),
                    by: by.clone(),
                    comment: comment.clone(),
                    ..Decision::default()
                };
                let chosen = choose_approvals(&store, approvals, expert).await?;
                let ending = chosen.iter().filter(|(_, request)| ends_task(request));
                let ending: Vec<String> = ending.map(|(row, _)| row.run.clone()).collect();
                let (mut runs, mut problems) = decide_all(&store, chosen, decision, "rejected").await;
                if drop {
                    problems.extend(drop_invocations(&store, &runs).await);
                } else {
                    if runs.iter().any(|run| !ending.contains(run)) {
                        say_on_stderr("The model reads that and the comment, and goes on.");
                    }
                    runs.retain(|run| ending.contains(run));
                    say_failed_tasks(&store, &runs).await?;
                }
                fail_with(&problems)
            }
        }
    })
}

/// Returns the name under which a decision is recorded.
async fn decider_name(store: &Store) -> Result<String, Failure> {
    Ok(operator_name(store, std::env::var(OPERATOR_KEY).ok().as_deref(), "command line").await?)
}

async fn waiting_approvals(store: &Store, expert: Option<&str>) -> Result<Vec<ApprovalRow>, Failure> {
    let rows = store.approvals(ApprovalState::Waiting, MOST).await?;
    let is_theirs =
        |row: &ApprovalRow| expert.is_none_or(|name| row.agent == name || is_agent_of(&row.agent, name));
    Ok(rows.into_iter().filter(is_theirs).collect())
}

/// Finds what is in the way of the calls of a request; `None` also if it is not known.
async fn obstacle_of(
    store: &Store,
    library: Option<&Library>,
    row: &ApprovalRow,
) -> Result<Option<Obstacle>, Failure> {
    match library {
        Some(library) => Ok(find_obstacle(store, library, row).await?),
        None => Ok(None),
    }
}

/// Refuses to approve calls that can never be made, and warns of calls that wait for their expert.
async fn refuse_lost_calls(
    store: &Store,
    library: Option<&Library>,
    row: &ApprovalRow,
) -> Result<(), Failure> {
    if row.state != ApprovalState::Waiting {
        return Ok(());
    }
    match obstacle_of(store, library, row).await? {
        Some(lost @ Obstacle::VersionGone(_)) => {
            let id = &row.id;
            Err(format!("{id} was not approved: {lost}. `respool expert approvals reject {id}` ends it")
                .into())
        }
        waits => {
            waits.iter().for_each(|waits| say_on_stderr(&format!("{}: {waits}", row.id)));
            Ok(())
        }
    }
}

async fn list_approvals(
    store: &Store,
    library: Option<&Library>,
    expert: Option<&str>,
    arguments: &ListArgs,
) -> Result<(), Failure> {
    let mut rows = waiting_approvals(store, expert).await?;
    rows.retain(|row| arguments.includes(row.requested));
    rows.truncate(arguments.limit);
    if arguments.json {
        let mut all = Vec::new();
        for row in &rows {
            all.push(full_details(store, library, row).await?);
        }
        say(&format!("{:#}", Value::from(all)));
    } else {
        for row in &rows {
            say_approval(row, event_of_run(store, &row.run).await?.as_ref());
            let obstacle = obstacle_of(store, library, row).await?;
            obstacle.iter().for_each(|obstacle| say(&flat_text(&format!("    note: {obstacle}"))));
        }
        say_on_stderr(&Noun("request", "requests").count_things(rows.len()));
    }
    Ok(())
}

/// Returns the details of a request, with the event that its run is for and what is in the way of its calls.
async fn full_details(store: &Store, library: Option<&Library>, row: &ApprovalRow) -> Result<Value, Failure> {
    let mut details = approval_details(store, row).await?;
    if let Some(event) = event_of_run(store, &row.run).await? {
        details["event"] = event;
    }
    if row.state == ApprovalState::Waiting
        && let Some(obstacle) = obstacle_of(store, library, row).await?
    {
        details["obstacle"] = obstacle.to_string().into();
    }
    Ok(details)
}

/// Returns the event of a request in one line.
pub(super) fn event_line(event: &Value) -> String {
    if let Some(asked) = event["asked"].as_str() {
        return format!("    asked: {}", shorten_event(asked));
    }
    let inputs = if event["mapped_inputs"].as_object().is_some_and(|inputs| !inputs.is_empty()) {
        &event["mapped_inputs"]
    } else {
        &event["payload"]
    };
    let invocation = event["invocation"].as_str().unwrap_or_default();
    let attempt = event["attempt"].as_u64().filter(|attempt| *attempt > 1);
    let attempt = attempt.map(|attempt| format!(", attempt {attempt}")).unwrap_or_default();
    format!("    for {invocation}{attempt}: {}", shorten_event(&inputs.to_string()))
}

fn shorten_event(text: &str) -> String {
    let more = if text.chars().count() > LONGEST_EVENT { " … (`approvals show` prints all)" } else { "" };
    text.chars().take(LONGEST_EVENT).collect::<String>() + more
}

fn say_approval(row: &ApprovalRow, event: Option<&Value>) {
    let request: ApprovalRequest = serde_json::from_str(&row.body).unwrap_or_default();
    let expires = match (request.expires, row.expires) {
        (Some(at), _) if request.is_overdue(clock::now()) => {
            format!("  overdue since {}", clock::format_time(at))
        }
        (_, Some(at)) => format!("  expires {}", clock::format_time(at)),
        _ => String::new(),
    };
    let requester = request.requester.as_ref().map(|requester| format!("  {requester}")).unwrap_or_default();
    say(&flat_text(&format!(
        "{}  {}  {}{requester}{expires}",
        row.id,
        clock::format_time(row.requested),
        row.agent
    )));
    if let Some(event) = event {
        say(&flat_text(&event_line(event)));
        let again = &event["tried_again"];
        for (name, words) in [("before", "ended before"), ("comment", "tried again by a person, who says")] {
            if let Some(text) = again[name].as_str() {
                say(&flat_text(&format!("    {words}: {}", shorten_event(text))));
            }
        }
        let warnings = event["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str);
        warnings.for_each(|warning| say(&flat_text(&format!("    warning: {warning}"))));
        for unknown in event["unknown_outcomes"].as_array().into_iter().flatten() {
            let operation = unknown["operation"].as_str().unwrap_or_default();
            say(&flat_text(&format!(
                "    not known whether it took effect, and not done again: {operation} {}",
                shorten_event(&unknown["inputs"].to_string())
            )));
        }
    }
    for call in &request.calls {
        let effect = request.effects.get(&call.id);
        let bound = effect.map(|effect| format!(" ({})", effect.tool)).unwrap_or_default();
        let lines = call_lines(&format!("{}{bound}", call.name), &call.arguments);
        lines.iter().for_each(|line| say(&flat_text(line)));
        let change = effect.and_then(|effect| effect.change.as_deref()).unwrap_or_default();
        change.lines().for_each(|line| say(&flat_text(&format!("      {line}"))));
    }
    if !request.reason.is_empty() {
        say(&flat_text(&format!("    the model's reason: {}", request.reason)));
    }
}

/// Returns a call with its inputs.
pub(super) fn call_lines(name: &str, arguments: &str) -> Vec<String> {
    let inputs = readable_inputs(arguments);
    if inputs == arguments {
        return vec![format!("    {name} {arguments}")];
    }
    let inputs = inputs.split('\n').map(|line| format!("      {}", make_visible(line)));
    std::iter::once(format!("    {name}")).chain(inputs).collect()
}

async fn show_approval(store: &Store, library: Option<&Library>, id: &str) -> Result<(), Failure> {
    let shown = full_details(store, library, &find_approval(store, id).await?).await?;
    say(&format!("{shown:#}"));
    Ok(())
}

async fn find_approval(store: &Store, id: &str) -> Result<ApprovalRow, Failure> {
    let row = store.approval(id).await?;
    row.ok_or_else(|| {
        format!("there is no approval {id}; `respool expert approvals list` shows those that wait").into()
    })
}

async fn choose_approvals(
    store: &Store,
    ids: Vec<String>,
    expert: Option<String>,
) -> Result<Vec<(ApprovalRow, ApprovalRequest)>, Failure> {
    let mut rows = Vec::new();
    for id in ids {
        rows.push(find_approval(store, &id).await?);
    }
    if let Some(name) = expert {
        rows.extend(waiting_approvals(store, Some(&name)).await?);
        if rows.is_empty() {
            return Err(format!("no call of {name} waits for approval").into());
        }
    }
    let read = |row: ApprovalRow| {
        let request = serde_json::from_str(&row.body);
        let request = request.map_err(|_| format!("the approval {} was written by another version", row.id));
        Ok((row, request?))
    };
    rows.into_iter().map(read).collect()
}

/// Returns the inputs of the one call that is approved with other values, by its id.
fn changed_inputs(
    chosen: &[&ApprovalRequest],
    only: &[String],
    set: &[String],
) -> Result<BTreeMap<String, String>, Failure> {
    if set.is_empty() {
        return Ok(BTreeMap::new());
    }
    let calls = chosen.iter().flat_map(|request| &request.calls);
    let calls: Vec<_> = calls.filter(|call| only.is_empty() || only.contains(&call.id)).collect();
    let [call] = calls[..] else {
        return Err("--set is about one call: name it with --only CALL; `show` has the ids"
            .to_owned()
            .into());
    };
    let Value::Object(mut inputs) = call.parsed_arguments() else {
        return Err(format!("{} has no inputs that can be set", call.name).into());
    };
    for one in set {
        let (name, value) =
            one.split_once('=').ok_or_else(|| format!("write --set INPUT=VALUE, not {one:?}"))?;
        let names = inputs.keys().cloned().collect::<Vec<_>>().join(", ");
        let unknown = || format!("{} has no input {name:?}; it has {names}", call.name);
        let input = inputs.get_mut(name).ok_or_else(unknown)?;
        *input = match input {
            Value::String(_) => value.into(),
            _ => serde_json::from_str(value)
                .map_err(|_| format!("{name} is no text: write its value as JSON, not {value:?}"))?,
        };
    }
    Ok(BTreeMap::from([(call.id.clone(), Value::Object(inputs).to_string())]))
}

/// Decides about each request, also after one that can no longer be decided.
async fn decide_all(
    store: &Store,
    chosen: Vec<(ApprovalRow, ApprovalRequest)>,
    decision: impl Fn(&ApprovalRequest) -> Decision,
    how: &str,
) -> (Vec<String>, Vec<String>) {
    let (mut decided, mut problems) = (Vec::new(), Vec::new());
    for (row, request) in chosen {
        match decide_one(store, &row, &request, decision(&request), how).await {
            Ok(()) => decided.push(row.run),
            Err(failure) => problems.push(failure.to_string()),
        }
    }
    (decided, problems)
}

/// Returns true if a rejection ends the task that asks.
fn ends_task(request: &ApprovalRequest) -> bool {
    request.on_rejection == OnRejection::EndRun
}

/// Says that tasks have failed whose calls were not all approved.
async fn say_failed_tasks(store: &Store, runs: &[String]) -> Result<(), Failure> {
    for run in runs {
        if let Some(task) = store.entry_of_run(run).await? {
            say_on_stderr(&format!(
                "Its task ends as failed: `respool expert retry {} --comment TEXT` continues it, and repeats no call that was made.",
                task.id
            ));
        }
    }
    Ok(())
}

/// Ends the invocations that these runs work on. Returns why some did not end.
async fn drop_invocations(store: &Store, runs: &[String]) -> Vec<String> {
    let mut problems = Vec::new();
    for run in runs {
        match drop_rejected(store, run).await {
            Ok(true) => {}
            Ok(false) => {
                problems
                    .push(format!("the run {run} does not work on a task of an expert: nothing was dropped"));
            }
            Err(error) => problems.push(format!("the task of {run} was not dropped: {error}")),
        }
    }
    problems
}

async fn decide_one(
    store: &Store,
    row: &ApprovalRow,
    request: &ApprovalRequest,
    decision: Decision,
    how: &str,
) -> Result<(), Failure> {
    record_decision(store, &decision).await.map_err(|error| error.describe_for(&row.id))?;
    let (all, approved) = (request.calls.len(), decision.approved_calls().len());
    if approved == 0 || approved == all {
        say(&format!("{}  {how}", row.id));
    } else {
        say(&format!("{}  {approved} approved, {} rejected", row.id, all - approved));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_wrong_name_is_not_done() {
        let dir = tempfile::tempdir().unwrap();
        let config = store::StoreConfig { state_dir: dir.path().to_owned(), ..store::StoreConfig::default() };
        let store = Store::open(&config).unwrap();
        let said = choose_approvals(&store, Vec::new(), Some("nix".to_owned())).await.unwrap_err();
        assert_eq!(said.to_string(), "no call of nix waits for approval");
    }

    #[test]
    fn inputs_are_set_by_name() {
        let call = |id: &str| agent::RequestedCall {
            id: id.to_owned(),
            name: "mail__send".to_owned(),
            arguments: r#"{"body":"50 a day","days":2}"#.to_owned(),
            ..agent::RequestedCall::default()
        };
        let request = ApprovalRequest { calls: vec![call("c1"), call("c2")], ..ApprovalRequest::default() };
        let set = |only: &[&str], set: &[&str]| {
            let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
            changed_inputs(&[&request], &owned(only), &owned(set)).map_err(|failure| failure.to_string())
        };
        let changed = set(&["c2"], &["body=40 = a day", "days=3"]).unwrap();
        assert_eq!(changed["c2"], r#"{"body":"40 = a day","days":3}"#);
        assert!(set(&[], &[]).unwrap().is_empty());
        for (only, one, expected) in [
            (&[][..], "body=x", "--set is about one call"),
            (&["c1"], "body", "write --set INPUT=VALUE"),
            (&["c1"], "bdy=x", "mail__send has no input \"bdy\"; it has body, days"),
            (&["c1"], "days=three", "days is no text: write its value as JSON"),
        ] {
            let said = set(only, &[one]).unwrap_err();
            assert!(said.contains(expected), "{said}");
        }
    }

    #[test]
    fn texts_are_listed_line_by_line() {
        assert_eq!(call_lines("f", r#"{"a": 1}"#), ["    f {\"a\": 1}"]);
        let expected = ["    shelf__write", "      content:", "        | - Momo", "        | - \\u{202e}Lee"];
        assert_eq!(call_lines("shelf__write", r#"{"content": "- Momo\n- \u202eLee"}"#), expected);
    }
}
