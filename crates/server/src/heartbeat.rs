//! Keeps a silent stream alive: the frames of its source leave as they arrive, with heartbeats in between.
//! It is the only such loop; every protocol and every kind of reply is a [`Source`].

use std::convert::Infallible;
use std::time::Duration;

use async_stream::stream;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use tokio::time::{Instant, sleep};

use super::respond;
use telemetry::RequestRecord;
use wire::sse::write_data;

/// The source of a stream's frames.
pub(super) trait Source: Send + 'static {
    /// Waits for the next frames, which are empty when something happened that the client does not see.
    /// `None` at the end of the stream. Safe to cancel.
    fn next(&mut self) -> impl Future<Output = Option<Bytes>> + Send;

    /// Returns a frame without content; `None` when none may leave.
    fn heartbeat(&mut self) -> Option<Bytes>;
}

/// Returns a response that streams `first` and then the frames of `source`. After each silence of `every` a
/// heartbeat leaves. When the client goes away, everything is dropped.
pub(super) fn stream_response(
    mut source: impl Source,
    first: Bytes,
    every: Duration,
    record: &RequestRecord,
) -> Response {
    let record = record.clone();
    let frames = stream! {
        if !first.is_empty() {
            yield Ok::<_, Infallible>(first);
        }
        let mut silence = Box::pin(sleep(every));
        loop {
            let frames = tokio::select! {
                biased;
                frames = source.next() => frames,
                () = &mut silence => {
                    silence.as_mut().reset(Instant::now() + every);
                    if let Some(heartbeat) = source.heartbeat() {
                        record.count_heartbeat();
                        yield Ok(heartbeat);
                    }
                    continue;
                }
            };
            let Some(frames) = frames else { break };
            if !frames.is_empty() {
                silence.as_mut().reset(Instant::now() + every);
                yield Ok(frames);
            }
        }
    };
    respond::recorded_in_body(respond::stream_response(Body::from_stream(frames)))
}

/// Returns one frame.
pub(super) fn sse_frame(payload: &str) -> Bytes {
    let mut out = Vec::new();
    write_data(&mut out, payload);
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt as _;
    use telemetry::{Recording, RequestStart};

    /// Gives each frame after a pause in seconds.
    struct Paced(Vec<(u64, &'static str)>);

    impl Source for Paced {
        async fn next(&mut self) -> Option<Bytes> {
            let (pause, frame) = *self.0.first()?;
            let until = Instant::now() + Duration::from_secs(pause);
            // A source must do so: time that has passed already is not waited for again.
            while Instant::now() < until {
                self.0[0].0 = (until - Instant::now()).as_secs();
                testing::waiting::delay(Duration::from_secs(1)).await;
            }
            self.0.remove(0);
            Some(Bytes::from_static(frame.as_bytes()))
        }

        fn heartbeat(&mut self) -> Option<Bytes> {
            Some(Bytes::from_static(b"."))
        }
    }

    async fn check(first: &'static str, frames: &[(u64, &'static str)], expected: &str) {
        let start = RequestStart::new("r".into(), "POST /", "other");
        let record = RequestRecord::begin(start, &Recording::default());
        let response = stream_response(
            Paced(frames.to_vec()),
            Bytes::from(first),
            Duration::from_millis(10_500),
            &record,
        );
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(String::from_utf8_lossy(&body), expected);
    }

    #[tokio::test(start_paused = true)]
    async fn only_silence_is_filled() {
        check("", &[(1, "a"), (2, "b")], "ab").await;
        check("head ", &[(25, "a"), (9, "b")], "head ..ab").await;
        check("", &[(9, "a"), (9, "b"), (9, "c")], "abc").await;
        check("", &[(9, "a"), (9, ""), (9, "c")], "a.c").await;
    }
}
