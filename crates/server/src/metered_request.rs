//! One request of a client that has a key, from its beginning to its end. `access` makes it; the request's
//! record and the body of its reply share it.
//!
//! It counts against the key's limits on requests. The tokens of its reply come from the request's record.
//! Where the record does not know them, as when the client leaves before the end, they are estimated from the
//! bytes in both directions.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::Frame;

use super::key_limits::Exceeded;
use super::keys::ClientKey;
use ::usage::Ledger;
use telemetry::{Account, ReplyHead};
use wire::turn::Usage;

/// The bytes of a token in a request, and in a reply that is JSON.
const BYTES_OF_TOKEN: u64 = 4;
/// The most bytes of a stream's event for one token; a larger event has more tokens.
const BYTES_OF_EVENT: u64 = 400;

/// A request that is counted against its key's limits.
#[derive(Debug)]
pub(super) struct MeteredRequest {
    /// The key that it came with.
    pub(super) key: Arc<ClientKey>,
    /// When it began to count, and the bytes of its body.
    begun: OnceLock<(Instant, u64)>,
    reply: Delivery,
}

/// The part of a reply that has left.
#[derive(Debug, Default)]
struct Delivery {
    is_error: AtomicBool,
    is_stream: AtomicBool,
    bytes: AtomicU64,
}

impl MeteredRequest {
    /// Returns a request that came with this key.
    pub(super) fn new(key: Arc<ClientKey>) -> Arc<Self> {
        Arc::new(Self { key, begun: OnceLock::new(), reply: Delivery::default() })
    }

    /// Counts the request once, unless a limit is reached. `bytes`: of its body, for an estimate of its
    /// tokens; zero if it uses none.
    pub(super) fn begin_request(&self, bytes: u64, ledger: &Ledger) -> Result<(), Exceeded> {
        if self.begun.get().is_none() {
            let ClientKey { name, limits, meter, .. } = &*self.key;
            let tokens = limits.tokens_per_day.map_or(0, |_| ledger.tokens_today(name));
            meter.begin_request(limits, tokens, ledger.live_nodes())?;
            let _ = self.begun.set((Instant::now(), bytes));
        }
        Ok(())
    }

    /// Counts the reply's bytes as they leave. The request ends with the body, which is dropped before it, so
    /// that the estimate is complete then.
    pub(super) fn watch_reply(self: Arc<Self>, response: Response) -> Response {
        let count = move |frame: &Frame<Bytes>| {
            let bytes = frame.data_ref().map_or(0, Bytes::len) as u64;
            self.reply.bytes.fetch_add(bytes, Ordering::Relaxed);
        };
        response.map(|body| Body::new(body.inspect_frame(count)))
    }
}

impl Account for MeteredRequest {
    fn key_name(&self) -> &str {
        &self.key.name
    }

    fn is_restricted(&self) -> bool {
        self.key.is_restricted()
    }

    fn reply_begins(&self, head: ReplyHead) {
        self.reply.is_error.store(head.is_error, Ordering::Relaxed);
        self.reply.is_stream.store(head.is_stream, Ordering::Relaxed);
        self.reply.bytes.store(head.bytes, Ordering::Relaxed);
    }

    fn estimate_usage(&self) -> Option<Usage> {
        let (_, bytes) = self.begun.get()?;
        self.reply.estimate_usage(bytes.div_ceil(BYTES_OF_TOKEN))
    }
}

impl Drop for MeteredRequest {
    fn drop(&mut self) {
        if let Some((began, _)) = self.begun.get() {
            self.key.meter.end_request(*began);
        }
    }
}

impl Delivery {
    /// Estimates the tokens of the request. `prompt`: the estimated tokens of its body. `None` if it used
    /// none.
    fn estimate_usage(&self, prompt: u64) -> Option<Usage> {
        if self.is_error.load(Ordering::Relaxed) || prompt == 0 {
            return None;
        }
        let is_stream = self.is_stream.load(Ordering::Relaxed);
        let per_token = if is_stream { BYTES_OF_EVENT } else { BYTES_OF_TOKEN };
        let completion = self.bytes.load(Ordering::Relaxed) / per_token;
        Some(Usage { prompt, completion, ..Usage::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(is_error: bool, is_stream: bool, bytes: u64, expected: Option<(u64, u64)>) {
        let delivery =
            Delivery { is_error: is_error.into(), is_stream: is_stream.into(), bytes: bytes.into() };
        let found = delivery.estimate_usage(100).map(|usage| (usage.prompt, usage.completion));
        assert_eq!(found, expected);
        assert_eq!(delivery.estimate_usage(0), None, "a request without a body uses no tokens");
    }

    #[test]
    fn tokens_are_estimated_from_bytes() {
        check(false, true, 4_000, Some((100, 10)));
        check(false, false, 4_000, Some((100, 1_000)));
        check(false, false, 0, Some((100, 0)));
        check(true, false, 4_000, None);
    }
}
