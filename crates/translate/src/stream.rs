//! The passthrough stream: judges each chunk of the upstream and edits it if necessary, without rebuilding
//! it.
//!
//! It drops fields that OpenAI's API does not have, renames reasoning, maps odd finish reasons, and withholds
//! usage that the client did not request. At the end it knows whether the stream was complete. Called by
//! `relay`.

use std::ops::Range;

use super::chat_sink::usage_json;
use wire::turn::{FinishReason, Usage};
use wire::{Edit, Editor, Malformed, REPLY, Tag, encode_string, parse_usage, prune_json, string_between};

/// The client's rules for chunks.
#[derive(Clone, Debug)]
pub struct ChunkRules {
    /// The field for reasoning; `None` drops it.
    pub reasoning: Option<&'static str>,
    /// True when the client asked for usage.
    pub usage: bool,
    /// Fields to keep although OpenAI's API has no such field.
    pub keep: Vec<String>,
    /// The tokens of earlier attempts, which the usage that leaves includes.
    pub spent: Usage,
}

/// The treatment of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkVerdict {
    /// Forward the bytes unchanged.
    Untouched,
    /// Forward the text in [`StreamState::text`].
    Changed,
    /// Forward nothing.
    Withheld,
}

/// The head that respool itself has already sent, as JSON texts. The upstream's chunks get the same one.
#[derive(Clone, Debug, Default)]
struct Sent {
    id: String,
    created: String,
    model: String,
}

/// Follows one stream.
#[derive(Debug)]
pub struct StreamState {
    rules: ChunkRules,
    text: String,
    sent: Option<Sent>,
    identity: Option<Sent>,
    usage: Option<Usage>,
    choices: Vec<Progress>,
    /// Whether content, reasoning or a call has come.
    spoke: bool,
    /// Whether reasoning has come that is more than blanks.
    reasoned: bool,
    /// Whether the token limit ended a choice.
    cut: bool,
    /// A usage chunk that came before the finish reasons. It waits, because it must be the last.
    last: Option<String>,
    /// The last chunk with content or reasoning.
    last_said: LastSaid,
}

/// The previous chunk, if it had content or reasoning. Most chunks differ from the previous one only in this
/// text, so the rest need not be judged again.
#[derive(Debug, Default)]
struct LastSaid {
    payload: String,
    place: Option<SaidPlace>,
    is_changed: bool,
    /// The rest of [`StreamState::text`] behind that place, if the chunk was changed.
    left_rest: String,
}

/// The place of a chunk's content or reasoning, with its quotes.
#[derive(Clone, Copy, Debug)]
struct SaidPlace {
    /// The place in the payload.
    start: usize,
    end: usize,
    /// Its beginning in [`StreamState::text`], if the chunk was changed.
    left_start: usize,
}

impl LastSaid {
    /// Returns the content or reasoning of this chunk if the rest equals the last one.
    fn find_changed_text<'p>(&self, payload: &'p str) -> Option<(&'p str, SaidPlace)> {
        let place = self.place?;
        let (before, after) = (&self.payload[..place.start], &self.payload[place.end..]);
        string_between(payload, before, after).filter(|said| has_value(said)).map(|said| (said, place))
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    started: bool,
    finished: bool,
}

impl StreamState {
    /// Begins a stream.
    pub fn new(rules: ChunkRules) -> Self {
        Self {
            rules,
            text: String::new(),
            sent: None,
            identity: None,
            usage: None,
            choices: Vec::new(),
            last: None,
            spoke: false,
            reasoned: false,
            cut: false,
            last_said: LastSaid::default(),
        }
    }

    /// Begins another stream that replaces this one, of which only the role chunk may have left. `spent`: the
    /// tokens of earlier attempts. `fallback`: the model that answers now, if it is another one.
    #[must_use]
    pub fn replacement(&self, spent: Usage, fallback: Option<&str>) -> Self {
        let mut sent = self.sent.clone().or_else(|| self.whole_identity().cloned());
        if let (Some(sent), Some(model)) = (&mut sent, fallback) {
            sent.model = encode_string(model);
        }
        let rules = ChunkRules { spent, ..self.rules.clone() };
        Self { identity: sent.clone(), sent, ..Self::new(rules) }
    }

