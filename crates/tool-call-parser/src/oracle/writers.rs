//! How each dialect writes a call: the other half of its reader, for the round trips.

use serde_json::{Map, Value};

use super::tag_writers;

/// One dialect's way of writing calls.
pub(crate) struct Writer {
    /// The dialect's name in the table.
    pub(crate) dialect: &'static str,
    pub(crate) write: fn(&Calls) -> String,
    /// True for dialects that write values as bare text: the schema must say what they are, and text that
    /// looks like the dialect's own marks is theirs.
    pub(crate) untyped: bool,
    /// True for dialects that hold one line per value or cannot nest.
    pub(crate) flat: bool,
    /// True for dialects that write arguments into tags, where nothing quotes their names and not every value
    /// has quotes.
    pub(crate) tags: bool,
}

pub(crate) type Calls = [(String, Map<String, Value>)];

pub(crate) fn object(name: &str, arguments: &Map<String, Value>, key: &str) -> String {
    format!("{{\"name\": {}, \"{key}\": {}}}", Value::from(name), json(arguments))
}

pub(crate) fn json(arguments: &Map<String, Value>) -> String {
    Value::Object(arguments.clone()).to_string()
}

pub(crate) fn each(calls: &Calls, write: impl Fn(&str, &Map<String, Value>) -> String) -> String {
    calls.iter().map(|(name, arguments)| write(name, arguments)).collect()
}

pub(crate) fn joined(
    calls: &Calls,
    between: &str,
    write: impl Fn(&str, &Map<String, Value>) -> String,
) -> String {
    calls.iter().map(|(name, arguments)| write(name, arguments)).collect::<Vec<_>>().join(between)
}

