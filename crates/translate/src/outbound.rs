//! Edits the parts of a request that this upstream refuses, or reads under another name.
//!
//! The differences between vLLM's versions were observed on real servers (docs/captures.md). Unchanged parts
//! keep their bytes; a request that needs no change is sent unchanged. Called by `relay`.

use std::borrow::Cow;
use std::collections::HashMap;

use super::ids::{may_hold_kimis, original_id};
use tool_call_parser::mended_object;
use wire::{
    ChatRequest, Message, Object, ServerTraits, array_elements, decode_string, encode_string, is_empty_array,
};

/// The name of the parameter for the effort of reasoning.
const EFFORT_KEY: &str = "reasoning_effort";

/// The names under which reasoning may stand in the history.
const REASONING: [&str; 2] = ["reasoning", "reasoning_content"];

/// The form in which a request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outbound {
    /// Whole: `stream: false`, no `stream_options`.
    Whole,
    /// Streamed, with usage.
    Streamed,
    /// As the client asked.
    AsAsked,
}

/// Returns the field in which a version reads reasoning in the history; both fields for an unknown version.
fn reasoning_keys(target: &ServerTraits) -> &'static [&'static str] {
    match target.version {
        Some(version) if version <= (0, 15) => &["reasoning_content"],
        Some(_) => &["reasoning"],
        None => &["reasoning", "reasoning_content"],
    }
}

/// Edits the request for this upstream and returns the names of the edits, for the log. Without an edit, the
/// client's bytes are sent. `raw`: ask for unparsed text, so that respool reads the calls itself.
pub fn edit_request(
    request: &mut ChatRequest<'_>,
    how: Outbound,
    raw: bool,
    target: &ServerTraits,
) -> Vec<&'static str> {
    let mut edits = Vec::new();
    let mut note = |done: bool, name: &'static str| {
        if done {
            edits.push(name);
        }
    };
    let undescribed = request.functions.iter().any(|function| !function.is_described);
    let object = &mut request.object;
    note(set_stream_fields(object, how), "stream");
    note(remove_empty_tools(object), "empty_tools");
    note(undescribed && add_tool_descriptions(object), "tool_description");
    note(adapt_reasoning_effort(object, target), "reasoning_effort");
    note(raw && request_unparsed(object), "raw");
    note(edit_messages(request, target), "messages");
    edits
}

/// Returns true when the edits depend on the upstream's version.
pub fn needs_version(request: &ChatRequest<'_>) -> bool {
    let effort = request.object.string(EFFORT_KEY);
    let odd_effort = effort.is_some_and(|effort| !matches!(effort.as_str(), "low" | "medium" | "high"));
    let has = |message: &Message<'_>, key| message.object.get(key).is_some();
    odd_effort
        || request
            .messages
            .iter()
            .any(|message| has(message, "reasoning") || has(message, "reasoning_content"))
}

fn set_stream_fields(object: &mut Object<'_>, how: Outbound) -> bool {
    match how {
        // All versions of vLLM refuse it.
        Outbound::AsAsked => object.get("stream_options").is_some() && object.remove("stream_options"),
        Outbound::Whole => {
            let streamed = object.get_raw("stream").is_some_and(|stream| stream != "false");
            if streamed {
                object.set("stream", "false");
            }
            object.remove("stream_options") || streamed
        }
        Outbound::Streamed => {
            let options =
                object.get("stream_options").and_then(|text| Object::parse(text).ok()).unwrap_or_default();
            if object.is_true("stream") && options.is_true("include_usage") {
                return false;
            }
            let mut options = options.clone();
            options.set("include_usage", "true");
            let options = options.to_json();
            object.set("stream", "true");
            object.set("stream_options", options);
            true
        }
    }
}

/// Asks vLLM to leave calls in the text, with the special tokens that mark them. This also works on servers
/// that were started without tool flags (docs/captures.md).
fn request_unparsed(object: &mut Object<'_>) -> bool {
    object.set("tool_choice", "\"none\"");
    object.set("skip_special_tokens", "false");
    true
}

/// Removes an empty array of tools, which vLLM refuses since 0.20. All versions refuse a `tool_choice`
/// without tools.
fn remove_empty_tools(object: &mut Object<'_>) -> bool {
    if !object.get_raw("tools").is_some_and(is_empty_array) {
        return false;
    }
    object.remove("tool_choice");
    object.remove("parallel_tool_calls");
    object.remove("tools")
}

