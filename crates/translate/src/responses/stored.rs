//! The stored items that a later request uses through `previous_response_id` and `item_reference`. The store
//! itself is elsewhere.
//!
//! Called by `server` before a request is read, and by `request`.

use std::collections::HashMap;

use super::super::ignored_fields::request_object;
use wire::{ApiError, Object, array_elements};

/// The stored items that a request names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ItemReferences {
    /// `previous_response_id`.
    pub previous: Option<String>,
    /// The ids that `item_reference` items name, each as often as it is named.
    pub items: Vec<String>,
}

/// The stored items that were found.
#[derive(Clone, Debug, Default)]
pub struct RecalledItems {
    /// The items of the conversation that `previous_response_id` ends, input and output, as JSON; `None` when
    /// there is no such response.
    pub previous: Option<Vec<String>>,
    /// Items by id, as JSON.
    pub items: HashMap<String, String>,
}

/// Returns the stored items that a request names. Most requests name none.
///
/// # Errors
/// When the body is not a JSON object.
pub fn find_references(body: &[u8]) -> Result<ItemReferences, ApiError> {
    let object = request_object(body)?;
    let previous = object.string("previous_response_id");
    let may_refer = memchr::memmem::find(body, b"item_reference").is_some();
    let input = object.get("input").filter(|_| may_refer).and_then(array_elements).unwrap_or_default();
    let referred = input.into_iter().filter_map(|item| {
        let item = Object::parse(item).ok()?;
        item.is_string("type", "item_reference").then(|| item.string("id")).flatten()
    });
    Ok(ItemReferences { previous, items: referred.collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_request_names() {
        let body = br#"{"previous_response_id":"resp_1","input":[{"type":"item_reference","id":"msg_1"},
            {"role":"user","content":"item_reference"}]}"#;
        let expected = ItemReferences { previous: Some("resp_1".into()), items: vec!["msg_1".into()] };
        assert_eq!(find_references(body), Ok(expected));
        assert_eq!(find_references(br#"{"input":"item_reference"}"#), Ok(ItemReferences::default()));
        assert_eq!(find_references(b"[]").unwrap_err().status, 400);
    }
}
