//! The scheduler on a real store, with times set by the test.

use std::fs;
use std::path::Path;

use super::*;
use store::{EntryState, Store, StoreConfig};

/// 2026-11-20T08:00:00Z.
const EIGHT: u64 = 1_795_161_600_000;
const MINUTE: u64 = 60_000;
const HOUR: u64 = 60 * MINUTE;

fn write_expert(dir: &Path, triggers: &str) {
    let root = dir.join("experts/sales");
    fs::create_dir_all(&root).unwrap();
    let manifest = format!(
        "spec: '1.0'\nname: sales\nversion: 1.0.0\ndescription: d\ncomponents: {{orchestrator: o.md, persona: [o.md], functions: [f.md], processes: [p.md]}}\n\
         triggers:\n{triggers}"
    );
    let function = "---\nname: f\ndescription: d\n---\nDo.\n";
    let process = "---\nname: scan\ndescription: d\n---\nDo.\n";
    for (file, text) in
        [("expert.yaml", manifest.as_str()), ("o.md", "Go.\n"), ("f.md", function), ("p.md", process)]
    {
        fs::write(root.join(file), text).unwrap();
    }
}

fn trigger(name: &str, expr: &str, more: &str) -> String {
    format!("  - {{name: {name}, type: cron, process: scan, expr: '{expr}'{more}}}\n")
}

struct Bed {
    dir: tempfile::TempDir,
    store: Arc<Store>,
}

impl Bed {
    fn with(triggers: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        write_expert(dir.path(), triggers);
        let store = Arc::new(open(dir.path()));
        Self { dir, store }
    }

    fn scheduler(&self) -> Scheduler {
        self.scheduler_on(&self.store)
    }

    fn scheduler_on(&self, store: &Arc<Store>) -> Scheduler {
        let catalog = Arc::new(Catalog::open(&self.dir.path().join("experts")));
        Scheduler::new(catalog, store.clone())
    }

    /// The times for which entries were queued, in queue order.
    async fn fired(&self) -> Vec<String> {
        let rows = self.store.entries(Some("sales"), EntryState::Waiting, 100).await.unwrap();
        let read = |payload: &str| Invocation::read(payload).unwrap();
        let times = rows.iter().map(|row| read(&row.payload));
        times
            .map(|one| {
                format!(
                    "{} {}",
                    one.origin.trigger_name().unwrap(),
                    one.payload["scheduled_at"].as_str().unwrap()
                )
            })
            .collect()
    }
}

fn open(dir: &Path) -> Store {
    Store::open(&StoreConfig { state_dir: dir.join("state"), ..StoreConfig::default() }).unwrap()
}

#[tokio::test]
async fn each_time_is_queued_once() {
    let bed = Bed::with(&trigger("hourly", "0 * * * *", ""));
    let mut scheduler = bed.scheduler();
    assert_eq!(scheduler.fire_due(EIGHT - 1).await, Ok(0));
    assert_eq!(scheduler.next_due(), Some(EIGHT));
    assert_eq!(scheduler.fire_due(EIGHT).await, Ok(1));
    for later in [1, 500, 30_000] {
        assert_eq!(scheduler.fire_due(EIGHT + later).await, Ok(0));
    }
    assert_eq!(bed.fired().await, ["hourly 2026-11-20T08:00:00Z"]);
}

/// Regression: while one run waited for a person, each time of its clock was queued behind it.
#[tokio::test]
async fn one_time_of_a_serial_clock_waits() {
    let serial = trigger("serial", "* * * * *", ", concurrency: serial");
    let bed = Bed::with(&(serial + &trigger("parallel", "* * * * *", "")));
    let mut scheduler = bed.scheduler();
    for minute in 0..3 {
        scheduler.fire_due(EIGHT + minute * MINUTE).await.unwrap();
    }
    let fired = bed.fired().await;
    let of = |name: &str| fired.iter().filter(|one| one.starts_with(name)).count();
    assert_eq!((of("serial"), of("parallel")), (1, 2), "{fired:?}");
    // Regression: a restart took the skipped time for a missed one.
    let clock = Clock { queue: "sales".into(), name: "serial".into(), schedule: "* * * * * UTC".into() };
    assert_eq!(bed.store.clock_mark(&clock, 0).await, Ok(EIGHT + 2 * MINUTE));
}

