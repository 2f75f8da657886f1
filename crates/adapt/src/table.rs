//! The table of rules: what is refused, in whose words, what is changed, what is lost. docs/requests.md and
//! the tests are generated from it.
//!
//! Sources of the words: llama.cpp's `json-schema-to-grammar.cpp` and `server-common.cpp`, the chat templates
//! of the models, vLLM's and `SGLang`'s request models, `mistral_common`, Ollama, LM Studio and OpenAI's API.

mod media;
mod messages;
mod tools;

use crate::row::Row;

const NOTHING: &str = "nothing";

/// All rules but those about single parameters. Among rows with the same words the first that changes the
/// request counts.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    [tools::ROWS, messages::ROWS, media::ROWS].into_iter().flatten()
}
