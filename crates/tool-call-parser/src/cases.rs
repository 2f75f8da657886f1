//! The reported cases (`cases/toolcall-cases.jsonl`) and our own from chat templates and servers'
//! documentation (`cases/toolcall-cases-own.jsonl`): each whole, char by char and in random pieces, with one
//! result.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::{End, Engine, Field, NativeCall, Options, Tools};
use crate::event::{Event, Parsed};

/// One line of the case file.
#[derive(Deserialize)]
struct Case {
    id: String,
    field: String,
    text: String,
    expected: Vec<ExpectedCall>,
    expected_content: String,
    tools: Vec<Declared>,
    #[serde(default)]
    finish_reason: Option<String>,
    /// Why the case is decided against.
    #[serde(default)]
    argued: Option<String>,
}

#[derive(Deserialize)]
struct ExpectedCall {
    name: String,
    arguments: Value,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Declared {
    Name(String),
    Full { name: String, parameters: Value },
}

#[derive(Deserialize)]
struct Native {
    name: String,
    arguments: String,
}

impl Case {
    fn tools(&self) -> Arc<Tools> {
        let tools = self.tools.iter().map(|tool| match tool {
            Declared::Name(name) => (name.clone(), None),
            Declared::Full { name, parameters } => {
                (name.clone(), RawValue::from_string(parameters.to_string()).ok())
            }
        });
        Arc::new(tools.collect())
    }

    fn end(&self) -> End {
        End { cut: self.finish_reason.as_deref() == Some("length") }
    }

    fn run<'a>(&self, pieces: impl IntoIterator<Item = &'a str>) -> Parsed {
        let mut engine = Engine::new(self.tools(), Options::for_whole_reply());
        let mut out: Vec<Event> = Vec::new();
        if self.field == "tool_calls" {
            for Native { name, arguments } in serde_json::from_str::<Vec<Native>>(&self.text).unwrap() {
                engine.push_native(NativeCall { id: None, name, arguments }, &mut out);
            }
        } else {
            let field = if self.field == "reasoning" { Field::Reasoning } else { Field::Content };
            pieces.into_iter().for_each(|piece| engine.push(field, piece, &mut out));
        }
        engine.finish(self.end(), &mut out);
        out.into_iter().collect()
    }

    /// Returns the problem of the turn, if it has one.
    fn judge(&self, turn: &Parsed) -> Option<String> {
        let calls: Vec<(&str, Value)> = turn
            .calls
            .iter()
            .map(|call| (call.name.as_str(), serde_json::from_str(&call.arguments).unwrap_or_default()))
            .collect();
        let expected: Vec<(&str, Value)> =
            self.expected.iter().map(|call| (call.name.as_str(), call.arguments.clone())).collect();
        if calls != expected {
            return Some(format!("calls {calls:?} expected {expected:?}"));
        }
        let content = turn.content.trim();
        (content != self.expected_content.trim())
            .then(|| format!("content {content:?} expected {:?}", self.expected_content))
    }
}

fn cases() -> Vec<Case> {
    let reported = include_str!("../cases/toolcall-cases.jsonl");
    let own = include_str!("../cases/toolcall-cases-own.jsonl");
    reported.lines().chain(own.lines()).map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn every_case_passes_or_is_argued() {
    let mut failures = BTreeMap::new();
    let mut argued = 0;
    for case in cases() {
        let turn = case.run([case.text.as_str()]);
        match (case.judge(&turn), &case.argued) {
            (Some(_), Some(_)) => argued += 1,
            (Some(problem), None) => {
                failures.insert(case.id, format!("{problem} notes {:?}", turn.notes));
            }
            (None, Some(_)) => {
                failures.insert(case.id, "passes, yet is argued".to_owned());
            }
            (None, None) => {}
        }
    }
    let report: Vec<String> = failures.iter().map(|(id, problem)| format!("{id}: {problem}")).collect();
    assert!(report.is_empty(), "{} failures\n{}", report.len(), report.join("\n"));
    assert!(argued <= 3, "{argued} cases are argued away");
}

#[test]
fn every_split_of_a_case_gives_the_same_turn() {
    for case in cases() {
        let whole = case.run([case.text.as_str()]);
        let chars: Vec<String> = case.text.chars().map(String::from).collect();
        assert_eq!(case.run(chars.iter().map(String::as_str)), whole, "{} char by char", case.id);
        for (at, _) in case.text.char_indices() {
            let (one, two) = case.text.split_at(at);
            assert_eq!(case.run([one, two]), whole, "{} split at {at}", case.id);
        }
        for size in [2, 3, 5, 7, 16] {
            let pieces: Vec<String> = chars.chunks(size).map(<[String]>::concat).collect();
            assert_eq!(case.run(pieces.iter().map(String::as_str)), whole, "{} by {size}", case.id);
        }
    }
}
