//! Translates the input items of a Responses request to the messages of a chat request.
//!
//! Called by `request`.

use super::super::chat_body::{ChatMessages, JsonText, Part, image_part};
use super::super::document::{data_url_text, mark_document};
use super::super::free_text::FREE_TEXT;
use super::super::ignored_fields::{
    IgnoredFields, missing_field, nested_object, unsupported_field, wrong_type,
};
use super::super::sealed::Sealer;
use super::names::ToolNames;
use super::stored::RecalledItems;
use wire::{ApiError, ErrorCode, Object, array_elements, encode_string, is_empty_array};

/// The context for reading items.
pub(super) struct Items<'a> {
    pub(super) names: &'a ToolNames,
    pub(super) sealer: &'a Sealer,
    pub(super) recalled: &'a RecalledItems,
}

impl Items<'_> {
    /// Reads one item; `field` is its place.
    pub(super) fn read_item(
        &self,
        json: &str,
        field: &str,
        messages: &mut ChatMessages,
        notes: &mut IgnoredFields,
    ) -> Result<(), ApiError> {
        let item = nested_object(json, field)?;
        let kind = item.string("type").unwrap_or_else(|| "message".to_owned());
        match kind.as_str() {
            "message" => read_message(&item, field, messages),
            "reasoning" => {
                self.read_reasoning(&item, field, messages, notes);
                Ok(())
            }
            "function_call" => self.read_function_call(&item, field, messages),
            "custom_tool_call" => self.read_custom_call(&item, field, messages),
            "tool_search_call" => read_tool_search_call(&item, field, messages),
            "function_call_output" | "custom_tool_call_output" => read_call_output(&item, field, messages),
            "tool_search_output" => read_tool_search_output(&item, field, messages),
            "item_reference" => self.read_reference(&item, field, messages, notes),
            // Its tools are declared before the conversation is read.
            "additional_tools" => Ok(()),
            // The model needs every tool result and every summary of the conversation.
            _ if kind.ends_with("_output") || kind.contains("compaction") => {
                let message = format!("`{field}` is of type `{kind}`, which chat models do not accept");
                Err(unsupported_field(format!("{field}.type"), message))
            }
            _ => {
                notes.add(format!("input.{kind}"), "an item of this type is not part of a chat conversation");
                Ok(())
            }
        }
    }

    /// Reads reasoning that respool sealed, or that is readable, as open models have it. Another server's
    /// sealed reasoning is useless, and a summary is not the reasoning.
    fn read_reasoning(
        &self,
        item: &Object<'_>,
        field: &str,
        messages: &mut ChatMessages,
        notes: &mut IgnoredFields,
    ) {
        let sealed = item.string("encrypted_content");
        if let Some(text) = sealed.as_deref().and_then(|sealed| self.sealer.open(sealed)) {
            return messages.add_assistant_reasoning(JsonText::from_plain(&text));
        }
        let readable = read_texts(item.get("content"), &format!("{field}.content")).unwrap_or_else(|_| {
            notes.add("input.reasoning.content", "it is not text");
            vec![]
        });
        if readable.is_empty() && sealed.is_some() {
            notes.add("input.reasoning.encrypted_content", "another server sealed it");
        } else if readable.is_empty() && item.get("summary").is_some_and(|summary| !is_empty_array(summary)) {
            notes.add("input.reasoning.summary", "it is not what the model thought");
        }
        messages.add_assistant_reasoning(JsonText::join_texts(&readable));
    }

    fn read_function_call(
        &self,
        item: &Object<'_>,
        field: &str,
        messages: &mut ChatMessages,
    ) -> Result<(), ApiError> {
        let name = self.call_name(item, field)?;
        let arguments = match item.get("arguments") {
            None => "\"{}\"".to_owned(),
            Some(text) if text.starts_with('"') => text.to_owned(),
            Some(value) => encode_string(value),
        };
        messages.add_assistant_call(call_id(item, field)?, &name, &arguments);
        Ok(())
    }

    fn read_custom_call(
        &self,
        item: &Object<'_>,
        field: &str,
        messages: &mut ChatMessages,
    ) -> Result<(), ApiError> {
        let name = self.call_name(item, field)?;
        let input = item.get("input").unwrap_or("\"\"");
        let arguments = encode_string(&format!(r#"{{"{FREE_TEXT}":{input}}}"#));
        messages.add_assistant_call(call_id(item, field)?, &name, &arguments);
        Ok(())
    }

    fn call_name(&self, item: &Object<'_>, field: &str) -> Result<String, ApiError> {
        let name =
            item.string("name").ok_or_else(|| missing_field(format!("{field}.name"), "name the tool"))?;
        Ok(self.names.chat_name(item.string("namespace").as_deref(), &name))
    }

    /// Reads the item that a reference names. Missing reasoning is ignored; any other missing item is an
    /// error.
    fn read_reference(
        &self,
        item: &Object<'_>,
        field: &str,
        messages: &mut ChatMessages,
        notes: &mut IgnoredFields,
    ) -> Result<(), ApiError> {
        let id = item.string("id").ok_or_else(|| missing_field(format!("{field}.id"), "name the item"))?;
        match self.recalled.items.get(&id) {
            Some(stored) if !is_reference(stored) => self.read_item(stored, field, messages, notes),
            _ if id.starts_with("rs_") => {
                notes.add("input.item_reference", "the reasoning that it names was not stored");
                Ok(())
            }
            _ => {
                let message = format!(
                    "Item with id '{id}' not found: respool keeps items for a time (`[responses]` in respool.toml), and none of a request with `store: false`. Send the item itself."
                );
                Err(ApiError::new(404, ErrorCode::ItemNotFound, message).with_param(field))
            }
        }
    }
}

fn is_reference(json: &str) -> bool {
    reference_id(json).is_some()
}

/// Returns the id that an `item_reference` names.
pub(super) fn reference_id(json: &str) -> Option<String> {
    let item = Object::parse(json).ok()?;
    item.is_string("type", "item_reference").then(|| item.string("id").unwrap_or_default())
}

fn call_id<'i>(item: &'i Object<'_>, field: &str) -> Result<&'i str, ApiError> {
    let id = item.get("call_id").filter(|id| id.starts_with('"'));
    id.ok_or_else(|| missing_field(format!("{field}.call_id"), "give the call's id"))
}

fn read_tool_search_call(
    item: &Object<'_>,
    field: &str,
    messages: &mut ChatMessages,
) -> Result<(), ApiError> {
    let arguments = encode_string(item.get("arguments").unwrap_or("{}"));
    messages.add_assistant_call(call_id(item, field)?, "tool_search", &arguments);
    Ok(())
}

fn read_tool_search_output(
    item: &Object<'_>,
    field: &str,
    messages: &mut ChatMessages,
) -> Result<(), ApiError> {
    let tools = item.get("tools").and_then(array_elements).unwrap_or_default();
    let names: Vec<String> =
        tools.iter().filter_map(|tool| Object::parse(tool).ok()?.string("name")).collect();
    let text = match names.as_slice() {
        [] => "No tools were found.".to_owned(),
        names => format!("Tools now available: {}", names.join(", ")),
    };
    messages.add_tool_result(call_id(item, field)?, JsonText::from_plain(&text), vec![]);
    Ok(())
}

fn read_call_output(item: &Object<'_>, field: &str, messages: &mut ChatMessages) -> Result<(), ApiError> {
    let id = call_id(item, field)?;
    let parts = read_parts(item.get("output"), &format!("{field}.output"))?;
    let (mut said, mut media) = (Vec::new(), Vec::new());
    for part in parts {
        match part {
            Part::Text(text) => said.push(text),
            Part::Media(_) => media.push(part),
        }
    }
    messages.add_tool_result(id, JsonText::join_texts(&said), media);
    Ok(())
}

fn read_message(item: &Object<'_>, field: &str, messages: &mut ChatMessages) -> Result<(), ApiError> {
    let role = item.string("role").ok_or_else(|| missing_field(format!("{field}.role"), "say who speaks"))?;
    let (content, place) = (item.get("content"), format!("{field}.content"));
    match role.as_str() {
        "user" => messages.add_user(read_parts(content, &place)?),
        "assistant" => {
            read_texts(content, &place)?.into_iter().for_each(|text| messages.add_assistant_text(text));
        }
        "system" | "developer" => messages.add_system(JsonText::join_texts(&read_texts(content, &place)?)),
        _ => {
            let message = format!("`{field}.role` is `{role}`: send user, assistant, system or developer");
            return Err(
                ApiError::bad_request(ErrorCode::InvalidValue, message).with_param(format!("{field}.role"))
            );
        }
    }
    Ok(())
}

/// Reads a content that may only have text: a string, or parts with `text` or `refusal`.
fn read_texts(content: Option<&str>, field: &str) -> Result<Vec<JsonText>, ApiError> {
    let Some(content) = content else { return Ok(vec![]) };
    if let Some(text) = JsonText::from_json(content) {
        return Ok(vec![text]);
    }
    let parts = array_elements(content).ok_or_else(|| wrong_type(field, "a string or an array of parts"))?;
    let text = |(index, part): (usize, &str)| {
        let field = format!("{field}[{index}]");
        let part = nested_object(part, &field)?;
        let text = part.get("text").or_else(|| part.get("refusal")).and_then(JsonText::from_json);
        text.ok_or_else(|| {
            let kind = part.string("type").unwrap_or_default();
            unsupported_field(
                field.as_str(),
                format!("`{field}` is of type `{kind}`: only text can stand here"),
            )
        })
    };
    parts.into_iter().enumerate().map(text).collect()
}

/// Reads the content of a user or a tool.
fn read_parts(content: Option<&str>, field: &str) -> Result<Vec<Part>, ApiError> {
    let Some(content) = content else { return Ok(vec![]) };
    if let Some(text) = JsonText::from_json(content) {
        return Ok(vec![Part::Text(text)]);
    }
    let parts = array_elements(content).ok_or_else(|| wrong_type(field, "a string or an array of parts"))?;
    parts.into_iter().enumerate().map(|(index, part)| read_part(part, &format!("{field}[{index}]"))).collect()
}

fn read_part(json: &str, field: &str) -> Result<Part, ApiError> {
    let part = nested_object(json, field)?;
    let kind = part.string("type").unwrap_or_default();
    match kind.as_str() {
        "input_text" | "output_text" | "text" | "refusal" | "summary_text" | "reasoning_text" => {
            let text = part.get("text").or_else(|| part.get("refusal"));
            let text = text.and_then(JsonText::from_json);
            text.map(Part::Text).ok_or_else(|| wrong_type(format!("{field}.text"), "a string"))
        }
        "input_image" => read_image(&part, field),
        "input_audio" => {
            let audio = part.get("input_audio").unwrap_or("{}");
            Ok(Part::Media(format!(r#"{{"type":"input_audio","input_audio":{audio}}}"#)))
        }
        "input_file" => read_file(&part, field),
        _ => {
            let message = format!("`{field}` is of type `{kind}`, which chat models do not accept");
            Err(unsupported_field(format!("{field}.type"), message))
        }
    }
}

fn read_image(part: &Object<'_>, field: &str) -> Result<Part, ApiError> {
    match part.get("image_url").filter(|url| url.starts_with('"')) {
        Some(url) => Ok(image_part(url, part.get("detail"))),
        None => Err(unsupported_field(
            format!("{field}.image_url"),
            format!("`{field}` has no `image_url`: respool keeps no files, so send the image as a data URL"),
        )),
    }
}

fn read_file(part: &Object<'_>, field: &str) -> Result<Part, ApiError> {
    let text = part.string("file_data").and_then(|data| data_url_text(&data));
    let text = text.ok_or_else(|| {
        let message = format!(
            "`{field}` is not a text file sent as `file_data`: chat models accept text and images only"
        );
        unsupported_field(format!("{field}.file_data"), message)
    })?;
    Ok(Part::Text(mark_document(part.string("filename").as_deref(), &JsonText::from_plain(&text))))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use serde_json::{Value, json};

    use super::*;

    fn read(input: &Value, recalled: &RecalledItems) -> Result<(Value, Vec<String>), ApiError> {
        let sealer = Sealer::new(b"secret");
        let items = Items { names: &ToolNames::default(), sealer: &sealer, recalled };
        let (mut messages, mut notes) = (ChatMessages::default(), IgnoredFields::default());
        for (index, item) in input.as_array().unwrap().iter().enumerate() {
            items.read_item(&item.to_string(), &format!("input[{index}]"), &mut messages, &mut notes)?;
        }
        let notes = notes.into_vec().into_iter().map(|note| note.field).collect();
        Ok((serde_json::from_str(&messages.into_json()).unwrap(), notes))
    }

    fn messages(input: &Value) -> Value {
        read(input, &RecalledItems::default()).unwrap().0
    }

    fn refused(item: &Value) -> (u16, String) {
        let error = read(&json!([item]), &RecalledItems::default()).unwrap_err();
        (error.status, error.param.unwrap())
    }

    #[test]
    fn only_own_reasoning_is_unsealed() {
        let sealed = Sealer::new(b"secret").seal("because");
        let read = |item: Value| read(&json!([item]), &RecalledItems::default()).unwrap();
        let (said, notes) = read(json!({"type": "reasoning", "summary": [], "encrypted_content": sealed}));
        assert_eq!((&said[0]["reasoning_content"], notes.len()), (&json!("because"), 0));
        let plain = [json!({"type": "reasoning_text", "text": "why"})];
        let (said, _) = read(json!({"type": "reasoning", "content": plain, "encrypted_content": null}));
        assert_eq!(said[0]["reasoning_content"], "why");
        let (said, notes) = read(json!({"type": "reasoning", "encrypted_content": "gAAAAABo"}));
        assert_eq!((said, notes), (json!([]), vec!["input.reasoning.encrypted_content".to_owned()]));
        let summary = [json!({"type": "summary_text", "text": "in short"})];
        let (said, notes) = read(json!({"type": "reasoning", "summary": summary}));
        assert_eq!((said, notes), (json!([]), vec!["input.reasoning.summary".to_owned()]));
    }

    #[test]
    fn calls_and_outputs() {
        let said = messages(&json!([
            {"type": "function_call", "call_id": "c1", "name": "f", "namespace": "ns", "arguments": "{\"a\":1}"},
            {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "*** \"x\"\n"},
            {"type": "tool_search_call", "call_id": "c3", "execution": "client", "arguments": {"query": "q"}},
            {"type": "function_call_output", "call_id": "c1", "output": [
                {"type": "input_text", "text": "ok"}, {"type": "input_image", "image_url": "data:image/png;base64,AA=="}]},
            {"type": "custom_tool_call_output", "call_id": "c2", "output": "done"},
            {"type": "tool_search_output", "call_id": "c3", "tools": [{"type": "function", "name": "found"}]},
        ]));
        let function = |index: usize| &said[0]["tool_calls"][index]["function"];
        assert_eq!((&function(0)["name"], &function(0)["arguments"]), (&json!("ns__f"), &json!("{\"a\":1}")));
        assert_eq!(function(1)["arguments"], json!({"input": "*** \"x\"\n"}).to_string());
        assert_eq!(function(2)["arguments"], r#"{"query":"q"}"#);
        assert_eq!((&said[1]["content"], &said[2]["content"]), (&json!("ok"), &json!("done")));
        assert_eq!(said[3]["content"], "Tools now available: found");
        assert_eq!(said[4]["content"][1]["image_url"]["url"], "data:image/png;base64,AA==");
    }

    #[test]
    fn files_are_read_as_text() {
        let part = json!({"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,aGVsbG8="});
        let said = messages(&json!([{"role": "user", "content": [part]}]));
        assert_eq!(said[0]["content"], "<document title=\"a.txt\">\nhello\n</document>");
    }

    #[test]
    fn references_are_looked_up() {
        let stored = json!({"type": "message", "role": "assistant", "content": "kept"}).to_string();
        let recalled = RecalledItems {
            items: HashMap::from([("msg_1".to_owned(), stored)]),
            ..RecalledItems::default()
        };
        let reference = |id: &str| json!([{"type": "item_reference", "id": id}]);
        assert_eq!(read(&reference("msg_1"), &recalled).unwrap().0[0]["content"], "kept");
        assert_eq!(read(&reference("rs_9"), &recalled).unwrap().1, ["input.item_reference"]);
        let error = read(&reference("msg_9"), &recalled).unwrap_err();
        assert_eq!((error.status, error.param.as_deref()), (404, Some("input[0]")));
    }

    #[test]
    fn necessary_parts_are_refused_with_their_place() {
        let user = |part: Value| json!({"role": "user", "content": [part]});
        for (item, param) in [
            (user(json!({"type": "input_image", "file_id": "f"})), "input[0].content[0].image_url"),
            (user(json!({"type": "input_file", "file_id": "f"})), "input[0].content[0].file_data"),
            (user(json!({"type": "input_video"})), "input[0].content[0].type"),
            (user(json!({"type": "input_text"})), "input[0].content[0].text"),
            (user(json!(7)), "input[0].content[0]"),
            (json!({"role": "user", "content": 7}), "input[0].content"),
            (json!({"role": "developer", "content": 7}), "input[0].content"),
            (
                json!({"role": "developer", "content": [{"type": "input_image", "image_url": "data:x"}]}),
                "input[0].content[0]",
            ),
            (json!({"role": "assistant", "content": {"text": "x"}}), "input[0].content"),
            (json!({"role": "assistant", "content": [{"type": "output_audio"}]}), "input[0].content[0]"),
            (json!({"type": "computer_call_output", "call_id": "c", "output": {}}), "input[0].type"),
            (json!({"type": "compaction", "encrypted_content": "x"}), "input[0].type"),
            (json!({"role": "critic", "content": "x"}), "input[0].role"),
            (json!({"content": "x"}), "input[0].role"),
            (json!({"type": "function_call", "name": "f"}), "input[0].call_id"),
            (json!({"type": "function_call", "call_id": "c"}), "input[0].name"),
            (json!({"type": "function_call_output", "output": "x"}), "input[0].call_id"),
            (json!({"type": "item_reference"}), "input[0].id"),
            (json!("text"), "input[0]"),
        ] {
            assert_eq!(refused(&item), (400, param.to_owned()), "{item}");
        }
        let (_, notes) =
            read(&json!([{"type": "web_search_call", "id": "ws_1"}]), &RecalledItems::default()).unwrap();
        assert_eq!(notes, ["input.web_search_call"]);
    }
}
