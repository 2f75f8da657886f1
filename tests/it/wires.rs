//! Responses and Messages: what real clients sent becomes the chat request that asks the same, and whatever a
//! turn holds, a client of either wire rebuilds it from the events, and from the JSON.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};
use tool_call_parser::{Options, Tools};
use translate::messages::{AskedMessage, MessageEvents, ShownThinking, read_message};
use translate::responses::{AskedResponse, RecalledItems, ResponseEvents, read_response};
use translate::{
    ChatSink, Head, Ids, IgnoredField, PlainRules, PlainTurn, Reply, ReplyChoice, ReplyRules, Sealer,
    interpret_completion,
};
use wire::turn::{FinishReason, ToolCall, Turn, TurnEnd, TurnEvent, Usage};
use wire::{ApiError, Completion, ErrorCode};

use crate::support::accumulate::{self, Rules};
use crate::support::other_wires::{self, Told};

fn sealer() -> Arc<Sealer> {
    Arc::new(Sealer::new(b"a secret of these tests"))
}

fn ids() -> Ids {
    Ids::new(7, HashSet::new())
}

/// The request that the model gets, and the fields that it does not get.
fn golden(chat: &str, ignored_fields: &[IgnoredField]) -> String {
    let chat: Value = serde_json::from_str(chat).expect("the chat request is JSON");
    let notes: Vec<&str> = ignored_fields.iter().map(|note| note.field.as_str()).collect();
    format!("passed by: {notes:?}\n{}", serde_json::to_string_pretty(&chat).unwrap())
}

#[test]
fn recorded_responses_requests() {
    insta::glob!("../../fixtures/clients/responses", "*.json", |path| {
        let body = std::fs::read(path).unwrap();
        let read = read_response(&body, &RecalledItems::default(), &sealer()).unwrap();
        assert!(read.asked.stream && read.asked.model.starts_with("gpt-"));
        insta::assert_snapshot!(golden(&read.chat, &read.ignored_fields));
    });
}

#[test]
fn recorded_messages_requests() {
    insta::glob!("../../fixtures/clients/messages", "*.json", |path| {
        let body = std::fs::read(path).unwrap();
        let read = read_message(&body, &sealer()).unwrap();
        assert!(read.asked.stream && read.asked.model == "gpt-oss-120b");
        insta::assert_snapshot!(golden(&read.chat, &read.ignored_fields));
    });
}

fn asked_response(sealed_reasoning: bool) -> Arc<AskedResponse> {
    let include = if sealed_reasoning { json!(["reasoning.encrypted_content"]) } else { json!([]) };
    let body = json!({"model": "m", "input": "hi", "include": include, "tools": [
        {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "spawn"}]},
        {"type": "custom", "name": "patch"},
        {"type": "tool_search", "execution": "client"}]});
    let body = serde_json::to_vec_pretty(&body).unwrap();
    Arc::new(read_response(&body, &RecalledItems::default(), &sealer()).unwrap().asked)
}

fn asked_message(thinking: ShownThinking) -> AskedMessage {
    AskedMessage { model: "m".into(), stream: true, thinking }
}

/// The steps of the first choice of a whole reply.
fn steps_of(reply: &Reply) -> Vec<TurnEvent> {
    reply.clone().keep_first_choice().into_events().into_iter().map(|step| step.event).collect()
}

/// A whole reply as the chunks of a stream.
fn chunks_of(reply: &Reply) -> Vec<u8> {
    let mut out = Vec::new();
    ChatSink::new(Some("reasoning_content"), true).write_reply(reply.clone(), &mut out);
    out
}

/// The events of a whole reply on one wire, and the object that is the reply without a stream.
fn responses_of(reply: &Reply, asked: Arc<AskedResponse>) -> (String, Value) {
    let mut events = ResponseEvents::new(asked, sealer(), ids(), 1);
    let mut out = Vec::new();
    events.begin(&mut out);
    events.heartbeat(&mut out);
    steps_of(reply).iter().for_each(|event| events.write(event, &mut out));
    let object = serde_json::from_str(events.finished_response().expect("it has ended")).unwrap();
    (String::from_utf8(out).unwrap(), object)
}

