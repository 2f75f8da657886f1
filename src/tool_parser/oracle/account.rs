//! Where every byte of a text went: kept in its order, or space, or a dialect's own mark, or a call or a note tells of it.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use crate::tool_parser::Options;
use crate::tool_parser::dialects::{Opens, TABLE};
use crate::turn::{Dropped, Note, TurnEvent};

/// Marks that close something, and words of harmony's headers without their tokens. (What opens stands in the table.)
const CLOSERS: [&str; 17] = [
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

/// What one text has lost at the cheapest: how many pieces that are neither space nor marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Loss {
    pieces: usize,
    /// False while such a piece goes on.
    outside: bool,
}

/// Content and reasoning, in the order in which they left, are the text but for space, marks, and at most one piece for
/// each call that left and each note of one that did not. Nothing is there that the text does not have.
pub(super) fn nothing_is_lost(text: &str, events: &[TurnEvent], options: Options) {
    let mut kept = String::new();
    let mut explained = 0;
    for event in events {
        match event {
            TurnEvent::Content(piece) | TurnEvent::Reasoning(piece) => kept.push_str(piece),
            TurnEvent::ToolCall(_) => explained += 1,
            TurnEvent::Note(Note::Dropped { why: Dropped::NotWanted, .. }) if !options.calls_wanted => return,
            TurnEvent::Note(Note::Dropped { .. }) => explained += 1,
            _ => {}
        }
    }
    let fits = text == kept || align(text.as_bytes(), kept.as_bytes(), explained);
    assert!(fits, "lost or invented: {text:?} became {events:?}");
}

/// Whether `kept` is what is left of `text` after at most so many unexplained pieces.
fn align(text: &[u8], kept: &[u8], pieces: usize) -> bool {
    // By the place in the text, and for each by the place in what was kept: the least loss so far.
    let mut states: Vec<BTreeMap<usize, Loss>> = vec![BTreeMap::new(); text.len() + 1];
    states[0].insert(0, Loss { pieces: 0, outside: true });
    for at in 0..text.len() {
        let here = std::mem::take(&mut states[at]);
        let skips = if here.is_empty() { Vec::new() } else { skips(&text[at..]) };
        for (place, loss) in here {
            if kept.get(place) == Some(&text[at]) {
                reach(&mut states[at + 1], place + 1, Loss { outside: true, ..loss });
            }
            let mut skip = |length: usize, loss| {
                // What is left of the text must be enough for what is left of the kept.
                if kept.len() - place <= text.len() - at - length {
                    reach(&mut states[at + length], place, loss);
                }
            };
            skips.iter().for_each(|length| skip(*length, loss));
            let loss = Loss { pieces: loss.pieces + usize::from(loss.outside), outside: false };
            if loss.pieces <= pieces {
                skip(1, loss);
            }
        }
    }
    states[text.len()].contains_key(&kept.len())
}

fn reach(states: &mut BTreeMap<usize, Loss>, place: usize, loss: Loss) {
    let known = states.entry(place).or_insert(loss);
    *known = (*known).min(loss);
}

/// The lengths of what may be dropped without a word at the start of `rest`.
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
        Opens::Name => &[],
    });
    // A brace or a fence opens a dialect, but is no mark of its own.
    opening.copied().chain(CLOSERS).filter(|mark| mark.len() > 4).collect()
});

fn space(rest: &[u8]) -> Option<usize> {
    let head = std::str::from_utf8(&rest[..rest.len().min(4)])
        .or_else(|error| std::str::from_utf8(&rest[..error.valid_up_to()]));
    head.ok()?.chars().next().filter(|char| char.is_whitespace()).map(char::len_utf8)
}

fn header(rest: &[u8]) -> Option<usize> {
    let opens = rest.starts_with(b"<|start|>") || rest.starts_with(b"<|channel|>");
    let window = &rest[..rest.len().min(HEADER)];
    let message = b"<|message|>";
    opens.then(|| memchr::memmem::find(window, message).map(|at| at + message.len())).flatten()
}
