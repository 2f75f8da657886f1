//! Walks over a growing text once, finds where a dialect may begin, and lets the dialects read on from there.
//!
//! Holds back only what may still become a call (or the space before one), and releases it when that is disproved. Every
//! decision depends on the text and on offsets in it, never on how it was split. Work is linear: a mark that comes to
//! nothing is passed over byte by byte only while there is credit for it. Used by the engine, once per field.

use memchr::memchr3;

use super::dialects::{Dialect, Found, MarkAt, Opens, Step, View, Wait, earliest};
use super::json_span::{JsonSpan, Span, Style};
use super::ledger::Ledger;
use super::openers::{OPENERS, Opener, PREFIXES, may_begin};
use super::settle::{Settled, settle};
use super::tools::Tools;
use super::{Field, Options};
use crate::turn::{Dropped, Note};

/// So many bytes before a mark are shown to the dialects.
pub(crate) const BEHIND: usize = 256;
/// So much of a candidate is shown to the dialects; what is longer is text: no argument is that big.
const MAX_HELD: usize = 24 << 20;
/// A longer run of space is content, even before a call.
const MAX_SPACE: usize = 1024;
/// Within so many bytes looking is quicker than searching.
const NEAR: usize = 16;
/// So far triggers are searched at a time.
const WINDOW: usize = 256;
/// So much of a mark at the end of a cut reply is the beginning of a call.
const CUT_MARK: usize = 6;
/// So many bytes of one candidate may be read again, besides a multiple of its length.
const REREAD: usize = 64 << 10;
/// A longer line closes no fence, if it is not decided by then.
const MAX_CLOSING: usize = 256;
/// Of a longer run of backticks the rest counts as another one.
const MAX_RUN: usize = 64;
/// In place of a backtick run's length: the line is quoted and holds no calls.
const QUOTED_LINE: usize = usize::MAX;
/// Marks in running text that begin with a letter; they are found by their `=`.
const LATE: [&str; 8] = [
    "assistantcommentary to=",
    "assistantanalysis to=",
    "assistant to=",
    "commentary to=",
    "analysis to=",
    "assistant commentary to=",
    "to=functions.",
    "final to=",
];

/// Where text goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// To the content; calls may begin.
    Content,
    /// To the reasoning, until one of the first marks; the second ones among them begin what comes next.
    Reasoning(&'static [&'static str], &'static [&'static str]),
    /// To the content, until a line that closes the fence: this character, at least this often.
    Fence(u8, usize),
}

/// What the scanner needs of the engine.
#[derive(Debug)]
pub(crate) struct Io<'a> {
    pub(crate) tools: &'a Tools,
    pub(crate) options: Options,
    pub(crate) ledger: &'a mut Ledger,
}

/// A candidate: a dialect may begin at `at`.
#[derive(Debug)]
struct Open {
    at: usize,
    /// Where scanning goes on if it comes to nothing.
    resume: usize,
    line_start: bool,
    /// The place in the list of openers.
    opener: usize,
    waits: Option<Waiting>,
    /// So many bytes were read by dialects that then asked for more.
    read: usize,
    /// Dialects are not asked again before the text is this long.
    until: usize,
}

impl Open {
    fn new(at: usize, resume: usize, line_start: bool) -> Self {
        Self { at, resume, line_start, opener: 0, waits: None, read: 0, until: 0 }
    }

    /// A dialect that reads `length` bytes from their beginning every time it is woken must not be woken too often: once
    /// its credit is used up, the text has to grow by an eighth first.
    fn charge(&mut self, length: usize) {
        self.read += length;
        if self.read > REREAD + 8 * length {
            self.until = MAX_HELD.min(length + length / 8);
        }
    }
}

#[derive(Debug)]
enum Waiting {
    Any,
    Value(Box<JsonSpan>),
    Mark(usize, &'static [&'static str]),
}

/// Calls (or what looked like them) that leave only if nothing but calls follows.
#[derive(Debug)]
struct Held {
    dialect: &'static Dialect,
    calls: Vec<(super::calls::RawCall, Settled)>,
    source: (usize, usize),
}

