//! The incremental parser: takes text and native calls as they come, and emits the parts that are certain.
//!
//! `parse` uses it for whole texts, callers use it directly for streams.

use std::sync::Arc;

use super::calls::{Args, RawCall};
use super::dialects::{Lane, fuzzy, glm, xml_arguments};
use super::echo::{EchoFilter, ReasoningTail, is_call_end, without_call_mark};
use super::ledger::Ledger;
use super::namesakes;
use super::repairs::Repair;
use super::scanner::{Io, Scanner};
use super::schema::Steps;
use super::settle::{Settled, settle_call};
use super::{End, Field, NativeCall, Options, Tools};
#[cfg(test)]
use super::{dialects, openers};
use crate::event::{Dropped, Event, Note};

/// Reads one choice of one reply, piece by piece.
///
/// It emits nothing that a later piece could change, and holds back only a suffix that may still become a
/// call. [`finish`](Self::finish) settles the rest, so any split of a text gives the same reply.
///
/// The methods append to a vector of [`Event`]s, or of any type that an [`Event`] can be turned into.
///
/// ```
/// use std::sync::Arc;
/// use tool_call_parser::{End, Engine, Event, Field, Options, Tools};
///
/// let tools = Tools::from_json(r#"[{"type": "function", "function": {"name": "now"}}]"#)?;
/// let mut engine = Engine::new(Arc::new(tools), Options::default());
/// let mut events: Vec<Event> = Vec::new();
/// for piece in ["One mo", "ment. <tool_", "call>{\"name\": \"now\", \"argum", "ents\": {}}</tool_call>"] {
///     engine.push(Field::Content, piece, &mut events);
/// }
/// engine.finish(End { cut: false }, &mut events);
/// assert_eq!(events[0], Event::Content("One mo".into()));
/// assert!(matches!(&events[3], Event::ToolCall(call) if call.name == "now"), "{events:?}");
/// # Ok::<(), tool_call_parser::ToolsError>(())
/// ```
#[derive(Debug)]
pub struct Engine {
    tools: Arc<Tools>,
    steps: Steps,
    options: Options,
    ledger: Ledger,
    content: Scanner,
    reasoning: EchoFilter,
    reasoning_tail: ReasoningTail,
    /// The last native call, if it may lack its end. It waits for the next call, or for the end of the reply.
    pending: Option<(RawCall, Settled)>,
}

impl Engine {
    /// Makes an engine for one choice of a reply to a request that declared `tools`.
    pub fn new(tools: Arc<Tools>, options: Options) -> Self {
        let reasoning = EchoFilter::default();
        Self {
            tools,
            steps: Steps::reply_budget(),
            options,
            ledger: Ledger::new(options),
            content: Scanner::new(false),
            reasoning,
            reasoning_tail: ReasoningTail::default(),
            pending: None,
        }
    }