fn messages_of(reply: &Reply, thinking: ShownThinking) -> (String, Value) {
    let mut events = MessageEvents::new(asked_message(thinking), sealer(), ids(), 3);
    let mut out = Vec::new();
    events.begin(&mut out);
    events.heartbeat(&mut out);
    steps_of(reply).iter().for_each(|event| events.write(event, &mut out));
    let object = serde_json::from_str(events.message_json().expect("it has ended")).unwrap();
    (String::from_utf8(out).unwrap(), object)
}

/// The end of a turn in the names of each wire.
fn ends(reason: FinishReason) -> (&'static str, &'static str) {
    match reason {
        FinishReason::Stop => ("completed", "end_turn"),
        FinishReason::ToolCalls => ("completed", "tool_use"),
        FinishReason::Length => ("max_output_tokens", "max_tokens"),
        FinishReason::ContentFilter => ("content_filter", "refusal"),
    }
}

/// All three wires tell the same turn, in both forms.
fn all_wires_agree(reply: &Reply) {
    let rules = Rules { usage: Some(reply.usage.is_some()), ..Rules::default() };
    let chunks = chunks_of(reply);
    let chat = &accumulate::stream(&chunks, &rules).expect("flawless chunks").choices[&0];
    let calls: Vec<_> =
        chat.tool_calls.iter().map(|call| (call.name.clone(), call.arguments.clone())).collect();
    let (response_end, message_end) = ends(reply.choices[0].turn.finish.unwrap());
    let usage = reply.usage.map(|usage| (usage.prompt, usage.completion));
    let expected = |end: &str, usage, object| Told {
        reasoning: chat.reasoning.clone(),
        content: chat.content.clone() + &chat.refusal,
        calls: calls.clone(),
        end: end.to_owned(),
        usage,
        object,
    };
    let (stream, object) = responses_of(reply, Arc::default());
    assert_eq!(other_wires::responses(&stream), expected(response_end, usage, object));
    let (stream, object) = messages_of(reply, ShownThinking::Text);
    let usage = Some(usage.unwrap_or((3, 0)));
    assert_eq!(other_wires::messages(&stream), expected(message_end, usage, object));
}

/// vLLM's answer to a captured request, as a reply.
fn captured(path: &Path) -> Option<Reply> {
    let reply = std::fs::read_to_string(path).ok()?;
    let request =
        std::fs::read_to_string(path.to_str()?.replace(".resp.http", ".req.http")).unwrap_or_default();
    let request: Value = request
        .split_once("\r\n\r\n")
        .and_then(|(_, body)| serde_json::from_str(body).ok())
        .unwrap_or_default();
    let json = &reply[reply.find("{\"id\"")?..=reply.rfind('}')?];
    let completion = Completion::parse(json, &[]).ok()?;
    let rules = ReplyRules {
        tools: Arc::new(Tools::from_json(&request["tools"].to_string()).unwrap_or_default()),
        options: Options::for_whole_reply(),
        response_template: None,
        token_limit: request["max_tokens"].as_u64(),
    };
    let mut reply = interpret_completion(completion, &rules, &mut ids());
    reply.choices.truncate(1);
    Some(reply)
}

fn captures() -> BTreeMap<String, Reply> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/vllm");
    let sets = std::fs::read_dir(root).unwrap().map(|set| set.unwrap().path());
    let files = sets.flat_map(|set| std::fs::read_dir(set).unwrap().map(|file| file.unwrap().path()));
    let named = files.filter(|file| file.to_str().is_some_and(|name| name.ends_with("nonstream.resp.http")));
    let reply = |path: &Path| {
        let set = path.parent()?.file_name()?.to_str()?.to_owned();
        let name = path.file_name()?.to_str()?.replace(".nonstream.resp.http", "");
        Some((format!("{set}/{name}"), captured(path)?))
    };
    named.filter_map(|path| reply(&path)).collect()
}

#[test]
fn captured_turns_are_equal_everywhere() {
    let captures = captures();
    assert!(captures.len() > 150, "only {} captures were read", captures.len());
    for (name, reply) in &captures {
        let agree = std::panic::catch_unwind(|| all_wires_agree(reply));
        assert!(agree.is_ok(), "{name}: {reply:#?}");
    }
}

