//! The queue, as the rest of respool asks the store for it; and runs that only the holder of an entry may begin or claim.

use futures::future::BoxFuture;

use super::queue::{
    self, Change, ClaimRequest, Claimed, Clock, Enqueued, EntryEnd, EntryLease, EntryRow, EntryState,
    GoneClocks, NewEntry, Queue,
};
use super::read;
use super::write::Job;
use super::{NewRun, Store, StoreError};

impl Queue for Store {
    fn enqueue_all(
        &self,
        entries: Vec<NewEntry>,
        now: u64,
    ) -> BoxFuture<'_, Result<Vec<Enqueued>, StoreError>> {
        Box::pin(async move {
            let change = Change::Enqueue { entries, now };
            let enqueued = self.ask(|answer| Job::Queue { change, answer }).await?.enqueued;
            if enqueued.contains(&Enqueued::Accepted) {
                self.queued.notify_one();
            }
            Ok(enqueued)
        })
    }

    fn correct_clock(&self, now: u64) -> BoxFuture<'_, Result<Option<u64>, StoreError>> {
        Box::pin(async move {
            let change = Change::CorrectClock { now };
            Ok(self.ask(|answer| Job::Queue { change, answer }).await?.set_back)
        })
    }

    fn clock_mark(&self, clock: &Clock, now: u64) -> BoxFuture<'_, Result<u64, StoreError>> {
        let clock = clock.clone();
        Box::pin(async move {
            let change = Change::WatchClock { clock, now };
            let reply = self.ask(|answer| Job::Queue { change, answer }).await?;
            Ok(reply.mark.unwrap_or(now))
        })
    }

    fn forget_clocks(&self, gone: GoneClocks) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let change = Change::ForgetClocks(gone);
            self.ask(|answer| Job::Queue { change, answer }).await.map(drop)
        })
    }

    fn claim_entries(&self, request: ClaimRequest) -> BoxFuture<'_, Result<Vec<Claimed>, StoreError>> {
        Box::pin(async move {
            let reply = self.ask(|answer| Job::Queue { change: Change::Claim(request), answer }).await?;
            Ok(reply.claimed)
        })
    }

    fn heartbeat(&self, lease: &EntryLease, until: u64) -> BoxFuture<'_, Result<bool, StoreError>> {
        self.changed(Change::Heartbeat { lease: lease.clone(), until })
    }

    fn retry_at(&self, lease: &EntryLease, at: u64, note: String) -> BoxFuture<'_, Result<bool, StoreError>> {
        self.changed(Change::Retry { lease: lease.clone(), at, note })
    }

    fn hold(&self, lease: &EntryLease, note: String) -> BoxFuture<'_, Result<bool, StoreError>> {
        self.changed(Change::Hold { lease: lease.clone(), note })
    }

    fn wake(&self, entry: &str, now: u64) -> BoxFuture<'_, Result<bool, StoreError>> {
        self.changed(Change::Wake { entry: entry.to_owned(), now })
    }

    fn complete(
        &self,
        lease: &EntryLease,
        end: EntryEnd,
        note: String,
        now: u64,
    ) -> BoxFuture<'_, Result<bool, StoreError>> {
        self.changed(Change::Complete { lease: lease.clone(), end, note, now })
    }
}

