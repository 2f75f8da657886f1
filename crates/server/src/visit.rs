//! One request of a client that has a key: counted from its beginning to its end, and what it cost. Made by `access`; the request's
//! line and the body of its reply share it.
//!
//! The cost of a reply comes from the request's record where respool reads the reply, else from the `usage` in the reply's body. Where
//! neither has it, as when the client leaves before the end, it is estimated from what went in and out.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::header;
use http_body::{Frame, SizeHint};

use super::key_limits::Exceeded;
use super::keys::ClientKey;
use telemetry::Account;
use wire::turn::Usage;

/// A token has about so many bytes in a request, and in a reply that is JSON.
const BYTES_OF_TOKEN: u64 = 4;
/// An event of a stream brings about one token in so many bytes at most; a larger one brings more.
const BYTES_OF_EVENT: u64 = 400;
/// `usage` stands in the last so many bytes of a body.
const TAIL: usize = 16 << 10;

/// The request.
#[derive(Debug)]
pub(super) struct Visit {
    /// Whose it is.
    pub(super) key: Arc<ClientKey>,
    /// When it began to count, and how many bytes it brought.
    begun: OnceLock<(Instant, u64)>,
    /// Its cost is reported, or somebody else will report it.
    is_counted: AtomicBool,
    delivered: Mutex<Delivered>,
}

impl Visit {
    /// Of the owner of this key.
    pub(super) fn of(key: Arc<ClientKey>) -> Arc<Self> {
        let (begun, is_counted, delivered) = (OnceLock::new(), AtomicBool::new(false), Mutex::default());
        Arc::new(Self { key, begun, is_counted, delivered })
    }

    /// Counts the request, unless a limit is reached; once, however often this is called. `bytes`: of its body.
    pub(super) fn begin(&self, bytes: u64) -> Result<(), Exceeded> {
        if self.begun.get().is_none() {
            self.key.meter.begin(&self.key.limits)?;
            let _ = self.begun.set((Instant::now(), bytes));
        }
        Ok(())
    }

    fn delivered(&self) -> MutexGuard<'_, Delivered> {
        self.delivered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The reply, watched on its way out.
    pub(super) fn watch(self: Arc<Self>, response: Response) -> Response {
        let is_stream = response
            .headers()
            .get(header::CONTENT_TYPE)
            .is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        *self.delivered() =
            Delivered { is_error: response.status().as_u16() >= 400, is_stream, ..Delivered::default() };
        response.map(|body| Body::new(Watched { body, visit: self }))
    }
}

impl Account for Visit {
    fn name(&self) -> &str {
        &self.key.name
    }

    fn spent(&self, model: &str, usage: Usage) {
        if !self.is_counted.swap(true, Ordering::Relaxed) {
            self.key.meter.spent(model, usage);
        }
    }

    fn counted_elsewhere(&self) {
        self.is_counted.store(true, Ordering::Relaxed);
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        let Some((began, bytes)) = self.begun.get().copied() else { return };
        self.key.meter.end(began);
        if self.is_counted.load(Ordering::Relaxed) {
            return;
        }
        let delivered = self.delivered.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(usage) = delivered.usage(bytes.div_ceil(BYTES_OF_TOKEN)) {
            self.key.meter.spent("", usage);
        }
    }
}

/// What of a reply has left.
#[derive(Debug, Default)]
struct Delivered {
    is_error: bool,
    is_stream: bool,
    bytes: u64,
    /// The last of it.
    tail: Vec<u8>,
}

impl Delivered {
    fn add(&mut self, piece: &[u8]) {
        self.bytes = self.bytes.saturating_add(piece.len() as u64);
        let piece = &piece[piece.len().saturating_sub(TAIL)..];
        let over = (self.tail.len() + piece.len()).saturating_sub(2 * TAIL);
        if over > 0 {
            self.tail.drain(..self.tail.len().min(over + TAIL));
        }
        self.tail.extend_from_slice(piece);
    }

    /// What the request cost. `prompt`: an estimate. `None`: nothing.
    fn usage(&self, prompt: u64) -> Option<Usage> {
        if self.is_error || prompt == 0 {
            return None;
        }
        let said = said(&self.tail);
        let per_token = if self.is_stream { BYTES_OF_EVENT } else { BYTES_OF_TOKEN };
        let estimate = Usage { prompt, completion: self.bytes / per_token, ..Usage::default() };
        Some(Usage {
            prompt: said.prompt.unwrap_or(estimate.prompt),
            completion: said.completion.unwrap_or(if said.prompt.is_some() {
                0
            } else {
                estimate.completion
            }),
            cached: said.cached,
            ..estimate
        })
    }
}

/// What a reply says itself.
#[derive(Debug, Default, PartialEq, Eq)]
struct ReportedUsage {
    prompt: Option<u64>,
    completion: Option<u64>,
    cached: Option<u64>,
}

/// The token counts at the end of a reply of any kind, where it has them.
pub(super) fn usage_at_end(tail: &[u8]) -> Option<Usage> {
    let said = said(tail);
    Some(Usage {
        prompt: said.prompt?,
        completion: said.completion.unwrap_or_default(),
        cached: said.cached,
        ..Usage::default()
    })
}

