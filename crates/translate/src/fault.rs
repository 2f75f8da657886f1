//! Finds the fault of a useless reply: it is empty, stops after thinking, or has a call that cannot leave.
//!
//! This module names the fault, and the error for the client if no second attempt helps. `remedy` decides
//! whether to ask again. Pure. Called by `relay`, and by `live` for the parts that were not sent.

use std::collections::HashSet;
use std::sync::LazyLock;

use memchr::memmem::Finder;

use super::correctable::correctable_calls;
use super::ids::Ids;
use super::interpret::{ReplyRules, interpret_completion};
use super::reply::Reply;
use tool_call_parser::Tools;
use wire::turn::{Dropped, FinishReason, Note, Turn, Usage};
use wire::{ApiError, Completion, ErrorCode};

/// The reason why a reply is useless.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The server reported that it could not read the model's output.
    Glitch,
    /// The model wrote this number of tokens, and its server passed on nothing of them.
    Lost(u64),
    /// Neither content nor calls nor reasoning.
    Empty,
    /// Reasoning, and then the model ended its turn.
    OnlyReasoning,
    /// The token limit came before the answer, usually inside the reasoning.
    CutReasoning,
    /// The token limit cut a call of this tool (empty: the tool is unknown).
    CutCall(String),
    /// A call of this tool that cannot be used.
    BadCall(String, Dropped),
    /// A call of a tool that was not declared.
    UnknownTool(String),
    /// A call of this tool that breaks its schema, with the problems. It can leave: its client checks it too.
    InvalidCall(String, Vec<String>),
}

/// The usable part of a faulty reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Salvage {
    /// Text that the client can use, or that shows the problem.
    Answer,
    /// A whole call that the client answers with an error, so that the model can correct it.
    CorrectableCall,
    /// An empty reply. It may leave only when the model was asked once.
    Blank,
    /// Nothing.
    Nothing,
}

/// A reply of more tokens than this of which nothing arrived was lost on the way. To end a turn takes one or
/// two.
const FEW_TOKENS: u64 = 3;

