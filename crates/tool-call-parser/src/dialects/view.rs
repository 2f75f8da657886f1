//! The parts of a dialect: its marks, its reader, and the part of the text that it sees.
//!
//! A dialect is one file with one [`Dialect`] value. Used by every dialect, the registry and the scanner.

use crate::calls::RawCall;
use crate::event::Dropped;
use crate::marks::find_earliest;
use crate::objects::Objects;
use crate::quotation;
use crate::schema::Steps;
use crate::space::is_ascii_non_space;
use crate::tools::Tools;

/// The number of bytes before a mark that the dialects see.
pub(crate) const BEHIND: usize = 256;

/// One way of writing calls.
#[derive(Debug)]
pub struct Dialect {
    /// Its name in notes and metrics.
    pub name: &'static str,
    /// The models that write it.
    pub models: &'static str,
    /// Parts of such models' names, without case and punctuation.
    pub families: &'static [&'static str],
    /// Its grammar, in a few lines.
    pub grammar: &'static str,
    /// An example; a call is of the tool `read{path}`.
    pub example: &'static str,
    pub(crate) opens: Opens,
    pub(crate) read: fn(&View<'_>) -> Step,
}

/// The marks that may begin a dialect, and their place.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Opens {
    /// Any of these marks, anywhere in running text.
    Anywhere(&'static [&'static str]),
    /// Any of these marks, as the first thing on a line.
    Line(&'static [&'static str]),
    /// A callable tool's own name as the first thing on a line, followed by a bracket.
    Name,
    /// A tag in angle brackets that has this form.
    Tag(TagForm),
}

impl Opens {
    /// Returns the marks.
    pub(crate) fn marks(self) -> &'static [&'static str] {
        match self {
            Self::Anywhere(marks) | Self::Line(marks) => marks,
            Self::Name | Self::Tag(_) => &[],
        }
    }
}

/// The form of an opening tag whose name no table can list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TagForm {
    /// `<NAMESPACE:invoke name=` or `<NAMESPACE:function_calls>`, anywhere.
    Namespaced,
    /// `<NAME>`, as the first thing on a line.
    Name,
}

impl TagForm {
    /// The names of tags that count after a namespace.
    pub(crate) const LOCAL: [&'static str; 2] = ["invoke name=", "function_calls>"];
    /// The longest namespace.
    const NAMESPACE: usize = 24;
    /// The longest name.
    const NAME: usize = 128;

    /// Returns true if the text begins with a tag of this form, or is a part of one.
    pub(crate) fn may_begin(self, text: &[u8]) -> bool {
        let Some((b'<', name)) = text.split_first() else { return false };
        if name.first().is_some_and(|first| !first.is_ascii_alphabetic()) {
            return false;
        }
        let is_part = |byte: &&u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
        let length = name.iter().take(Self::NAME + 1).take_while(is_part).count();
        match (self, name.get(length)) {
            (Self::Name, next) => length <= Self::NAME && next.is_none_or(|next| *next == b'>'),
            (Self::Namespaced, None) => length <= Self::NAMESPACE,
            (Self::Namespaced, Some(b':')) if length <= Self::NAMESPACE => {
                let local = &name[length + 1..];
                let fits = |tag: &&str| tag.bytes().zip(local).all(|(one, other)| one == *other);
                Self::LOCAL.iter().any(fits)
            }
            (Self::Namespaced, Some(_)) => false,
        }
    }
}

/// The text from a mark on, with the surroundings that a dialect may know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    /// The text from the first byte of the mark to the end of the arrived text.
    pub(crate) text: &'a str,
    /// The length of the mark.
    pub(crate) mark: usize,
    /// True when no more text will come.
    pub(crate) eof: bool,
    /// True when the reply was cut there.
    pub(crate) cut: bool,
    /// The tools that may be called.
    pub(crate) tools: &'a Tools,
    /// The steps for checks against their schemas.
    pub(crate) steps: &'a Steps,
    /// At most [`crate::dialects::BEHIND`] bytes of text before the mark.
    pub(crate) before: &'a str,
    /// True when only spaces precede the mark on its line.
    pub(crate) line_start: bool,
    /// True when the answer has no text yet.
    pub(crate) first: bool,
    /// True when only space separates the mark from a call or token before it.
    pub(crate) after_call: bool,
    /// True when the client asked for JSON.
    pub(crate) json_wanted: bool,
    /// True for reasoning that is searched for calls because the turn has no answer.
    pub(crate) reasoning: bool,
    /// The arguments of the upstream's native calls.
    pub(crate) native: &'a Objects,
    /// True when text has come that is certainly reasoning.
    pub(crate) reasoned: bool,
}

/// The answer of a dialect to the arrived text. It may depend only on text up to its own offset.
#[derive(Debug)]
pub(crate) enum Step {
    /// The text is not of this dialect, as it shows at this offset.
    Not(usize),
    /// More text is needed. Never the answer at `eof`.
    More(Wait),
    /// The text is of this dialect, up to this offset.
    Read(Found, usize),
    /// Calls that count only if each of them may leave; otherwise the text is not of this dialect.
    ReadIfValid(Vec<RawCall>, bool, usize),
}

