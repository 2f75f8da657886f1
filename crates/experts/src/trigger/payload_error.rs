//! Why a payload does not start its trigger, in words for its sender.

/// The form of the payload of mails.
const MAILS: &str = "send {\"messages\": [{\"id\": …, \"from\": …, \"subject\": …}]}";

/// A fault in the form of a payload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// The body is not JSON; the reason follows.
    #[error("the body is not JSON: {0}. Send an object, such as {{\"order_id\": 7}}")]
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

impl PayloadError {
    /// Returns the error about a body that is not JSON, in words for who wrote it.
    pub(crate) fn not_json(body: &[u8], error: &serde_json::Error) -> Self {
        let start = body.trim_ascii_start();
        let is_form = start.first().is_some_and(u8::is_ascii_alphanumeric) && start.contains(&b'=');
        Self::NotJson(if start.is_empty() {
            "it is empty".to_owned()
        } else if is_form {
            "it is a form (`name=value`)".to_owned()
        } else {
            format!("it is wrong at line {}, column {}", error.line(), error.column())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_that_are_not_json_are_named() {
        let check = |body: &str, expected: &str| {
            let error = serde_json::from_str::<serde_json::Value>(body).unwrap_err();
            let found = PayloadError::not_json(body.as_bytes(), &error).to_string();
            let expected =
                format!("the body is not JSON: {expected}. Send an object, such as {{\"order_id\": 7}}");
            assert_eq!(found, expected, "{body}");
        };
        check(" ", "it is empty");
        check("title=Momo&reader=Kim", "it is a form (`name=value`)");
        check("{\"order_id\": 7,}", "it is wrong at line 1, column 16");
        check("true story", "it is wrong at line 1, column 6");
    }
}
