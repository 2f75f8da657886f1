//! The rules that every turn must satisfy, for the property tests, the fuzz targets and the replay of their
//! corpus alike. Compiled only for them.
//!
//! A violation panics: all three want that.
#![allow(clippy::missing_panics_doc, clippy::unwrap_used, reason = "to panic is what an oracle is for")]

mod account;
pub(crate) mod rewrite;
mod tag_writers;
pub(crate) mod writers;

use std::sync::{Arc, LazyLock};

use serde_json::Value;

use super::dialects::TABLE;
use super::json_span::{JsonSpan, Span, Style};
use super::{End, Engine, Field, Options, PreferredDialects, Tools, lenient_json, schema};
use crate::event::{Event, Parsed};

/// The tools that the generated texts speak of.
pub const TOOLS: &str = r#"[{"type":"function","function":{"name":"read","parameters":{"type":"object","required":["path"],
    "properties":{"path":{"type":"string"},"limit":{"type":"integer"}}}}},
    {"type":"function","function":{"name":"exec","parameters":{"type":"object"}}}]"#;

/// Pieces of which near-calls are made: every dialect's marks, halves of calls, and what stands around them.
pub const FRAGMENTS: [&str; 128] = [
    "<tool_call>",
    "</tool_call>",
    "<tools>",
    "</tools>",
    "{\"name\": \"read\", ",
    "\"arguments\": ",
    "{\"path\": \"a\"}",
    "}",
    "{",
    "[",
    "]",
    "\"",
    "'",
    "\\",
    ",",
    ":",
    "read",
    "functions.",
    "(",
    ")",
    "path=",
    "\n",
    "\n\n",
    " ",
    "`",
    "```",
    "```json\n",
    "~~~\n",
    "<|channel|>",
    "analysis",
    "commentary to=",
    "<|message|>",
    "<|call|>",
    "<|end|>",
    "<|start|>assistant",
    "final",
    "<think>",
    "</think>",
    "[TOOL_CALLS]",
    "[TOOL:read|",
    "<function=read>",
    "<parameter=path>",
    "</parameter>",
    "</function>",
    "<arg_key>",
    "</arg_key><arg_value>",
    "</arg_value>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "Action: read\n",
    "Action Input: ",
    "call:read{",
    "prose é 漢 🙂",
    "[END_TOOL_REQUEST]",
    "<invoke name=\"read\">",
    "<|\"|>",
    "{\"name\":\"read\",\"arguments\":{\"path\":\"b\"}}",
    "{\"name\":\"exec\",\"arguments\":{}}",
    "exec",
    "<|constrain|>json",
    "assistantcommentary to=functions.read json",
    "assistantfinal",
    "assistantanalysis",
    "<|return|>",
    "<|im_end|>",
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    "<｜DSML｜invoke name=\"read\">",
    "<｜DSML｜parameter name=\"path\" string=\"true\">",
    "</｜DSML｜parameter>",
    "</｜DSML｜invoke>",
    "<parameter name=\"path\">",
    "</invoke>",
    "<function_calls>",
    "</function_calls>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁end｜>",
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>functions.read:0",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|python_tag|>",
    "<|tool_call_start|>",
    "<|tool_call_end|>",
    "read(path='a')",
    "[read(path=\"a\"), exec()]",
    "functools[",
    "[TOOL_REQUEST]",
    "[read]",
    "[ARGS]",
    "[CALL_ID]abc",
    "<|START_ACTION|>",
    "<|END_ACTION|>",
    "<|tools_prefix|>",
    "<|tool_call>call:exec{",
    "<tool_call|>",
    "<tool_call>exec",
    "{\"tool_calls\": [",
    "{\"path\": ",
    "a.txt",
    "true",
    "1.0",
    "12345678901234567890123",
    "            ",
    "\n\n\n\n\n\n",
    "Here is an example:\n",
    "> ",
    "\t",
    "to=",
    "\u{2028}",
    "```\n",
    "]<]minimax[>[<invoke name=\"read\">]<]minimax[>[",
    "<path>a]<]minimax[>[</path>]<]minimax[>[</invoke>",
    "<|open|>call tool=\"read\" index=\"1\"<|sep|>",
    "<|open|>argument key=\"path\" type=\"string\"<|sep|>a<|close|>argument<|sep|>",
    "<|close|>call<|sep|>",
    "<|open|>think<|sep|>",
    "<|message_model|>read",
    "<|content_invoke_tool_json|>{\"name\":\"read\",\"args\":{\"path\":\"a\"}}",
    "<|end_message|>",
    "<tool_call>read<tool_sep>",
    "<function name=\"read\"><param name=\"path\">a</param></function>",
    "<start_function_call>call:read{path:<escape>a<escape>}",
    "<|message_sep|>function call<|role_sep|>",
    "<steptml:invoke name=\"read\">",
    "to=user<|message|>",
    "<atem:function_calls><atem:invoke name=\"read.read\">",
];

