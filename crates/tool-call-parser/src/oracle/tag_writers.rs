//! How the dialects write a call that have tags or tokens around each argument: the other half of their
//! readers.

use serde_json::{Map, Value};

use super::writers::{Calls, Writer, bare, each, flat, gemma, joined, json, object, typed, untyped};

pub(crate) fn all() -> Vec<Writer> {
    [tags(), suffixed_tags(), tokens(), messages(), token_pairs(), elements(), named_calls()]
        .into_iter()
        .flatten()
        .collect()
}

fn tags() -> Vec<Writer> {
    vec![
        untyped("qwen_xml", |calls| {
            each(calls, |name, arguments| {
                let parameters = arguments
                    .iter()
                    .map(|(key, value)| format!("<parameter={key}>\n{}\n</parameter>\n", bare(value)));
                format!(
                    "<tool_call>\n<function={name}>\n{}</function>\n</tool_call>\n",
                    parameters.collect::<String>()
                )
            })
        }),
        untyped("qwen_xml", |calls| {
            each(calls, |name, arguments| {
                let parameters = arguments
                    .iter()
                    .map(|(key, value)| format!("<parameter={key}>{}</parameter>\n", bare(value)));
                format!(
                    "<seed:tool_call>\n<function={name}>\n{}</function>\n</seed:tool_call>\n",
                    parameters.collect::<String>()
                )
            })
        }),
        untyped("invoke", |calls| {
            format!("<minimax:tool_call>\n{}</minimax:tool_call>", invocations(calls, ""))
        }),
        untyped("invoke", |calls| {
            let wrapped = calls.iter().map(|call| {
                let invocation = invocations(std::slice::from_ref(call), "steptml:");
                format!(
                    "<｜tool_call_begin｜>function<｜tool_sep｜>{}<｜tool_call_end｜>",
                    invocation.trim_end()
                )
            });
            format!(
                "<｜tool_calls_begin｜>\n{}\n<｜tool_calls_end｜>",
                wrapped.collect::<Vec<_>>().join("\n")
            )
        }),
        typed("invoke", |calls| {
            format!("<｜DSML｜tool_calls>\n{}</｜DSML｜tool_calls>", marked_invocations(calls, "｜DSML｜"))
        }),
        typed("invoke", |calls| {
            format!("<｜DSML｜ calls>\n{}</｜DSML｜ calls>", marked_invocations(calls, "｜DSML｜ "))
        }),
        typed("invoke", |calls| {
            format!("<｜GCML｜tool_calls>\n{}</｜GCML｜tool_calls>", marked_invocations(calls, "｜GCML｜"))
        }),
        untyped("invoke", |calls| {
            format!("<dots_function_call>\n{}</dots_function_call>", invocations(calls, ""))
        }),
        untyped("glm", |calls| {
            each(calls, |name, arguments| {
                let pairs = arguments.iter().map(|(key, value)| {
                    format!("<arg_key>{key}</arg_key>\n<arg_value>{}</arg_value>\n", bare(value))
                });
                format!("<tool_call>{name}\n{}</tool_call>\n", pairs.collect::<String>())
            })
        }),
        untyped("hunyuan", |calls| {
            let calls = each(calls, |name, arguments| {
                let pairs = arguments.iter().map(|(key, value)| {
                    format!("<arg_key>{key}</arg_key><arg_value>{}</arg_value>", bare(value))
                });
                format!("<tool_call>{name}<tool_sep>{}</tool_call>", pairs.collect::<String>())
            });
            format!("<tool_calls>{calls}</tool_calls>")
        }),
    ]
}

fn invocations(calls: &Calls, space: &str) -> String {
    each(calls, |name, arguments| {
        let parameters = arguments.iter().map(|(key, value)| {
            format!("<{space}parameter name=\"{key}\">{}</{space}parameter>\n", bare(value))
        });
        format!("<{space}invoke name=\"{name}\">\n{}</{space}invoke>\n", parameters.collect::<String>())
    })
}

/// Tags that say of each value whether it is text; `space` stands before each tag's name.
fn marked_invocations(calls: &Calls, space: &str) -> String {
    each(calls, |name, arguments| {
        let parameters = arguments.iter().map(|(key, value)| {
            let text = value.is_string();
            format!("<{space}parameter name=\"{key}\" string=\"{text}\">{}</{space}parameter>\n", bare(value))
        });
        format!("<{space}invoke name=\"{name}\">\n{}</{space}invoke>\n", parameters.collect::<String>())
    })
}

/// GLM's pairs, each tag with that suffix.
fn pairs(arguments: &Map<String, Value>, suffix: &str) -> String {
    let pairs = arguments.iter().map(|(key, value)| {
        format!(
            "<arg_key{suffix}>{key}</arg_key{suffix}><arg_value{suffix}>{}</arg_value{suffix}>",
            bare(value)
        )
    });
    pairs.collect()
}

