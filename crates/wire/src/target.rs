//! The properties of a model server that decide how a request to it is written.

/// Properties of the model server that gets a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerTraits {
    /// vLLM's version as (major, minor), when it is known.
    pub version: Option<(u32, u32)>,
    /// It is Ollama, which ignores `chat_template_kwargs`.
    pub is_ollama: bool,
    /// It is `SGLang`, which shows a model no tools when calls shall stay in the text.
    pub is_sglang: bool,
    /// It is llama.cpp, which can report how much of a prompt it has read.
    pub is_llama_cpp: bool,
}
