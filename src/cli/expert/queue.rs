//! `respool expert queue, dead-letters, outbox, drafts`: lists waiting work, failed work and messages. It
//! works on the store directly, also while a server uses it.

use std::collections::{BTreeMap, BTreeSet};

use clap::Subcommand;
use serde_json::{Value, json};

use super::approvals::{call_lines, event_line};
use super::in_service::is_in_service;
use super::installed::{find_problem, note_unknown_expert};
use crate::cli::failure::{Failure, fail_with};
use crate::cli::listing::{ListArgs, Noun};
use crate::cli::runtime::new_runtime;
use crate::cli::say::{flat_text, say, say_on_stderr, say_piece};
use agent::CallOutcome;
use experts::{
    Invocation, MARKED_DONE, Retried, cancel_invocation, drop_task, event_of_run, message_json, open_tasks,
    read_message, read_outbox, retry_task,
};
use openexperts::visible;
use settings::Loaded;
use store::{ApprovalState, EntryRow, EntryState, MessageFilter, MessageRow, Store};
use wire::visible::one_line;

/// The most characters of a message in the list.
const LONGEST_GIST: usize = 600;
/// The most entries that are listed.
const MOST: usize = 1_000;

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum DeadLettersCommand {
    /// List invocations that failed for good, oldest first.
    #[command(after_help = "Example:\n  respool expert dead-letters list --since 7d")]
    List {
        /// List only those of this expert
        #[arg(long, value_name = "NAME")]
        expert: Option<String>,
        #[command(flatten)]
        arguments: ListArgs,
    },
    /// Print a dead letter with its payload and the reason for its failure, as JSON.
    #[command(after_help = "Example:\n  respool expert dead-letters show LETTER")]
    Show {
        /// The dead letter, as `list` shows it
        id: String,
    },
    /// Execute a dead letter again, at the end of its lane, without the operations that may have succeeded.
    #[command(after_help = "Example:\n  respool expert dead-letters retry LETTER")]
    #[command(alias = "replay")]
    Retry {
        /// The dead letter, as `list` shows it
        id: String,
    },
    /// Remove a dead letter.
    #[command(
        name = "remove",
        alias = "drop",
        alias = "rm",
        after_help = "Example:\n  respool expert dead-letters remove LETTER"
    )]
    Remove {
        /// The dead letter, as `list` shows it
        id: String,
    },
}

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum OutboxCommand {
    /// List messages, newest first.
    #[command(after_help = "Example:\n  respool expert outbox list --kind escalation --since 24h")]
    List {
        /// List only those of this expert
        #[arg(long, value_name = "NAME")]
        expert: Option<String>,
        /// List only those of this kind
        #[arg(long, value_parser = ["result", "draft", "approval", "escalation", "task", "warning"])]
        kind: Option<String>,
        #[command(flatten)]
        arguments: ListArgs,
    },
    /// Print one message, as JSON.
    #[command(after_help = "Example:\n  respool expert outbox show MESSAGE")]
    Show {
        /// The message, as `list` shows it
        id: String,
    },
    /// Try to deliver a message now, instead of at its next time.
    #[command(after_help = "Example:\n  respool expert outbox retry MESSAGE")]
    Retry {
        /// The message, as `list` shows it
        id: String,
    },
    /// Mark a message as no longer needing delivery.
    #[command(after_help = "Example:\n  respool expert outbox done MESSAGE")]
    Done {
        /// The message, as `list` shows it
        id: String,
    },
}

fn with_store<T>(config: &Loaded, work: impl AsyncFnOnce(Store) -> Result<T, Failure>) -> Result<T, Failure> {
    new_runtime()?.block_on(async { work(Store::open_in_place(&config.settings.store)?).await })
}

/// An invocation in the list.
struct Listed {
    row: EntryRow,
    /// The invocation that it waits for.
    behind: Option<String>,
    /// Why its expert does not begin it.
    not_ready: Option<String>,
    /// The request for approval that it waits for.
    approval: Option<String>,
    /// When its message was delivered.
    delivered: Option<u64>,
}

