//! Checks the readers and the event sinks of the Responses and Messages APIs, for the fuzz targets and the
//! replay of their corpora. Compiled only for them.
//!
//! A violation panics, as both expect.
#![allow(clippy::missing_panics_doc, reason = "to panic is what an oracle is for")]

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::Value;

use super::messages::{MessageEvents, ReadMessage, read_message};
use super::responses::{
    AskedResponse, ReadResponse, RecalledItems, ResponseEvents, find_references, read_response,
};
use super::{Ids, IgnoredField, PlainRules, PlainTurn, Sealer};
use wire::turn::{FinishReason, ToolCall, TurnEnd, TurnEvent, Usage};
use wire::{ApiError, ChatRequest, ErrorCode};

fn sealer() -> Arc<Sealer> {
    Arc::new(Sealer::new(b"a secret of the oracle"))
}

/// Checks one body of `POST /v1/responses`, and a turn that answers it.
pub fn check_response_request(body: &[u8]) {
    let wanted = find_references(body);
    match read_response(body, &RecalledItems::default(), &sealer()) {
        Err(error) => is_the_clients_fault(&error),
        Ok(ReadResponse { chat, asked, ignored_fields }) => {
            assert!(wanted.is_ok(), "it was read, but not what it names");
            is_chat_request(body, &chat, &ignored_fields);
            responses_hold(&every_event(body), Arc::new(asked));
        }
    }
}

/// Checks one body of `POST /v1/messages`, and a turn that answers it.
pub fn check_message_request(body: &[u8]) {
    match read_message(body, &sealer()) {
        Err(error) => is_the_clients_fault(&error),
        Ok(ReadMessage { chat, asked, ignored_fields }) => {
            is_chat_request(body, &chat, &ignored_fields);
            messages_hold(&every_event(body), asked);
        }
    }
}

/// Checks the events of one turn in both APIs, and the chunks that lie in the input.
pub fn check_wire_events(input: &[u8]) {
    let mut turn = PlainTurn::new(PlainRules { shows_reasoning: true, ..PlainRules::default() });
    let mut steps = Vec::new();
    for line in input.split(|byte| *byte == b'\n').filter_map(|line| std::str::from_utf8(line).ok()) {
        // A line that is not a chunk would end a stream; here the next one follows.
        let _ = turn.push(line, &mut steps);
    }
    turn.close(false, &mut steps);
    let mut read: Vec<TurnEvent> = steps.into_iter().map(|step| step.event).collect();
    read.retain(|event| !matches!(event, TurnEvent::ToolCall(call) if !is_object(&call.arguments)));
    for events in [read, every_event(input)] {
        responses_hold(&events, Arc::default());
        for thinking in [super::messages::ShownThinking::Text, super::messages::ShownThinking::Sealed] {
            let asked = super::messages::AskedMessage { thinking, ..Default::default() };
            messages_hold(&events, asked);
        }
    }
}

fn is_the_clients_fault(error: &ApiError) {
    assert!((400..500).contains(&error.status), "{error:?}");
    assert!(error.param.is_some() || error.code == Some(ErrorCode::InvalidJson), "{error:?}");
}

/// Checks that the model gets a chat request, and that every ignored field has a name. Values inside a body
/// are passed on unchanged, so the server must refuse a wrong one (a control character in a string).
fn is_chat_request(body: &[u8], chat: &str, ignored_fields: &[IgnoredField]) {
    if serde_json::from_slice::<Value>(body).is_ok() {
        let is_object = match serde_json::from_str::<Value>(chat) {
            Ok(chat) => chat.is_object(),
            // Tools stand a few levels deeper in it.
            Err(error) => error.to_string().starts_with("recursion limit exceeded"),
        };
        assert!(is_object, "{chat}");
    }
    assert!(ChatRequest::parse(chat.as_bytes()).is_ok(), "{chat}");
    assert!(ignored_fields.iter().all(|note| !note.field.is_empty()), "{ignored_fields:?}");
}

fn is_object(json: &str) -> bool {
    serde_json::from_str::<Value>(json).is_ok_and(|value| value.is_object())
}

/// Returns a turn from bytes: each piece begins with its kind.
fn every_event(input: &[u8]) -> Vec<TurnEvent> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut events: Vec<TurnEvent> =
        input.chunks(24).take(40).map(|piece| event(piece[0], text(&piece[1..]))).collect();
    let reason =
        [FinishReason::Stop, FinishReason::ToolCalls, FinishReason::Length, FinishReason::ContentFilter];
    let usage = (!input.len().is_multiple_of(3)).then_some(Usage {
        prompt: 7,
        completion: 2,
        cached: Some(3),
        cache_written: Some(1),
        reasoning: None,
    });
    events.push(TurnEvent::Finish(TurnEnd::new(reason[input.len() % 4], usage)));
    events
}

