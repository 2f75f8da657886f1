//! Random histories of a queue that two processes share, compared with a plain model of it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Bed;
use crate::{ClaimRequest, DedupeKey, Enqueued, EntryEnd, EntryLease, EntryState, LaneKey, NewEntry, Store};

const LONG: Duration = Duration::from_hours(1);
const STEPS: usize = 400;

/// Pseudo-random numbers that a failure can repeat.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % sides as u64).unwrap()
    }
}

#[derive(Clone, Debug)]
struct Entry {
    lane: Option<usize>,
    state: EntryState,
    epoch: u64,
    /// The lease of its claim is over.
    is_expired: bool,
}

impl Entry {
    fn is_open(&self) -> bool {
        matches!(self.state, EntryState::Waiting | EntryState::Claimed | EntryState::Held)
    }
}

#[derive(Default)]
struct Model {
    entries: Vec<Entry>,
    keys: BTreeMap<usize, String>,
    leases: Vec<(usize, EntryLease)>,
}

impl Model {
    fn is_ready(&self, place: usize) -> bool {
        let own = &self.entries[place];
        let is_free =
            own.state == EntryState::Waiting || (own.state == EntryState::Claimed && own.is_expired);
        let is_first = own.lane.is_none()
            || !self.entries[..place].iter().any(|other| other.is_open() && other.lane == own.lane);
        is_free && is_first
    }
}

async fn enqueue(store: &Store, model: &mut Model, dice: &mut Dice) {
    let (place, lane) = (model.entries.len(), dice.roll(4));
    let key = Some(dice.roll(12)).filter(|key| *key < 4);
    let lane = Some(lane).filter(|lane| *lane < 3);
    let entry = NewEntry {
        id: place.to_string(),
        queue: "desk".into(),
        lane: lane.map(|lane| LaneKey::serial(&lane.to_string())),
        dedupe: key.map(|key| (DedupeKey::new("desk", "t", &key.to_string()), LONG)),
        ..NewEntry::default()
    };
    let known = key.and_then(|key| model.keys.get(&key).cloned());
    let expected = known.map_or(Enqueued::Accepted, Enqueued::Duplicate);
    assert_eq!(store.enqueue(entry).await.unwrap(), expected);
    if expected == Enqueued::Accepted {
        model.keys.extend(key.map(|key| (key, place.to_string())));
        model.entries.push(Entry { lane, state: EntryState::Waiting, epoch: 0, is_expired: false });
    } else {
        // Its id stays free.
        let unused = NewEntry { id: place.to_string(), queue: "desk".into(), ..NewEntry::default() };
        assert_eq!(store.enqueue(unused).await.unwrap(), Enqueued::Accepted);
        model.entries.push(Entry { lane: None, state: EntryState::Waiting, epoch: 0, is_expired: false });
    }
}

async fn claim(store: &Store, model: &mut Model, dice: &mut Dice) {
    let (most, dies) = (1 + dice.roll(4), dice.roll(4) == 0);
    let lease = if dies { Duration::ZERO } else { LONG };
    let ready: Vec<usize> = (0..model.entries.len()).filter(|place| model.is_ready(*place)).collect();
    let request = ClaimRequest { queues: vec!["desk".into()], most, lease, ..ClaimRequest::default() };
    let claimed = store.claim_entries(request).await.unwrap();
    assert_eq!(claimed.len(), ready.len().min(most));
    for entry in &mut model.entries {
        // A claim returns what dead holders held, also where it does not take it.
        if entry.state == EntryState::Claimed && entry.is_expired {
            entry.state = EntryState::Waiting;
        }
    }
    for one in claimed {
        let place: usize = one.lease.entry.parse().unwrap();
        assert!(ready.contains(&place), "{place} was not ready");
        let entry = &mut model.entries[place];
        assert!(one.lease.epoch > entry.epoch, "epochs grow");
        (entry.state, entry.epoch, entry.is_expired) = (EntryState::Claimed, one.lease.epoch, dies);
        model.leases.push((place, one.lease));
    }
}

/// Uses a lease that was granted at some time: it works only if it is the last one of a claimed entry.
async fn use_lease(store: &Store, model: &mut Model, dice: &mut Dice) {
    if model.leases.is_empty() {
        return;
    }
    let (place, lease) = model.leases[dice.roll(model.leases.len())].clone();
    let entry = &mut model.entries[place];
    let holds = entry.state == EntryState::Claimed && entry.epoch == lease.epoch;
    let note = String::new;
    let (done, state, is_expired) = match dice.roll(7) {
        0 => (store.complete(&lease, EntryEnd::Failed, note()).await, EntryState::Failed, false),
        1 => (store.retry_after(&lease, Duration::ZERO, note()).await, EntryState::Waiting, false),
        2 => (store.give_back_entry(&lease, Duration::ZERO, "").await, EntryState::Waiting, false),
        3 => (store.hold(&lease, note()).await, EntryState::Held, false),
        4 => (store.heartbeat(&lease, LONG).await, EntryState::Claimed, false),
        5 => (store.heartbeat(&lease, Duration::ZERO).await, EntryState::Claimed, true),
        _ => (store.complete(&lease, EntryEnd::Done, note()).await, EntryState::Done, false),
    };
    assert_eq!(done.unwrap(), holds, "{lease:?}");
    if holds {
        (entry.state, entry.is_expired) = (state, is_expired);
    }
}

async fn wake(store: &Store, model: &mut Model, dice: &mut Dice) {
    if model.entries.is_empty() {
        return;
    }
    let place = dice.roll(model.entries.len());
    let is_held = model.entries[place].state == EntryState::Held;
    assert_eq!(store.wake(&place.to_string()).await.unwrap(), is_held);
    if is_held {
        model.entries[place].state = EntryState::Waiting;
    }
}

pub(super) async fn the_queue_equals_its_model(bed: &Bed) {
    let (mut dice, mut model) = (Dice(testing::seed::seed().max(1)), Model::default());
    let stores = [bed.open(), bed.open()];
    for _ in 0..STEPS {
        let store = &stores[dice.roll(2)];
        match dice.roll(10) {
            0..3 => enqueue(store, &mut model, &mut dice).await,
            3..6 => claim(store, &mut model, &mut dice).await,
            6..9 => use_lease(store, &mut model, &mut dice).await,
            _ => wake(store, &mut model, &mut dice).await,
        }
        let lanes: Vec<usize> = model
            .entries
            .iter()
            .filter(|entry| entry.state == EntryState::Claimed)
            .filter_map(|entry| entry.lane)
            .collect();
        let distinct: std::collections::BTreeSet<usize> = lanes.iter().copied().collect();
        assert_eq!(distinct.len(), lanes.len(), "one entry of a lane at a time");
    }
}
