//! The stored form of a response, and its use later: items with ids, the conversation, the object after a
//! cancellation. The store itself is elsewhere.
//!
//! Called by `events` and `server`.

use std::borrow::Cow;

use super::super::ids::Ids;
use wire::{Object, array_elements, encode_string};

/// A finished response in its stored form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinishedResponse {
    /// Its id.
    pub id: String,
    /// The response that it continues.
    pub previous: Option<String>,
    /// Its status.
    pub status: String,
    /// The request's own items, a JSON array; each has an id.
    pub input: String,
    /// The ids of the model's items.
    pub items: Vec<String>,
    /// The response object.
    pub body: String,
}

/// Returns a request's own items in their stored form: a JSON array in which each has an id and a type.
pub(super) fn stored_input(items: &[String], ids: &mut Ids) -> String {
    let items: Vec<Cow<'_, str>> = items.iter().map(|item| ensure_id(item, ids)).collect();
    format!("[{}]", items.join(","))
}

fn ensure_id<'i>(item: &'i str, ids: &mut Ids) -> Cow<'i, str> {
    let Ok(mut object) = Object::parse(item) else { return Cow::Borrowed(item) };
    let has_id = object.string("id").is_some_and(|id| !id.is_empty());
    let is_message = object.get("type").is_none() && object.get("role").is_some();
    let text = object.get_original("content").filter(|text| text.starts_with('"'));
    if has_id && !is_message && text.is_none() {
        return Cow::Borrowed(item);
    }
    if is_message {
        object.set("type", r#""message""#);
    }
    if let Some(text) = text.filter(|_| object.is_string("type", "message")) {
        object.set("content", content_parts(text, object.is_string("role", "assistant")));
    }
    if !has_id {
        let prefix = if object.is_string("type", "message") { "msg_" } else { "item_" };
        object.set("id", encode_string(&ids.id_with_prefix(prefix)));
    }
    Cow::Owned(object.to_json())
}

/// Converts a content that is one text to the parts that the SDKs read.
fn content_parts(text: &str, is_assistants: bool) -> String {
    if is_assistants {
        return format!(r#"[{{"type":"output_text","text":{text},"annotations":[]}}]"#);
    }
    format!(r#"[{{"type":"input_text","text":{text}}}]"#)
}

/// Returns the items of a stored response: those of its input and those of its response object.
pub fn conversation_items(input: &str, body: &str) -> Vec<String> {
    let input = array_elements(input).unwrap_or_default().into_iter().map(str::to_owned);
    input.chain(output_items(body)).collect()
}

/// Returns the model's items in a response object.
fn output_items(body: &str) -> Vec<String> {
    let Ok(object) = Object::parse(body) else { return vec![] };
    let output = object.get("output").and_then(array_elements).unwrap_or_default();
    output.into_iter().map(str::to_owned).collect()
}

/// Finds the items of a response object with these ids.
pub fn output_items_named(body: &str, ids: &[String]) -> Vec<(String, String)> {
    let named = |item: String| item_id(&item).filter(|id| ids.contains(id)).map(|id| (id, item));
    output_items(body).into_iter().filter_map(named).collect()
}

/// Returns an item's id.
pub fn item_id(item: &str) -> Option<String> {
    Object::parse(item).ok()?.string("id")
}

/// Replaces the status of a response object.
pub fn with_status(body: &str, status: &str) -> String {
    match Object::parse(body) {
        Ok(mut object) => {
            object.set("status", encode_string(status));
            object.to_json()
        }
        Err(_) => body.to_owned(),
    }
}

/// Marks a response object as failed, with the reason.
pub fn with_failure(body: &str, message: &str) -> String {
    let failed = with_status(body, "failed");
    let Ok(mut object) = Object::parse(&failed) else { return failed };
    object.set("error", format!(r#"{{"code":"server_error","message":{}}}"#, encode_string(message)));
    object.to_json()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn every_kept_item_has_an_id_and_a_type() {
        let items = [
            r#"{"role":"user","content":"hi"}"#,
            r#"{"type":"function_call_output","call_id":"c","output":"x"}"#,
            r#"{"type":"message","id":"msg_1"}"#,
        ];
        let kept = stored_input(&items.map(str::to_owned), &mut Ids::new(7, HashSet::new()));
        let kept: Value = serde_json::from_str(&kept).unwrap();
        assert_eq!(
            (&kept[0]["type"], &kept[0]["content"]),
            (&json!("message"), &json!([{"type": "input_text", "text": "hi"}]))
        );
        assert!(kept[0]["id"].as_str().unwrap().starts_with("msg_"));
        assert!(kept[1]["id"].as_str().unwrap().starts_with("item_"));
        assert_eq!(kept[2], json!({"type": "message", "id": "msg_1"}));
    }

    #[test]
    fn a_conversation_is_inputs_and_outputs_in_order() {
        let first = (r#"[{"id":"a"}]"#, r#"{"output":[{"id":"b"},{"id":"c"}]}"#);
        let second = (r#"[{"id":"d"}]"#, r#"{"output":[]}"#);
        let ids = |(input, body)| -> Vec<String> {
            conversation_items(input, body).iter().filter_map(|item| item_id(item)).collect()
        };
        assert_eq!(
            (ids(first), ids(second)),
            (["a", "b", "c"].map(str::to_owned).into(), vec!["d".to_owned()])
        );
        let named = output_items_named(first.1, &["c".to_owned(), "a".to_owned()]);
        assert_eq!(named, [("c".to_owned(), r#"{"id":"c"}"#.to_owned())]);
    }

    #[test]
    fn a_status_is_replaced() {
        assert_eq!(
            with_status(r#"{"id":"r","status":"in_progress"}"#, "cancelled"),
            r#"{"id":"r","status":"cancelled"}"#
        );
        assert_eq!(
            with_failure(r#"{"status":"in_progress","error":null}"#, "why"),
            r#"{"status":"failed","error":{"code":"server_error","message":"why"}}"#
        );
    }
}
