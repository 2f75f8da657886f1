//! Chooses the change of a request for a second attempt by the fault of the reply.
//!
//! The remedies edit the client's own request; the edits for the upstream's version follow, as always. Pure.
//! Called by `relay`.

use std::borrow::Cow;

use serde_json::{Value, json};

use super::fault::Fault;
use tool_call_parser::Tools;
use wire::turn::Dropped;
use wire::{ChatRequest, Message, Object, ToolChoice, array_elements, encode_string};

/// A change to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Remedy {
    /// Only another seed.
    Repeat,
    /// Asks for unparsed text, so that respool reads the calls that the server's parser lost.
    Raw,
    /// A note about the fault, at the end of the last message.
    Correct(String),
    /// The same, with less reasoning.
    CorrectBriefly(String),
    /// `tool_choice: "required"`.
    Required,
    /// Structured output: a call of this tool, by its schema.
    Structured(String),
    /// This token limit.
    MoreTokens(u64),
}

/// The facts that decide which remedies are possible.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    /// The declared tools.
    pub tools: &'a Tools,
    /// The client lets the model decide whether to call a tool, and does not ask for JSON.
    pub is_free: bool,
    /// The server can leave calls in the text, and the last attempt did not ask for that.
    pub can_be_unparsed: bool,
    /// gpt-oss: vLLM cannot leave its calls unparsed, and its grammars do not know the channels.
    pub is_harmony: bool,
    /// The client's token limit.
    pub limit: Option<u64>,
    /// The most tokens of a reply, if the model's window is known.
    pub room: Option<u64>,
}

/// OpenClaw lowers the limit to the rest of its own count of the context, at least 1, and warns below 16
/// (`MIN_USEFUL_OUTPUT_TOKENS`, read in 2026.9.6). No useful reply is possible then.
pub const TINY_LIMIT: u64 = 16;
/// The factor by which a limit that cut a reply grows; the result is at least [`ROOMY`].
const GROWTH: u64 = 4;
const ROOMY: u64 = 4096;

impl Remedy {
    /// Returns a stable name for logs and metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Repeat => "repeat",
            Self::Raw => "raw",
            Self::Correct(_) => "correction",
            Self::CorrectBriefly(_) => "correction_brief",
            Self::Required => "required",
            Self::Structured(_) => "structured",
            Self::MoreTokens(_) => "more_tokens",
        }
    }

    /// Chooses the remedy for a fault; `None` when another attempt would not help. `attempt`: the number of
    /// earlier second attempts, from 0.
    pub fn plan(fault: &Fault, attempt: u32, situation: &Situation<'_>) -> Option<Self> {
        let correct = || Self::Correct(correction_text(fault, situation));
        let can_force = situation.is_free && !situation.is_harmony;
        let unparsed =
            || (can_force && situation.can_be_unparsed && !situation.tools.is_empty()).then_some(Self::Raw);
        Some(match (fault, attempt) {
            (Fault::Empty, 0) => Self::Repeat,
            (Fault::Glitch | Fault::Lost(_), 0) => unparsed().unwrap_or(Self::Repeat),
            (Fault::OnlyReasoning, 1..) => Self::CorrectBriefly(correction_text(fault, situation)),
            (Fault::CutCall(_) | Fault::CutReasoning, _) => return remedy_for_cut(fault, situation),
            (Fault::BadCall(..), 0) => unparsed().unwrap_or_else(correct),
            (Fault::BadCall(tool, _), _) if can_force && can_be_structured(situation.tools, tool) => {
                Self::Structured(tool.clone())
            }
            (Fault::UnknownTool(_), 1..) if can_force && !situation.tools.is_empty() => Self::Required,
            // The client can correct the call itself.
            (Fault::InvalidCall(..), 1..) => return None,
            _ => correct(),
        })
    }

    /// Applies the remedy to the client's request; `None` when that is impossible (no message for a note).
    /// `version`: the upstream's, as (major, minor).
    pub fn apply(
        &self,
        body: &[u8],
        seed: u32,
        version: Option<(u32, u32)>,
        tools: &Tools,
    ) -> Option<Vec<u8>> {
        let mut request = ChatRequest::parse(body).ok()?;
        set_seed(&mut request.object, seed);
        match self {
            Self::Repeat | Self::Raw => {}
            Self::Correct(text) => append_note(&mut request, text)?,
            Self::CorrectBriefly(text) => {
                append_note(&mut request, text)?;
                if request.object.get("reasoning_effort").is_some() {
                    request.object.set("reasoning_effort", "\"low\"");
                }
            }
            Self::Required => request.object.set("tool_choice", "\"required\""),
            Self::Structured(tool) => force_schema(&mut request.object, &call_schema(tools, tool)?, version),
            Self::MoreTokens(limit) => raise_limit(&mut request.object, *limit),
        }
        Some(request.object.to_json().into_bytes())
    }
}

