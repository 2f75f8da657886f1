//! Counts the tokens of a prompt without asking the server. Pure.
//!
//! For gpt-oss, it writes the prompt like vLLM (openai-harmony renders messages and tools instead of a chat
//! template) and counts with the model's encoding (`o200k_harmony` is `o200k_base` with special tokens, each
//! of which counts as one). Other models' prompts can only be estimated from their bytes. Called by `relay`;
//! the server's own count is `upstream`'s.

mod typescript;

use serde_json::Value;
use typescript::write_namespace;

use wire::{ChatRequest, Object, array_elements, decode_string};

/// The assumed bytes of a request for each thousand tokens of its prompt, until replies show the real ratio.
/// OpenClaw's requests to gpt-oss have 4,800 to 5,500; small requests and other languages have fewer, and a
/// low guess is safer.
pub const BYTES_PER_1000: u64 = 4000;

/// The tokens around a message: start, message, end, and the author's role.
const FRAME: usize = 4;
/// The tokens of a channel: its mark and its name.
const CHANNEL: usize = 2;

/// vLLM's system message for gpt-oss. The date has the same number of tokens on each day.
const SYSTEM: &str = "You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\n\
    Current date: 2026-11-21\n\nReasoning: medium\n\n\
    # Valid channels: analysis, commentary, final. Channel must be included for every message.";
const CALLS: &str = "\nCalls to these tools must go to the commentary channel: 'functions'.";

/// Counts the tokens of the prompt that vLLM makes for gpt-oss. Images are not counted.
pub fn count_harmony(request: &ChatRequest<'_>) -> u64 {
    let list = request.tools().and_then(array_elements).unwrap_or_default();
    let tools: Vec<Value> = list.into_iter().filter_map(|tool| serde_json::from_str(tool).ok()).collect();
    let messages = request.messages.iter().map(|it| count_message(&it.object)).sum::<usize>();
    count_harmony_frame(&tools) + messages as u64
}

/// Counts the tokens of such a prompt without messages: vLLM's own text and the declared tools.
pub fn count_harmony_frame(tools: &[Value]) -> u64 {
    let functions: Vec<&Value> = tools.iter().map(|tool| &tool["function"]).collect();
    let mut tokens = FRAME + count_text(SYSTEM);
    if !functions.is_empty() {
        tokens += count_text(CALLS) + FRAME + count_text(&write_namespace(&functions));
    }
    // The beginning of the reply: `<|start|>assistant`.
    (tokens + 2) as u64
}

/// Counts the tokens of one message of a request.
pub fn count_harmony_message(json: &str) -> u64 {
    Object::parse(json).map_or(0, |object| count_message(&object) as u64)
}

fn count_text(text: &str) -> usize {
    // The vocabulary is compiled in; without it, a high guess is safer.
    tiktoken::get_encoding("o200k_base").map_or(text.len(), |encoding| encoding.count(text))
}

fn count_message(message: &Object<'_>) -> usize {
    let content = message.get("content").map_or(0, count_content);
    let role = message.string("role").unwrap_or_default();
    if role == "tool" {
        // The author is the tool, which sends the result as a message to the assistant.
        return FRAME + CHANNEL + 6 + content;
    }
    if role != "assistant" {
        return FRAME + content;
    }
    let reasoning = ["reasoning", "reasoning_content"].into_iter().find_map(|key| message.string(key));
    let reasoning = reasoning.map_or(0, |text| FRAME + CHANNEL + count_text(&text));
    let content = if content == 0 { 0 } else { FRAME + CHANNEL + content };
    let calls = message.get("tool_calls").and_then(array_elements).unwrap_or_default();
    reasoning + content + calls.into_iter().map(count_call).sum::<usize>()
}

fn count_content(json: &str) -> usize {
    match array_elements(json) {
        Some(parts) => parts
            .into_iter()
            .filter_map(|part| Object::parse(part).ok()?.string("text"))
            .map(|text| count_text(&text))
            .sum(),
        None => decode_string(json).map_or(0, |text| count_text(&text)),
    }
}

/// Counts a call: ` to=functions.NAME`, the channel, ` json`, the arguments.
fn count_call(json: &str) -> usize {
    let function = Object::parse(json).ok().and_then(|call| {
        let function = Object::parse(call.get("function")?).ok()?;
        Some((function.string("name")?, function.string("arguments")?))
    });
    function.map_or(0, |(name, arguments)| FRAME + CHANNEL + 4 + count_text(&name) + count_text(&arguments))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(body: &str) -> u64 {
        count_harmony(&ChatRequest::parse(body.as_bytes()).unwrap())
    }

    /// What real vLLM servers reported as `usage.prompt_tokens`, by capture.
    #[test]
    fn agrees_with_what_vllm_counted() {
        let (mut compared, mut worst) = (0, 0);
        for version in ["v0.13.0", "v0.16.0", "v0.25.1"] {
            for (name, body, reported) in captured(&format!("../../fixtures/vllm/{version}-gptoss-general")) {
                let off = counted(&body).abs_diff(reported);
                assert!(off <= 4, "{version} {name}: {} counted, {reported} reported", counted(&body));
                (compared, worst) = (compared + 1, worst.max(off));
            }
        }
        assert!(compared >= 60, "only {compared} captures were compared; the worst was off by {worst}");
    }

    fn captured(folder: &str) -> Vec<(String, String, u64)> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            let Some(case) = name.strip_suffix(".resp.http") else { continue };
            // These are no chat requests, or the server answered something else than it was asked.
            if case.starts_with("57-") || case.starts_with("27-") {
                continue;
            }
            let reply = std::fs::read(&path).unwrap();
            let reply = String::from_utf8_lossy(&reply).into_owned();
            let reported = reply
                .split("\"prompt_tokens\":")
                .nth(1)
                .and_then(|rest| rest.split(',').next()?.parse().ok());
            let Ok(request) = std::fs::read_to_string(path.with_file_name(format!("{case}.req.http"))) else {
                continue;
            };
            let Some((_, body)) = request.split_once("\r\n\r\n") else { continue };
            found.extend(reported.map(|reported| (name, body.to_owned(), reported)));
        }
        found
    }

    /// Tokens that openai-harmony 0.0.8 (the library vLLM renders with) makes of requests that OpenClaw sent.
    #[test]
    fn agrees_with_the_harmony_library_on_openclaws_requests() {
        for (name, reported) in [
            ("request-2026.2.26-default", 10_419),
            ("request-2026.9.6-default-toolsearch", 12_653),
            ("request-2026.9.6-fulltools", 26_951),
            ("request-2026.9.6-subagent", 7_910),
            ("turn-exec-2-after-tool", 12_789),
            ("turn-parallel-2-after-tools", 12_811),
        ] {
            let body = std::fs::read_to_string(format!("../../fixtures/openclaw/{name}.json")).unwrap();
            let off = counted(&body).abs_diff(reported);
            assert!(off * 500 <= reported, "{name}: {} counted, {reported} reported", counted(&body));
        }
    }
}
