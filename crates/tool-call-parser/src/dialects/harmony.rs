//! gpt-oss' harmony format, raw: channels become reasoning and content, messages to a tool become calls.
//!
//! Headers are read leniently: recipient in the role or the channel part, doubled channels, glued content
//! types, a missing `<|message|>`. Messages to the model's builtin tools are dropped, because no client can
//! run them.

use serde_json::{Map, Value};

use super::{Dialect, Found, Lane, MarkAt, Opens, Step, View, Wait, invoke, named_json, xml_arguments};
use crate::calls::RawCall;
use crate::event::Dropped;
use crate::marks::find_earliest;
use crate::repairs::Repair;
use crate::schema::properties;
use crate::tools::is_noise;

/// The longest header.
const HEADER: usize = 320;
/// The longest recipient.
const LONGEST_NAME: usize = 128;
const ENDS: &[&str] = &["<|call|>", "<|end|>", "<|return|>", "<|endoftext|>", "<|eom|>"];
const BODY_ENDS: &[&str] =
    &["<|call|>", "<|end|>", "<|return|>", "<|start|>", "<|channel|>", "<|endoftext|>", "<|eom|>"];
/// Tokens within a header.
const INSIDE: [&str; 4] = ["<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"];
/// Words after `to=` that do not name a tool.
const NOT_TOOLS: [&str; 8] =
    ["assistant", "user", "system", "developer", "final", "commentary", "analysis", "self"];
/// The lane of a message from the model to itself.
const THOUGHT: Lane = Lane::Reasoning(
    &["<|end|>", "<|return|>", "<|call|>", "<|eom|>", "<|start|>", "<|channel|>"],
    &["<|start|>", "<|channel|>"],
);
/// The lane of a message to the user. Calls that it quotes stay text, so another message's header ends it
/// only with a channel.
const ANSWER: Lane = Lane::Answer(
    &["<|end|>", "<|return|>", "<|call|>", "<|eom|>", "<|start|>assistant<|channel|>"],
    &["<|start|>assistant<|channel|>"],
);

pub(super) static DIALECT: Dialect = Dialect {
    name: "harmony",
    models: "gpt-oss-20b and -120b, llm-jp 4.1, Muse Spark; Muse Glimmer (a body of `<atem:invoke …>` tags).",
    families: &["gptoss", "muse", "llmjp"],
    grammar: "`<|start|>ROLE<|channel|>CHANNEL to=RECIPIENT <|constrain|>TYPE<|message|>BODY<|call|>`, any part but the body \
              missing. `analysis` and `to=self` are reasoning, other channels are content; a body addressed to a tool is its \
              arguments, as JSON, as tags (never wrapped as one argument), or as one text. `to=user` is text for the user, whatever it quotes.",
    example: "<|channel|>commentary to=functions.read <|constrain|>json<|message|>{\"path\": \"a.txt\"}<|call|>",
    opens: Opens::Anywhere(&["<|start|>", "<|channel|>", "<|message|>"]),
    read: read_message,
};

pub(super) static RECIPIENT: Dialect = Dialect {
    name: "harmony_recipient",
    models: "gpt-oss, Muse and Beam behind a chat template that begins the header.",
    families: &["gptoss", "muse", "llmjp", "beam"],
    grammar: "`to=RECIPIENT` as the first thing of the answer, then the rest of harmony's header and its body.",
    example: "to=read<|channel|>commentary json<|message|>{\"path\": \"a.txt\"}<|call|>",
    opens: Opens::Line(&["to="]),
    read: read_from_recipient,
};

/// Reads one message: its header and, if it is a call, its body.
pub(super) fn read_message(view: &View<'_>) -> Step {
    let (end, body) = match read_header(view) {
        Ok(found) => found,
        Err(step) => return step,
    };
    let header = &view.text[..end];
    if let Some(name) = find_recipient(header) {
        return read_call(view, name, body);
    }
    let channel = header.rsplit("<|channel|>").next().unwrap_or_default();
    if header.contains("<|channel|>") && channel.trim_start().starts_with("analysis") || is_to(header, "self")
    {
        return Step::Read(Found::Lane(THOUGHT), body);
    }
    if is_to(header, "user") {
        return Step::Read(Found::Lane(ANSWER), body);
    }
    let known = header.contains("<|channel|>") || header.contains("<|start|>") || view.first;
    if known { Step::Read(Found::Skip, body) } else { Step::Not(end) }
}

