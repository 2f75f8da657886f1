//! Random tools and arguments, written in every dialect, come back equal.

use std::sync::Arc;

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Map, Value, json};

use crate::oracle::rewrite::{Call, is_writable};
use crate::oracle::writers::{self, Writer};
use crate::{Options, Tools, dialects, oracle};

/// A parameter: its type's name and a value of that type.
type Parameter = (&'static str, Value);

fn schemas() -> u32 {
    std::env::var("RESPOOL_SCHEMAS").ok().and_then(|count| count.parse().ok()).unwrap_or(100)
}

fn text(writer: &Writer) -> BoxedStrategy<String> {
    if writer.flat {
        return "[a-zA-Z0-9 _./:é漢🙂\"'-]{1,24}".prop_map(|text| text.trim().to_owned()).boxed();
    }
    prop_oneof![
        6 => "[ -~é漢🙂\n\t\"'\\\\{}]{0,40}",
        1 => Just("use </tool_call> and ``` here: {\"name\": \"x\"}".to_owned()),
        1 => Just("\"quoted\" 'single' \\ back\\slash \r\n\u{1} end".to_owned()),
        1 => "[a-z ]{1,8}".prop_map(|part| part.repeat(4000)),
    ]
    .boxed()
}

fn scalar(writer: &Writer) -> BoxedStrategy<Parameter> {
    prop_oneof![
        text(writer).prop_map(|text| ("string", Value::String(text))),
        any::<i32>().prop_map(|number| ("integer", json!(number))),
        (-1.0e6..1.0e6_f64).prop_map(|number| ("number", json!(number))),
        any::<bool>().prop_map(|flag| ("boolean", json!(flag))),
    ]
    .boxed()
}

fn parameter(writer: &Writer) -> BoxedStrategy<Parameter> {
    if writer.flat {
        return scalar(writer);
    }
    let nested = prop_oneof![
        vec(text(writer), 0..4).prop_map(|items| ("array", json!(items))),
        btree_map("[a-z]{1,6}", scalar(writer).prop_map(|(_, value)| value), 0..4)
            .prop_map(|object| ("object", json!(object))),
        btree_map("[a-z]{1,6}", vec(scalar(writer).prop_map(|(_, value)| value), 0..3), 0..3)
            .prop_map(|object| ("object", json!(object))),
    ];
    prop_oneof![3 => scalar(writer), 1 => nested].boxed()
}

/// Tools with a call each.
fn calls(writer: &Writer) -> impl Strategy<Value = Vec<(String, Vec<(String, Parameter)>)>> + use<> {
    let least = usize::from(writer.flat);
    let parameters = btree_map("[a-z][a-z_]{2,9}", parameter(writer), least..5);
    let parameters = parameters.prop_map(|parameters| parameters.into_iter().collect());
    btree_map("[a-z]{3,5}_[a-z]{1,6}", parameters, 1..4).prop_map(|tools| tools.into_iter().collect())
}

fn tools_of(drawn: &[(String, Vec<(String, Parameter)>)]) -> Tools {
    let tool = |(name, parameters): &(String, Vec<(String, Parameter)>)| {
        let properties: Map<String, Value> =
            parameters.iter().map(|(key, (kind, _))| (key.clone(), json!({"type": kind}))).collect();
        let required: Vec<&String> = parameters.iter().map(|(key, _)| key).collect();
        let schema = json!({"type": "object", "properties": properties, "required": required});
        json!({"type": "function", "function": {"name": name, "parameters": schema}})
    };
    Tools::from_json(&Value::Array(drawn.iter().map(tool).collect()).to_string()).unwrap()
}

fn round_trip(writer: &Writer, drawn: &[(String, Vec<(String, Parameter)>)]) -> Result<(), TestCaseError> {
    let calls: Vec<Call> = drawn
        .iter()
        .map(|(name, parameters)| {
            (name.clone(), parameters.iter().map(|(key, (_, value))| (key.clone(), value.clone())).collect())
        })
        .collect();
    if !is_writable(writer, &calls) {
        return Ok(());
    }
    let text = (writer.write)(&calls);
    let tools = Arc::new(tools_of(drawn));
    let turn = oracle::run(&tools, Options::default(), &[&text], false, false);
    let read: Vec<Call> = turn
        .calls
        .iter()
        .map(|call| (call.name.clone(), serde_json::from_str(&call.arguments).unwrap_or_default()))
        .collect();
    prop_assert_eq!(&read, &calls, "{}: {}", writer.dialect, text);
    prop_assert_eq!(turn.content.trim(), "", "{}: {}", writer.dialect, text);
    let middle = text.char_indices().nth(text.chars().count() / 2).map_or(0, |(at, _)| at);
    let split = oracle::run(&tools, Options::default(), &[&text[..middle], &text[middle..]], false, false);
    prop_assert_eq!(split, turn);
    Ok(())
}

#[test]
fn calls_come_back_from_every_dialect() {
    let mut failures = Vec::new();
    for writer in writers::all() {
        let config = Config { cases: schemas(), failure_persistence: None, ..Config::default() };
        let outcome = TestRunner::new(config).run(&calls(&writer), |drawn| round_trip(&writer, &drawn));
        if let Err(error) = outcome {
            failures.push(format!("{}: {error}", writer.dialect));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn every_dialect_with_calls_has_a_writer() {
    let without = [
        "native_copy",
        "think",
        "think_tokens",
        "harmony_glued",
        "bare_think",
        "answer_frames",
        "end_tokens",
        "gemma_stripped",
        "fuzzy",
    ];
    let written: Vec<&str> = writers::all().iter().map(|writer| writer.dialect).collect();
    for dialect in dialects::TABLE {
        assert_eq!(written.contains(&dialect.name), !without.contains(&dialect.name), "{}", dialect.name);
    }
}
