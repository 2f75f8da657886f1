//! One message: the alerts that are sent at one time, for people and for programs. Pure.

use serde_json::{Value, json};

use super::rule::{Rule, Severity};
use wire::visible::one_line;

/// The state of an alert in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    New,
    Still,
    Resolved,
    /// Nothing is wrong: the sinks are tried.
    Test,
}

impl State {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Still => "still",
            Self::Resolved => "resolved",
            Self::Test => "test",
        }
    }
}

/// One alert of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) rule: Rule,
    pub(super) subject: String,
    pub(super) what: String,
    pub(super) since: u64,
    pub(super) state: State,
}

/// The alerts that are sent at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) at: u64,
    /// The node that it is about, where several share a store.
    pub(super) node: Option<String>,
    /// Those that begin or go on come before those that have ended, and critical ones before the others.
    pub(super) entries: Vec<Entry>,
}

/// The longest headline in a title, in columns: a locked phone shows about as many.
const TITLE: usize = 100;

impl Message {
    /// Returns a message that says that it is a test.
    pub(super) fn new_test(at: u64) -> Self {
        let what = "This is a test of respool's alerts; nothing is wrong.".to_owned();
        let entry =
            Entry { rule: Rule::UpstreamDown, subject: "test".into(), what, since: at, state: State::Test };
        Self { at, node: None, entries: vec![entry] }
    }

    /// Returns true if the owner should look now.
    pub(super) fn is_urgent(&self) -> bool {
        let is_urgent = |entry: &Entry| {
            matches!(entry.state, State::New | State::Still) && entry.rule.severity() == Severity::Critical
        };
        self.entries.iter().any(is_urgent)
    }

    /// Returns the title, in one line.
    pub(super) fn title(&self) -> String {
        let whose = self.sender();
        let first = one_line(&self.entries.first().map(entry_headline).unwrap_or_default(), TITLE);
        match self.entries.len() {
            0 | 1 => format!("{whose}: {first}"),
            count => format!("{whose}: {first} (and {} more)", count - 1),
        }
    }

    /// Returns the name of what sends it.
    pub(super) fn sender(&self) -> String {
        self.node.as_ref().map_or_else(|| "respool".to_owned(), |node| format!("respool on {node}"))
    }

    /// Returns true if it only says that alerts have ended.
    pub(super) fn is_over(&self) -> bool {
        self.entries.iter().all(|entry| entry.state == State::Resolved)
    }

    /// Returns the text for people. `link`: the address of the page.
    pub(super) fn text(&self, link: Option<&str>) -> String {
        let mut parts: Vec<String> = self.entries.iter().map(entry_paragraph).collect();
        parts.extend(link.map(|link| format!("The page: {link}")));
        parts.join("\n\n")
    }

    /// Returns the object for programs.
    pub(super) fn json(&self, link: Option<&str>) -> Value {
        let entry = |entry: &Entry| {
            // Programs that page someone by rule and severity must not do so for a test.
            let (rule, severity, meaning, todo) = match entry.state {
                State::Test => ("test", Severity::Warning, "respool's alerts arrive here.", "Nothing."),
                _ => (entry.rule.as_str(), entry.rule.severity(), entry.rule.meaning(), entry.rule.todo()),
            };
            json!({
                "rule": rule, "severity": severity.as_str(), "subject": entry.subject,
                "state": entry.state.as_str(), "what": entry.what, "since": clock::format_time(entry.since),
                "meaning": meaning, "todo": todo,
            })
        };
        let alerts: Vec<Value> = self.entries.iter().map(entry).collect();
        json!({"source": "respool", "node": self.node, "at": clock::format_time(self.at), "title": self.title(), "text": self.text(link), "link": link, "alerts": alerts})
    }
}

/// Returns the line that describes an entry.
pub(super) fn entry_headline(entry: &Entry) -> String {
    match entry.state {
        State::New | State::Test => entry.what.clone(),
        State::Still => format!("Still: {}", entry.what),
        State::Resolved if entry.rule == Rule::UpstreamDown => {
            format!("The upstream `{}` can be used again.", entry.subject)
        }
        State::Resolved => format!("No longer: {}", entry.what),
    }
}

fn entry_paragraph(entry: &Entry) -> String {
    let since = clock::format_time(entry.since);
    match entry.state {
        State::Test => entry_headline(entry),
        State::Resolved => format!("{} It began {since}.", entry_headline(entry)),
        _ => format!(
            "{}\nSince: {since}\nIt means: {}\nTo do: {}",
            entry_headline(entry),
            entry.rule.meaning(),
            entry.rule.todo()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_explains_each_alert() {
        let entry = |state| Entry {
            rule: Rule::UpstreamDown,
            subject: "box".into(),
            what: "The upstream `box` does not answer.".into(),
            since: 1_795_223_698_000,
            state,
        };
        let message = Message {
            at: 1_795_223_700_000,
            node: Some("a".into()),
            entries: vec![entry(State::New), entry(State::Resolved)],
        };
        assert_eq!(message.title(), "respool on a: The upstream `box` does not answer. (and 1 more)");
        assert_eq!(message.json(None)["node"], "a");
        let long = Entry { what: "é".repeat(120), ..entry(State::New) };
        let long = Message { node: None, entries: vec![long], ..message.clone() };
        assert_eq!(long.title(), format!("respool: {}…", "é".repeat(99)));
        let text = message.text(Some("http://box:8003"));
        for part in [
            "Since: 2026-11-21T01:14:58Z",
            "It means: The model server",
            "To do: Check that the server is running",
            "The upstream `box` can be used again. It began",
            "http://box:8003",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        let json = message.json(None);
        assert_eq!(
            (&json["alerts"][0]["rule"], &json["alerts"][1]["state"]),
            (&json!("upstream_down"), &json!("resolved"))
        );
        assert!(message.is_urgent() && !Message::new_test(0).is_urgent());
        let test = &Message::new_test(0).json(None)["alerts"][0];
        assert_eq!((&test["rule"], &test["severity"]), (&json!("test"), &json!("warning")));
    }
}
