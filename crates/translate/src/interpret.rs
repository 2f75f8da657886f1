//! Turns a whole completion into turns: the tool-call engine reads each choice, and ids are chosen. `fault`
//! decides whether the turns are useful.

use std::sync::Arc;

use super::ids::Ids;
use super::reply::{Head, Reply, ReplyChoice};
use super::response_template::{Part, ResponseTemplate};
use tool_call_parser::{End, Engine, Event, Field, NativeCall, Options, Tools, has_reasoning_end};
use wire::turn::{Dropped, FinishReason, Note, Turn};
use wire::{Choice, Completion, pruned_logprobs};

/// The request's rules for its reply.
#[derive(Clone, Debug)]
pub struct ReplyRules {
    /// The declared tools.
    pub tools: Arc<Tools>,
    /// The options of the engine for this request.
    pub options: Options,
    /// The marks of the model's replies, if the owner describes them.
    pub response_template: Option<Arc<ResponseTemplate>>,
    /// `max_completion_tokens` or `max_tokens`: a reply that used them all was cut, even if its
    /// `finish_reason` differs (vLLM 0.32 reports `tool_calls` for a call that was cut).
    pub token_limit: Option<u64>,
}

impl ReplyRules {
    /// Returns true when a reply with this number of tokens certainly did not reach the limit.
    pub fn is_below_limit(&self, used: Option<u64>) -> bool {
        self.token_limit.is_none_or(|limit| used.is_some_and(|used| used < limit))
    }
}

/// Reads every choice.
pub fn interpret_completion(completion: Completion, rules: &ReplyRules, ids: &mut Ids) -> Reply {
    let used = completion.usage.map(|usage| usage.completion);
    let spent = completion.choices.len() == 1
        && used.is_some_and(|used| rules.token_limit.is_some_and(|limit| used >= limit));
    let below = rules.is_below_limit(used);
    let choices: Vec<ReplyChoice> =
        completion.choices.into_iter().map(|choice| read_choice(choice, spent, below, rules, ids)).collect();
    let id = if completion.id.is_empty() { ids.reply_id() } else { completion.id };
    let head = Head {
        id,
        created: completion.created.unwrap_or_default(),
        model: completion.model,
        tags: completion.tags,
    };
    Reply { head, choices, usage: completion.usage, kept: completion.kept, earlier_prompts: 0 }
}

fn read_choice(
    choice: Choice,
    spent: bool,
    is_below_limit: bool,
    rules: &ReplyRules,
    ids: &mut Ids,
) -> ReplyChoice {
    let cut = spent || choice.finish_reason.as_deref() == Some("length");
    let mut turn = read_turn(&choice, End { cut }, rules);
    if !cut && is_below_limit {
        turn.notes.iter_mut().for_each(Note::mark_unclosed);
    }
    if !turn.calls.is_empty() && turn.content.trim().is_empty() {
        // Only the line breaks around calls that a server removed from the text are left.
        turn.content.clear();
    }
    for call in &mut turn.calls {
        call.id = Some(ids.choose_id(call.id.as_deref()));
    }
    let truncated =
        turn.notes.iter().any(|note| matches!(note, Note::Dropped { why: Dropped::Truncated, .. }));
    let reason = if truncated { Some("length") } else { choice.finish_reason.as_deref() };
    turn.finish = Some(FinishReason::from_upstream(reason, !turn.calls.is_empty()));
    ReplyChoice {
        index: choice.index,
        turn,
        refusal: choice.refusal,
        extras: choice.extras,
        logprobs: choice.logprobs.map(|text| pruned_logprobs(&text).into_owned()),
        kept: choice.kept,
        message_kept: choice.message_kept,
        fills_window: false,
    }
}

/// Gives a whole text to the engine, in the parts that a template defines.
pub(super) fn push_content<E: From<Event>>(
    engine: &mut Engine,
    text: &str,
    template: Option<&ResponseTemplate>,
    events: &mut Vec<E>,
) {
    let parts = template.map_or_else(|| vec![Part::Content(text)], |template| template.split_text(text));
    for part in parts {
        match part {
            Part::Reasoning(text) => engine.push(Field::Reasoning, text, events),
            Part::Content("") => {}
            Part::Content(text) => engine.push(Field::Content, text, events),
            Part::Calls(calls) => calls.into_iter().for_each(|call| engine.push_native(call, events)),
        }
    }
}

/// Reads native calls first, so that they win over a copy of them in the text.
fn read_turn(choice: &Choice, end: End, rules: &ReplyRules) -> Turn {
    // A whole reply without the closing mark did not begin in reasoning; one that was cut may lack it.
    let begins_in_reasoning =
        rules.options.begins_in_reasoning && (end.cut || has_reasoning_end(&choice.content));
    let options = Options { begins_in_reasoning, ..rules.options };
    let mut engine = Engine::new(Arc::clone(&rules.tools), options);
    let mut events = Vec::new();
    for call in &choice.tool_calls {
        let call = call.clone();
        engine
            .push_native(NativeCall { id: call.id, name: call.name, arguments: call.arguments }, &mut events);
    }
    if !choice.reasoning.is_empty() {
        engine.push(Field::Reasoning, &choice.reasoning, &mut events);
    }
    push_content(&mut engine, &choice.content, rules.response_template.as_deref(), &mut events);
    engine.finish(end, &mut events);
    events.into_iter().collect()
}
