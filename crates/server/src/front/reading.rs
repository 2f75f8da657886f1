//! The stage that reads the body of a request for a turn.

use bytes::Bytes;
use http::header;
use http::request::Parts;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use super::permit::begin_reading;
use crate::app::App;
use crate::body::{self, BodyReservation};
use wire::{ApiError, ErrorCode};

/// Reads the whole body.
///
/// # Errors
/// 415 when it is compressed, 429 while too many bodies of the same key are being read, and as of
/// [`body::read_counted`].
pub(super) async fn read_request_body(
    app: &App,
    parts: &Parts,
    body: Incoming,
) -> Result<(Bytes, BodyReservation), ApiError> {
    if parts.headers.get(header::CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
        let message = "the request body is compressed; send it with `content-encoding: identity`";
        return Err(ApiError::new(415, ErrorCode::UnsupportedContentEncoding, message));
    }
    let _reading = match begin_reading(parts) {
        Ok(reading) => reading,
        Err(error) => return Err(body::refuse_body(error, body.into_data_stream()).await),
    };
    body::read_counted(body, &app.limits, &app.bodies).await
}
