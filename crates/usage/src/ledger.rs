//! Takes a row of each request and writes the rows in the background: no request waits for them, and a full
//! disk costs rows, not answers. Lost rows are counted, and reported once.
//!
//! It is the only meter: budgets, the limits of keys, alerts, reports and the page read it. Budgets and
//! limits count each request as it ends, whether or not its row can be kept. The tokens of keys are stored
//! apart from the rows, so that their limits hold after a restart, and in several processes that share a
//! store.
//!
//! Processes that share a database keep their rows in their own files first and copy them behind: each row
//! arrives once, however often the database is away. What each spends is said every second.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::budget::{DayBudget, Exhausted, Owner, Scope, Shortage, Spending, UnderWay, daily_budget};
use super::config::{BudgetsConfig, UsageConfig};
use super::key_tokens::KeyTokens;
use super::minutes::{Minutes, RequestOutcome};
use super::money::Money;
use super::prices::Prices;
use super::running::{RunningList, RunningRequest};
use store::{Dimension, RequestQuery, SharedUsage, Store, StoreError, UsageQuery, UsageRows, UsageStore};
use telemetry::{EndedRequest, InFlight, UsageSink, metrics};
use wire::UsageRow;

/// The most rows that wait. Further rows are lost, and counted.
const MOST_WAITING: usize = 20_000;
/// respool's own routes without a model, which have no rows.
const WITHOUT_ROWS: [&str; 4] = ["models", "runs", "approvals", "usage"];
/// The time between two writes.
const EVERY: Duration = Duration::from_millis(500);
/// The time between two exchanges with other processes.
const SHARE_EVERY: Duration = Duration::from_secs(1);
/// How many rows are copied in one commit.
const COPIED: usize = 2_000;
/// The time between two deletions of old rows.
const CLEAR_EVERY: Duration = Duration::from_mins(10);
/// How far back problems from before the start are looked for.
const PROBLEMS_FROM: Duration = Duration::from_hours(7 * 24);
/// The number of recent problems that are kept in memory.
const PROBLEMS: usize = 50;
/// Times of one request differ by less than this, in milliseconds.
const NEAR: u64 = 1_000;
/// The number of budgets that have gauges.
const MEASURED: usize = 200;

/// A day, in milliseconds.
const DAY: u64 = 86_400_000;
/// The number of days for which the tokens of keys are kept.
const KEEP_DAYS: u64 = 400;

/// The ledger of one server.
#[derive(Debug)]
pub struct Ledger {
    settings: RwLock<Arc<LedgerSettings>>,
    store: Option<Arc<UsageStore>>,
    /// The store of the tokens of keys.
    key_store: OnceLock<Arc<Store>>,
    /// The last day on which old tokens of keys were deleted.
    cleared_day: AtomicU64,
    state: Mutex<State>,
    /// Held while rows are written.
    flushing: tokio::sync::Mutex<()>,
    /// Held while the tokens of keys are written, or something is exchanged with other processes.
    sharing: tokio::sync::Mutex<()>,
    /// The requests under way.
    pub in_flight: Arc<InFlight>,
}

/// The settings that can change while a server runs.
#[derive(Clone, Debug, Default)]
pub struct LedgerSettings {
    /// `[usage]`.
    pub config: UsageConfig,
    /// `[budgets]`.
    pub budgets: BudgetsConfig,
    /// `[prices]`, and the public ones.
    pub prices: Prices,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<UsageRow>,
    lost: u64,
    /// The reason why the last write failed, which was reported.
    fault: Option<String>,
    spending: Spending,
    keys: KeyTokens,
    /// The tokens of keys could not be stored the last time, which was reported.
    are_keys_unsaved: bool,
    /// Why nothing could be exchanged with other processes the last time, which was reported.
    apart: Option<String>,
    /// The database has the rows that were copied to it, as far as this process could see.
    knows_copied: bool,
    problems: VecDeque<Problem>,
    minutes: Minutes,
    /// The budgets that have gauges.
    measured: Vec<Scope>,
}

impl State {
    fn keep_problem(&mut self, row: &UsageRow) {
        if self.problems.len() == PROBLEMS {
            self.problems.pop_front();
        }
        self.problems.push_back(Problem::from_row(row));
    }
}

/// Something that went wrong, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// In milliseconds since 1970.
    pub at: u64,
    /// The id of the request in the log.
    pub request: String,
    /// The name of the client's key.
    pub key: String,
    /// The model.
    pub model: String,
    /// The upstream.
    pub upstream: String,
    /// Method and path, if it was not for a turn of a model.
    pub request_line: String,
    /// The error's code.
    pub code: String,
    /// The error as it stands in the log.
    pub cause: String,
}

impl Problem {
    fn from_row(row: &UsageRow) -> Self {
        Self {
            at: row.at,
            request: row.id.clone(),
            key: row.key.clone(),
            model: row.model.clone(),
            upstream: row.upstream.clone(),
            request_line: row.details.request_line().to_owned(),
            code: row.error_code.clone(),
            cause: row.error.clone(),
        }
    }
}

impl Ledger {
    /// Makes a ledger. Without a `store` it keeps no rows, but still counts budgets.
    pub fn new(settings: LedgerSettings, store: Option<Arc<UsageStore>>) -> Self {
        let settings = RwLock::new(Arc::new(settings));
        let (key_store, cleared_day) = (OnceLock::new(), AtomicU64::default());
        Self {
            settings,
            store,
            key_store,
            cleared_day,
            state: Mutex::default(),
            flushing: tokio::sync::Mutex::default(),
            sharing: tokio::sync::Mutex::default(),
            in_flight: Arc::default(),
        }
    }

    /// Notes why rows cannot be kept. Alerts and the page report it until the process ends.
    pub fn mark_broken(&self, why: String) {
        self.lock_state().fault = Some(why);
    }

