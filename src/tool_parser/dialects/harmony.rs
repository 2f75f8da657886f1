//! gpt-oss' harmony format, raw: channels become reasoning and content, messages to a tool become calls.
//!
//! Headers are read as leniently as they come: recipient in the role or the channel part, doubled channels, glued content
//! types, a missing `<|message|>`. What is addressed to the model's builtin tools is dropped: no client can run it.

use super::{Dialect, Found, MarkAt, Opens, Step, View, Wait, earliest, named_json};
use crate::tool_parser::calls::RawCall;
use crate::tool_parser::scanner::Lane;
use crate::tool_parser::tools::is_noise;
use crate::turn::Dropped;

/// A header is never longer.
const HEADER: usize = 320;
const ENDS: &[&str] = &["<|call|>", "<|end|>", "<|return|>", "<|endoftext|>"];
const BODY_ENDS: &[&str] =
    &["<|call|>", "<|end|>", "<|return|>", "<|start|>", "<|channel|>", "<|endoftext|>"];
/// Tokens within a header.
const INSIDE: [&str; 4] = ["<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"];
/// More space than this behind an end token parts it from what follows.
const SPACE: usize = 1024;
/// Words after `to=` that are no tool.
const PEOPLE: [&str; 7] = ["assistant", "user", "system", "developer", "final", "commentary", "analysis"];

pub(super) static DIALECT: Dialect = Dialect {
    name: "harmony",
    models: "gpt-oss-20b and -120b.",
    grammar: "`<|start|>ROLE<|channel|>CHANNEL to=RECIPIENT <|constrain|>TYPE<|message|>BODY<|call|>`, any part but the body \
              missing. `analysis` is reasoning, other channels are content; a body addressed to a tool is its arguments.",
    example: "<|channel|>commentary to=functions.read <|constrain|>json<|message|>{\"path\": \"a.txt\"}<|call|>",
    opens: Opens::Anywhere(&["<|start|>", "<|channel|>", "<|message|>"]),
    read,
};

pub(super) static ENDINGS: Dialect = Dialect {
    name: "end_tokens",
    models: "Any model behind a server that does not strip its end tokens.",
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
        "<end_of_turn>",
        "</s>",
        "<|im_start|>assistant",
        "<|start_header_id|>assistant<|end_header_id|>",
        "<|eom_id|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<｜end▁of▁sentence｜>",
        "</tool_call>",
        "</tool_calls>",
        "</function_calls>",
        "</minimax:tool_call>",
        "</seed:tool_call>",
        "</｜DSML｜tool_calls>",
        "</｜DSML｜function_calls>",
    ]),
    read: ending,
};

