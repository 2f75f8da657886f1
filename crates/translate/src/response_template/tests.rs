//! Templates as Hugging Face writes them, and replies that they read.

use std::collections::HashSet;
use std::sync::Arc;

use super::*;
use crate::ids::Ids;
use crate::interpret::{ReplyRules, interpret_completion};
use tool_call_parser::{Options, Tools};
use wire::Completion;

const QWEN: &str = r#"{"start_anchor": "<|im_start|>assistant\n", "fields": {
    "reasoning_content": {"open": "<think>", "close": "</think>"},
    "tool_calls": {"open_pattern": "\\s*<tool_call>\\s*<function=(?P<name>[^>\\n]+)>", "close_pattern": "</function>\\s*</tool_call>",
        "repeats": true, "content": "xml-inline",
        "content_args": {"tag_pattern": "<parameter=(?P<key>[^>\\n]+)>\\s*(?P<value>.*?)\\s*</parameter>"},
        "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}},
    "content": {"close_pattern": "\\s*(?:<\\|im_end\\|>|<\\|endoftext\\|>)"}}}"#;
const GEMMA: &str = r#"{"response_template": {"start_anchor": "<|turn>model\n", "fields": {
    "tool_calls": {"open_pattern": "<\\|tool_call>call:(?P<name>\\w+)", "close": "<tool_call|>", "repeats": true, "content": "json",
        "content_args": {"unquoted_keys": true, "string_delims": [["<|\"|>", "<|\"|>"]]},
        "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}},
    "content": {"close": ["<turn|>", "<eos>"]}}}}"#;
const LISTED: &str = r#"{"start_anchor": "x", "fields": {
    "tool_calls": {"open": "@@calls", "close": "@@end", "content": "json", "transform_each": true,
        "transform": {"function": {"name": "{tool.name}", "arguments": "{input}"}}},
    "content": {}}}"#;
const LINES: &str = r#"{"start_anchor": "x", "fields": {
    "tool_calls": {"open_pattern": "%(?P<name>\\w+)\\n", "close": "%", "content": "kv-lines", "content_args": {"kv_sep": "="},
        "transform": {"name": "{name}", "arguments": "{content}"}}}}"#;

fn call(name: &str, arguments: &str) -> NativeCall {
    NativeCall { id: None, name: name.into(), arguments: arguments.into() }
}

fn check(template: &str, text: &str, expected: &[Part<'_>]) {
    let template = ResponseTemplate::parse(template).unwrap();
    assert_eq!(template.split_text(text), expected, "{text}");
}

#[test]
fn regions_become_reasoning_content_and_calls() {
    let text = "<think>Hm.</think>I look.\n<tool_call>\n<function=read>\n<parameter=path>\na.txt\n</parameter>\n</function>\n</tool_call><|im_end|>";
    let calls = Part::Calls(vec![call("read", r#"{"path":"a.txt"}"#)]);
    check(QWEN, text, &[Part::Reasoning("Hm."), Part::Content("I look."), calls]);
    let text = "<|tool_call>call:read{path:<|\"|>a \"b\", c:1<|\"|>,limit:3}<tool_call|><turn|>";
    check(GEMMA, text, &[Part::Calls(vec![call("read", r#"{"path":"a \"b\", c:1","limit":3}"#)])]);
    let text = r#"@@calls[{"tool": {"name": "read"}, "input": {"path": "a"}}, {"tool": {"name": "now"}, "input": {}}]@@end done"#;
    let calls = Part::Calls(vec![call("read", r#"{"path":"a"}"#), call("now", "{}")]);
    check(LISTED, text, &[calls, Part::Content(" done")]);
    check(
        LINES,
        "%read\npath = a\nlimit = 3\n%",
        &[Part::Calls(vec![call("read", r#"{"path":"a","limit":"3"}"#)])],
    );
}

#[test]
fn unreadable_regions_stay_text() {
    let text = "@@calls[1, 2]@@end";
    check(LISTED, text, &[Part::Content(text)]);
    let text = "@@calls{\"tool\"";
    check(LISTED, text, &[Part::Content(text)]);
    check(QWEN, "The <tool_call> tag and </think>.", &[Part::Content("The <tool_call> tag and </think>.")]);
}

#[test]
fn the_engine_gets_unended_calls() {
    let text = "<|tool_call>call:read{path:<|\"|>a";
    check(GEMMA, text, &[Part::Calls(vec![call("read", "{path:<|\"|>a")])]);
}

#[test]
fn wrong_templates_say_where_and_why() {
    for (template, expected) in [
        ("[", "is not JSON"),
        ("{}", "it has no `fields`"),
        (r#"{"version": 2, "fields": {"content": {}}}"#, "only version 1"),
        (r#"{"fields": {"a": {}, "b": {}}}"#, "more than one field"),
        (
            r#"{"fields": {"a": {"open": "x", "open_pattern": "y"}}}"#,
            "field `a` has both `open` and `open_pattern`",
        ),
        (r#"{"fields": {"a": {"open": [1]}}}"#, "field `a`: `open` lists something other than text"),
        (r#"{"fields": {"a": {"open_pattern": "("}}}"#, "field `a`, `open`"),
        (r#"{"fields": {"a": {"open_pattern": "x(?=y)"}}}"#, "looks ahead or behind"),
        (r#"{"fields": {"a": {"open": "x", "content": "yaml"}}}"#, "no content parser `yaml`"),
        (r#"{"fields": {"a": {"open": "x", "content": "xml-inline"}}}"#, "`tag_pattern` has no group `key`"),
    ] {
        let error = ResponseTemplate::parse(template).unwrap_err().to_string();
        assert!(error.contains(expected), "{template}: {error}");
    }
}

#[test]
fn the_models_template_reads_a_reply() {
    let tools = r#"[{"type":"function","function":{"name":"read"}}]"#;
    let rules = |template: Option<&str>| ReplyRules {
        tools: Arc::new(Tools::from_json(tools).unwrap()),
        options: Options::for_whole_reply(),
        response_template: template.map(|template| Arc::new(ResponseTemplate::parse(template).unwrap())),
        token_limit: None,
    };
    let reply = serde_json::json!({"choices": [{"index": 0, "finish_reason": "stop", "message": {
        "role": "assistant", "content": "%read\npath = a\n%"}}]});
    let read = |template: Option<&str>| {
        let completion = Completion::parse(&reply.to_string(), &[]).unwrap();
        interpret_completion(completion, &rules(template), &mut Ids::new(1, HashSet::new()))
            .choices
            .remove(0)
            .turn
    };
    let turn = read(Some(LINES));
    assert_eq!((turn.calls[0].name.as_str(), turn.calls[0].arguments.as_str()), ("read", r#"{"path":"a"}"#));
    assert_eq!(turn.content, "");
    assert_eq!(read(None).content, "%read\npath = a\n%");
}
