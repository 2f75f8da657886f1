//! The preset `gmail`: turns what OpenClaw's mailbox watcher sends into one event per mail, with the fields
//! that triggers refer to. Pure.
//!
//! The watcher sends `{messages: [{id, threadId?, from, subject, snippet, body}]}` with one mail or more (its
//! documentation, 2026.9.6). Each event is the payload with only that mail in `messages`, and `message_id`,
//! `thread_id`, `sender_id` and `contact_id` as further fields.

use super::payload_error::PayloadError;
use serde_json::{Map, Value};

/// The most mails in one request; OpenClaw sends 200 at most.
const MOST_LETTERS: usize = 1_000;
/// The largest size of the other fields, in bytes: each event has a copy of them.
const MAX_EXTRA_BYTES: usize = 64 << 10;

/// Returns the events of a payload.
///
/// # Errors
/// When it has another form.
pub(super) fn split_mails(payload: Value) -> Result<Vec<Value>, PayloadError> {
    let Value::Object(mut fields) = payload else { return Err(PayloadError::NotAnObject) };
    // Not `remove`, which would change the order of the others.
    let Some(Value::Array(letters)) = fields.get_mut("messages").map(Value::take) else {
        return Err(PayloadError::NoMessages);
    };
    if letters.len() > MOST_LETTERS {
        return Err(PayloadError::TooMany(letters.len(), MOST_LETTERS));
    }
    if letters.iter().any(|letter| !letter.is_object()) {
        return Err(PayloadError::NotAMessage);
    }
    let size = Value::Object(fields.clone()).to_string().len();
    if size > MAX_EXTRA_BYTES {
        return Err(PayloadError::TooLarge(size, MAX_EXTRA_BYTES));
    }
    Ok(letters.into_iter().map(|letter| mail_event(fields.clone(), letter)).collect())
}

fn mail_event(mut fields: Map<String, Value>, letter: Value) -> Value {
    let of_letter = |name: &str| letter.get(name).cloned().unwrap_or_default();
    let sender =
        letter.get("from").and_then(Value::as_str).and_then(bare_address).map_or(Value::Null, Value::from);
    let added = [
        ("message_id", of_letter("id")),
        ("thread_id", of_letter("threadId")),
        ("sender_id", sender.clone()),
        ("contact_id", sender),
    ];
    for (name, value) in added {
        fields.insert(name.to_owned(), value);
    }
    fields.insert("messages".to_owned(), Value::Array(vec![letter]));
    Value::Object(fields)
}

/// Returns the bare address of a `From` line, in lower case. The sender chooses the name in front of it,
/// which may look like an address.
fn bare_address(from: &str) -> Option<String> {
    let from = from.trim();
    let bare = match from.strip_suffix('>').and_then(|rest| rest.rsplit_once('<')) {
        Some((_, address)) => address.trim(),
        None => from,
    };
    let is_address = bare.split_once('@').is_some_and(|(user, host)| !user.is_empty() && !host.is_empty())
        && !bare
            .contains(|c: char| c.is_whitespace() || c.is_control() || matches!(c, '<' | '>' | ',' | '"'));
    is_address.then(|| bare.to_lowercase())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_mail_is_one_event() {
        let letter = |id: &str, from: &str| json!({"id": id, "threadId": "t", "from": from, "body": "b"});
        let payload = json!({"source": "gmail", "messages": [letter("m1", "Sarah <Sarah@Acme.com>"), letter("m2", "bob@x.org")]});
        let found = split_mails(payload).unwrap();
        assert_eq!(found.len(), 2);
        let expected = json!({
            "source": "gmail", "messages": [letter("m1", "Sarah <Sarah@Acme.com>")],
            "message_id": "m1", "thread_id": "t", "sender_id": "sarah@acme.com", "contact_id": "sarah@acme.com",
        });
        assert_eq!(found[0], expected);
        assert_eq!(found[1]["message_id"], "m2");
        assert_eq!(found[1]["messages"], json!([letter("m2", "bob@x.org")]));
        assert_eq!(split_mails(json!({"messages": []})), Ok(Vec::new()));
    }

    /// Only respool sets the fields that it adds: a payload cannot choose the contact in whose lane it runs.
    #[test]
    fn added_fields_ignore_the_payload() {
        let payload = json!({"contact_id": "victim@x", "message_id": "z", "messages": [{"id": "m1"}]});
        let found = split_mails(payload).unwrap();
        assert_eq!((&found[0]["contact_id"], &found[0]["message_id"]), (&Value::Null, &json!("m1")));
    }

    #[test]
    fn other_forms_are_refused() {
        for payload in
            [json!([]), json!({}), json!({"messages": {}}), json!({"messages": ["m1"]}), json!("x")]
        {
            assert!(split_mails(payload.clone()).is_err(), "{payload}");
        }
        let many: Vec<Value> = (0..=MOST_LETTERS).map(|_| json!({})).collect();
        assert!(split_mails(json!({"messages": many})).is_err());
        let beside = |bytes: usize| json!({"messages": [{"id": "m1"}], "account": "x".repeat(bytes)});
        assert!(
            split_mails(beside(MAX_EXTRA_BYTES - 100)).is_ok()
                && split_mails(beside(MAX_EXTRA_BYTES)).is_err()
        );
    }

    #[test]
    fn addresses_come_from_the_last_brackets() {
        let check = |from: &str, expected: Option<&str>| {
            assert_eq!(bare_address(from).as_deref(), expected, "{from}");
        };
        check("a@b.c", Some("a@b.c"));
        check(" \"Doe, Jane\" <Jane.Doe@Example.ORG> ", Some("jane.doe@example.org"));
        check("\"boss@acme.com <boss@acme.com>\" <evil@x.org>", Some("evil@x.org"));
        check("<a@b>", Some("a@b"));
        for from in ["", "Jane", "@", "a@", "@b", "a b@c", "a@b, c@d", "<>", "a@b>"] {
            check(from, None);
        }
    }
}
