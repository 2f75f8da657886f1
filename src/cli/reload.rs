//! Reloads the configuration while the server runs: on SIGHUP and when the file changes. The file is
//! validated as a whole; if it is wrong, the old configuration stays in effect, which is logged, shown on the
//! page and alerted. `config` says what takes effect at once and what needs a restart. Requests and runs in
//! progress finish with what they began with. The key file has a separate watch (`server`).

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::signal::unix::Signal;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::agents::{ResolvedAgent, agents_with_models, model_accesses, resolve_agents};
use super::assembly::{body_budget, relay_limits, tools_of};
use super::upstreams::ServedUpstreams;
use super::usage;
use ::usage::LedgerSettings;
use agent::AgentConfig;
use alerts::Reloaded;
use relay::Relay;
use server::{App, AppParts, CurrentApp};
use settings::{Change, Flags, Loaded, Problems, Settings};
use tools::{Sources, StricterPolicy};
use wire::units::{UnusableSetting, zip_results};

/// How often the file is checked.
const EVERY: Duration = Duration::from_secs(1);

/// Applies a changed configuration.
pub(super) struct Reloading {
    pub(super) flags: Flags,
    /// The configuration at the start of the process.
    pub(super) start: Loaded,
    /// The file as it was then, so that no change is missed that happens before the watch begins.
    pub(super) seen: Stamp,
    /// The settings in effect.
    pub(super) holds: Settings,
    pub(super) current: CurrentApp,
    pub(super) upstreams: ServedUpstreams,
    pub(super) sources: Arc<Sources>,
    /// For the readers of the upstreams.
    pub(super) relay: watch::Sender<Arc<Relay>>,
    pub(super) stop: CancellationToken,
}

/// Everything about a change that can fail, done in advance.
struct Prepared {
    terms: LedgerSettings,
    upstreams: ServedUpstreams,
    policy: Option<StricterPolicy>,
    agents: Vec<ResolvedAgent>,
}

impl Reloading {
    /// Keeps checking the configuration until the server stops.
    pub(super) async fn watch_configuration(mut self, mut hangup: Signal) {
        let stop = self.stop.clone();
        let mut read_last = self.start.clone();
        let mut seen = self.seen;
        // A file that is being written may be incomplete: it is read once two checks find it the same.
        let mut settling = seen;
        let mut refused: Option<Problems> = None;
        loop {
            let is_asked = tokio::select! {
                () = stop.cancelled() => return,
                _ = hangup.recv() => true,
                () = tokio::time::sleep(EVERY) => false,
            };
            let now = Stamp::stamp_of(&self.start);
            let is_settled = std::mem::replace(&mut settling, now) == now;
            if !is_asked && (now == seen || !is_settled) {
                continue;
            }
            seen = now;
            match self.read_configuration(&read_last).await {
                Ok(new) => (read_last, refused) = (new, None),
                Err(why) if refused.as_ref() == Some(&why) && !is_asked => {}
                Err(why) => {
                    tracing::error!(target: "respool::config", why = why.to_string(), "the changed configuration is wrong; the old one stays in use");
                    let waiting = self.new_app().alerts.reload_result().waiting;
                    self.new_app().alerts.note_reload(Reloaded {
                        problem: Some(why.to_string().replace('\n', "; ")),
                        waiting,
                    });
                    refused = Some(why);
                }
            }
        }
    }

    fn new_app(&self) -> App {
        self.current.app()
    }

    /// Reads the configuration and applies what may change at once.
    async fn read_configuration(&mut self, read_last: &Loaded) -> Result<Loaded, Problems> {
        let new = Loaded::from_process(&self.flags)?;
        let mut change = new.change(&self.start, read_last, &self.holds);
        let settings = &change.settings;
        let found = settings::start_problems(settings);
        let prepared = if found.is_empty() { self.prepare_app(settings).await } else { Err(found) };
        let prepared = prepared.map_err(|found| new.problems(found))?;
        let settings = change.settings.clone();
        self.put_into_effect(&settings, prepared).await;
        if !self.sources.holds_only(&change.settings.tools.policy) {
            change.waiting.push("tools.policy (its permissions; its denials are in effect)".to_owned());
        }
        self.report_change(change);
        if let Some(store) = self.new_app().agents.store() {
            store.note_configuration(new.digest());
        }
        Ok(new)
    }

