//! The engine's handling of text that no report covers yet, family by family. `check` runs each text whole
//! and char by char: the calls (`name{json}`, joined by `;`) and the content must be the same.

use std::sync::Arc;

use super::{End, Engine, Field, NativeCall, Options, Tools};
use crate::event::{Dropped, Event, Note, Parsed};

pub(crate) const TOOLS: &str = r#"[
 {"type":"function","function":{"name":"read","parameters":{"type":"object","required":["path"],
   "properties":{"path":{"type":"string"},"limit":{"type":"integer"}}}}},
 {"type":"function","function":{"name":"exec","parameters":{"type":"object","required":["command"],
   "properties":{"command":{"type":"string"},"background":{"type":"boolean"}}}}},
 {"type":"function","function":{"name":"write","parameters":{"type":"object","required":["path","content"],
   "properties":{"path":{"type":"string"},"content":{"type":"string"}}}}},
 {"type":"function","function":{"name":"web_search","parameters":{"type":"object","required":["query"],
   "properties":{"query":{"type":"string"},"count":{"type":"integer"}}}}},
 {"type":"function","function":{"name":"look","parameters":{"type":"object","properties":{"where":{"type":"string"}}}}},
 {"type":"function","function":{"name":"now"}}]"#;

fn run_pieces(options: Options, end: End, field: Field, pieces: &[&str]) -> Parsed {
    let mut engine = Engine::new(Arc::new(Tools::from_json(TOOLS).unwrap()), options);
    let mut out: Vec<Event> = Vec::new();
    pieces.iter().for_each(|piece| engine.push(field, piece, &mut out));
    engine.finish(end, &mut out);
    out.into_iter().collect()
}

pub(crate) fn run_with(options: Options, end: End, field: Field, text: &str) -> Parsed {
    let whole = run_pieces(options, end, field, &[text]);
    let chars: Vec<String> = text.chars().map(String::from).collect();
    let chars: Vec<&str> = chars.iter().map(String::as_str).collect();
    assert_eq!(run_pieces(options, end, field, &chars), whole, "char by char: {text}");
    whole
}

pub(crate) fn calls(turn: &Parsed) -> String {
    let calls: Vec<String> =
        turn.calls.iter().map(|call| format!("{}{}", call.name, call.arguments)).collect();
    calls.join(";")
}

pub(crate) fn check(text: &str, expected: &str, content: &str) {
    let turn = run_with(Options::for_whole_reply(), End::default(), Field::Content, text);
    assert_eq!(
        (calls(&turn).as_str(), turn.content.as_str()),
        (expected, content),
        "{text}\n{:?}",
        turn.notes
    );
}

/// The text is no call and leaves byte for byte.
pub(crate) fn text(text: &str) {
    check(text, "", text);
}

