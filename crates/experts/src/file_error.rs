//! Why a file of a workspace cannot be used, in words for the model. Called by `workspace`.

use std::fmt;
use std::io;

use super::learning::LearningError;

/// Why a file of a workspace cannot be read or written. The paths are those that the model wrote.
#[derive(Debug)]
pub(super) enum FileError {
    /// The text of the path alone shows that it leaves the workspace.
    BadPath(String, &'static str),
    /// The path names a folder.
    Folder(String),
    /// The path is in no folder of the workspace.
    UnknownFolder(String),
    /// The file does not exist, or the run may not know of it.
    Missing(String),
    /// The file is that of an isolated function, which this tool calls.
    Isolated { function: String, tool: String },
    /// The path names neither a file nor a folder.
    NotRegular(String),
    /// The file is not UTF-8.
    NotText(String),
    /// The file is larger than the limit.
    TooLarge(String),
    /// The file would become larger than the limit.
    WouldBeTooLarge(String),
    /// Runs do not write this file.
    ReadOnly(String),
    /// The run has not read the content that it would replace.
    Changed(String),
    /// The text to replace is not in the file.
    TextMissing(String),
    /// The text to replace is in the file more than once.
    TextRepeated(String),
    /// The disk failed.
    Read(String, io::Error),
    /// The disk failed.
    Write(String, io::Error),
    /// A learning cannot be kept.
    Learning(LearningError),
}

impl fmt::Display for FileError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadPath(path, why) => write!(out, "{path:?} is not a path of this workspace: {why}"),
            Self::Folder(path) => write!(out, "{path} is a folder; name a file"),
            Self::UnknownFolder(path) => write!(
                out,
                "there is no file {path}; there are functions/, processes/, knowledge/, state/, scratch/ and learnings/"
            ),
            Self::Missing(path) => write!(out, "there is no file {path}"),
            Self::Isolated { function, tool } => {
                write!(
                    out,
                    "the function {function} runs by itself and is not read: call `{tool}` with its inputs"
                )
            }
            Self::NotRegular(path) => write!(out, "{path} is not a regular file"),
            Self::NotText(path) => write!(out, "{path} is not text"),
            Self::TooLarge(path) => write!(out, "{path} is larger than 1 MiB"),
            Self::WouldBeTooLarge(path) => write!(out, "{path} would be larger than 1 MiB"),
            Self::ReadOnly(path) => write!(out, "{path} can only be read; write to state/ or scratch/"),
            Self::Changed(path) => write!(
                out,
                "{path} has changed since you read it, or you have not read it: read it, then write"
            ),
            Self::TextMissing(path) => write!(out, "the old text is not in {path}; read the file again"),
            Self::TextRepeated(path) => {
                write!(out, "the old text is in {path} more than once; give more of it")
            }
            Self::Read(path, error) => write!(out, "{path} cannot be read: {error}"),
            Self::Write(path, error) => write!(out, "{path} cannot be written: {error}"),
            Self::Learning(error) => error.fmt(out),
        }
    }
}