/// A longer input tells nothing more and takes its time.
const LONGEST: usize = 4096;

/// The meaning of a fuzz target's bytes: a byte of options, two of cuts, and a text, as it is or as numbers
/// of pieces.
struct Input {
    text: String,
    options: Options,
    cuts: [usize; 2],
    cut: bool,
    reasoning: bool,
}

impl Input {
    fn read(input: &[u8]) -> Option<Self> {
        let [flags, one, two, body @ ..] = input else { return None };
        let flag = |bit: u8| flags & (1 << bit) != 0;
        let mut text: String = match (flag(7), flag(6)) {
            (true, true) => body.iter().map(|byte| PIECES[usize::from(*byte) % PIECES.len()]).collect(),
            (true, false) => body.iter().map(|byte| fragment(*byte)).collect(),
            (false, _) => String::from_utf8_lossy(body).into_owned(),
        };
        text.truncate(text.floor_char_boundary(LONGEST));
        let options = Options {
            calls_wanted: !flag(0),
            parallel: !flag(1),
            json_wanted: flag(2),
            fuzzy: flag(3),
            may_begin_in_reasoning: one % 2 == 0,
            ..Options::default()
        };
        let cuts = [*one, *two].map(|cut| text.len() * usize::from(cut) / 256);
        Some(Self { text, options, cuts, cut: flag(4), reasoning: flag(5) })
    }

    fn events(&self) -> Vec<Event> {
        events(&SHARED, self.options, &[&self.text], self.cut, self.reasoning)
    }

    fn turn_of(&self, pieces: &[&str]) -> Parsed {
        run(&SHARED, self.options, pieces, self.cut, self.reasoning)
    }
}

static SHARED: LazyLock<Arc<Tools>> = LazyLock::new(|| Arc::new(Tools::from_json(TOOLS).unwrap_or_default()));

/// The example and the marks of every dialect, and as many of the fragments as one byte can name in addition.
static PIECES: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    let examples = TABLE.iter().map(|dialect| dialect.example).filter(|example| !example.is_empty());
    let marks = TABLE.iter().flat_map(|dialect| dialect.opens.marks()).copied();
    examples.chain(marks).chain(FRAGMENTS).take(256).collect()
});

/// Every invariant on one input.
pub fn check_engine(input: &[u8]) {
    let Some(input) = Input::read(input) else { return };
    check(&SHARED, input.options, &input.text, &input.cuts, input.cut, input.reasoning);
}

/// Calls are valid, whatever is read, and whatever dialect is expected.
pub fn check_parse(input: &[u8]) {
    let Some(mut input) = Input::read(input) else { return };
    calls_are_valid(&SHARED, input.options, &input.events().into_iter().collect());
    input.options.read_reasoning = true;
    input.options.preferred_dialects =
        PreferredDialects::from_dialect_names([TABLE[input.cuts[0] % TABLE.len()].name]);
    calls_are_valid(&SHARED, input.options, &input.events().into_iter().collect());
}

/// Any split gives the same turn.
pub fn check_split(input: &[u8]) {
    let Some(input) = Input::read(input) else { return };
    let whole = input.turn_of(&[&input.text]);
    assert_eq!(input.turn_of(&chars(&input.text)), whole, "char by char: {:?}", input.text);
    let pieces = split(&input.text, &input.cuts);
    assert_eq!(input.turn_of(&pieces), whole, "as {pieces:?}");
}

/// Nothing is lost.
pub fn check_account(input: &[u8]) {
    let Some(input) = Input::read(input) else { return };
    account::nothing_is_lost(&input.text, &input.events(), input.options);
}

/// Calls written back in the dialect in which they were read are the same calls.
pub fn check_rewrite(input: &[u8]) {
    let Some(input) = Input::read(input) else { return };
    let turn = run(&SHARED, Options::for_whole_reply(), &[&input.text], false, false);
    rewrite::calls_written_back_are_the_same(&SHARED, &turn);
}

fn chars(text: &str) -> Vec<&str> {
    text.char_indices().map(|(at, char)| &text[at..at + char.len_utf8()]).collect()
}

fn fragment(byte: u8) -> &'static str {
    let fragment = FRAGMENTS[usize::from(byte & 127) % FRAGMENTS.len()];
    let end =
        if byte < 128 { fragment.len() } else { fragment.ceil_char_boundary(fragment.len().div_ceil(2)) };
    &fragment[..end]
}