#[test]
fn the_events_of_captured_replies() {
    let captures = captures();
    for name in ["ok-call", "bare-json", "good-then-bad"] {
        let reply = &captures[&format!("v0.32.0-scripted-hermes-qwen3/{name}")];
        insta::assert_snapshot!(format!("responses-{name}"), responses_of(reply, asked_response(false)).0);
        insta::assert_snapshot!(format!("messages-{name}"), messages_of(reply, ShownThinking::Text).0);
    }
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), any::<String>(), "[a-z<>{}\"\\\\\n\r\t\u{2028}🙂é]{0,40}"]
}

fn call() -> impl Strategy<Value = ToolCall> {
    ("[a-zA-Z0-9_-]{1,20}", prop::collection::btree_map(any::<String>(), any::<String>(), 0..3)).prop_map(
        |(name, arguments)| {
            let arguments = serde_json::to_string(&arguments).unwrap();
            ToolCall { id: None, name, arguments, problems: vec![] }
        },
    )
}

fn reply() -> impl Strategy<Value = Reply> {
    let reason = prop_oneof![Just("stop"), Just("length"), Just("content_filter")];
    let usage = prop::option::of((any::<u32>(), any::<u16>(), any::<u32>()));
    (text(), text(), prop::collection::vec(call(), 0..4), reason, usage).prop_map(
        |(reasoning, content, mut calls, reason, usage)| {
            for (place, call) in calls.iter_mut().enumerate() {
                call.id = Some(format!("callx{place:05}"));
            }
            let finish = Some(FinishReason::from_upstream(Some(reason), !calls.is_empty()));
            let turn = Turn { reasoning, content, calls, finish, ..Turn::default() };
            let usage = usage.map(|(prompt, completion, cached)| Usage {
                prompt: prompt.into(),
                completion: completion.into(),
                cached: Some(u64::from(cached).min(prompt.into())),
                ..Usage::default()
            });
            Reply {
                head: Head { id: "chatcmpl-1".into(), created: 1, model: "m".into(), tags: vec![] },
                choices: vec![ReplyChoice { turn, ..ReplyChoice::default() }],
                usage,
                kept: vec![],
                earlier_prompts: 0,
            }
        },
    )
}

/// The turn as it comes live: texts in pieces.
fn as_events(reply: &Reply, cut: usize) -> Vec<TurnEvent> {
    let pieces = |text: &str| -> Vec<String> {
        let letters: Vec<char> = text.chars().collect();
        letters.chunks(cut).map(|piece| piece.iter().collect()).collect()
    };
    let turn = &reply.choices[0].turn;
    let reasoning = pieces(&turn.reasoning).into_iter().map(TurnEvent::Reasoning);
    let content = pieces(&turn.content).into_iter().map(TurnEvent::Content);
    let calls = turn.calls.iter().cloned().map(TurnEvent::ToolCall);
    let finish = TurnEvent::Finish(TurnEnd::new(turn.finish.unwrap(), reply.usage));
    reasoning.chain(content).chain(calls).chain([finish]).collect()
}

