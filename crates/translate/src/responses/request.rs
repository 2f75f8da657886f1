//! Reads the body of `POST /v1/responses`. The result is an equivalent chat request, and the facts that the
//! reply's form needs.
//!
//! `stream` is not part of the chat request: the relay decides whether to stream. Called by `server`.

use std::borrow::Cow;
use std::sync::Arc;

use super::super::chat_body::{ChatMessages, JsonText};
use super::super::free_text::FreeTextPatterns;
use super::super::ignored_fields::{
    IgnoredField, IgnoredFields, empty_conversation, missing_field, nested_object, optional_array,
    optional_bool, optional_string, request_object, unsupported_field, wrong_type,
};
use super::super::sealed::Sealer;
use super::super::server_fields::{is_server_field, put_server_fields};
use super::input::{Items, reference_id};
use super::names::ToolNames;
use super::object::EchoedFields;
use super::stored::RecalledItems;
use super::tools::DeclaredTools;
use wire::{ApiError, ErrorCode, Object, array_elements, decode_string};

/// A request that was read.
#[derive(Debug)]
pub struct ReadResponse {
    /// The body of the chat request.
    pub chat: String,
    /// The facts that the reply needs.
    pub asked: AskedResponse,
    /// The fields that the model does not get.
    pub ignored_fields: Vec<IgnoredField>,
}

/// The wishes of a client of the Responses API beyond the chat request.
#[derive(Debug, Default)]
pub struct AskedResponse {
    /// The model's name as the client wrote it.
    pub model: String,
    /// `stream`.
    pub stream: bool,
    /// `background`.
    pub background: bool,
    /// `store`, which is true by default.
    pub store: bool,
    /// `truncation: "auto"`: the oldest items may be dropped when the conversation does not fit.
    pub truncate: bool,
    /// `include` names `reasoning.encrypted_content`.
    pub sealed_reasoning: bool,
    /// The client's tools by their names in the chat request.
    pub tools: ToolNames,
    /// The expressions that the texts of custom calls must match.
    pub patterns: Arc<FreeTextPatterns>,
    /// `previous_response_id`.
    pub previous: Option<String>,
    /// The request's own items as JSON, if the response may be stored.
    pub items: Vec<String>,
    /// The fields of the request that every response object repeats.
    pub(super) echo: EchoedFields,
}

/// Fields that go into the chat request unchanged.
const SAME: [&str; 11] = [
    "temperature",
    "top_p",
    "top_k",
    "stop",
    "frequency_penalty",
    "presence_penalty",
    "prompt_cache_key",
    "safety_identifier",
    "service_tier",
    "user",
    "parallel_tool_calls",
];

/// Fields that are read elsewhere, or that do not matter to a model.
const KNOWN: [&str; 25] = [
    "model",
    "input",
    "instructions",
    "tools",
    "tool_choice",
    "stream",
    "stream_options",
    "background",
    "store",
    "truncation",
    "include",
    "metadata",
    "client_metadata",
    "previous_response_id",
    "max_output_tokens",
    "max_tool_calls",
    "top_logprobs",
    "reasoning",
    "text",
    "conversation",
    "prompt",
    "prompt_cache_retention",
    "prompt_cache_options",
    "access_programs",
    "moderation",
];

/// The field that names the response to continue.
const PREVIOUS: &str = "previous_response_id";

/// Reads a request. `recalled`: the stored items that [`super::find_references`] named.
///
/// # Errors
/// When the request is wrong, with the field's name.
pub fn read_response(
    body: &[u8],
    recalled: &RecalledItems,
    sealer: &Sealer,
) -> Result<ReadResponse, ApiError> {
    let object = request_object(body)?;
    refuse_unknown_state(&object)?;
    let mut notes = IgnoredFields::default();
    let items = all_items(&object, recalled)?;
    let mut tools = declared_tools(&object, &items, &mut notes)?;
    let choice = tools.translate_choice(object.get("tool_choice"))?;
    let reading = Items { names: &tools.names, sealer, recalled };
    let messages = read_conversation(&object, &items, &tools.namespaces, &reading, &mut notes)?;
    let mut chat = Object::default();
    if let Some(model) = object.get("model") {
        chat.set("model", model);
    }
    chat.set("messages", messages);
    put_tools(&mut chat, &tools, choice);
    put_settings(&mut chat, &object, &mut notes)?;
    note_unknown(&object, &mut notes);
    let included = read_include(&object, &mut notes)?;
    put_logprobs(&mut chat, &object, &included)?;
    let chat = chat.to_json();
    let mut asked = read_asked_response(&object)?;
    asked.sealed_reasoning = included.sealed_reasoning;
    if asked.store {
        let own = items.into_iter().filter(|(field, _)| field != PREVIOUS);
        asked.items = own.filter_map(|(_, json)| resolve_reference(json, recalled)).collect();
    }
    (asked.tools, asked.patterns) = (tools.names, Arc::new(tools.patterns));
    Ok(ReadResponse { chat, asked, ignored_fields: notes.into_vec() })
}