#[test]
fn json_in_tags() {
    let read = r#"read{"path":"a"}"#;
    check(
        "<tools>\n{\n  \"name\": \"read\",\n  \"arguments\": {\n    \"path\": \"a\"\n  }\n}\n</tools>",
        read,
        "",
    );
    check(
        "<tools>[{\"name\":\"read\",\"arguments\":{\"path\":\"a\"}},\n{\"name\":\"now\",\"arguments\":{}}]</tools>",
        r#"read{"path":"a"};now{}"#,
        "",
    );
    check(
        "<tools>{\"name\":\"read\",\"arguments\":{\"path\":\"a\"}}\n{\"name\":\"now\",\"arguments\":{}}</tools> Done.",
        r#"read{"path":"a"};now{}"#,
        "Done.",
    );
    check(
        "Let me see.\n<tool_call>{\"name\":\"read\",\"arguments\":{\"path\":\"a\"}}</tool_call>\nThen more.",
        read,
        "Let me see.\nThen more.",
    );
    check("<tool_call>{\"name\":\"read\",\"arguments\":{\"path\":\"a\"}}}\n</tool_call>", read, "");
    check("<tool_call>{\"name\":\"read\",\"arguments\":\"{\\\"path\\\":\\\"a\\\"}\"}</tool_call>", read, "");
    check(
        "<tool_call>{\"name\":\"read\",\"arguments\":\"a.txt\"}</tool_call>",
        r#"read{"path":"a.txt"}"#,
        "",
    );
    check("<tool_call>{\"name\":\"read\",\"path\":\"a\"}</tool_call>", read, "");
    check(
        "<tool_call>{\"name\":\"read\",\"arguments\":{\"path\":\"a\nb\"}}</tool_call>",
        "read{\"path\":\"a\\nb\"}",
        "",
    );
    check(
        "<tool_call>{\"name\":\"read\",\"arguments\":{\"path\":\"a\"}}</tool_call><tool_call>{\"name\":\"now\",bad}</tool_call>",
        read,
        "",
    );
    text("<tool_call>{\"name\":\"unknown\",\"arguments\":{}}</tool_call>");
    text(
        "<tools>\n{\"type\":\"function\",\"function\":{\"name\":\"read\",\"description\":\"d\",\"parameters\":{\"type\":\"object\",\"properties\":{\"path\":{\"type\":\"string\"}}}}}\n</tools>",
    );
    text("Write <tool_call> before the JSON and </tool_call> after it.");
    text(
        "The format is <tool_call>{\"name\":\"read\",\"arguments\":{\"path\":\"a\"}}</tool_call>, as the docs say.",
    );
    text("Use `<tool_call>{\"name\":\"read\",\"arguments\":{\"path\":\"a\"}}</tool_call>` to read.");
}

#[test]
fn bare_json() {
    let read = r#"read{"path":"a"}"#;
    let json = r#"{"name":"read","arguments":{"path":"a"}}"#;
    check(json, read, "");
    check(&format!("\n\n{json}\n"), read, "");
    check(&format!("I read it:\n{json}"), read, "I read it:");
    check(
        &format!("I read it.\n\n{json}\n{{\"name\":\"now\",\"arguments\":{{}}}}\n"),
        r#"read{"path":"a"};now{}"#,
        "I read it.",
    );
    check(&format!("[{json}]"), read, "");
    check(
        "{\"tool_calls\":[{\"name\":\"read\",\"arguments\":{\"path\":\"a\"}},{\"function\":{\"name\":\"now\",\"arguments\":\"{}\"}}]}",
        r#"read{"path":"a"};now{}"#,
        "",
    );
    check("{'name': 'read', 'arguments': {'path': 'a'}}", read, "");
    check("{\n  \"name\": \"read\",\n  \"arguments\": {\n    \"path\": \"a\",\n  },\n}", read, "");
    text(&format!("It writes\n{json}\nand waits."));
    text(&format!("Do not send {json}"));
    text(&format!("Here is an example:\n{json}"));
    text(&format!("> {json}"));
    text(&format!("> <tool_call>{json}</tool_call>"));
    text(&format!("\"{json}\""));
    text(&format!("call({json})"));
    text("{\"name\":\"Bob\",\"age\":30}");
    text("{\"name\":\"Bob\"}");
    text(
        "{\"name\":\"read\",\"description\":\"Reads a file\",\"parameters\":{\"type\":\"object\",\"properties\":{}}}",
    );
    text("{\"path\":\"a\"}");
    text("{");
    text("{}{}[[{\"name\"");
    text("{\"a\": {\"name\": \"now\", \"arguments\": {}}}");
}

#[test]
fn fences() {
    let read = r#"read{"path":"a"}"#;
    let json = r#"{"name":"read","arguments":{"path":"a"}}"#;
    check(&format!("```json\n{json}\n```"), read, "");
    check(&format!("I read it.\n```\n{json}\n```\n"), read, "I read it.");
    check(
        &format!("```json\n{json}\n{json}\n```").replace("}}\n{", "}}\n\n{"),
        &format!("{read};{read}"),
        "",
    );
    check(&format!("```tool_call\n{json}\n```\nThanks."), read, "Thanks.");
    check(&format!("```json\n[\n{json}\n]\n```"), read, "");
    text(&format!("```json\n{json}\n```\nThat is the call."));
    text(&format!("Example:\n```json\n{json}\n```"));
    text(&format!("```python\n{json}\n```"));
    text("```js\nconst x = 1;\n```\n```json\n{\"a\": 1}\n```");
    text(&format!("```xml\n<tool_call>{json}</tool_call>\n```"));
    text(
        "```\n<|channel|>commentary to=functions.read <|constrain|>json<|message|>{\"path\":\"a\"}<|call|>\n```\n",
    );
    text(&format!("First:\n```json\n{json}\n```\nThen:\n```json\n{json}\n```"));
    text(&format!("~~~\n{json}\n~~~\nis what I wrote."));
}

