//! Reads a request's body within the configured bound.

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;

use crate::units::Size;
use crate::wire::ApiError;

/// The whole body.
///
/// # Errors
/// 413 when it is larger than `max`, 400 when it breaks off.
pub(super) async fn read(body: Body, max: Size) -> Result<Bytes, ApiError> {
    let declared = http_body::Body::size_hint(&body).exact();
    if declared.is_some_and(|size| size > max.0) {
        return Err(too_large(max));
    }
    let mut pieces = body.into_data_stream();
    let Some(first) = pieces.next().await.transpose().map_err(|error| broken(&error))? else {
        return Ok(Bytes::new());
    };
    if declared == Some(first.len() as u64) {
        return Ok(first);
    }
    let mut whole =
        BytesMut::with_capacity(declared.and_then(|size| usize::try_from(size).ok()).unwrap_or(first.len()));
    whole.extend_from_slice(&first);
    while let Some(piece) = pieces.next().await.transpose().map_err(|error| broken(&error))? {
        if whole.len() + piece.len() > max.bytes() {
            return Err(too_large(max));
        }
        whole.extend_from_slice(&piece);
    }
    if whole.len() > max.bytes() { Err(too_large(max)) } else { Ok(whole.freeze()) }
}

fn too_large(max: Size) -> ApiError {
    ApiError::new(
        413,
        "request_too_large",
        format!("the request body is larger than {max} (`limits.max_body` in respool.toml)"),
    )
}

fn broken(error: &axum::Error) -> ApiError {
    ApiError::bad_request("incomplete_body", format!("the request body broke off: {error}"))
}