impl Listed {
    fn json(&self) -> Value {
        let mut entry = entry_json(&self.row);
        entry["behind"] = self.behind.clone().into();
        entry["not_ready"] = self.not_ready.clone().into();
        entry["approval"] = self.approval.clone().into();
        entry["delivered"] = self.delivered.map(clock::format_time).into();
        entry["retry"] = is_replayable(&self.row).then(|| retry_command(&self.row.id)).into();
        entry
    }

    /// Returns the invocation, and below it why it waits and the commands to enter.
    fn lines(&self) -> Vec<String> {
        let Self { row, behind, not_ready, approval, delivered } = self;
        let mut lines = vec![entry_line(row)];
        let mut add = |text: String| lines.push(format!("    {text}"));
        row.note.iter().for_each(|note| add(visible(note)));
        behind.iter().for_each(|before| add(format!("behind {before}")));
        not_ready.iter().for_each(|why| add(format!("{} is not ready: {why}", row.queue)));
        if let Some(id) = approval {
            add(format!("decide: respool expert approvals show {id}, then approve {id} or reject {id}"));
        }
        if let Some(delivered) = delivered {
            add(format!("delivered to OpenClaw at {}", clock::format_time(*delivered)));
        }
        if is_replayable(row) {
            add(format!("try it again: {}", retry_command(&row.id)));
            add(format!("drop it: respool expert cancel {}", row.id));
        }
        lines
    }
}

/// Lists the invocations that are at work, wait for a person, or wait for their turn, each with the one it
/// waits for. Those that failed or were escalated are among them until a person has looked after them.
pub(super) fn list_queue(config: &Loaded, expert: Option<&str>, arguments: &ListArgs) -> Result<(), Failure> {
    with_store(config, async |store| {
        let mut rows = store.entries(expert, EntryState::Claimed, MOST).await?;
        rows.extend(store.entries(expert, EntryState::Held, MOST).await?);
        let mut delivered = BTreeMap::new();
        for task in open_tasks(&store, expert, MOST).await? {
            delivered.extend(task.delivery_time().map(|at| (task.row.id.clone(), at)));
            rows.push(task.row);
        }
        rows.extend(store.entries(expert, EntryState::Waiting, MOST).await?);
        let waiting = rows.iter().filter(|row| row.state == EntryState::Waiting);
        let experts: BTreeSet<&str> = waiting.map(|row| row.queue.as_str()).collect();
        let problems: BTreeMap<String, String> = experts
            .into_iter()
            .filter_map(|name| Some((name.to_owned(), find_problem(config, name)?)))
            .collect();
        let asked = store.approvals(ApprovalState::Waiting, MOST).await?;
        let mut listed = Vec::new();
        for row in rows {
            let is_waiting = row.state == EntryState::Waiting;
            let before = if row.is_blocked { store.entry_before(&row.id).await? } else { None };
            let asks = asked.iter().find(|asked| row.run.as_ref() == Some(&asked.run));
            listed.push(Listed {
                behind: before.filter(|_| is_waiting).map(|before| before.id),
                not_ready: problems.get(&row.queue).filter(|_| is_waiting).cloned(),
                approval: asks.map(|asked| asked.id.clone()),
                delivered: delivered.get(&row.id).copied(),
                row,
            });
        }
        if listed.is_empty() {
            note_unknown_expert(config, expert);
        } else if !is_in_service(config) && config.settings.store.store.url.is_none() {
            say_on_stderr("note: no `respool serve` runs, which executes what is queued");
        }
        arguments.print_blocks(listed, INVOCATIONS, |one| one.row.accepted, Listed::json, Listed::lines);
        Ok(())
    })
}

/// Returns true for an invocation that failed or was escalated.
fn is_replayable(row: &EntryRow) -> bool {
    EntryState::REPLAYABLE.contains(&row.state)
}