fn is_to(header: &str, person: &str) -> bool {
    header.split_once("to=").is_some_and(|(_, name)| {
        name.strip_prefix(person).is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '<', '\n']))
    })
}

/// Reads a reply that continues a header of the chat template: its recipient comes first.
fn read_from_recipient(view: &View<'_>) -> Step {
    if !view.first {
        return Step::Not(view.mark);
    }
    let name = view.body();
    // The end of the name comes right after the longest name at the latest, however much text has arrived.
    let window = name.floor_char_boundary(LONGEST_NAME + 1);
    let Some(length) = name[..window].find(['<', ' ', '{', '\n']) else {
        let is_over = name.len() > LONGEST_NAME;
        return if is_over { Step::Not(view.mark + LONGEST_NAME) } else { view.wait_or_reject(Wait::Any) };
    };
    let follows = &name[length..];
    let token = ["<|channel|>", "<|message|>", "<|constrain|>"];
    let marked = token.iter().any(|token| follows.starts_with(token));
    if !view.eof && token.iter().any(|token| token.starts_with(follows)) {
        return Step::More(Wait::Any);
    }
    let known = view.tools.resolve(&name[..length]).is_some();
    if marked || known { read_message(view) } else { Step::Not(view.mark + length) }
}

/// Returns the end of the header and the beginning of the body: at `<|message|>`, or at a brace after a
/// recipient.
pub(super) fn read_header(view: &View<'_>) -> Result<(usize, usize), Step> {
    let window = view.text.floor_char_boundary(HEADER);
    let text = &view.text[..window];
    let message = text.find("<|message|>");
    let brace = text.find('{').filter(|at| message.is_none_or(|message| *at < message));
    let line = find_earliest(text, &["\n\n", ". "]).map_or(window, |(at, _)| at);
    let stop = find_foreign(text).unwrap_or(window);
    let end = brace.or(message).unwrap_or(window);
    if stop.min(line) < end {
        return Err(Step::Not(stop.min(line)));
    }
    match (brace, message) {
        (Some(at), _) if text[..at].contains("to=") => Ok((at, at)),
        (None, Some(at)) => Ok((at, at + "<|message|>".len())),
        // This comes first, because the end of a text that is too long must not decide.
        (None, None) if view.text.len() >= HEADER => Err(Step::Not(end)),
        (None, None) if !view.eof => Err(Step::More(Wait::Any)),
        (None, None) if view.cut => {
            Err(named_json::truncated_call(view, find_recipient(text).unwrap_or_default()))
        }
        _ => Err(Step::Not(end)),
    }
}

/// Finds the beginning of other text: a header's only angle brackets are those of its tokens.
fn find_foreign(text: &str) -> Option<usize> {
    let is_inside = |at: &usize| {
        let rest = &text[*at..];
        INSIDE.iter().any(|token| rest.starts_with(token) || token.starts_with(rest))
    };
    memchr::memchr_iter(b'<', text.as_bytes()).find(|at| !is_inside(at))
}

/// Returns the tool that a header is addressed to, if it is addressed to one.
fn find_recipient(header: &str) -> Option<&str> {
    let mut found = header.match_indices("to=").map(|(at, _)| {
        let name = &header[at + 3..];
        let end = name.find([' ', '\n', '{']).unwrap_or(name.len());
        name[..end].trim_end_matches("<|constrain|>json")
    });
    found.find(|name| !NOT_TOOLS.iter().any(|word| plain_recipient(name) == *word))
}

fn plain_recipient(name: &str) -> &str {
    name.split("<|").next().unwrap_or(name)
}

fn read_call(view: &View<'_>, name: &str, body: usize) -> Step {
    if view.tools.resolve(name).is_none() {
        return drop_message(view, name, body);
    }
    let start = view.skip_space(body);
    match view.text.as_bytes().get(start) {
        None if view.cut => named_json::truncated_call(view, name),
        None if !view.eof => Step::More(Wait::Any),
        Some(b'{') => named_json::read_arguments(view, name, start, ENDS),
        _ => match read_atem(view, start) {
            Some(step) => step,
            None => read_raw(view, name, body),
        },
    }
}

