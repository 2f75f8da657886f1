//! Why a payload does not start its trigger, in words for its sender.

/// The form of the payload of mails.
const MAILS: &str = "send {\"messages\": [{\"id\": …, \"from\": …, \"subject\": …}]}";

/// A fault in the form of a payload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// The body is not JSON; the reason follows.
    #[error("the body is not JSON ({0}): send an object, such as {{\"order_id\": 7}}")]
    NotJson(String),
    /// The payload is a text, a number, a switch or null.
    #[error("the payload is neither a JSON object nor a list: send one")]
    NotStructured,
    /// The payload of mails is not an object.
    #[error("the payload is not an object: {MAILS}")]
    NotAnObject,
    /// The payload of mails has no list of them.
    #[error("`messages` is not a list: {MAILS}")]
    NoMessages,
    /// An entry of the mails is not an object.
    #[error("`messages` has an entry that is not an object: {MAILS}")]
    NotAMessage,
    /// There are more mails than one request may have: their number, and the limit.
    #[error("`messages` has {0} entries; the limit is {1}: send them in several requests")]
    TooMany(usize, usize),
    /// The fields besides the mails are too large: their size in bytes, and the limit.
    #[error(
        "the fields other than `messages` take {0} bytes; the limit is {1}. Remove fields that no trigger uses"
    )]
    TooLarge(usize, usize),
    /// A message for a channel lacks this text; all that it needs follow.
    #[error("the message has no text `{0}`: send an object with {first}, {second} and {third}", first = .1[0], second = .1[1], third = .1[2])]
    NoText(&'static str, [&'static str; 3]),
}