/// Returns the command that has an invocation tried again that failed or was escalated.
fn retry_command(id: &str) -> String {
    format!("respool expert retry {id}")
}

/// Queues an invocation again that failed or was escalated, and says what is not done again.
pub(super) fn retry_invocation(config: &Loaded, id: &str, comment: Option<&str>) -> Result<(), Failure> {
    with_store(config, async |store| {
        let Retried { id: new, settled } =
            retry_task(&store, id, comment).await.map_err(|error| error.to_string())?;
        say(&format!("{id} is queued again as {new}"));
        match settled {
            Ok(settled) => say_piece(&describe_settled(&settled)),
            Err(error) => say_on_stderr(&format!("warning: {error}")),
        }
        say_on_stderr("A running `respool serve` executes what is queued.");
        Ok(())
    })
}

const INVOCATIONS: Noun = Noun("invocation", "invocations");

/// Returns an entry of the queue as JSON, with times as RFC 3339 writes them.
fn entry_json(row: &EntryRow) -> Value {
    let process = Invocation::read(&row.payload).map(|invocation| invocation.process).ok();
    json!({"id": row.id, "expert": row.queue, "process": process, "state": row.state.as_str(), "attempts": row.attempt,
        "run": row.run, "reason": row.note, "accepted": clock::format_time(row.accepted),
        "ended": row.ended.map(clock::format_time)})
}

/// Ends invocations, and their runs where they have one. One that failed or was escalated is dropped. Each is
/// tried, also after one that cannot be ended.
pub(super) fn cancel_invocations(config: &Loaded, ids: &[String]) -> Result<(), Failure> {
    with_store(config, async |store| {
        let mut problems = Vec::new();
        for id in ids {
            match end_invocation(&store, id).await {
                Ok(done) => say(&done),
                Err(problem) => problems.push(problem.to_string()),
            }
        }
        fail_with(&problems)
    })
}

async fn end_invocation(store: &Store, id: &str) -> Result<String, Failure> {
    let is_over = store.entry(id).await?.is_some_and(|row| is_replayable(&row));
    if is_over && drop_task(store, id).await? {
        return Ok(format!("{id} is dropped: it needs you no longer"));
    }
    let is_ended = cancel_invocation(store, id).await?;
    Ok(format!("{id} {}", if is_ended { "is cancelled" } else { "is being cancelled" }))
}

fn entry_line(row: &EntryRow) -> String {
    let process = Invocation::read(&row.payload).map(|invocation| invocation.process).unwrap_or_default();
    format!(
        "{}  {}  {:<11}  attempt {}  {} {}",
        row.id,
        clock::format_time(row.accepted),
        row.state.as_str(),
        row.attempt,
        row.queue,
        visible(&process)
    )
}

pub(super) fn dead_letters(config: &Loaded, command: DeadLettersCommand) -> Result<(), Failure> {
    if let DeadLettersCommand::Retry { id } = &command {
        return retry_invocation(config, id, None);
    }
    with_store(config, async |store| match command {
        DeadLettersCommand::Retry { .. } => Ok(()),
        DeadLettersCommand::List { expert, arguments } => {
            let rows = store.entries(expert.as_deref(), EntryState::DeadLetter, MOST).await?;
            let noun = Noun("dead letter", "dead letters");
            let lines = |row: &EntryRow| {
                let note = row.note.iter().map(|note| format!("    {}", visible(note)));
                std::iter::once(entry_line(row)).chain(note).collect()
            };
            arguments.print_blocks(rows, noun, |row| row.accepted, entry_json, lines);
            Ok(())
        }
        DeadLettersCommand::Show { id } => {
            let row = store.entry(&id).await?;
            let row = row.filter(|row| row.state == EntryState::DeadLetter).ok_or_else(|| no_letter(&id))?;
            let mut invocation: Value = serde_json::from_str(&row.payload).unwrap_or_default();
            if let Some(asked) = invocation["asked"].as_u64() {
                invocation["asked"] = clock::format_time(asked).into();
            }
            let mut shown = entry_json(&row);
            shown["invocation"] = invocation;
            say(&format!("{shown:#}"));
            Ok(())
        }
        DeadLettersCommand::Remove { id } => {
            let is_letter = store.entry(&id).await?.is_some_and(|row| row.state == EntryState::DeadLetter);
            if !is_letter || !drop_task(&store, &id).await? {
                return Err(no_letter(&id));
            }
            say(&format!("{id} is removed"));
            Ok(())
        }
    })
}