const ATEM: &str = "<atem:function_calls>";
const ATEM_END: &str = "</atem:function_calls>";

/// Reads Muse Glimmer's body, which has tags instead of JSON; `None` for another body.
fn read_atem(view: &View<'_>, start: usize) -> Option<Step> {
    let rest = &view.text[start..];
    if !rest.starts_with(ATEM) {
        return (!view.eof && !rest.is_empty() && ATEM.starts_with(rest)).then_some(Step::More(Wait::Any));
    }
    let mut calls = Vec::new();
    let mut at = view.skip_space(start + ATEM.len());
    loop {
        match invoke::read_atem(view, at) {
            Some(Step::Read(Found::Calls { calls: more, .. }, end)) => {
                calls.extend(more);
                at = view.skip_space(end);
            }
            Some(step) => return Some(step),
            None => break,
        }
    }
    let rest = &view.text[at..];
    let partial = [ATEM_END, invoke::ATEM].iter().any(|mark| mark.starts_with(rest));
    if partial && rest != ATEM_END && !view.eof {
        return Some(Step::More(Wait::Any));
    }
    if calls.is_empty() {
        return Some(Step::Not(at));
    }
    let end = if rest.starts_with(ATEM_END) { at + ATEM_END.len() } else { at };
    Some(match view.find_closer(end, ENDS) {
        Ok(end) => Step::Read(Found::Calls { calls, firm: true }, end),
        Err(step) => step,
    })
}

/// Reads a body that is not a JSON object, up to the next token.
fn read_raw(view: &View<'_>, name: &str, start: usize) -> Step {
    let rest = &view.text[start..];
    match find_earliest(rest, BODY_ENDS).map(|(at, _)| at) {
        None if !view.eof => Step::More(Wait::Mark(start, BODY_ENDS)),
        None if view.cut => named_json::truncated_call(view, name),
        found => {
            let end = start + found.unwrap_or(rest.len());
            match (view.find_closer(end, ENDS), raw_call(view, name, &view.text[start..end])) {
                (Ok(after), Some(call)) => named_json::single_call(view, call, after),
                (Ok(after), None) => {
                    let declared = view.tools.resolve(name).map_or(name, |found| &found.tool.name);
                    Step::Read(Found::Broken(declared.to_owned(), Dropped::Unreadable), after)
                }
                (Err(step), _) => step,
            }
        }
    }
}

/// Reads a body that is not a JSON object: arguments after some junk, XML tags, or one text. `None` for
/// unreadable markup.
fn raw_call(view: &View<'_>, name: &str, body: &str) -> Option<RawCall> {
    let object = body.find('{').map(|at| body[at..].trim());
    let takes = |object: &&str| {
        let fields = serde_json::from_str::<Map<String, Value>>(object).ok();
        let declared = view.tools.resolve(name).and_then(|found| properties(found.tool.schema()));
        let fits = |fields: Map<String, Value>| {
            declared.is_some_and(|declared| fields.keys().all(|key| declared.contains_key(key)))
        };
        fields.is_some_and(fits)
    };
    if let Some(object) = object.filter(takes) {
        return Some(RawCall { repairs: [Repair::Junk].into(), ..RawCall::from_text(name, object) });
    }
    if body.trim_start().starts_with('<') {
        let tool = view.tools.resolve(name)?.tool;
        return xml_arguments::read_call(tool, body).map(|call| RawCall { name: name.to_owned(), ..call });
    }
    Some(RawCall::from_text(name, body))
}

/// Drops a message to a builtin of the model's training, or to an undeclared tool, which no client could
/// execute.
fn drop_message(view: &View<'_>, name: &str, body: usize) -> Step {
    let name = name.split("<|").next().unwrap_or(name);
    if !(is_noise(name) || view.first) {
        return Step::Not(body);
    }
    let rest = &view.text[body..];
    match find_earliest(rest, BODY_ENDS).map(|(at, _)| at) {
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
