//! Translates the messages of a Messages request and their content blocks to those of a chat request.
//!
//! Called by `request`.

use std::collections::BTreeSet;

use super::super::chat_body::{ChatMessages, JsonText, Part, image_part};
use super::super::document::{base64_text, mark_document};
use super::super::ignored_fields::{
    IgnoredFields, missing_field, nested_object, optional_bool, unsupported_field, wrong_type,
};
use super::super::sealed::Sealer;
use super::tools::PlacedChange;
use wire::{ApiError, Object, array_elements, encode_string};

/// Claude Code's first system block is about billing, not for the model.
const BILLING: &str = "x-anthropic-billing-header";

/// Reads a conversation.
pub(super) struct Blocks<'a> {
    pub(super) sealer: &'a Sealer,
    pub(super) messages: ChatMessages,
    /// The tools that `tool_reference` blocks name.
    pub(super) referenced: BTreeSet<String>,
    /// The changes of tools in system messages, in order.
    pub(super) tool_changes: Vec<PlacedChange>,
}

impl<'a> Blocks<'a> {
    pub(super) fn new(sealer: &'a Sealer) -> Self {
        Self {
            sealer,
            messages: ChatMessages::default(),
            referenced: BTreeSet::new(),
            tool_changes: Vec::new(),
        }
    }

    /// Reads `system`: a string or text blocks.
    pub(super) fn read_system(&mut self, json: &str, field: &str) -> Result<(), ApiError> {
        for (block, field) in read_blocks(json, field)? {
            if !block.is_string("type", "text") {
                return Err(not_for_system(&block, &field));
            }
            self.add_system_text(&block, &field)?;
        }
        Ok(())
    }

    /// Reads a message with the role `system`, which may also change the tools.
    fn read_system_message(&mut self, content: &str, field: &str) -> Result<(), ApiError> {
        for (block, field) in read_blocks(content, field)? {
            match block.string("type").as_deref() {
                Some("text") => self.add_system_text(&block, &field)?,
                Some("tool_addition" | "tool_removal") => {
                    self.tool_changes.push(PlacedChange::from_block(&block, &field)?);
                }
                _ => return Err(not_for_system(&block, &field)),
            }
        }
        Ok(())
    }

    fn add_system_text(&mut self, block: &Object<'_>, field: &str) -> Result<(), ApiError> {
        let text = block_text(block, field)?;
        if !text.starts_with(BILLING) {
            self.messages.add_system(text);
        }
        Ok(())
    }

    /// Reads one message.
    pub(super) fn read_message(
        &mut self,
        json: &str,
        field: &str,
        notes: &mut IgnoredFields,
    ) -> Result<(), ApiError> {
        let message = nested_object(json, field)?;
        let role =
            message.string("role").ok_or_else(|| missing_field(format!("{field}.role"), "say who speaks"))?;
        let field = format!("{field}.content");
        let content =
            message.get("content").ok_or_else(|| missing_field(field.as_str(), "send a text or blocks"))?;
        match role.as_str() {
            "user" => self.read_user(content, &field, notes),
            "assistant" => self.read_assistant(content, &field, notes),
            "system" => self.read_system_message(content, &field),
            _ => Err(unsupported_field(
                field.replace(".content", ".role"),
                format!("the role `{role}` is unknown: send user, assistant or system"),
            )),
        }
    }

    fn read_user(&mut self, content: &str, field: &str, notes: &mut IgnoredFields) -> Result<(), ApiError> {
        let mut parts = Vec::new();
        for (block, field) in read_blocks(content, field)? {
            if block.is_string("type", "tool_result") {
                self.read_tool_result(&block, &field, notes)?;
            } else if let Some(part) = read_user_part(&block, &field, notes)? {
                parts.push(part);
            }
        }
        self.messages.add_user(parts);
        Ok(())
    }

    fn read_assistant(
        &mut self,
        content: &str,
        field: &str,
        notes: &mut IgnoredFields,
    ) -> Result<(), ApiError> {
        for (block, field) in read_blocks(content, field)? {
            match block.string("type").as_deref() {
                Some("text") => self.messages.add_assistant_text(block_text(&block, &field)?),
                Some("thinking") => self.read_thinking(&block, notes),
                Some("redacted_thinking") => self.read_sealed(block.string("data"), notes),
                Some("tool_use") => self.read_tool_use(&block, &field)?,
                kind => notes.add(
                    format!("messages.{}", kind.unwrap_or_default()),
                    "a chat conversation has no block of this type",
                ),
            }
        }
        Ok(())
    }