/// Chooses the remedy for a reply that the token limit cut: a higher limit, else the advice to be brief.
fn remedy_for_cut(fault: &Fault, situation: &Situation<'_>) -> Option<Remedy> {
    let Some(limit) = situation.limit else {
        // The model's window was the limit.
        return Some(Remedy::CorrectBriefly(correction_text(fault, situation)));
    };
    if limit <= TINY_LIMIT {
        return None;
    }
    let more = (limit.saturating_mul(GROWTH)).max(ROOMY).min(situation.room.unwrap_or(u64::MAX));
    Some(if more > limit + limit / 4 {
        Remedy::MoreTokens(more)
    } else {
        Remedy::CorrectBriefly(correction_text(fault, situation))
    })
}

fn correction_text(fault: &Fault, situation: &Situation<'_>) -> String {
    let next =
        if situation.tools.is_empty() { "Write your answer." } else { "Call a tool, or write your answer." };
    let what = match fault {
        Fault::Glitch | Fault::Lost(_) => {
            format!("Your last reply could not be read. {next}")
        }
        Fault::Empty => format!("Your last reply was empty. {next}"),
        Fault::OnlyReasoning => format!("You stopped after thinking, without an answer. {next}"),
        Fault::CutReasoning => {
            format!("You thought until the token limit, without an answer. Think briefly. {next}")
        }
        Fault::CutCall(tool) => {
            format!(
                "Your call of {} was cut by the token limit. Make a shorter call; work in smaller steps.",
                tool_phrase(tool)
            )
        }
        Fault::BadCall(tool, why) => bad_call(tool, *why, situation.tools),
        Fault::InvalidCall(tool, problems) => format!(
            "Your last call of {} breaks its schema: {}. Call it again with arguments that fit.",
            tool_phrase(tool),
            problems.join("; ")
        ),
        Fault::UnknownTool(name) if situation.tools.is_empty() => {
            format!("There is no tool `{name}`, nor any other now. {next}")
        }
        Fault::UnknownTool(name) => {
            format!(
                "There is no tool `{name}`. The tools are: {}. {next}",
                situation.tools.names().collect::<Vec<_>>().join(", ")
            )
        }
    };
    format!("[Automatic note, not from the user: {what}]")
}

fn tool_phrase(tool: &str) -> String {
    if tool.is_empty() { "a tool".to_owned() } else { format!("the tool `{tool}`") }
}

fn bad_call(tool: &str, why: Dropped, tools: &Tools) -> String {
    let what = match why {
        Dropped::MissingRequired => "lacks required arguments",
        Dropped::Unclosed => "ends before its arguments do",
        _ => "has arguments that are not a JSON object",
    };
    let schema = tools.resolve(tool).map(|found| found.tool.schema());
    let required = schema.and_then(|schema| schema.get("required")?.as_array());
    let required: Vec<&str> = required.into_iter().flatten().filter_map(Value::as_str).collect();
    let needs =
        if required.is_empty() { String::new() } else { format!(" It requires: {}.", required.join(", ")) };
    format!(
        "Your last call of {} {what}.{needs} Call it again with all arguments as one JSON object.",
        tool_phrase(tool)
    )
}

/// Sets the seed. It has no effect on a greedy request, whose temperature is raised.
fn set_seed(object: &mut Object<'_>, seed: u32) {
    object.set("seed", seed.to_string());
    let greedy =
        object.get("temperature").and_then(|text| text.parse::<f64>().ok()).is_some_and(|it| it < 0.2);
    if greedy {
        object.set("temperature", "0.3");
    }
}

fn raise_limit(object: &mut Object<'_>, limit: u64) {
    for key in ["max_completion_tokens", "max_tokens"] {
        if object.get(key).is_some() {
            object.set(key, limit.to_string());
        }
    }
}

