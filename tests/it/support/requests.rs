//! Requests of chat completions that many tests begin with.

use serde_json::{Value, json};

/// Without tools.
pub fn without_tools() -> Value {
    json!({"model": "gpt-oss-20b", "messages": [{"role": "user", "content": "hi"}], "stream": true, "seed": 7, "vllm_xargs": {"a": 1}})
}

/// With two tools.
pub fn with_tools() -> Value {
    json!({
        "model": "gpt-oss-20b",
        "messages": [{"role": "system", "content": "You are helpful."}, {"role": "user", "content": "What does a.txt say?"}],
        "stream": true, "stream_options": {"include_usage": true},
        "tools": [tool("read", "path"), tool("exec", "command")],
        "tool_choice": "auto", "max_completion_tokens": 4096,
    })
}

fn tool(name: &str, argument: &str) -> Value {
    json!({"type": "function", "function": {"name": name, "description": name,
        "parameters": {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}}})
}
