//! A body that is passed on to an upstream: as a stream, or after some of it was read. Used by `transparent`
//! and `form`.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use http_body_util::BodyDataStream;
use tokio::runtime::Handle;

use super::app::App;
use super::body;
use relay::Passing;
use telemetry::RequestRecord;
use wire::ApiError;

/// A body that is passed on, read as far as necessary.
#[derive(Debug)]
pub(super) struct BufferedUpload {
    /// The body as it goes up.
    pub(super) body: Passing,
    /// The model that it names there.
    pub(super) model: String,
    /// Why the rest of it did not go up, which shows only while it does.
    pub(super) refusal: Arc<OnceLock<ApiError>>,
}

impl BufferedUpload {
    pub(super) fn new(body: Passing, model: String) -> Self {
        Self { body, model, refusal: Arc::default() }
    }
}

/// Records the model that a request is for.
pub(super) fn record_model(app: &App, model: &str, record: &RequestRecord) {
    record.set_model(model);
    if app.relay.knows_model(model) {
        record.set_known_model(model);
    }
}

/// Streams the client's body, until no piece of it comes for too long. What is not sent up is read and
/// dropped for a while, so that the client, which still writes, reads its answer instead of a broken pipe.
pub(super) fn stream_upload(
    body: BodyDataStream<Body>,
    patience: Duration,
) -> impl Stream<Item = Result<Bytes, axum::BoxError>> {
    let mut upload = Upload(Some(body));
    async_stream::stream! {
        while let Some(body) = &mut upload.0 {
            match tokio::time::timeout(patience, body.next()).await {
                Ok(Some(piece)) => yield piece.map_err(Into::into),
                Ok(None) => upload.0 = None,
                Err(_) => {
                    upload.0 = None;
                    yield Err(format!("nothing of it came for {patience:?} (`limits.client_timeout`)").into());
                }
            }
        }
    }
}

/// A body that is sent up; `None` at its end.
struct Upload(Option<BodyDataStream<Body>>);

impl Drop for Upload {
    fn drop(&mut self) {
        if let Some((rest, runtime)) = self.0.take().zip(Handle::try_current().ok()) {
            runtime.spawn(body::discard_rest(rest));
        }
    }
}
