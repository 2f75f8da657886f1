//! The answer of a model server: its head, and its body piece by piece or whole. Called by `relay` and
//! `server`.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::FutureExt as _;
use http::{HeaderMap, StatusCode, header};
use tokio::time::Instant;

use super::body::Incoming;
use super::failure::UpstreamError;
use super::gate::UpstreamPlace;
use super::headers::strip_hop_by_hop;
use wire::{ErrorCode, Object};

/// How much of an error's body is read, and how long it may take. Some servers echo the whole request in it.
const EXCERPT: usize = 1 << 20;
const EXCERPT_WITHIN: Duration = Duration::from_secs(3);

/// How long the end of a body is waited for once the JSON object in it is complete.
const END_WITHIN: Duration = Duration::from_secs(2);

/// A result whose error is rare, and boxed: each function on the way of a reply moves the result.
pub type UpstreamResult<T> = Result<T, Box<UpstreamError>>;

/// An upstream's answer: its head, and its body as it comes.
#[derive(Debug)]
pub struct UpstreamResponse {
    pub(super) upstream: Arc<str>,
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Incoming,
    /// The piece that was read ahead.
    pub(super) first: Option<Bytes>,
    pub(super) deadline: Option<Instant>,
    pub(super) place: Option<UpstreamPlace>,
}

impl UpstreamResponse {
    /// Returns the upstream's name.
    pub fn upstream(&self) -> &str {
        &self.upstream
    }

