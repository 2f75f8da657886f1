//! Prunes a whole completion that needs no tool-call engine: drops fields that OpenAI's API does not have,
//! renames reasoning, and maps odd finish reasons. Pure. Called by `relay`.

use std::borrow::Cow;

use super::chat_sink::usage_json;
use super::stream::is_blank;
use wire::turn::{FinishReason, Usage};
use wire::{Edit, Editor, Malformed, Object, REPLY, Tag, escape_controls, parse_usage, prune_json};

/// A completion after pruning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrunedCompletion {
    /// The text that leaves; `None` when it is unchanged.
    pub text: Option<String>,
    /// True when it has a choice, and so is a completion.
    pub has_choices: bool,
    /// True when it has reasoning that is more than blanks.
    pub has_reasoning: bool,
    /// Its token counts.
    pub usage: Option<Usage>,
}

/// Prunes a completion. `reasoning`: the field for reasoning, which `None` drops; `keep`: fields to keep
/// although OpenAI's API has no such field.
///
/// # Errors
/// When the text is not JSON.
pub fn prune_completion(
    text: &str,
    reasoning: Option<&'static str>,
    keep: &[String],
) -> Result<PrunedCompletion, Malformed> {
    let valid = escape_controls(text);
    let mut editor = CompletionEditor {
        reasoning,
        keep,
        reasoning_seen: false,
        has_choices: false,
        has_reasoning: false,
        usage: None,
    };
    let mut out = String::with_capacity(text.len());
    let is_changed = prune_json(&valid, &REPLY, &mut editor, &mut out)?;
    let text = match valid {
        _ if is_changed => Some(out),
        Cow::Owned(valid) => Some(valid),
        Cow::Borrowed(_) => None,
    };
    let CompletionEditor { has_choices, has_reasoning, usage, .. } = editor;
    Ok(PrunedCompletion { text, has_choices, has_reasoning, usage })
}

/// Replaces the token counts of a completion; `None` when it cannot be read.
pub fn with_usage(body: &[u8], usage: &Usage) -> Option<String> {
    let mut object = Object::parse(std::str::from_utf8(body).ok()?).ok()?;
    object.set("usage", usage_json(usage));
    Some(object.to_json())
}

/// Edits the fields of a completion.
struct CompletionEditor<'a> {
    reasoning: Option<&'static str>,
    keep: &'a [String],
    reasoning_seen: bool,
    has_choices: bool,
    has_reasoning: bool,
    usage: Option<Usage>,
}

impl Editor for CompletionEditor<'_> {
    fn edit_field(&mut self, tag: Tag, value: &str) -> Edit {
        match tag {
            Tag::Reasoning => {
                self.has_reasoning |= !is_blank(value);
                match self.reasoning.filter(|_| !self.reasoning_seen && value != "null") {
                    Some(name) => {
                        self.reasoning_seen = true;
                        Edit::Rename(name)
                    }
                    None => Edit::Drop,
                }
            }
            Tag::Index => {
                self.reasoning_seen = false;
                self.has_choices = true;
                Edit::Keep
            }
            // vLLM up to 0.22 writes an empty array, which OpenAI never does.
            Tag::ToolCalls if value == "[]" => Edit::Drop,
            Tag::FinishReason if !FinishReason::is_openai(value.trim_matches('"')) => {
                let mapped = FinishReason::from_upstream(Some(value.trim_matches('"')), false);
                Edit::Replace(format!("\"{}\"", mapped.as_str()))
            }
            Tag::Usage => {
                self.usage = parse_usage(value);
                Edit::Keep
            }
            _ => Edit::Keep,
        }
    }

    fn keeps_unknown(&self, key: &str) -> bool {
        self.keep.iter().any(|kept| kept == key)
    }
}
