//! Why a payload does not start its trigger, in words for its sender.

use std::fmt;

/// The form of the payload of mails.
const MAILS: &str = "send {\"messages\": [{\"id\": …, \"from\": …, \"subject\": …}]}";

/// A fault in the form of a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PayloadError {
    /// The body is not JSON; the reason follows.
    NotJson(String),
    /// The payload is a text, a number, a switch or null.
    NotStructured,
    /// The payload of mails is not an object.
    NotAnObject,
    /// The payload of mails has no list of them.
    NoMessages,
    /// An entry of the mails is not an object.
    NotAMessage,
    /// There are more mails than one request may have: their number, and the limit.
    TooMany(usize, usize),
    /// The fields besides the mails are too large: their size in bytes, and the limit.
    TooLarge(usize, usize),
    /// A message for a channel lacks this text; all that it needs follow.
    NoText(&'static str, [&'static str; 3]),
}

impl fmt::Display for PayloadError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotJson(why) => write!(out, "the body is not JSON: {why}"),
            Self::NotStructured => out.write_str("the payload is neither a JSON object nor a list: send one"),
            Self::NotAnObject => write!(out, "the payload is not an object: {MAILS}"),
            Self::NoMessages => write!(out, "`messages` is not a list: {MAILS}"),
            Self::NotAMessage => write!(out, "`messages` has an entry that is not an object: {MAILS}"),
            Self::TooMany(found, most) => write!(
                out,
                "`messages` has {found} entries; the limit is {most}: send them in several requests"
            ),
            Self::TooLarge(found, most) => write!(
                out,
                "the fields other than `messages` take {found} bytes; the limit is {most}. Remove fields that no trigger uses"
            ),
            Self::NoText(field, [first, second, third]) => write!(
                out,
                "the message has no text `{field}`: send an object with {first}, {second} and {third}"
            ),
        }
    }
}

impl std::error::Error for PayloadError {}
