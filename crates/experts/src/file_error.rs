//! Why a file of a workspace cannot be used, in words for the model. Called by `workspace`.

use std::io;

use super::learning::LearningError;

/// Why a file of a workspace cannot be read or written. The paths are those that the model wrote.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileError {
    /// The text of the path alone shows that it leaves the workspace.
    #[error("{0:?} is not a path of this workspace: {1}")]
    BadPath(String, &'static str),
    /// The path names a folder.
    #[error("{0} is a folder; name a file")]
    Folder(String),
    /// The path is in no folder of the workspace.
    #[error(
        "there is no file {0}; there are functions/, processes/, knowledge/, state/, scratch/ and learnings/"
    )]
    UnknownFolder(String),
    /// The file does not exist, or the run may not know of it.
    #[error("there is no file {0}")]
    Missing(String),
    /// The file is that of an isolated function, which this tool calls.
    #[error("the function {function} runs by itself and is not read: call `{tool}` with its inputs")]
    Isolated { function: String, tool: String },
    /// The path names neither a file nor a folder.
    #[error("{0} is not a regular file")]
    NotRegular(String),
    /// The file is not UTF-8.
    #[error("{0} is not text")]
    NotText(String),
    /// The file is larger than the limit.
    #[error("{0} is larger than 1 MiB")]
    TooLarge(String),
    /// The file would become larger than the limit.
    #[error("{0} would be larger than 1 MiB")]
    WouldBeTooLarge(String),
    /// Runs do not write this file.
    #[error("{0} can only be read; write to state/ or scratch/")]
    ReadOnly(String),
    /// The run has not read the content that it would replace.
    #[error("{0} has changed since you read it, or you have not read it: read it, then write")]
    Changed(String),
    /// The text to replace is not in the file.
    #[error("the old text is not in {0}; read the file again")]
    TextMissing(String),
    /// The text to replace is in the file more than once.
    #[error("the old text is in {0} more than once; give more of it")]
    TextRepeated(String),
    /// The disk failed.
    #[error("{0} cannot be read: {1}")]
    Read(String, io::Error),
    /// The disk failed.
    #[error("{0} cannot be written: {1}")]
    Write(String, io::Error),
    /// A learning cannot be kept.
    #[error(transparent)]
    Learning(LearningError),
}
