//! Translates requests on their way up and replies on their way down. Pure.
//!
//! No I/O, no clock, no randomness (a seed comes in from `relay`). Called by `relay`.

mod additions;
mod chat_body;
mod chat_sink;
mod client_program;
mod correctable;
mod document;
mod error_reply;
mod fault;
mod free_text;
mod hidden_tools;
mod ids;
mod ignored_fields;
mod interpret;
mod items;
mod live;
mod loop_guard;
pub mod messages;
mod openclaw_words;
mod opencode_words;
#[cfg(any(test, fuzzing))]
pub mod oracle;
mod outbound;
mod overflow;
mod plain_turn;
mod prune_completion;
mod remedy;
mod repetition;
mod reply;
mod reply_reader;
mod reply_rules;
mod response_template;
pub mod responses;
mod sealed;
mod server_fields;
mod stream;
pub mod tokens;
mod trim;
#[cfg(any(test, fuzzing))]
pub mod wire_oracle;

pub use additions::{Additions, SilentTurn, silent_turns, user_texts};
pub use chat_sink::{ChatSink, completion_json, usage_json};
pub use client_program::ClientProgram;
pub use correctable::correctable_calls;
pub use error_reply::{ErrorReply, is_final, openai_error};
pub use fault::{Fault, Salvage};
pub use free_text::FreeTextPatterns;
pub use ids::Ids;
pub use ignored_fields::IgnoredField;
pub use interpret::{ReplyRules, interpret_completion};
pub use live::{LiveRules, LiveTurn};
pub use loop_guard::{GuardLimits, LoopFound, LoopKind, check_loops, count_steps};
pub use openclaw_words::{is_harmless_for_openclaw, is_harmless_overflow};
pub use opencode_words::is_harmless_for_opencode;
pub use outbound::{Outbound, edit_request, needs_version};
pub use overflow::{Overflow, TooLarge, lower_limit, read_overflow, token_limit};
pub use plain_turn::{PlainRules, PlainTurn, STOP_REASON};
pub use prune_completion::{PrunedCompletion, prune_completion, with_usage};
pub use remedy::{Remedy, Situation, TINY_LIMIT};
pub use repetition::normalise_arguments;
pub use reply::{Head, Reply, ReplyChoice};
pub use reply_reader::{ReplyPart, ReplyReader};
pub use reply_rules::{declared_tools, used_ids};
pub use response_template::ResponseTemplate;
pub use sealed::Sealer;
pub use stream::{ChunkRules, ChunkVerdict, StreamState};
pub use trim::{Trimmed, trim_conversation};
pub use wire::ServerTraits;
