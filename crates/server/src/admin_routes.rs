//! The routes of model servers that clients may use: inference, and information about models. Every other one
//! may change or stop the server, or show what other clients do, and most servers ask for no key there, so
//! respool passes it on only where its owner says so. An allow list, because each release of a server brings
//! routes that respool does not know. Pure. Called by `access`.
//!
//! Sources: the routers of vLLM 0.33 (`vllm/entrypoints`), `SGLang` 0.5.23 (`entrypoints/http_server.py`) and
//! llama.cpp (`tools/server`), and the references of Ollama, LM Studio, text-embeddings-inference and OpenAI.

use std::borrow::Cow;

use http::Method;

/// Routes that clients use with any method, with or without a leading `/v1`. `*` stands for the rest of a
/// path.
const INFERENCE: &[&str] = &[
    // OpenAI and Anthropic. What a client leaves at the server (files, batches, threads) belongs to the key
    // that respool sends, and so to all clients: those routes are not here.
    "chat/completions",
    "chat/completions/batch",
    "chat/completions/input_tokens",
    "chat/completions/render",
    "completions",
    "completions/render",
    "embeddings",
    "moderations",
    "responses",
    "responses/*",
    "messages",
    "messages/count_tokens",
    "audio/speech",
    "audio/transcriptions",
    "audio/translations",
    "images/edits",
    "images/generations",
    "images/variations",
    "realtime",
    // vLLM.
    "classify",
    "detokenize",
    "inference/v1/generate",
    "invocations",
    "ping",
    "pooling",
    "rerank",
    "score",
    "tokenize",
    "/v2/embed",
    "/v2/rerank",
    // SGLang.
    "encode",
    "generate",
    "parse_function_call",
    "separate_reasoning",
    "vertex_generate",
    // llama.cpp.
    "apply-template",
    "completion",
    "embedding",
    "infill",
    "reranking",
    // Text generation inference, text embeddings inference.
    "chat_tokenize",
    "embed",
    "embed_all",
    "embed_sparse",
    "generate_stream",
    "predict",
    "similarity",
    // Ollama; `show` describes a model and is asked with POST.
    "/api/chat",
    "/api/embed",
    "/api/embeddings",
    "/api/generate",
    "/api/show",
    // LM Studio.
    "/api/v0/chat/completions",
    "/api/v0/completions",
    "/api/v0/embeddings",
    "/api/v1/chat",
];

/// Routes that give information and are only read.
const INFORMATION: &[&str] = &[
    "models",
    "models/*",
    "/api/ps",
    "/api/tags",
    "/api/v0/models",
    "/api/v0/models/*",
    "/api/v1/models",
    "/api/version",
    "docs",
    "get_load",
    "get_model_info",
    "health",
    "health_generate",
    "info",
    "load",
    "loads",
    "model_info",
    "openapi.json",
    "tokenizer_info",
    "version",
];

/// The most letters that a slip changes.
const SLIP: usize = 2;
/// The shortest route that is suggested for an unknown path.
const LEAST_LENGTH: usize = 8;

/// Returns true for a route that every client may use. The path is compared as it is written: another
/// spelling is unknown.
pub(super) fn is_for_clients(method: &Method, path: &str) -> bool {
    let is_read = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
    let lists = [(INFERENCE, true), (INFORMATION, is_read)];
    lists.into_iter().filter(|(_, may)| *may).any(|(list, _)| list.iter().any(|route| is_route(route, path)))
}

/// Returns the known path that a client most likely meant by an unknown one.
pub(super) fn likely_path(path: &str) -> Option<String> {
    if path.starts_with("/v1/v1/") {
        return path.strip_prefix("/v1").map(str::to_owned);
    }
    if matches!(path, "/v1/chat" | "/chat" | "/v1/chat/" | "/chat/") {
        return Some(format!("{}/completions", path.trim_end_matches('/')));
    }
    let base = if path.starts_with("/v1/") { "/v1/" } else { "/" };
    let known = INFERENCE.iter().filter(|route| route.len() >= LEAST_LENGTH && !route.ends_with('*'));
    let known = known
        .map(|route| if route.starts_with('/') { (*route).to_owned() } else { format!("{base}{route}") });
    // A long path is not compared.
    let known = known.filter(|known| known.len().abs_diff(path.len()) <= SLIP);
    let near = known.map(|known| (strsim::damerau_levenshtein(&known, path), known));
    near.min().filter(|(letters, _)| *letters <= SLIP).map(|(_, known)| known)
}

/// Returns true for a path of the route as the owner wrote it: the same path, or one below it where the
/// route ends with `/*`.
pub(super) fn is_below_route(route: &str, path: &str) -> bool {
    match route.strip_suffix('*') {
        Some(start) => path.strip_prefix(start).is_some_and(|rest| !rest.is_empty()),
        None => path == route,
    }
}

