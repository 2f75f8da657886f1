//! Fields of a request that only vLLM knows, and that it takes under the same name on its own routes for
//! these APIs and for chat.
//!
//! They go into the chat request unchanged: the server checks them. Called by `responses` and `messages`.

use wire::Object;

/// vLLM's fields for sampling, structured output, caching and transfers between servers.
const FIELDS: [&str; 16] = [
    "cache_salt",
    "chat_template_kwargs",
    "ignore_eos",
    "include_stop_str_in_output",
    "kv_transfer_params",
    "min_p",
    "mm_processor_kwargs",
    "priority",
    "repetition_penalty",
    "seed",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "stop_token_ids",
    "structured_outputs",
    "vllm_xargs",
    "watermarking",
];

/// Returns true for a field that goes to the server unchanged.
pub(super) fn is_server_field(key: &str) -> bool {
    FIELDS.contains(&key)
}

/// Copies such fields into the chat request.
pub(super) fn put_server_fields<'o>(chat: &mut Object<'o>, request: &'o Object<'_>) {
    for (key, value) in request.iter() {
        if is_server_field(key) && value != "null" {
            chat.set(key, value);
        }
    }
}