/// Both schedulers work on one store, at the same time and one slightly later.
#[tokio::test]
async fn of_two_processes_one_fires() {
    let bed = Bed::with(&(trigger("a", "* * * * *", "") + &trigger("b", "*/2 * * * *", "")));
    let other = Arc::new(open(bed.dir.path()));
    let (mut one, mut two) = (bed.scheduler(), bed.scheduler_on(&other));
    let mut fired = 0;
    for step in 0..=40 {
        let now = EIGHT + 1 + step * 15_000;
        let (first, second) = tokio::join!(one.fire_due(now), two.fire_due(now + 40));
        fired += first.unwrap() + second.unwrap();
    }
    assert_eq!(fired, 15, "ten of one and five of the other");
    let mut all = bed.fired().await;
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 15);
}

#[tokio::test]
async fn missed_times_fire_once_after_a_restart() {
    let bed = Bed::with(&trigger("daily", "0 8 * * *", ""));
    bed.scheduler().fire_due(EIGHT - 3 * 24 * HOUR).await.unwrap();
    // Three days later, twenty minutes late.
    assert_eq!(bed.scheduler().fire_due(EIGHT + 20 * MINUTE).await, Ok(1));
    assert_eq!(bed.fired().await, ["daily 2026-11-20T08:00:00Z"]);
    assert_eq!(bed.scheduler().fire_due(EIGHT + 21 * MINUTE).await, Ok(0), "another restart");
    assert_eq!(bed.scheduler().fire_due(EIGHT + 24 * HOUR + 2 * HOUR).await, Ok(0), "too late");
}

#[tokio::test]
async fn a_sleeping_machine_skips_missed_times() {
    let bed = Bed::with(&trigger("often", "*/5 * * * *", ""));
    let mut scheduler = bed.scheduler();
    scheduler.fire_due(EIGHT - 1).await.unwrap();
    assert_eq!(scheduler.fire_due(EIGHT + 6 * HOUR + MINUTE).await, Ok(1));
    assert_eq!(bed.fired().await, ["often 2026-11-20T14:00:00Z"]);
}

/// A clock that has never been seen has missed nothing; neither has one whose times have changed.
#[tokio::test]
async fn new_schedules_begin_now() {
    let bed = Bed::with(&trigger("t", "0 8 * * *", ""));
    assert_eq!(bed.scheduler().fire_due(EIGHT + MINUTE).await, Ok(0));
    write_expert(bed.dir.path(), &trigger("t", "30 8 * * *", ""));
    assert_eq!(bed.scheduler().fire_due(EIGHT + 35 * MINUTE).await, Ok(0));
    assert_eq!(bed.scheduler().fire_due(EIGHT + 24 * HOUR + 31 * MINUTE).await, Ok(1));
}

/// Regression: an expert that was removed and installed again, or a trigger that was taken out and put back,
/// made up for the time between.
#[tokio::test]
async fn returning_clocks_begin_now() {
    let bed = Bed::with(&(trigger("a", "0 * * * *", "") + &trigger("b", "0 * * * *", "")));
    bed.scheduler().fire_due(EIGHT - 3 * MINUTE).await.unwrap();
    write_expert(bed.dir.path(), &trigger("a", "0 * * * *", ""));
    assert_eq!(bed.scheduler().fire_due(EIGHT - 2 * MINUTE).await, Ok(0));
    write_expert(bed.dir.path(), &(trigger("a", "0 * * * *", "") + &trigger("b", "0 * * * *", "")));
    assert_eq!(bed.scheduler().fire_due(EIGHT + MINUTE).await, Ok(1), "of `a` alone");
    let manifest = bed.dir.path().join("experts/sales/expert.yaml");
    let (text, hour) = (fs::read_to_string(&manifest).unwrap(), 60 * MINUTE);
    fs::write(&manifest, "spec: [").unwrap();
    assert_eq!(bed.scheduler().fire_due(EIGHT + hour - 2 * MINUTE).await, Ok(0));
    fs::write(&manifest, text).unwrap();
    assert_eq!(
        bed.scheduler().fire_due(EIGHT + hour + MINUTE).await,
        Ok(2),
        "a broken package keeps its marks"
    );
}