/// One field's text.
#[derive(Debug)]
pub(crate) struct Scanner {
    buffer: String,
    /// Bytes that have left the buffer.
    gone: usize,
    /// The first byte of the buffer that has not left.
    head: usize,
    scan: usize,
    /// From `head` up to here there is only space.
    white: usize,
    lane: Lane,
    /// The length of the backtick run that opened an inline code span on this line.
    code: Option<usize>,
    fresh: bool,
    after_call: bool,
    long_space: bool,
    blank: bool,
    open: Option<Open>,
    held: Vec<Held>,
    examples: bool,
    rescanned: usize,
    eof: bool,
    cut: bool,
    /// Text that is searched for calls only: nothing in it is firm.
    reasoning: bool,
    /// A mark that tells that half-stripped harmony text follows has been seen.
    last_note: Option<&'static str>,
}

/// The first byte at which something may begin. The nearest bytes are looked at one by one; then it is searched window by
/// window, so that what one search passes over the other does not pass over again and again.
fn trigger(bytes: &[u8]) -> Option<usize> {
    let (near, far) = bytes.split_at(bytes.len().min(NEAR));
    let starts = |byte: &u8| matches!(byte, b'`' | b'\n' | b'=' | b'<' | b'[' | b'{');
    near.iter().position(starts).or_else(|| far_trigger(far).map(|at| near.len() + at))
}

fn far_trigger(bytes: &[u8]) -> Option<usize> {
    for (index, window) in bytes.chunks(WINDOW).enumerate() {
        let near = memchr3(b'`', b'\n', b'=', window);
        if let Some(at) = memchr3(b'<', b'[', b'{', &window[..near.unwrap_or(window.len())]).or(near) {
            return Some(index * WINDOW + at);
        }
    }
    None
}

impl Scanner {
    /// A scanner for content, or, for `reasoning`, one that looks for calls and emits nothing else.
    pub(crate) fn new(reasoning: bool) -> Self {
        Self {
            buffer: String::new(),
            gone: 0,
            head: 0,
            scan: 0,
            white: 0,
            lane: Lane::Content,
            code: None,
            fresh: true,
            after_call: false,
            long_space: false,
            blank: true,
            open: None,
            held: Vec::new(),
            examples: false,
            rescanned: 0,
            eof: false,
            cut: false,
            reasoning,
            last_note: None,
        }
    }

    /// Takes the next piece.
    pub(crate) fn push(&mut self, delta: &str, io: &mut Io<'_>) {
        self.buffer.push_str(delta);
        self.run(io);
    }

    /// Settles everything.
    pub(crate) fn finish(&mut self, cut: bool, io: &mut Io<'_>) {
        self.eof = true;
        self.cut = cut;
        self.run(io);
        self.accept_held(false, io);
        self.release_up_to(self.buffer.len(), true, io);
    }

    fn run(&mut self, io: &mut Io<'_>) {
        while self.step(io) {}
        let certain = self.certain();
        self.release(certain, io);
        self.forget();
    }

    /// One step; false when more text is needed.
    fn step(&mut self, io: &mut Io<'_>) -> bool {
        match self.lane {
            Lane::Reasoning(closers, kept) => self.reasoning_step(closers, kept, io),
            Lane::Fence(char, length) => self.fence_step(char, length),
            Lane::Content => match self.open.take() {
                Some(open) => self.attempt(open, io),
                None if self.fresh => self.line_start(io),
                None => self.next_trigger(io),
            },
        }
    }

    /// Everything before this offset is certain to be text.
    fn certain(&self) -> usize {
        if !self.held.is_empty() {
            return self.head;
        }
        let end = self.open.as_ref().map_or(self.scan, |open| open.at);
        if self.lane == Lane::Content && self.open.is_none() && !self.eof {
            self.before_late_mark(end)
        } else {
            end
        }
    }

    /// A suffix that may become a mark which begins with a letter is not certain.
    fn before_late_mark(&self, end: usize) -> usize {
        let tail = &self.buffer.as_bytes()[self.head.max(end.saturating_sub(32))..end];
        let partial = |length: &usize| {
            let suffix = &tail[tail.len() - length..];
            b"actf".contains(&suffix[0]) && LATE.iter().any(|mark| mark.as_bytes().starts_with(suffix))
        };
        let held = (1..=tail.len().min(24)).rev().find(partial).unwrap_or(0);
        end - held
    }

    /// Emits text up to `end`, holding back the space at its end, which a call would swallow.
    fn release(&mut self, end: usize, io: &mut Io<'_>) {
        self.release_up_to(end, false, io);
    }

