//! Words of refusals that several rows of the table share.

/// The name of a server that several rows quote.
pub(crate) const VLLM_RUST: &str = "vLLM 0.33's Rust front end";

/// The words for tools that a grammar compiler does not take.
pub(crate) const GRAMMAR: &[&str] = &[
    r"(?i)failed to (?:parse|compile|initialize) (?:the )?(?:grammar|samplers?)",
    r"(?i)(?:grammar|schema)\b[^\n]{0,60}\bexceeds? sane defaults",
    r"(?i)exceeds sane defaults",
    r"(?i)json schema conversion failed",
    r"(?i)unrecognized schema",
    r"(?i)features not supported by (?:xgrammar|outlines|guidance|llguidance)",
    r"(?i)(?:invalid|unsupported|cannot compile)[^\n]{0,30}\bgrammar",
    r"(?i)unable to generate (?:parser|grammar)[^\n]{0,80}schema",
    r"(?i)\bgrammar error: ",
    r"(?i)structured output processing only supports one backend",
];
/// The words of vLLM 0.33 for a schema that needs another grammar compiler than earlier requests did.
pub(crate) const ONE_BACKEND: &str = "Structured output processing only supports one backend per engine. The engine is already using 'xgrammar', but this request resolved to 'guidance'.";

/// The words of Gemini for a list of types.
pub(crate) const GEMINI_TYPE_LIST: &str =
    "Invalid value at 'tools[0].parameters.type' (type), Proto field is not repeating, cannot start list.";
/// The words of `SGLang` for every refusal of Mistral's template that has tools: it renders again with
/// another form of the tools, and says what that one lacks.
pub(crate) const OTHER_TOOLS: &str = r"(?i)'dict object' has no attribute 'function'";
/// The words of the request models of `SGLang` and vLLM for a content that is neither a text nor a list of
/// known parts.
pub(crate) const NO_STRING: &str =
    r"(?:'content', 'str'\)|MessageParam\.content'), 'msg': 'Input should be a valid string'";
/// The same, as `SGLang` writes it.
pub(crate) const SGLANG_CONTENT: &str = "3 validation errors:\n  {'type': 'value_error', 'loc': ('body', 'messages', 0, 'role'), 'msg': \"Value error, 'role' must be one of 'system', 'assistant', 'tool', 'function'\", 'input': 'user'}\n  {'type': 'string_type', 'loc': ('body', 'messages', 0, 'content', 'str'), 'msg': 'Input should be a valid string', 'input': None}";
/// The same, as vLLM begins to write it.
pub(crate) const VLLM_NULL: &str = "19 validation errors:\n  {'type': 'string_type', 'loc': 'body.messages.0.ChatCompletionDeveloperMessageParam.content', 'msg': 'Input should be a valid string', 'input': 'None'}";
/// The same of vLLM's Rust front end.
pub(crate) const NO_CONTENT: &str = r"(?i)did not match any variant of untagged enum MessageContent";
/// The words of Ollama for a part that is neither a text nor a picture.
pub(crate) const PARTS: &str = r"(?i)invalid message format";
/// The words of Ollama for a picture that it would have to fetch.
pub(crate) const OLLAMA_ADDRESS: &str =
    "image URLs are not currently supported, please use base64 encoded data instead";
/// The words of templates in which the user and the assistant take turns. Another role breaks the turns too.
pub(crate) const ALTERNATE: &str = r"(?i)roles must alternate";
/// A refusal of vLLM's Rust front end with those words.
pub(crate) const VLLM_CONTENT: &str =
    "messages[0]: data did not match any variant of untagged enum MessageContent at line 1 column 99";
/// The words of a vLLM that was started without a parser of calls.
pub(crate) const NO_PARSER: &str =
    "\"auto\" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set";
/// The words of `mistral_common` for a conversation that the assistant ends.
pub(crate) const LAST_ROLE: &str =
    "Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant";
