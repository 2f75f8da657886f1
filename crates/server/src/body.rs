//! Reads a request's body within the configured bounds: of one body, and of all bodies together. A body
//! counts until nothing holds its bytes any more, so the bodies of requests that wait or stream count too.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use http_body_util::{BodyDataStream, BodyExt as _};
use hyper::body::Body;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use super::config::LimitsConfig;
use wire::units::Size;
use wire::{ApiError, ErrorCode};

/// The most bytes of an unwanted body that are read and dropped, and the time for it.
const DISCARDED: usize = 64 << 20;
const DISCARD_WITHIN: Duration = Duration::from_secs(2);

/// The time that a body waits for room.
const ROOM_WITHIN: Duration = Duration::from_secs(5);
/// The time that a body keeps room for its whole declared length, which is shorter than others wait. After
/// that it keeps room for the bytes that arrived and as many again.
const AHEAD_FOR: Duration = Duration::from_secs(2);
/// A body may take the client's timeout and a second for each so many bytes: a slow one does not keep its
/// room for ever.
const SLOWEST: u64 = 8 << 10;
/// The `retry-after` of a body that found no room, in seconds: bodies come and go within seconds.
const RETRY_AFTER: u64 = 5;
/// The bytes of a piece, the unit of the budget.
const PIECE: usize = 1 << 10;

/// The share of the room that bodies of unproven senders take together, and the largest one of them.
const UNPROVEN_SHARE: u64 = 16;
const LARGEST_UNPROVEN: Size = Size::mib(4);

/// The memory for all request bodies together.
#[derive(Clone, Debug)]
pub struct BodyBudget {
    free: Arc<Semaphore>,
    /// The part for bodies whose sender is known only once they are complete.
    unproven: Arc<Semaphore>,
    size: Size,
}

/// A part of the budget that one request holds until it is dropped.
#[derive(Debug)]
pub(super) struct BodyReservation {
    room: BodyBudget,
    permit: Option<OwnedSemaphorePermit>,
}

/// A body with its reservation.
struct Counted {
    bytes: Bytes,
    _permit: Option<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl BodyBudget {
    /// Returns a budget of this size.
    pub fn new(size: Size) -> Self {
        let semaphore =
            |size: Size| Arc::new(Semaphore::new((size.to_usize() / PIECE).clamp(1, u32::MAX as usize)));
        Self { free: semaphore(size), unproven: semaphore(unproven_share(size)), size }
    }

    /// Returns the part for bodies whose sender is known only once they are complete.
    pub(super) fn unproven_part(&self) -> Self {
        let size = unproven_share(self.size);
        Self { free: Arc::clone(&self.unproven), unproven: Arc::clone(&self.unproven), size }
    }

    /// Returns an empty reservation for a body that has not begun to arrive.
    pub(super) fn empty(&self) -> BodyReservation {
        BodyReservation { room: self.clone(), permit: None }
    }

    fn full_error(&self) -> ApiError {
        let message = format!(
            "The request bodies in memory have reached the limit ({}, `limits.max_bodies` in respool.toml). Send this request \
             again in {RETRY_AFTER} s",
            self.size
        );
        let mut error = ApiError::new(503, ErrorCode::BodiesFull, message);
        error.retry_after = Some(RETRY_AFTER);
        error
    }
}

/// Returns the share of unproven bodies, with room for at least one of the largest.
fn unproven_share(all: Size) -> Size {
    Size(all.0 / UNPROVEN_SHARE).max(LARGEST_UNPROVEN).min(all)
}

/// Returns the limits of a body whose sender is known only once it is complete.
pub(super) fn limits_of_unproven(limits: &LimitsConfig) -> LimitsConfig {
    LimitsConfig { max_body: limits.max_body.min(LARGEST_UNPROVEN), ..limits.clone() }
}

impl BodyReservation {
    /// Changes the reservation to the size of the request that a body was turned into.
    ///
    /// # Errors
    /// 503 when there is no room for it.
    pub(super) fn resize(&mut self, length: usize) -> Result<(), ApiError> {
        if !self.grows_to(length) {
            return Err(self.room.full_error());
        }
        self.shrink(length);
        Ok(())
    }

