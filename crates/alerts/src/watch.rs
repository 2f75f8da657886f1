//! Collects the facts for the rules every few seconds, and hands alerts to the sinks. Called by `cli`;
//! `server` shows the open alerts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, join_all};
use tokio_util::sync::CancellationToken;

use super::board::{Board, Kept, Pace};
use super::config::AlertsConfig;
use super::message::{Entry, Message, State, entry_headline};
use super::open_alert::OpenAlert;
use super::rule::{DatabaseSignals, Finding, Rule, Severity, Signals, UpstreamSignal, find_problems};
use super::silence::{Silence, Silences, write_open};
use super::sink::{Sink, send_once};
use super::sink_error::SinkError;
use agent::Agents;
use store::{Attention, SentAlert, Store};
use telemetry::metrics;
use usage::Ledger;

/// The time between two looks. An upstream is down after two probes, and reported after `group`: together
/// well below 30 s.
const EVERY: Duration = Duration::from_secs(5);
/// How long a failed run is an alert, in milliseconds.
const FAILED_FOR: u64 = 10 * 60_000;
/// Of several processes that share a store, one sends an alert and what follows from it. Another may once the
/// first one has not been heard of for this long.
const HELD_FOR: Duration = Duration::from_mins(1);
/// The longest pause of a circuit and two looks, in milliseconds.
const LONGEST_PAUSE: u64 = 25_000;
/// How long lost log lines are an alert, in milliseconds.
const LINES_LOST_FOR: u64 = 15 * 60_000;
/// How often alerts are looked for whose sender has ended, in milliseconds.
const ADOPT_EVERY: u64 = 60_000;
/// How many approvals and runs are read.
const MOST: usize = 50;

/// The port to the model servers.
pub trait UpstreamProbes: Send + Sync {
    /// Probes all upstreams at once, and returns their state.
    fn probe(&self) -> BoxFuture<'_, Vec<UpstreamSignal>>;

    /// Returns the models that the configuration names and no upstream serves, each with what it is named
    /// for, as far as the last probes show.
    fn missing_models(&self) -> Vec<(String, String)>;
}

/// The sources of the facts.
#[derive(Clone)]
pub struct Watched {
    /// The upstreams, as they are configured now.
    pub upstreams: Arc<dyn UpstreamProbes>,
    /// Runs and approvals.
    pub agents: Arc<Agents>,
    /// Requests and budgets.
    pub usage: Arc<Ledger>,
    /// Returns the store of runs and responses, once something has opened it.
    pub open_store: Arc<dyn Fn() -> Option<Arc<Store>> + Send + Sync>,
    /// Returns the experts that cannot work, each with the reason.
    pub not_ready: Arc<dyn Fn() -> Vec<(String, String)> + Send + Sync>,
}

/// The log lines that were lost of late.
#[derive(Debug, Default)]
struct LostLines {
    /// How many this process had lost at the last look.
    total: u64,
    /// How many of them are not forgotten yet.
    recent: u64,
    /// When the last ones were lost.
    last: u64,
}

impl LostLines {
    /// Takes the total of now, and returns how many lines were lost of late.
    fn update(&mut self, total: u64, now: u64) -> u64 {
        if total > self.total {
            self.recent += total - self.total;
            (self.total, self.last) = (total, now);
        } else if now.saturating_sub(self.last) > LINES_LOST_FOR {
            self.recent = 0;
        }
        self.recent
    }
}

/// The alerts that were sent, as far as the store does not know them.
#[derive(Debug, Default)]
struct Unnoted {
    names: BTreeSet<String>,
    /// When alerts of ended processes were looked for last.
    adopted: Option<u64>,
}

/// The upstreams as probes found them.
#[derive(Debug, Default)]
struct Probed {
    /// The results of the last probes, by upstream.
    last: BTreeMap<String, UpstreamSignal>,
    /// The upstreams that are no longer configured.
    gone: BTreeSet<String>,
}