impl Store {
    fn changed(&self, change: Change) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(async move {
            let reply = self.ask(|answer| Job::Queue { change, answer }).await?;
            Ok(reply.count > 0)
        })
    }

    /// Waits until this process queues an entry, or has queued one since this was last waited for. For one worker alone.
    pub async fn wait_for_entry(&self) {
        self.queued.notified().await;
    }

    /// The entries of a state, in the order in which they were accepted; `queue`: of this one alone.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn entries(
        &self,
        queue: Option<&str>,
        state: EntryState,
        most: usize,
    ) -> Result<Vec<EntryRow>, StoreError> {
        let queue = queue.map(str::to_owned);
        self.read(move |connection| queue::list(connection, queue.as_deref(), state, most)).await
    }

    /// The entries of a state that were accepted last, the newest first.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn newest_entries(&self, state: EntryState, most: usize) -> Result<Vec<EntryRow>, StoreError> {
        self.read(move |connection| queue::newest(connection, state, most)).await
    }

    /// The places of a queue's entries that have not ended, in order, behind one of them.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn open_places(&self, queue: &str, behind: u64) -> Result<Vec<u64>, StoreError> {
        let queue = queue.to_owned();
        self.read(move |connection| queue::open_places(connection, &queue, behind)).await
    }

    /// The entries at these places.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn entries_at(&self, places: Vec<u64>) -> Result<Vec<EntryRow>, StoreError> {
        self.read(move |connection| queue::at_places(connection, &places)).await
    }

    /// One entry.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn entry(&self, id: &str) -> Result<Option<EntryRow>, StoreError> {
        let id = id.to_owned();
        self.read(move |connection| queue::one(connection, &id)).await
    }

    /// When the oldest work of a queue, or of the agent that works on it, began that is still open; `None` when none is.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn oldest_open(&self, queue: &str, agent: &str) -> Result<Option<u64>, StoreError> {
        let (queue, agent) = (queue.to_owned(), agent.to_owned());
        self.read(move |connection| read::oldest_open(connection, &queue, &agent)).await
    }

    /// The entry that a run works on.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn entry_of_run(&self, run: &str) -> Result<Option<EntryRow>, StoreError> {
        let run = run.to_owned();
        self.read(move |connection| queue::of_run(connection, &run)).await
    }

    /// The entry that a waiting one of the same lane waits for, where there is one.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn entry_before(&self, id: &str) -> Result<Option<EntryRow>, StoreError> {
        let id = id.to_owned();
        self.read(move |connection| queue::before(connection, &id)).await
    }

    /// When the next entry of these queues is due or its lease ends; `None` when nothing waits.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn next_due(&self, queues: Vec<String>) -> Result<Option<u64>, StoreError> {
        self.read(move |connection| queue::next_due(connection, &queues)).await
    }

    /// Queues a dead letter again, at the end of its lane, under a new id; false when it is none. Its dedupe key does not count.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn replay(&self, entry: &str, new_id: &str, now: u64) -> Result<bool, StoreError> {
        let (entry, new_id) = (entry.to_owned(), new_id.to_owned());
        self.changed(Change::Replay { entry, new_id, now }).await
    }

    /// Drops a dead letter; false when it is none.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn drop_dead_letter(&self, entry: &str) -> Result<bool, StoreError> {
        self.changed(Change::Drop { entry: entry.to_owned() }).await
    }

    /// Returns a claimed entry to the queue, due at this time, as if it had not been claimed: its attempt and its run stay as they are.
    /// False when the lease is lost.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn give_back_entry(&self, lease: &EntryLease, at: u64, note: &str) -> Result<bool, StoreError> {
        self.changed(Change::GiveBack { lease: lease.clone(), at, note: note.to_owned() }).await
    }

    /// Ends an entry that waits or is held, so that nothing more is done for it; false when it is neither.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn give_up(&self, entry: &str, note: &str, now: u64) -> Result<bool, StoreError> {
        let (entry, note) = (entry.to_owned(), note.to_owned());
        self.changed(Change::GiveUp { entry, note, now }).await
    }

    /// Commits a new run that works on an entry; false when the lease is lost: then there is no run.
    ///
    /// # Errors
    /// When it cannot be committed.
    pub async fn begin_leased(&self, run: NewRun, lease: &EntryLease) -> Result<bool, StoreError> {
        let (lease, owner) = (lease.clone(), self.lease.owner().to_owned());
        self.ask(|answer| Job::BeginLeased { run, lease, owner, answer }).await
    }

    /// Makes this process the one that works on the run of an entry, no matter who does so now. Returns the epoch; `None` when the
    /// lease is lost or the run is over.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn claim_leased(&self, run: &str, lease: &EntryLease) -> Result<Option<u64>, StoreError> {
        let (run, lease, owner) = (run.to_owned(), lease.clone(), self.lease.owner().to_owned());
        self.ask(|answer| Job::ClaimLeased { run, lease, owner, answer }).await
    }
}

#[cfg(test)]
mod tests;