    /// Returns the status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns the headers.
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// Returns the media type without parameters, in lower case; empty when missing.
    pub fn media_type(&self) -> Cow<'static, str> {
        let value =
            self.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        match value.split(';').next().unwrap_or_default().trim() {
            "" => "".into(),
            "application/json" => "application/json".into(),
            "text/event-stream" => "text/event-stream".into(),
            other => other.to_ascii_lowercase().into(),
        }
    }

    /// Lets go of the headers. They share the buffer that they were read into, and a stream may last for an
    /// hour.
    pub fn release_headers(&mut self) {
        self.headers = HeaderMap::new();
    }

    /// Holds a place at the upstream until the answer is read or dropped.
    #[must_use]
    pub fn with_place(mut self: Box<Self>, place: Option<UpstreamPlace>) -> Box<Self> {
        self.place = place;
        self
    }

    /// Waits until the body has begun, or is known to be empty.
    ///
    /// # Errors
    /// When it breaks off before.
    pub async fn wait_for_body(&mut self) -> UpstreamResult<()> {
        self.first = self.next_piece().await?;
        Ok(())
    }

    /// Returns the next piece of the body as it arrives; `None` at its end. Safe to cancel.
    pub async fn next_piece(&mut self) -> UpstreamResult<Option<Bytes>> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        let piece = match self.deadline {
            None => Ok(self.body.next_piece().await),
            // The clock first: an upstream that never pauses would not let it have its turn.
            Some(at) if Instant::now() >= at => Err(()),
            Some(at) => tokio::time::timeout_at(at, self.body.next_piece()).await.map_err(drop),
        };
        let late = || {
            let what = "did not finish within its `timeout`";
            UpstreamError::new_broken(&self.upstream, 504, ErrorCode::UpstreamTimeout, what, "")
        };
        let piece = piece.map_err(|()| late())?;
        self.place.iter().for_each(UpstreamPlace::note_piece);
        piece.map_err(|fault| Box::new(fault.as_upstream_error(&self.upstream)))
    }

    /// Returns the piece that has arrived already; `None` when the next one has not.
    pub fn ready_piece(&mut self) -> Option<UpstreamResult<Option<Bytes>>> {
        self.next_piece().now_or_never()
    }

    /// Returns the beginning of an error's body, as text; waits no longer than a few seconds for it.
    pub async fn read_excerpt(&mut self) -> String {
        let mut body = BytesMut::new();
        let read = async {
            while let Ok(Some(piece)) = self.next_piece().await {
                body.extend_from_slice(&piece);
                if body.len() > EXCERPT {
                    break;
                }
            }
        };
        // An error whose text does not come is an error all the same.
        let _ = tokio::time::timeout(EXCERPT_WITHIN, read).await;
        body.truncate(EXCERPT);
        String::from_utf8_lossy(&body).into_owned()
    }

    /// Returns the whole body, of at most `limit` bytes.
    ///
    /// # Errors
    /// When it breaks off, cannot be decoded, or is longer.
    pub async fn read_whole(&mut self, limit: usize) -> UpstreamResult<Bytes> {
        self.gather_body(limit, false).await
    }

    /// Returns the same of a body that should be one JSON object: once that is complete, the end of the body
    /// is waited for only `END_WITHIN`, and does not have to be clean. Some servers never send it.
    ///
    /// # Errors
    /// As [`UpstreamResponse::read_whole`].
    pub async fn whole_json(&mut self, limit: usize) -> UpstreamResult<Bytes> {
        self.gather_body(limit, true).await
    }

    async fn gather_body(&mut self, limit: usize, is_json: bool) -> UpstreamResult<Bytes> {
        let Some(first) = self.next_piece().await? else { return Ok(Bytes::new()) };
        // Most bodies come in one piece, which is not copied.
        let (mut body, mut end_at) = (BodyBuffer::One(first), None);
        loop {
            if body.as_slice().len() > limit {
                return Err(Box::new(self.too_long(limit)));
            }
            let piece = match self.ready_piece() {
                Some(piece) => piece,
                None if is_json && is_object(body.as_slice()) => {
                    let end_at = *end_at.get_or_insert_with(|| Instant::now() + END_WITHIN);
                    tokio::time::timeout_at(end_at, self.next_piece()).await.unwrap_or(Ok(None))
                }
                None => self.next_piece().await,
            };
            match piece {
                Ok(Some(piece)) => body.push(&piece),
                Ok(None) => return Ok(body.into_bytes()),
                // A body that cannot be decoded may be wrong in itself.
                Err(error)
                    if is_json
                        && error.error.code == Some(ErrorCode::UpstreamBrokeOff)
                        && is_object(body.as_slice()) =>
                {
                    return Ok(body.into_bytes());
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the head, the body and its place, for passing on; hop-by-hop headers are left out.
    pub fn into_parts(self) -> (StatusCode, HeaderMap, Incoming, Option<UpstreamPlace>) {
        let mut headers = self.headers;
        strip_hop_by_hop(&mut headers);
        (self.status, headers, self.body, self.place)
    }

    fn too_long(&self, limit: usize) -> UpstreamError {
        let what = format!("sent a reply of more than {limit} bytes (`limits.max_body`)");
        UpstreamError::new_broken(&self.upstream, 502, ErrorCode::UpstreamReplyTooLong, &what, "")
    }
}

/// A body in one piece, or copied together from several.
enum BodyBuffer {
    One(Bytes),
    Several(BytesMut),
}

impl BodyBuffer {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::One(bytes) => bytes,
            Self::Several(bytes) => bytes,
        }
    }

    fn push(&mut self, piece: &[u8]) {
        if let Self::One(first) = self {
            *self = Self::Several(BytesMut::from(&first[..]));
        }
        if let Self::Several(bytes) = self {
            bytes.extend_from_slice(piece);
        }
    }

    fn into_bytes(self) -> Bytes {
        match self {
            Self::One(bytes) => bytes,
            Self::Several(bytes) => bytes.freeze(),
        }
    }
}

/// Returns true when a body is one complete JSON object.
fn is_object(body: &[u8]) -> bool {
    let text = body.trim_ascii_end();
    text.ends_with(b"}")
        && std::str::from_utf8(text)
            .is_ok_and(|text| Object::parse(text.trim_start_matches('\u{feff}')).is_ok())
}