impl Step {
    /// Makes calls depend on the text after them: nothing but calls may follow.
    pub(crate) fn without_firmness(self) -> Self {
        match self {
            Self::Read(Found::Calls { calls, .. }, end) => {
                Self::Read(Found::Calls { calls, firm: false }, end)
            }
            step => step,
        }
    }
}

/// The destination of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// To the content, in which calls may begin.
    Content,
    /// To the reasoning, unless the text begins with an opening mark of reasoning.
    Beginning,
    /// To the reasoning, until one of the first marks. The second ones among them belong to the next part.
    Reasoning(&'static [&'static str], &'static [&'static str]),
    /// To the content without calls, until one of these marks. The second ones belong to the next part.
    Answer(&'static [&'static str], &'static [&'static str]),
    /// To the content, until a line closes the fence with at least this number of this character.
    Fence(u8, usize),
}

/// The time to ask again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// With the next text.
    Any,
    /// When the JSON-like value that starts at this offset has ended.
    Json(usize),
    /// When the Python expression that starts at this offset has ended.
    Python(usize),
    /// When one of these marks has appeared at or after this offset.
    Mark(usize, &'static [&'static str]),
}

/// The result of reading.
#[derive(Debug)]
pub(crate) enum Found {
    /// Calls. A firm one always counts; another only if nothing but calls follows.
    Calls {
        /// The calls.
        calls: Vec<RawCall>,
        /// True when they always count.
        firm: bool,
    },
    /// Marks without their own meaning.
    Skip,
    /// The text continues in another lane.
    Lane(Lane),
    /// A certain call that cannot leave.
    Drop(String, Dropped),
    /// The text before the mark was reasoning.
    EndOfReasoning,
    /// A call of this name that cannot leave. It is text unless there are other calls around it.
    Broken(String, Dropped),
}

impl View<'_> {
    /// Returns the text after the mark.
    pub(crate) fn body(&self) -> &str {
        &self.text[self.mark..]
    }

    /// Returns the offset of the first byte from `from` on that is not white space.
    pub(crate) fn skip_space(&self, from: usize) -> usize {
        if self.text.as_bytes().get(from).copied().is_some_and(is_ascii_non_space) {
            return from;
        }
        let rest = &self.text[from..];
        from + rest.len() - rest.trim_start().len()
    }

    /// Looks for one of `marks` exactly at `from`.
    pub(crate) fn mark_at(&self, from: usize, marks: &[&str]) -> MarkAt {
        let rest = &self.text[from..];
        if let Some(mark) = marks.iter().find(|mark| rest.starts_with(**mark)) {
            return MarkAt::Here(mark.len());
        }
        let partial = !self.eof && marks.iter().any(|mark| mark.starts_with(rest));
        if partial { MarkAt::Perhaps } else { MarkAt::No }
    }

    /// Returns the end of one of `closers` that follows `end` after at most a little space, or else `end`
    /// itself.
    pub(crate) fn find_closer(&self, end: usize, closers: &[&str]) -> Result<usize, Step> {
        let next = self.skip_space(end);
        if closers.is_empty() || next - end > 64 {
            return Ok(end);
        }
        match self.mark_at(next, closers) {
            MarkAt::Here(length) => Ok(next + length),
            MarkAt::Perhaps => Err(Step::More(Wait::Any)),
            MarkAt::No => Ok(end),
        }
    }

    /// Returns a call that cannot leave, up to its only end mark, or before the first of several marks.
    pub(crate) fn broken_until(
        &self,
        from: usize,
        marks: &'static [&'static str],
        name: &str,
        why: Dropped,
    ) -> Step {
        self.read_until(from, marks, Found::Broken(name.to_owned(), why))
    }

    /// Returns a certain call that cannot leave, up to its only end mark, or before the first of several
    /// marks.
    pub(crate) fn dropped_until(
        &self,
        from: usize,
        marks: &'static [&'static str],
        name: &str,
        why: Dropped,
    ) -> Step {
        self.read_until(from, marks, Found::Drop(name.to_owned(), why))
    }

    fn read_until(&self, from: usize, marks: &'static [&'static str], found: Found) -> Step {
        match find_earliest(&self.text[from..], marks) {
            Some((at, length)) => Step::Read(found, from + at + if marks.len() == 1 { length } else { 0 }),
            None if self.eof => Step::Read(found, self.text.len()),
            None => Step::More(Wait::Mark(from, marks)),
        }
    }

    /// Answers a text whose end has not come, from `from` on: "not this dialect" if it is longer than `most`
    /// bytes.
    pub(crate) fn await_end_within(&self, from: usize, most: usize) -> Step {
        if self.text.len() - from > most { Step::Not(from + most) } else { self.wait_or_reject(Wait::Any) }
    }

    /// Answers a text that is too short: "more" while text may still come, else "not this dialect".
    pub(crate) fn wait_or_reject(&self, wait: Wait) -> Step {
        if self.eof { Step::Not(self.text.len()) } else { Step::More(wait) }
    }

    /// Returns true when the text before speaks *about* a call rather than making one.
    pub(crate) fn is_quoted(&self) -> bool {
        quotation::announces_example(self.before)
    }
}

/// The answer of [`View::mark_at`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MarkAt {
    /// A mark of this length.
    Here(usize),
    /// The text ends within what may become one.
    Perhaps,
    /// There is no mark.
    No,
}