/// The last `usage` object that begins in the text. What a model writes cannot look like one: within JSON's strings a quote has
/// a backslash before it.
fn said(tail: &[u8]) -> ReportedUsage {
    let text = String::from_utf8_lossy(tail);
    let mut objects = text.rmatch_indices("\"usage\"").filter_map(|(at, name)| {
        let rest = text[at + name.len()..].trim_start().strip_prefix(':')?.trim_start();
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<serde_json::Value>();
        values.next()?.ok().filter(serde_json::Value::is_object)
    });
    let Some(usage) = objects.next() else { return ReportedUsage::default() };
    let number = |names: [&str; 2]| names.into_iter().find_map(|name| usage[name].as_u64());
    let cached_of = |details: &str| usage[details]["cached_tokens"].as_u64();
    let (read, written) =
        (usage["cache_read_input_tokens"].as_u64(), usage["cache_creation_input_tokens"].as_u64());
    // Anthropic's input leaves out what the cache had and what it got.
    let beside = read.unwrap_or_default().saturating_add(written.unwrap_or_default());
    ReportedUsage {
        prompt: number(["prompt_tokens", "input_tokens"]).map(|prompt| prompt.saturating_add(beside)),
        completion: number(["completion_tokens", "output_tokens"]),
        cached: cached_of("prompt_tokens_details").or_else(|| cached_of("input_tokens_details")).or(read),
    }
}

/// A body that is watched.
struct Watched {
    body: Body,
    visit: Arc<Visit>,
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(piece) = frame.data_ref()
        {
            self.visit.delivered().add(piece);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivered(is_stream: bool, pieces: &[&str]) -> Delivered {
        let mut delivered = Delivered { is_stream, ..Delivered::default() };
        pieces.iter().for_each(|piece| delivered.add(piece.as_bytes()));
        delivered
    }

    fn check(delivered: &Delivered, expected: Option<(u64, u64)>) {
        let found = delivered.usage(100).map(|usage| (usage.prompt, usage.completion));
        assert_eq!(found, expected, "{delivered:?}");
    }

    #[test]
    fn what_a_reply_says_counts() {
        check(
            &delivered(false, &[r#"{"data":[],"usage":{"prompt_tokens":7,"total_tokens":7}}"#]),
            Some((7, 0)),
        );
        let chat = r#"{"usage" : {"prompt_tokens":7,"completion_tokens":9,"total_tokens":16}}"#;
        check(&delivered(false, &[&chat[..20], &chat[20..]]), Some((7, 9)));
        let anthropic = "data: {\"usage\":{\"input_tokens\":5}}\n\ndata: {\"usage\":{\"output_tokens\":3,\"input_tokens\":5}}\n\n";
        check(&delivered(true, &[anthropic]), Some((5, 3)));
        let cached = r#"{"usage":{"input_tokens":100,"cache_read_input_tokens":850,"cache_creation_input_tokens":50,"output_tokens":10}}"#;
        let responses = r#"{"usage":{"input_tokens":1000,"input_tokens_details":{"cached_tokens":850},"output_tokens":10}}"#;
        for body in [cached, responses] {
            check(&delivered(false, &[body]), Some((1_000, 10)));
            assert_eq!(usage_at_end(body.as_bytes()).and_then(|usage| usage.cached), Some(850));
        }
        let long = "x".repeat(3 * TAIL);
        check(&delivered(false, &[&long, &long, chat]), Some((7, 9)));
        let many: Vec<&str> = std::iter::repeat_n("0123456789", 10_000).chain([chat]).collect();
        check(&delivered(false, &many), Some((7, 9)));
    }

    #[test]
    fn what_a_model_writes_does_not() {
        let text = r#"{"choices":[{"text":"\"usage\":{\"prompt_tokens\":0,\"completion_tokens\":0}"}]}"#;
        check(&delivered(false, &[text]), Some((100, text.len() as u64 / 4)));
    }

    #[test]
    fn what_nobody_says_is_estimated() {
        check(&delivered(true, &[&"x".repeat(4_000)]), Some((100, 10)));
        check(&delivered(false, &["", &"x".repeat(4_000)]), Some((100, 1_000)));
        check(&delivered(true, &["data: {\"usage\":null}"]), Some((100, 0)));
        check(&delivered(false, &[]), Some((100, 0)));
        check(&Delivered { is_error: true, ..delivered(false, &["x"]) }, None);
        assert_eq!(delivered(false, &["{}"]).usage(0), None, "nothing was sent: a list was asked for");
    }

    #[test]
    fn the_tail_is_bounded() {
        let mut delivered = Delivered::default();
        for size in [1, TAIL, 10 * TAIL, 7, 3 * TAIL, 1_000_000] {
            delivered.add(&vec![b'x'; size]);
            assert!(delivered.tail.len() <= 2 * TAIL && delivered.tail.len() >= size.min(TAIL));
        }
    }
}