    pub(super) fn current_settings(&self) -> Arc<LedgerSettings> {
        Arc::clone(&self.settings.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes prices and budgets. A new budget includes today's earlier spending. The time for which rows
    /// are kept changes only with a restart.
    pub async fn change_settings(&self, settings: LedgerSettings) {
        let had_budgets = self.has_budgets();
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
        if !had_budgets {
            self.load_spending().await;
        }
    }

    fn lock_state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the store of the rows.
    pub fn store(&self) -> Option<&Arc<UsageStore>> {
        self.store.as_ref()
    }

    /// The usage that processes share; `None` where this one has its own.
    fn shared_usage(&self) -> Option<&dyn SharedUsage> {
        self.key_store.get()?.shared_usage()
    }

    /// The rows for reports: those of all processes, or this one's alone while the others' cannot be read.
    pub(super) fn rows(&self) -> Option<&dyn UsageRows> {
        let own: &dyn UsageRows = self.store.as_deref()?;
        match self.shared_usage() {
            Some(shared) if self.lock_state().apart.is_none() => Some(shared),
            _ => Some(own),
        }
    }

    /// How many processes share the limits.
    pub fn live_nodes(&self) -> u32 {
        self.key_store.get().map_or(1, |store| store.live_nodes())
    }

    /// Loads today's spending from before this process started.
    pub async fn load_spending(&self) {
        if self.shared_usage().is_none() && self.has_budgets() {
            self.count_rows_of_today().await;
        }
    }

    async fn count_rows_of_today(&self) {
        let settings = self.current_settings();
        let Some(store) = &self.store else { return };
        self.flush().await;
        let now = clock::now();
        let query = UsageQuery {
            since: now - now % DAY,
            until: u64::MAX,
            by: vec![Dimension::Key, Dimension::Agent],
            only: Vec::new(),
        };
        let sums = match store.sums(query).await {
            Ok(sums) => sums,
            Err(error) => {
                tracing::error!(target: "respool::usage", %error, "today's spending is unknown: budgets start from zero");
                return;
            }
        };
        let mut state = self.lock_state();
        state.spending = Spending::default();
        for sum in sums {
            let cost = settings.prices.cost_of(&sum.model, sum.totals.usage).unwrap_or_default();
            let (key, agent) = (&sum.names[0], &sum.names[1]);
            state.spending.add_cost(&settings.budgets, Owner { key, agent }, cost, now);
        }
    }

    /// Loads the last problems from before this process started.
    pub async fn load_problems(&self) {
        let query = RequestQuery {
            since: clock::time_ago(PROBLEMS_FROM),
            only: vec![(Dimension::Outcome, "error".to_owned())],
            most: PROBLEMS,
            ..RequestQuery::default()
        };
        self.flush().await;
        let rows = match &self.store {
            Some(store) => store.find(query).await.unwrap_or_default(),
            None => return,
        };
        let mut state = self.lock_state();
        let newest = state.problems.front().map_or(u64::MAX, |problem| problem.at);
        let room = PROBLEMS.saturating_sub(state.problems.len());
        for row in rows.iter().filter(|row| row.at < newest).take(room) {
            state.problems.push_front(Problem::from_row(row));
        }
    }

    /// Records the requests that a server of before worked on when it was killed, unless they ended after the
    /// list was written.
    pub async fn record_cut_requests(&self, left: RunningList) {
        let Some((store, oldest)) = self.store.as_ref().zip(left.requests.first()) else { return };
        let since = oldest.since.saturating_sub(NEAR);
        let query = RequestQuery { since, most: MOST_WAITING, ..RequestQuery::default() };
        let ended = store.find(query).await.unwrap_or_default();
        let ended: BTreeSet<&str> = ended.iter().map(|row| &*row.id).collect();
        let was_cut = |request: &RunningRequest| {
            !ended.contains(&*request.id) && !WITHOUT_ROWS.contains(&&*request.route)
        };
        let cut = left.requests.into_iter().filter(was_cut);
        let mut rows: Vec<UsageRow> = cut.map(|request| request.cut_row(left.at)).collect();
        if !rows.is_empty() {
            tracing::warn!(target: "respool::usage", requests = rows.len(), "respool was killed while it worked on requests: `respool requests --error killed` lists them");
        }
        let mut state = self.lock_state();
        rows.iter().for_each(|row| state.keep_problem(row));
        state.waiting.append(&mut rows);
    }

    /// Uses this store for the tokens of keys, and loads today's tokens from it.
    pub async fn use_key_store(&self, store: Arc<Store>) {
        if let Err(error) = self.load_keys(&store).await {
            tracing::error!(target: "respool::usage", %error, "the tokens that keys used today cannot be read: their limits count from zero");
        }
        let _ = self.key_store.set(store);
        if let Some(shared) = self.shared_usage() {
            if is_new_to(self.store.as_deref(), shared).await {
                self.count_rows_of_today().await;
            } else {
                // The database knows what processes of before spent.
                self.lock_state().spending = Spending::default();
            }
            self.share().await;
        }
    }

    /// Exchanges what is used with the processes of the same database, until `stop`.
    pub async fn share_until(self: Arc<Self>, stop: CancellationToken) {
        while self.shared_usage().is_some() && !stop.is_cancelled() {
            tokio::select! { () = stop.cancelled() => {}, () = tokio::time::sleep(SHARE_EVERY) => {} }
            self.save_keys().await;
            self.share().await;
        }
    }

    /// Copies this process's rows to the database of all, and learns the spending of the others. It waits for
    /// an exchange that is under way.
    pub async fn share(&self) {
        let Some(shared) = self.shared_usage() else { return };
        let _alone = self.sharing.lock().await;
        let exchanged = self.exchange_with(shared).await;
        let was_apart = {
            let mut state = self.lock_state();
            state.knows_copied &= exchanged.is_ok();
            let why = exchanged.as_ref().err().map(ToString::to_string);
            std::mem::replace(&mut state.apart, why).is_some()
        };
        match exchanged {
            Err(error) if !was_apart => {
                tracing::error!(target: "respool::usage", %error, "usage records wait in the state directory, and budgets count this process alone, until the database can be used");
            }
            Ok(()) if was_apart => {
                tracing::info!(target: "respool::usage", "usage records are copied to the database again");
            }
            _ => {}
        }
    }

    async fn exchange_with(&self, shared: &dyn SharedUsage) -> Result<(), StoreError> {
        let (day, own) = self.lock_state().spending.own_costs(clock::now());
        let others = shared.exchange_spending(day, own).await?;
        self.lock_state().spending.set_others(day, others);
        let Some(store) = &self.store else { return Ok(()) };
        let database = shared.database_id().await?;
        if !self.lock_state().knows_copied {
            // One that was restored from a dump lacks rows that were copied since.
            let origin = store.list_uncopied(database.clone(), 0).await?.origin;
            let last = shared.last_row_of(&origin).await?.unwrap_or_default();
            store.mark_missing(database.clone(), origin, last).await?;
            self.lock_state().knows_copied = true;
        }
        loop {
            let rows = store.list_uncopied(database.clone(), COPIED).await?;
            let count = rows.rows.len();
            if let Some((last, _)) = rows.rows.last() {
                let (origin, last) = (rows.origin.clone(), *last);
                if let Some(taken) = shared.add_rows(rows).await? {
                    store.move_behind(taken).await?;
                    continue;
                }
                store.mark_copied(database.clone(), origin, last).await?;
            }
            if count < COPIED {
                return Ok(());
            }
        }
    }

    async fn load_keys(&self, store: &Store) -> Result<(), StoreError> {
        let day = clock::now() / DAY;
        let stored = store.key_usage_on(day).await?;
        self.lock_state().keys.load_day(&stored, day);
        Ok(())
    }

    /// Returns the tokens that a key has used today.
    pub fn tokens_today(&self, key: &str) -> u64 {
        self.lock_state().keys.used_today(key, clock::now() / DAY)
    }

    /// Stores the tokens of keys, and loads those that other processes have counted. It waits for a write
    /// that is under way.
    pub async fn save_keys(&self) {
        let Some(store) = self.key_store.get() else { return };
        let _alone = self.sharing.lock().await;
        let rows = self.lock_state().keys.take_unsaved();
        if rows.is_empty() {
            return;
        }
        let saved = match store.add_key_usage(rows.clone()).await {
            Ok(()) => self.load_and_clear_keys(store).await,
            Err(error) => {
                self.lock_state().keys.take_back(rows);
                Err(error)
            }
        };
        let was_unsaved = std::mem::replace(&mut self.lock_state().are_keys_unsaved, saved.is_err());
        if let Err(error) = saved
            && !was_unsaved
        {
            tracing::error!(target: "respool::usage", %error, "the tokens of keys are counted in memory until the store can be written again");
        }
    }

    async fn load_and_clear_keys(&self, store: &Store) -> Result<(), StoreError> {
        self.load_keys(store).await?;
        let day = clock::now() / DAY;
        if self.cleared_day.swap(day, Ordering::Relaxed) != day {
            store.forget_key_usage(day.saturating_sub(KEEP_DAYS)).await?;
        }
        Ok(())
    }

    /// Writes rows and deletes old ones at regular intervals, until `stop`.
    pub async fn write_until(self: Arc<Self>, stop: CancellationToken) {
        let mut cleared: Option<Instant> = None;
        while !stop.is_cancelled() {
            tokio::select! { () = stop.cancelled() => {}, () = tokio::time::sleep(EVERY) => {} }
            self.flush().await;
            // A database that is away must not keep rows from the disk.
            if self.shared_usage().is_none() {
                self.save_keys().await;
            }
            if !stop.is_cancelled() && cleared.is_none_or(|at| at.elapsed() >= CLEAR_EVERY) {
                cleared = Some(Instant::now());
                self.delete_old_rows().await;
            }
        }
    }

    /// Writes the waiting rows. It waits for a write that is under way.
    pub async fn flush(&self) {
        let _alone = self.flushing.lock().await;
        let (rows, lost) = {
            let mut state = self.lock_state();
            // Probably as many rows will follow, and a list that grows is copied.
            let next = Vec::with_capacity(state.waiting.len());
            (std::mem::replace(&mut state.waiting, next), std::mem::take(&mut state.lost))
        };
        count_lost(lost);
        let Some(store) = self.store.as_ref().filter(|_| !rows.is_empty()) else { return };
        match store.append(rows).await {
            Ok(()) => {
                if self.lock_state().fault.take().is_some() {
                    tracing::info!(target: "respool::usage", "usage records are written again");
                }
            }
            Err((rows, error)) => self.take_back(rows, &error),
        }
    }

    /// Writes the waiting rows for the last time. Those that cannot be written are lost, and counted.
    pub async fn close(&self) {
        self.flush().await;
        let (lost, why) = {
            let mut state = self.lock_state();
            (std::mem::take(&mut state.waiting).len(), state.fault.clone().unwrap_or_default())
        };
        if lost > 0 {
            count_lost(lost as u64);
            tracing::error!(target: "respool::usage", lost, why, "usage records were lost: they could not be written before the end");
        }
    }

    /// Keeps rows that could not be written for the next time, if there is room.
    fn take_back(&self, mut rows: Vec<UsageRow>, error: &StoreError) {
        let mut state = self.lock_state();
        rows.append(&mut state.waiting);
        let lost = rows.len().saturating_sub(MOST_WAITING);
        rows.drain(..lost);
        state.waiting = rows;
        let is_news = state.fault.replace(error.to_string()).is_none();
        drop(state);
        count_lost(lost as u64);
        if is_news {
            tracing::error!(target: "respool::usage", %error, "usage records cannot be written; requests are still answered");
        }
    }

    /// Returns the reason why rows cannot be written now.
    pub fn fault(&self) -> Option<String> {
        self.lock_state().fault.clone()
    }

    /// Returns the reason why rows cannot be copied to the database of all processes now.
    pub fn sharing_fault(&self) -> Option<String> {
        self.lock_state().apart.clone()
    }

    async fn delete_old_rows(&self) {
        let Some(store) = &self.store else { return };
        let config = self.current_settings().config.clone();
        if let Err(error) = store.clear(clock::time_ago(config.keep), config.max_size.0).await {
            tracing::warn!(target: "respool::usage", %error, "old usage records cannot be deleted");
        }
        if let Some(shared) = self.shared_usage()
            && let Err(error) = shared.forget_rows(clock::time_ago(config.keep)).await
        {
            tracing::warn!(target: "respool::usage", %error, "old usage records of the database cannot be deleted");
        }
    }

    /// Returns true when there is a budget.
    pub fn has_budgets(&self) -> bool {
        !self.current_settings().budgets.is_empty()
    }

    /// True for a model without a price.
    pub fn is_free(&self, model: &str) -> bool {
        self.current_settings().prices.token_price(model).is_none()
    }

    /// Refuses a request whose key's, agent's or day's budget is spent, or will likely be by the requests
    /// under way. `id`: its own.
    ///
    /// # Errors
    /// The spent budget, and when another request may pass.
    pub fn check_budget(&self, owner: Owner<'_>, id: &str) -> Result<(), Exhausted> {
        if !self.has_budgets() {
            return Ok(());
        }
        let live = self.in_flight.requests();
        // The model calls of a run are requests of their own.
        let others = live.iter().filter(|request| request.id != id && request.route != "agent");
        let under_way = others.map(|request| UnderWay {
            owner: Owner { key: &request.key, agent: &request.agent },
            model: &request.model,
        });
        let under_way: Vec<_> = under_way.collect();
        self.check_with(owner, &under_way)
    }

    /// Refuses work whose agent's or day's budget is spent, whatever is under way.
    ///
    /// # Errors
    /// The spent budget.
    pub fn check_spent(&self, owner: Owner<'_>) -> Result<(), Exhausted> {
        if self.has_budgets() { self.check_with(owner, &[]) } else { Ok(()) }
    }

    fn check_with(&self, owner: Owner<'_>, under_way: &[UnderWay<'_>]) -> Result<(), Exhausted> {
        let settings = self.current_settings();
        let mut state = self.lock_state();
        if state.apart.is_some() && settings.budgets.refuse_without_database {
            let (shortage, scope) = (Shortage::Unknown, Scope::Everybody);
            return Err(Exhausted { shortage, scope, budget: Money::default(), wait: SHARE_EVERY.as_secs() });
        }
        state.spending.check_budgets(&settings.budgets, owner, under_way, clock::now())
    }

    /// Returns the budgets that have reached their warning mark today.
    pub fn reached_budgets(&self) -> Vec<DayBudget> {
        self.lock_state().spending.reached_budgets(&self.current_settings().budgets, clock::now())
    }

    /// Returns all budgets, those of these keys among them, with what is spent of each today.
    pub fn budgets(&self, keys: &[String]) -> Vec<DayBudget> {
        self.lock_state().spending.all_budgets(&self.current_settings().budgets, keys, clock::now())
    }

    /// Updates the metrics of budgets: those that the configuration names, and those that were spent from.
    pub fn measure_budgets(&self) {
        let mut budgets = self.budgets(&[]);
        budgets.truncate(MEASURED);
        let settings = self.current_settings();
        let before = std::mem::take(&mut self.lock_state().measured);
        for scope in before {
            if budgets.iter().any(|budget| budget.scope == scope) {
                continue;
            }
            // On a new day, nothing is spent of it yet.
            if let Some(budget) = daily_budget(&settings.budgets, &scope) {
                budgets.push(DayBudget { scope, budget, spent: Money::default() });
            } else {
                let (kind, name) = scope.labels();
                metrics::set_budget(kind, name, f64::NAN, f64::NAN);
            }
        }
        self.lock_state().measured = budgets.iter().map(|budget| budget.scope.clone()).collect();
        for DayBudget { scope, budget, spent } in &budgets {
            let (kind, name) = scope.labels();
            metrics::set_budget(kind, name, spent.units(), budget.units());
        }
    }

    /// Returns the requests to models of the last hours, by the minute.
    pub fn minutes(&self) -> Minutes {
        self.lock_state().minutes.clone()
    }

    /// Forgets that an upstream refused respool, because a probe finds that it no longer does.
    pub fn forget_refusals(&self, upstream: &str) {
        self.lock_state().minutes.forget_refusals(upstream);
    }

    /// Returns the recent problems, the newest first.
    pub fn problems(&self) -> Vec<Problem> {
        self.lock_state().problems.iter().rev().cloned().collect()
    }

    /// Writes the rows that wait, so that they can be read.
    pub(super) async fn bring_up_to_date(&self) {
        self.flush().await;
        if self.lock_state().apart.is_none() {
            self.share().await;
        }
    }

    /// Returns the currency of the prices; empty if it is not set.
    pub fn currency(&self) -> String {
        self.current_settings().config.currency.clone().unwrap_or_default()
    }
}

impl UsageSink for Ledger {
    fn record_request(&self, ended: EndedRequest) {
        let EndedRequest { row, known_model, counted, queued, prefix_lost } = ended;
        if WITHOUT_ROWS.contains(&&*row.route) {
            return;
        }
        let settings = self.current_settings();
        let mut state = self.lock_state();
        let is_request = row.route != UsageRow::ATTEMPT;
        // The model calls of a run are counted by rows of their own.
        let counted = counted.filter(|_| row.route != "agent");
        if let Some(usage) = counted.filter(|_| !row.key.is_empty()) {
            let model = if row.route == "agent_model" { &row.model } else { &known_model };
            state.keys.add_usage(&row.key, model, u64::from(is_request), usage, clock::now() / DAY);
        }
        // Where processes share a database, another one may have a budget.
        if (!settings.budgets.is_empty() || self.shared_usage().is_some())
            && let Some(usage) = counted
        {
            let cost = settings.prices.cost_of(&row.model, usage).unwrap_or_default();
            let owner = Owner { key: &row.key, agent: &row.agent };
            state.spending.learn_cost(&row.model, cost);
            for warning in state.spending.add_cost(&settings.budgets, owner, cost, clock::now()) {
                warn_about_budget(&warning);
            }
        }
        let at = clock::now();
        if is_request && !row.model.is_empty() {
            let queued = clock::to_millis(queued);
            let prefix_lost = prefix_lost.map(|lost| format!("{}: {lost}", request_name(&row)));
            let outcome = RequestOutcome { queued, prefix_lost, ..RequestOutcome::from_row(&row) };
            state.minutes.add_request(outcome, at);
            if row.outcome == "ok" {
                state.minutes.forget_refusals(&row.upstream);
            }
        }
        if is_request && row.outcome == "error" {
            state.keep_problem(&row);
        }
        if self.store.is_none() {
            return;
        }
        if state.waiting.len() < MOST_WAITING {
            state.waiting.push(row);
        } else {
            state.lost += 1;
        }
    }
}

/// Returns true if the rows are older than the use of this database, which does not know their cost.
async fn is_new_to(rows: Option<&UsageStore>, shared: &dyn SharedUsage) -> bool {
    let Some((rows, database)) = rows.zip(shared.database_id().await.ok()) else { return false };
    matches!(rows.was_copied_to(database).await, Ok(false))
}

/// Names a request and its sender.
fn request_name(row: &UsageRow) -> String {
    let named =
        |word: &str, name: &str| if name.is_empty() { String::new() } else { format!(", {word} {name}") };
    let (key, agent) = (named("key", &row.key), named("agent", &row.agent));
    format!("request {} for {}{key}{agent}", row.id, row.model)
}

fn count_lost(lost: u64) {
    if lost > 0 {
        metrics::count_lost_usage_rows(lost);
    }
}

fn warn_about_budget(warning: &DayBudget) {
    let DayBudget { scope, budget, spent } = warning;
    tracing::warn!(target: "respool::usage", scope = scope.describe(), %spent, %budget, "{}", warning.describe());
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use super::*;
    use crate::report::ReportLine;
    use store::{DatabaseConfig, StoreConfig};
    use testing::stores::refuse_usage;
    use testing::waiting::wait_until;
    use wire::turn::Usage;
    use wire::units::Secret;

    fn ledger(dir: &std::path::Path) -> Ledger {
        let prices = Prices::new(&BTreeMap::new(), None, None).unwrap();
        let store = Arc::new(UsageStore::open(dir).unwrap());
        Ledger::new(LedgerSettings { prices, ..LedgerSettings::default() }, Some(store))
    }

    fn record(ledger: &Ledger, row: UsageRow) {
        let counted = row.usage;
        ledger.record_request(EndedRequest { row, counted, ..EndedRequest::default() });
    }

    fn row(at: u64) -> UsageRow {
        UsageRow { at, outcome: "ok".into(), ..UsageRow::default() }
    }

    #[tokio::test]
    async fn a_full_disk_costs_only_rows() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = ledger(dir.path());
        refuse_usage(dir.path(), true);
        (0..5).for_each(|at| record(&ledger, row(at)));
        ledger.flush().await;
        assert!(ledger.fault().is_some());
        // What waits is bounded: later rows find no room.
        let more = MOST_WAITING as u64 + 3;
        (5..more).for_each(|at| record(&ledger, row(at)));
        ledger.flush().await;
        refuse_usage(dir.path(), false);
        ledger.flush().await;
        assert_eq!(ledger.fault(), None);
        refuse_usage(dir.path(), true);
        record(&ledger, row(more));
        ledger.close().await;
        assert!(ledger.lock_state().waiting.is_empty(), "the last one is lost");
        refuse_usage(dir.path(), false);
        let query = RequestQuery { most: usize::MAX, ..RequestQuery::default() };
        let kept = ledger.records().find_requests(query).await.unwrap();
        assert_eq!((kept.len(), kept.last().map(|row| row.at)), (MOST_WAITING, Some(0)));
    }

