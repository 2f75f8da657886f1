//! Marks that only frame a call, an answer or a turn, and closing marks of reasoning whose opening mark the
//! chat template wrote.

use super::think::opens_reasoning;
use super::{Dialect, Found, Lane, Opens, Step, View, Wait};

/// More space than this after an end token separates it from the next text.
const SPACE: usize = 1024;

pub(super) static ENDINGS: Dialect = Dialect {
    name: "end_tokens",
    models: "Any model behind a server that does not strip its end tokens.",
    families: &[],
    grammar: "`<|call|>`, `<|end|>`, `<|return|>`, `<|im_end|>`, `<|eot_id|>` and alike at the end of the text or before \
              another token are dropped; so are closing tags after a call, and the turn's own opening before the answer \
              (`<|im_start|>assistant`).",
    example: "",
    opens: Opens::Anywhere(&[
        "<|call|>",
        "<|end|>",
        "<|return|>",
        "<|im_end|>",
        "<|eot_id|>",
        "<|eot|>",
        "<|eom|>",
        "<end_of_turn>",
        "</s>",
        "<|im_start|>assistant",
        "<|start_header_id|>assistant<|end_header_id|>",
        "<|eom_id|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|END_OF_TURN_TOKEN|>",
        "<｜end▁of▁sentence｜>",
        "<end_function_call>",
        "</tool_call>",
        "</tool_calls>",
        "</function_calls>",
        "</minimax:tool_call>",
        "</seed:tool_call>",
        "</｜DSML｜tool_calls>",
        "</｜DSML｜function_calls>",
        "</｜DSML｜ calls>",
        "</｜GCML｜tool_calls>",
        "</dots_function_call>",
        "</ifm|tool_calls>",
        "<|calls|>",
        "<|flush|>",
        "</atem:function_calls>",
        "</use_mcp_tool>",
        "</answer>",
    ]),
    read: read_end_token,
};

pub(super) static ANSWERS: Dialect = Dialect {
    name: "answer_frames",
    models: "Command R7B and A, Solar Open, Apriel, Apertus, and others whose template frames the answer.",
    families: &["commandr", "commanda", "c4ai", "cohere"],
    grammar: "`<|START_RESPONSE|>` and `<|END_RESPONSE|>` (or `…_TEXT`), `<|CHATBOT_TOKEN|>`, `<|begin|>assistant`, `<|content|>`, `[END FINAL RESPONSE]`, \
              `<|inner_suffix|>`, and `<answer>` at the start of the answer, are dropped, but where a sentence speaks of them.",
    example: "<|START_RESPONSE|>It has 3 lines.<|END_RESPONSE|>",
    opens: Opens::Anywhere(&[
        "<|START_RESPONSE|>",
        "<|END_RESPONSE|>",
        "<|START_TEXT|>",
        "<|END_TEXT|>",
        "<|CHATBOT_TOKEN|>",
        "<|begin|>assistant",
        "<|content|>",
        "<answer>",
        "[END FINAL RESPONSE]",
        "<|inner_suffix|>",
    ]),
    read: read_answer_frame,
};

/// Closing marks of reasoning.
const REASONING_ENDS: &[&str] = &[
    "</think>",
    "</thinking>",
    "</mm:think>",
    "</seed:think>",
    "<|END_THINKING|>",
    "[/THINK]",
    "[BEGIN FINAL RESPONSE]",
];

pub(super) static END_OF_REASONING: Dialect = Dialect {
    name: "bare_think",
    models: "Reasoning models whose chat template writes the opening mark and whose server has no reasoning parser.",
    families: &["thinking2507", "qwq", "deepseekr1", "minimaxm2"],
    grammar: "The first closing mark of reasoning (`</think>`, `<|END_THINKING|>`, `[/THINK]`, Apriel's `[BEGIN FINAL RESPONSE]`, …) without its opening one, at \
              the start or the end of a line or behind the last letter of a text: it is dropped, and calls before it were only \
              considered. Text before it stays, since it has been sent, unless the model is known to begin inside its reasoning \
              (docs/recovery.md): then it is reasoning.",
    example: "",
    opens: Opens::Anywhere(REASONING_ENDS),
    read: read_end_of_reasoning,
};

fn read_end_token(view: &View<'_>) -> Step {
    if view.text.starts_with("</") {
        return if view.after_call { Step::Read(Found::Skip, view.mark) } else { Step::Not(view.mark) };
    }
    if view.text[..view.mark].contains("assistant") {
        return if view.first { Step::Read(Found::Skip, view.mark) } else { Step::Not(view.mark) };
    }
    let next = view.skip_space(view.mark);
    // This comes first, because the space that has arrived must not decide.
    if next > view.mark + SPACE {
        return Step::Not(view.mark);
    }
    let rest = &view.text[next..];
    match rest.len() {
        0 if view.eof => Step::Read(Found::Skip, view.mark),
        0 => Step::More(Wait::Any),
        _ if rest.starts_with("<|") || rest.starts_with("<｜") => Step::Read(Found::Skip, view.mark),
        _ if rest == "<" && !view.eof => Step::More(Wait::Any),
        _ => Step::Not(next),
    }
}

fn read_answer_frame(view: &View<'_>) -> Step {
    if view.text.starts_with("<answer>") {
        return if view.first { Step::Read(Found::Skip, view.mark) } else { Step::Not(view.mark) };
    }
    match is_mentioned(view) {
        None => Step::More(Wait::Any),
        Some(true) => Step::Not(view.mark + 1),
        Some(false) => Step::Read(Found::Skip, view.mark),
    }
}

/// Returns where the text of a reply goes that begins inside reasoning. It may have an opening mark all the
/// same; `None` while that depends on the text that follows.
pub(crate) fn lane_of_beginning(text: &str, eof: bool) -> Option<Lane> {
    match opens_reasoning(text.trim_start()) {
        Some(false) => Some(Lane::Reasoning(REASONING_ENDS, &[])),
        Some(true) => Some(Lane::Content),
        None => eof.then_some(Lane::Content),
    }
}

/// Returns true if a text has a closing mark of reasoning.
pub fn has_reasoning_end(text: &str) -> bool {
    REASONING_ENDS.iter().any(|mark| text.contains(mark))
}

fn read_end_of_reasoning(view: &View<'_>) -> Step {
    match is_mentioned(view) {
        None => Step::More(Wait::Any),
        Some(true) => Step::Not(view.mark + 1),
        Some(false) if view.reasoned || view.reasoning => Step::Read(Found::Skip, view.mark),
        Some(false) => Step::Read(Found::EndOfReasoning, view.mark),
    }
}

/// Returns true if a sentence mentions the mark, between words or in quotes; `None` while the text is too
/// short.
fn is_mentioned(view: &View<'_>) -> Option<bool> {
    if view.line_start || view.before.is_empty() {
        return Some(false);
    }
    let apart = view.before.ends_with([' ', '\t', '"', '\'', '(', '“', '‘']);
    match view.body().chars().next() {
        None if view.eof => Some(false),
        None if apart => None,
        None => Some(false),
        Some(next) => Some(apart && !matches!(next, '\n' | '<' | '[')),
    }
}