    /// Reads thinking: either visible and signed by respool, or sealed in its signature. Another model's
    /// thinking is ignored.
    fn read_thinking(&mut self, block: &Object<'_>, notes: &mut IgnoredFields) {
        let shown = block.string("thinking").unwrap_or_default();
        let signature = block.string("signature");
        if shown.is_empty() {
            return self.read_sealed(signature, notes);
        }
        if signature.is_some_and(|signature| self.sealer.is_signed(&shown, &signature)) {
            self.messages.add_assistant_reasoning(JsonText::from_plain(&shown));
        } else {
            notes.add("messages.thinking", "it is not signed by this respool");
        }
    }

    fn read_sealed(&mut self, sealed: Option<String>, notes: &mut IgnoredFields) {
        match sealed.and_then(|sealed| self.sealer.open(&sealed)) {
            Some(text) => self.messages.add_assistant_reasoning(JsonText::from_plain(&text)),
            None => notes.add("messages.thinking", "it was not sealed by this respool"),
        }
    }

    fn read_tool_use(&mut self, block: &Object<'_>, field: &str) -> Result<(), ApiError> {
        let name =
            block.string("name").ok_or_else(|| missing_field(format!("{field}.name"), "name the tool"))?;
        let arguments = encode_string(block.get("input").unwrap_or("{}"));
        self.messages.add_assistant_call(required_id(block, "id", field)?, &name, &arguments);
        Ok(())
    }

    fn read_tool_result(
        &mut self,
        block: &Object<'_>,
        field: &str,
        notes: &mut IgnoredFields,
    ) -> Result<(), ApiError> {
        let id = required_id(block, "tool_use_id", field)?;
        let (mut texts, mut media, mut found) = (Vec::new(), Vec::new(), Vec::new());
        let content = block.get("content").unwrap_or("[]");
        for (inner, field) in read_blocks(content, &format!("{field}.content"))? {
            if inner.is_string("type", "tool_reference") {
                found.extend(inner.string("tool_name"));
                continue;
            }
            match read_user_part(&inner, &field, notes)? {
                Some(Part::Text(text)) => texts.push(text),
                Some(part) => media.push(part),
                None => {}
            }
        }
        if !found.is_empty() {
            texts.push(JsonText::from_plain(&format!("Tools now available: {}", found.join(", "))));
        }
        let mut text = JsonText::join_texts(&texts);
        if optional_bool(block, "is_error", &format!("{field}.is_error"))? == Some(true) {
            text = text.enclose("The tool failed: ", "");
        }
        self.messages.add_tool_result(id, text, media);
        self.referenced.extend(found);
        Ok(())
    }
}

fn not_for_system(block: &Object<'_>, field: &str) -> ApiError {
    let kind = block.string("type").unwrap_or_default();
    let message = format!("`{field}` is of type `{kind}`, which does not belong here: send text");
    unsupported_field(format!("{field}.type"), message)
}

fn required_id<'b>(block: &'b Object<'_>, key: &str, field: &str) -> Result<&'b str, ApiError> {
    let id = block.get(key).filter(|id| id.starts_with('"'));
    id.ok_or_else(|| missing_field(format!("{field}.{key}"), "give the call's id"))
}

/// Returns the blocks of a content with their places; a string is one text block.
fn read_blocks<'c>(content: &'c str, field: &str) -> Result<Vec<(Object<'c>, String)>, ApiError> {
    if content.starts_with('"') {
        let mut block = Object::default();
        block.set("type", "\"text\"");
        block.set("text", content);
        return Ok(vec![(block, field.to_owned())]);
    }
    let blocks =
        array_elements(content).ok_or_else(|| wrong_type(field, "a string or an array of blocks"))?;
    let placed = blocks.into_iter().enumerate().map(|(index, block)| {
        let field = format!("{field}[{index}]");
        Ok((nested_object(block, &field)?, field))
    });
    placed.collect()
}

fn read_texts(json: &str, field: &str) -> Result<Vec<JsonText>, ApiError> {
    read_blocks(json, field)?.iter().map(|(block, field)| block_text(block, field)).collect()
}