/// Returns an item in its stored form, in which a reference is replaced by its item; `None` if that is
/// missing.
fn resolve_reference(json: Cow<'_, str>, recalled: &RecalledItems) -> Option<String> {
    match reference_id(&json) {
        Some(id) => recalled.items.get(&id).cloned(),
        None => Some(json.into_owned()),
    }
}

/// Refuses conversations and prompts that only OpenAI's servers store.
fn refuse_unknown_state(object: &Object<'_>) -> Result<(), ApiError> {
    for (field, advice) in [
        (
            "conversation",
            "respool keeps no conversations: send the items in `input`, or `previous_response_id`",
        ),
        ("prompt", "respool keeps no prompt templates: send the text in `instructions` and `input`"),
    ] {
        if object.get(field).is_some() {
            return Err(unsupported_field(field, format!("`{field}` is not supported: {advice}")));
        }
    }
    Ok(())
}

/// An item with its field in the request.
type PlacedItem<'a> = (String, Cow<'a, str>);

/// Returns all items of the conversation. An input that is a string becomes one user message.
fn all_items<'a>(
    object: &'a Object<'_>,
    recalled: &'a RecalledItems,
) -> Result<Vec<PlacedItem<'a>>, ApiError> {
    let mut items = Vec::new();
    if let Some(id) = optional_string(object, PREVIOUS, PREVIOUS)? {
        let previous = recalled.previous.as_ref().ok_or_else(|| {
            let message = format!(
                "Previous response with id '{id}' not found: it was not stored, or is no longer kept"
            );
            ApiError::bad_request(ErrorCode::PreviousResponseNotFound, message).with_param(PREVIOUS)
        })?;
        items.extend(previous.iter().map(|item| (PREVIOUS.to_owned(), Cow::Borrowed(item.as_str()))));
    }
    match object.get("input") {
        None if items.is_empty() => return Err(missing_field("input", "send a text or an array of items")),
        None => {}
        Some(text) if text.starts_with('"') => {
            let item = format!(
                r#"{{"type":"message","role":"user","content":[{{"type":"input_text","text":{text}}}]}}"#
            );
            items.push(("input".to_owned(), Cow::Owned(item)));
        }
        Some(input) => {
            let own =
                array_elements(input).ok_or_else(|| wrong_type("input", "a string or an array of items"))?;
            items.extend(
                own.into_iter()
                    .enumerate()
                    .map(|(index, item)| (format!("input[{index}]"), Cow::Borrowed(item))),
            );
        }
    }
    Ok(items)
}