    /// Makes an engine with its own table of dialects.
    #[cfg(test)]
    pub(crate) fn with_dialects(tools: Arc<Tools>, table: &[&'static dialects::Dialect]) -> Self {
        let openers = Box::leak(Box::new(openers::Openers::new(table)));
        Self { content: Scanner::with_openers(openers, false), ..Self::new(tools, Options::default()) }
    }

    /// Takes the next piece of text and appends the certain events to `out`.
    pub fn push<E: From<Event>>(&mut self, field: Field, delta: &str, out: &mut Vec<E>) {
        match field {
            Field::Reasoning => {
                // The server separates it.
                self.options.begins_in_reasoning = false;
                let reasoning = self.reasoning_tail.push(delta);
                self.reasoning.push(&reasoning, &mut self.ledger);
            }
            Field::Content => {
                self.release_reasoning();
                if std::mem::take(&mut self.options.begins_in_reasoning) {
                    self.content.lane = Lane::Beginning;
                }
                let mut io = Io {
                    tools: &self.tools,
                    steps: &self.steps,
                    options: self.options,
                    ledger: &mut self.ledger,
                };
                self.content.push(delta, &mut io);
            }
        }
        self.ledger.drain(out);
    }

    /// Takes one complete native call. For a whole reply, push native calls before the text, so that they win
    /// over a copy in the text; for a live one, push each as it completes.
    pub fn push_native<E: From<Event>>(&mut self, call: NativeCall, out: &mut Vec<E>) {
        let raw = match glm::read_call_in_name(&call.name) {
            Some((name, fields)) => RawCall { id: call.id, ..RawCall::from_fields(&name, fields) },
            None => RawCall { id: call.id, ..RawCall::from_text(&call.name, &call.arguments) },
        };
        self.release_reasoning();
        self.resolve_pending(false);
        let (raw, settled) = self.settle_native(raw);
        let settled = self.settle_namesake(&raw).unwrap_or(settled);
        self.ledger.expect_copies(&raw, &settled);
        if self.may_lack_its_end(&raw, &settled) {
            self.pending = Some((raw, settled));
        } else {
            self.ledger.take_native_call(&raw, settled);
        }
        self.ledger.drain(out);
    }

    /// Releases the reasoning: other text follows, so a call in it was only considered.
    fn release_reasoning(&mut self) {
        let tail = self.reasoning_tail.take_held();
        self.reasoning.push(&tail, &mut self.ledger);
    }

    /// Settles a native call, whose arguments may be XML that the server did not parse.
    fn settle_native(&self, raw: RawCall) -> (RawCall, Settled) {
        let Args::Text(text) = &raw.arguments else {
            let settled = settle_call(&raw, &self.tools, &self.steps);
            return (raw, settled);
        };
        let tool = self.tools.resolve(&raw.name).filter(|_| xml_arguments::begins_with_tag(text));
        let settled = match tool.map(|found| xml_arguments::read_call(found.tool, text)) {
            None => settle_call(&raw, &self.tools, &self.steps),
            Some(Some(call)) => settle_call(
                &RawCall { id: raw.id.clone(), name: raw.name.clone(), ..call },
                &self.tools,
                &self.steps,
            ),
            Some(None) => Settled::Refused(Dropped::Unreadable),
        };
        (raw, settled)
    }

    /// Settles the call of an undeclared tool as one of the declared tool that other assistants call so, if
    /// its arguments fit.
    fn settle_namesake(&self, raw: &RawCall) -> Option<Settled> {
        let unknown = self.tools.resolve(&raw.name).is_none();
        let name = unknown.then(|| namesakes::find_namesake(&self.tools, &raw.name)).flatten()?;
        let mut repairs = raw.repairs.clone();
        repairs.insert(Repair::Name);
        let call = RawCall { name: name.to_owned(), repairs, ..raw.clone() };
        let settled = settle_call(&call, &self.tools, &self.steps);
        matches!(&settled, Settled::Call(ready) if ready.call.problems.is_empty()).then_some(settled)
    }

    /// Returns true for a call that the token limit may have cut. The server then omits the end
    /// (`{"path":"a"`), or all arguments: vLLM 0.32 sends `{}`.
    fn may_lack_its_end(&self, raw: &RawCall, settled: &Settled) -> bool {
        let is_without_arguments = || {
            let empty =
                matches!(&raw.arguments, Args::Text(text) if matches!(text.trim(), "" | "{}" | "null"));
            empty && self.tools.resolve(&raw.name).is_some_and(|found| found.tool.takes_arguments())
        };
        match settled {
            Settled::Call(ready) if ready.repairs.contains(&Repair::Unclosed) => true,
            Settled::Call(..) | Settled::Refused(Dropped::MissingRequired) => is_without_arguments(),
            Settled::Refused(why) => *why == Dropped::Truncated,
        }
    }

    fn resolve_pending(&mut self, cut: bool) {
        match self.pending.take() {
            Some((raw, _)) if cut => self.ledger.note_dropped(&raw.name, Dropped::Truncated),
            Some((raw, Settled::Refused(Dropped::Truncated))) => {
                self.ledger.take_native_call(&raw, Settled::Refused(Dropped::Unclosed));
            }
            Some((raw, settled)) => self.ledger.take_native_call(&raw, settled),
            None => {}
        }
    }

    /// Settles the text that was held back. Nothing may be pushed afterwards.
    pub fn finish<E: From<Event>>(&mut self, end: End, out: &mut Vec<E>) {
        self.resolve_pending(end.cut);
        self.reasoning.finish(&mut self.ledger);
        let mut io =
            Io { tools: &self.tools, steps: &self.steps, options: self.options, ledger: &mut self.ledger };
        self.content.finish(end.cut, &mut io);
        self.search_reasoning(end);
        self.ledger.close_turn(end.cut);
        self.ledger.drain(out);
    }

    /// Searches the reasoning for a call, if the turn has neither text nor a call. Reasoning with which the
    /// reply began, and which has no end, was its answer.
    fn search_reasoning(&mut self, end: End) {
        let mut tail = self.reasoning_tail.take_held();
        let reasoning = self.ledger.take_reasoning() + &tail;
        let is_answer = self.content.in_beginning && !end.cut;
        if is_answer || self.options.calls_wanted && self.ledger.is_blank() {
            let mut io = Io {
                tools: &self.tools,
                steps: &self.steps,
                options: self.options,
                ledger: &mut self.ledger,
            };
            let mut scanner = Scanner::new(!is_answer);
            scanner.push(&reasoning, &mut io);
            scanner.finish(end.cut, &mut io);
            let calls = scanner.last_calls().filter(|calls| is_call_end(&reasoning[calls.end..]));
            if let Some(calls) = calls {
                let length = reasoning.len() - calls.start;
                tail.truncate(tail.len().saturating_sub(length));
                tail.truncate(without_call_mark(&tail).len());
            }
        }
        self.ledger.emit_text(Field::Reasoning, &tail);
        let guesses = self.options.fuzzy && self.options.calls_wanted && !end.cut;
        if guesses && self.ledger.is_without_calls() {
            self.guess_call(&reasoning);
        }
    }

    /// Tries the fuzzy dialect: a call that the text announces in plain words.
    fn guess_call(&mut self, reasoning: &str) {
        let spoken = self.ledger.take_spoken();
        let call = fuzzy::find_intention(reasoning, &self.tools)
            .or_else(|| fuzzy::find_intention(&spoken, &self.tools));
        if let Some(call) = call {
            self.ledger.add_note(Note::Dialect("fuzzy"));
            let settled = settle_call(&call, &self.tools, &self.steps);
            self.ledger.take_text_call(&call, settled, "");
        }
    }
}
