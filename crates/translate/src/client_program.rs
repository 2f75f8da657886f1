//! Recognises the client program; only this module does. Some programs need other errors and other token
//! counts. Pure. Called by `relay` and `server`.

use wire::{ChatRequest, Message, Object, decode_string, first_element};

/// A client program for which replies differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientProgram {
    /// Any other client.
    #[default]
    Other,
    /// OpenClaw: it repeats errors on its own.
    OpenClaw,
    /// OpenClaw until 2026.2: it does not try its fallback model after every final error.
    OldOpenClaw,
    /// OpenAI's Codex.
    Codex,
    /// Anthropic's Claude Code.
    ClaudeCode,
    /// Qwen Code: it repeats 429 and 5xx and ignores `x-should-retry`. On the Messages route it calls itself
    /// `claude-cli/0.24.4`.
    QwenCode,
    /// Vercel's AI SDK: it repeats 429 and 5xx twice and ignores `x-should-retry`.
    AiSdk,
    /// opencode: the words of an error make it repeat the request for more than a minute, regardless of
    /// status and headers (measured on 1.18.33).
    Opencode,
    /// aider: it repeats everything but a bad request for more than a minute (measured on 0.86.2, which uses
    /// `LiteLLM`).
    Aider,
    /// One of respool's own runs.
    Agent,
}

/// The bytes of a prompt that are read.
const BEGINNING: usize = 512;

/// The beginnings of OpenClaw's system prompts for agents, reviewers and summaries. Source: captured requests
/// of 2026.9.6, and the shipped code.
const OPENCLAW: [&str; 3] = [
    "<!-- openclaw:",
    "You are OpenClaw's ",
    "You are a context summarization assistant. Your task is to read a conversation between a user and an AI assistant,",
];

/// The beginnings in OpenClaw 2026.2.26.
const OLD_OPENCLAW: [&str; 2] = [
    "You are a personal assistant running inside OpenClaw.",
    "You are a context summarization assistant. Your task is to read a conversation between a user and an AI coding assistant,",
];

/// The beginnings of the system prompts of aider's edit, ask and architect modes (0.86.2). Its headers are
/// those of `OpenAI`'s library.
const AIDER: [&str; 6] = [
    "Act as an expert software developer.\nAlways use best practices when coding.\nRespect and use existing conventions",
    "Act as an expert software developer.\nTake requests for changes to the supplied code.",
    "Act as an expert software developer who edits source code.\n",
    "Act as an expert software developer and make changes to source code.\n",
    "Act as an expert code analyst.\nAnswer questions about the supplied code.",
    "Act as an expert architect engineer and provide direction to your editor engineer.",
];

impl ClientProgram {
    /// Recognises the program that sent a chat completion. The beginning of the first system or developer
    /// message decides, not words that a conversation may quote.
    pub fn from_chat(request: &ChatRequest<'_>) -> Self {
        let first = request.messages.iter().find(|message| is_instruction(message));
        let text = first.map(leading_text).unwrap_or_default();
        let begins = |beginnings: &[&str]| beginnings.iter().any(|beginning| text.starts_with(beginning));
        match (begins(&OPENCLAW), begins(&OLD_OPENCLAW)) {
            (true, _) => Self::OpenClaw,
            (_, true) => Self::OldOpenClaw,
            _ if begins(&AIDER) => Self::Aider,
            _ => Self::Other,
        }
    }

    /// Recognises the program by the body of a chat completion; [`Self::Other`] for any other body.
    pub fn from_chat_body(body: &[u8]) -> Self {
        ChatRequest::parse(body).map(|request| Self::from_chat(&request)).unwrap_or_default()
    }

    /// Returns this program if it is known, else the other one.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        if self == Self::Other { other } else { self }
    }

    /// Recognises the program that sent a request in another protocol by its `user-agent` header.
    pub fn from_user_agent(user_agent: &str) -> Self {
        match user_agent {
            agent if agent.starts_with("codex") => Self::Codex,
            agent if agent.starts_with("QwenCode") || agent.starts_with("claude-cli/0.") => Self::QwenCode,
            agent if agent.starts_with("claude-cli") => Self::ClaudeCode,
            agent if agent.starts_with("ai-sdk") => Self::AiSdk,
            agent if agent.starts_with("opencode") => Self::Opencode,
            _ => Self::Other,
        }
    }

    /// Returns true for both versions of OpenClaw.
    pub fn is_openclaw(self) -> bool {
        matches!(self, Self::OpenClaw | Self::OldOpenClaw)
    }

    /// Returns true for agents, which take a reply's prompt tokens for the size of the conversation and
    /// compact it accordingly: only the prompt of the last attempt may count.
    pub fn reads_prompt_as_context(self) -> bool {
        !matches!(self, Self::Other | Self::Aider)
    }
}

