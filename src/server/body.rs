//! Reads a request's body within the configured bounds: of one body, and of all bodies together. A body counts until nothing
//! holds its bytes any more, so the bodies of requests that wait or stream count too.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use http_body_util::{BodyDataStream, BodyExt as _};
use hyper::body::Body;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::LimitsConfig;
use crate::units::Size;
use crate::wire::{ApiError, ErrorCode};

/// How much of a body that is not wanted is taken in and thrown away, and for how long.
const DISCARDED: usize = 64 << 20;
const DISCARD_WITHIN: Duration = Duration::from_secs(2);

/// So long a body waits for room before anything of it is read.
const ROOM_WITHIN: Duration = Duration::from_secs(5);
/// When a client that found no room is to come back: bodies come and go within seconds.
const RETRY_AFTER: u64 = 5;
/// Room is counted in pieces of so many bytes.
const PIECE: usize = 1 << 10;

/// The room for all request bodies together.
#[derive(Clone, Debug)]
pub struct BodyRoom {
    free: Arc<Semaphore>,
    size: Size,
}

/// Room that is taken for one request, until it is dropped.
#[derive(Debug)]
pub(super) struct Taken {
    room: BodyRoom,
    permit: Option<OwnedSemaphorePermit>,
}

/// A body, and the room that it takes until it is dropped.
struct Counted {
    bytes: Bytes,
    _permit: Option<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl BodyRoom {
    /// Room for so many bytes.
    pub fn new(size: Size) -> Self {
        let pieces = (size.bytes() / PIECE).clamp(1, u32::MAX as usize);
        Self { free: Arc::new(Semaphore::new(pieces)), size }
    }

    /// The room of a body that takes it piece by piece.
    pub(super) fn piecemeal(&self) -> Taken {
        Taken { room: self.clone(), permit: None }
    }

    /// Waits for the room of a body that declares its length. Nothing of it has been read, so those that wait hold nothing.
    async fn take(&self, length: Option<u64>) -> Result<Taken, ApiError> {
        let mut taken = Taken { room: self.clone(), permit: None };
        let length = usize::try_from(length.unwrap_or_default()).unwrap_or(usize::MAX);
        if !taken.grows_to(length) {
            let waited =
                tokio::time::timeout(ROOM_WITHIN, Arc::clone(&self.free).acquire_many_owned(pieces(length)));
            let permit = waited.await.ok().and_then(Result::ok).ok_or_else(|| self.full())?;
            taken.permit = Some(permit);
        }
        Ok(taken)
    }

    fn full(&self) -> ApiError {
        let message = format!(
            "the requests at work fill the room for request bodies ({}, `limits.max_bodies` in respool.toml): send this one \
             again in {RETRY_AFTER} s",
            self.size
        );
        let mut error = ApiError::new(503, ErrorCode::BodiesFull, message);
        error.retry_after = Some(RETRY_AFTER);
        error
    }
}

impl Taken {
    /// For what became of a body: takes more room, or gives back what is too much.
    ///
    /// # Errors
    /// 503 when there is no room for it.
    pub(super) fn resize(&mut self, length: usize) -> Result<(), ApiError> {
        if !self.grows_to(length) {
            return Err(self.room.full());
        }
        let held = self.permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        drop(self.part(held.saturating_sub(pieces(length) as usize)));
        Ok(())
    }

    /// So much of the room for something else that outlives, or is outlived by, the rest.
    pub(super) fn split(&mut self, length: usize) -> Self {
        let held = self.permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let permit = self.part((pieces(length) as usize).min(held));
        Self { room: self.room.clone(), permit }
    }

    fn part(&mut self, count: usize) -> Option<OwnedSemaphorePermit> {
        self.permit.as_mut().and_then(|permit| permit.split(count))
    }

    /// A piece of a body that grows, with room of its own.
    ///
    /// # Errors
    /// 503 when there is no room for it.
    pub(super) fn keep_piece(&mut self, piece: Bytes) -> Result<Bytes, ApiError> {
        if !self.grows_to(piece.len()) {
            return Err(self.room.full());
        }
        Ok(self.split(piece.len()).keep(piece))
    }

    /// Takes room for a body of so many bytes, if there is any.
    fn grows_to(&mut self, length: usize) -> bool {
        let held = self.permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let more = (pieces(length) as usize).saturating_sub(held);
        if more == 0 {
            return true;
        }
        let more = u32::try_from(more).unwrap_or(u32::MAX);
        let Ok(permit) = Arc::clone(&self.room.free).try_acquire_many_owned(more) else { return false };
        match &mut self.permit {
            Some(held) => held.merge(permit),
            None => self.permit = Some(permit),
        }
        true
    }