fn event(kind: u8, text: String) -> TurnEvent {
    match kind % 4 {
        0 => TurnEvent::Reasoning(text),
        1 => TurnEvent::Content(text),
        2 => TurnEvent::Progress(text),
        _ => {
            let name = ["read", "patch", "tool_search"][usize::from(kind / 4 % 3)].to_owned();
            let space = if kind & 0x80 == 0 { "" } else { "\r\n" };
            let arguments = format!("{{{space}\"input\": {}}}", serde_json::json!(text));
            TurnEvent::ToolCall(ToolCall { id: Some("call_1".to_owned()), name, arguments, problems: vec![] })
        }
    }
}

/// What a client must rebuild.
#[derive(Default)]
struct Expected {
    reasoning: String,
    content: String,
    refusal: String,
    /// Content and refusals, in order.
    text: String,
    calls: usize,
}

fn expected(events: &[TurnEvent]) -> Expected {
    let mut expected = Expected::default();
    for event in events {
        match event {
            TurnEvent::Reasoning(text) => expected.reasoning += text,
            TurnEvent::Content(text) => {
                expected.content += text;
                expected.text += text;
            }
            TurnEvent::Refusal(text) => {
                expected.refusal += text;
                expected.text += text;
            }
            TurnEvent::ToolCall(_) => expected.calls += 1,
            _ => {}
        }
    }
    expected
}

/// Returns the events of a stream: each frame has one name and one line of JSON of this type.
fn frames(out: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(out).unwrap_or_default();
    assert_eq!(text.len(), out.len(), "what leaves is text");
    let frames = text.split_terminator("\n\n").map(|frame| {
        let (name, data) = frame.split_once('\n').unwrap_or_default();
        let data: Value =
            serde_json::from_str(data.strip_prefix("data: ").unwrap_or_default()).unwrap_or_default();
        assert_eq!(data["type"].as_str(), name.strip_prefix("event: "), "{frame:?}");
        data
    });
    frames.collect()
}

fn text_of(frames: &[Value], kind: &str, path: [&str; 2]) -> String {
    let of_kind = frames.iter().filter(|frame| frame["type"] == kind);
    let texts = of_kind.filter_map(|frame| {
        if path[0].is_empty() { &frame[path[1]] } else { &frame[path[0]][path[1]] }.as_str()
    });
    texts.collect()
}

fn responses_hold(turn: &[TurnEvent], asked: Arc<AskedResponse>) {
    let mut events = ResponseEvents::new(asked, sealer(), Ids::new(1, HashSet::new()), 1);
    let mut out = Vec::new();
    events.begin(&mut out);
    for event in turn {
        events.heartbeat(&mut out);
        events.write(event, &mut out);
    }
    events.write(&TurnEvent::Content("after the end".to_owned()), &mut out);
    let frames = frames(&out);
    let expected = expected(turn);
    assert!(
        frames.iter().zip(0_u64..).all(|(frame, number)| frame["sequence_number"] == number),
        "{frames:?}"
    );
    assert_eq!(text_of(&frames, "response.reasoning_text.delta", ["", "delta"]), expected.reasoning);
    assert_eq!(text_of(&frames, "response.output_text.delta", ["", "delta"]), expected.content);
    assert_eq!(text_of(&frames, "response.refusal.delta", ["", "delta"]), expected.refusal);
    let done: Vec<&Value> =
        frames.iter().filter(|frame| frame["type"] == "response.output_item.done").collect();
    let called = done
        .iter()
        .filter(|frame| frame["item"]["type"].as_str().is_some_and(|kind| kind.ends_with("_call")));
    assert_eq!(called.count(), expected.calls);
    let last = frames.last().map_or(&Value::Null, |frame| &frame["response"]);
    assert_eq!(last["output"].as_array().map(Vec::len), Some(done.len()), "{last}");
    assert_eq!(
        serde_json::from_str::<Value>(events.finished_response().unwrap_or_default()).ok().as_ref(),
        Some(last)
    );
}