/// The most characters of a call that is named.
const LONGEST_CALL: usize = 200;

/// Names the calls that a replay does not make again.
fn describe_settled(settled: &[(String, CallOutcome)]) -> String {
    let line = |(operation, outcome): &(String, CallOutcome)| {
        let why = match outcome {
            CallOutcome::Ok => "it succeeded before",
            CallOutcome::HandedOver => "its draft was handed over before",
            _ => "it is not known whether it took effect: look whether it did",
        };
        format!("  not made again: {}: {why}\n", one_line(operation, LONGEST_CALL))
    };
    let mut lines: String = settled.iter().map(line).collect();
    if !settled.is_empty() {
        lines.push_str("  To make one again with the same inputs, fire the trigger again.\n");
    }
    lines
}

fn no_letter(id: &str) -> Failure {
    format!("there is no dead letter {id:?}; `respool expert dead-letters list` shows all of them").into()
}

pub(super) fn run_outbox(config: &Loaded, command: OutboxCommand) -> Result<(), Failure> {
    let no_message =
        |id: &str| format!("there is no message {id:?}; `respool expert outbox list` shows all of them");
    with_store(config, async |store| match command {
        OutboxCommand::List { expert, kind, arguments } => {
            let filter = MessageFilter { expert, kind, ..MessageFilter::default() };
            list_messages(config, &store, filter, &arguments).await
        }
        OutboxCommand::Show { id } => {
            let of_invocation = MessageFilter { entry: Some(id.clone()), ..MessageFilter::default() };
            let rows = match read_message(&store, &id).await? {
                Some(row) => vec![row],
                None => read_outbox(&store, of_invocation, MOST).await?,
            };
            if rows.is_empty() {
                return Err(no_message(&id).into());
            }
            rows.iter().for_each(|row| say(&format!("{:#}", message_json(row))));
            Ok(())
        }
        OutboxCommand::Retry { id } => {
            let row = read_message(&store, &id).await?.ok_or_else(|| no_message(&id))?;
            if config.settings.tools.gateway.url.is_none() {
                let why =
                    "nothing is delivered without `url` in [tools.gateway]: messages stay in the outbox";
                return Err(why.to_owned().into());
            }
            if !store.deliver_now(&id).await? {
                return Err(format!("{id} needs no delivery: {}", delivery_state(&row)).into());
            }
            say(&format!("{id} is due now: a running `respool serve` delivers it"));
            Ok(())
        }
        OutboxCommand::Done { id } => {
            if store.end_message(&id, clock::now(), Some(MARKED_DONE)).await? {
                say(&format!("{id} is done"));
                return Ok(());
            }
            let row = read_message(&store, &id).await?.ok_or_else(|| no_message(&id))?;
            let since =
                row.delivered.map(|at| format!(" since {}", clock::format_time(at))).unwrap_or_default();
            say(&format!("{id} was already delivered or done{since}"));
            Ok(())
        }
    })
}

