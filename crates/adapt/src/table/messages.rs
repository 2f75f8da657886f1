//! Rules about messages: their roles, their order, their content, calls and results.

use crate::row::{NOTHING, Row};
use crate::rule::{Loss, Rule};
use crate::words::{
    ALTERNATE, LAST_ROLE, NO_CONTENT, NO_STRING, OTHER_TOOLS, SGLANG_CONTENT, VLLM_CONTENT, VLLM_NULL,
    VLLM_RUST,
};

/// Words for a system message that is not the first message.
const LATER_SYSTEM: &[&str] = &[
    r"(?i)system messages? (?:must|should|can only|has to|may only) (?:be|come|appear)[^\n]{0,20}(?:beginning|first|start)",
    r"(?i)(?:only|at most) one system message",
    r"(?i)unexpected role 'system' after role",
    r"(?i)system (?:message|role)[^\n]{0,40}(?:not allowed|unexpected|only)[^\n]{0,30}(?:first|beginning|start)",
    r"(?i)with the exception of an initial optional system message",
    ALTERNATE,
    OTHER_TOOLS,
];

pub(super) const ROWS: &[Row] = &[
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
        rule: Rule::LaterSystemAsUser,
        refused: "a system message after the conversation's beginning",
        change: "its text is put before the user's next text, between `<system>` and `</system>`; the prompt's beginning stays as the server has cached it",
        loss: Loss::Lossy,
        lost: "the model no longer knows that the text is not the user's; without consent, the next rule applies",
        signs: LATER_SYSTEM,
        said: &[("Qwen3.x", "System message must be at the beginning.")],
        example: (
            r#"{"messages":[{"role":"system","content":"a"},{"role":"user","content":"b"},{"role":"system","content":"c"}]}"#,
            r#"{"messages":[{"role":"system","content":"a"},{"role":"user","content":"b\n\n<system>\n\nc\n\n</system>"}]}"#,
        ),
    },
    Row {
        rule: Rule::SystemFirst,
        refused: "a system message that is not the first message, or a second one",
        change: "its text is added to the first system message",
        loss: Loss::Minor,
        lost: "its place in the conversation; the prompt's beginning changes when a new one comes, unless you consent to `messages.later_system_as_user`",
        signs: LATER_SYSTEM,
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
        loss: Loss::Minor,
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
];
