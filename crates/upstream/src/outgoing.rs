//! The body of a request to a model server.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::{Stream, TryStreamExt as _};
use http_body_util::{Full, StreamBody};
use hyper::body::{Body, Frame, SizeHint};
use tower::BoxError;
use wire::Pieces;

/// A request's body: whole, or passed on as it comes.
pub enum Outgoing {
    /// All of it.
    Whole(Full<Bytes>),
    /// All of it, in pieces.
    Pieces(std::vec::IntoIter<Bytes>),
    /// Piece by piece; its length in bytes, where that is known.
    Streamed(Pin<Box<dyn Body<Data = Bytes, Error = BoxError> + Send>>, Option<u64>),
}

impl Outgoing {
    /// Returns the body of methods without one.
    pub fn empty() -> Self {
        Self::Whole(Full::default())
    }

    /// Returns a body that is passed on as it comes. `length` in bytes; without it the body goes out chunked.
    pub fn from_stream<E: Into<BoxError> + 'static>(
        pieces: impl Stream<Item = Result<Bytes, E>> + Send + 'static,
        length: Option<u64>,
    ) -> Self {
        let body = StreamBody::new(pieces.map_ok(Frame::data).map_err(Into::into));
        Self::Streamed(Box::pin(body), length)
    }
}

impl From<Bytes> for Outgoing {
    fn from(bytes: Bytes) -> Self {
        Self::Whole(Full::new(bytes))
    }
}

impl From<Pieces> for Outgoing {
    fn from(pieces: Pieces) -> Self {
        match pieces.into_single() {
            Ok(text) => text.into(),
            Err(pieces) => Self::Pieces(pieces.into_iter()),
        }
    }
}

impl fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Outgoing")
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            Self::Whole(body) => {
                Pin::new(body).poll_frame(context).map_err(|never: Infallible| match never {})
            }
            Self::Pieces(pieces) => Poll::Ready(pieces.next().map(|piece| Ok(Frame::data(piece)))),
            Self::Streamed(body, _) => body.as_mut().poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(body) => body.is_end_stream(),
            Self::Pieces(pieces) => pieces.as_slice().is_empty(),
            Self::Streamed(body, _) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(body) => body.size_hint(),
            Self::Pieces(pieces) => {
                SizeHint::with_exact(pieces.as_slice().iter().map(|piece| piece.len() as u64).sum())
            }
            // Read once, before the first piece.
            Self::Streamed(body, length) => length.map_or_else(|| body.size_hint(), SizeHint::with_exact),
        }
    }
}