/// Adds a note to the last message. A separate message would break templates in which roles must alternate.
fn append_note(request: &mut ChatRequest<'_>, note: &str) -> Option<()> {
    let last = request.messages.last_mut().filter(|last| last.has_role("user") || last.has_role("tool"))?;
    let content = with_note(last, note);
    last.edit_fields(|object| object.set("content", content));
    let messages: Vec<Cow<'_, str>> = request.messages.iter().map(Message::to_json).collect();
    let messages = format!("[{}]", messages.join(","));
    request.object.set("messages", messages);
    Some(())
}

fn with_note(message: &Message<'_>, note: &str) -> String {
    let content = message.object.get("content").unwrap_or("\"\"");
    if let Some(mut parts) = array_elements(content) {
        let part = json!({"type": "text", "text": note}).to_string();
        parts.push(&part);
        return format!("[{}]", parts.join(","));
    }
    let text = message.object.string("content").unwrap_or_default();
    encode_string(&format!("{text}\n\n{note}"))
}

/// Returns true when a call of this tool can be forced by its schema. References in a schema are relative to
/// its root, which moves in an envelope.
fn can_be_structured(tools: &Tools, tool: &str) -> bool {
    call_schema(tools, tool).is_some_and(|schema| !schema.to_string().contains("\"$ref\""))
}

/// Makes the schema of a bare call in the engine's form: `{"name": …, "arguments": {…}}`.
fn call_schema(tools: &Tools, tool: &str) -> Option<Value> {
    let found = tools.resolve(tool).filter(|found| !found.hidden)?.tool;
    Some(json!({
        "type": "object",
        "properties": {"name": {"type": "string", "enum": [found.name]}, "arguments": found.schema()},
        "required": ["name", "arguments"],
        "additionalProperties": false,
    }))
}

/// Asks for a reply by this schema. vLLM up to 0.10 reads `guided_json`, later versions `structured_outputs`;
/// other servers know OpenAI's `response_format`. The call stays in the text, where the engine finds it.
fn force_schema(object: &mut Object<'_>, schema: &Value, version: Option<(u32, u32)>) {
    object.set("tool_choice", "\"none\"");
    match version {
        Some(version) if version <= (0, 10) => object.set("guided_json", schema.to_string()),
        Some(_) => object.set("structured_outputs", json!({"json": schema}).to_string()),
        None => {
            let format =
                json!({"type": "json_schema", "json_schema": {"name": "tool_call", "schema": schema}});
            object.set("response_format", format.to_string());
        }
    }
}