#[test]
fn thinking() {
    let turn = run_with(
        Options::for_whole_reply(),
        End::default(),
        Field::Content,
        "<think>Let me\nsee.</think>\n\nHello.",
    );
    assert_eq!((turn.reasoning.as_str(), turn.content.as_str()), ("Let me\nsee.", "Hello."));
    let turn = run_with(Options::for_whole_reply(), End::default(), Field::Content, "<think>never closed");
    assert_eq!((turn.reasoning.as_str(), turn.content.as_str()), ("never closed", ""));
    check("<think>a</think>{\"name\":\"now\",\"arguments\":{}}", "now{}", "");
    let considered = "<think>I call <tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call></think>";
    check(considered, "", "");
    let read = Options { read_reasoning: true, ..Options::for_whole_reply() };
    assert_eq!(calls(&run_with(read, End::default(), Field::Content, considered)), "now{}");
    check(considered.strip_suffix("</think>").unwrap(), "now{}", "");
    check(
        "<think>I call <tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call>? No.</think>Hi.",
        "",
        "Hi.",
    );
    text("The <think> tag opens it, </think> ends it.");
}

/// Some chat templates write the opening mark, so that only the closing one arrives.
#[test]
fn replies_that_begin_in_reasoning() {
    let options = Options { begins_in_reasoning: true, ..Options::default() };
    let check = |text: &str, cut: bool, (reasoning, found, content): (&str, &str, &str)| {
        let turn = run_with(options, End { cut }, Field::Content, text);
        let got = (turn.reasoning.as_str(), &*calls(&turn), turn.content.as_str());
        assert_eq!(got, (reasoning, found, content), "{text}");
    };
    let call = "<tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call>";
    check("Let me\nsee.\n</think>\n\nHello.", false, ("Let me\nsee.\n", "", "Hello."));
    check(&format!("I call {call}? No.</think>{call}"), false, (&format!("I call {call}? No."), "now{}", ""));
    check("</think>Hello.", false, ("", "", "Hello."));
    // A model that writes the opening mark itself, or begins with something alike.
    check("<think>I see.</think>Hello.", false, ("I see.", "", "Hello."));
    check("<thin> is no mark.</think>Hello.", false, ("<thin> is no mark.", "", "Hello."));
    // Nothing is lost if it was no reasoning.
    check("Hello, no thoughts.", false, ("Hello, no thoughts.", "", "Hello, no thoughts."));
    check(call, false, (call, "now{}", ""));
    check("I think, and the limit ca", true, ("I think, and the limit ca", "", ""));
    check(" ", false, ("", "", " "));
}

/// A server with a reasoning parser sends the reasoning apart, and its content is the answer.
#[test]
fn separate_reasoning_leaves_content_alone() {
    let options = Options { begins_in_reasoning: true, ..Options::default() };
    let mut engine = Engine::new(Arc::new(Tools::from_json(TOOLS).unwrap()), options);
    let mut out: Vec<Event> = Vec::new();
    engine.push(Field::Reasoning, "\n", &mut out);
    engine.push(Field::Content, "Hello.", &mut out);
    engine.finish(End::default(), &mut out);
    let turn: Parsed = out.into_iter().collect();
    assert_eq!(turn.content, "Hello.");
}

