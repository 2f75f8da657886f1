//! Accumulators of Responses and Messages streams that are independent of `src/` and forgive nothing: they
//! hold a stream to the sequence that OpenAI and Anthropic document, and rebuild the turn from its deltas
//! alone.

use std::collections::BTreeSet;

use serde_json::{Value, json};

/// The turn that came.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Told {
    /// All reasoning.
    pub reasoning: String,
    /// All content.
    pub content: String,
    /// Name and arguments or free text of each call, in order.
    pub calls: Vec<(String, String)>,
    /// `completed`, `max_output_tokens`, … or `end_turn`, `tool_use`, …; `failed:CODE` for a failure.
    pub end: String,
    /// Prompt and completion tokens.
    pub usage: Option<(u64, u64)>,
    /// The whole object as the stream's events give it.
    pub object: Value,
}

fn events(body: &str) -> Vec<(String, Value)> {
    let frames = body.split_terminator("\n\n");
    frames
        .map(|frame| {
            let (name, data) = frame.split_once('\n').unwrap_or_else(|| panic!("one line: {frame}"));
            let name = name.strip_prefix("event: ").unwrap_or_else(|| panic!("no name: {frame}"));
            let data = data.strip_prefix("data: ").unwrap_or_else(|| panic!("no data: {frame}"));
            let data: Value = serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {frame}"));
            assert_eq!(data["type"], name);
            (name.to_owned(), data)
        })
        .collect()
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or_else(|| panic!("no string `{key}` in {value}"))
}

/// Reads a Responses stream from its first event to its last.
pub fn responses(body: &str) -> Told {
    let mut events = events(body);
    for (number, (_, event)) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number, "{event}");
    }
    let (last_name, last) = events.pop().expect("no events");
    assert_eq!((events[0].0.as_str(), events[1].0.as_str()), ("response.created", "response.in_progress"));
    let mut told = Told { object: last["response"].clone(), ..Told::default() };
    let mut items = Vec::new();
    let mut open: Option<OpenItem> = None;
    for (name, event) in &events[2..] {
        match name.as_str() {
            "response.in_progress" => {}
            "response.output_item.added" => {
                assert!(open.is_none() && event["output_index"] == items.len(), "{event}");
                open = Some(OpenItem::begin(event));
            }
            "response.output_item.done" => items.push(open.take().expect("opened").end(event, &mut told)),
            name => open.as_mut().unwrap_or_else(|| panic!("{name} outside an item")).take(name, event),
        }
    }
    assert!(open.is_none(), "an item is open at the end");
    assert_eq!(told.object["output"], json!(items), "the last event repeats the items");
    assert_eq!(events[0].1["response"]["id"], told.object["id"]);
    told.end = response_end(&last_name, &told.object);
    told.usage = told.object["usage"].as_object().map(|usage| {
        assert_eq!(
            usage["total_tokens"].as_u64(),
            Some(usage["input_tokens"].as_u64().unwrap() + usage["output_tokens"].as_u64().unwrap())
        );
        (usage["input_tokens"].as_u64().unwrap(), usage["output_tokens"].as_u64().unwrap())
    });
    told
}

fn response_end(name: &str, response: &Value) -> String {
    match (name, text(response, "status")) {
        ("response.completed", "completed") => "completed".to_owned(),
        ("response.incomplete", "incomplete") => text(&response["incomplete_details"], "reason").to_owned(),
        ("response.failed", "failed") => format!("failed:{}", text(&response["error"], "code")),
        other => panic!("{other:?} ends a stream"),
    }
}

struct OpenItem {
    id: String,
    index: Value,
    kind: String,
    deltas: String,
    part: bool,
    done: BTreeSet<String>,
}

impl OpenItem {
    fn begin(event: &Value) -> Self {
        let item = &event["item"];
        let kind = text(item, "type").to_owned();
        if matches!(kind.as_str(), "message" | "reasoning") {
            assert_eq!(item["content"], json!([]), "JavaScript's SDK fills it");
        }
        assert_eq!(item["status"], "in_progress");
        Self {
            id: text(item, "id").to_owned(),
            index: event["output_index"].clone(),
            kind,
            deltas: String::new(),
            part: false,
            done: BTreeSet::new(),
        }
    }

