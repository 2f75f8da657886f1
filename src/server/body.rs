//! Reads a request's body within the configured bound.

use std::fmt::Display;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use http_body_util::{BodyDataStream, BodyExt as _};
use hyper::body::Body;

use super::LimitsConfig;
use crate::units::Size;
use crate::wire::{ApiError, ErrorCode};

/// How much of a body that is not wanted is taken in and thrown away, and for how long.
const DISCARDED: usize = 64 << 20;
const DISCARD_WITHIN: Duration = Duration::from_secs(2);

/// The whole body.
///
/// # Errors
/// 413 when it is larger than `max_body`, 408 when nothing of it comes for longer than `client_timeout`, 400 when it breaks
/// off.
pub(super) async fn read<B>(body: B, limits: &LimitsConfig) -> Result<Bytes, ApiError>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Display,
{
    let (max, patience) = (limits.max_body, limits.client_timeout);
    let declared = body.size_hint().exact();
    let mut pieces = body.into_data_stream();
    if declared.is_some_and(|size| size > max.0) {
        return Err(too_large(max, pieces).await);
    }
    let Some(first) = next(&mut pieces, patience).await? else {
        return Ok(Bytes::new());
    };
    if declared == Some(first.len() as u64) {
        return Ok(first);
    }
    let mut whole =
        BytesMut::with_capacity(declared.and_then(|size| usize::try_from(size).ok()).unwrap_or(first.len()));
    whole.extend_from_slice(&first);
    while let Some(piece) = next(&mut pieces, patience).await? {
        if whole.len() + piece.len() > max.bytes() {
            return Err(too_large(max, pieces).await);
        }
        whole.extend_from_slice(&piece);
    }
    if whole.len() > max.bytes() { Err(too_large(max, pieces).await) } else { Ok(whole.freeze()) }
}

async fn next<B>(pieces: &mut BodyDataStream<B>, patience: Duration) -> Result<Option<Bytes>, ApiError>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Display,
{
    let Ok(piece) = tokio::time::timeout(patience, pieces.next()).await else {
        let message = format!(
            "nothing of the request body came for {patience:?} (`limits.client_timeout` in respool.toml)"
        );
        return Err(ApiError::new(408, ErrorCode::RequestTimeout, message));
    };
    piece.transpose().map_err(|error| {
        ApiError::bad_request(ErrorCode::IncompleteBody, format!("the request body broke off: {error}"))
    })
}

async fn too_large<B: Body<Data = Bytes> + Unpin>(max: Size, rest: BodyDataStream<B>) -> ApiError {
    discard(rest).await;
    let message = format!("the request body is larger than {max} (`limits.max_body` in respool.toml)");
    ApiError::new(413, ErrorCode::RequestTooLarge, message)
}

/// Takes in some of what is still being sent: a client that is answered and cut off while it writes often sees a reset
/// connection instead of the answer.
pub(super) async fn discard<B: Body<Data = Bytes> + Unpin>(mut rest: BodyDataStream<B>) {
    let discard = async {
        let mut left = DISCARDED;
        while let Some(Ok(piece)) = rest.next().await {
            left = left.saturating_sub(piece.len());
            if left == 0 {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(DISCARD_WITHIN, discard).await;
}