    /// Gives back the part beyond this length.
    fn shrink(&mut self, length: usize) {
        let held = self.held_pieces();
        drop(self.take_part(held.saturating_sub(piece_count(length) as usize)));
    }

    /// Splits off a reservation of this length, with a lifetime of its own.
    pub(super) fn split(&mut self, length: usize) -> Self {
        let permit = self.take_part((piece_count(length) as usize).min(self.held_pieces()));
        Self { room: self.room.clone(), permit }
    }

    fn take_part(&mut self, count: usize) -> Option<OwnedSemaphorePermit> {
        self.permit.as_mut().and_then(|permit| permit.split(count))
    }

    /// Reserves room for the bytes that have arrived and, ahead, for as many again of the `declared` ones.
    /// Waits a while if there is no room.
    ///
    /// # Errors
    /// 503 when there is no room for it.
    async fn grow(&mut self, length: usize, declared: Option<u64>) -> Result<(), ApiError> {
        if piece_count(length) as usize <= self.held_pieces() {
            return Ok(());
        }
        let declared = declared.map_or(length, |declared| usize::try_from(declared).unwrap_or(usize::MAX));
        if self.grows_to(declared.min(length.saturating_mul(2))) || self.grows_to(length) {
            return Ok(());
        }
        let more = piece_count(length).saturating_sub(u32::try_from(self.held_pieces()).unwrap_or(u32::MAX));
        let waited =
            tokio::time::timeout(ROOM_WITHIN, Arc::clone(&self.room.free).acquire_many_owned(more)).await;
        let permit = waited.ok().and_then(Result::ok).ok_or_else(|| self.room.full_error())?;
        self.add_permit(permit);
        Ok(())
    }

    /// Returns the number of pieces that it holds.
    fn held_pieces(&self) -> usize {
        self.permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits)
    }

    fn add_permit(&mut self, permit: OwnedSemaphorePermit) {
        match &mut self.permit {
            Some(held) => held.merge(permit),
            None => self.permit = Some(permit),
        }
    }

    /// Reserves room for a piece of a growing body and attaches it.
    ///
    /// # Errors
    /// 503 when there is no room for it.
    pub(super) fn keep_piece(&mut self, piece: Bytes) -> Result<Bytes, ApiError> {
        if !self.grows_to(piece.len()) {
            return Err(self.room.full_error());
        }
        Ok(self.split(piece.len()).attach_to(piece))
    }

    /// Reserves room for a body of this length; false if it does not fit.
    fn grows_to(&mut self, length: usize) -> bool {
        let more = (piece_count(length) as usize).saturating_sub(self.held_pieces());
        if more == 0 {
            return true;
        }
        let more = u32::try_from(more).unwrap_or(u32::MAX);
        let Ok(permit) = Arc::clone(&self.room.free).try_acquire_many_owned(more) else { return false };
        self.add_permit(permit);
        true
    }

    /// Attaches this reservation to the bytes, until nothing holds them any more.
    pub(super) fn attach_to(self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(Counted { bytes, _permit: self.permit })
    }
}

fn piece_count(length: usize) -> u32 {
    u32::try_from(length.div_ceil(PIECE)).unwrap_or(u32::MAX)
}

/// The time limits of a body's pieces.
#[derive(Debug)]
pub(super) struct Pace {
    began: Instant,
    patience: Duration,
    received: u64,
}

impl Pace {
    /// Makes the pace of a body. `patience`: the longest pause, and the time for a small body as a whole.
    pub(super) fn new(patience: Duration) -> Self {
        Self { began: Instant::now(), patience, received: 0 }
    }

    /// Waits for the next piece of the body.
    ///
    /// # Errors
    /// 408 when no piece arrives for too long or the whole is too slow; 400 when it breaks off.
    pub(super) async fn next_piece<B>(
        &mut self,
        pieces: &mut BodyDataStream<B>,
    ) -> Result<Option<Bytes>, ApiError>
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: Display,
    {
        let whole = self.began + self.patience + Duration::from_secs(self.received / SLOWEST);
        let pause = Instant::now() + self.patience;
        let Ok(piece) = timeout_at(pause.min(whole), pieces.next()).await else {
            return Err(self.too_slow(whole < pause));
        };
        let piece = piece.transpose().map_err(|error| {
            ApiError::bad_request(
                ErrorCode::IncompleteBody,
                format!("the request body ended too early: {error}"),
            )
        })?;
        self.received += piece.as_ref().map_or(0, |piece| piece.len() as u64);
        Ok(piece)
    }

