//! `respool expert update`: shows the changes of an update, asks for consent to what it loosens, and applies
//! it.

use super::installed::state_files;
use super::package::fetch_package;
use crate::cli::confirm::confirm;
use crate::cli::failure::Failure;
use crate::cli::runtime::new_runtime;
use crate::cli::say::{say, say_on_stderr};
use experts::{Invocation, Library, Lock, Plan, Source};
use openexperts::{list_ended, visible};
use settings::Settings;
use store::{EntryState, Store};

/// The most waiting events that are counted.
const MOST: usize = 10_000;

/// The consent that the command line gives.
#[derive(Clone, Copy)]
pub(super) struct Consent {
    /// Versions that may break something, and the loss of changes made by hand.
    pub(super) force: bool,
    /// Everything that the update lets the expert do.
    pub(super) yes: bool,
}

pub(super) fn run_update(
    settings: &Settings,
    name: Option<&str>,
    source: Option<&str>,
    rollback: bool,
    consent: Consent,
) -> Result<(), Failure> {
    let library = Library::new(&settings.experts.dir);
    let lock = library.lock()?;
    let updater = Updater { settings, library: &library, consent, lock: &lock };
    match name {
        Some(name) if rollback => updater.apply_plan(&library.plan_rollback(name)?),
        Some(name) => updater.update_one(name, source),
        None => updater.update_all(),
    }
}

struct Updater<'a> {
    settings: &'a Settings,
    library: &'a Library,
    consent: Consent,
    lock: &'a Lock,
}

impl Updater<'_> {
    fn update_one(&self, name: &str, source: Option<&str>) -> Result<(), Failure> {
        let library = self.library;
        let recorded = library.get(name)?.record.map(|record| record.source);
        let Some(source) = source.map(str::to_owned).or(recorded) else {
            return Err(Failure::Failed(format!(
                "the source of {name} is unknown; name it: respool expert update {name} SOURCE"
            )));
        };
        let source = Source::parse(&source)?;
        let package = fetch_package(&source)?;
        self.apply_plan(&library.plan(name, package, &source)?)
    }

    /// Updates every expert whose source is known. If one cannot be updated, the others still are.
    fn update_all(&self) -> Result<(), Failure> {
        let library = self.library;
        let installed =
            library.list().map_err(|error| format!("{} cannot be read: {error}", library.dir().display()))?;
        let mut failed = Vec::new();
        for one in installed.iter().filter(|one| one.record.is_some()) {
            let named = one.loaded.package.as_ref().map(|package| package.manifest.name.value.clone());
            let name = named.unwrap_or_else(|| one.folder());
            if let Err(Failure::Failed(why)) = self.update_one(&name, None) {
                say_on_stderr(&format!("respool: {name}: {why}"));
                failed.push(name);
            }
        }
        if failed.is_empty() {
            Ok(())
        } else {
            Err(Failure::Failed(format!("not updated: {}", failed.join(", "))))
        }
    }

    fn apply_plan(&self, plan: &Plan) -> Result<(), Failure> {
        let name = &plan.name;
        let (old, new) = (visible(&plan.versions.0), visible(&plan.versions.1));
        if plan.changed.is_empty() && !plan.is_broken {
            say(&format!("{name} {old} is up to date."));
            // An installation that ended early may have left some out.
            return state_files(&self.settings.experts, None, &plan.package);
        }
        let is_renumbered = old != new;
        say(&format!(
            "{name} {old} → {new}{}",
            if is_renumbered { "" } else { " (the same number, other files)" }
        ));
        plan.changed.iter().for_each(|line| say(&format!("  {}", visible(line))));
        let by_hand: Vec<String> = plan.local_changes.iter().flatten().map(|line| visible(line)).collect();
        if !by_hand.is_empty() {
            say("Changed by hand, and lost with this update:");
            by_hand.iter().for_each(|line| say(&format!("  {line}")));
        }
        let cautions = plan.cautions();
        if !cautions.is_empty() && !self.consent.force {
            let why = cautions.join("; ");
            return Err(Failure::Failed(format!(
                "{name} was not updated: {why}. To update it anyway, add --force"
            )));
        }
        self.ask_consent(plan)?;
        self.library.apply(plan, self.lock)?;
        let kept = if is_renumbered { &old } else { "the files that it began with" };
        say(&format!("Updated {name} to {new}. Work in progress keeps {kept}."));
        state_files(&self.settings.experts, Some(&plan.old), &plan.package)?;
        super::registry::refresh_page(&self.settings.experts);
        Ok(())
    }

    /// Shows what the update lets the expert do, and what ends with it, and asks for consent.
    fn ask_consent(&self, plan: &Plan) -> Result<(), Failure> {
        let ended = self.describe_ended(plan);
        if plan.loosened.is_empty() && ended.is_empty() {
            return Ok(());
        }
        say("With this update:");
        plan.loosened.iter().chain(&ended).for_each(|line| say(&format!("  {}", visible(line))));
        let (question, why) = if plan.loosened.is_empty() {
            ("Update it all the same?", "ends what is listed here")
        } else {
            ("Allow the expert to do this?", "lets it do more")
        };
        if self.consent.yes || confirm(question) {
            return Ok(());
        }
        Err(Failure::Failed(format!(
            "{} was not updated: the update {why}, and you have not consented. To consent, add --yes",
            plan.name
        )))
    }

    /// Describes what the new version lacks, with what waits for it, one line each.
    fn describe_ended(&self, plan: &Plan) -> Vec<String> {
        let (triggers, processes) = list_ended(&plan.old, &plan.package);
        let waiting = if processes.is_empty() { Vec::new() } else { self.waiting_processes(&plan.name) };
        let triggers = triggers
            .into_iter()
            .map(|name| format!("the trigger {name} is gone: nothing starts by it any more"));
        let processes = processes.into_iter().map(|name| {
            match waiting.iter().filter(|waiting| *waiting == name).count() {
                0 => format!("the process {name} is gone"),
                count => format!(
                    "the process {name} is gone; events that wait for it and become dead letters: {count}"
                ),
            }
        });
        triggers.chain(processes).collect()
    }

    /// Returns the processes of the events that wait; none if they cannot be read.
    fn waiting_processes(&self, name: &str) -> Vec<String> {
        let read = || {
            let store = Store::open_in_place(&self.settings.store).ok()?;
            new_runtime().ok()?.block_on(store.entries(Some(name), EntryState::Waiting, MOST)).ok()
        };
        let rows = Store::is_present(&self.settings.store).then(read).flatten().unwrap_or_default();
        rows.iter().filter_map(|row| Some(Invocation::read(&row.payload).ok()?.process)).collect()
    }
}