    /// Gives every later chunk this head, and withholds the upstream's role chunks, because respool has sent
    /// them.
    pub fn set_sent_head(&mut self, id: &str, created: u64, model: &str) {
        self.last_said.place = None;
        let sent = Sent { id: encode_string(id), created: created.to_string(), model: encode_string(model) };
        self.sent = Some(sent.clone());
        self.identity = Some(sent);
    }

    /// Judges one chunk.
    ///
    /// # Errors
    /// When the payload is not JSON.
    pub fn judge_chunk(&mut self, payload: &str) -> Result<ChunkVerdict, Malformed> {
        if let Some((said, place)) = self.last_said.find_changed_text(payload) {
            return Ok(self.reuse_last(said, place));
        }
        let mut text = std::mem::take(&mut self.text);
        let mut chunk = ChunkEditor { state: self, saw: ChunkSummary::default(), choice: 0 };
        let changed = prune_json(payload, &REPLY, &mut chunk, &mut text);
        let saw = chunk.saw;
        self.text = text;
        self.last_said.place = None;
        let changed = changed?;
        if saw.usage && !saw.choices && self.has_begun() && !self.is_finished() {
            self.last = Some(if changed { self.text.clone() } else { payload.to_owned() });
            return Ok(ChunkVerdict::Withheld);
        }
        if saw.is_empty(self.sent.is_some(), changed) {
            return Ok(ChunkVerdict::Withheld);
        }
        if let Some(said) = saw.said {
            payload.clone_into(&mut self.last_said.payload);
            (self.last_said.place, self.last_said.is_changed) = (saw.said, changed);
            if changed {
                let left_end = said.left_start + (said.end - said.start);
                self.text[left_end..].clone_into(&mut self.last_said.left_rest);
            }
        }
        Ok(if changed { ChunkVerdict::Changed } else { ChunkVerdict::Untouched })
    }

    /// Takes a chunk that differs from the previous one only in this text.
    fn reuse_last(&mut self, said: &str, place: SaidPlace) -> ChunkVerdict {
        if !self.last_said.is_changed {
            return ChunkVerdict::Untouched;
        }
        self.text.truncate(place.left_start);
        self.text.push_str(said);
        self.text.push_str(&self.last_said.left_rest);
        ChunkVerdict::Changed
    }

    /// Returns the text of the last chunk that was [`ChunkVerdict::Changed`].
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the token counts, once the upstream has sent them.
    pub fn usage(&self) -> Option<Usage> {
        self.usage
    }

    /// Returns true when every choice that began has its finish reason.
    pub fn is_finished(&self) -> bool {
        let mut started = self.choices.iter().filter(|choice| choice.started).peekable();
        started.peek().is_some() && started.all(|choice| choice.finished)
    }

    /// Returns true once a chunk with a choice has come.
    pub fn has_begun(&self) -> bool {
        self.choices.iter().any(|choice| choice.started)
    }

    /// Returns true once a chunk with content, reasoning or a call has come.
    pub fn has_spoken(&self) -> bool {
        self.spoke
    }

    /// Returns true once a chunk with reasoning has come.
    pub fn has_reasoned(&self) -> bool {
        self.reasoned
    }

    /// Returns true when the reply has ended by itself without content, reasoning or a call.
    pub fn is_empty(&self) -> bool {
        self.has_ended_silent() && !self.cut
    }

    /// Returns true when the reply has ended, by itself or at a limit, without content, reasoning or a call.
    pub fn has_ended_silent(&self) -> bool {
        self.is_finished() && !self.spoke
    }

    /// Makes the final chunks for a server that sends `[DONE]` without finish reasons, and releases the chunk
    /// that waited for them.
    pub fn take_missing_end(&mut self) -> Vec<String> {
        let unfinished = |choice: &&(usize, &Progress)| choice.1.started && !choice.1.finished;
        let indexes =
            self.choices.iter().enumerate().filter(|choice| unfinished(&choice)).map(|(index, _)| index);
        let finishes: Vec<String> =
            indexes.filter_map(|index| self.make_chunk(index, "{}", "\"stop\"")).collect();
        finishes.into_iter().chain(self.last.take()).collect()
    }