/// Adds empty descriptions: gpt-oss on vLLM up to 0.22 answers 400 to a tool without one.
fn add_tool_descriptions(object: &mut Object<'_>) -> bool {
    edit_tools(object, |function| {
        let missing = function.get("description").is_none();
        if missing {
            function.set("description", "\"\"");
        }
        missing
    })
}

/// Lets `edit` change the `function` object of each tool; `edit` returns whether it did.
fn edit_tools(object: &mut Object<'_>, edit: impl Fn(&mut Object<'_>) -> bool) -> bool {
    let Some(tools) = object.get("tools").and_then(array_elements) else { return false };
    let edited: Vec<Cow<'_, str>> = tools.into_iter().map(|tool| edit_function(tool, &edit)).collect();
    if edited.iter().all(|tool| matches!(tool, Cow::Borrowed(_))) {
        return false;
    }
    let tools = join_array(&edited);
    object.set("tools", tools);
    true
}

/// Edits the `function` object of a tool or a call; borrowed when nothing changed.
fn edit_function<'a>(text: &'a str, edit: &impl Fn(&mut Object<'_>) -> bool) -> Cow<'a, str> {
    let edited = || {
        let mut object = Object::parse(text).ok()?;
        let mut function = Object::parse(object.get_original("function")?).ok()?;
        if !edit(&mut function) {
            return None;
        }
        let function = function.to_json();
        object.set("function", function);
        Some(object.to_json())
    };
    edited().map_or(Cow::Borrowed(text), Cow::Owned)
}

/// Chooses an effort that the server knows: vLLM 0.10 to 0.17 knows low, medium and high, 0.18 to 0.20 also
/// none, later versions all.
fn adapt_reasoning_effort(object: &mut Object<'_>, target: &ServerTraits) -> bool {
    let Some(asked) = object.string(EFFORT_KEY) else { return false };
    let limited = target.version.is_some_and(|version| version <= (0, 20));
    let knows_none = target.version.is_some_and(|version| version >= (0, 18));
    let nearest = match asked.as_str() {
        "low" | "medium" | "high" => return false,
        _ if !limited => return false,
        "none" if knows_none => return false,
        "none" | "minimal" => "\"low\"",
        "xhigh" | "max" => "\"high\"",
        _ => return object.remove(EFFORT_KEY),
    };
    object.set(EFFORT_KEY, nearest);
    true
}

fn edit_messages(request: &mut ChatRequest<'_>, target: &ServerTraits) -> bool {
    let ids = original_ids(&request.messages);
    let edit = |message| {
        let edited = edit_message(message, target);
        if ids.is_empty() { edited } else { replace_ids(edited, &ids) }
    };
    if request.messages.iter().all(|message| matches!(edit(message), Cow::Borrowed(_))) {
        return false;
    }
    let messages = join_array(&request.messages.iter().map(edit).collect::<Vec<_>>());
    request.object.set("messages", messages);
    true
}

fn edit_message<'a>(message: &Message<'a>, target: &ServerTraits) -> Cow<'a, str> {
    let edited = message.has_role("assistant").then(|| edit_assistant(message, target)).flatten();
    edited.map_or_else(|| message.to_json(), |object| Cow::Owned(object.to_json()))
}

fn edit_assistant<'a>(message: &Message<'a>, target: &ServerTraits) -> Option<Object<'a>> {
    let has_reasoning = REASONING.iter().any(|key| message.object.get(key).is_some());
    let is_sound = message.has_sound_arguments(|calls| {
        let mut calls = array_elements(calls).unwrap_or_default().into_iter();
        calls.all(|call| matches!(edit_function(call, &mend_arguments), Cow::Borrowed(_)))
    });
    if is_sound && !has_reasoning {
        return None;
    }
    let mut object = message.object.clone();
    (rename_reasoning(&mut object, target) | (!is_sound && mend_calls(&mut object))).then_some(object)
}