fn is_instruction(message: &Message<'_>) -> bool {
    message.has_role("system") || message.has_role("developer")
}

/// Returns the beginning of a message's text: a string, or its first part.
fn leading_text(message: &Message<'_>) -> String {
    let content = message.object.get("content").unwrap_or_default();
    let part = first_element(content).and_then(|part| Object::parse(part).ok());
    let text = part.as_ref().map_or(Some(content), |part| part.get("text"));
    text.and_then(decode_beginning).unwrap_or_default()
}

/// Decodes the beginning of a JSON string. System prompts have tens of thousands of bytes.
fn decode_beginning(json: &str) -> Option<String> {
    if json.len() <= BEGINNING {
        return decode_string(json);
    }
    // The cut may be inside an escape; none is longer than six bytes.
    let cut = |off: usize| &json[..json.floor_char_boundary(BEGINNING - off)];
    (0..=6).find_map(|off| decode_string(&format!("{}\"", cut(off))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn program(messages: &Value) -> ClientProgram {
        let body = json!({ "messages": messages }).to_string();
        ClientProgram::from_chat(&ChatRequest::parse(body.as_bytes()).unwrap())
    }

    #[test]
    fn openclaw_is_known_by_how_its_prompt_begins() {
        let new = "<!-- openclaw:attempt:STABLE -->\nYou are a personal assistant";
        let old = "You are a personal assistant running inside OpenClaw.\n## Tooling";
        for message in [
            json!({"role": "system", "content": new}),
            json!({"role": "system", "content": [{"type": "text", "text": new}]}),
        ] {
            assert_eq!(
                program(&json!([message, {"role": "user", "content": "hi"}])),
                ClientProgram::OpenClaw
            );
        }
        assert_eq!(program(&json!([{"role": "developer", "content": old}])), ClientProgram::OldOpenClaw);
        let aider =
            "Act as an expert software developer.\nTake requests for changes to the supplied code.\nIf";
        assert_eq!(program(&json!([{"role": "system", "content": aider}])), ClientProgram::Aider);
        for messages in [
            json!([{"role": "user", "content": new}]),
            json!([{"role": "system", "content": "Help."}, {"role": "user", "content": old}]),
            json!([{"role": "system", "content": format!("The log says: {new}")}]),
            json!([]),
        ] {
            assert_eq!(program(&messages), ClientProgram::Other, "{messages}");
        }
    }

    #[test]
    fn a_long_prompt_is_known_wherever_it_is_cut() {
        for filler in ["x", "\n", "\u{1f600}", "\u{e9}", "\\"] {
            for length in 400..600 {
                let text = format!("<!-- openclaw:x -->{}", filler.repeat(length));
                let messages = json!([{"role": "system", "content": text}]);
                assert_eq!(program(&messages), ClientProgram::OpenClaw, "{length} of {filler:?}");
            }
        }
    }

    #[test]
    fn agent_clients_are_known_by_their_user_agent() {
        for (agent, program) in [
            ("codex_exec/0.169.0 (Debian 12.0.0; x86_64) xterm", ClientProgram::Codex),
            ("codex_cli_rs/0.169.0", ClientProgram::Codex),
            ("claude-cli/2.1.330 (external, sdk-cli)", ClientProgram::ClaudeCode),
            ("claude-cli/0.24.4 (external, cli)", ClientProgram::QwenCode),
            ("QwenCode/0.24.4 (linux; x64)", ClientProgram::QwenCode),
            ("opencode/1.18.33 ai-sdk/provider-utils/4.0.23 runtime/bun/1.3.14", ClientProgram::Opencode),
            ("ai-sdk-openai/4.0.118 ai-sdk-provider-utils/5.0.81 node.js/24", ClientProgram::AiSdk),
            ("OpenAI/Python 3.54.0", ClientProgram::Other),
            ("", ClientProgram::Other),
        ] {
            assert_eq!(ClientProgram::from_user_agent(agent), program, "{agent}");
        }
    }
}
