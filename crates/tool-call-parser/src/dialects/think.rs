//! Thinking in the content: `<think>…</think>` and its relatives become reasoning, closed or not.
//!
//! A mark counts only at the start of a line; in running text it is text. The answer follows the end mark.

use super::{Dialect, Found, Lane, Opens, Step, View};

/// Opening marks with the marks that close them.
const PAIRS: [(&str, &[&str]); 13] = [
    ("<mm:think>", &["</mm:think>"]),
    ("<think>", &["</think>"]),
    ("<thinking>", &["</thinking>"]),
    ("<thought>", &["</thought>"]),
    ("<reasoning>", &["</reasoning>"]),
    ("<seed:think>", &["</seed:think>"]),
    ("[THINK]", &["[/THINK]"]),
    ("<|START_THINKING|>", &["<|END_THINKING|>"]),
    ("<|channel>thought", &["<channel|>"]),
    ("<think:opensource>", &["</think:opensource>"]),
    ("<|think|>", &["<|end|>"]),
    ("◁think▷", &["◁/think▷"]),
    // Apertus calls its tools inside its reasoning.
    ("<|inner_prefix|>", &["<|inner_suffix|>", "<|tools_prefix|>"]),
];

/// Ends of reasoning that begin a call.
const CALLS: &[&str] = &["<|tools_prefix|>"];

pub(super) static DIALECT: Dialect = Dialect {
    name: "think",
    models: "Qwen3, DeepSeek-R1, GLM, Nemotron, Magistral, Command A, Seed-OSS, Gemma 4, MiniMax M3, Hunyuan, Solar Open and other reasoning models whose \
             server has no reasoning parser.",
    families: &[],
    grammar: "An opening mark at the start of a line, then reasoning up to the closing mark or the end of the reply. (A \
              closing mark without its opening one: `bare_think`.)",
    example: "<think>The file is small.</think>\nIt has 3 lines.",
    opens: Opens::Line(&[
        "<think>",
        "<mm:think>",
        "<thinking>",
        "<thought>",
        "<reasoning>",
        "<seed:think>",
        "[THINK]",
        "<|START_THINKING|>",
        "<|channel>thought",
        "<think:opensource>",
        "<|think|>",
        "◁think▷",
    ]),
    read: read_reasoning,
};

pub(super) static TOKENS: Dialect = Dialect {
    name: "think_tokens",
    models: "Gemma 4, Command A, Apertus: their marks are tokens, which no text has by chance.",
    families: &["gemma4", "commanda", "apertus"],
    grammar: "`<|channel>thought … <channel|>` and `<|START_THINKING|> … <|END_THINKING|>` inside a line too, and \
              `<|inner_prefix|>` up to `<|inner_suffix|>` or a call.",
    example: "It has 3 lines.<|channel>thought\n<channel|>",
    opens: Opens::Anywhere(&["<|channel>thought", "<|START_THINKING|>", "<|inner_prefix|>"]),
    read: read_reasoning,
};

/// Returns true if a text begins with an opening mark; `None` while that depends on the text that follows.
pub(super) fn opens_reasoning(text: &str) -> Option<bool> {
    let marks = || PAIRS.iter().map(|(open, _)| *open);
    match marks().any(|open| text.starts_with(open)) {
        false if marks().any(|open| open.starts_with(text)) => None,
        opens => Some(opens),
    }
}

fn read_reasoning(view: &View<'_>) -> Step {
    let mark = &view.text[..view.mark];
    match PAIRS.iter().find(|(open, _)| *open == mark) {
        Some((_, closers)) => Step::Read(Found::Lane(Lane::Reasoning(closers, CALLS)), view.mark),
        None => Step::Not(view.mark),
    }
}