/// Moves the reasoning to the fields that the upstream reads.
fn rename_reasoning(object: &mut Object<'_>, target: &ServerTraits) -> bool {
    let keys = reasoning_keys(target);
    let reasoning = REASONING.into_iter().find_map(|key| Some((key, object.get(key)?.to_owned())));
    let Some((_, text)) = reasoning else { return false };
    if keys.iter().all(|key| object.get(key).is_some()) {
        return false;
    }
    object.remove("reasoning");
    object.remove("reasoning_content");
    keys.iter().for_each(|key| object.set(key, text.clone()));
    true
}

/// Mends arguments, which must be a string with a JSON object: several vLLM versions answer 400 to every
/// request with a broken call in the history.
fn mend_calls(object: &mut Object<'_>) -> bool {
    let Some(calls) = object.get("tool_calls").and_then(array_elements) else { return false };
    let mended: Vec<Cow<'_, str>> =
        calls.into_iter().map(|call| edit_function(call, &mend_arguments)).collect();
    if mended.iter().all(|call| matches!(call, Cow::Borrowed(_))) {
        return false;
    }
    let calls = join_array(&mended);
    object.set("tool_calls", calls);
    true
}

fn mend_arguments(function: &mut Object<'_>) -> bool {
    let raw = function.get("arguments").unwrap_or_default();
    let text = decode_string(raw);
    if text.as_deref().is_some_and(is_strict_object) {
        return false;
    }
    let mended = encode_string(&mend_to_object(text.as_deref().unwrap_or(raw)));
    function.set("arguments", mended);
    true
}

/// Returns true for an object that every server accepts. The scanner of `wire` is less strict.
fn is_strict_object(text: &str) -> bool {
    text.trim_start().starts_with('{') && serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

/// Makes a JSON object of a text: the text itself or its mended form, `{}` for an empty text, and else an
/// object with the text under a telling name.
fn mend_to_object(text: &str) -> String {
    if text.trim().is_empty() || text == "null" {
        return "{}".to_owned();
    }
    if is_strict_object(text) {
        return text.to_owned();
    }
    let mended = mended_object(text);
    mended.unwrap_or_else(|| format!(r#"{{"invalid_arguments":{}}}"#, encode_string(text)))
}

/// Finds the ids to map back for models whose template needs their own.
fn original_ids(messages: &[Message<'_>]) -> HashMap<String, String> {
    let calls = messages.iter().filter_map(|message| message.object.get("tool_calls"));
    let calls = calls.filter(|calls| may_hold_kimis(calls)).filter_map(array_elements).flatten();
    let pair = |text: &str| {
        let call = Object::parse(text).ok()?;
        let name = Object::parse(call.get("function")?).ok()?.string("name")?;
        let id = call.string("id")?;
        Some((id.clone(), original_id(&id, &name)?))
    };
    calls.filter_map(pair).collect()
}

fn replace_ids<'a>(text: Cow<'a, str>, ids: &HashMap<String, String>) -> Cow<'a, str> {
    let Ok(object) = Object::parse(&text) else { return text };
    let mut changed = object.clone();
    if let Some(id) = object.string("tool_call_id").and_then(|id| ids.get(&id)) {
        changed.set("tool_call_id", encode_string(id));
    } else if let Some(calls) = object.get("tool_calls").and_then(array_elements) {
        let calls: Vec<_> = calls.into_iter().map(|call| replace_call_id(call, ids)).collect();
        changed.set("tool_calls", join_array(&calls));
    } else {
        return text;
    }
    Cow::Owned(changed.to_json())
}

fn replace_call_id<'a>(text: &'a str, ids: &HashMap<String, String>) -> Cow<'a, str> {
    let Ok(mut call) = Object::parse(text) else { return Cow::Borrowed(text) };
    let Some(id) = call.string("id").and_then(|id| ids.get(&id)) else { return Cow::Borrowed(text) };
    call.set("id", encode_string(id));
    Cow::Owned(call.to_json())
}

