//! What reading a request costs in memory: allocations and bytes, counted by the allocator. A test binary of its own, because the
//! counting allocator takes the place of the usual one in it. `cargo bench --bench relay` shows the same with its time.
//!
//! The limits are a fifth above what was measured. A change that goes beyond them either copies something that it need not, or
//! says why in its commit and raises them.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::sync::Arc;
use std::time::Duration;

use allocation_counter::{AllocationInfo, measure};
use bytes::Bytes;
use futures::executor::block_on;
use http::HeaderMap;
use respool::relay::{Origin, Relay, RelayConfig, RelayLimits};
use respool::translate::GuardLimits;
use respool::upstream::{Fleet, Upstream, UpstreamConfig};

fn relay() -> Relay {
    let upstream = Arc::new(Upstream::new(&UpstreamConfig::default()).unwrap());
    let fleet = Arc::new(Fleet::new(vec![upstream], Duration::from_mins(1)));
    let guard = GuardLimits { max_tool_results: 500, max_repeats: 8 };
    Relay::new(RelayConfig::default(), fleet, RelayLimits { max_body: 32 << 20, guard })
}

/// The second reading of `body` counts: by then everything is set up, and an earlier turn was seen.
fn counted(before: &str, body: &str) -> AllocationInfo {
    let read = |relay: &Relay, body: &str| {
        block_on(relay.read(Bytes::copy_from_slice(body.as_bytes()), origin())).unwrap();
    };
    // What is built once in a process, such as a regular expression, is not the request's.
    read(&crate::relay(), body);
    let relay = relay();
    read(&relay, before);
    let bytes = Bytes::copy_from_slice(body.as_bytes());
    let origin = origin();
    measure(|| {
        let request = block_on(relay.read(bytes, origin)).unwrap();
        drop(request);
    })
}

fn origin() -> Origin {
    Origin::internal(HeaderMap::new(), "r")
}

fn check(what: &str, counted: AllocationInfo, (allocations, bytes): (u64, u64)) {
    assert!(
        counted.count_total <= allocations && counted.bytes_total <= bytes,
        "{what}: {} allocations of {} bytes; the limits are {allocations} and {bytes}",
        counted.count_total,
        counted.bytes_total
    );
}

#[test]
fn reading_a_request_stays_cheap() {
    let short = r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":64}"#;
    check("a short request", counted(short, short), (60, 8 << 10));
    let openclaw = std::fs::read_to_string("fixtures/openclaw/request-2026.9.6-fulltools.json").unwrap();
    let size = openclaw.len() as u64;
    check("OpenClaw's request after another client's", counted(short, &openclaw), (700, 4 * size));
    // One copy: `stream` leaves with another value.
    check("OpenClaw's request again", counted(&openclaw, &openclaw), (120, size + (64 << 10)));
    let turn = |name: &str| std::fs::read_to_string(format!("fixtures/openclaw/{name}.json")).unwrap();
    let (first, next) = (turn("turn-exec-1"), turn("turn-exec-2-after-tool"));
    check("the next turn of a conversation", counted(&first, &next), (200, next.len() as u64 + (96 << 10)));
}
