//! The accumulator rebuilds a flawless turn, and finds each flaw that is put into it.

use serde_json::{Value, json};

use crate::support::accumulate::{self, Call, Rules};
use crate::support::{openai_fields, replies};

const USAGE: &str = r#"{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}"#;

/// The chunks of a flawless stream with everything in it, as choices and usage.
const FLAWLESS: [&str; 8] = [
    r#"[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]"#,
    r#"[{"index":0,"delta":{"reasoning_content":"Hm."},"finish_reason":null}]"#,
    r#"[{"index":0,"delta":{"content":""},"finish_reason":null}]"#,
    r#"[{"index":0,"delta":{"content":"I "},"finish_reason":null,"logprobs":{"content":[{"token":"I","logprob":-1.5}]}}]"#,
    r#"[{"index":0,"delta":{"content":"read."},"finish_reason":null}]"#,
    r#"[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"abcdefghi","type":"function","function":{"name":"read","arguments":"{\"path\": \"a\"}"}}]},"finish_reason":null}]"#,
    r#"[{"index":0,"delta":{"tool_calls":[{"index":1,"id":"ABCDEFGH9","type":"function","function":{"name":"exec","arguments":"{}"}}]},"finish_reason":null}]"#,
    r#"[{"index":0,"delta":{},"finish_reason":"tool_calls"}]"#,
];

fn envelope(choices: &str, usage: &str) -> String {
    format!(
        r#"data: {{"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"m","choices":{choices},"usage":{usage}}}"#
    )
}

fn flawless() -> Vec<String> {
    let mut events: Vec<String> = FLAWLESS.iter().map(|choices| envelope(choices, "null")).collect();
    events.push(envelope("[]", USAGE));
    events.push("data: [DONE]".to_owned());
    events
}

fn joined(events: &[String]) -> String {
    events.join("\n\n") + "\n\n"
}

fn check_flaw(stream: &str, expected: &str) {
    let flaws = accumulate::stream(stream.as_bytes(), &Rules::default()).unwrap_err();
    assert!(flaws.iter().any(|flaw| flaw.contains(expected)), "{expected:?} is not among {flaws:?}");
}

