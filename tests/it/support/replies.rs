//! Bodies as vLLM 0.32 sends them, vLLM-only fields included, for scripts. Shapes taken from captures.

use serde_json::{Value, json};

/// One SSE frame.
pub fn frame(data: &Value) -> String {
    format!("data: {data}\n\n")
}

/// The frame that ends a stream.
pub const DONE: &str = "data: [DONE]\n\n";

/// A whole reply of plain text.
pub fn text(content: &str) -> Value {
    completion(&json!({"role": "assistant", "content": content, "reasoning": null}), "stop")
}

/// A whole reply of native calls, each a name and the text of its arguments.
pub fn calls(calls: &[(&str, &str)]) -> Value {
    let call = |(index, (name, arguments)): (usize, &(&str, &str))| {
        json!({"id": format!("chatcmpl-tool-{index:016x}"), "type": "function",
               "function": {"name": name, "arguments": arguments}})
    };
    let calls: Vec<Value> = calls.iter().enumerate().map(call).collect();
    let message =
        json!({"role": "assistant", "content": null, "reasoning": "I need a tool.", "tool_calls": calls});
    completion(&message, "tool_calls")
}

/// A whole reply with this message.
pub fn completion(message: &Value, finish_reason: &str) -> Value {
    let mut whole = json!({"role": "assistant", "content": null, "refusal": null, "annotations": null, "audio": null,
                           "function_call": null});
    for (key, value) in message.as_object().into_iter().flatten() {
        whole[key] = value.clone();
    }
    json!({
        "id": "chatcmpl-826e2b805076d884", "object": "chat.completion", "created": 1_795_223_698, "model": "gpt-oss-20b",
        "choices": [{"index": 0, "message": whole, "logprobs": null, "finish_reason": finish_reason, "stop_reason": null,
                     "token_ids": null, "routed_experts": null}],
        "service_tier": null, "system_fingerprint": "vllm-0.32.0-d9701dd0", "usage": usage(), "prompt_logprobs": null,
        "prompt_token_ids": null, "prompt_text": null, "kv_transfer_params": null, "ec_transfer_params": null,
        "metrics": null,
    })
}

fn usage() -> Value {
    json!({"prompt_tokens": 131, "total_tokens": 162, "completion_tokens": 31, "prompt_tokens_details": null,
           "completion_tokens_details": {"reasoning_tokens": 13}})
}

/// A chunk of a stream: choice 0 with this delta.
pub fn chunk(delta: &Value, finish_reason: Option<&str>) -> Value {
    let mut choice = json!({"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish_reason});
    if finish_reason.is_some() {
        choice["stop_reason"] = Value::Null;
    }
    choice["token_ids"] = Value::Null;
    json!({"id": "chatcmpl-9ba5d444ec39329c", "object": "chat.completion.chunk", "created": 1_795_223_695,
           "model": "gpt-oss-20b", "choices": [choice]})
}

/// The first frame of a stream.
pub fn role_frame() -> String {
    let mut first = chunk(&json!({"role": "assistant", "content": ""}), None);
    first["prompt_token_ids"] = Value::Null;
    first["prompt_text"] = Value::Null;
    frame(&first)
}

/// The frame of the usage.
pub fn usage_frame() -> String {
    let mut last = chunk(&json!({}), None);
    last["choices"] = json!([]);
    last["usage"] = json!({"prompt_tokens": 131, "total_tokens": 162, "completion_tokens": 31});
    frame(&last)
}

/// A whole stream of plain text, frame by frame: role, one frame per piece, finish, usage when wanted,
/// `[DONE]`.
pub fn text_stream(pieces: &[&str], with_usage: bool) -> Vec<String> {
    let mut frames = vec![role_frame()];
    frames.extend(pieces.iter().map(|piece| frame(&chunk(&json!({"content": piece}), None))));
    frames.push(frame(&chunk(&json!({}), Some("stop"))));
    frames.extend(with_usage.then(usage_frame));
    frames.push(DONE.to_owned());
    frames
}

/// The body of an error.
pub fn error(status: u16, message: &str, kind: &str) -> Value {
    json!({"error": {"message": message, "type": kind, "param": null, "code": status}})
}
