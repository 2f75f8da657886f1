//! The same conversation in each API: its request, and the turn in its reply.

use serde_json::{Value, json};

use super::client::Reply;
use super::other_wires;
use super::turn::Turn;

/// A client's API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// Chat completions.
    Chat,
    /// OpenAI's Responses.
    Responses,
    /// Anthropic's Messages.
    Messages,
}

/// Those that are made from chat completions.
pub const OTHERS: [Api; 2] = [Api::Responses, Api::Messages];

impl Api {
    /// Where its requests go.
    pub fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Responses => "/v1/responses",
            Self::Messages => "/v1/messages",
        }
    }

    /// The request that asks the same as this chat request.
    pub fn request(self, chat: Value) -> Value {
        let functions =
            || chat["tools"].as_array().into_iter().flatten().map(|tool| tool["function"].clone());
        let (model, messages, stream) = (&chat["model"], &chat["messages"], &chat["stream"]);
        match self {
            Self::Chat => chat,
            Self::Responses => {
                let tools: Vec<Value> = functions()
                    .map(|mut tool| {
                        tool["type"] = "function".into();
                        tool
                    })
                    .collect();
                json!({"model": model, "input": messages, "stream": stream, "store": false, "tools": tools})
            }
            Self::Messages => {
                let tool = |tool: Value| json!({"name": tool["name"], "input_schema": tool["parameters"]});
                let tools: Vec<Value> = functions().map(tool).collect();
                json!({"model": model, "messages": messages, "stream": stream, "max_tokens": 4000,
                       "thinking": {"type": "adaptive"}, "tools": tools})
            }
        }
    }

    /// An error that leaves as a status has the API's own shape.
    pub fn check_error(self, reply: &Reply) {
        let error = reply.json();
        assert!(error["error"]["message"].is_string() && error["error"]["type"].is_string(), "{error}");
        assert_eq!(error["type"] == "error", self == Self::Messages, "{error}");
    }

    /// The turn of a reply, and whether it ended with a failure.
    pub fn read(self, reply: &Reply, is_stream: bool) -> (Turn, bool) {
        if !is_stream {
            return (self.of_object(&reply.json()), false);
        }
        let body = String::from_utf8(reply.body()).expect("text");
        let told = if self == Self::Responses {
            other_wires::responses(&body)
        } else {
            other_wires::messages(&body)
        };
        let calls = told.calls.iter().map(|(name, arguments)| (name.clone(), json_of(arguments)));
        let turn = Turn {
            reasoning: told.reasoning.clone(),
            content: told.content.replace('\t', ""),
            calls: calls.collect(),
        };
        (turn, told.end.starts_with("failed:"))
    }

    fn of_object(self, object: &Value) -> Turn {
        let mut turn = Turn { reasoning: String::new(), content: String::new(), calls: vec![] };
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        let parts = if self == Self::Responses { &object["output"] } else { &object["content"] };
        for part in parts.as_array().expect("a list") {
            match part["type"].as_str().expect("a type") {
                "reasoning" => turn.reasoning += &text(&part["content"][0]["text"]),
                "message" => turn.content += &text(&part["content"][0]["text"]),
                "function_call" => turn.calls.push((text(&part["name"]), json_of(&text(&part["arguments"])))),
                "thinking" => turn.reasoning += &text(&part["thinking"]),
                "text" => turn.content += &text(&part["text"]),
                "tool_use" => turn.calls.push((text(&part["name"]), part["input"].clone())),
                kind => panic!("{kind}"),
            }
        }
        turn.content = turn.content.replace('\t', "");
        turn
    }
}

fn json_of(arguments: &str) -> Value {
    serde_json::from_str(arguments).expect("the arguments are JSON")
}