    /// The bytes, which keep this room until nothing holds them any more.
    pub(super) fn keep(self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(Counted { bytes, _permit: self.permit })
    }
}

fn pieces(length: usize) -> u32 {
    u32::try_from(length.div_ceil(PIECE)).unwrap_or(u32::MAX)
}

/// The whole body.
///
/// # Errors
/// 413 when it is larger than `max_body`, 408 when nothing of it comes for longer than `client_timeout`, 400 when it breaks
/// off, 503 when there is no room for it.
pub(super) async fn read<B>(body: B, limits: &LimitsConfig, room: &BodyRoom) -> Result<Bytes, ApiError>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Display,
{
    let (bytes, taken) = read_counted(body, limits, room).await?;
    Ok(taken.keep(bytes))
}

/// The whole body, and its room apart from it: for what becomes of the body.
///
/// # Errors
/// As of [`read`].
pub(super) async fn read_counted<B>(
    body: B,
    limits: &LimitsConfig,
    room: &BodyRoom,
) -> Result<(Bytes, Taken), ApiError>
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
    let mut taken = match room.take(declared).await {
        Ok(taken) => taken,
        Err(full) => return Err(refused(full, pieces).await),
    };
    let Some(first) = next(&mut pieces, patience).await? else {
        return Ok((Bytes::new(), taken));
    };
    if declared == Some(first.len() as u64) {
        return Ok((first, taken));
    }
    let mut whole =
        BytesMut::with_capacity(declared.and_then(|size| usize::try_from(size).ok()).unwrap_or(first.len()));
    let mut piece = Some(first);
    while let Some(bytes) = piece {
        if whole.len() + bytes.len() > max.bytes() {
            return Err(too_large(max, pieces).await);
        }
        if !taken.grows_to(whole.len() + bytes.len()) {
            drop((whole, taken));
            return Err(refused(room.full(), pieces).await);
        }
        whole.extend_from_slice(&bytes);
        piece = next(&mut pieces, patience).await?;
    }
    Ok((whole.freeze(), taken))
}

/// The next piece of a body.
///
/// # Errors
/// 408 when nothing of it comes for so long, 400 when it breaks off.
pub(super) async fn next<B>(
    pieces: &mut BodyDataStream<B>,
    patience: Duration,
) -> Result<Option<Bytes>, ApiError>
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
    let message = format!("the request body is larger than {max} (`limits.max_body` in respool.toml)");
    refused(ApiError::new(413, ErrorCode::RequestTooLarge, message), rest).await
}

/// The error of a body that is not wanted, once some of what is still being sent was taken in.
pub(super) async fn refused<B: Body<Data = Bytes> + Unpin>(
    error: ApiError,
    rest: BodyDataStream<B>,
) -> ApiError {
    discard(rest).await;
    error
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn room_is_free_again_when_the_last_of_a_body_is_dropped() {
        let room = BodyRoom::new(Size(8 << 10));
        let first = room.take(Some(5 << 10)).await.unwrap().keep(Bytes::from_static(b"a body"));
        assert_eq!(&first[..], b"a body");
        let part = first.slice(2..);
        drop(first);
        let full = room.take(Some(4 << 10)).await.err().unwrap();
        assert_eq!((full.status, full.code, full.retry_after), (503, Some(ErrorCode::BodiesFull), Some(5)));
        let mut small = room.take(Some(1)).await.unwrap();
        assert!(small.grows_to(3 << 10) && !small.grows_to(4 << 10), "3 KiB were left");
        drop((part, small));
        room.take(Some(8 << 10)).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn room_follows_what_becomes_of_a_body() {
        let room = BodyRoom::new(Size(8 << 10));
        let mut taken = room.take(Some(4 << 10)).await.unwrap();
        assert_eq!(taken.resize(9 << 10).unwrap_err().code, Some(ErrorCode::BodiesFull));
        taken.resize(6 << 10).unwrap();
        assert_eq!(room.free.available_permits(), 2);
        taken.resize(5 << 10).unwrap();
        let rest = taken.split(2 << 10);
        let chat = taken.keep(Bytes::from_static(b"a chat request"));
        assert_eq!(room.free.available_permits(), 3);
        drop(chat);
        assert_eq!(room.free.available_permits(), 6);
        drop(rest);
        assert_eq!(room.free.available_permits(), 8);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_waits_for_room_before_it_is_read() {
        let room = BodyRoom::new(Size(8 << 10));
        let held = room.take(Some(8 << 10)).await.unwrap();
        let began = tokio::time::Instant::now();
        let free = async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            drop(held);
        };
        let (taken, ()) = tokio::join!(room.take(Some(8 << 10)), free);
        assert!(taken.is_ok());
        assert_eq!(began.elapsed().as_secs(), 3);
    }
}