/// Runs the engine over `pieces`.
pub fn run(tools: &Arc<Tools>, options: Options, pieces: &[&str], cut: bool, reasoning: bool) -> Parsed {
    events(tools, options, pieces, cut, reasoning).into_iter().collect()
}

fn events(tools: &Arc<Tools>, options: Options, pieces: &[&str], cut: bool, reasoning: bool) -> Vec<Event> {
    let mut engine = Engine::new(Arc::clone(tools), options);
    let field = if reasoning { Field::Reasoning } else { Field::Content };
    let mut out: Vec<Event> = Vec::new();
    pieces.iter().for_each(|piece| engine.push(field, piece, &mut out));
    engine.finish(End { cut }, &mut out);
    out
}

/// Checks every invariant on one text: the same turn whole, char by char and split at `cuts`; nothing lost;
/// calls valid.
pub fn check(tools: &Arc<Tools>, options: Options, text: &str, cuts: &[usize], cut: bool, reasoning: bool) {
    let events = events(tools, options, &[text], cut, reasoning);
    account::nothing_is_lost(text, &events, options);
    let whole: Parsed = events.into_iter().collect();
    calls_are_valid(tools, options, &whole);
    let whole = with_sorted_notes(whole);
    let by_char = run(tools, options, &chars(text), cut, reasoning);
    assert_eq!(with_sorted_notes(by_char), whole, "char by char: {text:?}");
    let pieces = split(text, cuts);
    let in_pieces = run(tools, options, &pieces, cut, reasoning);
    assert_eq!(with_sorted_notes(in_pieces), whole, "as {pieces:?}");
}

/// Sorts the notes: the one on a name comes with its call, which may be before or after that on a text.
fn with_sorted_notes(mut turn: Parsed) -> Parsed {
    turn.notes.sort_by_cached_key(|note| format!("{note:?}"));
    turn
}

fn split<'a>(text: &'a str, cuts: &[usize]) -> Vec<&'a str> {
    let mut cuts: Vec<usize> = cuts.iter().copied().filter(|&cut| text.is_char_boundary(cut)).collect();
    cuts.extend([0, text.len()]);
    cuts.sort_unstable();
    cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect()
}

fn calls_are_valid(tools: &Tools, options: Options, turn: &Parsed) {
    assert!(options.calls_wanted || turn.calls.is_empty());
    assert!(options.parallel || turn.calls.len() <= 1);
    for call in &turn.calls {
        let tool = tools.get(&call.name);
        let arguments: Value = serde_json::from_str(&call.arguments).unwrap_or(Value::Null);
        assert!(tool.is_some() && arguments.is_object(), "{call:?}");
        if let Some(tool) = tool {
            let document = schema::Document { root: tool.schema(), steps: &schema::Steps::reply_budget() };
            let valid = schema::accepts(&arguments, document.root, document);
            assert_eq!(valid, call.problems.is_empty(), "{call:?}");
        }
    }
}

/// Checks lenient JSON on one text: strict JSON is read as it is, anything else ends where the span says or
/// is refused.
pub fn check_json(text: &str) {
    let read = lenient_json::read(text);
    if let Ok(strict) = serde_json::from_str::<Value>(text) {
        let read = read.as_ref().ok();
        assert_eq!(read.map(|read| &read.value), Some(&strict), "{text:?}");
        assert!(read.is_some_and(|read| read.repairs.is_empty()), "{text:?}");
        span_agrees(text, &strict);
    }
    if let Ok(read) = read {
        assert!(read.end <= text.len() && text.is_char_boundary(read.end), "{text:?}");
        let again = lenient_json::read(&read.value.to_string());
        assert_eq!(again.ok().map(|again| again.value), Some(read.value), "{text:?}");
    }
}

/// A valid object or array ends exactly where its scan says, in one piece and in many.
fn span_agrees(text: &str, value: &Value) {
    let start = text.len() - text.trim_start().len();
    if !(value.is_object() || value.is_array()) {
        return;
    }
    let end = text.trim_end().len();
    assert_eq!(JsonSpan::new(start, Style::Json).advance(text, true), Span::Complete(end), "{text:?}");
    let mut span = JsonSpan::new(start, Style::Json);
    let pieces = text.char_indices().skip(1).map(|(at, _)| at);
    let found = pieces.map(|at| span.advance(&text[..at], false)).find(|found| *found != Span::More);
    let found = found.unwrap_or_else(|| span.advance(text, true));
    assert_eq!(found, Span::Complete(end), "{text:?}");
}