    fn used(key: &str, model: &str, tokens: u64, seconds: u64) -> UsageRow {
        UsageRow {
            key: key.into(),
            model: model.into(),
            route: "live".into(),
            upstream: "gpu".into(),
            usage: Some(Usage { prompt: tokens, ..Usage::default() }),
            duration: Duration::from_secs(seconds),
            ..row(clock::now() - 1_000 * seconds)
        }
    }

    fn prices() -> Prices {
        let text = "[paid]\ninput = 1.0";
        let aliases = BTreeMap::from([("cheap".to_owned(), "paid".to_owned())]);
        Prices::new(&toml::from_str(text).unwrap(), None, None).unwrap().with_aliases(aliases)
    }

    #[tokio::test]
    async fn aliases_cost_the_price_of_their_model() {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(UsageStore::open(dir.path()).unwrap());
        let ledger =
            Ledger::new(LedgerSettings { prices: prices(), ..LedgerSettings::default() }, Some(store));
        let rows = [used("alice", "mine", 1_000, 900), used("bob", "cheap", 2_000_000, 3_600)];
        rows.into_iter().for_each(|row| record(&ledger, row));
        let report = ledger.records().report(everything()).await.unwrap();
        let costs: Vec<_> = report.lines.iter().map(|line| (&*line.names[0], line.cost.units())).collect();
        assert_eq!(costs, [("alice", 0.0), ("bob", 2.0)]);
    }

