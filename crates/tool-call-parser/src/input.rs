//! The input of the engine: texts with their field, native calls, the request's rules, and the end of the
//! reply.
//!
//! Plain data. Used by the engine and everything below it.

use super::PreferredDialects;

/// The field of the upstream's message that had a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// `content`.
    Content,
    /// `reasoning` or `reasoning_content`.
    Reasoning,
}

/// A call that the upstream's own parser extracted, unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NativeCall {
    /// `tool_calls[].id`.
    pub id: Option<String>,
    /// `function.name`, possibly polluted.
    pub name: String,
    /// `function.arguments`: normally a JSON text; an object is passed as its JSON text.
    pub arguments: String,
}

/// The request's rules for its reply.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is one independent field of the request")]
pub struct Options {
    /// False for `tool_choice: "none"`: no call leaves.
    pub calls_wanted: bool,
    /// False for `parallel_tool_calls: false`: only the first call leaves.
    pub parallel: bool,
    /// True when the client asked for JSON content (`response_format`): bare JSON is then content.
    pub json_wanted: bool,
    /// True enables the natural-language dialect ("I will search for X").
    pub fuzzy: bool,
    /// The dialects that the model is likely to write.
    pub preferred_dialects: PreferredDialects,
    /// True also reads calls in reasoning that the model ended itself. (Unended reasoning is searched when
    /// the turn has nothing else.)
    pub read_reasoning: bool,
    /// True when the reply may begin inside reasoning: some chat templates write the opening mark, and only
    /// the closing one (`</think>`) shows that the text before it was reasoning. Calls then wait for the end
    /// of the reply, because a call before that mark was only considered. False: a call is emitted as soon as
    /// it is complete.
    pub may_begin_in_reasoning: bool,
    /// True when the reply begins inside reasoning, because its chat template writes the opening mark
    /// (`bare_think`): its text is reasoning up to the closing mark. If none comes, the text was the answer,
    /// and leaves as content too, unless the reply was cut.
    pub begins_in_reasoning: bool,
}

impl Options {
    /// Returns the options for a complete reply, in which a call that waits for the end costs no time.
    pub fn for_whole_reply() -> Self {
        Self { may_begin_in_reasoning: true, ..Self::default() }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            calls_wanted: true,
            parallel: true,
            json_wanted: false,
            fuzzy: false,
            preferred_dialects: PreferredDialects::default(),
            read_reasoning: false,
            may_begin_in_reasoning: false,
            begins_in_reasoning: false,
        }
    }
}

/// The end of the upstream's reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// True when the token limit cut the reply (`finish_reason: "length"`), or the reply broke off.
    pub cut: bool,
}
