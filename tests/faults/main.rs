//! Faults, measured: one table of named faults, played on real sockets, on every route and in both forms.
//!
//! A test program of its own, because many of its promises are times: `cargo test` runs one program after the
//! other, so that no other test takes the processor.
//!
//! - [`table`]: what a row is; the rows are in [`upstream_rows`] and [`client_rows`].
//! - [`upstream`]: the server that plays them, [`visit`]: the client that does.
//! - [`bed`]: respool between both, and what must hold for each case.
//! - [`beyond`]: what the table cannot hold.
//! - [`page`] writes docs/faults.md; [`soak`]: all of it at once, for long.

#![expect(
    unreachable_pub,
    dead_code,
    unused_imports,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking, and the support code is that of `it`, which uses the rest of it"
)]

mod bed;
mod beyond;
mod bombs;
mod client_rows;
mod measured;
mod page;
mod soak;
#[path = "../it/support/mod.rs"]
mod support;
mod table;
mod upstream;
mod upstream_rows;
mod visit;

use std::time::Duration;

use bed::{Bed, SMALL, descriptors_return};
use table::{Case, ROWS};
use tokio::runtime::{Builder, Runtime};
use upstream::Upstream;

use crate::support::api::OTHERS;
use crate::support::process;
use crate::support::respool::Respool;
use crate::support::served::Served;

/// The cases of the chosen rows.
fn chosen() -> Vec<Vec<Case>> {
    ROWS.iter().filter(|row| is_chosen(row)).map(|row| row.cases().collect()).collect()
}

/// True for a row whose name contains `FAULT`, if that is set. Rows that need a repeat are left out: their
/// upstream must not be one that keeps failing (`single_failures_are_repeated`).
fn is_chosen(row: &table::Row) -> bool {
    !row.needs_repeat() && row.name.contains(&std::env::var("FAULT").unwrap_or_default())
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Keeps these tests from taking the processor from each other.
static ONE_AT_A_TIME: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

fn judge(flaws: &[String]) {
    assert!(flaws.is_empty(), "{} flaws:\n{}", flaws.len(), flaws.join("\n"));
}

/// Each against an upstream of its own, which fails once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn single_failures_are_repeated() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let rows = || ROWS.iter().filter(|row| row.needs_repeat());
    let other_apis = OTHERS.iter().flat_map(|api| rows().flat_map(|row| row.cases_of(*api)));
    let cases: Vec<Case> = rows().flat_map(table::Row::cases).chain(other_apis).collect();
    assert!(cases.len() >= 24);
    let flaws = futures::future::join_all(cases.into_iter().map(|case| async move {
        let upstream = Upstream::start().await;
        let respool = Respool::configured(&SMALL.config(upstream.address)).await;
        Bed::new(respool.address, upstream, SMALL).play_all(vec![case]).await
    }));
    judge(&flaws.await.concat());
}

/// The real program in a process of its own: its descriptors are its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_end_as_the_table_says() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let upstream = Upstream::start().await;
    let served = Served::with_file(&SMALL.config(upstream.address), &[]);
    let bed = Bed::new(served.address, upstream, SMALL);
    let before = process::measure(served.child.id());
    let mut flaws = bed.play_all(chosen().concat()).await;
    flaws.extend(descriptors_return(served.child.id(), before, &bed).await);
    judge(&flaws);
}

/// The other APIs: here each row in one form of each; all forms with `just faults`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_end_in_order_on_other_apis() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let rotated = |api| {
        move |(at, row): (usize, &'static table::Row)| {
            let cases: Vec<Case> = row.cases_of(api).collect();
            cases.get(at % cases.len().max(1)).copied()
        }
    };
    let rows = || ROWS.iter().filter(|row| is_chosen(row)).enumerate();
    let cases = OTHERS.iter().flat_map(|api| rows().filter_map(rotated(*api))).collect();
    play_on_other_apis(cases).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes: just faults"]
async fn faults_end_in_order_in_every_form() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let rows = || ROWS.iter().filter(|row| is_chosen(row));
    play_on_other_apis(OTHERS.iter().flat_map(|api| rows().flat_map(|row| row.cases_of(*api))).collect())
        .await;
}

async fn play_on_other_apis(cases: Vec<Case>) {
    let upstream = Upstream::start().await;
    let served = Served::with_file(&SMALL.config(upstream.address), &[]);
    let bed = Bed::new(served.address, upstream, SMALL);
    let before = process::measure(served.child.id());
    let mut flaws = bed.play_all(cases).await;
    flaws.extend(descriptors_return(served.child.id(), before, &bed).await);
    judge(&flaws);
}

/// In this process, but on a runtime of its own, whose tasks can be counted. One case of each row.
#[test]
fn no_fault_leaves_a_task() {
    let (product, harness) = (runtime(), runtime());
    let _alone = ONE_AT_A_TIME.blocking_lock();
    let upstream = harness.block_on(Upstream::start());
    let respool = product.block_on(Respool::configured(&SMALL.config(upstream.address)));
    let bed = Bed::new(respool.address, upstream, SMALL);
    let tasks = || product.metrics().num_alive_tasks();
    let before = tasks();
    let cases =
        chosen().iter().enumerate().filter_map(|(at, cases)| cases.get(at % cases.len()).copied()).collect();
    let mut flaws = harness.block_on(bed.play_all(cases));
    // The pool's connections need no task each; one sweeps them.
    let are_gone =
        harness.block_on(testing::waiting::holds_within(Duration::from_secs(5), || tasks() <= before + 1));
    flaws.extend((!are_gone).then(|| format!("{} tasks, {before} before", tasks())));
    judge(&flaws);
}

/// How much memory a row may take: measured one row after another, on the real program (`just faults`).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes: just faults"]
async fn no_fault_takes_much_memory() {
    let upstream = Upstream::start().await;
    let served = Served::with_file(&SMALL.config(upstream.address), &[]);
    let (id, bed) = (served.child.id(), Bed::new(served.address, upstream, SMALL));
    let mut flaws = bed.play_all(ROWS[0].cases().collect()).await;
    let mut most = (0, "");
    for (row, cases) in ROWS.iter().filter(|row| is_chosen(row)).map(|row| (row, row.cases().collect())) {
        process::forget_peak(id);
        let before = process::measure(id);
        flaws.extend(bed.play_all(cases).await);
        flaws.extend(descriptors_return(id, before, &bed).await);
        let grown = process::measure(id).peak.saturating_sub(before.resident) >> 10;
        most = most.max((grown, row.name.as_str()));
        if grown > row.memory {
            flaws.push(format!("{}: memory grew by {grown} MiB, {} are allowed", row.name, row.memory));
        }
    }
    let now = process::measure(id);
    println!(
        "{} rows; at most {} MiB more ({}); {} MiB resident at the end",
        ROWS.len(),
        most.0,
        most.1,
        now.resident >> 10
    );
    judge(&flaws);
}