fn block_text(block: &Object<'_>, field: &str) -> Result<JsonText, ApiError> {
    let text = block.get("text").and_then(JsonText::from_json);
    text.ok_or_else(|| wrong_type(format!("{field}.text"), "a string"))
}

/// Reads a block of a user's message or a tool result; `None` for a block that the model does not get.
fn read_user_part(
    block: &Object<'_>,
    field: &str,
    notes: &mut IgnoredFields,
) -> Result<Option<Part>, ApiError> {
    let kind = block.string("type").unwrap_or_default();
    match kind.as_str() {
        "text" => {
            block_text(block, field).map(|text| Some(text).filter(|text| !text.is_empty()).map(Part::Text))
        }
        "image" => read_image(block, field).map(Some),
        "document" => read_document(block, field).map(|text| Some(Part::Text(text))),
        "search_result" => {
            let texts = read_texts(block.get("content").unwrap_or("[]"), &format!("{field}.content"))?;
            Ok(Some(Part::Text(mark_document(
                block.string("title").as_deref(),
                &JsonText::join_texts(&texts),
            ))))
        }
        "server_tool_use" | "web_search_tool_result" | "web_fetch_tool_result" => {
            notes.add(format!("messages.{kind}"), "a chat conversation has no block of this type");
            Ok(None)
        }
        _ => {
            let message = format!("`{field}` is of type `{kind}`, which chat models do not accept");
            Err(unsupported_field(format!("{field}.type"), message))
        }
    }
}

fn read_source<'b>(block: &'b Object<'_>, field: &str) -> Result<Object<'b>, ApiError> {
    let source =
        block.get("source").ok_or_else(|| missing_field(format!("{field}.source"), "send the data"))?;
    nested_object(source, &format!("{field}.source"))
}

fn read_image(block: &Object<'_>, field: &str) -> Result<Part, ApiError> {
    let source = read_source(block, field)?;
    match (source.string("type").as_deref(), source.get("url"), source.get("data")) {
        (Some("url"), Some(url), _) => Ok(image_part(url, None)),
        (Some("base64"), _, Some(data)) => {
            let media_type = source.string("media_type").unwrap_or_else(|| "image/png".to_owned());
            let data = JsonText::from_json(data)
                .ok_or_else(|| wrong_type(format!("{field}.source.data"), "a string"))?;
            let url = data.enclose(&format!("data:{media_type};base64,"), "").to_json();
            Ok(image_part(&url, None))
        }
        _ => Err(unsupported_field(
            format!("{field}.source"),
            "respool keeps no files: send the image as base64 or with a URL",
        )),
    }
}