/// Returns the drafts that were handed over.
pub(super) fn list_drafts(
    config: &Loaded,
    expert: Option<&str>,
    arguments: &ListArgs,
) -> Result<(), Failure> {
    let (expert, kind) = (expert.map(str::to_owned), Some("draft".to_owned()));
    let filter = MessageFilter { expert, kind, ..MessageFilter::default() };
    with_store(config, async |store| {
        let mut drafts = Vec::new();
        for row in read_listed(config, &store, filter).await? {
            let event = event_of_run(&store, row.message.body["run"].as_str().unwrap_or_default()).await?;
            drafts.push((row, event));
        }
        let lines = |(row, event): &(MessageRow, Option<Value>)| draft_lines(row, event.as_ref());
        let noun = Noun("draft", "drafts");
        arguments.print_blocks(drafts, noun, |(row, _)| row.created, |(row, _)| message_json(row), lines);
        Ok(())
    })
}

/// Returns a draft with the event that it answers, and what to do with it.
fn draft_lines(row: &MessageRow, event: Option<&Value>) -> Vec<String> {
    let body = message_json(row)["body"].take();
    let operation = body["operation"].as_str().unwrap_or_default();
    let mut lines = vec![message_line(row)];
    lines.extend(event.map(|event| flat_text(&event_line(event))));
    lines.extend(call_lines(operation, &body["inputs"].to_string()));
    if row.delivered.is_none() {
        let id = &row.message.id;
        lines.push(format!("    it is yours to send; then: respool expert outbox done {id}"));
    }
    lines
}

async fn list_messages(
    config: &Loaded,
    store: &Store,
    filter: MessageFilter,
    arguments: &ListArgs,
) -> Result<(), Failure> {
    let rows = read_listed(config, store, filter).await?;
    let noun = Noun("message", "messages");
    arguments.print_blocks(rows, noun, |row| row.created, message_json, message_lines);
    Ok(())
}

async fn read_listed(
    config: &Loaded,
    store: &Store,
    filter: MessageFilter,
) -> Result<Vec<MessageRow>, Failure> {
    let expert = filter.expert.clone();
    let mut rows = read_outbox(store, filter, MOST).await?;
    if rows.is_empty() {
        note_unknown_expert(config, expert.as_deref());
    }
    // Where nothing is delivered, the problem of an earlier delivery is of no interest.
    if config.settings.tools.gateway.url.is_none() {
        rows.iter_mut().filter(|row| row.delivered.is_none()).for_each(|row| row.note = None);
    }
    Ok(rows)
}

/// Lists the operations of which a message says that their outcome is unknown.
fn unknown_operations(row: &MessageRow) -> Vec<String> {
    let message = message_json(row);
    let unknown = message["body"]["unknown_outcomes"].as_array().into_iter().flatten();
    unknown.filter_map(|one| one["operation"].as_str().map(visible)).collect()
}

