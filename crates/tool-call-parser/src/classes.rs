//! Checks, class by class, the promises of the table: of every row, of every pair of rows, and of each kind
//! of mistake that must not become a wrong call.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::calls::RawCall;
use super::dialects::{Dialect, Found, Opens, Step, TABLE};
use super::{End, Engine, Field, Options, PreferredDialects, Tools, oracle};
use crate::event::{Dropped, Event, Note, Parsed};

const TOOLS: &str = r#"[
 {"type":"function","function":{"name":"read","parameters":{"type":"object","required":["path"],
   "properties":{"path":{"type":"string"},"limit":{"type":"integer"}}}}},
 {"type":"function","function":{"name":"set","parameters":{"type":"object","properties":{
   "text":{"type":"string"},"note":{"anyOf":[{"type":"string"},{"type":"null"}]},"any":{"description":"anything"},
   "ratio":{"type":"float"},"list":{"type":"array","items":{"type":"object"}},"words":{"type":"array","items":{"type":"string"}},
   "nested":{"type":"object","properties":{"deep":{"type":"object","properties":{"n":{"type":"integer"}}}}}}}}},
 {"type":"function","function":{"name":"web_search","parameters":{"type":"object","required":["query"],
   "properties":{"query":{"type":"string"}}}}},
 {"type":"function","function":{"name":"now"}}]"#;

fn tools() -> Arc<Tools> {
    Arc::new(Tools::from_json(TOOLS).unwrap())
}

fn run(mut engine: Engine, pieces: &[&str], cut: bool) -> Parsed {
    let mut out: Vec<Event> = Vec::new();
    pieces.iter().for_each(|piece| engine.push(Field::Content, piece, &mut out));
    engine.finish(End { cut }, &mut out);
    out.into_iter().collect()
}

/// Returns the turn of a text, the same whole and char by char.
fn turn_with(options: Options, text: &str, cut: bool) -> Parsed {
    let chars: Vec<&str> = text.char_indices().map(|(at, char)| &text[at..at + char.len_utf8()]).collect();
    let whole = run(Engine::new(tools(), options), &[text], cut);
    assert_eq!(run(Engine::new(tools(), options), &chars, cut), whole, "char by char: {text}");
    whole
}

fn turn(text: &str) -> Parsed {
    turn_with(Options::for_whole_reply(), text, false)
}

fn calls(turn: &Parsed) -> String {
    let calls = turn.calls.iter().map(|call| format!("{}{}", call.name, call.arguments));
    calls.collect::<Vec<_>>().join(";")
}

fn check(text: &str, expected: &str, content: &str) {
    let turn = turn(text);
    assert_eq!(
        (calls(&turn).as_str(), turn.content.as_str()),
        (expected, content),
        "{text}\n{:?}",
        turn.notes
    );
}

fn dropped(turn: &Parsed) -> Vec<Dropped> {
    let why = turn.notes.iter().filter_map(|note| match note {
        Note::Dropped { why, .. } => Some(*why),
        _ => None,
    });
    why.collect()
}

/// A row of an invented dialect, with a first byte that no other mark has.
static NEW: Dialect = Dialect {
    name: "new",
    models: "None.",
    families: &[],
    grammar: "",
    example: "",
    opens: Opens::Anywhere(&["@@call "]),
    read: |view| match view.body().find("@@") {
        None => view.wait_or_reject(super::dialects::Wait::Any),
        Some(length) => {
            let call = RawCall::from_text("read", &view.body()[..length]);
            Step::Read(Found::Calls { calls: vec![call], firm: true }, view.mark + length + 2)
        }
    },
};

/// The same with a mark that begins with a letter.
static WORDY: Dialect = Dialect { name: "wordy", opens: Opens::Anywhere(&["tool#call "]), ..copy(&NEW) };

const fn copy(dialect: &Dialect) -> Dialect {
    Dialect {
        name: dialect.name,
        models: dialect.models,
        families: dialect.families,
        grammar: dialect.grammar,
        example: dialect.example,
        opens: dialect.opens,
        read: dialect.read,
    }
}