fn read_document(block: &Object<'_>, field: &str) -> Result<JsonText, ApiError> {
    let source = read_source(block, field)?;
    let text = match source.string("type").as_deref() {
        Some("text") => source.get("data").and_then(JsonText::from_json),
        Some("content") => {
            let content = source.get("content").unwrap_or("[]");
            Some(JsonText::join_texts(&read_texts(content, &format!("{field}.source.content"))?))
        }
        Some("base64") => {
            let media_type = source.string("media_type").unwrap_or_default();
            let data = source.string("data").unwrap_or_default();
            base64_text(&media_type, &data).map(|text| JsonText::from_plain(&text))
        }
        _ => None,
    };
    let text = text.ok_or_else(|| {
        unsupported_field(
            format!("{field}.source"),
            format!("`{field}` is a document that is not text: chat models accept text and images only"),
        )
    })?;
    Ok(mark_document(block.string("title").as_deref(), &text))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(messages: &Value) -> Result<(Value, Vec<String>), ApiError> {
        let sealer = Sealer::new(b"secret");
        let (mut blocks, mut notes) = (Blocks::new(&sealer), IgnoredFields::default());
        for (index, message) in messages.as_array().unwrap().iter().enumerate() {
            blocks.read_message(&message.to_string(), &format!("messages[{index}]"), &mut notes)?;
        }
        let notes = notes.into_vec().into_iter().map(|note| note.field).collect();
        Ok((serde_json::from_str(&blocks.messages.into_json()).unwrap(), notes))
    }

    #[test]
    fn thinking_comes_back_if_it_is_ours() {
        let sealer = Sealer::new(b"secret");
        let (signature, sealed) = (sealer.sign("shown"), sealer.seal("hidden"));
        let (said, notes) = read(&json!([{"role": "assistant", "content": [
            {"type": "thinking", "thinking": "shown", "signature": signature},
            {"type": "thinking", "thinking": "", "signature": sealed},
            {"type": "redacted_thinking", "data": sealed},
            {"type": "thinking", "thinking": "foreign", "signature": "EqQB"},
            {"type": "text", "text": "answer"}]}]))
        .unwrap();
        let expected = json!([{"role": "assistant", "content": "answer", "reasoning_content": "shown\n\nhidden\n\nhidden"}]);
        assert_eq!((said, notes), (expected, vec!["messages.thinking".to_owned()]));
    }

    #[test]
    fn results_with_images_errors_and_references() {
        let image =
            json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}});
        let result =
            |id: &str, content: Value| json!({"type": "tool_result", "tool_use_id": id, "content": content});
        let mut failed = result("c2", json!("no such file"));
        failed["is_error"] = json!(true);
        let (said, notes) = read(&json!([
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "shot", "input": {"a": [1]}}]},
            {"role": "user", "content": [
                result("c1", json!([{"type": "text", "text": "seen"}, image])),
                failed,
                result("c3", json!([{"type": "tool_reference", "tool_name": "WebFetch"}])),
                {"type": "tool_result", "tool_use_id": "c4", "content": [{"type": "web_search_tool_result"}]},
                {"type": "text", "text": "go on", "cache_control": {"type": "ephemeral"}}]},
        ]))
        .unwrap();
        assert_eq!(notes, ["messages.web_search_tool_result"]);
        assert_eq!(said[0]["tool_calls"][0]["function"]["arguments"], r#"{"a":[1]}"#);
        let contents: Vec<&Value> = (1..5).map(|index| &said[index]["content"]).collect();
        assert_eq!(
            contents,
            [
                &json!("seen"),
                &json!("The tool failed: no such file"),
                &json!("Tools now available: WebFetch"),
                &json!("(no output)")
            ]
        );
        assert_eq!(said[5]["content"][1]["image_url"]["url"], "data:image/png;base64,AA==");
        assert_eq!(said[5]["content"][2]["text"], "go on");
    }

    #[test]
    fn documents_are_text() {
        let document = |source: Value| json!([{"role": "user", "content": [{"type": "document", "title": "T", "source": source}]}]);
        for source in [
            json!({"type": "text", "media_type": "text/plain", "data": "hello"}),
            json!({"type": "base64", "media_type": "text/plain", "data": "aGVsbG8="}),
            json!({"type": "content", "content": [{"type": "text", "text": "hello"}]}),
        ] {
            let (said, _) = read(&document(source)).unwrap();
            assert_eq!(said[0]["content"], "<document title=\"T\">\nhello\n</document>");
        }
        let error =
            read(&document(json!({"type": "base64", "media_type": "application/pdf", "data": "AA=="})))
                .unwrap_err();
        assert_eq!(error.param.as_deref(), Some("messages[0].content[0].source"));
    }

    #[test]
    fn necessary_parts_are_refused_with_their_place() {
        let user = |block: Value| json!([{"role": "user", "content": [block]}]);
        for (messages, param) in [
            (user(json!({"type": "video"})), "messages[0].content[0].type"),
            (user(json!({"type": "text"})), "messages[0].content[0].text"),
            (user(json!({"type": "image"})), "messages[0].content[0].source"),
            (
                user(json!({"type": "image", "source": {"type": "file", "file_id": "f"}})),
                "messages[0].content[0].source",
            ),
            (user(json!({"type": "tool_result"})), "messages[0].content[0].tool_use_id"),
            (user(json!("x")), "messages[0].content[0]"),
            (json!([{"role": "user"}]), "messages[0].content"),
            (json!([{"role": "user", "content": 7}]), "messages[0].content"),
            (json!([{"role": "critic", "content": "x"}]), "messages[0].role"),
            (json!([{"content": "x"}]), "messages[0].role"),
            (
                json!([{"role": "assistant", "content": [{"type": "tool_use", "id": "c"}]}]),
                "messages[0].content[0].name",
            ),
            (json!([7]), "messages[0]"),
        ] {
            let error = read(&messages).unwrap_err();
            assert_eq!((error.status, error.param.as_deref()), (400, Some(param)), "{messages}");
        }
    }
}
