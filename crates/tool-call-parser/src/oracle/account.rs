//! Where every byte of a text went: kept in its order, or space, or a dialect's own mark, or a call or a note
//! names it.

use std::sync::LazyLock;

use crate::Options;
use crate::dialects::{Opens, TABLE};
use crate::event::{Dropped, Event, Note};

/// Marks that close something, and words of harmony's headers without their tokens. (What opens stands in the
/// table.)
const CLOSERS: [&str; 29] = [
    "</think:opensource>",
    "begin_tool_requests:plamo|>",
    "end_tool_requests:plamo|>",
    "end_tool_request:plamo|>",
    "tag|>",
    "</mm:think>",
    "</invoke>",
    "function call<|role_sep|>",
    "tools<|sep|>",
    "response<|sep|>",
    "message<|sep|>",
    "think<|sep|>",
    "</thought>",
    "</reasoning>",
    "</seed:think>",
    "<channel|>",
    "◁/think▷",
    "<|start|>",
    "<|channel|>",
    "<|message|>",
    "<|call|>",
    "<|end|>",
    "<|return|>",
    "assistantfinal",
    "assistantcommentary",
    "assistantanalysis",
    "assistant to=",
    "analysis",
    "commentary",
];
/// A harmony header that is dropped as a whole is never longer.
const HEADER: usize = 340;

/// The least loss of a text: twice the number of pieces that are neither space nor marks, and one more once
/// the last of them is over.
type Loss = usize;
const NEVER: Loss = Loss::MAX;

/// Content and reasoning, in the order in which they left, are the text but for space, marks, and at most one
/// piece for each call that left and each note of one that did not. Nothing is there that the text does not
/// have.
pub(super) fn nothing_is_lost(text: &str, events: &[Event], options: Options) {
    let mut kept = String::new();
    let mut explained = 0;
    for event in events {
        match event {
            Event::Content(piece) | Event::Reasoning(piece) => kept.push_str(piece),
            // The text of such a call may be shown after all, at the end.
            Event::Note(Note::Dropped { why: Dropped::NotWanted, .. }) if !options.calls_wanted => return,
            Event::ToolCall(_) | Event::Note(Note::Dropped { .. }) => explained += 1,
            Event::Note(_) => {}
        }
    }
    let fits = text == kept || align(text.as_bytes(), kept.as_bytes(), explained);
    assert!(fits, "lost or invented: {text:?} became {events:?}");
}

/// Returns true if `kept` is `text` without at most `pieces` unexplained pieces.
fn align(text: &[u8], kept: &[u8], pieces: usize) -> bool {
    let Some(missing) = text.len().checked_sub(kept.len()) else { return false };
    // The least loss, by the place in the text and the number of bytes missing before it.
    let mut losses = vec![vec![NEVER; missing + 1]; text.len() + 1];
    losses[0][0] = 1;
    for at in 0..text.len() {
        let here = std::mem::take(&mut losses[at]);
        let skips = skips(&text[at..]);
        for (gone, loss) in here.into_iter().enumerate().filter(|(_, loss)| *loss != NEVER) {
            let mut reach = |length: usize, gone: usize, loss: Loss| {
                if let Some(known) = losses[at + length].get_mut(gone) {
                    *known = loss.min(*known);
                }
            };
            if kept.get(at - gone) == Some(&text[at]) {
                reach(1, gone, loss | 1);
            }
            skips.iter().for_each(|length| reach(*length, gone + length, loss));
            let dropped = if loss % 2 == 1 { loss + 1 } else { loss };
            if dropped / 2 <= pieces {
                reach(1, gone + 1, dropped);
            }
        }
    }
    losses[text.len()][missing] != NEVER
}

/// Returns the lengths of what may be dropped without a word at the start of `rest`.
fn skips(rest: &[u8]) -> Vec<usize> {
    let mut lengths: Vec<usize> =
        MARKS.iter().filter(|mark| rest.starts_with(mark.as_bytes())).map(|mark| mark.len()).collect();
    lengths.extend(space(rest));
    lengths.extend(header(rest));
    lengths
}

static MARKS: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    let opening = TABLE.iter().flat_map(|dialect| match dialect.opens {
        Opens::Anywhere(marks) | Opens::Line(marks) => marks,
        Opens::Name | Opens::Tag(_) => &[],
    });
    // A brace or a fence opens a dialect, but is not a mark by itself.
    opening.copied().chain(CLOSERS).filter(|mark| mark.len() > 3).collect()
});

fn space(rest: &[u8]) -> Option<usize> {
    let head = std::str::from_utf8(&rest[..rest.len().min(4)])
        .or_else(|error| std::str::from_utf8(&rest[..error.valid_up_to()]));
    head.ok()?.chars().next().filter(|char| char.is_whitespace()).map(char::len_utf8)
}

fn header(rest: &[u8]) -> Option<usize> {
    let opens = [&b"<|start|>"[..], b"<|channel|>", b"to="].iter().any(|mark| rest.starts_with(mark));
    let window = &rest[..rest.len().min(HEADER)];
    let find = |mark: &[u8]| memchr::memmem::find(window, mark);
    let message = find(b"<|message|>").map(|at| at + b"<|message|>".len());
    // Without that token, the arguments behind a recipient end it.
    let brace = find(b"{").filter(|at| find(b"to=").is_some_and(|to| to < *at));
    opens.then(|| brace.into_iter().chain(message).min()).flatten()
}