    fn release_up_to(&mut self, end: usize, last: bool, io: &mut Io<'_>) {
        if end <= self.head {
            return;
        }
        let blank = self.is_space_up_to(end);
        let text = &self.buffer[self.head..end];
        let visible = if blank { 0 } else { text.trim_end().len() };
        if self.after_call && visible == 0 {
            if last {
                self.head = end;
            }
            return;
        }
        let space = text.len() - visible;
        let keeps = last || self.long_space && visible == 0 || space > MAX_SPACE;
        let length = if keeps { text.len() } else { visible };
        let start = if self.after_call && self.blank { text.len() - text.trim_start().len() } else { 0 };
        if length > start {
            let text = &text[start..length];
            if !self.reasoning {
                io.ledger.text(Field::Content, text);
            }
            self.blank &= visible == 0;
            self.after_call = false;
            self.long_space = space > MAX_SPACE || self.long_space && visible == 0;
            self.head += length;
            self.white = end;
        }
    }

    /// Whether only space stands between `head` and `end`. No byte of it is looked at twice.
    fn is_space_up_to(&mut self, end: usize) -> bool {
        let from = self.white.max(self.head);
        if from < end {
            let rest = &self.buffer[from..end];
            self.white = end - rest.trim_start().len();
        }
        self.white >= end || self.head >= end
    }

    /// Emits the text before a mark and passes over the mark. Space between the two is dropped.
    fn take(&mut self, at: usize, end: usize, io: &mut Io<'_>) {
        self.release(at, io);
        if self.long_space && at > self.head && !self.reasoning {
            io.ledger.text(Field::Content, &self.buffer[self.head..at]);
        }
        self.long_space = false;
        self.head = end;
        self.scan = end;
        self.after_call = true;
        self.fresh = true;
        self.code = None;
    }

    fn forget(&mut self) {
        let keep = self.head.min(self.scan).saturating_sub(BEHIND);
        if keep < 4096 {
            return;
        }
        let keep = self.buffer.floor_char_boundary(keep);
        self.buffer.drain(..keep);
        self.gone += keep;
        self.head -= keep;
        self.scan -= keep;
        self.white = self.white.saturating_sub(keep);
        if let Some(open) = &mut self.open {
            open.at -= keep;
            open.resume -= keep;
        }
        for held in &mut self.held {
            held.source = (held.source.0 - keep, held.source.1 - keep);
        }
    }
}

/// Finding candidates.
impl Scanner {
    fn line_start(&mut self, io: &mut Io<'_>) -> bool {
        let rest = &self.buffer[self.scan..];
        let at = self.scan + rest.len() - rest.trim_start().len();
        self.scan = at;
        let rest = &self.buffer.as_bytes()[at..];
        let Some(&first) = rest.first() else { return false };
        if (first == b'`' || first == b'~')
            && rest.len() < 3
            && rest.iter().all(|byte| *byte == first)
            && !self.eof
        {
            return false;
        }
        self.fresh = false;
        if first == b'>' {
            self.release_held(at, io);
            self.code = Some(QUOTED_LINE);
            return true;
        }
        let resume = at + usize::from(first.is_ascii());
        self.attempt(Open::new(at, resume.max(at), true), io)
    }

    fn next_trigger(&mut self, io: &mut Io<'_>) -> bool {
        let bytes = &self.buffer.as_bytes()[self.scan..];
        let Some(found) = trigger(bytes) else {
            self.scan = self.buffer.len();
            return false;
        };
        let at = self.scan + found;
        self.scan = at + 1;
        match bytes[found] {
            b'\n' => {
                self.code = None;
                self.fresh = true;
                true
            }
            b'`' => self.backticks(at),
            b'=' => self.late_mark(at, io),
            _ if self.code.is_some() => true,
            first if !may_begin(first, &bytes[found..]) => true,
            _ => self.attempt(Open::new(at, at + 1, false), io),
        }
    }

    /// A run of backticks opens or closes an inline code span.
    fn backticks(&mut self, at: usize) -> bool {
        let rest = &self.buffer.as_bytes()[at..];
        let length = rest.iter().take(MAX_RUN).take_while(|byte| **byte == b'`').count();
        if length == rest.len() && length < MAX_RUN && !self.eof {
            self.scan = at;
            return false;
        }
        self.scan = at + length;
        self.code = match self.code {
            None => Some(length),
            Some(opened) if opened == length => None,
            code => code,
        };
        true
    }