fn suffixed_tags() -> Vec<Writer> {
    vec![
        untyped("hunyuan", |calls| {
            each(calls, |name, arguments| {
                format!("<tool_calls><tool_call>{name}{}</tool_call></tool_calls>\n", pairs(arguments, ""))
            })
        }),
        untyped("hunyuan_suffixed", |calls| {
            let calls = each(calls, |name, arguments| {
                format!("<tool_call:x1>{name}<tool_sep:x1>\n{}\n</tool_call:x1>\n", pairs(arguments, ":x1"))
            });
            format!("<tool_calls:x1>\n{calls}</tool_calls:x1>")
        }),
        untyped("iquest", |calls| {
            each(calls, |name, arguments| {
                format!("<iquest_tool_call>{name}{}</iquest_tool_call>\n", pairs(arguments, ""))
            })
        }),
        typed("k2_horizon", |calls| {
            let calls = each(calls, |name, arguments| {
                let arguments = arguments.iter().map(|(key, value)| {
                    format!(
                        "<ifm|arg_key>{key}</ifm|arg_key><ifm|arg_type>{}</ifm|arg_type><ifm|arg_value>{}</ifm|arg_value>",
                        kind(value),
                        bare(value)
                    )
                });
                format!("<ifm|tool_call>{name}{}</ifm|tool_call>", arguments.collect::<String>())
            });
            format!("<ifm|tool_calls>{calls}</ifm|tool_calls>")
        }),
        typed("k2_horizon", |calls| {
            each(calls, |name, arguments| {
                format!("<ifm|tool_call>{}</ifm|tool_call>", object(name, arguments, "arguments"))
            })
        }),
    ]
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "string",
        Value::Array(_) => "array[any]",
        Value::Object(_) => "object",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::Null => "null",
    }
}

fn token_pairs() -> Vec<Writer> {
    vec![
        untyped("solar", |calls| {
            each(calls, |name, arguments| {
                let arguments = arguments.iter().map(|(key, value)| {
                    format!("<|tool_arg:start|>{key}<|tool_arg:value|>{}<|tool_arg:end|>\n", bare(value))
                });
                format!("<|tool_call:start|>{name}\n{}<|tool_call:end|>\n", arguments.collect::<String>())
            })
        }),
        typed("solar_1", |calls| {
            let calls = each(calls, |name, arguments| {
                format!(
                    "<|tool_call:begin|>a1<|tool_call:name|>{name}<|tool_call:args|>{}<|tool_call:end|>",
                    json(arguments)
                )
            });
            format!("<|tool_calls|>{calls}<|calls|>")
        }),
        typed("plamo", |calls| {
            let tag = |side: &str, name: &str| format!("<|plamo:{side}_tool_{name}:plamo|>");
            let calls = each(calls, |name, arguments| {
                let name = format!("{}{name}{}", tag("begin", "name"), tag("end", "name"));
                let arguments =
                    format!("{}{}{}", tag("begin", "arguments"), json(arguments), tag("end", "arguments"));
                format!("{}{name}{arguments}{}", tag("begin", "request"), tag("end", "request"))
            });
            format!("{}{calls}{}", tag("begin", "requests"), tag("end", "requests"))
        }),
        typed("cwm", |calls| {
            each(calls, |name, arguments| format!("<tool: function>\n{name} {}\n</tool>\n", json(arguments)))
        }),
        typed("named_tag", |calls| {
            each(calls, |name, arguments| format!("<tool_call>{name}>{}</tool_call>\n", json(arguments)))
        }),
        typed("named_tag", |calls| {
            each(calls, |name, arguments| {
                format!("<tool_call>function\n{name}\n{}</tool_call>", json(arguments))
            })
        }),
    ]
}

fn tokens() -> Vec<Writer> {
    vec![
        flat("gemma", |calls| {
            each(calls, |name, arguments| {
                let pairs = arguments.iter().map(|(key, value)| format!("{key}:{}", gemma(value)));
                format!("<|tool_call>call:{name}{{{}}}<tool_call|>", pairs.collect::<Vec<_>>().join(","))
            })
        }),
        flat("gemma", |calls| {
            each(calls, |name, arguments| {
                let pairs = arguments.iter().map(|(key, value)| match value {
                    Value::String(text) => format!("{key}:<escape>{text}<escape>"),
                    other => format!("{key}:{other}"),
                });
                let pairs = pairs.collect::<Vec<_>>().join(",");
                format!("<start_function_call>call:{name}{{{pairs}}}<end_function_call>")
            })
        }),
        flat("marker", |calls| {
            each(calls, |name, arguments| {
                let pairs = arguments.iter().map(|(key, value)| format!("|{key}={}", bare(value)));
                format!("[TOOL:{name}{}]\n", pairs.collect::<String>())
            })
        }),
        typed("kimi_k3", |calls| {
            let calls = each(calls, |name, arguments| {
                let arguments = arguments.iter().map(|(key, value)| {
                    let kind = if value.is_string() { "string" } else { "object" };
                    format!(
                        "<|open|>argument key=\"{key}\" type=\"{kind}\"<|sep|>{}<|close|>argument<|sep|>",
                        bare(value)
                    )
                });
                let arguments: String = arguments.collect();
                format!("<|open|>call tool=\"{name}\" index=\"1\"<|sep|>{arguments}<|close|>call<|sep|>")
            });
            format!("<|open|>tools<|sep|>{calls}<|close|>tools<|sep|><|close|>message<|sep|>")
        }),
        typed("minimax_m3", |calls| {
            let calls = each(calls, |name, arguments| {
                let members =
                    arguments.iter().map(|(key, value)| format!("{M3}<{key}>{}{M3}</{key}>", bare(value)));
                format!("{M3}<invoke name=\"{name}\">{}{M3}</invoke>\n", members.collect::<String>())
            });
            format!("{M3}<tool_call>\n{calls}{M3}</tool_call>")
        }),
    ]
}