/// Returns true if the path is this route. A route that begins with a slash has no other spelling; the
/// others may follow `/v1`.
fn is_route(route: &str, path: &str) -> bool {
    if route.starts_with('/') {
        return is_below_route(route, path);
    }
    let path = path.strip_prefix("/v1").filter(|rest| rest.starts_with('/')).unwrap_or(path);
    path.strip_prefix('/').is_some_and(|path| is_below_route(route, path))
}

/// Returns true if a path has parts that mean the same or the parent folder.
pub(super) fn has_dot_segments(path: &str) -> bool {
    decode_percent(path).split(['/', '\\']).any(|segment| segment == "." || segment == "..")
}

/// Decodes percent signs, as often as they were encoded, since proxies and servers each decode.
fn decode_percent(path: &str) -> Cow<'_, str> {
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

    fn check(method: &Method, path: &str, expected: bool) {
        assert_eq!(is_for_clients(method, path), expected, "{method} {path}");
    }

    #[test]
    fn clients_cannot_change_a_server() {
        for path in [
            // vLLM.
            "/sleep",
            "/wake_up",
            "/collective_rpc",
            "/server_info",
            "/reset_prefix_cache",
            "/abort_requests",
            "/inference/v1/abort_requests",
            "/v1/load_lora_adapter",
            "/start_profile",
            "/scale_elastic_ep",
            "/release_kv_cache_memory",
            // SGLang.
            "/flush_cache",
            "/hicache/storage-backend",
            "/load_lora_adapter_from_tensors",
            "/update_weights_from_disk",
            "/set_trace_level",
            "/get_server_info",
            // llama.cpp.
            "/slots/0",
            "/props",
            "/lora-adapters",
            "/models/load",
            "/v1/models/unload",
            "/tools",
            // Ollama and others.
            "/api/pull",
            "/api/delete",
            "/api/create",
            "/api/v1/models/load",
            "/api/v1/models/download",
            "/v1/internal/model/load",
            // OpenAI: what all clients of one key share, or pay for.
            "/v1/files",
            "/v1/fine_tuning/jobs",
            "/v1/organization/admin_api_keys",
            "/v1/a_route_of_next_year",
        ] {
            check(&Method::POST, path, false);
        }
        check(&Method::GET, "/is_sleeping", false);
        check(&Method::DELETE, "/v1/models/llama", false);
        check(&Method::PUT, "/api/v1/models", false);
    }

    #[test]
    fn another_spelling_is_another_route() {
        for path in [
            "/%63ompletions",
            "//completions",
            "/v1//completions",
            "/v1/./completions",
            "/x/../completions",
            "/v1/v1/completions",
            "/v1completions",
            "/Completions",
            "/completions/",
            "\\completions",
            "/completions;x=1",
            "completions",
            "/v1/responses/",
            "/v1/api/chat",
            "/",
            "",
        ] {
            check(&Method::POST, path, false);
        }
    }

    #[test]
    fn slips_are_corrected() {
        for (path, expected) in [
            ("/v1/v1/chat/completions", Some("/v1/chat/completions")),
            ("/v1/chat/completion", Some("/v1/chat/completions")),
            ("/v1/chat", Some("/v1/chat/completions")),
            ("/v1/message", Some("/v1/messages")),
            ("/chat/completions/", Some("/chat/completions")),
            ("/v1", None),
            ("/nope", None),
            ("/sleep", None),
            ("/v1/files", None),
            ("/api/pull", None),
            ("/v1/load_lora_adapter", None),
        ] {
            assert_eq!(likely_path(path).as_deref(), expected, "{path}");
        }
    }

    #[test]
    fn inference_and_information_are_for_clients() {
        for path in [
            "/v1/completions",
            "/completions",
            "/v1/chat/completions/render",
            "/v1/embeddings",
            "/v1/responses/resp_1/cancel",
            "/v1/audio/transcriptions",
            "/tokenize",
            "/detokenize",
            "/pooling",
            "/v2/rerank",
            "/inference/v1/generate",
            "/api/chat",
            "/api/v0/chat/completions",
        ] {
            check(&Method::POST, path, true);
        }
        for path in [
            "/v1/models",
            "/models/org/model-1.5",
            "/tokenizer_info",
            "/version",
            "/api/tags",
            "/openapi.json",
        ] {
            check(&Method::GET, path, true);
        }
    }

    #[test]
    fn an_owners_route_covers_paths_below() {
        for (route, path, expected) in [
            ("/v1/files", "/v1/files", true),
            ("/v1/files", "/v1/files/a", false),
            ("/v1/files/*", "/v1/files/a/content", true),
            ("/v1/files/*", "/v1/files/", false),
            ("/v1/files/*", "/v1/files_of_others", false),
        ] {
            assert_eq!(is_below_route(route, path), expected, "{route} {path}");
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
}
