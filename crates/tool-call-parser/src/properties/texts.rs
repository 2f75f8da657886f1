//! Random texts that are dense with what the engine looks for: marks of every dialect and pieces of them,
//! calls of every writer whole, cut off and damaged, quotations, fences, harmony headers, letters of several
//! bytes, floods of space.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Map, Value, json};

use crate::dialects::{Opens, TABLE};
use crate::oracle::{FRAGMENTS, writers};

/// Text that is dense with marks.
pub(super) fn near_calls() -> BoxedStrategy<String> {
    vec(select(FRAGMENTS.as_slice()), 0..24).prop_map(|parts| parts.concat()).boxed()
}

/// Text as models write it and break it.
pub(super) fn broken_texts() -> BoxedStrategy<String> {
    vec(piece(), 1..7).prop_map(|pieces| pieces.concat()).boxed()
}

fn piece() -> BoxedStrategy<String> {
    prop_oneof![
        6 => select(FRAGMENTS.as_slice()).prop_map(str::to_owned),
        3 => (select(marks()), any::<Index>(), any::<bool>()).prop_map(|(mark, at, head)| part(mark, at, head)),
        3 => call(),
        4 => (call(), any::<Index>(), any::<bool>()).prop_map(|(call, at, head)| part(&call, at, head)),
        2 => (call(), any::<Index>(), select(FRAGMENTS.as_slice())).prop_map(|(call, at, thrust)| {
            let at = boundary(&call, at);
            format!("{}{thrust}{}", &call[..at], &call[at..])
        }),
        2 => (call(), select(QUOTES.as_slice())).prop_map(|(call, (open, close))| format!("{open}{call}{close}")),
        2 => header(),
        1 => (select(SPACES.as_slice()), 1_usize..40).prop_map(|(space, count)| space.repeat(count)),
        1 => "[a-zé漢🙂 .,:\\-]{0,20}",
    ]
    .boxed()
}

/// Text that may stand around a call, real or only mentioned.
const QUOTES: [(&str, &str); 14] = [
    ("`", "`"),
    ("``", "``"),
    ("> ", "\n"),
    ("\"", "\""),
    ("```\n", "\n```\n"),
    ("```json\n", "\n```\n"),
    ("```tool_call\n", "\n```"),
    ("```python\n", "\n```\n"),
    ("~~~~\n", "\n~~~~\n"),
    ("Here is an example:\n", "\n"),
    ("Do not call ", ". "),
    ("(", ")"),
    ("<think>", "</think>"),
    ("\n\n    ", "\n\n"),
];
const SPACES: [&str; 7] = [" ", "\n", "\t", "\r\n", "\u{a0}", "\u{2028}", " \n"];

fn marks() -> Vec<&'static str> {
    let marks = TABLE.iter().flat_map(|dialect| match dialect.opens {
        Opens::Anywhere(marks) | Opens::Line(marks) => marks,
        Opens::Name | Opens::Tag(_) => &[],
    });
    marks.copied().collect()
}

fn boundary(text: &str, at: Index) -> usize {
    text.floor_char_boundary(at.index(text.len() + 1))
}

fn part(text: &str, at: Index, head: bool) -> String {
    let (one, two) = text.split_at(boundary(text, at));
    if head { one } else { two }.to_owned()
}

/// Returns one or two calls in some dialect.
fn call() -> BoxedStrategy<String> {
    let values = select(vec![
        json!("a"),
        json!("b \"c\" <d> 'e' \\ é"),
        json!("</tool_call>\n{}"),
        json!(7),
        json!([1, "x"]),
    ]);
    (any::<Index>(), values, 1_usize..3)
        .prop_map(|(writer, value, count)| {
            let writers = writers::all();
            let writer = &writers[writer.index(writers.len())];
            let read = Map::from_iter([("path".to_owned(), value.clone())]);
            let exec =
                Map::from_iter([("command".to_owned(), value), ("more".to_owned(), Value::Bool(true))]);
            let calls = [("read".to_owned(), read), ("exec".to_owned(), exec)];
            (writer.write)(&calls[..count])
        })
        .boxed()
}

/// Returns a harmony header of random parts.
fn header() -> BoxedStrategy<String> {
    const PARTS: [&str; 16] = [
        "<|start|>",
        "<|channel|>",
        "<|message|>",
        "<|constrain|>",
        "assistant",
        "analysis",
        "commentary",
        "final",
        " to=functions.read",
        " to=exec",
        " to=python",
        " ",
        "json",
        "code",
        "{\"path\":\"a\"}",
        "<|end|>",
    ];
    vec(select(PARTS.as_slice()), 2..8).prop_map(|parts| parts.concat()).boxed()
}