/// The alerts of one server.
#[derive(Debug)]
pub struct Alerts {
    delivery: RwLock<Arc<AlertDelivery>>,
    state_dir: PathBuf,
    stop: CancellationToken,
    board: Mutex<Board>,
    /// The list as the command line finds it; `None`: not written by this process yet.
    written: Mutex<Option<Vec<OpenAlert>>>,
    probed: Mutex<Probed>,
    /// When upstreams were last down whose circuit has not closed since.
    last_down: Mutex<BTreeMap<String, u64>>,
    reloaded: Mutex<Reloaded>,
    /// The reason why the changed file of client keys is not used.
    key_file_problem: Mutex<Option<String>>,
    /// The alerts that this process sends, and when it said so.
    held: Mutex<(BTreeSet<String>, Option<Instant>)>,
    unnoted: Mutex<Unnoted>,
    lost_lines: Mutex<LostLines>,
    /// The silences of all nodes that this one has taken over.
    silences: Mutex<Option<String>>,
}

/// The result of reading a changed configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// The reason why it is not used; the old one is.
    pub problem: Option<String>,
    /// The keys whose change waits for a restart.
    pub waiting: Vec<String>,
}

/// How alerts are delivered, and where.
#[derive(Debug)]
struct AlertDelivery {
    config: AlertsConfig,
    sinks: Vec<Sink>,
}

impl AlertDelivery {
    fn new(config: AlertsConfig, stop: &CancellationToken) -> Self {
        let start = |sink: &super::SinkConfig| {
            Sink::start(sink.clone(), config.link.clone(), stop.clone())
                .inspect_err(|why| tracing::error!(target: "respool::alerts", kind = %sink.kind, %why, "this sink cannot be used"))
                .ok()
        };
        let sinks = config.sink.iter().filter_map(start).collect();
        Self { config, sinks }
    }
}

impl Alerts {
    /// Starts the sinks, which end with `stop`. A sink that cannot work is logged and left out.
    pub fn new(config: AlertsConfig, state_dir: PathBuf, stop: &CancellationToken) -> Self {
        let delivery = RwLock::new(Arc::new(AlertDelivery::new(config, stop)));
        Self {
            delivery,
            state_dir,
            stop: stop.clone(),
            board: Mutex::default(),
            written: Mutex::default(),
            probed: Mutex::default(),
            last_down: Mutex::default(),
            reloaded: Mutex::default(),
            key_file_problem: Mutex::default(),
            held: Mutex::default(),
            unnoted: Mutex::default(),
            lost_lines: Mutex::default(),
            silences: Mutex::default(),
        }
    }

