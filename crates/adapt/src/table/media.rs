//! Rules about pictures, audio and files, for a model that takes none.

use crate::row::Row;
use crate::rule::{Loss, Rule};
use crate::words::{NO_CONTENT, NO_STRING, OLLAMA_ADDRESS, PARTS, SGLANG_CONTENT, VLLM_CONTENT, VLLM_RUST};

pub(super) const ROWS: &[Row] = &[
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
            r"(?i)invalid image input|image urls are not currently supported",
            r"(?i)unsupported content\[\]\.type",
        ],
        said: &[
            ("llama.cpp", "image input is not supported"),
            ("vLLM", "openai/gpt-oss-20b is not a multimodal model"),
            ("vLLM", "At most 0 image(s) may be provided in one prompt."),
            ("LM Studio", "Model does not support images. Please use a model that does."),
            ("Ollama", "invalid image input"),
            ("Ollama", OLLAMA_ADDRESS),
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
];