/// Reads the tools of the request, and those that its items add.
fn declared_tools(
    object: &Object<'_>,
    items: &[PlacedItem<'_>],
    notes: &mut IgnoredFields,
) -> Result<DeclaredTools, ApiError> {
    let mut tools = DeclaredTools::default();
    if let Some(json) = object.get("tools") {
        tools.add_tools(json, "tools", notes)?;
    }
    for (field, json) in items {
        // Most conversations have no such item, and long items need not be parsed.
        if !json.contains("additional_tools") && !json.contains("tool_search_output") {
            continue;
        }
        let item = nested_object(json, field)?;
        if let (Some("additional_tools" | "tool_search_output"), Some(added)) =
            (item.string("type").as_deref(), item.get("tools"))
        {
            tools.add_tools(added, &format!("{field}.tools"), notes)?;
        }
    }
    Ok(tools)
}

fn read_conversation(
    object: &Object<'_>,
    items: &[PlacedItem<'_>],
    namespaces: &[JsonText],
    reading: &Items<'_>,
    notes: &mut IgnoredFields,
) -> Result<String, ApiError> {
    let mut messages = ChatMessages::default();
    if let Some(instructions) = object.get("instructions") {
        let text = JsonText::from_json(instructions).ok_or_else(|| wrong_type("instructions", "a string"))?;
        messages.add_system(text);
    }
    for (field, json) in items {
        reading.read_item(json, field, &mut messages, notes)?;
    }
    if messages.is_empty() {
        return Err(empty_conversation("input"));
    }
    namespaces.iter().for_each(|about| messages.add_leading_system(about.clone()));
    Ok(messages.into_json())
}

fn put_tools(chat: &mut Object<'_>, tools: &DeclaredTools, choice: Option<String>) {
    if tools.functions.is_empty() {
        return;
    }
    let functions: Vec<&str> = tools.functions.iter().map(|(_, json)| json.as_str()).collect();
    chat.set("tools", format!("[{}]", functions.join(",")));
    if let Some(choice) = choice {
        chat.set("tool_choice", choice);
    }
}

fn put_settings<'o>(
    chat: &mut Object<'o>,
    object: &'o Object<'_>,
    notes: &mut IgnoredFields,
) -> Result<(), ApiError> {
    optional_bool(object, "parallel_tool_calls", "parallel_tool_calls")?;
    let has_tools = chat.get("tools").is_some();
    for key in SAME.into_iter().filter(|key| has_tools || *key != "parallel_tool_calls") {
        if let Some(value) = object.get(key) {
            chat.set(key, value);
        }
    }
    put_server_fields(chat, object);
    if let Some(limit) = object.get("max_output_tokens") {
        object
            .number("max_output_tokens")
            .ok_or_else(|| wrong_type("max_output_tokens", "a whole number"))?;
        chat.set("max_tokens", limit);
    }
    let reasoning = object.get("reasoning").map(|json| nested_object(json, "reasoning")).transpose()?;
    if let Some(effort) = reasoning.as_ref().and_then(|reasoning| reasoning.get("effort")) {
        chat.set("reasoning_effort", effort.to_owned());
    }
    let text = object.get("text").map(|json| nested_object(json, "text")).transpose()?.unwrap_or_default();
    let format = text.get("format").map(|format| nested_object(format, "text.format")).transpose()?;
    if let Some(format) = format.map(|format| response_format(&format)).transpose()?.flatten() {
        chat.set("response_format", format);
    }
    if text.get("verbosity").is_some() {
        notes.add("text.verbosity", "the models that vLLM serves have no such setting");
    }
    Ok(())
}

/// Translates `text.format` to the chat API's `response_format`; `None` for plain text.
fn response_format(format: &Object<'_>) -> Result<Option<String>, ApiError> {
    match format.string("type").as_deref() {
        None => Err(missing_field("text.format.type", "send text, json_object or json_schema")),
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(r#"{"type":"json_object"}"#.to_owned())),
        Some("json_schema") => {
            let mut schema = Object::default();
            schema.set("name", format.get("name").unwrap_or("\"answer\""));
            for key in ["description", "schema", "strict"] {
                if let Some(value) = format.get(key) {
                    schema.set(key, value);
                }
            }
            schema
                .get("schema")
                .ok_or_else(|| missing_field("text.format.schema", "send the JSON schema"))?;
            Ok(Some(format!(r#"{{"type":"json_schema","json_schema":{}}}"#, schema.to_json())))
        }
        Some(kind) => {
            let message = format!("`text.format.type` is `{kind}`: send text, json_object or json_schema");
            Err(unsupported_field("text.format.type", message))
        }
    }
}

fn note_unknown(object: &Object<'_>, notes: &mut IgnoredFields) {
    for (key, value) in object.iter() {
        let is_known = KNOWN.contains(&key) || SAME.contains(&key) || is_server_field(key) || value == "null";
        if key == "context_management" && value != "null" {
            notes.add(key, "respool fits the conversation into the model's window itself");
        } else if !is_known {
            notes.add(key, "respool does not know this field");
        }
    }
}

fn read_asked_response(object: &Object<'_>) -> Result<AskedResponse, ApiError> {
    let flag = |key: &str| optional_bool(object, key, key);
    Ok(AskedResponse {
        model: object.string("model").unwrap_or_default(),
        stream: flag("stream")?.unwrap_or_default(),
        background: flag("background")?.unwrap_or_default(),
        store: flag("store")?.unwrap_or(true),
        truncate: may_truncate(object)?,
        sealed_reasoning: false,
        tools: ToolNames::default(),
        patterns: Arc::default(),
        previous: object.string(PREVIOUS),
        items: vec![],
        echo: EchoedFields::from_request(object),
    })
}

fn may_truncate(object: &Object<'_>) -> Result<bool, ApiError> {
    match optional_string(object, "truncation", "truncation")?.as_deref() {
        None | Some("disabled") => Ok(false),
        Some("auto") => Ok(true),
        Some(_) => Err(unsupported_field("truncation", "`truncation` must be `auto` or `disabled`")),
    }
}

/// The additions that `include` requests.
#[derive(Debug, Default)]
struct Included {
    sealed_reasoning: bool,
    logprobs: bool,
}

fn read_include(object: &Object<'_>, notes: &mut IgnoredFields) -> Result<Included, ApiError> {
    let mut included = Included::default();
    for (index, entry) in optional_array(object, "include", "include")?.into_iter().enumerate() {
        let name = decode_string(entry).ok_or_else(|| wrong_type(format!("include[{index}]"), "a string"))?;
        match name.as_str() {
            "reasoning.encrypted_content" => included.sealed_reasoning = true,
            "message.output_text.logprobs" => included.logprobs = true,
            _ => notes.add(format!("include.{name}"), "a chat model's reply has nothing of this kind"),
        }
    }
    Ok(included)
}

/// Requests log probabilities, which a number of alternatives implies.
fn put_logprobs<'o>(
    chat: &mut Object<'o>,
    object: &'o Object<'_>,
    included: &Included,
) -> Result<(), ApiError> {
    let alternatives = match object.get("top_logprobs") {
        Some(_) => {
            Some(object.number("top_logprobs").ok_or_else(|| wrong_type("top_logprobs", "a whole number"))?)
        }
        None => None,
    };
    if included.logprobs || alternatives.is_some_and(|number| number > 0) {
        chat.set("logprobs", "true");
        chat.set("top_logprobs", alternatives.unwrap_or_default().to_string());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(body: &Value) -> Result<ReadResponse, ApiError> {
        read_response(body.to_string().as_bytes(), &RecalledItems::default(), &Sealer::new(b"secret"))
    }

    fn chat(body: &Value) -> Value {
        serde_json::from_str(&read(body).unwrap().chat).unwrap()
    }

    #[test]
    fn a_text_is_enough() {
        let read = read(&json!({"model": "m", "input": "hi"})).unwrap();
        assert_eq!(read.chat, r#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#);
        assert!(read.asked.store && !read.asked.stream && read.ignored_fields.is_empty());
        let item = r#"{"type":"message","role":"user","content":[{"type":"input_text","text":"hi"}]}"#;
        assert_eq!(read.asked.items, [item]);
    }

    #[test]
    fn settings_go_where_the_chat_api_has_them() {
        let schema = json!({"type": "object"});
        let chat = chat(
            &json!({"model": "m", "input": "hi", "instructions": "rules", "max_output_tokens": 7,
            "reasoning": {"effort": "xhigh", "summary": "auto"}, "temperature": 0.50, "stop": null, "parallel_tool_calls": true,
            "text": {"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": true}}}),
        );
        let format =
            json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": true}});
        let messages = json!([{"role": "system", "content": "rules"}, {"role": "user", "content": "hi"}]);
        let expected = json!({"model": "m", "messages": messages, "temperature": 0.5, "max_tokens": 7,
            "reasoning_effort": "xhigh", "response_format": format});
        assert_eq!(chat, expected);
    }

    #[test]
    fn log_probabilities_are_asked_for_where_they_are_wanted() {
        let check = |extra: Value, expected: [Value; 2]| {
            let mut body = json!({"model": "m", "input": "hi"});
            body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            let chat = chat(&body);
            assert_eq!([chat["logprobs"].clone(), chat["top_logprobs"].clone()], expected, "{body}");
        };
        check(json!({"include": ["message.output_text.logprobs"]}), [json!(true), json!(0)]);
        check(json!({"top_logprobs": 3}), [json!(true), json!(3)]);
        check(json!({"top_logprobs": 0}), [Value::Null, Value::Null]);
        check(json!({"top_logprobs": null}), [Value::Null, Value::Null]);
    }

    #[test]
    fn tools_that_the_conversation_found_are_declared() {
        let body = json!({"model": "m", "tool_choice": "auto", "parallel_tool_calls": false, "input": [
            {"type": "additional_tools", "role": "developer", "tools": [
                {"type": "namespace", "name": "clock", "description": "Time.", "tools": [{"type": "function", "name": "sleep"}]}]},
            {"role": "user", "content": "hi"}]});
        let chat = chat(&body);
        assert_eq!(chat["tools"][0]["function"]["name"], "clock__sleep");
        assert_eq!((&chat["tool_choice"], &chat["parallel_tool_calls"]), (&json!("auto"), &json!(false)));
        assert_eq!(chat["messages"][0]["content"], "Tools named clock__*: Time.");
    }

    #[test]
    fn without_tools_nothing_is_said_about_them() {
        let chat = chat(
            &json!({"model": "m", "input": "hi", "tools": [{"type": "web_search"}], "tool_choice": "auto"}),
        );
        assert_eq!((chat.get("tools"), chat.get("tool_choice")), (None, None));
    }

    #[test]
    fn fields_that_change_the_meaning_are_refused() {
        for (extra, param) in [
            (json!({"conversation": "conv_1"}), "conversation"),
            (json!({"prompt": {"id": "p"}}), "prompt"),
            (json!({"previous_response_id": "resp_1"}), "previous_response_id"),
            (json!({"input": null}), "input"),
            (json!({"input": 7}), "input"),
            (json!({"instructions": ["x"]}), "instructions"),
            (json!({"tools": {}}), "tools"),
            (json!({"tool_choice": "required"}), "tool_choice"),
            (json!({"max_output_tokens": "many"}), "max_output_tokens"),
            (json!({"reasoning": "high"}), "reasoning"),
            (json!({"text": {"format": {"type": "grammar"}}}), "text.format.type"),
            (json!({"text": {"format": {"type": "json_schema"}}}), "text.format.schema"),
            (json!({"text": {"format": {"schema": {}}}}), "text.format.type"),
            (json!({"input": []}), "input"),
            (json!({"input": [{"type": "web_search_call"}]}), "input"),
            (json!({"store": "false"}), "store"),
            (json!({"store": 0}), "store"),
            (json!({"stream": "true"}), "stream"),
            (json!({"background": 1}), "background"),
            (json!({"parallel_tool_calls": "false"}), "parallel_tool_calls"),
            (json!({"previous_response_id": 7}), "previous_response_id"),
            (json!({"previous_response_id": {}}), "previous_response_id"),
            (json!({"truncation": "foo"}), "truncation"),
            (json!({"truncation": true}), "truncation"),
            (json!({"include": "reasoning.encrypted_content"}), "include"),
            (json!({"include": [7]}), "include[0]"),
            (json!({"top_logprobs": "3"}), "top_logprobs"),
        ] {
            let mut body = json!({"model": "m", "input": "hi"});
            body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            let error = read(&body).unwrap_err();
            assert_eq!((error.status, error.param.as_deref()), (400, Some(param)), "{body}");
        }
    }

    #[test]
    fn unknown_fields_are_noted() {
        let read = read(
            &json!({"model": "m", "input": "hi", "magic": 1, "nothing": null, "text": {"verbosity": "low"}, "context_management": [],
                "include": ["reasoning.encrypted_content", "file_search_call.results"], "store": null, "truncation": null}),
        );
        let fields: Vec<String> = read.unwrap().ignored_fields.into_iter().map(|note| note.field).collect();
        assert_eq!(
            fields,
            ["text.verbosity", "magic", "context_management", "include.file_search_call.results"]
        );
    }

    #[test]
    fn a_previous_response_comes_first() {
        let recalled = RecalledItems {
            previous: Some(vec![
                r#"{"role":"user","content":"one"}"#.into(),
                r#"{"type":"message","role":"assistant","content":"two"}"#.into(),
            ]),
            ..RecalledItems::default()
        };
        let body = json!({"model": "m", "previous_response_id": "resp_1", "input": "three"}).to_string();
        let read = read_response(body.as_bytes(), &recalled, &Sealer::new(b"secret")).unwrap();
        let chat: Value = serde_json::from_str(&read.chat).unwrap();
        let said: Vec<&str> =
            chat["messages"].as_array().unwrap().iter().map(|m| m["content"].as_str().unwrap()).collect();
        assert_eq!(said, ["one", "two", "three"]);
        assert!(read.asked.items.len() == 1 && read.asked.previous.as_deref() == Some("resp_1"));
    }
}
