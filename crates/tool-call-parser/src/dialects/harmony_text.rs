//! Harmony after a server stripped its special tokens: `commentary to=read json{…}`, `analysisWe
//! need…assistantfinalHi`.

use super::{Dialect, Found, Lane, Opens, Step, View, Wait, named_json};

pub(super) static CALL: Dialect = Dialect {
    name: "harmony_text",
    models: "gpt-oss behind a server that strips special tokens (`skip_special_tokens`).",
    families: &["gptoss"],
    grammar: "`commentary to=NAME`, `analysis to=NAME`, `assistant to=NAME` or `to=functions.NAME` with a declared name, \
              perhaps `code` or `json`, then a JSON object. `assistant` may be glued before it.",
    example: "commentary to=functions.read json{\"path\": \"a.txt\"}",
    opens: Opens::Anywhere(&[
        "assistantcommentary to=",
        "assistantanalysis to=",
        "assistant to=",
        "commentary to=",
        "analysis to=",
        "assistant commentary to=",
        "to=functions.",
        "final to=",
    ]),
    read: read_call,
};

pub(super) static CHANNELS: Dialect = Dialect {
    name: "harmony_glued",
    models: "gpt-oss behind a server that strips special tokens.",
    families: &["gptoss"],
    grammar: "An answer that begins with `analysis` glued to a capital letter is reasoning up to `assistantfinal`, \
              `assistantcommentary` or `assistantanalysis`, which are no part of the text.",
    example: "analysisThe user greets.assistantfinalHello!",
    opens: Opens::Line(&[
        "assistantfinal",
        "assistantanalysis",
        "assistantcommentary",
        "analysis",
        "commentary",
    ]),
    read: read_channel,
};

fn read_call(view: &View<'_>) -> Step {
    let from = view.text.find("to=").unwrap_or(0) + 3;
    let rest = &view.text[from..];
    let Some(length) = rest.find([' ', '{', '\n', '\t', '<']) else {
        return match rest.len() {
            length if length > 128 => Step::Not(from + 128),
            _ if view.cut && view.tools.resolve(rest).is_some() => named_json::truncated_call(view, rest),
            _ => view.wait_or_reject(Wait::Any),
        };
    };
    let name = &rest[..length];
    if length > 128 || view.tools.resolve(name).is_none() {
        return Step::Not(from + length.min(128));
    }
    let mut at = from + length;
    loop {
        at = view.skip_space(at);
        let rest = &view.text[at..];
        let words = ["code", "json", "<|constrain|>", "<|message|>", "<|channel|>", "commentary", "analysis"];
        if rest.starts_with('{') {
            return named_json::read_arguments(view, name, at, &["<|call|>", "<|end|>", "<|return|>"]);
        }
        match words.iter().find(|word| rest.starts_with(**word)) {
            Some(word) => at += word.len(),
            None if view.cut && rest.is_empty() => return named_json::truncated_call(view, name),
            None if words.iter().any(|word| word.starts_with(rest)) => return view.wait_or_reject(Wait::Any),
            None => return Step::Not(at),
        }
    }
}

fn read_channel(view: &View<'_>) -> Step {
    let glued = match view.body().chars().next() {
        None => return view.wait_or_reject(Wait::Any),
        Some(next) => next.is_uppercase() || next.is_numeric() || next == '"',
    };
    if !view.first {
        return Step::Not(view.mark);
    }
    match &view.text[..view.mark] {
        "assistantfinal" | "assistantcommentary" => Step::Read(Found::Skip, view.mark),
        "commentary" if glued => Step::Read(Found::Skip, view.mark),
        "assistantanalysis" | "analysis" if glued => {
            let closers = &["assistantfinal", "assistantcommentary", "assistantanalysis", "assistant to="];
            let kept = &["assistantcommentary", "assistantanalysis", "assistant to="];
            Step::Read(Found::Lane(Lane::Reasoning(closers, kept)), view.mark)
        }
        _ => Step::Not(view.mark),
    }
}
