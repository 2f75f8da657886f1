//! Why recordings could not be loaded. Shown to the user who named the directory.

use std::io;
use std::path::PathBuf;

/// Why a directory cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The directory or one of its files cannot be read.
    #[error("cannot read {path}: {1}", path = .0.display())]
    Unreadable(PathBuf, #[source] io::Error),
    /// A file is named like a capture and does not hold one.
    #[error("{path} is not a captured HTTP reply: {1}", path = .0.display())]
    NotACapture(PathBuf, #[source] RecordingError),
    /// A file holds a reply that another file (named second) holds too.
    #[error("{path} holds the same model's reply as {1}: remove one", path = .0.display())]
    Twice(PathBuf, String),
    /// No file of the directory is named like a capture.
    #[error("{path} holds no recordings: name them MODEL.nonstream.resp.http, MODEL.stream.resp.http or MODEL.resp.http", path = .0.display())]
    Empty(PathBuf),
}

/// Why the bytes of a capture make no HTTP reply. Offsets count from the file's first byte.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordingError {
    /// The file's name has none of the endings of a capture.
    #[error("`{0}` does not end like a capture's name")]
    Name(String),
    /// No blank line ends the head.
    #[error("no blank line (CRLF CRLF) ends its head")]
    NoHead,
    /// The first line is no HTTP/1.1 status line.
    #[error("its first line is no HTTP/1.1 status line: {0:?}")]
    StatusLine(String),
    /// A line that cannot be a header.
    #[error("its head has a line that is not a header: {0:?}")]
    Header(String),
    /// `content-length` names another length than the body has.
    #[error("content-length says {declared}, but {found} bytes follow the head")]
    Length {
        /// The text of the line.
        declared: String,
        /// How many bytes follow the head.
        found: usize,
    },
    /// The chunked framing breaks here.
    #[error("the chunked framing breaks at byte {offset}")]
    Chunk {
        /// Where.
        offset: usize,
    },
}