    #[tokio::test]
    async fn a_new_budget_counts_earlier_spending() {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(UsageStore::open(dir.path()).unwrap());
        let ledger =
            Ledger::new(LedgerSettings { prices: prices(), ..LedgerSettings::default() }, Some(store));
        record(&ledger, used("alice", "paid", 1_500_000, 0));
        let budgets = BudgetsConfig { day: Some(1.0), ..BudgetsConfig::default() };
        ledger
            .change_settings(LedgerSettings { prices: prices(), budgets, ..LedgerSettings::default() })
            .await;
        assert!(ledger.check_budget(Owner::default(), "").is_err(), "1.5 of 1.0 are spent");
        let spent: Vec<Money> = ledger.reached_budgets().iter().map(|reached| reached.spent).collect();
        assert_eq!(spent, [Money::from_units(1.5)]);
    }

    #[test]
    fn a_wrong_request_is_no_server_failure() {
        let ledger = Ledger::new(LedgerSettings::default(), None);
        for (code, status, failed) in
            [("model_not_found", 404, 0), ("upstream_timeout", 422, 1), ("", 400, 1), ("", 500, 2)]
        {
            let failed_row = UsageRow {
                outcome: "error".into(),
                model: "m".into(),
                error_code: code.into(),
                status,
                ..row(1)
            };
            record(&ledger, failed_row);
            assert_eq!(ledger.minutes().counts_since(0).failed, failed, "{code} {status}");
        }
        assert_eq!(ledger.problems().len(), 4);
    }

