//! How the dialects write a call that have tags or tokens around each argument: the other half of their readers.

use serde_json::Value;

use super::writers::{Calls, Writer, bare, each, flat, gemma, json, object, typed, untyped};

pub(super) fn all() -> Vec<Writer> {
    [tags(), tokens(), messages()].into_iter().flatten().collect()
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
        typed("invoke", |calls| format!("<｜DSML｜tool_calls>\n{}</｜DSML｜tool_calls>", dsml(calls))),
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

fn dsml(calls: &Calls) -> String {
    each(calls, |name, arguments| {
        let parameters = arguments.iter().map(|(key, value)| {
            let text = value.is_string();
            format!(
                "<｜DSML｜parameter name=\"{key}\" string=\"{text}\">{}</｜DSML｜parameter>\n",
                bare(value)
            )
        });
        format!("<｜DSML｜invoke name=\"{name}\">\n{}</｜DSML｜invoke>\n", parameters.collect::<String>())
    })
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