#[test]
fn a_flawless_stream_gives_its_turn() {
    let stream = format!(": ping\n\n{}", joined(&flawless()));
    let turn =
        accumulate::stream(stream.as_bytes(), &Rules { usage: Some(true), ..Rules::default() }).unwrap();
    let choice = &turn.choices[&0];
    assert_eq!((choice.reasoning.as_str(), choice.content.as_str()), ("Hm.", "I read."));
    let read = Call { id: "abcdefghi".into(), name: "read".into(), arguments: r#"{"path": "a"}"#.into() };
    assert_eq!(choice.tool_calls[0], read);
    assert_eq!(
        (choice.tool_calls[1].name.as_str(), choice.tool_calls[0].json()),
        ("exec", json!({"path": "a"}))
    );
    assert_eq!(choice.finish_reason.as_deref(), Some("tool_calls"));
    assert_eq!(choice.logprobs, [json!({"token": "I", "logprob": -1.5})]);
    assert_eq!((turn.heartbeats, turn.comments, turn.chunks, turn.id.as_str()), (1, 1, 9, "chatcmpl-1"));
    assert_eq!(turn.usage, Some(serde_json::from_str(USAGE).unwrap()));
}

#[test]
fn flaws_in_chunks_are_found() {
    let good = joined(&flawless());
    for (from, to, flaw) in [
        (r#"{"role":"assistant","content":""}"#, r#"{"content":""}"#, "role is null"),
        (
            r#"{"reasoning_content":"Hm."}"#,
            r#"{"role":"assistant","content":"x"}"#,
            "role is \"assistant\" where null",
        ),
        ("\"content\":\"I \"", "\"reasoning\":\"I \"", "foreign field .choices[0].delta.reasoning"),
        ("\"content\":\"read.\"", "\"reasoning_content\":\"late\"", "Reasoning after Content"),
        (r#""delta":{},"#, r#""delta":{"content":"late"},"#, "Content after Calls"),
        ("ABCDEFGH9", "abcdefghi", "two calls of id"),
        ("ABCDEFGH9", "call_abcdefgh", "the id of a call is"),
        ("ABCDEFGH9", "short", "the id of a call is"),
        (r#""index":1,"#, r#""index":0,"#, "call 1 has index 0"),
        (r#""index":1,"#, "", "call 1 has index null"),
        (r#""type":"function","#, "", "the type of a call is null"),
        (r#""name":"exec""#, r#""name":"""#, "a call without a name"),
        (r#""arguments":"{}""#, r#""arguments":"""#, "arguments are no string holding a JSON object"),
        (r#""arguments":"{}""#, r#""arguments":{}"#, "arguments are no string holding a JSON object"),
        (r#""arguments":"{}""#, r#""arguments":"[1]""#, "arguments are no string holding a JSON object"),
        (r#""finish_reason":"tool_calls""#, r#""finish_reason":"stop""#, "\"stop\" with calls: true"),
        (r#""finish_reason":"tool_calls""#, r#""finish_reason":"abort""#, "finish_reason is \"abort\""),
        (r#""finish_reason":"tool_calls""#, r#""finish_reason":null"#, "a choice without finish_reason"),
        (r#""id":"chatcmpl-1""#, r#""id":"""#, "no id or no model"),
        ("chat.completion.chunk", "chat.completion", "object is \"chat.completion\""),
        (r#""created":7"#, r#""created":"7""#, "created is no Unix time"),
        (r#""delta":{},"#, r#""delta":{},"stop_reason":200012,"#, "foreign field .choices[0].stop_reason"),
        (r#""usage":null"#, r#""usage":{"total_tokens":3}"#, "usage on a chunk with choices"),
        (r#""total_tokens":3"#, r#""total_tokens":3,"cost":1"#, "foreign field .usage.cost"),
        (r#","total_tokens":3"#, "", "a token count is missing"),
        (
            r#""logprob":-1.5"#,
            r#""logprob":-1.5,"rank":1"#,
            "foreign field .choices[0].logprobs.content[0].rank",
        ),
        ("data: [DONE]", "data: {}", "no [DONE]"),
        ("data: [DONE]\n\n", "data: [DONE]\n\ndata: [DONE]\n\n", "after [DONE]"),
        ("data: [DONE]\n\n", "data: [DONE]\n\ndata: {}\n\n", "after [DONE]"),
        ("data: [DONE]\n\n", "data: [DONE]\n", "does not end with a blank line"),
        ("data: [DONE]\n\n", "data: [DONE]\r\n\r\n", "CR in the stream"),
        ("data: [DONE]", "event: end\ndata: [DONE]", "not one data line"),
        ("data: [DONE]", "data:[DONE]", "no data line"),
        ("data: [DONE]", "data: nonsense", "no JSON"),
    ] {
        assert!(good.contains(from), "{from}");
        check_flaw(&good.replacen(from, to, 1), flaw);
    }
}

#[test]
fn flaws_in_the_order_are_found() {
    let moved = |from: usize, to: usize| {
        let mut events = flawless();
        let event = events.remove(from);
        events.insert(to, event);
        joined(&events)
    };
    check_flaw(&moved(8, 7), "usage before the choices finished");
    check_flaw(&moved(4, 7), "a chunk of a choice that has finished");
    check_flaw(&moved(3, 0), "role is null where");
    check_flaw(&moved(6, 5), "call 0 has index 1");
    let mut twice = flawless();
    twice.insert(9, twice[8].clone());
    check_flaw(&joined(&twice), "a second chunk without choices");
    let mut other = flawless();
    other[3] = other[3].replace("chatcmpl-1", "chatcmpl-2");
    check_flaw(&joined(&other), "id, model or created changed");
    check_flaw("", "no [DONE]");
    check_flaw("data: [DONE]\n\n", "choices [], not [0]");
}

#[test]
fn rules_allow_other_fields() {
    let stream = joined(&flawless());
    let judged = |rules: Rules| {
        accumulate::stream(stream.as_bytes(), &rules).map(|_| ()).map_err(|flaws| flaws.join("; "))
    };
    let with = Rules::default;
    assert_eq!(judged(Rules { usage: Some(false), ..with() }), Err("event 9: usage came: true".to_owned()));
    assert_eq!(judged(Rules { choices: 2, ..with() }), Err("event 9: choices [0], not [0, 1]".to_owned()));
    let dropped = judged(Rules { reasoning: None, ..with() });
    assert_eq!(dropped, Err("event 2: foreign field .choices[0].delta.reasoning_content".to_owned()));
    assert_eq!(judged(Rules { kept: vec!["stop_reason"], ..with() }), Ok(()));
    let kept = stream.replace(r#""delta":{},"#, r#""delta":{},"stop_reason":1,"#);
    accumulate::stream(kept.as_bytes(), &Rules { kept: vec!["stop_reason"], ..with() }).unwrap();
}

#[test]
fn an_error_event_ends_the_stream() {
    let role = envelope(FLAWLESS[0], "null");
    let error = r#"data: {"error":{"message":"gone","type":"server_error","param":null,"code":502}}"#;
    let good = format!("{role}\n\n{error}\n\ndata: [DONE]\n\n");
    let turn = accumulate::stream(good.as_bytes(), &Rules::default()).unwrap();
    assert_eq!(turn.error.unwrap()["code"], 502);
    check_flaw(&format!("{error}\n\n{role}\n\ndata: [DONE]\n\n"), "a chunk after the error event");
    check_flaw(&format!("{role}\n\n{error}\n\n"), "no [DONE]");
    check_flaw(&good.replace("\"gone\"", "\"\""), "an error without a message");
    check_flaw(&good.replace("\"code\":502", "\"object\":\"error\""), "foreign field .error.object");
}

#[test]
fn completions_equal_their_streams() {
    let whole: Value = serde_json::from_str(
        r#"{"id":"chatcmpl-1","object":"chat.completion","created":7,"model":"m","choices":[{"index":0,"message":
        {"role":"assistant","content":"I read.","reasoning_content":"Hm.","tool_calls":[
        {"id":"abcdefghi","type":"function","function":{"name":"read","arguments":"{\"path\": \"a\"}"}},
        {"id":"ABCDEFGH9","type":"function","function":{"name":"exec","arguments":"{}"}}]},
        "logprobs":{"content":[{"token":"I","logprob":-1.5}]},"finish_reason":"tool_calls"}],
        "usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}"#,
    )
    .unwrap();
    let from_whole = accumulate::completion(&whole, &Rules::default()).unwrap();
    let from_stream = accumulate::stream(joined(&flawless()).as_bytes(), &Rules::default()).unwrap();
    assert_eq!(from_whole.choices, from_stream.choices);
    assert_eq!(from_whole.usage, from_stream.usage);
    let mut unfinished = whole.clone();
    unfinished["choices"][0]["finish_reason"] = Value::Null;
    let flaws = accumulate::completion(&unfinished, &Rules::default()).unwrap_err();
    assert_eq!(flaws, ["event 0: a choice without finish_reason"]);
}

#[test]
fn vllm_sends_foreign_fields() {
    let flaws = accumulate::completion(&replies::text("Hello"), &Rules::default()).unwrap_err().join("\n");
    for field in [".prompt_text", ".metrics", ".choices[0].stop_reason", ".choices[0].message.reasoning"] {
        assert!(flaws.contains(&format!("foreign field {field}")), "{field} is not in {flaws}");
    }
    let stream = replies::text_stream(&["Hel", "lo"], true).concat();
    let flaws = accumulate::stream(stream.as_bytes(), &Rules::default()).unwrap_err().join("\n");
    assert!(flaws.contains(".prompt_token_ids") && flaws.contains(".choices[0].token_ids"), "{flaws}");
    let kept = vec!["prompt_token_ids", "prompt_text", "token_ids", "stop_reason"];
    let turn = accumulate::stream(stream.as_bytes(), &Rules { kept, ..Rules::default() }).unwrap();
    assert_eq!(turn.choices[&0].content, "Hello");
}

#[test]
fn foreign_fields_are_found_at_every_depth() {
    let found = |value: Value| openai_fields::foreign_fields(&value, &openai_fields::COMPLETION, &["kept"]);
    let call = json!({"function": {"name": "read", "arguments": "{\"stop_reason\": 1}"}, "extra": 1});
    let choices = json!([{"message": {"tool_calls": [call], "annotations": null, "kept": {"inside": 1}}}]);
    assert_eq!(found(json!({"choices": choices})), [".choices[0].message.tool_calls[0].extra"]);
    let top = json!([{"token": "a", "token_id": 1}]);
    let entry = json!({"token": "a", "top_logprobs": top});
    let path = ".choices[0].logprobs.content[0].top_logprobs[0].token_id";
    assert_eq!(found(json!({"choices": [{"logprobs": {"content": [entry]}}]})), [path]);
    assert_eq!(found(json!({"usage": {"prompt_tokens_details": {"multimodal_tokens": 1}}})).len(), 1);
    assert_eq!(found(json!({"usage": 3})), [".usage is 3"]);
}