fn join_array(texts: &[Cow<'_, str>]) -> String {
    format!("[{}]", texts.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_on(target: &ServerTraits, how: Outbound, body: &str, expected: &str) {
        let mut request = ChatRequest::parse(body.as_bytes()).unwrap();
        let edits = edit_request(&mut request, how, false, target);
        let result = if edits.is_empty() { body.to_owned() } else { request.object.to_json() };
        assert_eq!(result, expected);
    }

    fn check(how: Outbound, body: &str, expected: &str) {
        check_on(&ServerTraits::default(), how, body, expected);
    }

    fn version(minor: u32) -> ServerTraits {
        ServerTraits { version: Some((0, minor)), ..ServerTraits::default() }
    }

    #[test]
    fn the_stream_fields_follow_the_route() {
        let body = r#"{"messages":[], "stream":true,"stream_options":{"include_usage":true},"x":1.0}"#;
        check(Outbound::Whole, body, r#"{"messages":[],"stream":false,"x":1.0}"#);
        check(Outbound::Streamed, body, body);
        check(Outbound::AsAsked, r#"{"messages":[],"stream_options":{}}"#, r#"{"messages":[]}"#);
        let bare = r#"{"messages":[],"stream":true}"#;
        check(
            Outbound::Streamed,
            bare,
            r#"{"messages":[],"stream":true,"stream_options":{"include_usage":true}}"#,
        );
        check(Outbound::Whole, r#"{"messages":[]}"#, r#"{"messages":[]}"#);
    }

    #[test]
    fn tools_that_a_server_would_refuse() {
        check(Outbound::AsAsked, r#"{"messages":[],"tools":[],"tool_choice":"auto"}"#, r#"{"messages":[]}"#);
        check(
            Outbound::AsAsked,
            r#"{"messages":[],"tools":[{"type":"function","function":{"name":"a"}},{"type":"function","function":{"name":"b","description":"B"}}]}"#,
            r#"{"messages":[],"tools":[{"type":"function","function":{"name":"a","description":""}},{"type":"function","function":{"name":"b","description":"B"}}]}"#,
        );
    }

    #[test]
    fn reasoning_effort_by_version() {
        let body = |effort: &str| format!(r#"{{"messages":[],"reasoning_effort":"{effort}"}}"#);
        for (minor, asked, sent) in [
            (13, "high", "high"),
            (13, "xhigh", "high"),
            (13, "none", "low"),
            (19, "none", "none"),
            (19, "max", "high"),
            (32, "max", "max"),
        ] {
            check_on(&version(minor), Outbound::AsAsked, &body(asked), &body(sent));
        }
        check_on(&version(13), Outbound::AsAsked, &body("odd"), r#"{"messages":[]}"#);
        check(Outbound::AsAsked, &body("odd"), &body("odd"));
    }

    #[test]
    fn broken_arguments_in_the_history_are_mended() {
        let body = |arguments: &str| {
            format!(
                r#"{{"messages":[{{"role":"assistant","tool_calls":[{{"id":"a","function":{{"name":"f","arguments":{arguments}}}}}]}}]}}"#
            )
        };
        for (received, sent) in [
            (r#""{\"a\": 1}""#, r#""{\"a\": 1}""#),
            (r#""""#, r#""{}""#),
            (r#"{"a":1}"#, r#""{\"a\":1}""#),
            (r#""{\"a""#, r#""{\"invalid_arguments\":\"{\\\"a\"}""#),
            ("null", r#""{}""#),
        ] {
            check(Outbound::AsAsked, &body(received), &body(sent));
        }
    }

    #[test]
    fn reasoning_goes_under_the_name_the_version_reads() {
        let body =
            |fields: &str| format!(r#"{{"messages":[{{"role":"assistant","content":"x",{fields}}}]}}"#);
        let sent = body(r#""reasoning_content":"why""#);
        check_on(&version(32), Outbound::AsAsked, &sent, &body(r#""reasoning":"why""#));
        check_on(&version(13), Outbound::AsAsked, &sent, &sent);
        check(Outbound::AsAsked, &sent, &body(r#""reasoning":"why","reasoning_content":"why""#));
    }

    #[test]
    fn kimis_ids_are_mapped_back() {
        check(
            Outbound::AsAsked,
            r#"{"messages":[{"role":"assistant","tool_calls":[{"id":"kimi3zabcdefghi","function":{"name":"ls","arguments":"{}"}}]},{"role":"tool","tool_call_id":"kimi3zabcdefghi","content":"x"}]}"#,
            r#"{"messages":[{"role":"assistant","tool_calls":[{"id":"functions.ls:3","function":{"name":"ls","arguments":"{}"}}]},{"role":"tool","tool_call_id":"functions.ls:3","content":"x"}]}"#,
        );
    }
}