#[tokio::test]
async fn clocks_follow_the_catalog() {
    let bed = Bed::with(&trigger("a", "0 * * * *", ""));
    let mut scheduler = bed.scheduler();
    scheduler.fire_due(EIGHT - MINUTE).await.unwrap();
    write_expert(bed.dir.path(), &(trigger("a", "0 * * * *", "") + &trigger("b", "30 * * * *", "")));
    assert!(scheduler.catalog.reload());
    assert_eq!(scheduler.fire_due(EIGHT).await, Ok(1), "the one that stays keeps its mark");
    assert_eq!(scheduler.fire_due(EIGHT + 30_000).await, Ok(0));
    let mut now = EIGHT + 30_000;
    while now < EIGHT + 30 * MINUTE {
        now += 30_000;
        scheduler.fire_due(now).await.unwrap();
    }
    assert_eq!(bed.fired().await, ["a 2026-11-20T08:00:00Z", "b 2026-11-20T08:30:00Z"]);
    fs::remove_dir_all(bed.dir.path().join("experts/sales")).unwrap();
    assert!(scheduler.catalog.reload());
    assert_eq!((scheduler.fire_due(now + 30_000).await, scheduler.next_due()), (Ok(0), None));
}

#[tokio::test]
async fn clock_payloads_use_the_triggers_time_zone() {
    let bed = Bed::with(&trigger("t", "0 9 * * *", ", tz: Europe/Vienna, concurrency: serial"));
    let mut scheduler = bed.scheduler();
    scheduler.fire_due(EIGHT - 1).await.unwrap();
    scheduler.fire_due(EIGHT + 5).await.unwrap();
    let row = bed.store.entries(None, EntryState::Waiting, 1).await.unwrap().remove(0);
    let found = Invocation::read(&row.payload).unwrap();
    assert_eq!(
        found.payload,
        json!({"scheduled_at": "2026-11-20T09:00:00+01:00", "fired_at": "2026-11-20T09:00:00+01:00"})
    );
    assert_eq!((row.lane, found.process.as_str()), (Some(store::LaneKey::serial("t")), "scan"));
}

/// The expert's tools are not bound: nothing is queued, and afterwards what was missed comes once.
#[tokio::test]
async fn held_experts_fire_no_clocks() {
    use std::sync::atomic::{AtomicBool, Ordering};

    let bed = Bed::with(&trigger("often", "*/10 * * * *", ""));
    let is_held = Arc::new(AtomicBool::new(true));
    let held = Arc::clone(&is_held);
    let mut scheduler = bed.scheduler().with_hold(Box::new(move |_| held.load(Ordering::Relaxed)));
    for minute in 0..185 {
        assert_eq!(scheduler.fire_due(EIGHT + 1 + minute * MINUTE).await, Ok(0));
    }
    assert_eq!(scheduler.next_due(), None, "it is looked at every second, not without a pause");
    is_held.store(false, Ordering::Relaxed);
    assert_eq!(scheduler.fire_due(EIGHT + 1 + 185 * MINUTE).await, Ok(1), "the latest of what was missed");
    assert_eq!(bed.fired().await, ["often 2026-11-20T11:00:00Z"]);
    assert_eq!(scheduler.fire_due(EIGHT + 1 + 190 * MINUTE).await, Ok(1));
    is_held.store(true, Ordering::Relaxed);
    assert_eq!(scheduler.fire_due(EIGHT + 1 + 200 * MINUTE).await, Ok(0));
}

#[tokio::test]
async fn clocks_follow_a_system_clock_set_back() {
    let bed = Bed::with(&trigger("hourly", "0 * * * *", ""));
    let mut scheduler = bed.scheduler();
    let ahead = EIGHT + 9 * HOUR;
    assert_eq!(scheduler.fire_due(ahead - 1).await, Ok(0));
    assert_eq!(scheduler.fire_due(ahead).await, Ok(1));
    assert_eq!(scheduler.fire_due(EIGHT - 1_000).await, Ok(0));
    assert_eq!(scheduler.fire_due(EIGHT).await, Ok(1));
    assert_eq!(bed.fired().await, ["hourly 2026-11-20T17:00:00Z", "hourly 2026-11-20T08:00:00Z"]);
}