fn messages_hold(turn: &[TurnEvent], asked: super::messages::AskedMessage) {
    let shown = asked.thinking == super::messages::ShownThinking::Text;
    let mut events = MessageEvents::new(asked, sealer(), Ids::new(1, HashSet::new()), 1);
    let mut out = Vec::new();
    events.begin(&mut out);
    for event in turn {
        events.heartbeat(&mut out);
        events.write(event, &mut out);
    }
    events.write(&TurnEvent::Content("after the end".to_owned()), &mut out);
    let frames = frames(&out);
    let Expected { reasoning, text, calls, .. } = expected(turn);
    let reasoning = if shown { reasoning } else { String::new() };
    assert_eq!(text_of(&frames, "content_block_delta", ["delta", "thinking"]), reasoning);
    assert_eq!(text_of(&frames, "content_block_delta", ["delta", "text"]), text);
    let begun = frames.iter().filter(|frame| frame["type"] == "content_block_start");
    assert_eq!(begun.filter(|frame| frame["content_block"]["type"] == "tool_use").count(), calls);
    assert_eq!(frames.last().map(|frame| &frame["type"]), Some(&Value::from("message_stop")));
    assert!(is_object(events.message_json().unwrap_or_default()));
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::time::{Duration, Instant};

    use rand::rngs::StdRng;
    use rand::seq::IndexedRandom as _;
    use rand::{Rng as _, SeedableRng as _};
    use serde_json::json;

    use super::*;

    fn files(folder: &str) -> Vec<Vec<u8>> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder);
        fs::read_dir(folder).unwrap().map(|entry| fs::read(entry.unwrap().path()).unwrap()).collect()
    }

    /// A target of the fuzzer: its name, its oracle, and requests that real clients sent.
    type Target = (&'static str, fn(&[u8]), &'static str);

    const TARGETS: [Target; 3] = [
        ("responses", check_response_request, "fixtures/clients/responses"),
        ("messages", check_message_request, "fixtures/clients/messages"),
        ("wire_events", check_wire_events, "fuzz/corpus/wire_events"),
    ];

    /// What fuzzing has found stays found, and what real clients sent holds.
    #[test]
    fn wires_hold_on_their_corpora() {
        for (name, check, recorded) in TARGETS {
            let seeds = files(&format!("fuzz/corpus/{name}"));
            assert!(seeds.len() >= 10, "only {} inputs of {name}", seeds.len());
            seeds.iter().chain(&files(recorded)).for_each(|input| check(input));
        }
    }

    /// Random changes of all of these: some here; for longer with `just mutate TARGET SECONDS`.
    #[test]
    fn wires_hold_on_mutations() {
        let target = std::env::var("RESPOOL_TARGET").unwrap_or_default();
        let seconds = std::env::var("RESPOOL_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
        for (name, check, recorded) in TARGETS.into_iter().filter(|(name, ..)| name.contains(&target)) {
            let seeds: Vec<Vec<u8>> =
                files(&format!("fuzz/corpus/{name}")).into_iter().chain(files(recorded)).collect();
            let mut random = StdRng::seed_from_u64(seconds.map_or(7, |_| testing::seed::seed()));
            let (began, mut inputs) = (Instant::now(), 0_u64);
            let until = seconds.map(Duration::from_secs);
            while until.map_or(inputs < 400, |until| began.elapsed() < until) {
                let input = mutated(&seeds, &mut random);
                inputs += 1;
                let held = std::panic::catch_unwind(|| check(&input));
                assert!(held.is_ok(), "{name}: {}", String::from_utf8_lossy(&input));
            }
            println!("{name}: {inputs} inputs in {:?}", began.elapsed());
        }
    }

    fn mutated(seeds: &[Vec<u8>], random: &mut StdRng) -> Vec<u8> {
        let mut input = seeds.choose(random).cloned().unwrap_or_default();
        for _ in 0..random.random_range(1..6) {
            let other = seeds.choose(random).cloned().unwrap_or_default();
            input = match (serde_json::from_slice(&input), random.random_range(0..5)) {
                (Ok(value), 1..) => with_other_value(value, &other, random),
                _ => with_other_bytes(input, &other, random),
            };
        }
        input
    }

    /// One value of the document becomes another.
    fn with_other_value(mut value: Value, other: &[u8], random: &mut StdRng) -> Vec<u8> {
        let lent = serde_json::from_slice(other).ok().and_then(|other: Value| {
            let places = places(&other, String::new());
            other.pointer(places.choose(random)?).cloned()
        });
        let plain = [
            json!(null),
            json!(true),
            json!(-1),
            json!(1e300),
            json!(""),
            json!([]),
            json!({}),
            json!([[]]),
            json!({"type": "text"}),
            json!("\u{0}\u{2028}<|x|>"),
            json!([{"type": "message"}]),
        ];
        let new =
            lent.filter(|_| random.random()).or_else(|| plain.choose(random).cloned()).unwrap_or_default();
        let places = places(&value, String::new());
        if let Some(place) = places.choose(random).and_then(|place| value.pointer_mut(place)) {
            *place = new;
        }
        value.to_string().into_bytes()
    }

    /// The pointers to all values of a document.
    fn places(value: &Value, at: String) -> Vec<String> {
        let escaped = |key: &str| key.replace('~', "~0").replace('/', "~1");
        let inner: Vec<(String, &Value)> = match value {
            Value::Object(fields) => fields.iter().map(|(key, value)| (escaped(key), value)).collect(),
            Value::Array(items) => {
                items.iter().enumerate().map(|(place, item)| (place.to_string(), item)).collect()
            }
            _ => vec![],
        };
        let below: Vec<String> =
            inner.into_iter().flat_map(|(key, value)| places(value, format!("{at}/{key}"))).collect();
        [vec![at], below].concat()
    }

    /// Some bytes go, change, or come from another input.
    fn with_other_bytes(mut input: Vec<u8>, other: &[u8], random: &mut StdRng) -> Vec<u8> {
        let at = random.random_range(0..=input.len());
        let end = (at + random.random_range(0..8)).min(input.len());
        let from = random.random_range(0..=other.len());
        let to = (from + random.random_range(0..40)).min(other.len());
        input.splice(at..end, other[from..to].iter().copied());
        input
    }
}
