//! Reads the body of `POST /v1/messages` and of `/v1/messages/count_tokens`. The result is an equivalent chat
//! request, and the facts that the reply's form needs.
//!
//! `stream` is not part of the chat request: the relay decides whether to stream. Called by `server`.

use super::super::ignored_fields::{
    IgnoredField, IgnoredFields, empty_conversation, missing_field, nested_object, optional_bool,
    optional_string, request_object, unsupported_field, wrong_type,
};
use super::super::sealed::Sealer;
use super::super::server_fields::{is_server_field, put_server_fields};
use super::blocks::Blocks;
use super::tools::DeclaredTools;
use wire::{ApiError, Object, array_elements};

/// A request that was read.
#[derive(Debug)]
pub struct ReadMessage {
    /// The body of the chat request.
    pub chat: String,
    /// The facts that the reply needs.
    pub asked: AskedMessage,
    /// The fields that the model does not get.
    pub ignored_fields: Vec<IgnoredField>,
}

/// The wishes of a client of the Messages API beyond the chat request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AskedMessage {
    /// The model's name as the client wrote it.
    pub model: String,
    /// `stream`.
    pub stream: bool,
    /// The form in which reasoning leaves.
    pub thinking: ShownThinking,
}

/// The form in which the client wants the model's reasoning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShownThinking {
    /// Nothing: it did not ask for thinking.
    #[default]
    Nothing,
    /// Blocks with the text, signed.
    Text,
    /// Blocks without the text, which is sealed in the signature (`display: "omitted"`).
    Sealed,
}

/// Fields that go into the chat request under the same name.
const SAME: [&str; 3] = ["temperature", "top_p", "top_k"];

/// Fields that are read elsewhere, or that do not matter to a model.
const KNOWN: [&str; 18] = [
    "model",
    "messages",
    "system",
    "max_tokens",
    "stream",
    "stop_sequences",
    "tools",
    "tool_choice",
    "thinking",
    "output_config",
    "output_format",
    "metadata",
    "service_tier",
    "inference_geo",
    "cache_control",
    "betas",
    "speed",
    "diagnostics",
];

/// Reads a request.
///
/// # Errors
/// When the request is wrong, with the field's name.
pub fn read_message(body: &[u8], sealer: &Sealer) -> Result<ReadMessage, ApiError> {
    let object = request_object(body)?;
    if object.get("container").is_some() {
        let message = "`container` is not supported: code runs only on Anthropic's servers";
        return Err(unsupported_field("container", message));
    }
    let mut notes = IgnoredFields::default();
    let blocks = read_conversation(&object, sealer, &mut notes)?;
    let tools = object.get("tools").unwrap_or("[]");
    let tools = DeclaredTools::from_json(tools, &blocks.referenced, &blocks.tool_changes, &mut notes)?;
    let mut chat = Object::default();
    if let Some(model) = object.get("model") {
        chat.set("model", model);
    }
    chat.set("messages", blocks.messages.into_json());
    put_tools(&mut chat, &tools, &object)?;
    put_settings(&mut chat, &object)?;
    let thinking = put_thinking(&mut chat, &object)?;
    note_unknown(&object, &mut notes);
    let asked = AskedMessage {
        model: object.string("model").unwrap_or_default(),
        stream: optional_bool(&object, "stream", "stream")?.unwrap_or_default(),
        thinking,
    };
    Ok(ReadMessage { chat: chat.to_json(), asked, ignored_fields: notes.into_vec() })
}

fn read_conversation<'a>(
    object: &Object<'_>,
    sealer: &'a Sealer,
    notes: &mut IgnoredFields,
) -> Result<Blocks<'a>, ApiError> {
    let mut blocks = Blocks::new(sealer);
    if let Some(system) = object.get("system") {
        blocks.read_system(system, "system")?;
    }
    let messages =
        object.get("messages").ok_or_else(|| missing_field("messages", "send an array of messages"))?;
    let messages = array_elements(messages).ok_or_else(|| wrong_type("messages", "an array of messages"))?;
    let last = messages.last().and_then(|last| Object::parse(last).ok());
    if last.is_some_and(|last| last.is_string("role", "assistant")) {
        notes.add("messages.prefill", "a chat model answers its own last message, and does not continue it");
    }
    for (index, message) in messages.into_iter().enumerate() {
        blocks.read_message(message, &format!("messages[{index}]"), notes)?;
    }
    if blocks.messages.is_empty() {
        return Err(empty_conversation("messages"));
    }
    Ok(blocks)
}

