//! `respool expert remove`: shows an expert's open work and the folders to be deleted, asks, and removes the
//! expert.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use crate::cli::confirm::confirm;
use crate::cli::experts::hook_secrets;
use crate::cli::failure::Failure;
use crate::cli::runtime::new_runtime;
use crate::cli::say::{say, say_on_stderr};
use agent::RunSnapshot;
use experts::{Installed, Library, Stays, cancel_invocation};
use openexperts::is_agent_of;
use openexperts::name::{NameKind, check_name};
use settings::Settings;
use store::{ApprovalRow, ApprovalState, EntryState, GoneClocks, MessageFilter, Store, StoreError};

/// The most rows of each kind that are counted.
const MOST: usize = 10_000;

/// The options of the removal.
#[derive(Clone, Copy)]
pub(super) struct RemovalOptions {
    /// Its own data and its bindings are deleted as well.
    pub(super) purge: bool,
    /// The person has consented already.
    pub(super) yes: bool,
}

pub(super) fn remove_expert(settings: &Settings, name: &str, options: RemovalOptions) -> Result<(), Failure> {
    let experts = &settings.experts;
    let library = Library::new(&experts.dir);
    let lock = library.lock()?;
    let installed = match library.get(name) {
        Err(error) if options.purge && check_name(name, NameKind::Package).is_ok() => {
            let has_left = purge_leftovers(settings, &library, name, options.yes)?;
            return if has_left { Ok(()) } else { Err(error.into()) };
        }
        found => found?,
    };
    let name = installed.owner();
    let (mut open, in_use) = open_work(settings, &name, options.purge);
    open.extend(installed.successor(&library).map(|folder| {
        format!("The folder {folder} holds an expert of the same name. It is used from then on, with the data and the open work of {name}.")
    }));
    open.iter().for_each(|line| say(line));
    let purged = if options.purge { purged_paths(settings, &library, &installed, &name) } else { Vec::new() };
    if options.purge {
        let deleted = [std::slice::from_ref(&installed.directory), &purged].concat();
        say("Removing it with --purge deletes:");
        deleted.iter().for_each(|path| say(&format!("  {}", path.display())));
    }
    ask_consent(&name, options.yes)?;
    let stays = match &in_use {
        _ if options.purge => Stays::Nothing,
        Some(versions) => Stays::BindingsAnd(versions),
        None => Stays::BindingsAndVersions,
    };
    let removal = library.remove(&installed, stays, &lock)?;
    super::registry::refresh_page(experts);
    if options.purge
        && let Err(error) = end_lost_work(settings, &name)
    {
        say_on_stderr(&format!("What waited for a person could not be cancelled: {error}"));
    }
    if let Err(error) = forget_clocks(settings, &name) {
        say_on_stderr(&format!(
            "If {name} is installed again within an hour, its cron triggers may make up for missed times: {error}"
        ));
    }
    let mut kept = String::new();
    if let Some(path) = removal.kept_bindings {
        kept = format!("{kept} Its bindings are kept in {}.", path.display());
    }
    let [state, secrets] = data_of(settings, &name);
    if options.purge {
        delete_state(&state, &name)?;
        delete_state(&secrets, &name)?;
        kept.push_str(" Its data, bindings and secrets were deleted.");
    } else {
        if state.exists() {
            kept = format!("{kept} Its data stays in {}.", state.display());
        }
        if secrets.exists() {
            kept = format!("{kept} The secrets of its hooks stay in {}.", secrets.display());
        }
    }
    say(&format!("Removed {name}: deleted {}.{kept}", removal.directory.display()));
    Ok(())
}

fn ask_consent(name: &str, yes: bool) -> Result<(), Failure> {
    if yes || confirm(&format!("Remove {name}?")) {
        return Ok(());
    }
    Err(Failure::Failed(format!(
        "{name} was not removed, because the removal was not confirmed. To confirm it, run the command again with --yes"
    )))
}

/// Deletes what an expert that was removed earlier has left. False if there is nothing.
fn purge_leftovers(settings: &Settings, library: &Library, name: &str, yes: bool) -> Result<bool, Failure> {
    let [state, secrets] = data_of(settings, name);
    let bindings = library.removed_bindings(name);
    let versions = library.versions_of(name);
    let own = [&state, &secrets, &versions].into_iter().filter(|path| path.exists());
    let left: Vec<_> = own.chain(&bindings).collect();
    if left.is_empty() {
        return Ok(false);
    }
    say(&format!("{name} is not installed any more. --purge deletes what it left:"));
    left.iter().for_each(|path| say(&format!("  {}", path.display())));
    ask_consent(name, yes)?;
    delete_state(&state, name)?;
    delete_state(&secrets, name)?;
    delete_state(&versions, name)?;
    if let Some(path) = &bindings {
        fs::remove_file(path).map_err(|error| format!("{} cannot be deleted: {error}", path.display()))?;
    }
    say(&format!("Deleted what {name} had left."));
    Ok(true)
}