    fn late_mark(&mut self, at: usize, io: &mut Io<'_>) -> bool {
        let before = &self.buffer[self.head..=at];
        if !before.ends_with("to=") {
            return true;
        }
        let marks = LATE.iter().map(|mark| mark.strip_suffix("functions.").unwrap_or(mark));
        match marks.filter(|mark| before.ends_with(mark)).map(str::len).max() {
            Some(length) if self.code.is_none() => {
                let at = at + 1 - length;
                self.attempt(Open::new(at, self.scan, false), io)
            }
            _ => true,
        }
    }

    fn fence_step(&mut self, char: u8, length: usize) -> bool {
        let bytes = self.buffer.as_bytes();
        let Some(found) = memchr::memchr(b'\n', &bytes[self.scan..]) else {
            self.scan = bytes.len();
            return false;
        };
        let newline = self.scan + found;
        let end = self.buffer.floor_char_boundary((newline + 1).saturating_add(MAX_CLOSING));
        let rest = self.buffer[newline + 1..end].trim_start_matches([' ', '\t']);
        let run = rest.bytes().take_while(|byte| *byte == char).count();
        let after = rest[run..].trim_start_matches([' ', '\t']);
        if after.is_empty() && end == self.buffer.len() && !self.eof {
            self.scan = newline;
            return false;
        }
        self.scan = newline + 1;
        if run >= length && (after.is_empty() || after.starts_with('\n')) {
            self.scan = end - after.len();
            self.lane = Lane::Content;
        }
        true
    }

    fn reasoning_step(&mut self, closers: &'static [&'static str], kept: &[&str], io: &mut Io<'_>) -> bool {
        let rest = &self.buffer[self.scan..];
        let found = earliest(rest, closers);
        let (end, mark) = match found {
            Some((at, length)) => (self.scan + at, Some(length)),
            None if self.eof => (self.buffer.len(), None),
            None => (self.buffer.len() - partial_suffix(rest, closers), None),
        };
        if !self.reasoning {
            io.ledger.text(Field::Reasoning, &self.buffer[self.scan..end]);
        }
        self.head = end;
        self.scan = end;
        let Some(length) = mark else { return false };
        self.lane = Lane::Content;
        let keeps = kept.contains(&&self.buffer[end..end + length]);
        let next = if keeps { end } else { end + length };
        self.take(end, next, io);
        true
    }
}

/// The length of the longest suffix that is a proper prefix of a mark.
fn partial_suffix(text: &str, marks: &[&str]) -> usize {
    let longest = marks.iter().map(|mark| mark.len()).max().unwrap_or(0);
    let bytes = text.as_bytes();
    let partial = |length: &usize| {
        let suffix = &bytes[bytes.len() - length..];
        marks.iter().any(|mark| mark.len() > *length && mark.as_bytes().starts_with(suffix))
    };
    (1..longest.min(bytes.len() + 1)).rev().find(partial).unwrap_or(0)
}

/// Trying candidates.
impl Scanner {
    /// Lets the dialects that may begin at `open.at` read, in order. False when one of them needs more text.
    fn attempt(&mut self, mut open: Open, io: &mut Io<'_>) -> bool {
        if !self.wakes(&mut open) {
            self.open = Some(open);
            return false;
        }
        let spaced = self.is_space_up_to(open.at);
        let text = &self.buffer.as_bytes()[open.at..];
        let openers = &OPENERS[usize::from(text[0])];
        for &index in PREFIXES[usize::from(text[0])].openers(text, open.opener) {
            let opener = &openers[index];
            open.opener = index;
            if !self.may_open(&open, opener, io) {
                continue;
            }
            match self.ask(&open, opener, spaced, io) {
                Step::Not(seen) => self.spend(&mut open, seen),
                Step::More(_) if self.buffer.len() - open.at >= MAX_HELD => {
                    open.resume = open.resume.max(self.buffer.floor_char_boundary(open.at + MAX_HELD));
                }
                Step::More(wait) => {
                    open.waits = Some(waiting(wait));
                    open.charge(self.buffer.len() - open.at);
                    self.open = Some(open);
                    return false;
                }
                Step::Read(found, length) => return self.found(found, &open, opener.dialect, length, io),
            }
        }
        self.nothing(&open, io);
        true
    }