#[test]
fn a_new_dialect_works_by_its_row_alone() {
    let table: Vec<&'static Dialect> = TABLE.iter().copied().chain([&NEW, &WORDY]).collect();
    for text in
        ["It is so: @@call {\"path\":\"a\"}@@ and on.", "It is so: tool#call {\"path\":\"a\"}@@ and on."]
    {
        for size in [1, 2, 5, text.len()] {
            let pieces: Vec<&str> =
                text.as_bytes().chunks(size).map(|piece| std::str::from_utf8(piece).unwrap()).collect();
            let turn = run(Engine::with_dialects(tools(), &table), &pieces, false);
            assert_eq!(calls(&turn), r#"read{"path":"a"}"#, "{text} by {size}");
            assert_eq!(turn.content, "It is so: and on.");
        }
        // Without the row it is text.
        assert_eq!(turn(text).content, text);
    }
}

/// The example of every row is read by that row, and whatever dialect is expected instead, the same calls
/// come out.
#[test]
fn every_example_is_read_by_its_own_row() {
    for dialect in TABLE.iter().filter(|dialect| !dialect.example.is_empty() && dialect.name != "fuzzy") {
        let plain = turn(dialect.example);
        let named = plain.notes.contains(&Note::Dialect(dialect.name));
        assert_eq!(named, !plain.calls.is_empty(), "{}: {:?}", dialect.name, plain.notes);
        for other in TABLE {
            let options = Options {
                preferred_dialects: PreferredDialects::from_dialect_names([other.name]),
                ..Options::for_whole_reply()
            };
            let turn = turn_with(options, dialect.example, false);
            assert_eq!(calls(&turn), calls(&plain), "{} where {} is expected", dialect.name, other.name);
            assert_eq!(turn.content, plain.content, "{} where {} is expected", dialect.name, other.name);
        }
    }
}

/// Whatever two rows claim the same bytes: a form that one of them writes gives its calls with any of them
/// expected.
#[test]
fn every_written_form_gives_its_calls_whatever_is_expected() {
    let arguments = Map::from_iter([("path".to_owned(), Value::from("a b"))]);
    for writer in oracle::writers::all() {
        let text = (writer.write)(&[("read".to_owned(), arguments.clone())]);
        for other in TABLE {
            let options = Options {
                preferred_dialects: PreferredDialects::from_dialect_names([other.name]),
                ..Options::for_whole_reply()
            };
            let turn = run(Engine::new(tools(), options), &[&text], false);
            let read: Vec<Value> =
                turn.calls.iter().map(|call| serde_json::from_str(&call.arguments).unwrap()).collect();
            assert_eq!(read, [Value::Object(arguments.clone())], "{text} where {} is expected", other.name);
            assert_eq!(turn.content.trim(), "", "{text} where {} is expected", other.name);
        }
    }
}

/// Where the mark of one row begins the example of another, the earlier row that can read it does.
#[test]
fn the_earlier_of_two_fitting_rows_reads() {
    let mut pairs = 0;
    for (index, early) in TABLE.iter().enumerate() {
        for late in &TABLE[index + 1..] {
            let meets = early.opens.marks().iter().any(|mark| late.example.starts_with(mark));
            if !meets || late.example.is_empty() {
                continue;
            }
            pairs += 1;
            let alone = run(Engine::with_dialects(tools(), &[early]), &[late.example], false);
            let expected = if alone.calls.is_empty() { late.name } else { early.name };
            let both = run(Engine::with_dialects(tools(), &[early, late]), &[late.example], false);
            let read = both.notes.iter().find_map(|note| match note {
                Note::Dialect(name) => Some(*name),
                _ => None,
            });
            assert_eq!(read.unwrap_or(expected), expected, "{} before {}", early.name, late.name);
        }
    }
    assert!(pairs >= 9, "{pairs}");
}

#[test]
fn unquoted_values_get_the_schemas_type() {
    let set = |key: &str, value: &str| {
        format!(
            "<tool_call>\n<function=set>\n<parameter={key}>\n{value}\n</parameter>\n</function>\n</tool_call>"
        )
    };
    check(&set("note", "null"), r#"set{"note":null}"#, "");
    check(&set("text", "null"), r#"set{"text":"null"}"#, "");
    check(&set("any", "null"), r#"set{"any":null}"#, "");
    check(&set("any", "True"), r#"set{"any":true}"#, "");
    check(&set("any", "3"), r#"set{"any":3}"#, "");
    check(&set("ratio", "3.5"), r#"set{"ratio":3.5}"#, "");
    check(&set("list", r#"[{\"id\": \"1\"}]"#), r#"set{"list":[{"id":"1"}]}"#, "");
    check(&set("words", "red"), r#"set{"words":["red"]}"#, "");
    for unclear in ["[{\"id\"", "null", "{\"a\":", "red, green"] {
        let turn = turn(&set("words", unclear));
        assert!(
            turn.calls[0].arguments.contains(&serde_json::json!({ "words": unclear }).to_string()),
            "{turn:?}"
        );
        assert!(!turn.calls[0].problems.is_empty());
    }
}

#[test]
fn white_space_belongs_to_the_value() {
    for (open, close) in
        [("<invoke name=\"set\">", "</invoke>"), ("<｜DSML｜invoke name=\"set\">", "</｜DSML｜invoke>")]
    {
        let space = if open.contains("DSML") { "｜DSML｜" } else { "" };
        check(
            &format!("{open}<{space}parameter name=\"text\"> a\nb\n</{space}parameter>{close}"),
            r#"set{"text":" a\nb\n"}"#,
            "",
        );
    }
    check(
        "<seed:tool_call>\n<function=set>\n<parameter=text>a\n</parameter>\n</function>\n</seed:tool_call>",
        r#"set{"text":"a\n"}"#,
        "",
    );
    check(
        "<tool_call>set\n<arg_key>text</arg_key>\n<arg_value>\n a \n</arg_value>\n</tool_call>",
        r#"set{"text":"\n a \n"}"#,
        "",
    );
}

#[test]
fn foreign_marks_are_not_bare_values() {
    for body in [
        "<|channel|>commentary to=functions.read<|message|><tool_call>x</tool_call><|call|>",
        "[TOOL:read|path=<|tool_call>call:x{}]",
        "Action: read\nAction Input: <invoke name=\"x\">",
    ] {
        assert!(turn(body).calls.is_empty(), "{body}");
    }
    // Between tags of its own, and in quotes, any text is the user's.
    check(
        "<tool_call>\n<function=read>\n<parameter=path>\n<tool_call>.txt\n</parameter>\n</function>\n</tool_call>",
        r#"read{"path":"<tool_call>.txt"}"#,
        "",
    );
    check(
        "<tool_call>{\"name\":\"read\",\"arguments\":{\"path\":\"<|channel|>\"}}</tool_call>",
        r#"read{"path":"<|channel|>"}"#,
        "",
    );
}

#[test]
fn brackets_are_closed_only_after_a_whole_value() {
    check("<tool_call>{\"name\":\"read\",\"arguments\":{\"path\":\"a\"", r#"read{"path":"a"}"#, "");
    for open in [
        "<tool_call>{\"name\":\"now\",\"arguments\":{",
        "<tool_call>{\"name\":\"read\",\"arguments\":{\"path\":\"a",
        "<tool_call>{\"name\":\"read\",\"arguments\":{\"path\":\"a\",",
        "<tool_call>{\"name\":\"read\",\"arguments\":{\"path\":\"a\",\"limit\":1",
        "<tool_call>{\"name\":\"read\",\"arguments\":{\"path\":a",
        "<|tool_calls|>[{'name': 'now'",
        "<tool_call>read\n<arg_key>path</arg_key>\n<arg_value>a</arg_value>\n",
    ] {
        let turn = turn(open);
        assert_eq!(
            (calls(&turn).as_str(), turn.content.as_str()),
            ("", open),
            "shown, for want of anything else"
        );
        assert_eq!(dropped(&turn), [Dropped::Unclosed], "{open}");
        assert_eq!(
            dropped(&turn_with(Options::for_whole_reply(), open, true)),
            [Dropped::Truncated],
            "{open}"
        );
    }
    // Without marks nothing shows that it is a call.
    for text in ["{\"name\":\"read\",\"arguments\":{\"path\":\"a\"}", "{\"name\":\"now\",\"arguments\":{"] {
        check(text, "", text);
    }
    check("[{\"name\":\"read\",\"arguments\":{\"path\":\"a\"}}", r#"read{"path":"a"}"#, "");
    // Nothing that a tool declares can be missing here.
    check(
        "<tool_call>web_search\n<arg_key>query</arg_key>\n<arg_value>a</arg_value>\n",
        r#"web_search{"query":"a"}"#,
        "",
    );
}

#[test]
fn calls_before_the_end_of_the_reasoning_are_none() {
    let call = "<tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call>";
    for (mark, end) in
        [("</think>", "\n\n"), ("<|close|>think<|sep|>", ""), ("<|END_THINKING|>", ""), ("</mm:think>", "")]
    {
        let text = format!(
            "I might call {call}, or not.{mark}{end}{}",
            call.replace("now", "web_search").replace("{}", "{\"query\":\"a\"}")
        );
        let turn = turn(&text);
        assert_eq!(calls(&turn), r#"web_search{"query":"a"}"#, "{text}");
        assert_eq!(dropped(&turn), [Dropped::InReasoning], "{text}");
        assert!(!turn.content.contains(mark), "{}", turn.content);
    }
    // Who only speaks of the mark ends nothing.
    check(&format!("{call} The </think> tag ends it."), "now{}", "The </think> tag ends it.");
    check(&format!("{call} It is `</think>`."), "now{}", "It is `</think>`.");
}

/// A text becomes the tool's one argument only if it is not JSON at all.
#[test]
fn a_malformed_body_is_not_wrapped_into_arguments() {
    for body in [
        r#"{"name": "web_search", "arguments": {"query": }}"#,
        r#"{"name": "web_search", "arguments": {"query": "a"#,
        r#"["web_search", "a""#,
    ] {
        for (open, close) in [
            ("<|channel|>commentary to=functions.web_search<|message|>", "<|call|>"),
            ("Action: web_search\nAction Input: ", "\n"),
            ("<tool: function>\nweb_search ", "</tool>"),
        ] {
            let text = format!("{open}{body}{close}");
            assert!(turn(&text).calls.is_empty(), "{text}: {:?}", turn(&text).calls);
        }
    }
}

#[test]
fn one_broken_sibling_does_not_lose_the_others() {
    let good = r#"read{"path":"a"}"#;
    for text in [
        "<｜tool▁calls▁begin｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>nobody\n```json\n{\"x\": 1}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>read\n```json\n{\"path\":\"a\"}\n```<｜tool▁call▁end｜>\n<｜tool▁calls▁end｜>",
        "<tool_calls>\n{\"name\": \"read\", \"arguments\": {\"path\": }\n{\"name\": \"read\", \"arguments\": {\"path\":\"a\"}}\n</tool_calls>",
        "<tool_calls>\n{\"name\": \"read\", \"arguments\": {\"path\":\"a\"}}\n{\"name\": \"read\", bad}\n</tool_calls>",
        "<tool_calls><tool_call>nobody<tool_sep></tool_call><tool_call>read<tool_sep><arg_key>path</arg_key><arg_value>a</arg_value></tool_call></tool_calls>",
        "<|content_invoke_tool_json|>not-json<|end_message|><|content_invoke_tool_json|>{\"name\":\"read\",\"args\":{\"path\":\"a\"}}<|end_message|>",
        "<tool_call>read\n<arg_key>path</arg_key>\n<arg_value>a</arg_value>\n<arg_key>colour\n<arg_value>red</arg_value>\n</tool_call>",
    ] {
        assert_eq!(calls(&turn(text)), good, "{text}\n{:?}", turn(text));
    }
}

#[test]
fn what_frames_a_call_or_an_answer_goes() {
    check("<|START_RESPONSE|>It has 3 lines.<|END_RESPONSE|>", "", "It has 3 lines.");
    check("<|open|>response<|sep|>Hi.<|close|>response<|sep|><|close|>message<|sep|>", "", "Hi.");
    check("<|message_model|><|content_text|>Hi.<|end_message|>", "", "Hi.");
    check("I look.<|function_call|>{\"name\": \"now\", \"arguments\": {}}", "now{}", "I look.");
    check("The <|START_RESPONSE|> token begins it.", "", "The <|START_RESPONSE|> token begins it.");
    let turn = turn("[TOOL_CALLS]");
    assert!(turn.is_blank() && turn.notes == [Note::Repaired("framing")]);
}

#[test]
fn a_message_to_the_user_arrives_whatever_it_quotes() {
    let quoted = "You write <|start|>assistant to=read<|message|>{\"path\":\"a\"} for it.";
    check(&format!("<|start|>assistant to=user<|message|>{quoted}<|eom|>"), "", quoted);
    check("<|start|>assistant to=user<|message|>Hello.<|end|>", "", "Hello.");
    let turn = turn(" to=self<|message|>Hm.<|eom|><|start|>assistant to=user<|message|>Hello.");
    assert_eq!((turn.reasoning.as_str(), turn.content.as_str()), ("Hm.", "Hello."));
}

#[test]
fn a_leading_recipient_is_a_call() {
    let read = r#"read{"path":"a"}"#;
    for header in [
        " to=read<|channel|>commentary json<|message|>",
        "to=functions.read<|channel|>commentary <|constrain|>json<|message|>",
        " to=read<|message|>",
        " to=read<|channel|>commentary code<|message|> Sure: ",
    ] {
        check(&format!("{header}{{\"path\":\"a\"}}<|call|>"), read, "");
    }
    check("to=read {\"path\":\"a\"}", read, "");
    for text in ["to=x is the syntax.", "to= is an assignment", "to=read is what I write"] {
        check(text, "", text);
    }
}

/// Forms in which families that were known wrote calls that were missed.
#[test]
fn calls_of_known_families_in_their_rarer_forms() {
    let read = r#"read{"path":"a"}"#;
    let json = r#"{"name": "read", "arguments": {"path": "a"}}"#;
    for text in [
        format!("<|function_call|>{json}</s>"),
        format!("<|message_sep|>\n\nfunction call<|role_sep|>\n{json}</s>"),
        format!("<|tool_call_start|>[{json}]<|tool_call_end|>"),
        "<｜DSML｜invoke name=\"read\"><｜DSML｜parameter name=\"path\" string=\"true\">a</｜DSML｜parameter></｜DSML｜invoke>".to_owned(),
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>read\n```json\n{\"path\":\"a\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>".to_owned(),
        format!("[TOOL_CALLS][{json}]"),
        "[TOOL_CALLS]read[ARGS]{\"path\":\"a\"}".to_owned(),
    ] {
        check(&text, read, "");
    }
}

#[test]
fn nested_tags_are_objects_and_lists() {
    let m3 = "]<]minimax[>[";
    let text = format!(
        "{m3}<tool_call>{m3}<invoke name=\"set\">{m3}<nested>{m3}<deep>{m3}<n>3{m3}</n>{m3}</deep>{m3}</nested>{m3}<words>{m3}<item>a{m3}</item>{m3}<item>2{m3}</item>{m3}</words>{m3}<text>{m3}<b>x{m3}</b>{m3}</text>{m3}</invoke>{m3}</tool_call>"
    );
    let expected =
        format!(r#"set{{"nested":{{"deep":{{"n":3}}}},"words":["a","2"],"text":"{m3}<b>x{m3}</b>"}}"#);
    check(&text, &expected, "");
}

#[test]
fn attributes_types_and_character_data() {
    check(
        "<|open|>call tool=\"set\" index=\"1\"<|sep|><|open|>argument key=\"text\" type=\"string\"<|sep|>3<|close|>argument<|sep|><|open|>argument key=\"any\" type=\"number\"<|sep|>3<|close|>argument<|sep|><|close|>call<|sep|>",
        r#"set{"text":"3","any":3}"#,
        "",
    );
    check(
        "<function name=\"set\"><param name=\"text\"><![CDATA[<a>&</param>]]></param></function>",
        r#"set{"text":"<a>&</param>"}"#,
        "",
    );
    check(
        "<function name=\"set\"><param name=\"text\"><![CDATA[a</param></function>\n<param name=\"b]]]]><![CDATA[></param></function>c]]></param></function>",
        r#"set{"text":"a</param></function>\n<param name=\"b]]></param></function>c"}"#,
        "",
    );
    check(
        "<function name=\"set\"><param name=\"text\"><![CDATA[a</param></function>",
        "",
        "<function name=\"set\"><param name=\"text\"><![CDATA[a</param></function>",
    );
    for text in [
        "<function name=\"read\"><param name=\"path\">a</param>",
        "<function name=\"read\"><param name=\"path\">a</param><param name=\"path\">b</param></function>",
        "<function name=\"read\"><param>a</param></function>",
        "<function name=\"read\"><param name=\"other\">a</param></function>",
    ] {
        check(text, "", text);
    }
    check("<｜DSML｜invoke name=\"now\"/>", "now{}", "");
    check(
        "<start_function_call>call:read{path:<escape>a, b:c<escape>}<end_function_call>",
        r#"read{"path":"a, b:c"}"#,
        "",
    );
}

#[test]
fn a_bare_counter_means_the_only_fitting_tool() {
    let call = |arguments: &str| {
        format!("<|tool_call_begin|>0<|tool_call_argument_begin|>{arguments}<|tool_call_end|>")
    };
    check(&call(r#"{"query":"a"}"#), r#"web_search{"query":"a"}"#, "");
    for unclear in [r#"{"other":"a"}"#, "{}"] {
        assert!(turn(&call(unclear)).calls.is_empty(), "{unclear}");
    }
}
