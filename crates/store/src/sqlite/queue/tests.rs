//! The queue against a plain model of it.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use rusqlite::{Connection, Transaction};

use super::*;
use std::time::Duration;

use crate::queue::*;

/// An entry as the model has it; its place in the list is the order in which it was accepted.
#[derive(Clone, Debug)]
struct Entry {
    id: String,
    queue: String,
    lane: Option<LaneKey>,
    state: EntryState,
    due: u64,
    epoch: u64,
    until: u64,
}

impl Entry {
    fn is_open(&self) -> bool {
        matches!(self.state, EntryState::Waiting | EntryState::Claimed | EntryState::Held)
    }
}

#[derive(Default)]
struct Model {
    entries: Vec<Entry>,
    keys: BTreeMap<u8, (u64, String)>,
    now: u64,
}

impl Model {
    fn is_first_of_its_lane(&self, place: usize) -> bool {
        let own = &self.entries[place];
        let is_earlier =
            |other: &Entry| other.is_open() && other.queue == own.queue && other.lane == own.lane;
        own.lane.is_none() || !self.entries[..place].iter().any(is_earlier)
    }

    /// The entries that a claim must return, in order.
    fn claim(&mut self, queues: &[String], most: usize, until: u64) -> Vec<(String, u64)> {
        let now = self.now;
        let expired = |entry: &&mut Entry| entry.state == EntryState::Claimed && entry.until <= now;
        self.entries.iter_mut().filter(expired).for_each(|entry| entry.state = EntryState::Waiting);
        let is_ready = |place: &usize| {
            let entry = &self.entries[*place];
            let is_due = entry.state == EntryState::Waiting && entry.due <= now;
            is_due && queues.contains(&entry.queue) && self.is_first_of_its_lane(*place)
        };
        let mut ready: Vec<usize> = (0..self.entries.len()).filter(is_ready).collect();
        ready.sort_by_key(|place| (self.entries[*place].due, *place));
        ready.truncate(most);
        let take = |place: usize| {
            let entry = &mut self.entries[place];
            (entry.state, entry.until, entry.epoch) = (EntryState::Claimed, until, entry.epoch + 1);
            (entry.id.clone(), entry.epoch)
        };
        ready.into_iter().map(take).collect()
    }
}

#[derive(Clone, Debug)]
enum Op {
    Enqueue { queue: u8, lane: Option<u8>, delay: u64, key: Option<u8> },
    Claim { queues: u8, most: usize, lease: u64 },
    Complete(prop::sample::Index, u8),
    Retry(prop::sample::Index, u64),
    GiveBack(prop::sample::Index, u64),
    Hold(prop::sample::Index),
    Wake(prop::sample::Index),
    Heartbeat(prop::sample::Index, u64),
    Pass(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let any = any::<prop::sample::Index>;
    prop_oneof![
        6 => (0..2_u8, proptest::option::of(0..3_u8), 0..3_u64, proptest::option::weighted(0.3, 0..4_u8))
            .prop_map(|(queue, lane, delay, key)| Op::Enqueue { queue, lane, delay, key }),
        6 => (0..4_u8, 0..4_usize, 1..6_u64).prop_map(|(queues, most, lease)| Op::Claim { queues, most, lease }),
        4 => (any(), 0..3_u8).prop_map(|(place, end)| Op::Complete(place, end)),
        2 => (any(), 0..4_u64).prop_map(|(place, delay)| Op::Retry(place, delay)),
        1 => (any(), 0..4_u64).prop_map(|(place, delay)| Op::GiveBack(place, delay)),
        1 => any().prop_map(Op::Hold),
        1 => any().prop_map(Op::Wake),
        1 => (any(), 1..6_u64).prop_map(|(place, lease)| Op::Heartbeat(place, lease)),
        3 => (0..4_u64).prop_map(Op::Pass),
    ]
}

/// The queue in memory and the model of it, with every lease that was ever granted.
struct Pair {
    connection: Connection,
    model: Model,
    leases: Vec<EntryLease>,
}

impl Pair {
    fn new() -> Self {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(include_str!("../schema_5.sql")).unwrap();
        Self { connection, model: Model { now: 100, ..Model::default() }, leases: Vec::new() }
    }

    fn write<T>(&mut self, work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>) -> T {
        let transaction = self.connection.transaction().unwrap();
        let value = work(&transaction).unwrap();
        transaction.commit().unwrap();
        value
    }