    fn too_slow(&self, is_trickle: bool) -> ApiError {
        let Self { patience, received, .. } = self;
        let what = if is_trickle {
            let took = self.began.elapsed().as_secs();
            format!(
                "only {received} bytes of the request body came in {took} s; it must come at {} KiB/s or within {patience:?}",
                SLOWEST >> 10
            )
        } else {
            format!("nothing of the request body came for {patience:?}")
        };
        ApiError::new(
            408,
            ErrorCode::RequestTimeout,
            format!("{what} (`limits.client_timeout` in respool.toml)"),
        )
    }
}

/// Reads the whole body.
///
/// # Errors
/// 413 when it is larger than `max_body`, 408 when nothing of it comes for longer than `client_timeout` or
/// all of it too slowly, 400 when it breaks off, 503 when there is no room for it.
pub(super) async fn read_body<B>(body: B, limits: &LimitsConfig, room: &BodyBudget) -> Result<Bytes, ApiError>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Display,
{
    let (bytes, taken) = read_counted(body, limits, room).await?;
    Ok(taken.attach_to(bytes))
}

/// Reads the whole body, and returns its reservation apart from it: the body may be turned into another one.
///
/// # Errors
/// As of [`read`].
pub(super) async fn read_counted<B>(
    body: B,
    limits: &LimitsConfig,
    room: &BodyBudget,
) -> Result<(Bytes, BodyReservation), ApiError>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Display,
{
    let max = limits.max_body;
    let declared = body.size_hint().exact();
    let mut pieces = body.into_data_stream();
    if declared.is_some_and(|size| size > max.0) {
        return Err(too_large(max, pieces).await);
    }
    let mut taken = room.empty();
    // It is better to read whole bodies one after the other than parts of all.
    if let Err(full) =
        taken.grow(declared.map_or(0, |size| usize::try_from(size).unwrap_or(usize::MAX)), None).await
    {
        return Err(refuse_body(full, pieces).await);
    }
    let (mut pace, mut whole) = (Pace::new(limits.client_timeout), BytesMut::new());
    let mut ahead_until = declared.map(|_| Instant::now() + AHEAD_FOR);
    loop {
        let piece = match ahead_until {
            None => pace.next_piece(&mut pieces).await?,
            Some(until) => {
                let Ok(piece) = timeout_at(until, pace.next_piece(&mut pieces)).await else {
                    taken.shrink(whole.len().saturating_mul(2));
                    ahead_until = None;
                    continue;
                };
                piece?
            }
        };
        let Some(bytes) = piece else { break };
        let length = whole.len() + bytes.len();
        if length > max.to_usize() {
            return Err(too_large(max, pieces).await);
        }
        if let Err(full) = taken.grow(length, declared).await {
            drop((whole, taken));
            return Err(refuse_body(full, pieces).await);
        }
        if declared == Some(bytes.len() as u64) {
            return Ok((bytes, taken));
        }
        if whole.is_empty() {
            whole.reserve(declared.and_then(|size| usize::try_from(size).ok()).unwrap_or(length));
        }
        whole.extend_from_slice(&bytes);
    }
    Ok((whole.freeze(), taken))
}

async fn too_large<B: Body<Data = Bytes> + Unpin>(max: Size, rest: BodyDataStream<B>) -> ApiError {
    let message = format!("the request body is larger than {max} (`limits.max_body` in respool.toml)");
    refuse_body(ApiError::new(413, ErrorCode::RequestTooLarge, message), rest).await
}

/// Reads some of a refused body that is still being sent, and returns the error.
pub(super) async fn refuse_body<B: Body<Data = Bytes> + Unpin>(
    error: ApiError,
    rest: BodyDataStream<B>,
) -> ApiError {
    discard_rest(rest).await;
    error
}

/// Reads and drops some of the rest. A client that is cut off while it writes often sees a reset connection
/// instead of the answer.
pub(super) async fn discard_rest<B: Body<Data = Bytes> + Unpin>(mut rest: BodyDataStream<B>) {
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
mod tests;
