//! Identifies what an expert's agent was made from, as its runs keep it. Plain data that the store keeps.

use serde::{Deserialize, Serialize};

/// The package and the session of an expert's run. Stored as one text, `DIGEST SESSION`; the text is empty
/// for other agents.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct RunSnapshot {
    /// The digest of the package's files.
    pub digest: String,
    /// The session, which determines the files that the run works with.
    pub session: String,
}

impl From<String> for RunSnapshot {
    fn from(text: String) -> Self {
        match text.split_once(' ') {
            Some((digest, session)) => Self { digest: digest.to_owned(), session: session.to_owned() },
            None => Self { digest: text, session: String::new() },
        }
    }
}

impl From<RunSnapshot> for String {
    fn from(snapshot: RunSnapshot) -> Self {
        let RunSnapshot { digest, session } = snapshot;
        if session.is_empty() { digest } else { format!("{digest} {session}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stored_form_stays() {
        for text in ["", "d1", "d1 talk-0a", "d1 inv-1 more"] {
            let read: RunSnapshot = serde_json::from_value(text.into()).unwrap();
            assert_eq!(serde_json::to_value(&read).unwrap(), text);
        }
        let read = RunSnapshot::from("d1 talk-0a".to_owned());
        assert_eq!((read.digest.as_str(), read.session.as_str()), ("d1", "talk-0a"));
    }
}