impl Fault {
    /// Returns a stable name for logs and metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Glitch => "model_glitch",
            Self::Lost(_) => "lost_reply",
            Self::Empty => "empty_reply",
            Self::OnlyReasoning => "only_reasoning",
            Self::CutReasoning => "cut_reasoning",
            Self::CutCall(_) => "cut_call",
            Self::BadCall(..) => "bad_call",
            Self::UnknownTool(_) => "unknown_tool",
            Self::InvalidCall(..) => "invalid_call",
        }
    }

    /// Finds the fault of a whole reply; `None` when one of its choices is good.
    pub fn find_in_reply(reply: &Reply) -> Option<Self> {
        let turns =
            reply.choices.iter().map(|choice| Some(&choice.turn).filter(|_| choice.refusal.is_none()));
        Self::find_in_turns(&turns.collect::<Option<Vec<_>>>()?, reply.usage)
    }

    /// Finds a call that breaks its tool's schema; for a reply whose server did not get the whole schemas.
    pub fn find_invalid_call(reply: &Reply) -> Option<Self> {
        let mut calls = reply.choices.iter().flat_map(|choice| &choice.turn.calls);
        let call = calls.find(|call| !call.problems.is_empty())?;
        Some(Self::InvalidCall(call.name.clone(), call.problems.clone()))
    }

    /// Finds the fault of a completion that is forwarded unread. It is parsed only when it looks empty.
    pub fn find_in_unread(body: &[u8], rules: &ReplyRules) -> Option<Self> {
        let text = std::str::from_utf8(body).ok().filter(|text| may_be_blank(text))?;
        let completion = Completion::parse(text, &[]).ok()?;
        Self::find_in_reply(&interpret_completion(completion, rules, &mut Ids::new(0, HashSet::new())))
    }

    /// Finds the fault of turns; `None` when one of them is good.
    pub fn find_in_turns(turns: &[&Turn], usage: Option<Usage>) -> Option<Self> {
        let faults = turns.iter().map(|turn| Self::find_in_turn(turn)).collect::<Option<Vec<_>>>()?;
        let written = usage.map_or(0, |usage| usage.completion);
        match faults.into_iter().next()? {
            Self::Empty if written > FEW_TOKENS && turns.iter().all(|turn| turn.notes.is_empty()) => {
                Some(Self::Lost(written))
            }
            fault => Some(fault),
        }
    }

    fn find_in_turn(turn: &Turn) -> Option<Self> {
        if !turn.calls.is_empty() {
            return None;
        }
        let of_call = turn.notes.iter().find_map(Self::find_in_note);
        of_call.or_else(|| match turn.finish {
            _ if !turn.content.trim().is_empty() => None,
            Some(FinishReason::ContentFilter) => None,
            Some(FinishReason::Length) => Some(Self::CutReasoning),
            _ if !turn.reasoning.trim().is_empty() => Some(Self::OnlyReasoning),
            _ => Some(Self::Empty),
        })
    }

    fn find_in_note(note: &Note) -> Option<Self> {
        let Note::Dropped { name, why, .. } = note else { return None };
        match why {
            Dropped::Truncated => Some(Self::CutCall(name.clone())),
            Dropped::Unclosed | Dropped::Unreadable | Dropped::MissingRequired => {
                Some(Self::BadCall(name.clone(), *why))
            }
            Dropped::Undeclared => Some(Self::UnknownTool(name.clone())),
            Dropped::Duplicate | Dropped::NotParallel | Dropped::NotWanted | Dropped::InReasoning => None,
        }
    }

    /// Returns the usable part of a reply with this fault.
    pub fn usable_part(&self, turns: &[&Turn], tools: &Tools) -> Salvage {
        if turns.iter().any(|turn| !correctable_calls(turn, tools).is_empty()) {
            return Salvage::CorrectableCall;
        }
        match self {
            // The text is the call itself, which the engine shows when the turn would be blank without it.
            Self::UnknownTool(name)
                if turns.iter().all(|turn| turn.content.trim().starts_with(name.as_str())) =>
            {
                Salvage::Blank
            }
            _ if turns.iter().any(|turn| !turn.content.trim().is_empty()) => Salvage::Answer,
            Self::CutReasoning | Self::InvalidCall(..) => Salvage::Answer,
            Self::Empty | Self::OnlyReasoning | Self::UnknownTool(_) => Salvage::Blank,
            _ => Salvage::Nothing,
        }
    }

    /// Makes the client's error when nothing can leave. `asked`: the number of attempts. After one attempt
    /// any client may repeat the request; after more, a status that makes OpenClaw repeat it eight times
    /// would only cost time.
    pub fn to_error(&self, asked: u32) -> ApiError {
        let (status, code, what) = self.describe_fault();
        let (status, tried) = match asked {
            0 | 1 => (status, "; ask again".to_owned()),
            _ => (422, format!(" (asked {asked} times)")),
        };
        let tried = if matches!(self, Self::CutCall(_)) && asked < 2 { String::new() } else { tried };
        ApiError::new(status, code, format!("{what}{tried}"))
    }

    fn describe_fault(&self) -> (u16, ErrorCode, String) {
        let of =
            |tool: &str| if tool.is_empty() { "a tool".to_owned() } else { format!("the tool `{tool}`") };
        match self {
            Self::Glitch => (
                502,
                ErrorCode::ModelGlitch,
                "the model wrote a reply that its server could not read".to_owned(),
            ),
            Self::Lost(tokens) => {
                let what = format!("the model wrote {tokens} tokens, and its server passed none of them on");
                (502, ErrorCode::LostReply, what)
            }
            Self::Empty => (502, ErrorCode::NoAnswer, "the model gave an empty reply".to_owned()),
            Self::OnlyReasoning | Self::CutReasoning => (
                502,
                ErrorCode::NoAnswer,
                "the model stopped after its reasoning, without an answer".to_owned(),
            ),
            Self::CutCall(tool) => {
                let what = format!(
                    "the token limit cut the model's call of {} before it was complete; raise max_tokens or shorten the conversation",
                    of(tool)
                );
                (422, ErrorCode::TruncatedToolCall, what)
            }
            Self::BadCall(tool, why) => {
                let what = format!(
                    "the model's call of {} cannot be used ({}), and it wrote nothing else",
                    of(tool),
                    why.as_str()
                );
                (502, ErrorCode::UnusableToolCall, what)
            }
            Self::InvalidCall(tool, _) => {
                let what = format!("the model's call of {} breaks the tool's schema", of(tool));
                (502, ErrorCode::UnusableToolCall, what)
            }
            Self::UnknownTool(name) => {
                let what = format!("the model called {}, which this request does not declare", of(name));
                (502, ErrorCode::UnknownTool, what)
            }
        }
    }
}

/// Returns true when a `content` in the text is `null` or an empty string. The text may be long, so it is
/// only searched.
fn may_be_blank(text: &str) -> bool {
    const KEY: &str = r#""content":"#;
    static FINDER: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new(KEY));
    FINDER.find_iter(text.as_bytes()).any(|at| {
        let value = &text[at + KEY.len()..];
        let value = value.strip_prefix(' ').unwrap_or(value);
        value.starts_with("null") || value.starts_with(r#""""#)
    })
}