    /// Makes an empty chunk, which resets clients' watchdogs. `None` before the stream has an id, and after
    /// the finish reasons, which end their choices.
    pub fn heartbeat(&self) -> Option<String> {
        if self.is_finished() {
            return None;
        }
        self.make_chunk(0, r#"{"content":""}"#, "null")
    }

    fn make_chunk(&self, index: usize, delta: &str, finish: &str) -> Option<String> {
        let Sent { id, created, model } = self.whole_identity()?;
        Some(format!(
            r#"{{"id":{id},"object":"chat.completion.chunk","created":{created},"model":{model},"choices":[{{"index":{index},"delta":{delta},"finish_reason":{finish}}}]}}"#
        ))
    }

    fn whole_identity(&self) -> Option<&Sent> {
        let whole = |sent: &&Sent| !sent.id.is_empty() && !sent.created.is_empty() && !sent.model.is_empty();
        self.identity.as_ref().filter(whole)
    }

    fn choice_mut(&mut self, index: usize) -> &mut Progress {
        if self.choices.len() <= index {
            self.choices.resize(index + 1, Progress::default());
        }
        &mut self.choices[index]
    }

    fn note_identity(&mut self, tag: Tag, value: &str) {
        let identity = self.identity.get_or_insert_default();
        let place = match tag {
            Tag::Id => &mut identity.id,
            Tag::Created => &mut identity.created,
            _ => &mut identity.model,
        };
        if place.is_empty() {
            value.clone_into(place);
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct ChunkSummary {
    choices: bool,
    content: bool,
    usage: bool,
    usage_dropped: bool,
    reasoning_dropped: bool,
    reasoning: bool,
    said: Option<SaidPlace>,
}

impl ChunkSummary {
    /// Returns true when nothing is left for the client: a usage chunk that it did not request, a role chunk
    /// after respool's own, a piece of hidden reasoning.
    fn is_empty(self, head_sent: bool, changed: bool) -> bool {
        let carries = self.content || self.reasoning || self.usage;
        changed
            && !carries
            && if self.choices { head_sent || self.reasoning_dropped } else { self.usage_dropped }
    }
}

struct ChunkEditor<'s> {
    state: &'s mut StreamState,
    saw: ChunkSummary,
    choice: usize,
}

impl Editor for ChunkEditor<'_> {
    fn edit_field(&mut self, tag: Tag, value: &str) -> Edit {
        match tag {
            Tag::Id | Tag::Created | Tag::Model => self.edit_head(tag, value),
            Tag::Index => self.edit_index(value),
            Tag::Usage => self.edit_usage(value),
            Tag::FinishReason => self.edit_finish_reason(value),
            Tag::Role if self.state.sent.is_some() => Edit::Drop,
            Tag::Reasoning => self.edit_reasoning(value),
            Tag::Content | Tag::ToolCalls | Tag::Extra => {
                self.saw.content |= has_value(value);
                self.state.spoke |= has_value(value);
                Edit::Keep
            }
            Tag::Role | Tag::Plain => Edit::Keep,
        }
    }

    fn keeps_unknown(&self, key: &str) -> bool {
        self.state.rules.keep.iter().any(|kept| kept == key)
    }

    fn note_kept(&mut self, tag: Tag, value: Range<usize>, left_at: usize) {
        if matches!(tag, Tag::Content | Tag::Reasoning) && self.state.spoke {
            self.saw.said = Some(SaidPlace { start: value.start, end: value.end, left_start: left_at });
        }
    }
}

/// Returns true unless the value of a field is empty.
fn has_value(value: &str) -> bool {
    !matches!(value, "null" | "\"\"" | "[]")
}

/// Whether a value of JSON is `null`, or a string of nothing but blanks and line breaks.
pub(super) fn is_blank(value: &str) -> bool {
    value == "null" || value.trim_matches('"').split(r"\n").all(|line| line.trim().is_empty())
}

impl ChunkEditor<'_> {
    fn edit_head(&mut self, tag: Tag, value: &str) -> Edit {
        let Some(sent) = &self.state.sent else {
            self.state.note_identity(tag, value);
            return Edit::Keep;
        };
        let own = match tag {
            Tag::Id => &sent.id,
            Tag::Created => &sent.created,
            _ => &sent.model,
        };
        if own == value { Edit::Keep } else { Edit::Replace(own.clone()) }
    }

    fn edit_index(&mut self, value: &str) -> Edit {
        // A huge index is a server's mistake.
        self.choice = value.parse().unwrap_or(0).min(4096);
        self.saw.choices = true;
        self.state.choice_mut(self.choice).started = true;
        Edit::Keep
    }

    fn edit_usage(&mut self, value: &str) -> Edit {
        let usage = parse_usage(value);
        self.state.usage = usage.or(self.state.usage);
        if self.state.rules.usage {
            self.saw.usage |= value != "null";
            let spent = self.state.rules.spent;
            return match usage.filter(|_| spent != Usage::default()) {
                Some(usage) => Edit::Replace(usage_json(&usage.plus(spent))),
                None => Edit::Keep,
            };
        }
        self.saw.usage_dropped = true;
        Edit::Drop
    }

    fn edit_finish_reason(&mut self, value: &str) -> Edit {
        if value == "null" {
            return Edit::Keep;
        }
        self.saw.content = true;
        self.state.choice_mut(self.choice).finished = true;
        let name = value.trim_matches('"');
        self.state.cut |= name == "length";
        if FinishReason::is_openai(name) {
            return Edit::Keep;
        }
        let mapped = FinishReason::from_upstream(Some(name), false);
        Edit::Replace(format!("\"{}\"", mapped.as_str()))
    }

    /// Keeps the first of two fields with the same text (vLLM 0.11 to 0.15 writes both).
    fn edit_reasoning(&mut self, value: &str) -> Edit {
        self.state.spoke |= !matches!(value, "null" | "\"\"");
        self.state.reasoned |= !is_blank(value);
        let Some(name) = self.state.rules.reasoning.filter(|_| !self.saw.reasoning && value != "null") else {
            self.saw.reasoning_dropped |= value != "null" && !self.saw.reasoning;
            return Edit::Drop;
        };
        self.saw.reasoning = true;
        Edit::Rename(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(usage: bool) -> ChunkRules {
        ChunkRules { reasoning: Some("reasoning_content"), usage, keep: vec![], spent: Usage::default() }
    }

    fn check(state: &mut StreamState, payload: &str, passed: ChunkVerdict, text: &str) {
        assert_eq!(state.judge_chunk(payload), Ok(passed), "{payload}");
        if passed == ChunkVerdict::Changed {
            assert_eq!(state.text(), text);
        }
    }

    #[test]
    fn chunks_of_vllm() {
        let mut state = StreamState::new(rules(false));
        check(
            &mut state,
            r#"{"id":"a","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"prompt_token_ids":null}"#,
            ChunkVerdict::Changed,
            r#"{"id":"a","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#,
        );
        check(
            &mut state,
            r#"{"id":"a","choices":[{"index":0,"delta":{"reasoning":"x","reasoning_content":"x"}}]}"#,
            ChunkVerdict::Changed,
            r#"{"id":"a","choices":[{"index":0,"delta":{"reasoning_content":"x"}}]}"#,
        );
        check(
            &mut state,
            r#"{"id":"a","choices":[{"index":0,"delta":{"content":"x"}}]}"#,
            ChunkVerdict::Untouched,
            "",
        );
        assert!(!state.is_finished());
        check(
            &mut state,
            r#"{"id":"a","choices":[{"index":0,"delta":{},"finish_reason":"abort"}]}"#,
            ChunkVerdict::Changed,
            r#"{"id":"a","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#,
        );
        assert!(state.is_finished());
        let usage = r#"{"id":"a","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}"#;
        check(&mut state, usage, ChunkVerdict::Withheld, "");
        assert_eq!(state.usage().map(|usage| usage.total_tokens()), Some(7));
        check(&mut StreamState::new(rules(true)), usage, ChunkVerdict::Untouched, "");
        assert!(state.judge_chunk("{broken").is_err());
    }

    /// A chunk with this delta, as vLLM writes it.
    fn chunk(delta: &str, finish_reason: &str) -> String {
        format!(
            r#"{{"id":"a","choices":[{{"index":0,"delta":{delta},"finish_reason":{finish_reason},"token_ids":null}}],"prompt_text":null}}"#
        )
    }

    /// Each chunk as judged after the one before it, and as judged by itself, must be the same.
    fn check_alike(rules: &ChunkRules, chunks: &[String]) -> usize {
        let (mut state, mut by_itself) = (StreamState::new(rules.clone()), StreamState::new(rules.clone()));
        let mut alike = 0;
        for payload in chunks {
            alike += usize::from(state.last_said.find_changed_text(payload).is_some());
            by_itself.last_said = LastSaid::default();
            let passed = state.judge_chunk(payload);
            assert_eq!(passed, by_itself.judge_chunk(payload), "{payload}");
            if passed == Ok(ChunkVerdict::Changed) {
                assert_eq!(state.text(), by_itself.text(), "{payload}");
            }
            let facts = |state: &StreamState| {
                (state.has_spoken(), state.is_finished(), state.usage(), state.heartbeat())
            };
            assert_eq!(facts(&state), facts(&by_itself), "{payload}");
        }
        alike
    }

    #[test]
    fn a_chunk_like_the_one_before_is_judged_alike() {
        let texts = [
            "\"a\"",
            "\"longer\"",
            r#""\" \\""#,
            "\"\"",
            "\"b\"",
            "null",
            "[]",
            "\"c\" ",
            "\"d\" \"e\"",
            "\"f\"",
            "\"g\",\"x\":1",
        ];
        for rules in [rules(false), ChunkRules { reasoning: None, ..rules(true) }] {
            for key in ["content", "reasoning", "reasoning_content", "refusal"] {
                let delta = |text: &str| chunk(&format!(r#"{{"role":"assistant","{key}":{text}}}"#), "null");
                let mut chunks: Vec<String> = texts.iter().map(|text| delta(text)).collect();
                chunks.push(chunk(&format!(r#"{{"{key}":"x"}}"#), "\"stop\""));
                chunks.push(chunk(&format!(r#"{{"{key}":"y"}}"#), "\"stop\""));
                chunks.extend(["{\"choices\":[]}".to_owned(), delta("\"z\"")]);
                check_alike(&rules, &chunks);
            }
        }
        let words: Vec<String> =
            (0..9).map(|at| chunk(&format!(r#"{{"content":"{}"}}"#, "w".repeat(at)), "null")).collect();
        assert_eq!(
            check_alike(&rules(false), &words),
            7,
            "all but the first two: one says nothing, one is the first"
        );
    }

    #[test]
    fn the_next_chunk_has_the_sent_head() {
        let mut state = StreamState::new(rules(false));
        let said = |text: &str| chunk(&format!(r#"{{"content":"{text}"}}"#), "null");
        state.judge_chunk(&said("a")).unwrap();
        state.set_sent_head("mine", 5, "m");
        assert_eq!(state.judge_chunk(&said("b")), Ok(ChunkVerdict::Changed));
        assert!(state.text().contains(r#""id":"mine""#), "{}", state.text());
    }

    #[test]
    fn usage_includes_earlier_attempts() {
        let spent = Usage { prompt: 3, completion: 9, ..Usage::default() };
        let mut state = StreamState::new(rules(true)).replacement(spent, None);
        check(
            &mut state,
            r#"{"id":"a","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}"#,
            ChunkVerdict::Changed,
            r#"{"id":"a","choices":[],"usage":{"prompt_tokens":6,"completion_tokens":13,"total_tokens":19}}"#,
        );
        assert_eq!(
            state.usage().map(|usage| usage.total_tokens()),
            Some(7),
            "the log counts attempts one by one"
        );
    }

    #[test]
    fn after_respools_own_head_the_upstreams_is_replaced() {
        let mut state = StreamState::new(rules(false));
        assert_eq!(state.heartbeat(), None);
        state.set_sent_head("mine", 5, "m");
        check(
            &mut state,
            r#"{"id":"a","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}"#,
            ChunkVerdict::Withheld,
            "",
        );
        check(
            &mut state,
            r#"{"id":"a","created":6,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"hi"}}]}"#,
            ChunkVerdict::Changed,
            r#"{"id":"mine","created":5,"model":"m","choices":[{"index":0,"delta":{"content":"hi"}}]}"#,
        );
        assert!(state.heartbeat().unwrap().contains(r#""id":"mine""#));
    }

    #[test]
    fn reasoning_may_be_dropped_and_fields_kept() {
        let mut state = StreamState::new(ChunkRules {
            reasoning: None,
            keep: vec!["stop_reason".into()],
            ..rules(false)
        });
        for (reasoning, has_reasoned) in [(r#""\n ""#, false), (r#""x""#, true)] {
            let chunk = format!(r#"{{"choices":[{{"index":0,"delta":{{"reasoning":{reasoning}}}}}]}}"#);
            check(&mut state, &chunk, ChunkVerdict::Withheld, "");
            assert_eq!(state.has_reasoned(), has_reasoned, "{chunk}");
        }
        check(
            &mut state,
            r#"{"choices":[{"index":0,"delta":{"content":"x"},"stop_reason":7}]}"#,
            ChunkVerdict::Untouched,
            "",
        );
    }
}