    /// A change with a lease, which both must take or refuse.
    fn with_lease(
        &mut self,
        place: usize,
        change: impl FnOnce(&Transaction<'_>, &EntryLease) -> rusqlite::Result<bool>,
        then: impl FnOnce(&mut Entry),
    ) {
        let Some(lease) = self.leases.get(place).cloned() else { return };
        let entry = self.model.entries.iter_mut().find(|entry| entry.id == lease.entry).unwrap();
        let is_held = entry.state == EntryState::Claimed && entry.epoch == lease.epoch;
        if is_held {
            then(entry);
        }
        assert_eq!(self.write(|transaction| change(transaction, &lease)), is_held, "{lease:?}");
    }

    fn complete(&mut self, place: usize, end: EntryEnd) {
        let now = self.model.now;
        self.with_lease(
            place,
            |change, lease| changes::complete(change, lease, end, "", now),
            |entry| entry.state = end.state(),
        );
    }

    fn enqueue(&mut self, queue: u8, lane: Option<u8>, delay: u64, key: Option<u8>) {
        let (now, id) = (self.model.now, format!("e{}", self.model.entries.len()));
        let entry = NewEntry {
            id: id.clone(),
            queue: format!("q{queue}"),
            lane: lane.map(|lane| LaneKey::per_key("k", &lane.to_string())),
            delay: Duration::from_millis(delay),
            payload: "{}".into(),
            dedupe: key.map(|key| (DedupeKey::new("q", "t", &key.to_string()), Duration::from_millis(5))),
            clock: None,
        };
        let known = key.and_then(|key| self.model.keys.get(&key)).filter(|(until, _)| *until > now);
        let expected = known.map(|(_, entry)| entry.clone());
        let enqueued = self.write(|change| changes::enqueue(change, &entry, now));
        assert_eq!(enqueued, expected.clone().map_or(Enqueued::Accepted, Enqueued::Duplicate));
        if expected.is_none() {
            self.model.keys.extend(key.map(|key| (key, (now + 5, id))));
            let (NewEntry { id, queue, lane, .. }, due) = (entry, now + delay);
            let (state, epoch, until) = (EntryState::Waiting, 0, 0);
            self.model.entries.push(Entry { id, queue, lane, state, due, epoch, until });
        }
    }

    fn claim(&mut self, queues: u8, most: usize, lease: u64) {
        let queues: Vec<String> =
            (0..2).filter(|bit| queues & (1 << bit) != 0).map(|bit| format!("q{bit}")).collect();
        let (now, until) = (self.model.now, self.model.now + lease);
        let expected = self.model.claim(&queues, most, until);
        let request =
            ClaimRequest { queues, most, lease: Duration::from_millis(lease), ..ClaimRequest::default() };
        let claimed = self.write(|change| changes::claim(change, &request, now));
        let found: Vec<(String, u64)> =
            claimed.iter().map(|it| (it.lease.entry.clone(), it.lease.epoch)).collect();
        assert_eq!(found, expected);
        self.leases.extend(claimed.into_iter().map(|it| it.lease));
    }

    fn step(&mut self, op: &Op) {
        let now = self.model.now;
        let of =
            |place: &prop::sample::Index, length: usize| if length == 0 { 0 } else { place.index(length) };
        let (leases, entries) = (self.leases.len(), self.model.entries.len());
        match op {
            Op::Enqueue { queue, lane, delay, key } => self.enqueue(*queue, *lane, *delay, *key),
            Op::Claim { queues, most, lease } => self.claim(*queues, *most, *lease),
            Op::Complete(place, end) => {
                let end = [EntryEnd::Done, EntryEnd::Failed, EntryEnd::DeadLetter][usize::from(*end)];
                self.complete(of(place, leases), end);
            }
            Op::Retry(place, delay) => self.with_lease(
                of(place, leases),
                |change, lease| changes::retry(change, lease, now + delay, ""),
                |entry| (entry.state, entry.due) = (EntryState::Waiting, now + delay),
            ),
            Op::GiveBack(place, delay) => self.with_lease(
                of(place, leases),
                |change, lease| changes::give_back(change, lease, now + delay, ""),
                |entry| (entry.state, entry.due) = (EntryState::Waiting, now + delay),
            ),
            Op::Hold(place) => self.with_lease(
                of(place, leases),
                |change, lease| changes::hold(change, lease, ""),
                |entry| entry.state = EntryState::Held,
            ),
            Op::Heartbeat(place, lease) => self.with_lease(
                of(place, leases),
                |change, held| changes::renew(change, held, now + lease),
                |entry| entry.until = now + lease,
            ),
            Op::Wake(place) => self.wake(of(place, entries)),
            Op::Pass(time) => self.model.now += time,
        }
    }

    fn wake(&mut self, place: usize) {
        let now = self.model.now;
        let Some(entry) = self.model.entries.get_mut(place) else { return };
        let is_held = entry.state == EntryState::Held;
        if is_held {
            (entry.state, entry.due) = (EntryState::Waiting, now);
        }
        let id = entry.id.clone();
        assert_eq!(self.write(|change| changes::wake(change, &id, now)), is_held);
    }

    /// With a worker, everything ends.
    fn drain(&mut self) {
        let open = self.model.entries.iter().filter(|entry| entry.is_open()).count();
        (0..self.model.entries.len()).for_each(|place| self.wake(place));
        // Each round takes at least the first entry of one lane.
        for _ in 0..=open {
            self.model.now += 10;
            let before = self.leases.len();
            self.claim(3, 100, 5);
            (before..self.leases.len()).for_each(|place| self.complete(place, EntryEnd::Done));
        }
        assert!(self.model.entries.iter().all(|entry| !entry.is_open()), "{:?}", self.model.entries);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    /// The model claims the first of each lane alone, the longest due first: order, overlap and starvation
    /// are its business.
    #[test]
    fn the_queue_equals_its_model(ops in proptest::collection::vec(op(), 1..120)) {
        let mut pair = Pair::new();
        for op in &ops {
            pair.step(op);
            let claimed: Vec<&Entry> =
                pair.model.entries.iter().filter(|entry| entry.state == EntryState::Claimed).collect();
            let lanes: Vec<(&String, &LaneKey)> =
                claimed.iter().filter_map(|entry| Some((&entry.queue, entry.lane.as_ref()?))).collect();
            prop_assert_eq!(lanes.iter().collect::<BTreeSet<_>>().len(), lanes.len(), "one at a time in a lane");
        }
        pair.drain();
    }
}