    /// Prepares the new app. It changes nothing, so that everything that can fail comes before any change.
    async fn prepare_app(&self, settings: &Settings) -> Result<Prepared, Vec<UnusableSetting>> {
        let upstreams = self.upstreams.change_upstreams(settings, &self.stop);
        let (terms, policy) =
            (usage::ledger_settings(settings), self.sources.prepare_policy(&settings.tools.policy));
        let open =
            |config| -> futures::future::BoxFuture<'_, _> { Box::pin(tools_of(Some(&self.sources), config)) };
        // A prompt stays what it was at startup, because its file may have changed since.
        let agents = Arc::clone(&self.new_app().agents);
        let prompt =
            |name: &str, _: &AgentConfig| Ok(agents.get(name).and_then(|agent| agent.prompt.clone()));
        let agents = resolve_agents(settings, &open, &prompt).await;
        let ((upstreams, terms), (policy, agents)) =
            zip_results(zip_results(upstreams, terms), zip_results(policy, agents))?;
        Ok(Prepared { terms, upstreams, policy, agents })
    }

    async fn put_into_effect(&mut self, settings: &Settings, prepared: Prepared) {
        let Prepared { terms, upstreams, policy, agents } = prepared;
        let app = self.new_app();
        let (fleet, bounds) = (&upstreams.fleet, relay_limits(settings));
        let names = settings.agents.keys().cloned().collect();
        let relay = app.relay.succeeding(settings.relay.clone(), Arc::clone(fleet), bounds);
        let relay = Arc::new(relay.with_agents(names));
        // Restrictions are applied first.
        if let Some(policy) = policy {
            self.sources.hold_policy(policy);
        }
        let asked_for_keys = self.holds.server.asks_for_keys();
        app.access.change_keys(&settings.server, settings::uses_own_key(settings));
        if settings.server.asks_for_keys() && !asked_for_keys {
            let (access, alerts) = (Arc::clone(&app.access), Arc::clone(&app.alerts));
            tokio::spawn(access.watch_key_file(alerts, self.stop.clone()));
        }
        app.usage.change_settings(terms).await;
        if settings.alerts != self.holds.alerts {
            app.alerts.change_config(super::alerts::alerts_config(settings));
        }
        app.recording.captures.iter().for_each(|captures| captures.change_config(settings.capture.clone()));
        app.agents.replace_agents(agents_with_models(settings, &relay, fleet, bounds, agents));
        let models = model_accesses(settings, &relay, fleet, bounds, &app.usage);
        if let (Some(experts), Some(models)) = (&app.experts, models) {
            experts.change_models(models);
        }
        fleet.take_effect();
        report_upstreams(&app.relay, &relay);
        // What requests met with another key or address no longer holds.
        self.upstreams.changed_upstreams(&upstreams).for_each(|name| app.usage.forget_refusals(name));
        self.relay.send_replace(Arc::clone(&relay));
        let (old, limits) = (&self.holds.server.limits, settings.server.limits.clone());
        let same_room = (old.max_body, old.max_bodies) == (limits.max_body, limits.max_bodies);
        let bodies = if same_room { app.bodies.clone() } else { body_budget(&limits) };
        self.current.replace_app(Arc::new(AppParts { relay, limits, bodies, ..AppParts::clone(&app) }));
        self.upstreams = upstreams;
        self.holds = settings.clone();
    }

    fn report_change(&self, change: Change) {
        let names = |keys: &[String]| (!keys.is_empty()).then(|| keys.join(", "));
        let (live, needs_restart) = (names(&change.live), names(&change.waiting));
        if needs_restart.is_some() {
            tracing::warn!(target: "respool::config", live, needs_restart, "the configuration was read again; some changes need a restart");
        } else {
            tracing::info!(target: "respool::config", live, "the configuration was read again");
        }
        self.new_app().alerts.note_reload(Reloaded { problem: None, waiting: change.waiting });
    }
}

/// Logs the names of upstreams that were added or removed.
fn report_upstreams(before: &Relay, now: &Relay) {
    let names = |relay: &Relay| relay.upstreams().map(|it| it.name.clone()).collect::<BTreeSet<_>>();
    let (before, now) = (names(before), names(now));
    let only_in = |these: &BTreeSet<String>, others: &BTreeSet<String>| {
        let names: Vec<&str> = these.difference(others).map(String::as_str).collect();
        (!names.is_empty()).then(|| names.join(", "))
    };
    let (removed, added) = (only_in(&before, &now), only_in(&now, &before));
    if removed.is_some() || added.is_some() {
        tracing::info!(target: "respool::config", removed, added, "the configuration names other upstreams than before");
    }
}

/// The parts of a file's metadata that change when it is written: time, length and identity. `None` without a
/// file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp(Option<(SystemTime, u64, u64)>);

impl Stamp {
    /// Returns the stamp of the file that a configuration was read from.
    pub(super) fn stamp_of(loaded: &Loaded) -> Self {
        Self(loaded.file.as_deref().and_then(file_stamp))
    }
}

fn file_stamp(path: &Path) -> Option<(SystemTime, u64, u64)> {
    use std::os::unix::fs::MetadataExt as _;
    let meta = std::fs::metadata(path).ok()?;
    Some((meta.modified().ok()?, meta.len(), meta.ino()))
}