    fn wakes(&self, open: &mut Open) -> bool {
        let text = &self.buffer[open.at..];
        if text.len() < open.until && !self.eof {
            return false;
        }
        let wakes = self.eof
            || text.len() >= MAX_HELD
            || match &mut open.waits {
                None | Some(Waiting::Any) => true,
                Some(Waiting::Value(span)) => span.advance(text, false) != Span::More,
                Some(Waiting::Mark(from, marks)) => {
                    let bytes = &text.as_bytes()[(*from).min(text.len())..];
                    let found =
                        marks.iter().any(|mark| memchr::memmem::find(bytes, mark.as_bytes()).is_some());
                    let longest = marks.iter().map(|mark| mark.len()).max().unwrap_or(0);
                    *from = (*from).max((text.len() + 1).saturating_sub(longest));
                    found
                }
            };
        if wakes {
            open.waits = None;
        }
        wakes
    }

    /// Whether the mark stands there, or as much of it as there is text.
    fn may_open(&self, open: &Open, opener: &Opener, io: &Io<'_>) -> bool {
        let bytes = &self.buffer.as_bytes()[open.at..];
        if opener.line && !open.line_start {
            return false;
        }
        opener.begins(bytes) && (!opener.mark.is_empty() || io.tools.may_begin_with(bytes[0]))
    }

    fn ask(&self, open: &Open, opener: &Opener, spaced: bool, io: &Io<'_>) -> Step {
        let text = &self.buffer[open.at..];
        let mut view = self.view(open, spaced, io);
        view.mark = match (opener.dialect.opens, view.mark_at(0, &[opener.mark])) {
            (Opens::Name, _) => 0,
            (_, MarkAt::Here(length)) => length,
            (_, MarkAt::Perhaps) => return Step::More(Wait::Any),
            (_, MarkAt::No) if self.cut && text.len() >= CUT_MARK && opener.mark.starts_with(text) => {
                return Step::Read(Found::Drop(String::new(), Dropped::Truncated), text.len());
            }
            (_, MarkAt::No) => return Step::Not(0),
        };
        debug_assert!(text.len() >= view.mark);
        (opener.dialect.read)(&view)
    }

    /// `spaced`: only space stands between what has left and the mark.
    fn view<'a>(&'a self, open: &Open, spaced: bool, io: &'a Io<'_>) -> View<'a> {
        let from = self.buffer.ceil_char_boundary(open.at.saturating_sub(BEHIND));
        let before = &self.buffer[from..open.at];
        let end = self.buffer.floor_char_boundary(open.at.saturating_add(MAX_HELD));
        let whole = end == self.buffer.len();
        View {
            text: &self.buffer[open.at..end],
            mark: 0,
            eof: self.eof && whole,
            cut: self.cut && whole,
            tools: io.tools,
            before: if self.gone == 0 && from == 0 { &self.buffer[..open.at] } else { before },
            line_start: open.line_start,
            first: self.blank && spaced && self.held.is_empty(),
            after_call: self.after_call && spaced,
            json_wanted: io.options.json_wanted || !io.options.calls_wanted,
            reasoning: self.reasoning,
            native: io.ledger.native(),
        }
    }

    /// A candidate that came to nothing costs what was read of it. When the credit is used up, what was read is passed
    /// over instead of being searched again.
    fn spend(&mut self, open: &mut Open, seen: usize) {
        self.rescanned += seen;
        if self.rescanned > 64 * 1024 + 4 * (self.gone + open.at) {
            open.resume = open.resume.max(self.buffer.ceil_char_boundary(open.at + seen));
        }
    }

    /// No dialect begins here: it is text, and so is what was held for want of it.
    fn nothing(&mut self, open: &Open, io: &mut Io<'_>) {
        let bytes = &self.buffer.as_bytes()[open.at..];
        let char = bytes[0];
        let fences = open.line_start && (char == b'`' || char == b'~');
        let run = bytes.iter().take(MAX_RUN).take_while(|byte| **byte == char);
        let fence = if fences { run.count() } else { 0 };
        self.release_held(open.at, io);
        self.scan = open.resume;
        if fence >= 3 {
            self.lane = Lane::Fence(char, fence);
            self.scan = open.at + fence;
        } else if open.line_start && b"`=".contains(&char) {
            self.scan = open.at;
        }
    }

    fn found(
        &mut self,
        found: Found,
        open: &Open,
        dialect: &'static Dialect,
        length: usize,
        io: &mut Io<'_>,
    ) -> bool {
        let end = open.at + length;
        match found {
            Found::Calls { calls, firm } => return self.calls(calls, firm, open, dialect, end, io),
            Found::Broken => self.hold(Held { dialect, calls: Vec::new(), source: (open.at, end) }, end),
            Found::Skip | Found::Lane(_) => {
                self.accept_held(false, io);
                self.take(open.at, end, io);
                if let Found::Lane(lane) = found {
                    self.lane = lane;
                }
            }
            Found::Drop(name, why) => {
                self.accept_held(false, io);
                self.take(open.at, end, io);
                if !self.reasoning {
                    io.ledger.dropped(&name, why);
                }
            }
        }
        true
    }

    fn hold(&mut self, held: Held, end: usize) {
        self.held.push(held);
        self.scan = end;
        self.fresh = true;
    }
}

