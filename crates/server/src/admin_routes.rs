//! The routes of model servers that change or stop the server, or show its inside: sleep, new weights, adapters, profiles. They
//! are no client's business, and most servers ask for no key there. Pure. Called by `access`.
//!
//! Sources: vLLM's routers under `vllm/entrypoints/serve` and `vllm/entrypoints/openai/api_server.py` (0.9 to 0.32), and the list of
//! dangerous endpoints in its `docs/usage/security.md`; the HTTP servers of `SGLang` and llama.cpp.

use std::borrow::Cow;

/// The first segment of a path, behind an optional `/v1`, that makes it an administrative one.
const NAMES: &[&str] = &[
    // vLLM: the engine's state.
    "sleep",
    "wake_up",
    "is_sleeping",
    "pause",
    "resume",
    "is_paused",
    "abort_requests",
    "collective_rpc",
    "server_info",
    "reset_prefix_cache",
    "reset_mm_cache",
    "reset_encoder_cache",
    "scale_elastic_ep",
    "is_scaling_elastic_ep",
    "fault_tolerance",
    "start_profile",
    "stop_profile",
    // vLLM: weights and adapters.
    "load_lora_adapter",
    "unload_lora_adapter",
    "init_weight_transfer_engine",
    "start_weight_update",
    "start_draft_weight_update",
    "update_weights",
    "finish_weight_update",
    "update_weight_version",
    "reload_weights",
    "weight_info",
    "weight_checker",
    "get_world_size",
    // SGLang.
    "flush_cache",
    "clear_hicache_storage_backend",
    "init_weights_update_group",
    "destroy_weights_update_group",
    "update_weights_from_disk",
    "update_weights_from_distributed",
    "update_weights_from_tensor",
    "update_weights_from_ipc",
    "get_weights_by_name",
    "release_memory_occupation",
    "resume_memory_occupation",
    "pause_generation",
    "continue_generation",
    "abort_request",
    "open_session",
    "close_session",
    "configure_logging",
    "freeze_gc",
    "slow_down",
    "set_internal_state",
    "get_server_info",
    "get_internal_state",
    "start_expert_distribution_record",
    "stop_expert_distribution_record",
    "dump_expert_distribution_record",
    // llama.cpp: prompts of others, adapters.
    "slots",
    "lora-adapters",
    "props",
];

/// True for a path of such a route, however it is spelt.
pub(super) fn is_administrative(path: &str) -> bool {
    let decoded = decoded(path);
    let mut segments: Vec<&str> = Vec::new();
    for segment in decoded.split(['/', '\\']) {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    let first = match segments.as_slice() {
        [version, name, ..] if version.eq_ignore_ascii_case("v1") => name,
        [name, ..] => name,
        [] => return false,
    };
    // A proxy may cut parameters off.
    let name = first.split([';', '?', '#']).next().unwrap_or(first).trim();
    NAMES.iter().any(|known| known.eq_ignore_ascii_case(name))
}

/// True when a path has parts that stand for its own or the upper folder.
pub(super) fn has_dot_segments(path: &str) -> bool {
    decoded(path).split(['/', '\\']).any(|segment| segment == "." || segment == "..")
}

/// Without percent signs: also what was encoded more than once, since proxies and servers each decode.
fn decoded(path: &str) -> Cow<'_, str> {
    let mut decoded = Cow::Borrowed(path);
    for _ in 0..4 {
        if !decoded.contains('%') {
            break;
        }
        decoded = Cow::Owned(percent_encoding::percent_decode_str(&decoded).decode_utf8_lossy().into_owned());
    }
    decoded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, expected: bool) {
        assert_eq!(is_administrative(path), expected, "{path}");
    }

    #[test]
    fn every_name_in_every_spelling() {
        for name in NAMES {
            check(&format!("/{name}"), true);
            check(&format!("/v1/{name}"), true);
            check(&format!("/{name}/"), true);
        }
        for path in [
            "/Sleep",
            "//sleep",
            "/./sleep",
            "/v1/../sleep",
            "/v1//load_lora_adapter",
            "/x/../collective_rpc",
            "/%73leep",
            "/%2573leep",
            "/v1%2Fload_lora_adapter",
            "/%2e%2e/sleep",
            "/pause/step",
            "/fault_tolerance/apply",
            "/sleep;x=1",
            "/slots/0",
            "\\sleep",
        ] {
            check(path, true);
        }
    }

    #[test]
    fn paths_that_lead_elsewhere() {
        for (path, expected) in [
            ("/v1/../other/v1/chat/completions", true),
            ("/..", true),
            ("/v1/./models", true),
            ("/v1/%2e%2e/x", true),
            ("/v1/%252e%252e%252fx", true),
            ("/v1\\..\\x", true),
            ("/v1/models/org%2Fmodel-1.5", false),
            ("/v1/files/a..b", false),
            ("/.well-known/x", false),
            ("/", false),
        ] {
            assert_eq!(has_dot_segments(path), expected, "{path}");
        }
    }

    #[test]
    fn what_clients_use_is_not_administrative() {
        for path in [
            "/",
            "",
            "/v1/chat/completions",
            "/v1/completions",
            "/v1/embeddings",
            "/v1/models/sleep",
            "/v1/responses/sleep",
            "/tokenize",
            "/detokenize",
            "/tokenizer_info",
            "/pooling",
            "/score",
            "/rerank",
            "/classify",
            "/v1/audio/transcriptions",
            "/invocations",
            "/version",
            "/sleepy",
            "/%zz",
        ] {
            check(path, false);
        }
    }
}
