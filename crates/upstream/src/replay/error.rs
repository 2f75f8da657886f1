//! Why recordings could not be loaded. Shown to the user who named the directory.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a directory cannot be replayed.
#[derive(Debug)]
pub enum ReplayError {
    /// The directory or one of its files cannot be read.
    Unreadable(PathBuf, io::Error),
    /// A file is named like a capture and does not hold one.
    NotACapture(PathBuf, RecordingError),
    /// A file holds a reply that another file (named second) holds too.
    Twice(PathBuf, String),
    /// No file of the directory is named like a capture.
    Empty(PathBuf),
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(path, source) => write!(f, "cannot read {}: {source}", path.display()),
            Self::NotACapture(path, reason) => {
                write!(f, "{} is not a captured HTTP reply: {reason}", path.display())
            }
            Self::Twice(path, other) => {
                write!(f, "{} holds the same model's reply as {other}: remove one", path.display())
            }
            Self::Empty(path) => write!(
                f,
                "{} holds no recordings: name them MODEL.nonstream.resp.http, MODEL.stream.resp.http or MODEL.resp.http",
                path.display()
            ),
        }
    }
}

impl std::error::Error for ReplayError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unreadable(_, source) => Some(source),
            Self::NotACapture(_, reason) => Some(reason),
            Self::Twice(..) | Self::Empty(_) => None,
        }
    }
}

/// Why the bytes of a capture make no HTTP reply. Offsets count from the file's first byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordingError {
    /// The file's name has none of the endings of a capture.
    Name(String),
    /// No blank line ends the head.
    NoHead,
    /// The first line is no HTTP/1.1 status line.
    StatusLine(String),
    /// A line that cannot be a header.
    Header(String),
    /// `content-length` names another length than the body has.
    Length {
        /// The text of the line.
        declared: String,
        /// How many bytes follow the head.
        found: usize,
    },
    /// The chunked framing breaks here.
    Chunk {
        /// Where.
        offset: usize,
    },
}

impl fmt::Display for RecordingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "`{name}` does not end like a capture's name"),
            Self::NoHead => write!(f, "no blank line (CRLF CRLF) ends its head"),
            Self::StatusLine(line) => write!(f, "its first line is no HTTP/1.1 status line: {line:?}"),
            Self::Header(line) => write!(f, "its head has a line that is not a header: {line:?}"),
            Self::Length { declared, found } => {
                write!(f, "content-length says {declared}, but {found} bytes follow the head")
            }
            Self::Chunk { offset } => write!(f, "the chunked framing breaks at byte {offset}"),
        }
    }
}

impl std::error::Error for RecordingError {}