proptest! {
    #[test]
    fn turns_are_equal_on_every_wire(reply in reply()) {
        all_wires_agree(&reply);
    }

    #[test]
    fn live_turns_equal_whole_ones(reply in reply(), cut in 1usize..5) {
        let (mut response, mut message) = (
            ResponseEvents::new(Arc::default(), sealer(), ids(), 1),
            MessageEvents::new(asked_message(ShownThinking::Text), sealer(), ids(), 3),
        );
        let (mut responses, mut messages) = (Vec::new(), Vec::new());
        response.begin(&mut responses);
        message.begin(&mut messages);
        for event in as_events(&reply, cut) {
            response.write(&event, &mut responses);
            message.write(&event, &mut messages);
        }
        let (_, whole) = responses_of(&reply, Arc::default());
        prop_assert_eq!(other_wires::responses(&String::from_utf8(responses).unwrap()).object, whole);
        let (_, whole) = messages_of(&reply, ShownThinking::Text);
        prop_assert_eq!(other_wires::messages(&String::from_utf8(messages).unwrap()).object, whole);
    }

    #[test]
    fn a_servers_chunks_are_the_turn(reply in reply()) {
        let text = String::from_utf8(chunks_of(&reply)).unwrap();
        let mut reader = PlainTurn::new(PlainRules { shows_reasoning: true, ..PlainRules::default() });
        let mut steps = Vec::new();
        for payload in text.split_terminator("\n\n").filter_map(|frame| frame.strip_prefix("data: ")) {
            if payload != "[DONE]" {
                reader.push(payload, &mut steps).unwrap();
            }
        }
        reader.close(false, &mut steps);
        let turn: Turn = steps.into_iter().map(|step| step.event).collect();
        prop_assert_eq!(turn, Turn { usage: reply.usage, ..reply.choices[0].turn.clone() });
    }

    #[test]
    fn conversations_make_the_round_trip(reply in reply()) {
        let turn = &reply.choices[0].turn;
        let (_, response) = responses_of(&reply, asked_response(true));
        let mut input = response["output"].clone();
        for item in input.as_array_mut().unwrap() {
            if item["type"] == "reasoning" {
                item.as_object_mut().unwrap().remove("content");
            }
        }
        let body = json!({"model": "m", "input": input}).to_string();
        let read = read_response(body.as_bytes(), &RecalledItems::default(), &sealer());
        came_back(read.map(|read| read.chat), turn)?;
        for thinking in [ShownThinking::Text, ShownThinking::Sealed] {
            let (_, message) = messages_of(&reply, thinking);
            let body = json!({"model": "m", "messages": [{"role": "assistant", "content": message["content"]}]}).to_string();
            came_back(read_message(body.as_bytes(), &sealer()).map(|read| read.chat), turn)?;
        }
    }

    #[test]
    fn no_request_breaks_a_reader(text in "[ -~]{0,60}", key in "[a-z_]{1,12}") {
        let values = [json!(text), json!(7), json!([text]), json!({key.clone(): text}), json!([{ "type": key, "role": "user" }])];
        for field in ["input", "tools", "tool_choice", "messages", "system", "reasoning", "text", "thinking", "include", "instructions", &key] {
            for value in &values {
                let mut body = json!({"model": "m", "input": "hi", "messages": [{"role": "user", "content": "hi"}]});
                body[field] = value.clone();
                let body = body.to_string();
                for error in [read_response(body.as_bytes(), &RecalledItems::default(), &sealer()).err(), read_message(body.as_bytes(), &sealer()).err()].into_iter().flatten() {
                    prop_assert!((400..500).contains(&error.status) && error.param.is_some(), "{body}: {error:?}");
                }
            }
        }
        prop_assert!(read_response(text.as_bytes(), &RecalledItems::default(), &sealer()).is_err());
    }

    #[test]
    fn wrong_types_are_named(text in "[ -~]{0,60}", key in "[a-z_]{1,12}") {
        let values = [json!(text), json!(7), json!([[text]]), json!({key: text})];
        for field in ["store", "stream", "background", "truncation", "include", "parallel_tool_calls"] {
            for value in &values {
                let body = json!({"model": "m", "input": "hi", field: value}).to_string();
                let error = read_response(body.as_bytes(), &RecalledItems::default(), &sealer()).unwrap_err();
                prop_assert!(error.status == 400 && error.param.is_some_and(|param| param.starts_with(field)), "{body}");
            }
        }
        for value in &values {
            let result = json!({"type": "tool_result", "tool_use_id": "c", "is_error": value});
            let messages = json!([{"role": "user", "content": [result]}]);
            for (body, param) in [
                (json!({"model": "m", "messages": messages}), "messages[0].content[0].is_error"),
                (json!({"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": value}), "stream"),
            ] {
                let error = read_message(body.to_string().as_bytes(), &sealer()).unwrap_err();
                prop_assert_eq!(error.param.as_deref(), Some(param));
            }
        }
    }
}