/// Lists what `--purge` deletes besides the package.
fn purged_paths(settings: &Settings, library: &Library, installed: &Installed, name: &str) -> Vec<PathBuf> {
    let data = data_of(settings, name).into_iter().filter(|path| path.exists());
    data.chain(library.bindings_beside(installed)).collect()
}

/// Returns the folders of an expert's data and of its hooks' secrets, which may not exist.
fn data_of(settings: &Settings, name: &str) -> [PathBuf; 2] {
    let secrets = hook_secrets(settings);
    [settings.experts.state_of(name), secrets.folder_of(name)]
}

fn delete_state(state: &std::path::Path, name: &str) -> Result<(), Failure> {
    match fs::remove_dir_all(state) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(Failure::Failed(format!("{name} is removed, but {} is not: {error}", state.display())))
        }
        _ => Ok(()),
    }
}

/// Describes an expert's open work: a line for each kind, with its fate, and none if there is no such work.
/// The versions of packages that open work began with come second, if they are known.
fn open_work(settings: &Settings, name: &str, purge: bool) -> (Vec<String>, Option<BTreeSet<String>>) {
    if !Store::is_present(&settings.store) {
        return (Vec::new(), Some(BTreeSet::new()));
    }
    let has_gateway = settings.tools.gateway.url.is_some();
    let count = || -> Result<(OpenWork, BTreeSet<String>), Failure> {
        let store = Store::open_in_place(&settings.store)?;
        new_runtime()?.block_on(async {
            let open = OpenWork::count_work(&store, name, has_gateway).await?;
            Ok((open, versions_in_use(&store).await?))
        })
    };
    match count() {
        Ok((open, versions)) => (open.describe_work(name, purge), Some(versions)),
        Err(error) => (vec![format!("respool could not check for open work of {name}: {error}")], None),
    }
}

/// Returns the digests of the packages that open work of all experts began with.
async fn versions_in_use(store: &Store) -> Result<BTreeSet<String>, StoreError> {
    let snapshots = store.snapshots_in_use().await?;
    Ok(snapshots.into_iter().map(|stored| RunSnapshot::from(stored).digest).collect())
}

/// How much of each kind of work is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct OpenWork {
    waiting: usize,
    in_progress: usize,
    held: usize,
    approvals: usize,
    dead_letters: usize,
    undelivered: usize,
}

impl OpenWork {
    /// Counts the open work. `has_gateway`: messages are delivered, and not only kept.
    async fn count_work(store: &Store, name: &str, has_gateway: bool) -> Result<Self, StoreError> {
        let entries = async |state| store.entries(Some(name), state, MOST).await.map(|rows| rows.len());
        let is_own = |row: &&ApprovalRow| is_agent_of(&row.agent, name);
        let filter = MessageFilter { expert: Some(name.to_owned()), ..MessageFilter::default() };
        let messages = store.messages(filter, MOST).await?;
        Ok(Self {
            waiting: entries(EntryState::Waiting).await?,
            in_progress: entries(EntryState::Claimed).await?,
            held: entries(EntryState::Held).await?,
            approvals: store.approvals(ApprovalState::Waiting, MOST).await?.iter().filter(is_own).count(),
            dead_letters: entries(EntryState::DeadLetter).await?,
            undelivered: messages.iter().filter(|row| row.delivered.is_none() && has_gateway).count(),
        })
    }

    fn describe_work(&self, name: &str, purge: bool) -> Vec<String> {
        let again = format!("until {name} is installed again");
        let (held, approvals) = if purge {
            (
                "They are cancelled, because --purge deletes the versions with which they began.".into(),
                "They are withdrawn: their calls cannot be made any more, because --purge deletes the versions with which they began.".into(),
            )
        } else {
            let continued = format!(
                "when {name} is installed again, with the versions with which they began: these are kept"
            );
            (
                format!("They continue {continued}."),
                format!("They can still be decided; approved calls are made {continued}."),
            )
        };
        let kinds = [
            (
                self.waiting,
                "in the queue",
                format!("They stay queued {again}; `respool expert cancel ID` cancels one."),
            ),
            (
                self.in_progress,
                "in progress",
                format!("`respool serve` finishes them; an interrupted one stays queued {again}."),
            ),
            (self.held, "waiting for a person", held),
            (self.approvals, "open approvals", approvals),
            (
                self.dead_letters,
                "dead letters",
                format!("They are kept; a replayed one stays queued {again}."),
            ),
            (
                self.undelivered,
                "undelivered messages",
                "They stay in the outbox and are still delivered.".to_owned(),
            ),
        ];
        let open = kinds.into_iter().filter(|(count, ..)| *count > 0);
        open.map(|(count, kind, what_follows)| format!("{name}, {kind}: {count}. {what_follows}")).collect()
    }
}

