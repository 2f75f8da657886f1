//! The table of rules: what is refused, in whose words, what is changed, what is lost. docs/requests.md and
//! the tests are generated from it.
//!
//! Sources of the words: llama.cpp's `json-schema-to-grammar.cpp` and `server-common.cpp`, the chat templates
//! of the models, vLLM's and `SGLang`'s request models, `mistral_common`, Ollama, LM Studio and OpenAI's API.

use crate::row::Row;
use crate::rule::{Loss, Rule};
use crate::words::{
    ALTERNATE, GEMINI_TYPE_LIST, GRAMMAR, LAST_ROLE, NO_CONTENT, NO_PARSER, NO_STRING, ONE_BACKEND,
    OTHER_TOOLS, PARTS, SGLANG_CONTENT, VLLM_CONTENT, VLLM_NULL, VLLM_RUST,
};

/// The words for the checks that respool takes over.
const CHECKED: &str = "the server's check; respool checks the arguments against the client's schema";
/// The words where respool takes over some of the checks.
const FORMATS: &str = "the server's check; respool checks dates, times and UUIDs";
const NOTHING: &str = "nothing";

/// All rules but those about single parameters. Among rows with the same words the first that changes the
/// request counts.
pub const TABLE: &[Row] = &[
    Row {
        rule: Rule::ToolPattern,
        refused: "`pattern` in a tool's schema, without anchors or with constructs that the grammar lacks",
        change: "`pattern` is left out",
        loss: Loss::Enforced,
        lost: CHECKED,
        signs: &[
            r"(?i)pattern must start with '\^' and end with '\$'",
            r"(?i)(?:unsupported|invalid|unbalanced)[^\n]{0,30}\b(?:regex|regular expression|pattern|parentheses|square brackets)",
            r"(?i)\b(?:regex|pattern)\b[^\n]{0,30}(?:not (?:a )?(?:supported|permitted|allowed|valid)|unsupported)",
        ],
        said: &[
            ("llama.cpp", "JSON schema conversion failed:\nPattern must start with '^' and end with '$'"),
            (
                "llama.cpp b11434",
                "JSON schema conversion failed:\nInvalid pattern ^(a$: unbalanced parentheses",
            ),
            ("OpenAI", "Invalid schema for function 'f': 'pattern' is not permitted."),
        ],
        example: (
            r#"{"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{"type":"string","pattern":"\\d+"}}}}}]}"#,
            r#"{"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{"type":"string"}}}}}]}"#,
        ),
    },
    Row {
        rule: Rule::ToolFormat,
        refused: "`format` in a tool's schema",
        change: "`format` is left out",
        loss: Loss::Enforced,
        lost: FORMATS,
        signs: &[
            r#"(?i)['"`]?\bformat\b['"`]?[^\n]{0,40}(?:is )?(?:not (?:supported|permitted|allowed)|unsupported|unknown)"#,
            r"(?i)(?:unsupported|unknown|invalid) (?:string )?format\b",
        ],
        said: &[
            ("OpenAI", "Invalid schema for function 'f': 'format' is not permitted."),
            (
                "Gemini",
                "Invalid value: only 'enum' and 'date-time' are supported for STRING type; unsupported format \"uri\"",
            ),
        ],
        example: (
            r#"{"tools":[{"function":{"name":"f","parameters":{"properties":{"a":{"type":"string","format":"uri"}}}}}]}"#,
            r#"{"tools":[{"function":{"name":"f","parameters":{"properties":{"a":{"type":"string"}}}}}]}"#,
        ),
    },
    Row {
        rule: Rule::ToolStringLength,
        refused: "`minLength` or `maxLength` in a tool's schema",
        change: "both are left out",
        loss: Loss::Enforced,
        lost: CHECKED,
        signs: &[
            r#"(?i)\b(?:minLength|maxLength)\b[^\n]{0,40}(?:not (?:supported|permitted|allowed)|unsupported|too (?:large|big))"#,
        ],
        said: &[("OpenAI", "Invalid schema for function 'f': 'maxLength' is not permitted.")],
        example: (
            r#"{"tools":[{"function":{"name":"f","parameters":{"properties":{"a":{"type":"string","maxLength":9}}}}}]}"#,
            r#"{"tools":[{"function":{"name":"f","parameters":{"properties":{"a":{"type":"string"}}}}}]}"#,
        ),
    },
    Row {
        rule: Rule::ToolItemCount,
        refused: "`minItems`, `maxItems` and the like in a tool's schema",
        change: "they are left out",
        loss: Loss::Enforced,
        lost: CHECKED,
        signs: &[
            r"(?i)\b(?:minItems|maxItems|minProperties|maxProperties|uniqueItems)\b[^\n]{0,40}(?:not (?:supported|permitted|allowed)|unsupported|too (?:large|big))",
        ],
        said: &[("OpenAI", "Invalid schema for function 'f': 'minItems' is not permitted.")],
        example: (
            r#"{"tools":[{"function":{"name":"f","parameters":{"properties":{"a":{"type":"array","minItems":1}}}}}]}"#,
            r#"{"tools":[{"function":{"name":"f","parameters":{"properties":{"a":{"type":"array"}}}}}]}"#,
        ),
    },
    Row {
        rule: Rule::ToolReference,
        refused: "`$ref` and `$defs` in a tool's schema, also those that contain themselves",
        change: "each reference is replaced by its schema; inside itself it accepts everything",
        loss: Loss::Enforced,
        lost: CHECKED,
        signs: &[
            r"(?i)error resolving ref\b",
            r"(?i)(?:unsupported|unresolvable|unresolved|cannot resolve|could not resolve|unknown)[^\n]{0,20}(?:\$ref|\$defs|\bref\b|reference)",
            r#"(?i)(?:\$ref|\$defs|definitions)['"`]?[^\n]{0,40}(?:not (?:supported|permitted|allowed)|unsupported)"#,
            r"(?i)(?:recursive|circular) (?:schema|reference)s?\b",
            r#"(?i)unrecognized schema: \{\s*"\$ref""#,
        ],
        said: &[
            ("llama.cpp", "JSON schema conversion failed:\nError resolving ref #/$defs/x: $defs not in {}"),
            ("llama.cpp b11434", "cannot resolve $ref #/$defs/none, $defs not found"),
            ("LM Studio", "Recursive schemas are not supported"),
        ],
        example: (
            r##"{"tools":[{"function":{"name":"f","parameters":{"$defs":{"n":{"type":"string"}},"properties":{"a":{"$ref":"#/$defs/n"}}}}}]}"##,
            r#"{"tools":[{"function":{"name":"f","parameters":{"properties":{"a":{"type":"string"}}}}}]}"#,
        ),
    },
    Row {
        rule: Rule::ToolCombinator,
        refused: "`oneOf`, `anyOf` or `allOf` in a tool's schema",
        change: "the alternatives are merged into one schema that accepts them all",
        loss: Loss::Enforced,
        lost: CHECKED,
        signs: &[
            r"(?i)\b(?:oneOf|anyOf|allOf)\b[^\n]{0,60}(?:not (?:supported|permitted|allowed)|unsupported|at the top level|invalid)",
            r"(?i)(?:not support|unsupported|invalid)[^\n]{0,40}\b(?:oneOf|anyOf|allOf)\b",
        ],
        said: &[
            (
                "Anthropic",
                "tools.0.custom.input_schema: input_schema does not support oneOf, allOf, or anyOf at the top level",
            ),
            ("OpenAI", "Invalid schema for function 'f': 'oneOf' is not permitted."),
        ],
        example: (
            r#"{"tools":[{"function":{"name":"f","parameters":{"properties":{"a":{"anyOf":[{"type":"string"},{"type":"null"}]}}}}}]}"#,
            r#"{"tools":[{"function":{"name":"f","parameters":{"properties":{"a":{"type":"string"}}}}}]}"#,
        ),
    },
    Row {
        rule: Rule::ToolConst,
        refused: "`const` in a tool's schema",
        change: "`const` becomes an `enum` of one value",
        loss: Loss::Lossless,
        lost: NOTHING,
        signs: &[
            r#"(?i)['"`]?\bconst\b['"`]?[^\n]{0,40}(?:not (?:supported|permitted|allowed)|unsupported|unknown)"#,
            r#"(?i)unknown name "const""#,
        ],
        said: &[(
            "Gemini",
            "Invalid JSON payload received. Unknown name \"const\" at 'tools[0]': Cannot find field.",
        )],
        example: (
            r#"{"tools":[{"function":{"name":"f","parameters":{"properties":{"a":{"const":"x"}}}}}]}"#,
            r#"{"tools":[{"function":{"name":"f","parameters":{"properties":{"a":{"enum":["x"]}}}}}]}"#,
        ),
    },
    Row {
        rule: Rule::ToolNegation,
        refused: "`not`, `if`, `then` or `else` in a tool's schema",
        change: "they are left out",
        loss: Loss::Enforced,
        lost: CHECKED,
        signs: &[
            r#"(?i)['"`](?:not|if|then|else)['"`][^\n]{0,40}(?:not (?:supported|permitted|allowed)|unsupported)"#,
        ],
        said: &[("OpenAI", "Invalid schema for function 'f': In context=(), 'not' is not permitted.")],
        example: (
            r#"{"tools":[{"function":{"name":"f","parameters":{"type":"object","not":{"required":["a"]}}}}]}"#,
            r#"{"tools":[{"function":{"name":"f","parameters":{"type":"object"}}}]}"#,
        ),
    },
    Row {
        rule: Rule::ToolAdditionalProperties,
        refused: "`additionalProperties` or `patternProperties` with a schema",
        change: "they are left out",
        loss: Loss::Enforced,
        lost: CHECKED,
        signs: &[
            r"(?i)\b(?:additionalProperties|patternProperties|propertyNames|unevaluatedProperties)\b[^\n]{0,60}(?:not (?:supported|permitted|allowed)|unsupported|must be (?:a )?bool|unknown)",
            r#"(?i)unknown name "(?:additionalProperties|patternProperties|propertyNames)""#,
        ],
        said: &[(
            "Gemini",
            "Unknown name \"patternProperties\" at 'tools[0].function_declarations[0].parameters'",
        )],
        example: (
            r#"{"tools":[{"function":{"name":"f","parameters":{"type":"object","additionalProperties":{"type":"string"}}}}]}"#,
            r#"{"tools":[{"function":{"name":"f","parameters":{"type":"object"}}}]}"#,
        ),
    },
    Row {
        rule: Rule::ToolTypeList,
        refused: "`type` as a list",
        change: "one type remains, or the types become alternatives",
        loss: Loss::Enforced,
        lost: CHECKED,
        signs: &[
            r"(?i)\btype\b[^\n]{0,30}must be a string",
            r"(?i)(?:unhashable|unsupported)[^\n]{0,20}(?:type: )?'?list'?",
            r"(?i)proto field is not repeating|(?:recursion limit|maximum recursion depth) exceeded",
            r"(?i)cannot unmarshal array into Go struct field [\w.]*\.type of type string",
        ],
        said: &[
            (
                "Ollama",
                "json: cannot unmarshal array into Go struct field .tools.function.parameters.properties.type of type string",
            ),
            ("SGLang template", "can only concatenate str; unhashable type: 'list'"),
            ("Gemini", GEMINI_TYPE_LIST),
            ("vLLM", "maximum recursion depth exceeded"),
            (VLLM_RUST, "invalid operation: recursion limit exceeded (in chat:22)"),
        ],
        example: (
            r#"{"tools":[{"function":{"name":"f","parameters":{"properties":{"a":{"type":["string","null"]}}}}}]}"#,
            r#"{"tools":[{"function":{"name":"f","parameters":{"properties":{"a":{"type":"string"}}}}}]}"#,
        ),
    },
    Row {
        rule: Rule::ToolNullable,
        refused: "`nullable` in a tool's schema",
        change: "`nullable` is left out",
        loss: Loss::Enforced,
        lost: CHECKED,
        signs: &[
            r#"(?i)['"`]?\bnullable\b['"`]?[^\n]{0,40}(?:not (?:supported|permitted|allowed)|unsupported|unknown)"#,
        ],
        said: &[(
            "OpenAI",
            "Invalid schema for function 'f': In context=('properties', 'a'), 'nullable' is not permitted.",
        )],
        example: (
            r#"{"tools":[{"function":{"name":"f","parameters":{"properties":{"a":{"type":"string","nullable":true}}}}}]}"#,
            r#"{"tools":[{"function":{"name":"f","parameters":{"properties":{"a":{"type":"string"}}}}}]}"#,
        ),
    },
    Row {
        rule: Rule::ToolNoProperties,
        refused: "a tool whose schema is missing, or is an object without `properties`",
        change: "empty `properties` are added",
        loss: Loss::Lossless,
        lost: NOTHING,
        signs: &[
            r"(?i)object schema missing properties",
            r"(?i)\bproperties\b['`\x22]?[^\n]{0,20}(?:is )?(?:required|missing)",
            r"(?i)\bparameters\b['`\x22]?[^\n]{0,30}(?:field required|is required|missing)",
            r"(?i)'properties' is undefined|has no (?:attribute|element) 'properties'",
            r"(?i)cannot convert value into pairs",
        ],
        said: &[
            ("OpenAI", "Invalid schema for function 'f': In context=(), object schema missing properties."),
            ("a chat template", "'dict object' has no attribute 'properties'"),
            (VLLM_RUST, "invalid operation: cannot convert value into pairs (in chat:45)"),
        ],
        example: (
            r#"{"tools":[{"function":{"name":"f","parameters":{"type":"object"}}}]}"#,
            r#"{"tools":[{"function":{"name":"f","parameters":{"type":"object","properties":{}}}}]}"#,
        ),
    },
    Row {
        rule: Rule::ToolNames,
        refused: "a tool's name that is longer than 64 characters, or has dots or the like",
        change: "the name gets a form that every server takes, in the history too; calls have the client's name",
        loss: Loss::Lossless,
        lost: NOTHING,
        signs: &[
            r"(?i)function\.name[^\n]{0,20}(?:does not match pattern|too long|invalid)",
            r"(?i)(?:function|tool) name (?:was|must|should|cannot|is (?:too long|invalid))\b",
            r"(?i)invalid (?:function|tool) name",
            r"(?i)tools\.\d+\.[a-z.]{0,10}name: string should",
        ],
        said: &[
            (
                "OpenAI",
                "Invalid 'tools[0].function.name': string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'.",
            ),
            (
                "mistral_common",
                "Function name was mcp.github.read but must be a-z, A-Z, 0-9, or contain underscores and dashes, with a maximum length of 64.",
            ),
            ("Anthropic", "tools.0.custom.name: String should match pattern '^[a-zA-Z0-9_-]{1,128}$'"),
        ],
        example: (
            r#"{"tools":[{"type":"function","function":{"name":"mcp.github.read"}}],"messages":[{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"mcp.github.read","arguments":"{}"}}]},{"role":"tool","tool_call_id":"1","content":"x"}]}"#,
            r#"{"tools":[{"type":"function","function":{"name":"mcp_github_read_2c9be892"}}],"messages":[{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"mcp_github_read_2c9be892","arguments":"{}"}}]},{"role":"tool","tool_call_id":"1","content":"x"}]}"#,
        ),
    },
    Row {
        rule: Rule::ToolStrict,
        refused: "`strict` in a tool",
        change: "`strict` is left out",
        loss: Loss::Enforced,
        lost: CHECKED,
        signs: &[
            r"(?i)'loc': \((?:'[a-z]+', |\d+, )*'strict'\)",
            r#"(?i)['"`]?\bstrict\b['"`]?[^\n]{0,40}(?:not (?:supported|permitted|allowed)|unsupported|unknown|extra inputs)"#,
            r#"(?i)(?:unrecognized|unknown|unexpected|unsupported)[^\n]{0,40}['"`]?strict\b"#,
        ],
        said: &[(
            "vLLM",
            "[{'type': 'extra_forbidden', 'loc': ('body', 'tools', 0, 'function', 'strict'), 'msg': 'x'}]",
        )],
        example: (
            r#"{"tools":[{"function":{"name":"f","strict":true,"parameters":{}}}]}"#,
            r#"{"tools":[{"function":{"name":"f","parameters":{}}}]}"#,
        ),
    },
    Row {
        rule: Rule::ToolGrammarLimits,
        refused: "tools that cannot be compiled into a grammar, without a word about the cause",
        change: "first patterns, lengths, counts and formats are left out of the schemas",
        loss: Loss::Enforced,
        lost: "the server's check; respool checks the arguments against the client's schema",
        signs: GRAMMAR,
        said: &[
            ("llama.cpp", "Failed to parse grammar"),
            ("LM Studio", "Error: failed to initialize samplers"),
            ("llama.cpp", "number of repetitions exceeds sane defaults"),
            ("vLLM", "Grammar error: Unimplemented keys: [\"uniqueItems\"]"),
            ("vLLM 0.33", ONE_BACKEND),
        ],
        example: (
            r#"{"tools":[{"function":{"name":"f","parameters":{"properties":{"a":{"type":"string","maxLength":65536,"format":"uri"}}}}}]}"#,
            r#"{"tools":[{"function":{"name":"f","parameters":{"properties":{"a":{"type":"string"}}}}}]}"#,
        ),
    },
    Row {
        rule: Rule::ToolBasicSchema,
        refused: "the same, still",
        change: "then everything but types, descriptions, properties, items and enums",
        loss: Loss::Enforced,
        lost: CHECKED,
        signs: GRAMMAR,
        said: &[("vLLM", "The provided JSON schema contains features not supported by xgrammar.")],
        example: (
            r#"{"tools":[{"function":{"name":"f","parameters":{"properties":{"a":{"type":"integer","minimum":1}}}}}]}"#,
            r#"{"tools":[{"function":{"name":"f","parameters":{"properties":{"a":{"type":"integer"}}}}}]}"#,
        ),
    },
    Row {
        rule: Rule::DeveloperAsSystem,
        refused: "the role `developer`",
        change: "the role becomes `system`",
        loss: Loss::Lossless,
        lost: NOTHING,
        signs: &[
            r"(?i)(?:unknown|unsupported|invalid|unexpected|unrecognized)[^\n]{0,20}\brole[^\n]{0,10}developer",
            r"(?i)\bdeveloper\b[^\n]{0,30}(?:not (?:supported|allowed|a valid)|unsupported)",
            r"(?i)only user, assistant, system and tool roles are supported",
            r"(?i)\brole\b[^\n]{0,40}(?:must be|should be|only)[^\n]{0,40}\bsystem\b",
            r"(?i)unexpected message role",
            ALTERNATE,
        ],
        said: &[
            ("llama.cpp", "Unknown role: developer"),
            ("Qwen3.5", "Unexpected message role."),
            ("Mistral", "Conversation roles must alternate user/assistant/user/assistant/..."),
            ("a chat template", "Only user, assistant, system and tool roles are supported!"),
        ],
        example: (
            r#"{"messages":[{"role":"developer","content":"a"},{"role":"user","content":"b"}]}"#,
            r#"{"messages":[{"role":"system","content":"a"},{"role":"user","content":"b"}]}"#,
        ),
    },
    Row {
        rule: Rule::SystemFirst,
        refused: "a system message that is not the first message, or a second one",
        change: "its text is added to the first system message",
        loss: Loss::Lossless,
        lost: "its place in the conversation; the prompt's beginning changes when a new one comes",
        signs: &[
            r"(?i)system messages? (?:must|should|can only|has to|may only) (?:be|come|appear)[^\n]{0,20}(?:beginning|first|start)",
            r"(?i)(?:only|at most) one system message",
            r"(?i)unexpected role 'system' after role",
            r"(?i)system (?:message|role)[^\n]{0,40}(?:not allowed|unexpected|only)[^\n]{0,30}(?:first|beginning|start)",
            r"(?i)with the exception of an initial optional system message",
            ALTERNATE,
            OTHER_TOOLS,
        ],
        said: &[
            ("Qwen3.x", "System message must be at the beginning."),
            (
                "Mistral Nemo",
                "Only user and assistant roles are supported, with the exception of an initial optional system message!",
            ),
            ("Gemma 2", "Conversation roles must alternate user/assistant/user/assistant/..."),
            ("mistral_common", "Unexpected role 'system' after role 'user'"),
        ],
        example: (
            r#"{"messages":[{"role":"system","content":"a"},{"role":"user","content":"b"},{"role":"system","content":"c"}]}"#,
            r#"{"messages":[{"role":"system","content":"a\n\nc"},{"role":"user","content":"b"}]}"#,
        ),
    },
    Row {
        rule: Rule::SystemAsUser,
        refused: "system messages at all",
        change: "system text is put before the user's next text, between `<system>` and `</system>`",
        loss: Loss::Lossy,
        lost: "the model no longer knows that the text is not the user's",
        signs: &[
            r"(?i)system role (?:is )?not supported",
            r"(?i)only user and assistant roles are supported",
            r"(?i)does not support system (?:messages|prompts?|role)",
        ],
        said: &[
            ("Gemma 2", "System role not supported"),
            ("a chat template", "Only user and assistant roles are supported!"),
        ],
        example: (
            r#"{"messages":[{"role":"system","content":"a"},{"role":"user","content":"b"}]}"#,
            r#"{"messages":[{"role":"user","content":"<system>\n\na\n\n</system>\n\nb"}]}"#,
        ),
    },
    Row {
        rule: Rule::AlternateRoles,
        refused: "two messages of the user or of the assistant in a row",
        change: "neighbours are merged, with an empty line between their texts; where only calls and results stand between them, the other one says \"OK.\" or \"Continue.\"",
        loss: Loss::Lossless,
        lost: NOTHING,
        signs: &[
            ALTERNATE,
            r"(?i)(?:consecutive|successive|two) (?:user|assistant|messages)[^\n]{0,40}(?:not (?:allowed|supported)|same role|must)",
            r"(?i)unexpected role '(?:user|assistant)' after role '(?:user|assistant)'",
            r"(?i)expected (?:user|assistant) role",
            OTHER_TOOLS,
        ],
        said: &[
            (
                "Mistral",
                "After the optional system message, conversation roles must alternate user and assistant roles except for tool calls and results.",
            ),
            ("Llama 2", "Conversation roles must alternate user/assistant/user/assistant/..."),
        ],
        example: (
            r#"{"messages":[{"role":"user","content":"a"},{"role":"user","content":"b"}]}"#,
            r#"{"messages":[{"role":"user","content":"a\n\nb"}]}"#,
        ),
    },
    Row {
        rule: Rule::CallsAsText,
        refused: "calls and results at all",
        change: "a call becomes text of the assistant, a result text of the user, between the tags of Hermes",
        loss: Loss::Lossy,
        lost: "the model no longer knows that a result is not the user's text",
        signs: &[ALTERNATE, r"(?i)does not support (?:tool|function) (?:messages|results|role)"],
        said: &[("Gemma 2", "Conversation roles must alternate user/assistant/user/assistant/...")],
        example: (
            r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}}]},{"role":"tool","tool_call_id":"1","content":"y"}]}"#,
            r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"<tool_call>\n{\"name\":\"f\",\"arguments\":{\"x\":1}}\n</tool_call>"},{"role":"user","content":"<tool_response>\n\ny\n\n</tool_response>"}]}"#,
        ),
    },
    Row {
        rule: Rule::AssistantNotLast,
        refused: "a conversation that ends with the assistant's message",
        change: "the user says \"Continue.\"",
        loss: Loss::Lossless,
        lost: "the model begins a new message in place of continuing its last one",
        signs: &[
            r"(?i)expected last role user or tool[^\n]{0,80}but got assistant",
            r"(?i)cannot have 2 or more assistant messages at the end",
            r"(?i)(?:last|final) (?:message|role)[^\n]{0,30}(?:must|should)[^\n]{0,20}(?:user|tool)",
            r"(?i)prefill is (?:incompatible|not supported)",
            r"(?i)does not support assistant message prefill",
        ],
        said: &[
            ("mistral_common", LAST_ROLE),
            ("llama.cpp", "Assistant response prefill is incompatible with enable_thinking."),
        ],
        example: (
            r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}"#,
            r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"Continue."}]}"#,
        ),
    },
    Row {
        rule: Rule::UserMessage,
        refused: "a conversation without a message of the user",
        change: "the user says \"Continue.\" after the system message",
        loss: Loss::Lossless,
        lost: NOTHING,
        signs: &[
            r"(?i)no user (?:query|message)s?(?: found)?",
            r"(?i)at least one (?:user )?message[^\n]{0,20}user",
            r"(?i)(?:requires?|must (?:have|contain|include)) (?:at least )?(?:one|a) user message",
            r"(?i)there's no first user message",
        ],
        said: &[
            ("Qwen3", "No user query found in messages."),
            ("Llama 3.1", "Cannot put tools in the first user message when there's no first user message!"),
        ],
        example: (
            r#"{"messages":[{"role":"system","content":"a"},{"role":"assistant","content":"b"}]}"#,
            r#"{"messages":[{"role":"system","content":"a"},{"role":"user","content":"Continue."},{"role":"assistant","content":"b"}]}"#,
        ),
    },
    Row {
        rule: Rule::NullContent,
        refused: "`null` or missing content, mostly beside calls",
        change: "the content becomes an empty text",
        loss: Loss::Lossless,
        lost: NOTHING,
        signs: &[
            r"(?i)all non-assistant messages must contain 'content'",
            r"(?i)\bcontent\b[^\n]{0,40}(?:must not be|cannot be|is) (?:null|none)\b",
            r"(?i)content['`\x22]?[^\n]{0,30}(?:field required|is required|missing)",
            r"(?i)(?:expected|must be) a string[^\n]{0,40}\bgot null",
            r"(?i)none has no element|can only concatenate str[^\n]{0,20}nonetype",
            r"(?i)invalid message content type: <nil>|'content' field must be a string or an array of objects",
            NO_STRING,
            NO_CONTENT,
        ],
        said: &[
            ("llama.cpp", "All non-assistant messages must contain 'content'"),
            ("Ollama", "invalid message content type: <nil>"),
            ("SGLang", SGLANG_CONTENT),
            ("LM Studio", "Invalid 'content': 'content' field must be a string or an array of objects."),
            ("vLLM", VLLM_NULL),
            (VLLM_RUST, VLLM_CONTENT),
            ("a chat template", "can only concatenate str (not \"NoneType\") to str"),
        ],
        example: (
            r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]}]}"#,
            r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]}]}"#,
        ),
    },
    Row {
        rule: Rule::OneReasoning,
        refused: "reasoning under two names in one message",
        change: "`reasoning_content` is left out",
        loss: Loss::Lossless,
        lost: NOTHING,
        signs: &[r"(?i)duplicate field [`'\x22]?reasoning"],
        said: &[(VLLM_RUST, "messages[1]: duplicate field `reasoning` at line 1")],
        example: (
            r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b","reasoning":"r","reasoning_content":"r"},{"role":"user","content":"c"}]}"#,
            r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b","reasoning":"r"},{"role":"user","content":"c"}]}"#,
        ),
    },
    Row {
        rule: Rule::ReasoningOrContent,
        refused: "content and reasoning in a message with calls",
        change: "the content is added to the reasoning",
        loss: Loss::Lossless,
        lost: NOTHING,
        signs: &[r"(?i)cannot pass both content and thinking"],
        said: &[(
            "gpt-oss",
            "Cannot pass both content and thinking in an assistant message with tool calls! Put the analysis message in one or the other, but not both.",
        )],
        example: (
            r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b","reasoning":"r","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]}]}"#,
            r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","reasoning":"r\n\nb","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]}]}"#,
        ),
    },
    Row {
        rule: Rule::EmptyContent,
        refused: "content without text",
        change: "messages without text and calls are left out; an empty result says \"(no result)\"",
        loss: Loss::Lossless,
        lost: NOTHING,
        signs: &[
            r"(?i)content[^\n]{0,40}(?:must not be|cannot be|may not be|is) (?:an )?empty",
            r"(?i)(?:text content blocks|messages?)[^\n]{0,40}must (?:be non-empty|have non-empty content)",
            r"(?i)assistant message must (?:have|contain) either ['`]?content['`]? or ['`]?tool_calls",
            r"(?i)'content' field that is not empty",
        ],
        said: &[
            (
                "LM Studio",
                "'messages' array must only contain objects with a 'content' field that is not empty",
            ),
            ("mistral_common", "Assistant message must have either content or tool_calls, but not both"),
            ("Anthropic", "messages: text content blocks must be non-empty"),
        ],
        example: (
            r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":""},{"role":"user","content":"b"}]}"#,
            r#"{"messages":[{"role":"user","content":"a"},{"role":"user","content":"b"}]}"#,
        ),
    },
    Row {
        rule: Rule::TextContent,
        refused: "content as a list of parts, where text is wanted",
        change: "text parts are joined with empty lines",
        loss: Loss::Lossless,
        lost: NOTHING,
        signs: &[
            r"(?i)content[^\n]{0,60}(?:must be|should be|expected|input should be)[^\n]{0,20}string",
            r"(?i)can only concatenate str[^\n]{0,20}list",
            r"(?i)invalid type: sequence, expected a string",
            r"(?i)unsupported content\[\]\.type",
            r"(?i)cannot unmarshal array into Go struct field [\w.]*\.content of type string",
            r"(?i)invalid 'messages' in payload",
        ],
        said: &[
            (
                "Ollama",
                "json: cannot unmarshal array into Go struct field ChatRequest.messages.content of type string",
            ),
            ("LM Studio", "invalid 'messages' in payload"),
            ("mistral.rs", "messages[0].content: invalid type: sequence, expected a string"),
            ("a chat template", "can only concatenate str (not \"list\") to str"),
        ],
        example: (
            r#"{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]}"#,
            r#"{"messages":[{"role":"user","content":"a\n\nb"}]}"#,
        ),
    },
    Row {
        rule: Rule::PartsContent,
        refused: "content as text, where a list of parts is wanted",
        change: "the text becomes one part",
        loss: Loss::Lossless,
        lost: NOTHING,
        signs: &[
            r"(?i)content[^\n]{0,60}(?:must be|should be|expected|input should be)[^\n]{0,20}(?:array|list)",
            r"(?i)invalid type: string[^\n]{0,30}expected a sequence",
        ],
        said: &[("a strict server", "messages.0.content: Input should be a valid list")],
        example: (
            r#"{"messages":[{"role":"user","content":"a"}]}"#,
            r#"{"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}]}"#,
        ),
    },
    Row {
        rule: Rule::ResultName,
        refused: "tool results without `name`",
        change: "each result gets the name of the tool that was called",
        loss: Loss::Lossless,
        lost: NOTHING,
        signs: &[
            r"(?i)(?:tool|function)[^\n]{0,40}(?:message|result|response)[^\n]{0,40}\bname\b[^\n]{0,20}(?:required|missing|must)",
            r"(?i)\bname\b[^\n]{0,20}(?:is )?(?:required|missing)[^\n]{0,40}\btool\b",
            r"(?i)function_response\.name[^\n]{0,40}(?:empty|required|not set)",
        ],
        said: &[(
            "Gemini",
            "GenerateContentRequest.contents[2].parts[0].function_response.name: Name cannot be empty.",
        )],
        example: (
            r#"{"messages":[{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"1","content":"x"}]}"#,
            r#"{"messages":[{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"1","content":"x","name":"f"}]}"#,
        ),
    },
    Row {
        rule: Rule::ShortIds,
        refused: "call ids that are not nine letters or digits",
        change: "each id becomes nine characters that depend on it alone",
        loss: Loss::Lossless,
        lost: NOTHING,
        signs: &[
            r"(?i)tool call ids? (?:should|must|was|has)[^\n]{0,80}(?:length (?:of )?9|nine)",
            r"(?i)length of 9",
            OTHER_TOOLS,
        ],
        said: &[
            ("Mistral", "Tool call IDs should be alphanumeric strings with length 9!"),
            ("mistral_common", "Tool call id was call_1 but must be a-z, A-Z, 0-9, with a length of 9."),
            ("SGLang, with a template of Mistral", "'dict object' has no attribute 'function'"),
        ],
        example: (
            r#"{"messages":[{"role":"assistant","content":"","tool_calls":[{"id":"call_1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"call_1","content":"x"}]}"#,
            r#"{"messages":[{"role":"assistant","content":"","tool_calls":[{"id":"16xj2wjzp","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"16xj2wjzp","content":"x"}]}"#,
        ),
    },
    Row {
        rule: Rule::OneResultPerCall,
        refused: "a call with several results, or without one",
        change: "results of one call are joined; a missing one says \"(no result)\"",
        loss: Loss::Lossless,
        lost: NOTHING,
        signs: &[
            r"(?i)not the same number of function calls and responses",
            r"(?i)(?:must be followed by|did not have response|no tool (?:output|response) found)[^\n]{0,60}(?:tool|call)",
            r"(?i)tool_call_ids? did not have response messages",
            r"(?i)each .?tool_use.? block must have a corresponding",
        ],
        said: &[
            ("mistral_common", "Not the same number of function calls and responses"),
            ("OpenAI", "An assistant message with 'tool_calls' must be followed by tool messages."),
        ],
        example: (
            r#"{"messages":[{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"user","content":"x"}]}"#,
            r#"{"messages":[{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","content":"(no result)","tool_call_id":"1"},{"role":"user","content":"x"}]}"#,
        ),
    },
    Row {
        rule: Rule::OneCallPerMessage,
        refused: "several calls in one message",
        change: "each call gets a message of its own, followed by its result",
        loss: Loss::Lossless,
        lost: NOTHING,
        signs: &[
            r"(?i)only supports? single tool[- ]calls?",
            r"(?i)(?:multiple|parallel) tool calls?[^\n]{0,30}(?:not supported|unsupported|in (?:one|a single) message)",
        ],
        said: &[("Llama 3.1", "This model only supports single tool-calls at once!")],
        example: (
            r#"{"messages":[{"role":"assistant","content":"","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}},{"id":"2","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"1","content":"x"},{"role":"tool","tool_call_id":"2","content":"y"}]}"#,
            r#"{"messages":[{"role":"assistant","content":"","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"1","content":"x"},{"role":"assistant","content":"","tool_calls":[{"id":"2","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"2","content":"y"}]}"#,
        ),
    },
    Row {
        rule: Rule::NoImages,
        refused: "pictures, for a model that cannot see",
        change: "each picture in the conversation becomes a text that says so",
        loss: Loss::Media,
        lost: "the picture",
        signs: &[
            r"(?i)(?:image|video) input is not supported",
            r"(?i)(?:not|n't) support (?:image|vision|multimodal)",
            r"(?i)(?:is )?not a (?:multimodal|vision) model",
            r"(?i)at most 0 (?:image|video)",
            r"(?i)image_url['`\x22]?[^\n]{0,40}(?:not supported|only supported|unsupported|unknown|invalid)",
            r"(?i)(?:unknown|unsupported|invalid)[^\n]{0,30}(?:part|content)[^\n]{0,20}(?:type)?[^\n]{0,20}image",
            r"(?i)missing data required for image input",
            r"(?i)no endpoints found that support image input",
            r"(?i)invalid image input",
            r"(?i)unsupported content\[\]\.type",
        ],
        said: &[
            ("llama.cpp", "image input is not supported"),
            ("vLLM", "openai/gpt-oss-20b is not a multimodal model"),
            ("vLLM", "At most 0 image(s) may be provided in one prompt."),
            ("LM Studio", "Model does not support images. Please use a model that does."),
            ("Ollama", "invalid image input"),
            (VLLM_RUST, "unsupported multimodal content: image_url"),
        ],
        example: (
            r#"{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"https://example.org/a.png"}}]}]}"#,
            r#"{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"[A picture was sent here. This model cannot see it.]"}]}]}"#,
        ),
    },
    Row {
        rule: Rule::NoAudio,
        refused: "audio, for a model that cannot hear",
        change: "each sound in the conversation becomes a text that says so",
        loss: Loss::Media,
        lost: "the sound",
        signs: &[
            r"(?i)audio input is not supported|(?:not|n't) support audio",
            r"(?i)(?:is )?not a multimodal model",
            r"(?i)(?:input_audio|audio_url)['`\x22]?[^\n]{0,40}(?:not supported|unsupported|unknown|invalid)",
            r"(?i)(?:at most 0|unsupported multimodal content:) audio",
            PARTS,
        ],
        said: &[
            ("llama.cpp", "audio input is not supported"),
            ("Ollama", "invalid message format"),
            ("vLLM", "openai/gpt-oss-20b is not a multimodal model"),
            (VLLM_RUST, "unsupported multimodal content: audio"),
        ],
        example: (
            r#"{"messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"x","format":"wav"}}]}]}"#,
            r#"{"messages":[{"role":"user","content":[{"type":"text","text":"[A sound was sent here (wav). This model cannot hear it.]"}]}]}"#,
        ),
    },
    Row {
        rule: Rule::NoFiles,
        refused: "files, for a server that cannot read them",
        change: "each file in the conversation becomes a text that says so",
        loss: Loss::Media,
        lost: "the file",
        signs: &[
            r"(?i)(?:not|n't) support (?:files?|documents?|pdf)",
            r"(?i)(?:unknown|unsupported|invalid)[^\n]{0,30}(?:part|content)[^\n]{0,20}(?:type)?[^\n]{0,20}['`\x22](?:file|input_file|document)['`\x22]",
            r"(?i)unsupported content\[\]\.type",
            PARTS,
            NO_STRING,
            NO_CONTENT,
        ],
        said: &[
            ("vLLM", "Unknown part type: 'file'; unsupported content part type 'file'"),
            ("Ollama", "invalid message format"),
            ("SGLang", SGLANG_CONTENT),
            (VLLM_RUST, VLLM_CONTENT),
        ],
        example: (
            r#"{"messages":[{"role":"user","content":[{"type":"file","file":{"filename":"a.pdf"}}]}]}"#,
            r#"{"messages":[{"role":"user","content":[{"type":"text","text":"[A file was sent here (a.pdf). This model cannot open it.]"}]}]}"#,
        ),
    },
    Row {
        rule: Rule::Unparsed,
        refused: "tools, by a server that was started without a parser of calls",
        change: "the server is asked to leave calls in the text, and respool reads them (not for gpt-oss)",
        loss: Loss::Lossless,
        lost: NOTHING,
        signs: &[r"(?i)--enable-auto-tool-choice", r"(?i)tool parsing is not available for model"],
        said: &[("vLLM", NO_PARSER), (VLLM_RUST, "tool parsing is not available for model `m`")],
        example: (
            r#"{"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{}}}}]}"#,
            r#"{"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{}}}}],"tool_choice":"none","skip_special_tokens":false}"#,
        ),
    },
];
