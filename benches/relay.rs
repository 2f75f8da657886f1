//! The relay's work for a request before it is sent: time, allocations and bytes for each reading.
//!
//! `cargo bench --bench relay`. The limits that hold are in `tests/allocations.rs`.

#![expect(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use divan::{AllocProfiler, Bencher};
use futures::executor::block_on;
use http::HeaderMap;
use mimalloc::MiMalloc;
use relay::{Origin, Relay, RelayConfig, RelayLimits};
use telemetry::{Recording, RequestRecord, RequestStart};
use translate::GuardLimits;
use upstream::{Fleet, Upstream, UpstreamConfig};

#[global_allocator]
static ALLOCATOR: AllocProfiler<MiMalloc> = AllocProfiler::new(MiMalloc);

fn main() {
    divan::main();
}

/// Its line is never written: only the reading is measured.
static RECORD: LazyLock<RequestRecord> = LazyLock::new(|| {
    let start = RequestStart::new("r".into(), "POST /", "other");
    RequestRecord::begin(start, &Recording::default())
});

fn relay() -> Arc<Relay> {
    let upstream = Arc::new(Upstream::new(&UpstreamConfig::default()).unwrap());
    let fleet = Arc::new(Fleet::new(vec![upstream], Duration::from_mins(1)));
    let guard = GuardLimits { max_tool_results: 500, max_repeats: 8 };
    Arc::new(Relay::new(RelayConfig::default(), fleet, RelayLimits { max_body: 32 << 20, guard }))
}

fn openclaw() -> Bytes {
    std::fs::read("fixtures/openclaw/request-2026.9.6-fulltools.json").unwrap().into()
}

fn read(relay: &Arc<Relay>, body: &Bytes) {
    let origin = Origin::internal(HeaderMap::new(), RECORD.clone());
    divan::black_box(block_on(relay.read(body.clone(), origin)).unwrap());
}

#[divan::bench]
fn short(bencher: Bencher) {
    let relay = relay();
    let body =
        Bytes::from_static(br#"{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":64}"#);
    bencher.bench_local(|| read(&relay, &body));
}

/// The first request of a conversation with other tools than any before.
#[divan::bench]
fn openclaw_148_kb_first(bencher: Bencher) {
    let body = openclaw();
    bencher.with_inputs(relay).bench_local_refs(|relay| read(relay, &body));
}

/// Its next one.
#[divan::bench]
fn openclaw_148_kb_again(bencher: Bencher) {
    let (relay, body) = (relay(), openclaw());
    read(&relay, &body);
    bencher.bench_local(|| read(&relay, &body));
}