fn put_tools(chat: &mut Object<'_>, tools: &DeclaredTools, object: &Object<'_>) -> Result<(), ApiError> {
    let (choice, single) = tools.translate_choice(object.get("tool_choice"))?;
    if tools.functions.is_empty() {
        return Ok(());
    }
    let functions: Vec<&str> = tools.functions.iter().map(|(_, json)| json.as_str()).collect();
    chat.set("tools", format!("[{}]", functions.join(",")));
    if let Some(choice) = choice {
        chat.set("tool_choice", choice);
    }
    if single {
        chat.set("parallel_tool_calls", "false");
    }
    Ok(())
}

fn put_settings<'o>(chat: &mut Object<'o>, object: &'o Object<'_>) -> Result<(), ApiError> {
    for key in SAME {
        if let Some(value) = object.get(key) {
            chat.set(key, value);
        }
    }
    put_server_fields(chat, object);
    if let Some(limit) = object.get("max_tokens") {
        object.number("max_tokens").ok_or_else(|| wrong_type("max_tokens", "a whole number"))?;
        chat.set("max_tokens", limit);
    }
    if let Some(stops) = object.get("stop_sequences") {
        if array_elements(stops)
            .ok_or_else(|| wrong_type("stop_sequences", "an array of strings"))?
            .is_empty()
        {
            return Ok(());
        }
        chat.set("stop", stops);
    }
    Ok(())
}

/// Translates `thinking` and `output_config`. A chat model knows only an effort, so a budget of tokens
/// becomes one.
fn put_thinking(chat: &mut Object<'_>, object: &Object<'_>) -> Result<ShownThinking, ApiError> {
    let part = |key: &str| object.get(key).map(|json| nested_object(json, key)).transpose();
    let thinking = part("thinking")?.unwrap_or_default();
    let output = part("output_config")?.unwrap_or_default();
    let format = output.get("format").or_else(|| object.get("output_format"));
    if let Some(format) = format {
        chat.set("response_format", response_format(&nested_object(format, "output_config.format")?)?);
    }
    let kind = thinking.string("type");
    let effort = match (output.get("effort"), kind.as_deref()) {
        (_, Some("disabled")) => Some("\"none\"".to_owned()),
        (Some(effort), _) => Some(effort.to_owned()),
        (None, Some("enabled")) => {
            thinking.number("budget_tokens").map(|budget| effort_of(budget).to_owned())
        }
        (None, _) => None,
    };
    if let Some(effort) = effort {
        chat.set("reasoning_effort", effort);
    }
    match kind.as_deref() {
        None if object.get("thinking").is_some() => {
            Err(missing_field("thinking.type", "send enabled, adaptive or disabled"))
        }
        None | Some("disabled") => Ok(ShownThinking::Nothing),
        Some("enabled" | "adaptive") => shown_thinking(&thinking),
        Some(kind) => {
            let message = format!("`thinking.type` is `{kind}`: send enabled, adaptive or disabled");
            Err(unsupported_field("thinking.type", message))
        }
    }
}

/// Reads `thinking.display`. A chat model does not summarise its reasoning, so the client gets the reasoning
/// itself.
fn shown_thinking(thinking: &Object<'_>) -> Result<ShownThinking, ApiError> {
    const FIELD: &str = "thinking.display";
    match optional_string(thinking, "display", FIELD)?.as_deref() {
        None | Some("summarized" | "updates") => Ok(ShownThinking::Text),
        Some("omitted") => Ok(ShownThinking::Sealed),
        Some(display) => Err(unsupported_field(
            FIELD,
            format!("`{FIELD}` is `{display}`: send summarized, updates or omitted"),
        )),
    }
}

fn effort_of(budget: u64) -> &'static str {
    match budget {
        0..4_000 => "\"low\"",
        4_000..16_000 => "\"medium\"",
        _ => "\"high\"",
    }
}