/// Calls.
impl Scanner {
    fn calls(
        &mut self,
        calls: Vec<super::calls::RawCall>,
        firm: bool,
        open: &Open,
        dialect: &'static Dialect,
        end: usize,
        io: &mut Io<'_>,
    ) -> bool {
        let settled = |call: super::calls::RawCall| {
            let settled = settle(&call, io.tools);
            (call, settled)
        };
        let calls: Vec<_> = calls.into_iter().map(settled).collect();
        let refused = |why| calls.iter().all(|(_, settled)| *settled == Settled::Refused(why));
        if refused(Dropped::Undeclared) {
            let mut next =
                Open { opener: open.opener + 1, ..Open::new(open.at, open.resume, open.line_start) };
            self.spend(&mut next, end - open.at);
            return self.attempt(next, io);
        }
        let unreadable = calls.iter().all(|(_, settled)| {
            matches!(settled, Settled::Refused(Dropped::Unreadable | Dropped::Undeclared))
        });
        let held = Held { dialect, calls, source: (open.at, end) };
        if unreadable {
            self.hold(Held { calls: Vec::new(), ..held }, end);
        } else if firm && !self.reasoning {
            self.accept_held(true, io);
            self.take(open.at, end, io);
            self.send(held, io);
        } else if self.examples {
            self.nothing(open, io);
        } else {
            self.hold(held, end);
        }
        true
    }

    fn send(&mut self, held: Held, io: &mut Io<'_>) {
        let source = &self.buffer[held.source.0..held.source.1];
        if self.last_note != Some(held.dialect.name) {
            self.last_note = Some(held.dialect.name);
            io.ledger.note(Note::Dialect(held.dialect.name));
        }
        for (raw, settled) in held.calls {
            io.ledger.text_call(&raw, settled, source);
        }
    }

    /// Nothing but calls followed: what was held are calls. What could not be read among them is dropped; alone it is text.
    fn accept_held(&mut self, among_calls: bool, io: &mut Io<'_>) {
        let held = std::mem::take(&mut self.held);
        let Some(first) = held.first() else { return };
        let real =
            among_calls || held.iter().any(|held| !held.calls.is_empty()) || !io.ledger.is_without_calls();
        if !real && !self.reasoning {
            return;
        }
        let (start, end) = (first.source.0, held.last().map_or(0, |last| last.source.1));
        let (scan, fresh, code) = (self.scan, self.fresh, self.code);
        self.take(start, end, io);
        (self.scan, self.fresh, self.code) = (scan.max(end), fresh, code);
        for held in held {
            if held.calls.is_empty() {
                io.ledger.dropped("", Dropped::Unreadable);
            } else {
                self.send(held, io);
            }
        }
    }

    /// Text followed: what was held is text, and so is every later call that is not firm: they are examples.
    fn release_held(&mut self, at: usize, io: &mut Io<'_>) {
        if self.held.is_empty() {
            return;
        }
        self.examples |= self.held.iter().any(|held| !held.calls.is_empty());
        self.held.clear();
        self.release(at, io);
    }
}

fn waiting(wait: Wait) -> Waiting {
    match wait {
        Wait::Any => Waiting::Any,
        Wait::Json(from) => Waiting::Value(Box::new(JsonSpan::new(from, Style::Json))),
        Wait::Python(from) => Waiting::Value(Box::new(JsonSpan::new(from, Style::Python))),
        Wait::Mark(from, marks) => Waiting::Mark(from, marks),
    }
}