/// Cancels what waits for a person, with its requests: the version that it needs is deleted.
fn end_lost_work(settings: &Settings, name: &str) -> Result<(), Failure> {
    if !Store::is_present(&settings.store) {
        return Ok(());
    }
    let store = Store::open_in_place(&settings.store)?;
    new_runtime()?.block_on(async {
        for row in store.entries(Some(name), EntryState::Held, MOST).await? {
            cancel_invocation(&store, &row.id).await?;
        }
        // Conversations have no entry. What was cancelled above waits no longer.
        for row in store.approvals(ApprovalState::Waiting, MOST).await? {
            if is_agent_of(&row.agent, name) {
                let mut run = row.run;
                while let Some(parent) = store.run(&run).await?.and_then(|stored| stored.row.parent) {
                    run = parent;
                }
                store.request_cancel(&run, clock::now()).await?;
            }
        }
        Ok(())
    })
}

/// Returns an expert that is installed again later has missed nothing in between.
fn forget_clocks(settings: &Settings, name: &str) -> Result<(), Failure> {
    let store = Store::open_in_place(&settings.store)?;
    let gone = GoneClocks::OfQueue(name.to_owned());
    Ok(new_runtime()?.block_on(store.forget_clocks(gone))?)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use store::{
        Append, ApprovalChange, ClaimRequest, EntryEnd, NewEntry, NewMessage, NewRun, Status, StoreConfig,
    };

    /// Queues an entry and claims it.
    async fn claimed(store: &Store, queue: &str, id: &str) -> store::EntryLease {
        let entry =
            NewEntry { id: id.into(), queue: queue.into(), payload: "{}".into(), ..NewEntry::default() };
        store.enqueue(entry).await.unwrap();
        let queues = vec![queue.to_owned()];
        let request =
            ClaimRequest { queues, most: 1, lease: Duration::from_mins(1), ..ClaimRequest::default() };
        store.claim_entries(request).await.unwrap().remove(0).lease
    }

    /// A run that waits for a person's consent.
    async fn asking(store: &Store, agent: &str) {
        let run = format!("run of {agent}");
        let new = NewRun { id: run.clone(), agent: agent.into(), ..NewRun::default() };
        store.begin(new).await.unwrap();
        let requested = ApprovalChange::Requested { id: agent.into(), expires: None, body: "{}".into() };
        let status = Append::status(&run, Store::FIRST_EPOCH, 9, Status::AwaitingApproval);
        let append = Append { approval: Some(requested), ..status };
        assert!(!store.append(append).await.unwrap().lost);
    }

    #[tokio::test]
    async fn open_work_is_counted_for_one_expert_only() {
        let dir = tempfile::tempdir().unwrap();
        let config = StoreConfig { state_dir: dir.path().to_owned(), ..StoreConfig::default() };
        let store = Store::open(&config).unwrap();
        let open = OpenWork::count_work(&store, "desk", true).await.unwrap();
        assert_eq!(open.describe_work("desk", false), Vec::<String>::new());
        for (index, queue) in ["desk", "desk2"].into_iter().enumerate() {
            let lease = claimed(&store, queue, &format!("held {index}")).await;
            assert!(store.hold(&lease, "a person is asked".into()).await.unwrap());
            let lease = claimed(&store, queue, &format!("dead {index}")).await;
            assert!(store.complete(&lease, EntryEnd::DeadLetter, "it failed".into()).await.unwrap());
            claimed(&store, queue, &format!("claimed {index}")).await;
            let waiting =
                NewEntry { id: format!("waiting {index}"), queue: queue.into(), ..NewEntry::default() };
            store.enqueue(waiting).await.unwrap();
            let message = NewMessage {
                id: format!("m{index}"),
                expert: queue.into(),
                kind: "result".into(),
                ..NewMessage::default()
            };
            store.post(message, 5).await.unwrap();
        }
        for agent in ["expert/desk", "expert/desk/find", "expert/desk2", "desk"] {
            asking(&store, agent).await;
        }
        assert_eq!(
            OpenWork::count_work(&store, "desk", false).await.unwrap().undelivered,
            0,
            "the outbox is the delivery"
        );
        let open = OpenWork::count_work(&store, "desk", true).await.unwrap();
        let expected =
            OpenWork { waiting: 1, in_progress: 1, held: 1, approvals: 2, dead_letters: 1, undelivered: 1 };
        assert_eq!(open, expected);
        assert_eq!(open.describe_work("desk", false).len(), 6);
    }
}