impl Situation<'_> {
    /// Returns true when the client leaves both the choice of calls and the form of the answer to the model.
    pub fn is_free(request: &ChatRequest<'_>) -> bool {
        request.tool_choice() == ToolChoice::Auto && !request.wants_json()
    }

    /// Returns true when the request has tools and lets the model decide to call them. A forced call needs
    /// the server's grammar.
    pub fn is_free_to_call(request: &ChatRequest<'_>) -> bool {
        request.tools().is_some() && request.tool_choice() == ToolChoice::Auto
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &str = r#"{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}],"temperature":0,"max_tokens":100}"#;

    fn tools() -> Tools {
        Tools::from_json(
            r##"[{"type":"function","function":{"name":"read","parameters":{"type":"object","required":["path"]}}},
                {"type":"function","function":{"name":"tree","parameters":{"$defs":{"a":{}},"properties":{"a":{"$ref":"#/$defs/a"}}}}}]"##,
        ).unwrap()
    }

    fn names(fault: &Fault, change: impl Fn(&mut Situation<'_>)) -> Vec<&'static str> {
        let tools = tools();
        let mut situation = Situation {
            tools: &tools,
            is_free: true,
            can_be_unparsed: true,
            is_harmony: false,
            limit: Some(1000),
            room: None,
        };
        change(&mut situation);
        (0..3)
            .map_while(|attempt| Remedy::plan(fault, attempt, &situation))
            .map(|remedy| remedy.name())
            .collect()
    }

    fn bad(tool: &str) -> Fault {
        Fault::BadCall(tool.to_owned(), Dropped::MissingRequired)
    }

    #[test]
    fn each_fault_has_its_remedies() {
        let check =
            |fault: &Fault, expected: [&str; 3]| assert_eq!(names(fault, |_| {}), expected, "{fault:?}");
        check(&Fault::Glitch, ["raw", "correction", "correction"]);
        check(&Fault::Empty, ["repeat", "correction", "correction"]);
        check(&Fault::Lost(9), ["raw", "correction", "correction"]);
        check(&Fault::OnlyReasoning, ["correction", "correction_brief", "correction_brief"]);
        check(&bad("read"), ["raw", "structured", "structured"]);
        check(&bad("tree"), ["raw", "correction", "correction"]);
        check(&Fault::UnknownTool("x".into()), ["correction", "required", "required"]);
        let invalid = Fault::InvalidCall("read".into(), vec!["path: must be string".into()]);
        assert_eq!(names(&invalid, |_| {}), ["correction"]);
    }

    #[test]
    fn no_call_is_forced_on_gpt_oss() {
        let harmony = |situation: &mut Situation<'_>| situation.is_harmony = true;
        let bound = |situation: &mut Situation<'_>| situation.is_free = false;
        for fault in [bad("read"), Fault::UnknownTool("x".into()), Fault::Lost(9)] {
            for change in [harmony, bound] {
                let names = names(&fault, change);
                assert!(
                    names.iter().all(|name| ["repeat", "correction"].contains(name)),
                    "{fault:?}: {names:?}"
                );
            }
        }
    }

    #[test]
    fn no_call_is_forced_without_tools() {
        let tools = Tools::default();
        let situation = Situation {
            tools: &tools,
            is_free: true,
            can_be_unparsed: true,
            is_harmony: false,
            limit: None,
            room: None,
        };
        let note = "[Automatic note, not from the user: There is no tool `x`, nor any other now. Write your answer.]";
        for attempt in 0..2 {
            let planned = Remedy::plan(&Fault::UnknownTool("x".into()), attempt, &situation);
            assert_eq!(planned, Some(Remedy::Correct(note.into())));
        }
    }

    #[test]
    fn a_limit_is_raised_only_into_room() {
        let check = |limit: Option<u64>, room: Option<u64>, expected: Option<Remedy>| {
            let tools = tools();
            let situation = Situation {
                tools: &tools,
                is_free: true,
                can_be_unparsed: true,
                is_harmony: false,
                limit,
                room,
            };
            let planned = Remedy::plan(&Fault::CutReasoning, 0, &situation);
            match (&planned, &expected) {
                (Some(Remedy::CorrectBriefly(_)), Some(Remedy::CorrectBriefly(_))) => {}
                _ => assert_eq!(planned, expected, "{limit:?} {room:?}"),
            }
        };
        check(Some(1000), None, Some(Remedy::MoreTokens(4096)));
        check(Some(4000), Some(9000), Some(Remedy::MoreTokens(9000)));
        check(Some(4000), Some(4500), Some(Remedy::CorrectBriefly(String::new())));
        check(Some(TINY_LIMIT), None, None);
        check(None, None, Some(Remedy::CorrectBriefly(String::new())));
    }

    fn applied(remedy: &Remedy, version: Option<(u32, u32)>) -> Value {
        let body = remedy.apply(BODY.as_bytes(), 7, version, &tools()).unwrap();
        serde_json::from_slice(&body).unwrap()
    }

    #[test]
    fn a_note_is_added_to_any_last_message() {
        let body = applied(&Remedy::Correct("note".into()), None);
        assert_eq!(body["messages"][0]["content"][1], json!({"type": "text", "text": "note"}));
        assert_eq!((&body["seed"], &body["temperature"]), (&json!(7), &json!(0.3)));
        let assistant = br#"{"messages":[{"role":"assistant","content":"a"}]}"#;
        assert_eq!(Remedy::Correct("note".into()).apply(assistant, 7, None, &tools()), None);
        assert_eq!(applied(&Remedy::MoreTokens(9), None)["max_tokens"], 9);
    }

    #[test]
    fn structured_output_has_the_name_that_the_version_knows() {
        let structured = Remedy::Structured("read".into());
        let schema = |body: &Value, pointer: &str| body.pointer(pointer).unwrap()["required"].clone();
        for (version, pointer) in [
            (Some((0, 10)), "/guided_json"),
            (Some((0, 32)), "/structured_outputs/json"),
            (None, "/response_format/json_schema/schema"),
        ] {
            assert_eq!(schema(&applied(&structured, version), pointer), json!(["name", "arguments"]));
        }
    }
}
