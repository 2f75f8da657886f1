//! The programs that serve models, recognised by their list of models, and what they say of themselves.
//! Called by `window` and `cli`.

use tool_call_parser::PreferredDialects;
use wire::Object;

/// A program that serves models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// vLLM.
    Vllm,
    /// `SGLang`.
    SgLang,
    /// llama.cpp's server.
    LlamaCpp,
    /// Ollama.
    Ollama,
    /// LM Studio.
    LmStudio,
    /// llama-swap, in front of servers that it starts.
    LlamaSwap,
}

impl Server {
    /// Recognises the server by the `owned_by` of its models.
    pub fn from_owner(owner: &str) -> Option<Self> {
        Some(match owner {
            "vllm" => Self::Vllm,
            "sglang" => Self::SgLang,
            "llamacpp" => Self::LlamaCpp,
            "library" => Self::Ollama,
            "organization_owner" => Self::LmStudio,
            "llama-swap" => Self::LlamaSwap,
            _ => return None,
        })
    }

    /// Its name, for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vllm => "vLLM",
            Self::SgLang => "SGLang",
            Self::LlamaCpp => "llama.cpp",
            Self::Ollama => "Ollama",
            Self::LmStudio => "LM Studio",
            Self::LlamaSwap => "llama-swap",
        }
    }

    /// The page on which it describes itself. `None`: none that respool reads; vLLM's version is probed.
    pub fn own_page(self) -> Option<&'static str> {
        match self {
            Self::SgLang => Some("/get_server_info"),
            Self::LlamaCpp => Some("/props"),
            Self::Ollama => Some("/api/version"),
            Self::Vllm | Self::LmStudio | Self::LlamaSwap => None,
        }
    }

    /// Its name and version, from its own page.
    pub fn describe_version(self, page: &[u8]) -> Option<String> {
        let key = if self == Self::LlamaCpp { "build_info" } else { "version" };
        Some(format!("{} {}", self.name(), read_object(page)?.string(key)?))
    }

    /// The requests that it works on at a time, from its own page.
    pub fn count_places(self, page: &[u8]) -> Option<u64> {
        let key = if self == Self::SgLang { "max_running_requests" } else { "total_slots" };
        read_object(page)?.number(key).filter(|places| *places > 0)
    }

    /// The dialects that its models write, from its own page: that of its parser or of the chat template.
    pub(super) fn preferred_dialects(self, page: &[u8]) -> PreferredDialects {
        let Some(page) = read_object(page) else { return PreferredDialects::NONE };
        let text = |key| page.string(key).unwrap_or_default();
        match self {
            Self::SgLang => {
                let names = ["tool_call_parser", "model_path"].map(text);
                PreferredDialects::from_model_names(names.iter().map(String::as_str))
            }
            Self::LlamaCpp => PreferredDialects::from_template(&text("chat_template")),
            Self::Vllm | Self::Ollama | Self::LmStudio | Self::LlamaSwap => PreferredDialects::NONE,
        }
    }
}

fn read_object(page: &[u8]) -> Option<Object<'_>> {
    Object::parse(std::str::from_utf8(page).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parsers_and_templates_show_what_models_write() {
        fn check(server: Server, answer: &str, expected: &str) {
            assert!(server.preferred_dialects(answer.as_bytes()).has(expected), "{answer}");
        }
        check(Server::SgLang, r#"{"tool_call_parser":"glm45","model_path":"/models/local"}"#, "glm");
        check(Server::SgLang, r#"{"tool_call_parser":null,"model_path":"openai/gpt-oss-20b"}"#, "harmony");
        check(Server::LlamaCpp, r#"{"chat_template":"{{'<|tool_calls_section_begin|>'}}"}"#, "kimi");
        for answer in ["", "[]", r#"{"chat_template":7}"#, r#"{"chat_template":"{{ messages }}"}"#] {
            assert_eq!(
                Server::LlamaCpp.preferred_dialects(answer.as_bytes()),
                PreferredDialects::NONE,
                "{answer}"
            );
        }
    }

    #[test]
    fn servers_say_their_version_and_places() {
        let check = |server: Server, page: &str, version: &str, places: Option<u64>| {
            assert_eq!(server.describe_version(page.as_bytes()).as_deref(), Some(version));
            assert_eq!(server.count_places(page.as_bytes()), places, "{version}");
        };
        let llama = r#"{"build_info":"b11434-1f2e3d4","total_slots":4}"#;
        check(Server::LlamaCpp, llama, "llama.cpp b11434-1f2e3d4", Some(4));
        check(Server::SgLang, r#"{"version":"0.5.23","max_running_requests":48}"#, "SGLang 0.5.23", Some(48));
        check(Server::Ollama, r#"{"version":"0.17.1"}"#, "Ollama 0.17.1", None);
    }
}
