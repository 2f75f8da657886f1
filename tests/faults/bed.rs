//! Where the table is played: respool with small limits between many clients and the upstream that
//! misbehaves. Beside every fault another conversation, which is in order, must get its own right answer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::stream::{self, StreamExt as _};

use super::table::{CASES, Case, Row, Want, Who, find};
use super::upstream::{Upstream, marker};
use super::visit::Visit;
use crate::support::api::Api;
use crate::support::process;

/// The limits that are configured, and what they promise.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// `limits.commit_after`.
    pub commit_after: Duration,
    /// `limits.heartbeat`.
    pub heartbeat: Duration,
    /// The upstream's `timeout`.
    pub timeout: Duration,
    /// `limits.client_timeout`.
    pub client_timeout: Duration,
    /// No case may take longer.
    pub bound: Duration,
    /// So soon after its client has its end, an upstream request must be over.
    pub release: Duration,
}

/// For the table: small, but on a busy machine a reply that takes 2 s must still come within `timeout`.
pub const SMALL: Limits = Limits {
    commit_after: Duration::from_millis(1500),
    heartbeat: Duration::from_millis(300),
    timeout: Duration::from_secs(8),
    client_timeout: Duration::from_secs(3),
    bound: Duration::from_secs(40),
    release: Duration::from_secs(5),
};

impl Limits {
    /// The configuration of a respool in front of `upstream`.
    pub fn config(&self, upstream: SocketAddr) -> String {
        format!(
            "[limits]\nmax_body = \"2MiB\"\ncommit_after = \"{}ms\"\nheartbeat = \"{}ms\"\nclient_timeout = \"{}ms\"\n\
             [recovery]\nattempts = 0\nwait_for_upstream = \"0s\"\n\
             [models.live-model]\ntools_mode = \"live\"\n\
             [[upstream]]\nname = \"box\"\nurl = \"http://{upstream}\"\ntimeout = \"{}ms\"\n",
            self.commit_after.as_millis(),
            self.heartbeat.as_millis(),
            self.client_timeout.as_millis(),
            self.timeout.as_millis()
        )
    }
}

/// The bed.
pub struct Bed {
    /// Where respool listens.
    pub address: SocketAddr,
    /// The server behind it.
    pub upstream: Upstream,
    limits: Limits,
    next: AtomicUsize,
}

impl Bed {
    /// `address`: where a respool listens that was configured with these limits and this upstream.
    pub fn new(address: SocketAddr, upstream: Upstream, limits: Limits) -> Arc<Self> {
        Arc::new(Self { address, upstream, limits, next: AtomicUsize::new(0) })
    }

    /// Plays these cases and returns the flaws. Cases that only wait are played together, the others a few at
    /// a time, because brief retries and early heads are promised only while a processor is free.
    pub async fn play_all(self: &Arc<Self>, cases: Vec<Case>) -> Vec<String> {
        let (waiting, busy): (Vec<Case>, Vec<Case>) = cases.into_iter().partition(Case::waits);
        let (mut flaws, rest) = tokio::join!(self.play_some(waiting, 64), self.play_some(busy, 8));
        flaws.extend(rest);
        flaws.extend(self.upstream.problems());
        flaws
    }

    async fn play_some(self: &Arc<Self>, cases: Vec<Case>, at_once: usize) -> Vec<String> {
        let played = cases.into_iter().map(|case| async move {
            let witness = self.witness();
            let (own, other) = tokio::join!(self.play_alone(case), self.play_alone(witness));
            let other =
                other.map_err(|flaw| format!("another conversation at the same time, {witness}: {flaw}"));
            own.and(other).err().map(|flaw| format!("{case}: {flaw}"))
        });
        stream::iter(played).buffer_unordered(at_once).filter_map(|flaw| async { flaw }).collect().await
    }

    /// Plays one case; a panic is a flaw.
    pub async fn play_alone(self: &Arc<Self>, case: Case) -> Result<(), String> {
        let bed = Arc::clone(self);
        let task = tokio::spawn(async move { bed.play(case).await });
        task.await.unwrap_or_else(|panic| Err(words_of(panic)))
    }

    /// A conversation without fault, of every form in turn.
    fn witness(&self) -> Case {
        let (way, stream) = CASES[self.next.load(Ordering::Relaxed) % CASES.len()];
        Case { row: "sound", api: Api::Chat, way, stream, want: Want::Answer, slow: false }
    }

    async fn play(&self, case: Case) -> Result<(), String> {
        let row = find(case.row).ok_or("no such row")?;
        let marker = marker(self.next.fetch_add(1, Ordering::Relaxed));
        let visit = Visit::new(case, &marker, row.padding);
        let acts = match &row.who {
            Who::Client(acts, _) => acts(&visit),
            Who::Upstream(_) | Who::HastyUpstream(_) => visit.proper(),
        };
        let run = visit.run(self.address, &self.upstream, acts, case.want, self.limits.commit_after);
        let told = tokio::time::timeout(self.limits.bound, run).await;
        told.map_err(|_| format!("not over after {:?}", self.limits.bound))??;
        self.released(row, &marker).await
    }

    /// The upstream request is over, and there were as many as there may be.
    async fn released(&self, row: &Row, marker: &str) -> Result<(), String> {
        let asks = self.upstream.settled(marker, self.limits.release).await?;
        let (least, most) = row.asks;
        if (least..=most).contains(&asks) {
            Ok(())
        } else {
            Err(format!("the upstream was asked {asks} times"))
        }
    }
}

fn words_of(panic: tokio::task::JoinError) -> String {
    let words = panic.try_into_panic().ok().and_then(|panic| panic.downcast::<String>().ok());
    words.map_or_else(|| "a panic".to_owned(), |words| *words)
}

/// Waits until no more descriptors are open than `before`, those of idle connections to the upstream left
/// out.
pub async fn descriptors_return(id: u32, before: process::Measured, bed: &Bed) -> Option<String> {
    let are_closed = || process::measure(id).descriptors <= before.descriptors + bed.upstream.open();
    if testing::waiting::holds_within(Duration::from_secs(50), are_closed).await {
        return None;
    }
    let (now, open) = (process::measure(id).descriptors, bed.upstream.open());
    Some(format!("{now} descriptors, {} before, and {open} idle connections", before.descriptors))
}
