//! The body of a model server's answer, decoded where the server compressed it.

use std::fmt;
use std::io;

use bytes::Bytes;
use futures::StreamExt as _;
use http::{HeaderMap, header};
use http_body_util::BodyExt as _;

use super::compression::{self, Decoded};
use super::failure::UpstreamError;
use super::pool::Live;
use wire::ErrorCode;

/// An answer's body.
pub enum Incoming {
    /// Unchanged.
    Plain(Live),
    /// Through a decoder.
    Decoded(Decoded),
}

/// Why a body ended before its end.
#[derive(Debug)]
pub enum BodyFault {
    /// The connection broke, or the framing was wrong.
    BrokeOff(String),
    /// The content-encoding could not be decoded.
    Undecodable(String),
}

impl BodyFault {
    /// Returns the error that the client gets.
    pub fn as_upstream_error(&self, name: &str) -> UpstreamError {
        match self {
            Self::BrokeOff(details) => UpstreamError::new_broken(
                name,
                502,
                ErrorCode::UpstreamBrokeOff,
                "broke off in the middle of its reply",
                details,
            ),
            Self::Undecodable(details) => {
                let what = "sent a reply whose content-encoding cannot be decoded";
                UpstreamError::new_broken(name, 502, ErrorCode::UpstreamBadEncoding, what, details)
            }
        }
    }
}

impl Incoming {
    /// Returns the body unchanged.
    pub(super) fn plain(body: Live) -> Self {
        Self::Plain(body)
    }

    /// Returns the body without its content-encoding; the header goes with it. An unknown encoding is left as
    /// it is.
    pub(super) fn decode(body: Live, headers: &mut HeaderMap) -> Self {
        let Some(encoding) = headers.get(header::CONTENT_ENCODING) else { return Self::Plain(body) };
        let encoding = encoding.to_str().unwrap_or_default().trim().to_ascii_lowercase();
        let decoded = match compression::decode(body, &encoding) {
            Ok(decoded) => decoded,
            Err(body) => return Self::Plain(body),
        };
        headers.remove(header::CONTENT_ENCODING);
        headers.remove(header::CONTENT_LENGTH);
        Self::Decoded(decoded)
    }

    /// Returns the next piece; `None` at the end. Safe to cancel.
    pub async fn next_piece(&mut self) -> Result<Option<Bytes>, BodyFault> {
        match self {
            Self::Plain(body) => loop {
                let Some(frame) = body.frame().await else { return Ok(None) };
                let frame = frame.map_err(|error| BodyFault::BrokeOff(error.to_string()))?;
                // Trailers contain nothing that a client of this API reads.
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            },
            Self::Decoded(pieces) => pieces.next().await.transpose().map_err(|error| match error.kind() {
                io::ErrorKind::ConnectionAborted => BodyFault::BrokeOff(error.to_string()),
                _ => BodyFault::Undecodable(error.to_string()),
            }),
        }
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Incoming")
    }
}