#[test]
fn harmony() {
    let read = r#"read{"path":"a"}"#;
    let turn = run_with(
        Options::for_whole_reply(),
        End::default(),
        Field::Content,
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hello.<|return|>",
    );
    assert_eq!((turn.reasoning.as_str(), turn.content.as_str()), ("Hm.", "Hello."));
    check(
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.read <|constrain|>json<|message|>{\"path\":\"a\"}<|call|>",
        read,
        "",
    );
    check(
        "<|start|>assistant<|channel|>commentary to=functions.read<|channel|>json<|message|>{\"path\":\"a\"}<|call|>",
        read,
        "",
    );
    check("commentary to=functions.read json{\"path\":\"a\"}", read, "");
    check("I look.commentary to=read json {\"path\":\"a\"}", read, "I look.");
    check("analysisI look.assistantcommentary to=functions.read json{\"path\":\"a\"}", read, "");
    check("assistant to=functions.read json{\"path\":\"a\"}", read, "");
    check("to=functions.read {\"path\":\"a\"}", read, "");
    check("<|channel|>commentary to=functions.read<|message|>a.txt<|call|>", r#"read{"path":"a.txt"}"#, "");
    text("analysis of the file shows nothing");
    text("Set x=1 and to=home.");
    text("The <|channel|> token names a channel. The <|message|> token begins the text.");
}

#[test]
fn other_marks() {
    let read = r#"read{"path":"a"}"#;
    check("[TOOL:read|path=a]", read, "");
    check("[TOOL: read | path = a | limit = 3 ] and so on", r#"read{"path":"a","limit":3}"#, "and so on");
    check("[TOOL:exec|command=ls | wc -l]", r#"exec{"command":"ls | wc -l"}"#, "");
    check("[TOOL:exec|command=echo a[0] && [ -f x ]]", r#"exec{"command":"echo a[0] && [ -f x ]"}"#, "");
    check("[TOOL:web_search|Claude AI]", r#"web_search{"query":"Claude AI"}"#, "");
    check("[read]{\"path\":\"a\"}[END_TOOL_REQUEST]", read, "");
    check("[tool]{\"name\":\"read\",\"arguments\":{\"path\":\"a\"}}[END_TOOL_REQUEST]", read, "");
    check("[TOOL_REQUEST]{\"name\":\"read\",\"arguments\":{\"path\":\"a\"}}[END_TOOL_REQUEST]", read, "");
    check(
        "Thought: read\nAction: read\nAction Input: {\"path\":\"a\"}\nObservation: none",
        read,
        "Thought: read\nObservation: none",
    );
    check("Action: exec\nAction Input: ls -la\n", r#"exec{"command":"ls -la"}"#, "");
    check("functions.read({\"path\": \"a\"})", read, "");
    check("read(path=\"a\")", read, "");
    check("functions.read:0{\"path\":\"a\"}", read, "");
    check("read{\"path\": \"a\"}", r#"read{"path": "a"}"#, "");
    check("[read(path='a'), now()]", r#"read{"path":"a"};now{}"#, "");
    check("<|python_tag|>read.call(path=\"a\")", read, "");
    // Found by fuzzing: whether a second call follows is known only with its parenthesis.
    check("<|python_start|>read(path='a')\nnow()", r#"read{"path":"a"};now{}"#, "");
    check("functools[{\"name\": \"read\", \"arguments\": {\"path\": \"a\"}}]", read, "");
    check(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>read\n```json\n{\"path\":\"a\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>",
        read,
        "",
    );
    check("[TOOL_CALLS]read[CALL_ID]abc123def[ARGS]{\"path\":\"a\"}", read, "");
    check("<function=read>{\"path\":\"a\"}</function>", read, "");
    check("```tool_code\nprint(read(path='a'))\n```", read, "");
    check(
        "<invoke name=\"read\">\n<parameter name=\"path\">a</parameter>\n<parameter name=\"limit\">3</parameter>\n</invoke>",
        r#"read{"path":"a","limit":3}"#,
        "",
    );
    text("read() returns bytes.");
    text("I use read(path) here.");
    text("[tool: exec]");
    text("[TOOL_RESULT: read] ok");
    text("Action: read the docs");
    text("[1, 2] and [x](y) and [ ] todo");
    text("x = a[i] < b && c > d; // <function>");
}

#[test]
fn a_cut_reply_sends_no_part_of_a_call() {
    let cut = End { cut: true };
    for text in [
        "Wait. <tool_call>{\"name\":\"read\",\"arguments\":{\"pa",
        "Wait. <tool_call>\n<function=write>\n<parameter=path>a</parameter>",
        "Wait.\n{\"name\":\"read\",\"arguments\":{\"pa",
        "Wait. [TOOL_CALLS]read{\"path\":",
        "Wait. <|channel|>commentary to=functions.read <|constrain|>json<|message|>{\"pa",
        "Wait. <tool_call>read\n<arg_key>path</arg_key>\n<arg_value>a",
        "Wait. <tool_c",
        "Wait. [TOOL:read|path=a",
        "Wait.\n```json\n{\"name\":\"read\",\"arguments\":{\"pa",
        "Wait. <invoke name=\"read\"><parameter name=\"path\">a",
        "Wait. <|tool_call_begin|>functions.read:0<|tool_call_argument_begin|>{\"pa",
        "Wait. <|tool_call>call:read{path:<|\"|>a",
    ] {
        let turn = run_with(Options::for_whole_reply(), cut, Field::Content, text);
        assert_eq!((turn.content.as_str(), turn.calls.len()), ("Wait.", 0), "{text}");
        assert!(
            turn.notes.iter().any(|note| matches!(note, Note::Dropped { why: Dropped::Truncated, .. })),
            "{text}"
        );
    }
}

/// The calls that did not leave, each with the reason and its arguments.
fn withheld(turn: &Parsed) -> Vec<(Dropped, &str)> {
    let withheld = turn.notes.iter().filter_map(|note| match note {
        Note::Dropped { why, arguments, .. } => Some((*why, arguments.as_deref()?)),
        _ => None,
    });
    withheld.collect()
}

#[test]
fn what_the_client_asked_for_decides() {
    let json = r#"{"name":"read","arguments":{"path":"a"}}"#;
    let none = Options { calls_wanted: false, ..Options::for_whole_reply() };
    let turn = run_with(none, End::default(), Field::Content, json);
    assert_eq!((turn.calls.len(), turn.content.as_str()), (0, json));
    let tagged = format!("Hm. <tool_call>{json}</tool_call>");
    let turn = run_with(none, End::default(), Field::Content, &tagged);
    assert_eq!((turn.calls.len(), turn.content.as_str()), (0, "Hm."));
    assert_eq!(withheld(&turn), [(Dropped::NotWanted, r#"{"path":"a"}"#)]);
    let one = Options { parallel: false, ..Options::for_whole_reply() };
    let two = format!(
        "<tool_call>{json}</tool_call><tool_call>{{\"name\":\"now\",\"arguments\":{{}}}}</tool_call>"
    );
    let turn = run_with(one, End::default(), Field::Content, &two);
    assert_eq!(calls(&turn), r#"read{"path":"a"}"#);
    assert_eq!(withheld(&turn), [(Dropped::NotParallel, "{}")]);
    let wanted = Options { json_wanted: true, ..Options::for_whole_reply() };
    assert_eq!(run_with(wanted, End::default(), Field::Content, json).content, json);
}

#[test]
fn a_missing_required_argument_drops_the_call() {
    let turn = run_with(
        Options::for_whole_reply(),
        End::default(),
        Field::Content,
        "<tool_call>{\"name\":\"write\",\"arguments\":{\"path\":\"a\"}}</tool_call>",
    );
    assert!(turn.is_blank());
    assert_eq!(
        turn.notes.last(),
        Some(&Note::Dropped {
            name: "write".into(),
            why: Dropped::MissingRequired,
            arguments: Some(r#"{"path":"a"}"#.into())
        })
    );
}

fn with_native(native: &[(&str, &str)], texts: &[(Field, &str)]) -> Parsed {
    let mut engine = Engine::new(Arc::new(Tools::from_json(TOOLS).unwrap()), Options::for_whole_reply());
    let mut out: Vec<Event> = Vec::new();
    for (name, arguments) in native {
        let call = NativeCall { id: None, name: (*name).into(), arguments: (*arguments).into() };
        engine.push_native(call, &mut out);
    }
    for (field, text) in texts {
        text.chars().for_each(|char| engine.push(*field, &char.to_string(), &mut out));
    }
    engine.finish(End::default(), &mut out);
    out.into_iter().collect()
}

#[test]
fn native_calls_win_over_their_copies() {
    let native = [("functions.read", r#"{"path":"a"}"#)];
    for copy in [
        r#"{"path":"a"}"#,
        r#"{ "path": "a" }"#,
        r#"{"name":"read","arguments":{"path":"a"}}"#,
        "<tool_call>{\"name\":\"read\",\"arguments\":{\"path\":\"a\"}}</tool_call>",
    ] {
        let turn = with_native(&native, &[(Field::Content, copy)]);
        assert_eq!((calls(&turn).as_str(), turn.content.as_str()), (r#"read{"path":"a"}"#, ""), "{copy}");
    }
    let turn = with_native(&native, &[(Field::Reasoning, "I read it.\n{\"path\":\"a\"}")]);
    assert_eq!(turn.reasoning, "I read it.\n");
    let turn = with_native(&native, &[(Field::Content, r#"{"path":"b"}"#)]);
    assert_eq!(turn.content, r#"{"path":"b"}"#);
}

/// Calls are compared by what their arguments say, not by how they are written.
#[test]
fn the_order_of_keys_makes_no_other_call() {
    let native = [("read", r#"{"path":"a","limit":1}"#)];
    let copy = r#"<tool_call>{"name":"read","arguments":{"limit":1,"path":"a"}}</tool_call>"#;
    assert_eq!(with_native(&native, &[(Field::Content, copy)]).calls.len(), 1);
    let other = copy.replace(":1", ":2");
    assert_eq!(with_native(&native, &[(Field::Content, &other)]).calls.len(), 2);
}

/// Runs natives and texts in the order given; the calls, and why others were held back.
fn in_order(steps: &[Step], cut: bool) -> (String, Vec<Dropped>) {
    let mut engine = Engine::new(Arc::new(Tools::from_json(TOOLS).unwrap()), Options::for_whole_reply());
    let mut out: Vec<Event> = Vec::new();
    for step in steps {
        match *step {
            Step::Native(name, arguments) => {
                let call = NativeCall { id: None, name: name.into(), arguments: arguments.into() };
                engine.push_native(call, &mut out);
            }
            Step::Text(text) => engine.push(Field::Content, text, &mut out),
        }
    }
    engine.finish(End { cut }, &mut out);
    let turn: Parsed = out.into_iter().collect();
    let why = turn.notes.iter().filter_map(|note| match note {
        Note::Dropped { why, .. } => Some(*why),
        _ => None,
    });
    (calls(&turn), why.collect())
}

enum Step {
    Native(&'static str, &'static str),
    Text(&'static str),
}
use Step::{Native, Text as Said};

#[test]
fn an_unended_native_call_needs_a_complete_reply() {
    let read = r#"read{"path":"a"}"#;
    for (native, call) in [(Native("read", r#"{"path":"a""#), read), (Native("look", "{}"), "look{}")] {
        let steps = [native];
        assert_eq!(in_order(&steps, false), (call.to_owned(), vec![]));
        assert_eq!(in_order(&steps, true), (String::new(), vec![Dropped::Truncated]));
    }
    // What takes no arguments is whole; so is what another call follows.
    assert_eq!(in_order(&[Native("read", "{}")], true), (String::new(), vec![Dropped::Truncated]));
    assert_eq!(in_order(&[Native("read", "{}")], false), (String::new(), vec![Dropped::MissingRequired]));
    assert_eq!(in_order(&[Native("now", "{}")], true).0, "now{}");
    let two = [Native("look", "{}"), Native("read", r#"{"path":"a"}"#)];
    assert_eq!(in_order(&two, true), (format!("look{{}};{read}"), vec![]));
}

#[test]
fn a_native_call_and_its_copy_leave_once() {
    let read = r#"read{"path":"a"}"#;
    let copy = Said(r#"{"name":"read","arguments":{"path":"a"}}"#);
    for arguments in [r#"{"path":"a"}"#, r#"{"path":"a""#] {
        let native = || Native("read", arguments);
        assert_eq!(in_order(&[native(), Said(r#"{"name":"read","arguments":{"path":"a"}}"#)], false).0, read);
        assert_eq!(in_order(&[Said(r#"{"name":"read","arguments":{"path":"a"}}"#), native()], false).0, read);
        assert_eq!(in_order(&[native(), Said(r#"{"path":"a"}"#)], false).0, read);
    }
    // Twice asked for is twice done.
    let twice = [copy, Native("read", r#"{"path":"a"}"#), Native("read", r#"{"path":"a"}"#)];
    assert_eq!(in_order(&twice, false).0, format!("{read};{read}"));
}

#[test]
fn two_calls_that_alternate_leave_once_each() {
    let [read, look] =
        [r#"{"name":"read","arguments":{"path":"a"}}"#, r#"{"name":"look","arguments":{"at":"b"}}"#];
    let text = format!("<tool_call>{read}</tool_call><tool_call>{look}</tool_call>").repeat(3);
    let turn = run_with(Options::for_whole_reply(), End::default(), Field::Content, &text);
    assert_eq!(calls(&turn), r#"read{"path":"a"};look{"at":"b"}"#);
    let copies = [(Dropped::Duplicate, r#"{"path":"a"}"#), (Dropped::Duplicate, r#"{"at":"b"}"#)].repeat(2);
    assert_eq!(withheld(&turn), copies);
}

#[test]
fn digits_beyond_64_bits_stay() {
    let json = r#"{"name":"exec","arguments":{"command":"x","id":12345678901234567890123,}}"#;
    let call = r#"exec{"command":"x","id":12345678901234567890123}"#;
    check(&format!("<tool_call>{json}</tool_call>"), call, "");
    let other = json.replace("123,}", "124,}");
    check(
        &format!("<tool_call>{json}{other}</tool_call>"),
        &format!("{call};{}", call.replace("123}", "124}")),
        "",
    );
}

/// A candidate is given up at the same place however it arrives. (24 MB is what the scanner shows a dialect.)
#[test]
fn a_too_long_call_is_text() {
    let text = format!(
        "<tool_call>{{\"name\":\"exec\",\"arguments\":{{\"command\":\"{}\"}}}}</tool_call> Done.",
        "x".repeat(24 << 20)
    );
    let pieces: Vec<&str> =
        text.as_bytes().chunks(1 << 20).map(|piece| std::str::from_utf8(piece).unwrap()).collect();
    for turn in [&[text.as_str()], pieces.as_slice()]
        .map(|pieces| run_pieces(Options::for_whole_reply(), End::default(), Field::Content, pieces))
    {
        assert!(turn.calls.is_empty() && turn.content == text, "{:?}", turn.notes);
    }
}

#[test]
fn undeclared_native_calls_are_not_sent() {
    let turn = with_native(&[("send_mail", r#"{"to":"x"}"#)], &[]);
    assert_eq!((turn.calls.len(), turn.content.as_str()), (0, r#"send_mail {"to":"x"}"#));
    let turn = with_native(&[("send_mail", "{}")], &[(Field::Content, "Sent.")]);
    assert_eq!((turn.calls.len(), turn.content.as_str()), (0, "Sent."));
}

#[test]
fn reasoning_holds_the_call_only_when_nothing_else_does() {
    let call = "I run it.\n<tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call>";
    let turn = run_with(Options::for_whole_reply(), End::default(), Field::Reasoning, call);
    assert_eq!(calls(&turn), "now{}");
    let turn = with_native(&[], &[(Field::Reasoning, call), (Field::Content, "Done.")]);
    assert_eq!((turn.calls.len(), turn.content.as_str()), (0, "Done."));
    let doubtful = format!("{call} No, better not.");
    assert!(
        run_with(Options::for_whole_reply(), End::default(), Field::Reasoning, &doubtful).calls.is_empty()
    );
}

#[test]
fn plain_words_are_calls_only_if_enabled() {
    let words = "I will search for rust proxies.";
    let fuzzy = Options { fuzzy: true, ..Options::for_whole_reply() };
    for field in [Field::Content, Field::Reasoning] {
        let turn = run_with(fuzzy, End::default(), field, words);
        assert_eq!(calls(&turn), r#"web_search{"query":"rust proxies"}"#);
        assert!(run_with(Options::for_whole_reply(), End::default(), field, words).calls.is_empty());
    }
}

/// Found by fuzzing: a long line was cut inside a letter of several bytes, and the reader panicked.
#[test]
fn a_long_line_behind_action_is_text() {
    for line in ["prose é 漢 🙂 ".repeat(30), "漢".repeat(200), format!("x{}[a]", "é".repeat(200))] {
        text(&format!("Action: {line}\nand more."));
        text(&format!("Action: {line}"));
    }
}

/// Found by fuzzing: each of these became another turn char by char.
#[test]
fn the_split_does_not_matter() {
    for text in [
        "<tool_call>exec</arg_key>",
        "<tool_call>`read<arg_key>",
        "<|channel|>. <|message|>\n\n",
        "<|start|>. <|message|>\n\n",
    ] {
        for cut in [false, true] {
            run_with(Options::for_whole_reply(), End { cut }, Field::Content, text);
        }
    }
}

/// A candidate that wakes with every piece is read again only when it has grown: the turn is the same, in
/// linear time.
#[test]
fn pieces_do_not_change_a_candidate() {
    let lines = "read(path='a.txt', limit=3)\n".repeat(4_000);
    let text = format!("<tool_call>{lines}</tool_call>");
    let pieces: Vec<&str> =
        text.as_bytes().chunks(7).map(|piece| std::str::from_utf8(piece).unwrap()).collect();
    let whole = run_pieces(Options::for_whole_reply(), End::default(), Field::Content, &[&text]);
    assert!(!whole.calls.is_empty());
    assert_eq!(run_pieces(Options::for_whole_reply(), End::default(), Field::Content, &pieces), whole);
}

fn events_of(options: Options, pieces: &[&str]) -> Vec<Vec<Event>> {
    let mut engine = Engine::new(Arc::new(Tools::from_json(TOOLS).unwrap()), options);
    let push = |piece: &&str| {
        let mut out: Vec<Event> = Vec::new();
        engine.push(Field::Content, piece, &mut out);
        out
    };
    let mut events: Vec<Vec<Event>> = pieces.iter().map(push).collect();
    let mut last = Vec::new();
    engine.finish(End::default(), &mut last);
    events.push(last);
    events
}

#[test]
fn a_complete_call_does_not_wait_for_later_text() {
    let read = |path: &str| {
        format!("<tool_call>{{\"name\":\"read\",\"arguments\":{{\"path\":\"{path}\"}}}}</tool_call>")
    };
    let pieces = [&read("a"), "\n", &read("b"), "\nBoth are", " fine."];
    let called = |events: &[Event]| events.iter().any(|event| matches!(event, Event::ToolCall(_)));
    let events = events_of(Options::default(), &pieces);
    assert_eq!(
        events.iter().map(|step| called(step)).collect::<Vec<_>>(),
        [true, false, true, false, false, false]
    );
    assert_eq!(events[3], [Event::Content("Both are".into())]);
    // Only the end shows that no `</think>` follows.
    let events = events_of(Options::for_whole_reply(), &pieces);
    assert_eq!(
        events.iter().map(|step| called(step)).collect::<Vec<_>>(),
        [false, false, false, false, false, true]
    );
}

#[test]
fn an_undeclared_call_that_stays_text_is_noted() {
    let call = "<tool_call>{\"name\":\"paint\",\"arguments\":{}}</tool_call>";
    for text in [call.to_owned(), format!("{call} and more")] {
        let turn = run_with(Options::default(), End::default(), Field::Content, &text);
        assert_eq!(turn.content, text);
        assert_eq!(turn.notes, [Note::LeftAsText { name: "paint".into(), why: Dropped::Undeclared }]);
    }
}