    fn take(&mut self, name: &str, event: &Value) {
        assert_eq!((text(event, "item_id"), &event["output_index"]), (self.id.as_str(), &self.index));
        let expected = match self.kind.as_str() {
            "reasoning" => "response.reasoning_text",
            "message" => "response.output_text",
            "function_call" => "response.function_call_arguments",
            "custom_tool_call" => "response.custom_tool_call_input",
            kind => panic!("{name} in {kind}"),
        };
        match name.rsplit_once('.').unwrap() {
            ("response.content_part", "added") => self.part = true,
            ("response.content_part", "done") => {
                assert_eq!(text(&event["part"], "text"), self.deltas);
                self.done.insert("part".to_owned());
            }
            (field, "delta") if field == expected => self.deltas += text(event, "delta"),
            (field, "done") if field == expected => {
                let key = match field {
                    "response.function_call_arguments" => "arguments",
                    "response.custom_tool_call_input" => "input",
                    _ => "text",
                };
                assert_eq!(text(event, key), self.deltas);
                self.done.insert("text".to_owned());
            }
            _ => panic!("{name} in {}", self.kind),
        }
    }

    fn end(self, event: &Value, told: &mut Told) -> Value {
        let item = &event["item"];
        assert_eq!((text(item, "id"), &event["output_index"]), (self.id.as_str(), &self.index));
        let whole = match self.kind.as_str() {
            "reasoning" | "message" => {
                assert!(self.part && self.done.len() == 2, "{:?}", self.done);
                text(&item["content"][0], "text")
            }
            "function_call" => text(item, "arguments"),
            "custom_tool_call" => text(item, "input"),
            _ => "",
        };
        assert_eq!(whole, self.deltas);
        match self.kind.as_str() {
            "reasoning" => told.reasoning += whole,
            "message" => told.content += whole,
            "tool_search_call" => told.calls.push(("tool_search".to_owned(), item["arguments"].to_string())),
            _ => told.calls.push((text(item, "name").to_owned(), whole.to_owned())),
        }
        item.clone()
    }
}

/// Reads a Messages stream from its first event to its last.
pub fn messages(body: &str) -> Told {
    let events: Vec<_> = events(body).into_iter().filter(|(name, _)| name != "ping").collect();
    let mut told = Told::default();
    let mut open: Option<(Value, String, String)> = None;
    let mut blocks = Vec::new();
    for (place, (name, event)) in events.iter().enumerate() {
        assert_eq!(name == "message_start", place == 0, "{name} at {place}");
        match name.as_str() {
            "message_start" => told.object = event["message"].clone(),
            "content_block_start" => {
                assert!(open.is_none() && event["index"] == blocks.len(), "{event}");
                open = Some((event["content_block"].clone(), String::new(), String::new()));
            }
            "content_block_delta" => {
                let (block, deltas, signature) = open.as_mut().expect("a delta outside a block");
                assert_eq!(event["index"], blocks.len());
                match (text(block, "type"), text(&event["delta"], "type")) {
                    ("thinking", "thinking_delta") => *deltas += text(&event["delta"], "thinking"),
                    ("thinking", "signature_delta") => *signature += text(&event["delta"], "signature"),
                    ("text", "text_delta") => *deltas += text(&event["delta"], "text"),
                    ("tool_use", "input_json_delta") => *deltas += text(&event["delta"], "partial_json"),
                    other => panic!("{other:?}"),
                }
            }
            "content_block_stop" => {
                assert_eq!(event["index"], blocks.len());
                let (block, deltas, signature) = open.take().expect("a block ends that was not begun");
                blocks.push(closed(block, deltas, &signature, &mut told));
            }
            "message_delta" => {
                assert!(open.is_none() && told.end.is_empty());
                text(&event["delta"], "stop_reason").clone_into(&mut told.end);
                for key in ["stop_reason", "stop_sequence"] {
                    told.object[key] = event["delta"][key].clone();
                }
                told.object["usage"] = event["usage"].clone();
                let count = |key: &str| event["usage"][key].as_u64().unwrap();
                let prompt = ["input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"];
                told.usage = Some((prompt.into_iter().map(count).sum(), count("output_tokens")));
            }
            "message_stop" => assert!(place + 1 == events.len() && !told.end.is_empty()),
            "error" => {
                assert_eq!(place + 1, events.len());
                told.end = format!("failed:{}", text(&event["error"], "type"));
                return told;
            }
            name => panic!("unknown event {name}"),
        }
    }
    assert_eq!(events.last().unwrap().0, "message_stop");
    told.object["content"] = json!(blocks);
    told
}

fn closed(mut block: Value, deltas: String, signature: &str, told: &mut Told) -> Value {
    match text(&block, "type") {
        "thinking" => {
            assert!(!signature.is_empty(), "thinking without a signature cannot come back");
            told.reasoning += &deltas;
            block["thinking"] = json!(deltas);
            block["signature"] = json!(signature);
        }
        "text" => {
            told.content += &deltas;
            block["text"] = json!(deltas);
        }
        _ => {
            let input: Value = serde_json::from_str(&deltas).expect("the input is JSON");
            assert!(input.is_object());
            told.calls.push((text(&block, "name").to_owned(), deltas));
            block["input"] = input;
        }
    }
    block
}