/// Returns a message, and below it what it says, unless that may quote private knowledge.
fn message_lines(row: &MessageRow) -> Vec<String> {
    let body = message_json(row)["body"].take();
    let gist = ["reason", "summary"].iter().find_map(|key| body[*key].as_str()).map(str::to_owned);
    let draft = body["operation"].as_str().map(|operation| format!("{operation} {}", body["inputs"]));
    let call = |call: &Value| format!("{} {}", call["tool"].as_str().unwrap_or_default(), call["arguments"]);
    let gist = match body["calls"].as_array() {
        Some(calls) => {
            let calls: Vec<String> = calls.iter().map(call).collect();
            Some(format!("{}; the model's reason: {}", calls.join(", "), gist.unwrap_or_default()))
        }
        None => gist.or(draft),
    };
    let gist = gist.filter(|gist| !gist.is_empty() && body["is_private"] != true);
    let gist = gist.map(|gist| format!("    {}", shorten(&visible(&flat_text(&gist)), LONGEST_GIST)));
    let problems = body["problems"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let problems = problems.map(|problem| format!("    warning: {}", visible(&flat_text(problem))));
    let failed = body["failed_calls"].as_array().into_iter().flatten().filter(|_| body["is_private"] != true);
    let failed = failed.map(|call| {
        let (operation, error) = (call["operation"].as_str(), call["error"].as_str());
        let text = format!("{} failed: {}", operation.unwrap_or_default(), error.unwrap_or_default());
        format!("    warning: {}", shorten(&visible(&flat_text(&text)), LONGEST_GIST))
    });
    std::iter::once(message_line(row)).chain(gist).chain(problems).chain(failed).collect()
}

fn shorten(text: &str, most: usize) -> String {
    let end = text.char_indices().nth(most);
    end.map_or_else(|| text.to_owned(), |(end, _)| format!("{} …", &text[..end]))
}

/// Says whether a message is delivered, and when its delivery is tried again.
fn delivery_state(row: &MessageRow) -> String {
    match (row.delivered, &row.note) {
        (Some(_), Some(note)) => visible(note),
        (Some(_), None) if row.attempts == 0 => "kept, not delivered".to_owned(),
        (Some(_), None) => "delivered".to_owned(),
        (None, Some(why)) => {
            format!("not delivered yet: {}; tried again at {}", visible(why), clock::format_time(row.due))
        }
        (None, None) => "waits".to_owned(),
    }
}

fn message_line(row: &MessageRow) -> String {
    let state = delivery_state(row);
    let (id, kind, expert) = (&row.message.id, &row.message.kind, &row.message.expert);
    let unknown = unknown_operations(row);
    let unknown = if unknown.is_empty() {
        String::new()
    } else {
        format!("  unknown whether it took effect: {}", unknown.join(", "))
    };
    format!("{id}  {}  {kind:<10}  {expert}  {state}{unknown}", clock::format_time(row.created))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use store::{ClaimRequest, EntryEnd, NewEntry, NewMessage, StoreConfig};

    #[test]
    fn a_listed_message_says_what_it_is_about() {
        let check = |kind: &str, body: Value, expected: &[&str]| {
            let (id, expert, kind) = ("i1:m".to_owned(), "desk".to_owned(), kind.to_owned());
            let body = json!({kind.as_str(): body});
            let message = NewMessage { id, expert, entry: None, kind, body };
            let row = MessageRow { message, ..MessageRow::default() };
            assert_eq!(message_lines(&row)[1..], *expected);
        };
        check("result", json!({"summary": "It is\nlent."}), &["    It is lent."]);
        let incomplete = json!({"summary": "Done.", "problems": ["status is maybe"]});
        check("result", incomplete, &["    Done.", "    warning: status is maybe"]);
        check("escalation", json!({"reason": "no shelf", "is_private": false}), &["    no shelf"]);
        check("escalation", json!({"reason": "its margin", "is_private": true}), &[]);
        let draft = json!({"operation": "shelf.write", "inputs": {"path": "a"}});
        check("draft", draft, &[r#"    shelf.write {"path":"a"}"#]);
        let calls = json!([{"tool": "shelf__write", "arguments": {"path": "a"}}]);
        let asked = r#"    shelf__write {"path":"a"}; the model's reason: none written"#;
        check("approval", json!({"calls": calls, "reason": "none written"}), &[asked]);
        check("task", json!({}), &[]);
        let long = format!("    {} …", "x".repeat(LONGEST_GIST));
        check("result", json!({"summary": "x".repeat(LONGEST_GIST + 1)}), &[&long]);
    }

    #[test]
    fn a_draft_says_what_it_answers() {
        let inputs = json!({"to": "kim", "body": "Dear Kim,\nyes."});
        let body = json!({"draft": {"operation": "mail.draft", "inputs": inputs}});
        let message =
            NewMessage { id: "i1:draft-1".into(), kind: "draft".into(), body, ..NewMessage::default() };
        let mut row = MessageRow { message, ..MessageRow::default() };
        let event = json!({"invocation": "i1", "mapped_inputs": {"subject": "A van?"}});
        let expected = [
            r#"    for i1: {"subject":"A van?"}"#,
            "    mail.draft",
            "      to: \"kim\"",
            "      body:",
            "        | Dear Kim,",
            "        | yes.",
            "    it is yours to send; then: respool expert outbox done i1:draft-1",
        ];
        assert_eq!(draft_lines(&row, Some(&event))[1..], expected);
        row.delivered = Some(1);
        assert_eq!(draft_lines(&row, Some(&event))[1..], expected[..6]);
    }

    #[test]
    fn a_replay_names_the_calls_that_it_leaves_out() {
        assert_eq!(describe_settled(&[]), "");
        let text = describe_settled(&[
            ("crm.create_note {}".into(), CallOutcome::Unknown),
            (r#"crm.tag {"id":"m1"}"#.into(), CallOutcome::Ok),
        ]);
        assert!(text.contains("not made again: crm.create_note {}: it is not known whether it took effect"));
        assert!(text.contains(r#"not made again: crm.tag {"id":"m1"}: it succeeded before"#), "{text}");
        assert!(text.ends_with("fire the trigger again.\n"), "{text}");
    }

    #[test]
    fn messages_name_unknown_outcomes() {
        let body = json!({"result": {"unknown_outcomes": [{"operation": "crm.create_note"}]}});
        let message = NewMessage { kind: "result".into(), body, ..NewMessage::default() };
        let mut row = MessageRow { message, ..MessageRow::default() };
        assert!(message_line(&row).ends_with("unknown whether it took effect: crm.create_note"));
        let failed = json!([{"operation": "shelf.write", "error": "it is\na folder"}]);
        row.message.body = json!({"result": {"failed_calls": failed}});
        assert_eq!(message_lines(&row)[1], "    warning: shelf.write failed: it is a folder");
        row.message.body = json!({"result": {}});
        assert!(message_line(&row).ends_with("  waits"));
        (row.note, row.due) = (Some("the gateway is down".into()), 1_795_223_698_000);
        assert!(message_line(&row).ends_with("down; tried again at 2026-11-21T01:14:58Z"));
    }

    /// No command dropped a task that failed, and `queue` went on listing it.
    #[tokio::test]
    async fn failed_tasks_are_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let config = StoreConfig { state_dir: dir.path().to_owned(), ..StoreConfig::default() };
        let store = Store::open(&config).unwrap();
        for (id, end) in
            [("fails", EntryEnd::Failed), ("delivered", EntryEnd::Failed), ("dies", EntryEnd::DeadLetter)]
        {
            let (id_of_entry, queue, payload) = (id.into(), "desk".to_owned(), "{}".into());
            let entry = NewEntry { id: id_of_entry, queue: queue.clone(), payload, ..NewEntry::default() };
            store.enqueue(entry).await.unwrap();
            let lease = Duration::from_mins(1);
            let request = ClaimRequest { queues: vec![queue], most: 1, lease, ..ClaimRequest::default() };
            let claimed = store.claim_entries(request).await.unwrap().remove(0);
            assert!(store.complete(&claimed.lease, end, "no such deal".into()).await.unwrap());
            if id == "delivered" {
                // Regression: a task vanished as soon as its message was delivered to a model's session.
                let message = NewMessage { id: "delivered:failed".into(), ..NewMessage::default() };
                store.post(message, clock::now()).await.unwrap();
                store.claim_messages(lease, 1).await.unwrap();
                store.message_delivered("delivered:failed", clock::now()).await.unwrap();
            }
            let open = open_tasks(&store, None, 10).await.unwrap();
            assert_eq!((open.len(), open[0].delivery_time().is_some()), (1, id == "delivered"), "{id}");
            let dropped = format!("{id} is dropped: it needs you no longer");
            assert_eq!(end_invocation(&store, id).await.unwrap(), dropped);
            assert!(open_tasks(&store, None, 10).await.unwrap().is_empty(), "{id}");
            assert!(end_invocation(&store, id).await.is_err(), "{id}");
        }
    }
}