    fn delivery(&self) -> Arc<AlertDelivery> {
        Arc::clone(&self.delivery.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Delivers alerts like this from now on. Messages that wait for an earlier sink still go there, and then
    /// the sink ends.
    pub fn change_config(&self, config: AlertsConfig) {
        let new = Arc::new(AlertDelivery::new(config, &self.stop));
        *self.delivery.write().unwrap_or_else(PoisonError::into_inner) = new;
    }

    fn lock_board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks every few seconds, until `stop`. The list for the command line stays as it was then.
    pub async fn watch(self: Arc<Self>, watched: Watched, stop: CancellationToken) {
        let work = async {
            loop {
                self.check_once(&watched).await;
                tokio::time::sleep(EVERY).await;
            }
        };
        let _: Option<()> = stop.run_until_cancelled(work).await;
    }

    /// Writes the list for the command line, if it has changed. A failed write is repeated the next time.
    fn write_open_alerts(&self, open: Vec<OpenAlert>) {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        if written.as_ref() == Some(&open) {
            return;
        }
        match write_open(&self.state_dir, &open) {
            Ok(()) => *written = Some(open),
            Err(error) => {
                tracing::debug!(target: "respool::alerts", %error, "the list of alerts cannot be written");
            }
        }
    }

    /// Returns the result of the last probe of the upstream of this name.
    pub fn probed_upstream(&self, upstream: &str) -> Option<UpstreamSignal> {
        self.probed.lock().unwrap_or_else(PoisonError::into_inner).last.get(upstream).cloned()
    }

    /// Keeps the results of the probes, for the page and for Prometheus. What requests met before an upstream
    /// could be used again no longer holds.
    fn note_probes(&self, upstreams: &[UpstreamSignal], usage: &Ledger) {
        let found: BTreeMap<_, _> = upstreams.iter().map(|it| (it.name.clone(), it.clone())).collect();
        let mut probed = self.probed.lock().unwrap_or_else(PoisonError::into_inner);
        let Probed { last, gone } = &mut *probed;
        let before = std::mem::replace(last, found.clone());
        for name in before.keys().filter(|name| !found.contains_key(*name)) {
            usage.forget_refusals(name);
            gone.insert(name.clone());
        }
        gone.retain(|name| !found.contains_key(name));
        // Each time, because its last requests may still report how they ended.
        gone.iter().for_each(|name| metrics::forget_upstream(name));
        for (name, signal) in &found {
            let is_up = signal.problem.is_none();
            metrics::set_upstream_up(name, is_up);
            if signal.asks_for_key && before.get(name).is_none_or(|before| !before.asks_for_key) {
                let todo = "set `api_key` of its [[upstream]], unless clients send theirs";
                tracing::warn!(target: "respool::alerts", upstream = name, todo, "the upstream asks for a key");
            }
            if is_up && before.get(name).is_some_and(|before| before.problem.is_some()) {
                usage.forget_refusals(name);
            }
        }
    }

    async fn check_once(&self, watched: &Watched) {
        let (signals, now, delivery) = (self.collect_signals(watched).await, clock::now(), self.delivery());
        let config = &delivery.config;
        let is_wanted = |finding: &Finding| !config.disabled.iter().any(|name| name == finding.rule.as_str());
        let findings: Vec<_> = find_problems(&signals, now).into_iter().filter(is_wanted).collect();
        let pace = Pace { repeat: clock::to_millis(config.repeat), group: clock::to_millis(config.group) };
        self.take_silences(watched).await;
        let silences = Silences::read(&self.state_dir);
        self.adopt_alerts(watched, now).await;
        let (message, open, replaced) = {
            let mut board = self.lock_board();
            let message = board.take_findings(now, findings, pace, &silences);
            let open = board.open(now, &silences);
            board.count_alerts(&open);
            (message, open, board.take_replaced())
        };
        self.forget_replaced(watched, replaced).await;
        let node = watched.agents.store().and_then(|store| store.node());
        let message = message.map(|message| Message { node, ..message });
        let message = self.leave_out_others(watched, message, &open).await;
        watched.usage.measure_budgets();
        metrics::set_reload_failed(signals.reload_problem.is_some() || signals.key_file_problem.is_some());
        self.write_open_alerts(open);
        if let Some(message) = message {
            // First, because the process may end in between.
            self.note_sent(watched, &message).await;
            self.send_message(&message);
        }
    }

    /// Takes over the silences of all nodes if any of them has changed them.
    async fn take_silences(&self, watched: &Watched) {
        let Some(store) = watched.agents.store() else { return };
        let Ok(Some(shared)) = store.silences().await else { return };
        let mut last = self.silences.lock().unwrap_or_else(PoisonError::into_inner);
        if last.as_ref() != Some(&shared) && Silences::replace(&self.state_dir, &shared).is_ok() {
            *last = Some(shared);
        }
    }

    /// Takes in the alerts that were sent by processes that have ended, at first and then every minute.
    async fn adopt_alerts(&self, watched: &Watched, now: u64) {
        let Some(store) = watched.agents.store() else { return };
        let adopted = self.unnoted.lock().unwrap_or_else(PoisonError::into_inner).adopted;
        if adopted.is_some_and(|at| now.saturating_sub(at) < ADOPT_EVERY) {
            return;
        }
        let Ok(left) = store.left_alerts().await else { return };
        self.unnoted.lock().unwrap_or_else(PoisonError::into_inner).adopted = Some(now);
        let kept = left.iter().filter_map(|alert| serde_json::from_str(&alert.body).ok()).collect();
        self.lock_board().take_kept(now, kept);
    }

    /// Removes alerts from the store that worse ones have replaced, so that no process sends their end.
    async fn forget_replaced(&self, watched: &Watched, replaced: Vec<(Rule, String)>) {
        let Some(store) = watched.agents.store().filter(|_| !replaced.is_empty()) else { return };
        let names = replaced.iter().map(|(rule, subject)| name_of(*rule, subject)).collect();
        // What stays there is sent as over, which is true.
        let _ = store.take_sent_alerts(names).await;
    }

    /// Notes in the store what was sent, so that its end is sent after a restart, too.
    async fn note_sent(&self, watched: &Watched, message: &Message) {
        let Some(store) = watched.agents.store() else { return };
        let sent = message.entries.iter().filter(|entry| entry.state != State::Resolved);
        let note = |entry: &Entry| {
            let kept = Kept {
                rule: entry.rule.as_str().to_owned(),
                subject: entry.subject.clone(),
                what: entry.what.clone(),
                since: entry.since,
                sent: message.at,
            };
            SentAlert { name: alert_name(entry), body: serde_json::to_string(&kept).unwrap_or_default() }
        };
        let sent: Vec<SentAlert> = sent.map(note).collect();
        let names: Vec<String> = sent.iter().map(|alert| alert.name.clone()).collect();
        if !sent.is_empty() && store.note_sent_alerts(sent).await.is_err() {
            self.unnoted.lock().unwrap_or_else(PoisonError::into_inner).names.extend(names);
        }
    }

    /// Leaves out the ends of alerts that another process sends. If the store cannot be asked, an end is sent
    /// twice rather than never.
    async fn leave_out_ended(&self, watched: &Watched, message: &mut Message) {
        let Some(store) = watched.agents.store() else { return };
        let ended = message.entries.iter().filter(|entry| entry.state == State::Resolved);
        let names: Vec<String> = ended.map(alert_name).collect();
        if names.is_empty() {
            return;
        }
        let Ok(taken) = store.take_sent_alerts(names.clone()).await else { return };
        let unnoted: BTreeSet<String> = {
            let mut unnoted = self.unnoted.lock().unwrap_or_else(PoisonError::into_inner);
            names.into_iter().filter(|name| unnoted.names.remove(name)).collect()
        };
        message.entries.retain(|entry| {
            let name = alert_name(entry);
            entry.state != State::Resolved || taken.contains(&name) || unnoted.contains(&name)
        });
    }

    /// Leaves out the alerts that another process of the same store sends. If the store cannot be asked, an
    /// alert is sent twice rather than never.
    async fn leave_out_others(
        &self,
        watched: &Watched,
        message: Option<Message>,
        open: &[OpenAlert],
    ) -> Option<Message> {
        let mut message = message;
        if let Some(message) = &mut message {
            self.leave_out_ended(watched, message).await;
        }
        let duty = |rule: &str, subject: &str| format!("alert {rule} {subject}");
        let of_entry = |entry: &Entry| duty(entry.rule.as_str(), &entry.subject);
        let is_begun = |entry: &&Entry| entry.state != State::Resolved;
        let Some(store) = watched.agents.store() else { return message };
        let mut duties: Vec<_> = open.iter().map(|open| duty(&open.rule, &open.subject)).collect();
        {
            let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
            duties.retain(|duty| held.0.contains(duty));
            if message.is_none() && held.1.is_some_and(|said| said.elapsed() < HELD_FOR / 4) {
                return None;
            }
        }
        duties.extend(message.iter().flat_map(|message| &message.entries).filter(is_begun).map(of_entry));
        let Ok(held) = store.hold_duties(duties, HELD_FOR).await else { return message };
        let held: BTreeSet<_> = held.into_iter().collect();
        let own = message.map(|mut message| {
            message.entries.retain(|entry| entry.state == State::Resolved || held.contains(&of_entry(entry)));
            message
        });
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = (held, Some(Instant::now()));
        own.filter(|message| !message.entries.is_empty())
    }

    fn send_message(&self, message: &Message) {
        for entry in &message.entries {
            let (rule, state) = (entry.rule.as_str(), entry.state.as_str());
            let since = clock::format_time(entry.since);
            let text = entry_headline(entry);
            let (subject, todo) = (entry.subject.as_str(), entry.rule.todo());
            if entry.state == State::Resolved {
                tracing::info!(target: "respool::alerts", rule, state, subject, since, "{text}");
            } else if entry.rule.severity() == Severity::Critical {
                tracing::error!(target: "respool::alerts", rule, state, subject, since, todo, "{text}");
            } else {
                tracing::warn!(target: "respool::alerts", rule, state, subject, since, todo, "{text}");
            }
        }
        self.delivery().sinks.iter().for_each(|sink| sink.send(message));
    }

    async fn collect_signals(&self, watched: &Watched) -> Signals {
        let mut upstreams = watched.upstreams.probe().await;
        self.note_probes(&upstreams, &watched.usage);
        {
            let mut last_down = self.last_down.lock().unwrap_or_else(PoisonError::into_inner);
            excuse_recovered(&mut last_down, &mut upstreams, clock::now());
        }
        let attention = match watched.agents.store() {
            Some(store) => store.attention(clock::now().saturating_sub(FAILED_FOR), MOST).await,
            None => Ok(Attention::default()),
        };
        Signals {
            upstreams,
            missing_models: watched.upstreams.missing_models(),
            minutes: watched.usage.minutes(),
            budgets: watched.usage.reached_budgets(),
            databases: DatabaseSignals {
                usage_fault: watched.usage.fault(),
                removed: removed_database(watched),
                away: database_away(watched),
                set_aside: {
                    let files = store::find_set_aside(&self.state_dir);
                    files.iter().map(|file| file.display().to_string()).collect()
                },
            },
            // `removed_database` says that the store cannot be read.
            attention: attention.unwrap_or_default(),
            not_ready: self.not_ready_experts((watched.not_ready)()),
            lost_lines: {
                let mut lost = self.lost_lines.lock().unwrap_or_else(PoisonError::into_inner);
                lost.update(metrics::lost_log_lines(), clock::now())
            },
            lost_nodes: watched.agents.store().map(|store| store.lost_nodes()).unwrap_or_default(),
            reload_problem: self.reload_result().problem,
            key_file_problem: self.key_file_problem.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }

    /// Adds to the reasons of experts that are not ready that new tools wait for a restart.
    fn not_ready_experts(&self, mut experts: Vec<(String, String)>) -> Vec<(String, String)> {
        let waiting = self.reload_result().waiting;
        if waiting.iter().any(|key| key.starts_with("tools.")) {
            for (_, why) in &mut experts {
                why.push_str(". The configuration has new tools: restart respool, so that it uses them");
            }
        }
        experts
    }

    /// Notes the result of reading the configuration again.
    pub fn note_reload(&self, reloaded: Reloaded) {
        *self.reloaded.lock().unwrap_or_else(PoisonError::into_inner) = reloaded;
    }

    /// Notes why the changed file of client keys is not used; `None`: it is.
    pub fn note_key_file(&self, problem: Option<String>) {
        *self.key_file_problem.lock().unwrap_or_else(PoisonError::into_inner) = problem;
    }

    /// Returns the result of reading the changed configuration.
    pub fn reload_result(&self) -> Reloaded {
        self.reloaded.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the alerts that hold.
    pub fn open(&self) -> Vec<OpenAlert> {
        self.lock_board().open(clock::now(), &Silences::read(&self.state_dir))
    }

    /// Does not send an alert for a while.
    ///
    /// # Errors
    /// When the silence cannot be written.
    pub fn silence_alert(&self, rule: Rule, subject: &str, span: Duration) -> std::io::Result<()> {
        let now = clock::now();
        let silence = Silence {
            rule: rule.as_str().to_owned(),
            subject: subject.to_owned(),
            until: now + clock::to_millis(span),
        };
        Silences::add(&self.state_dir, silence, now)
    }

    /// Sends an alert again from now on.
    ///
    /// # Errors
    /// When the silences cannot be written.
    pub fn end_silence(&self, rule: Rule, subject: &str) -> std::io::Result<()> {
        Silences::end(&self.state_dir, rule, Some(subject), clock::now()).map(drop)
    }

    /// Returns the silences as other nodes read them.
    pub fn silences_text(&self) -> String {
        Silences::read_text(&self.state_dir)
    }

    /// Sends a message that says that it is a test to every sink of a configuration, once each. Returns how
    /// each went.
    pub async fn test_sinks(config: &AlertsConfig) -> Vec<(String, Result<(), SinkError>)> {
        let message = Message::new_test(clock::now());
        let sent = config.sink.iter().map(|sink| send_once(sink.clone(), config.link.clone(), &message));
        join_all(sent).await
    }
}

/// Returns the name of an alert in the store.
fn alert_name(entry: &Entry) -> String {
    name_of(entry.rule, &entry.subject)
}

fn name_of(rule: Rule, subject: &str) -> String {
    format!("{} {subject}", rule.as_str())
}

/// Leaves out open circuits of servers that were down and are back: without requests nothing closes them. One
/// counts again when its trial has failed since.
fn excuse_recovered(last_down: &mut BTreeMap<String, u64>, upstreams: &mut [UpstreamSignal], now: u64) {
    for upstream in upstreams {
        let name = &upstream.name;
        if upstream.problem.is_some() {
            last_down.insert(name.clone(), now);
        } else if !upstream.is_open {
            last_down.remove(name);
        } else if let Some(down) = last_down.get(name) {
            if upstream.admits || now.saturating_sub(*down) <= LONGEST_PAUSE {
                upstream.is_open = false;
            } else {
                last_down.remove(name);
            }
        }
    }
}

/// Returns the reason why nothing can be kept, if the file of a database is gone.
fn removed_database(watched: &Watched) -> Option<String> {
    let runs = (watched.open_store)().filter(|store| store.shared_usage().is_none());
    let runs = runs.and_then(|store| store.check_file().err());
    let usage = watched.usage.store().and_then(|store| store.check_file().err());
    runs.or(usage).map(|error| error.0)
}

/// Returns the reason why the database that processes share cannot be used.
fn database_away(watched: &Watched) -> Option<String> {
    let is_wanted = |store: &Arc<Store>| store.shared_usage().is_some() && !store.waits_for_name();
    let shared = (watched.open_store)().filter(is_wanted);
    // On a full disk, there may be room for a sign of life and none for rows.
    shared?.check_file().err().map(|error| error.0).or_else(|| watched.usage.sharing_fault())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_lines_are_forgotten_after_a_while() {
        let mut lost = LostLines::default();
        let seen = [(0, 0), (2, 5), (5, 1_000), (5, 900_000), (5, 902_000), (6, 903_000)];
        assert_eq!(seen.map(|(total, now)| lost.update(total, now)), [0, 2, 5, 5, 0, 1]);
    }

    /// Regression: the alert said that events go on by themselves, although only a restart helped.
    #[test]
    fn experts_that_wait_for_a_restart_say_so() {
        let stop = CancellationToken::new();
        let alerts = Alerts::new(AlertsConfig::default(), PathBuf::from("/nowhere"), &stop);
        let reason = |waiting: &[&str]| {
            let waiting = waiting.iter().map(|&key| key.to_owned()).collect();
            alerts.note_reload(Reloaded { problem: None, waiting });
            alerts.not_ready_experts(vec![("desk".into(), "it lacks a tool".into())]).remove(0).1
        };
        assert_eq!(reason(&[]), "it lacks a tool");
        assert_eq!(reason(&["listen"]), "it lacks a tool");
        assert!(reason(&["tools.mcp.books"]).contains("restart respool"));
    }

    /// Regression: a server that was back after an outage raised `circuit_open` until requests came.
    #[test]
    fn recovered_servers_raise_no_alert() {
        let mut known = BTreeMap::new();
        let mut look = |is_down: bool, is_open, admits, now| {
            let problem = is_down.then(|| (Rule::UpstreamDown, String::new()));
            let mut all = [UpstreamSignal {
                name: "box".into(),
                problem,
                is_open,
                admits,
                ..UpstreamSignal::default()
            }];
            excuse_recovered(&mut known, &mut all, now);
            all[0].is_open
        };
        assert!(look(false, true, false, 0), "it fails its requests");
        assert!(look(true, true, false, 5_000));
        assert!(!look(false, true, false, 10_000), "its pause is not over");
        assert!(!look(false, true, true, 60_000), "no request has come");
        assert!(look(false, true, false, 65_000), "a trial has failed");
        assert!(look(false, true, true, 70_000));
        assert!(look(false, true, true, 400_000), "its circuit is open, whether requests come or not");
        assert!(!look(false, false, true, 405_000));
    }
}
