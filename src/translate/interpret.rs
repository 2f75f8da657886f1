//! From a whole completion to turns: the tool-call engine reads each choice, ids are chosen, and what cannot leave as a
//! success becomes an error.

use std::sync::Arc;

use super::ids::Ids;
use super::synthesize::{Head, Reply, ReplyChoice};
use crate::tool_parser::{End, Engine, Field, NativeCall, Options, Tools};
use crate::turn::{Dropped, FinishReason, Note, Turn, Usage};
use crate::wire::{ApiError, Choice, Completion, pruned_logprobs};

/// What the request says about its reply.
#[derive(Clone, Debug)]
pub struct ReplyRules {
    /// The declared tools.
    pub tools: Arc<Tools>,
    /// What the request allows.
    pub options: Options,
    /// `max_completion_tokens` or `max_tokens`: a reply that used them all was cut, whatever its `finish_reason` says
    /// (vLLM 0.32 says `tool_calls` for a call cut in the middle).
    pub token_limit: Option<u64>,
}

/// Reads every choice.
///
/// # Errors
/// 422 `truncated_tool_call` or 502 `unusable_tool_call` when no choice has anything to show but a call that cannot leave;
/// 502 `lost_reply` when the server lost all that the model wrote.
pub fn interpret(completion: Completion, rules: &ReplyRules, ids: &mut Ids) -> Result<Reply, ApiError> {
    let used = completion.usage.map(|usage| usage.completion);
    let spent = completion.choices.len() == 1
        && used.is_some_and(|used| rules.token_limit.is_some_and(|limit| used >= limit));
    let choices: Vec<ReplyChoice> =
        completion.choices.into_iter().map(|choice| read_choice(choice, spent, rules, ids)).collect();
    if let Some(error) =
        all_failed(&choices).or_else(|| lost(choices.iter().map(|choice| &choice.turn), completion.usage))
    {
        return Err(error);
    }
    let id = if completion.id.is_empty() { ids.reply_id() } else { completion.id };
    let head = Head {
        id,
        created: completion.created.unwrap_or_default(),
        model: completion.model,
        tags: completion.tags,
    };
    Ok(Reply { head, choices, usage: completion.usage, kept: completion.kept })
}

fn read_choice(choice: Choice, spent: bool, rules: &ReplyRules, ids: &mut Ids) -> ReplyChoice {
    let cut = spent || choice.finish_reason.as_deref() == Some("length");
    let mut turn = read_turn(&choice, End { cut }, rules);
    if !turn.calls.is_empty() && turn.content.trim().is_empty() {
        // The line breaks around calls that a server took out of the text.
        turn.content.clear();
    }
    for call in &mut turn.calls {
        call.id = Some(ids.choose(call.id.as_deref()));
    }
    let truncated =
        turn.notes.iter().any(|note| matches!(note, Note::Dropped { why: Dropped::Truncated, .. }));
    let reason = if truncated { Some("length") } else { choice.finish_reason.as_deref() };
    turn.finish = Some(FinishReason::resolve(reason, !turn.calls.is_empty()));
    ReplyChoice {
        index: choice.index,
        turn,
        refusal: choice.refusal,
        extras: choice.extras,
        logprobs: choice.logprobs.map(|text| pruned_logprobs(&text).into_owned()),
        kept: choice.kept,
        message_kept: choice.message_kept,
    }
}

/// Native calls first, so that they win over a copy of them in the text.
fn read_turn(choice: &Choice, end: End, rules: &ReplyRules) -> Turn {
    let mut engine = Engine::new(Arc::clone(&rules.tools), rules.options);
    let mut events = Vec::new();
    for call in &choice.tool_calls {
        let call = call.clone();
        engine.native(NativeCall { id: call.id, name: call.name, arguments: call.arguments }, &mut events);
    }
    if !choice.reasoning.is_empty() {
        engine.push(Field::Reasoning, &choice.reasoning, &mut events);
    }
    if !choice.content.is_empty() {
        engine.push(Field::Content, &choice.content, &mut events);
    }
    engine.finish(end, &mut events);
    events.into_iter().collect()
}

/// The error to answer with when nothing is left of any choice but calls that cannot leave.
fn all_failed(choices: &[ReplyChoice]) -> Option<ApiError> {
    let fault = |choice: &ReplyChoice| fault_of(&choice.turn).filter(|_| choice.refusal.is_none());
    let faults: Option<Vec<ApiError>> = choices.iter().map(fault).collect();
    faults?.into_iter().next()
}

/// A reply of more tokens than this of which nothing arrived was lost on the way. Ending a turn takes one or two.
const FEW_TOKENS: u64 = 3;

/// The error to answer with when the model wrote a reply and its server passed nothing of it on: no content, no reasoning, no
/// call. vLLM 0.10 to 0.32 does this with harmony texts that its parser does not expect.
pub(super) fn lost<'t>(mut turns: impl Iterator<Item = &'t Turn>, usage: Option<Usage>) -> Option<ApiError> {
    let written = usage.map_or(0, |usage| usage.completion);
    let nothing = |turn: &Turn| turn.is_blank() && turn.reasoning.trim().is_empty() && turn.notes.is_empty();
    (written > FEW_TOKENS && turns.all(nothing)).then(|| {
        let message =
            format!("the model wrote {written} tokens, and its server passed none of them on; ask again");
        ApiError::new(502, "lost_reply", message)
    })
}

/// Why a turn has nothing to show but a call that cannot leave; `None` when it has something, or is merely empty.
pub(super) fn fault_of(turn: &Turn) -> Option<ApiError> {
    let (name, why) = turn.notes.iter().find_map(|note| match note {
        Note::Dropped {
            name,
            why: why @ (Dropped::Truncated | Dropped::Unreadable | Dropped::MissingRequired),
        } => Some((name, *why)),
        _ => None,
    })?;
    if !turn.is_blank() {
        return None;
    }
    let tool = if name.is_empty() { "a tool".to_owned() } else { format!("the tool `{name}`") };
    Some(match why {
        Dropped::Truncated => ApiError::new(
            422,
            "truncated_tool_call",
            format!(
                "the token limit cut the model's call of {tool} before it was complete; raise max_tokens or shorten the conversation"
            ),
        ),
        _ => ApiError::new(
            502,
            "unusable_tool_call",
            format!(
                "the model's call of {tool} cannot be used ({}), and it wrote nothing else; ask again",
                why.as_str()
            ),
        ),
    })
}
