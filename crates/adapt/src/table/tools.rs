//! Rules about tools: their schemas, their names, and a server that parses no calls.

use crate::row::{NOTHING, Row};
use crate::rule::{Loss, Rule};
use crate::words::{GEMINI_TYPE_LIST, GRAMMAR, NO_PARSER, ONE_BACKEND, VLLM_RUST};

/// The words for the checks that respool takes over.
const CHECKED: &str = "the server's check; respool checks the arguments against the client's schema";
/// The words where respool takes over some of the checks.
const FORMATS: &str =
    "the server's check; respool checks all but international formats, templates and `regex`";

pub(super) const ROWS: &[Row] = &[
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
            r"(?i)(?:unhashable|unsupported)[^\n]{0,20}(?:type: )?'?list'?|unhashable type: array",
            r"(?i)proto field is not repeating|(?:recursion limit|maximum recursion depth) exceeded",
            r"(?i)cannot unmarshal array into Go struct field [\w.]*\.type of type string",
        ],
        said: &[
            (
                "Ollama",
                "json: cannot unmarshal array into Go struct field .tools.function.parameters.properties.type of type string",
            ),
            ("llama.cpp, with a template of Hermes", "Error: Object key of unhashable type: Array"),
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
        lost: CHECKED,
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