fn ending(view: &View<'_>) -> Step {
    if view.text.starts_with("</") {
        return if view.after_call { Step::Read(Found::Skip, view.mark) } else { Step::Not(view.mark) };
    }
    if view.text[..view.mark].contains("assistant") {
        return if view.first { Step::Read(Found::Skip, view.mark) } else { Step::Not(view.mark) };
    }
    let next = view.skip_space(view.mark);
    // First of all: what has come of the space must not decide.
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

fn read(view: &View<'_>) -> Step {
    let (end, body) = match header(view) {
        Ok(found) => found,
        Err(step) => return step,
    };
    let header = &view.text[..end];
    if let Some(name) = recipient(header) {
        return call(view, name, body);
    }
    let channel = header.rsplit("<|channel|>").next().unwrap_or_default();
    if header.contains("<|channel|>") && channel.trim_start().starts_with("analysis") {
        let lane = Lane::Reasoning(
            &["<|end|>", "<|return|>", "<|call|>", "<|start|>", "<|channel|>"],
            &["<|start|>", "<|channel|>"],
        );
        return Step::Read(Found::Lane(lane), body);
    }
    let known = header.contains("<|channel|>") || header.contains("<|start|>") || view.first;
    if known { Step::Read(Found::Skip, body) } else { Step::Not(end) }
}

/// Where the header ends and the body begins: at `<|message|>`, or at a brace after a recipient.
fn header(view: &View<'_>) -> Result<(usize, usize), Step> {
    let window = view.text.floor_char_boundary(HEADER);
    let text = &view.text[..window];
    let message = text.find("<|message|>");
    let brace = text.find('{').filter(|at| message.is_none_or(|message| *at < message));
    let line = earliest(text, &["\n\n", ". "]).map_or(window, |(at, _)| at);
    let stop = foreign(text).unwrap_or(window);
    let end = brace.or(message).unwrap_or(window);
    if stop.min(line) < end {
        return Err(Step::Not(stop.min(line)));
    }
    match (brace, message) {
        (Some(at), _) if text[..at].contains("to=") => Ok((at, at)),
        (None, Some(at)) => Ok((at, at + "<|message|>".len())),
        (None, None) if view.text.len() < HEADER && !view.eof => Err(Step::More(Wait::Any)),
        (None, None) if view.cut => Err(named_json::truncated(view, recipient(text).unwrap_or_default())),
        _ => Err(Step::Not(end)),
    }
}

/// Where something else begins: a header has no other angle brackets than its tokens'.
fn foreign(text: &str) -> Option<usize> {
    let is_inside = |at: &usize| {
        let rest = &text[*at..];
        INSIDE.iter().any(|token| rest.starts_with(token) || token.starts_with(rest))
    };
    memchr::memchr_iter(b'<', text.as_bytes()).find(|at| !is_inside(at))
}

/// The tool that a header addresses, if it addresses one.
fn recipient(header: &str) -> Option<&str> {
    let mut found = header.match_indices("to=").map(|(at, _)| {
        let name = &header[at + 3..];
        let end = name.find([' ', '\n', '{']).unwrap_or(name.len());
        name[..end].trim_end_matches("<|constrain|>json")
    });
    found.find(|name| !PEOPLE.iter().any(|word| plain_recipient(name) == *word))
}

fn plain_recipient(name: &str) -> &str {
    name.split("<|").next().unwrap_or(name)
}

fn call(view: &View<'_>, name: &str, body: usize) -> Step {
    if view.tools.resolve(name).is_none() {
        return to_nobody(view, name, body);
    }
    let start = view.skip_space(body);
    match view.text.as_bytes().get(start) {
        None if view.cut => named_json::truncated(view, name),
        None if !view.eof => Step::More(Wait::Any),
        Some(b'{') => named_json::read(view, name, start, ENDS),
        _ => raw(view, name, start),
    }
}

/// A body that is no JSON object, up to the next token.
fn raw(view: &View<'_>, name: &str, start: usize) -> Step {
    let rest = &view.text[start..];
    match earliest(rest, BODY_ENDS).map(|(at, _)| at) {
        None if !view.eof => Step::More(Wait::Mark(start, BODY_ENDS)),
        None if view.cut => named_json::truncated(view, name),
        found => {
            let end = start + found.unwrap_or(rest.len());
            let call = RawCall::text(name, view.text[start..end].trim());
            match view.closing(end, ENDS) {
                Ok(after) => named_json::call(view, call, after),
                Err(step) => step,
            }
        }
    }
}

/// A builtin of the model's training, or a tool that was not declared: nothing a client could do with it.
fn to_nobody(view: &View<'_>, name: &str, body: usize) -> Step {
    let name = name.split("<|").next().unwrap_or(name);
    if !(is_noise(name) || view.first) {
        return Step::Not(body);
    }
    let rest = &view.text[body..];
    match earliest(rest, BODY_ENDS).map(|(at, _)| at) {
        None if !view.eof => Step::More(Wait::Mark(body, BODY_ENDS)),
        found => {
            let end = body + found.unwrap_or(rest.len());
            let after = match view.mark_at(end, ENDS) {
                MarkAt::Here(length) => end + length,
                _ => end,
            };
            Step::Read(Found::Drop(name.to_owned(), Dropped::Undeclared), after)
        }
    }
}