/// Returns a value as the XML dialects' templates write it.
pub(crate) fn bare(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn python(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(flag) => if *flag { "True" } else { "False" }.to_owned(),
        Value::Array(items) => format!("[{}]", items.iter().map(python).collect::<Vec<_>>().join(", ")),
        Value::Object(object) => {
            let members =
                object.iter().map(|(key, value)| format!("{}: {}", Value::from(key.as_str()), python(value)));
            format!("{{{}}}", members.collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

fn keywords(name: &str, arguments: &Map<String, Value>) -> String {
    let arguments = arguments.iter().map(|(key, value)| format!("{key}={}", python(value)));
    format!("{name}({})", arguments.collect::<Vec<_>>().join(", "))
}

pub(crate) fn gemma(value: &Value) -> String {
    match value {
        Value::String(text) => format!("<|\"|>{text}<|\"|>"),
        other => other.to_string(),
    }
}

pub(crate) fn typed(name: &'static str, write: fn(&Calls) -> String) -> Writer {
    Writer { dialect: name, write, untyped: false, flat: false, tags: false }
}

pub(crate) fn untyped(name: &'static str, write: fn(&Calls) -> String) -> Writer {
    Writer { dialect: name, write, untyped: true, flat: false, tags: false }
}

pub(crate) fn flat(name: &'static str, write: fn(&Calls) -> String) -> Writer {
    Writer { dialect: name, write, untyped: true, flat: true, tags: false }
}

/// Returns every dialect that has a writer.
pub(crate) fn all() -> Vec<Writer> {
    let mut writers = json_writers();
    writers.extend(wrapped_writers());
    writers.extend(token_writers());
    writers.extend(tag_writers::all().into_iter().map(|writer| Writer { tags: true, ..writer }));
    writers
}

fn json_writers() -> Vec<Writer> {
    vec![
        typed("hermes", |calls| {
            each(calls, |name, arguments| {
                format!("<tool_call>\n{}\n</tool_call>\n", object(name, arguments, "arguments"))
            })
        }),
        typed("hermes", |calls| {
            format!(
                "<tools>{}</tools>",
                joined(calls, "\n", |name, arguments| object(name, arguments, "arguments"))
            )
        }),
        typed("hermes", |calls| {
            format!(
                "<|tool_call|>[{}]",
                joined(calls, ", ", |name, arguments| object(name, arguments, "arguments"))
            )
        }),
        typed("bare_json", |calls| {
            joined(calls, "; ", |name, arguments| object(name, arguments, "parameters"))
        }),
        typed("bare_json", |calls| {
            format!("[{}]", joined(calls, ",\n", |name, arguments| object(name, arguments, "arguments")))
        }),
        typed("bare_json", |calls| {
            format!(
                "{{\"tool_calls\": [{}]}}",
                joined(calls, ",", |name, arguments| object(name, arguments, "arguments"))
            )
        }),
        typed("fenced", |calls| {
            format!(
                "```json\n{}\n```",
                joined(calls, "\n", |name, arguments| object(name, arguments, "arguments"))
            )
        }),
        typed("llama", |calls| {
            format!(
                "<|python_tag|>{}",
                joined(calls, "; ", |name, arguments| object(name, arguments, "parameters"))
            )
        }),
    ]
}

fn wrapped_writers() -> Vec<Writer> {
    vec![
        typed("cohere", |calls| {
            let list = joined(calls, ", ", |name, arguments| {
                object(name, arguments, "parameters").replacen("name", "tool_name", 1)
            });
            format!("<|START_ACTION|>[{list}]<|END_ACTION|>")
        }),
        typed("apertus", |calls| {
            let list = joined(calls, ", ", |name, arguments| {
                format!("{{{}: {}}}", Value::from(name), json(arguments))
            });
            format!("<|tools_prefix|>[{list}]<|tools_suffix|>")
        }),
        typed("phi", |calls| {
            format!(
                "functools[{}]",
                joined(calls, ", ", |name, arguments| object(name, arguments, "arguments"))
            )
        }),
        typed("tool_request", |calls| {
            each(calls, |name, arguments| {
                format!("[TOOL_REQUEST]{}[END_TOOL_REQUEST]\n", object(name, arguments, "arguments"))
            })
        }),
        typed("bracket", |calls| {
            each(calls, |name, arguments| format!("[{name}]{}[END_TOOL_REQUEST]\n", json(arguments)))
        }),
        typed("react", |calls| {
            each(calls, |name, arguments| format!("Action: {name}\nAction Input: {}\n", json(arguments)))
        }),
        typed("bare_name", |calls| {
            joined(calls, "\n", |name, arguments| format!("functions.{name}({})", json(arguments)))
        }),
    ]
}

fn token_writers() -> Vec<Writer> {
    vec![
        typed("harmony", |calls| {
            each(calls, |name, arguments| {
                format!(
                    "<|start|>assistant<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{}<|call|>",
                    json(arguments)
                )
            })
        }),
        typed("harmony_text", |calls| {
            each(calls, |name, arguments| {
                format!("assistantcommentary to=functions.{name} json{}", json(arguments))
            })
        }),
        typed("mistral", |calls| {
            each(calls, |name, arguments| format!("[TOOL_CALLS]{name}[ARGS]{}", json(arguments)))
        }),
        typed("mistral", |calls| {
            format!(
                "[TOOL_CALLS] [{}]",
                joined(calls, ", ", |name, arguments| object(name, arguments, "arguments"))
            )
        }),
        typed("deepseek", |calls| {
            format!(
                "<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>",
                each(calls, |name, arguments| {
                    format!("<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{}<｜tool▁call▁end｜>", json(arguments))
                })
            )
        }),
        typed("deepseek", |calls| {
            format!(
                "<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>",
                each(calls, |name, arguments| {
                    format!(
                        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{}\n```<｜tool▁call▁end｜>",
                        json(arguments)
                    )
                })
            )
        }),
        typed("kimi", |calls| {
            format!(
                "<|tool_calls_section_begin|>{}<|tool_calls_section_end|>",
                each(calls, |name, arguments| {
                    format!(
                        "<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
                        json(arguments)
                    )
                })
            )
        }),
        typed("pythonic", |calls| format!("[{}]", joined(calls, ", ", keywords))),
        typed("pythonic_tags", |calls| {
            format!("<|tool_call_start|>[{}]<|tool_call_end|>", joined(calls, ", ", keywords))
        }),
    ]
}