fn elements() -> Vec<Writer> {
    vec![
        untyped("namespaced", |calls| {
            format!("<ns:function_calls>\n{}</ns:function_calls>", invocations(calls, "ns:"))
        }),
        untyped("namespaced", |calls| invocations(calls, "claude.v2:")),
        untyped("tool_tag", |calls| {
            each(calls, |name, arguments| {
                let members =
                    arguments.iter().map(|(key, value)| format!("<{key}>\n{}\n</{key}>\n", bare(value)));
                format!("<{name}>\n{}</{name}>\n", members.collect::<String>())
            })
        }),
        untyped("beam", |calls| {
            each(calls, |name, arguments| {
                let parameters = arguments.iter().map(|(key, value)| {
                    format!("<rfl:parameter name=\"{key}\">\n{}\n</rfl:parameter>", bare(value))
                });
                format!(
                    "<|start|>assistant to={name}<|channel|>analysis <|constrain|>xml<|message|>{}<|end|>",
                    parameters.collect::<String>()
                )
            })
        }),
    ]
}

fn named_calls() -> Vec<Writer> {
    vec![
        typed("invoke", |calls| {
            each(calls, |name, arguments| {
                format!("<tool_call name=\"{name}\">{}</tool_call>\n", json(arguments))
            })
        }),
        typed("mcp_tag", |calls| {
            each(calls, |name, arguments| {
                format!(
                    "<use_mcp_tool>\n<server_name>s</server_name>\n<tool_name>{name}</tool_name>\n<arguments>\n{}\n</arguments>\n</use_mcp_tool>\n",
                    json(arguments)
                )
            })
        }),
        typed("functionary", |calls| {
            each(calls, |name, arguments| format!(">>>{name}\n{}", json(arguments)))
        }),
        typed("arrow", |calls| {
            each(calls, |name, arguments| {
                let options = arguments.iter().map(|(key, value)| format!("  --{key} {value}\n"));
                format!(
                    "[TOOL_CALL]\n{{tool => \"{name}\", args => {{\n{}}}}}\n[/TOOL_CALL]\n",
                    options.collect::<String>()
                )
            })
        }),
        typed("tool_url", |calls| {
            joined(calls, "\n", |name, arguments| format!("nc://{name} {}", json(arguments)))
        }),
        typed("headed", |calls| {
            let calls = joined(calls, "\n", |name, arguments| object(name, arguments, "arguments"));
            format!("**Tool Call:**\n```json\n{calls}\n```")
        }),
    ]
}

const M3: &str = "]<]minimax[>[";

fn messages() -> Vec<Writer> {
    vec![
        typed("minicpm5", |calls| {
            each(calls, |name, arguments| {
                let parameters = arguments.iter().map(|(key, value)| {
                    let text = match value {
                        Value::String(text) => {
                            format!("<![CDATA[{}]]>", text.replace("]]>", "]]]]><![CDATA[>"))
                        }
                        other => other.to_string(),
                    };
                    format!("<param name=\"{key}\">{text}</param>")
                });
                format!("<function name=\"{name}\">{}</function>\n", parameters.collect::<String>())
            })
        }),
        typed("inkling", |calls| {
            each(calls, |name, arguments| {
                format!(
                    "<|message_model|>{name}<|content_invoke_tool_json|>{}<|end_message|>",
                    object(name, arguments, "args")
                )
            })
        }),
        typed("harmony_recipient", |calls| {
            let bodies = calls.iter().map(|(name, arguments)| {
                format!("to=functions.{name}<|channel|>commentary json<|message|>{}<|call|>", json(arguments))
            });
            bodies.collect::<Vec<_>>().join("<|start|>assistant ")
        }),
        untyped("harmony", |calls| {
            each(calls, |name, arguments| {
                let call = [(format!("{name}.{name}"), arguments.clone())];
                format!(
                    "<|start|>assistant to={name}.{name}<|message|><atem:function_calls>\n{}</atem:function_calls><|eom|>",
                    invocations(&call, "atem:")
                )
            })
        }),
        typed("gigachat", |calls| {
            each(calls, |name, arguments| {
                format!("<|function_call|>{}</s>", object(name, arguments, "arguments"))
            })
        }),
        typed("gigachat_role", |calls| {
            let messages = calls.iter().map(|(name, arguments)| {
                format!("function call<|role_sep|>\n{}", object(name, arguments, "arguments"))
            });
            messages.collect::<Vec<_>>().join("<|message_sep|>\n\n")
        }),
    ]
}