/// `chat`: of a conversation that has only this turn. A conversation without messages is refused.
fn came_back(chat: Result<String, ApiError>, turn: &Turn) -> Result<(), TestCaseError> {
    let Ok(chat) = chat else {
        prop_assert!(turn.reasoning.is_empty() && turn.is_blank());
        return Ok(());
    };
    let chat: Value = serde_json::from_str(&chat).unwrap();
    let message = &chat["messages"][0];
    prop_assert_eq!(message["reasoning_content"].as_str().unwrap_or_default(), &turn.reasoning);
    prop_assert_eq!(message["content"].as_str().unwrap_or_default(), &turn.content);
    let calls: Vec<_> = turn
        .calls
        .iter()
        .map(|call| (call.name.as_str(), serde_json::from_str::<Value>(&call.arguments).unwrap()))
        .collect();
    let came: Vec<_> = message["tool_calls"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|call| {
            let function = &call["function"];
            (
                function["name"].as_str().unwrap(),
                serde_json::from_str::<Value>(function["arguments"].as_str().unwrap()).unwrap(),
            )
        })
        .collect();
    prop_assert_eq!(came, calls);
    Ok(())
}

fn with_calls(calls: &[(&str, &str)]) -> Reply {
    let calls = calls.iter().map(|(name, arguments)| ToolCall {
        id: Some("call12345".into()),
        name: (*name).into(),
        arguments: (*arguments).into(),
        problems: vec![],
    });
    let turn = Turn { calls: calls.collect(), finish: Some(FinishReason::ToolCalls), ..Turn::default() };
    Reply { choices: vec![ReplyChoice { turn, ..ReplyChoice::default() }], ..Reply::default() }
}

#[test]
fn calls_keep_the_clients_names() {
    let reply = with_calls(&[
        ("agents__spawn", "{}"),
        ("patch", r#"{"input":"*** Begin\n"}"#),
        ("patch", r#"{"patch":"one text"}"#),
        ("patch", r#"{"a":"two","b":"texts"}"#),
        ("tool_search", r#"{"query":"q"}"#),
    ]);
    let (stream, object) = responses_of(&reply, asked_response(false));
    let told = other_wires::responses(&stream);
    let output = object["output"].as_array().unwrap();
    let kinds: Vec<&str> = output.iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(
        kinds,
        ["function_call", "custom_tool_call", "custom_tool_call", "custom_tool_call", "tool_search_call"]
    );
    assert_eq!((&output[0]["namespace"], &output[0]["name"]), (&json!("agents"), &json!("spawn")));
    let said: Vec<&str> = told.calls.iter().map(|(_, said)| said.as_str()).collect();
    assert_eq!(said, ["{}", "*** Begin\n", "one text", r#"{"a":"two","b":"texts"}"#, r#"{"query":"q"}"#]);
}

#[test]
fn nothing_follows_a_failure() {
    let error = ApiError::new(502, ErrorCode::BrokenReply, "it broke");
    let mut out = Vec::new();
    let mut events = ResponseEvents::new(asked_response(false), sealer(), ids(), 1);
    events.begin(&mut out);
    events.write(&TurnEvent::Content("par".into()), &mut out);
    events.fail("server_error", &error, &mut out);
    events.write(&TurnEvent::Finish(TurnEnd::new(FinishReason::Stop, None)), &mut out);
    let told = other_wires::responses(std::str::from_utf8(&out).unwrap());
    assert_eq!((told.end.as_str(), told.content.as_str()), ("failed:server_error", "par"));
    let mut out = Vec::new();
    let mut events = MessageEvents::new(asked_message(ShownThinking::Text), sealer(), ids(), 0);
    events.begin(&mut out);
    events.write(&TurnEvent::Content("par".into()), &mut out);
    events.fail(&error, "req_1", &mut out);
    events.write(&TurnEvent::Content("more".into()), &mut out);
    events.write(&TurnEvent::Finish(TurnEnd::new(FinishReason::Stop, None)), &mut out);
    assert_eq!(other_wires::messages(std::str::from_utf8(&out).unwrap()).end, "failed:api_error");
}

#[test]
fn unrequested_thinking_stays_here() {
    let turn = Turn {
        reasoning: "why".into(),
        content: "hi".into(),
        finish: Some(FinishReason::Stop),
        ..Turn::default()
    };
    let reply = Reply { choices: vec![ReplyChoice { turn, ..ReplyChoice::default() }], ..Reply::default() };
    let (_, message) = messages_of(&reply, ShownThinking::Nothing);
    assert_eq!(message["content"], json!([{"type": "text", "text": "hi"}]));
    let (stream, message) = messages_of(&reply, ShownThinking::Sealed);
    assert!(!stream.contains("why") && message["content"][0]["thinking"] == "");
}