    #[test]
    fn the_last_problems_are_remembered() {
        let ledger = Ledger::new(LedgerSettings::default(), None);
        (0..60).for_each(|at| record(&ledger, UsageRow { outcome: "error".into(), ..row(at) }));
        record(&ledger, row(99));
        let found = ledger.problems();
        assert_eq!((found.len(), found[0].at, found[49].at), (50, 59, 10));
    }

    /// Regression: after a restart the page said that nothing had failed.
    #[tokio::test]
    async fn problems_outlive_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let failed = |id: &str, ago| UsageRow {
            id: id.into(),
            outcome: "error".into(),
            error_code: "upstream_dns".into(),
            ..row(clock::now() - ago)
        };
        let before = ledger(dir.path());
        for row in
            [failed("old", 9 * 24 * 3_600_000), failed("a", 2_000), row(clock::now()), failed("b", 1_000)]
        {
            record(&before, row);
        }
        before.flush().await;
        drop(before);
        let after = ledger(dir.path());
        record(&after, failed("c", 0));
        after.load_problems().await;
        let found: Vec<_> = after.problems().iter().map(|problem| problem.request.clone()).collect();
        assert_eq!(found, ["c", "b", "a"]);
    }

    #[tokio::test]
    async fn requests_that_ended_were_not_cut() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = ledger(dir.path());
        record(&ledger, UsageRow { id: "ended".into(), ..row(5_100) });
        ledger.flush().await;
        let request = |id: &str| RunningRequest { id: id.into(), since: 5_000, ..RunningRequest::default() };
        let left = RunningList { at: 9_000, requests: vec![request("ended"), request("cut")], count: 2 };
        ledger.record_cut_requests(left).await;
        ledger.flush().await;
        let query = RequestQuery { most: 9, ..RequestQuery::default() };
        let kept = ledger.records().find_requests(query).await.unwrap();
        let kept: Vec<_> =
            kept.iter().map(|row| (&*row.id, &*row.error_code, row.duration.as_secs())).collect();
        assert_eq!(kept, [("ended", "", 0), ("cut", "killed", 4)]);
        assert_eq!(ledger.problems().len(), 1);
    }

    fn runs_store(dir: &std::path::Path) -> Arc<Store> {
        let config = StoreConfig { state_dir: dir.to_owned(), ..StoreConfig::default() };
        Arc::new(Store::open(&config).unwrap())
    }

    /// Two processes share a store; the limits of keys count both, also after a restart and without rows.
    #[tokio::test]
    async fn tokens_of_keys_count_everywhere() {
        let dir = tempfile::tempdir().unwrap();
        let store = runs_store(dir.path());
        let (first, second) =
            (Ledger::new(LedgerSettings::default(), None), Ledger::new(LedgerSettings::default(), None));
        first.use_key_store(Arc::clone(&store)).await;
        second.use_key_store(Arc::clone(&store)).await;
        record(&first, used("alice", "m", 50, 0));
        first.save_keys().await;
        record(&second, used("alice", "m", 49, 0));
        second.save_keys().await;
        assert_eq!((first.tokens_today("alice"), second.tokens_today("alice")), (50, 99));
        record(&first, used("bob", "", 1, 0));
        first.save_keys().await;
        assert_eq!(first.tokens_today("alice"), 99, "the other process's count arrives with the next one");
        drop((first, second, store));
        let third = Ledger::new(LedgerSettings::default(), None);
        third.use_key_store(runs_store(dir.path())).await;
        assert_eq!((third.tokens_today("alice"), third.tokens_today("bob")), (99, 1));
    }

    /// The estimate of a reply that was cut counts against limits and budgets; its row states no tokens.
    #[test]
    fn estimates_count_and_leave_no_row() {
        let budgets = BudgetsConfig { day: Some(1.0), ..BudgetsConfig::default() };
        let ledger =
            Ledger::new(LedgerSettings { prices: prices(), budgets, ..LedgerSettings::default() }, None);
        let row = UsageRow { usage: None, ..used("alice", "paid", 0, 0) };
        let counted = Some(Usage { prompt: 1_500_000, ..Usage::default() });
        let of_agent = UsageRow { route: "agent".into(), ..row.clone() };
        ledger.record_request(EndedRequest { row, counted, ..EndedRequest::default() });
        ledger.record_request(EndedRequest { row: of_agent, counted, ..EndedRequest::default() });
        assert_eq!(ledger.tokens_today("alice"), 1_500_000);
        assert!(ledger.check_budget(Owner::default(), "").is_err());
    }

    /// A process on a database.
    async fn open_node(dir: &Path, url: &str, budgets: &BudgetsConfig) -> Ledger {
        let url = Some(Secret::new(url));
        let database = DatabaseConfig { url, pool: 2, ..DatabaseConfig::default() };
        let config = StoreConfig { state_dir: dir.to_owned(), store: database, ..StoreConfig::default() };
        let rows = Arc::new(UsageStore::open(dir).unwrap());
        let settings =
            LedgerSettings { prices: prices(), budgets: budgets.clone(), ..LedgerSettings::default() };
        let ledger = Ledger::new(settings, Some(rows));
        ledger.use_key_store(Arc::new(Store::open(&config).unwrap())).await;
        ledger
    }

    /// Two processes on one database; `None` on a machine without `PostgreSQL`.
    async fn two_nodes(budgets: &BudgetsConfig) -> Option<([Ledger; 2], [tempfile::TempDir; 2], String)> {
        let url = testing::postgres_server::new_database()?;
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [first, second] = dirs.each_ref().map(|dir| open_node(dir.path(), &url, budgets));
        let ledgers = [first.await, second.await];
        Some((ledgers, dirs, url))
    }

    fn run_sql(url: &str, sql: &'static str) {
        let url = url.to_owned();
        let run = move || {
            let mut client = postgres::Client::connect(&url, postgres::NoTls).unwrap();
            client.batch_execute(sql).unwrap();
        };
        std::thread::spawn(run).join().unwrap();
    }

    fn everything() -> UsageQuery {
        UsageQuery { since: 0, until: u64::MAX, by: vec![Dimension::Key, Dimension::Day], only: Vec::new() }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_budget_counts_all_nodes() {
        let budgets = BudgetsConfig { day: Some(2.0), ..BudgetsConfig::default() };
        let Some(([first, second], _dirs, _)) = two_nodes(&budgets).await else { return };
        let check = |ledger: &Ledger| ledger.check_budget(Owner { key: "alice", agent: "" }, "");
        record(&first, used("alice", "paid", 1_500_000, 0));
        record(&second, used("bob", "paid", 600_000, 0));
        check(&second).expect("it has not heard of the other");
        first.share().await;
        let has_learnt = async |ledger: &Ledger| {
            ledger.share().await;
            check(ledger).is_err()
        };
        wait_until("the second one has learnt of the first", async || has_learnt(&second).await).await;
        let found = check(&second).unwrap_err();
        assert_eq!((found.shortage, found.scope), (Shortage::Spent, Scope::Everybody));
        wait_until("and the first one of the second", async || has_learnt(&first).await).await;
        assert_eq!(first.reached_budgets()[0].spent, Money::from_units(2.1));
    }

    /// Regression: budgets began at zero when a store was taken along to a database.
    #[tokio::test(flavor = "multi_thread")]
    async fn spending_of_before_the_database_counts() {
        let Some(url) = testing::postgres_server::new_database() else { return };
        let dir = tempfile::tempdir().unwrap();
        let open = || {
            let budgets = BudgetsConfig { day: Some(9.0), ..BudgetsConfig::default() };
            let settings = LedgerSettings { prices: prices(), budgets, ..LedgerSettings::default() };
            Ledger::new(settings, Some(Arc::new(UsageStore::open(dir.path()).unwrap())))
        };
        let alone = open();
        record(&alone, used("alice", "paid", 1_500_000, 0));
        alone.close().await;
        drop(alone);
        let database =
            DatabaseConfig { url: Some(Secret::new(url.clone())), pool: 2, ..DatabaseConfig::default() };
        let config =
            StoreConfig { state_dir: dir.path().to_owned(), store: database, ..StoreConfig::default() };
        for starts in 1..=3 {
            let ledger = open();
            ledger.load_spending().await;
            ledger.use_key_store(Arc::new(Store::open(&config).unwrap())).await;
            let spent = ledger.budgets(&[])[0].spent;
            assert_eq!(spent, Money::from_units(1.5), "start {starts}");
        }
    }

    /// Reports of every node are about all of them, and a row arrives once however often it is sent.
    #[tokio::test(flavor = "multi_thread")]
    async fn rows_of_all_nodes_arrive_once() {
        let Some(([first, second], dirs, url)) = two_nodes(&BudgetsConfig::default()).await else { return };
        let names = async |ledger: &Ledger| {
            let report = ledger.records().report(everything()).await.unwrap();
            let names = report.lines.iter().map(|line| (line.names[0].clone(), line.totals.requests));
            names.collect::<Vec<_>>()
        };
        record(&first, used("alice", "m\0", 10, 1));
        let mut moved = UsageRow { run: "run-1".into(), attempts: 2, ..used("alice", "m", 10, 1) };
        let failed = wire::EarlierAttempt {
            upstream: "down".into(),
            error: "a\0b".into(),
            ..wire::EarlierAttempt::default()
        };
        moved.details.earlier_attempts = vec![failed];
        record(&first, moved);
        record(&second, used("bob", "m", 5, 1));
        names(&first).await;
        let all = [("alice".to_owned(), 2), ("bob".to_owned(), 1)];
        assert_eq!(names(&second).await, all);
        assert_eq!(second.records().requests_of_run("run-1", 9).await.unwrap().len(), 1);
        let by_upstream = UsageQuery { by: vec![Dimension::Upstream], ..everything() };
        let report = second.records().report(by_upstream).await.unwrap();
        let counts = |line: &ReportLine| (line.names[0].clone(), line.totals.requests, line.totals.repeats);
        let counts: Vec<_> = report.lines.iter().map(counts).collect();
        assert_eq!(counts, [("down".into(), 0, 1), ("gpu".into(), 3, 0)], "each attempt where it was made");
        let only = vec![(Dimension::Upstream, "down".to_owned())];
        let query = RequestQuery { only, most: 9, ..RequestQuery::default() };
        assert_eq!(
            second.records().find_requests(query).await.unwrap().len(),
            1,
            "with a zero byte in its error"
        );
        // The database has the rows, but the answer is lost.
        rusqlite::Connection::open(dirs[0].path().join("usage.db"))
            .unwrap()
            .execute("UPDATE copies SET last = 0", [])
            .unwrap();
        run_sql(&url, "ALTER TABLE respool.usage RENAME TO gone");
        record(&first, used("alice", "m", 10, 1));
        first.flush().await;
        first.share().await;
        assert_eq!(names(&first).await, [("alice".to_owned(), 3)], "meanwhile its own are shown");
        run_sql(&url, "ALTER TABLE respool.gone RENAME TO usage");
        first.share().await;
        assert_eq!(names(&second).await, [("alice".to_owned(), 3), ("bob".to_owned(), 1)]);
        assert_eq!(names(&first).await, names(&second).await);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn budgets_may_refuse_without_the_database() {
        let budgets =
            BudgetsConfig { day: Some(2.0), refuse_without_database: true, ..BudgetsConfig::default() };
        let Some(([first, _second], _dirs, url)) = two_nodes(&budgets).await else { return };
        first.check_budget(Owner::default(), "").unwrap();
        run_sql(&url, "ALTER TABLE respool.spending RENAME TO gone");
        let checked = async || {
            first.share().await;
            first.check_budget(Owner::default(), "").map_err(|found| found.shortage)
        };
        wait_until("it is refused", async || checked().await == Err(Shortage::Unknown)).await;
        run_sql(&url, "ALTER TABLE respool.gone RENAME TO spending");
        wait_until("it is permitted", async || checked().await == Ok(())).await;
    }

    /// Regression: rows that were copied after a dump were not copied again to the database restored from it.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_restored_database_gets_later_rows() {
        let Some(([first, second], _dirs, url)) = two_nodes(&BudgetsConfig::default()).await else { return };
        let count = async || {
            let report = second.records().report(everything()).await.unwrap();
            report.lines.iter().map(|line| line.totals.requests).sum::<u64>()
        };
        for at in 0..3 {
            record(&first, used("alice", "m", 10, at));
        }
        first.flush().await;
        first.share().await;
        assert_eq!(count().await, 3);
        run_sql(&url, "ALTER TABLE respool.usage RENAME TO gone");
        record(&first, used("alice", "m", 10, 0));
        first.flush().await;
        first.share().await;
        run_sql(&url, "ALTER TABLE respool.gone RENAME TO usage; DELETE FROM respool.usage WHERE place > 1");
        first.share().await;
        assert_eq!(count().await, 4);
    }

    /// Regression: a file that was set back, or lives on as a copy, gave numbers that the database knew,
    /// which kept none of their rows.
    #[tokio::test(flavor = "multi_thread")]
    async fn repeated_numbers_lose_nothing() {
        let Some(([first, second], dirs, url)) = two_nodes(&BudgetsConfig::default()).await else { return };
        let keep = async |ledger: &Ledger, key: &str| {
            for seconds in 0..2 {
                let id = format!("{key} {seconds}");
                record(ledger, UsageRow { id, ..used(key, "m", 10, seconds) });
            }
            ledger.flush().await;
            ledger.share().await;
        };
        keep(&first, "before").await;
        let copy = tempfile::tempdir().unwrap();
        store::copy_databases(dirs[0].path(), copy.path()).unwrap();
        keep(&first, "since").await;
        drop(first);
        // Neither the inode nor the time of birth changes, as with the snapshot of a disk.
        let [own, copied] = [&dirs[0], &copy].map(|dir| dir.path().join("usage.db"));
        std::fs::copy(&copied, &own).unwrap();
        let back = open_node(dirs[0].path(), &url, &BudgetsConfig::default()).await;
        let clone = open_node(copy.path(), &url, &BudgetsConfig::default()).await;
        for round in 0..2 {
            keep(&back, &format!("back {round}")).await;
            keep(&clone, &format!("clone {round}")).await;
        }
        let report = second.records().report(everything()).await.unwrap();
        let counts: BTreeMap<&str, u64> =
            report.lines.iter().map(|line| (&*line.names[0], line.totals.requests)).collect();
        let keys = ["back 0", "back 1", "before", "clone 0", "clone 1", "since"];
        assert_eq!(counts, keys.map(|key| (key, 2)).into());
    }

    /// Once all rows are deleted, the numbers of new ones begin again.
    #[tokio::test(flavor = "multi_thread")]
    async fn rows_after_a_deletion_arrive_too() {
        let Some(([first, second], _dirs, _)) = two_nodes(&BudgetsConfig::default()).await else { return };
        record(&first, used("alice", "m", 10, 0));
        first.records().report(everything()).await.unwrap();
        first.store().unwrap().clear(u64::MAX, u64::MAX).await.unwrap();
        record(&first, used("bob", "m", 10, 0));
        first.records().report(everything()).await.unwrap();
        assert_eq!(second.records().report(everything()).await.unwrap().lines.len(), 2);
    }
}