fn response_format(format: &Object<'_>) -> Result<String, ApiError> {
    let schema = format.get("schema").filter(|_| format.is_string("type", "json_schema"));
    let schema = schema.ok_or_else(|| {
        unsupported_field(
            "output_config.format",
            "`output_config.format` must be a json_schema with its `schema`",
        )
    })?;
    Ok(format!(r#"{{"type":"json_schema","json_schema":{{"name":"answer","schema":{schema}}}}}"#))
}

fn note_unknown(object: &Object<'_>, notes: &mut IgnoredFields) {
    for (key, value) in object.iter() {
        let is_known = KNOWN.contains(&key) || SAME.contains(&key) || is_server_field(key) || value == "null";
        match key {
            "context_management" => {
                notes.add(key, "respool fits the conversation into the model's window itself");
            }
            "mcp_servers" => notes.add(key, "only Anthropic's servers call these tools"),
            key if !is_known => notes.add(key, "respool does not know this field"),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(body: &Value) -> Result<ReadMessage, ApiError> {
        read_message(body.to_string().as_bytes(), &Sealer::new(b"secret"))
    }

    fn with(extra: &Value) -> Value {
        let mut body =
            json!({"model": "m", "max_tokens": 7, "messages": [{"role": "user", "content": "hi"}]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        body
    }

    fn chat(extra: &Value) -> Value {
        serde_json::from_str(&read(&with(extra)).unwrap().chat).unwrap()
    }

    #[test]
    fn a_message_is_enough() {
        let read = read(&with(&json!({}))).unwrap();
        assert_eq!(read.chat, r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":7}"#);
        assert_eq!(read.asked, AskedMessage { model: "m".into(), ..AskedMessage::default() });
    }

    #[test]
    fn settings_go_where_the_chat_api_has_them() {
        let chat = chat(
            &json!({"system": [{"type": "text", "text": "x-anthropic-billing-header: x"}, {"type": "text", "text": "rules"}],
            "stop_sequences": ["X"], "top_k": 5, "temperature": 1, "metadata": {"user_id": "u"},
            "output_config": {"effort": "max", "format": {"type": "json_schema", "schema": {"type": "object"}}}}),
        );
        assert_eq!(chat["messages"][0], json!({"role": "system", "content": "rules"}));
        assert_eq!(
            (&chat["stop"], &chat["top_k"], &chat["reasoning_effort"]),
            (&json!(["X"]), &json!(5), &json!("max"))
        );
        assert_eq!(chat["response_format"]["json_schema"]["schema"]["type"], "object");
        assert_eq!(chat.get("metadata"), None);
    }

    #[test]
    fn fields_of_the_server_go_to_it() {
        let fields = json!({"cache_salt": "s", "vllm_xargs": {"a": 1}, "watermarking": false, "seed": 7});
        for (key, value) in fields.as_object().unwrap() {
            assert_eq!(chat(&fields)[key], *value);
        }
        assert_eq!(read(&with(&fields)).unwrap().ignored_fields, []);
    }

    #[test]
    fn tools_change_in_mid_conversation() {
        let tool =
            |name: &str, deferred: bool| json!({"name": name, "input_schema": {}, "defer_loading": deferred});
        let change =
            |kind: &str, name: &str| json!({"type": kind, "tool": {"type": "tool_reference", "name": name}});
        let definition = json!({"type": "tool_addition", "tool": {"type": "tool_definition", "definition": {"name": "db", "input_schema": {}}}});
        let (add, remove) = (|name| change("tool_addition", name), |name| change("tool_removal", name));
        let check = |changes: &[Value], expected: Result<&[&str], &str>| {
            let mut content = vec![json!({"type": "text", "text": "Tools changed."})];
            content.extend_from_slice(changes);
            let body = with(&json!({
                "tools": [tool("bash", false), tool("search", true)],
                "messages": [{"role": "user", "content": "hi"}, {"role": "system", "content": content}],
            }));
            let found = read(&body).map(|read| {
                let chat: Value = serde_json::from_str(&read.chat).unwrap();
                let tools = chat["tools"].as_array().cloned().unwrap_or_default();
                tools
                    .iter()
                    .map(|tool| tool["function"]["name"].as_str().unwrap().to_owned())
                    .collect::<Vec<_>>()
            });
            let found = found.map_err(|error| error.param.unwrap());
            let expected = expected.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
            assert_eq!(found, expected.map_err(str::to_owned), "{changes:?}");
        };
        check(&[], Ok(&["bash"]));
        check(&[add("search")], Ok(&["bash", "search"]));
        check(&[remove("bash")], Ok(&[]));
        check(&[remove("bash"), add("bash")], Ok(&["bash"]));
        check(&[definition], Ok(&["bash", "db"]));
        check(&[add("missing")], Err("messages[1].content[1].tool.name"));
        check(
            &[json!({"type": "tool_removal", "tool": {"type": "tool_definition", "definition": {}}})],
            Err("messages[1].content[1].tool.type"),
        );
        check(&[json!({"type": "image"})], Err("messages[1].content[1].type"));
    }

    #[test]
    fn thinking_is_shown_as_it_was_asked_for() {
        for (thinking, shown, effort) in [
            (json!(null), ShownThinking::Nothing, Value::Null),
            (json!({"type": "disabled"}), ShownThinking::Nothing, json!("none")),
            (json!({"type": "adaptive"}), ShownThinking::Text, Value::Null),
            (json!({"type": "adaptive", "display": "omitted"}), ShownThinking::Sealed, Value::Null),
            (json!({"type": "enabled", "budget_tokens": 2048}), ShownThinking::Text, json!("low")),
            (json!({"type": "enabled", "budget_tokens": 31999}), ShownThinking::Text, json!("high")),
        ] {
            let extra = json!({"thinking": thinking});
            assert_eq!(read(&with(&extra)).unwrap().asked.thinking, shown, "{extra}");
            assert_eq!(chat(&extra)["reasoning_effort"], effort, "{extra}");
        }
    }

    #[test]
    fn fields_that_change_the_meaning_are_refused() {
        for (extra, param) in [
            (json!({"messages": null}), "messages"),
            (json!({"messages": {}}), "messages"),
            (json!({"messages": []}), "messages"),
            (json!({"stream": "true"}), "stream"),
            (
                json!({"tool_choice": {"type": "auto", "disable_parallel_tool_use": "true"}}),
                "tool_choice.disable_parallel_tool_use",
            ),
            (
                json!({"tools": [{"name": "f", "input_schema": {}, "defer_loading": "true"}]}),
                "tools[0].defer_loading",
            ),
            (json!({"system": 7}), "system"),
            (json!({"container": "c"}), "container"),
            (json!({"tools": {}}), "tools"),
            (json!({"max_tokens": "many"}), "max_tokens"),
            (json!({"stop_sequences": "x"}), "stop_sequences"),
            (json!({"thinking": "on"}), "thinking"),
            (json!({"thinking": {"type": "deep"}}), "thinking.type"),
            (json!({"thinking": {"budget_tokens": 2048}}), "thinking.type"),
            (json!({"thinking": {"type": "adaptive", "display": "full"}}), "thinking.display"),
            (json!({"thinking": {"type": "enabled", "display": 1}}), "thinking.display"),
            (json!({"system": [{"type": "tool_addition"}]}), "system[0].type"),
            (json!({"output_config": {"format": {"type": "xml"}}}), "output_config.format"),
        ] {
            let error = read(&with(&extra)).unwrap_err();
            assert_eq!((error.status, error.param.as_deref()), (400, Some(param)), "{extra}");
        }
    }

    #[test]
    fn a_turn_to_continue_is_noted() {
        let read = read(&with(
            &json!({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "{"}]}),
        ));
        assert_eq!(read.unwrap().ignored_fields[0].field, "messages.prefill");
    }

    #[test]
    fn unknown_fields_are_noted() {
        let read = read(&with(&json!({"magic": 1, "context_management": {"edits": []}, "mcp_servers": []})))
            .unwrap();
        let fields: Vec<String> = read.ignored_fields.into_iter().map(|note| note.field).collect();
        assert_eq!(fields, ["magic", "context_management", "mcp_servers"]);
    }
}
