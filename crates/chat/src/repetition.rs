//! Stops a reply that writes the same words for ever. It would end only at the most tokens of one reply.
//! Loops of calls are the agent's. Used by `session`.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio_util::sync::CancellationToken;

use agent::{Activity, FailureKind, ModelFailure, Observer};
use wire::ErrorCode;

/// How much text has to be a repetition.
const WINDOW: usize = 6 << 10;
/// How often it has to be the same words.
const LEAST_TIMES: usize = 20;
/// How much text comes between two looks.
const EVERY: usize = 512;

/// The model reads this in place of its reply.
pub(super) const NOTE: &str = "Your last reply wrote the same words again and again, and was stopped.";

/// Returns the failure of a turn that was stopped so.
pub(super) fn failure() -> ModelFailure {
    ModelFailure {
        kind: FailureKind::Final,
        status: 422,
        code: ErrorCode::NoAnswer.as_str().to_owned(),
        text: "the model wrote the same words again and again, so its reply was stopped".to_owned(),
        wait: None,
    }
}

/// The end of a reply.
#[derive(Debug, Default)]
struct ReplyTail {
    bytes: VecDeque<u8>,
    unseen: usize,
}

impl ReplyTail {
    /// Adds a piece, and returns true if the reply repeats itself by now.
    fn push(&mut self, piece: &str) -> bool {
        self.bytes.extend(piece.bytes());
        self.bytes.drain(..self.bytes.len().saturating_sub(WINDOW));
        self.unseen += piece.len();
        if self.unseen < EVERY || self.bytes.len() < WINDOW {
            return false;
        }
        self.unseen = 0;
        period(self.bytes.make_contiguous()) * LEAST_TIMES <= WINDOW
    }
}

/// Returns the length of the shortest piece that makes up the text when it is repeated. A text that repeats
/// nothing is one piece.
fn period(text: &[u8]) -> usize {
    // For each beginning of the text, the length of its longest end that is also its beginning.
    let mut borders = vec![0; text.len()];
    let mut length = 0;
    for at in 1..text.len() {
        while length > 0 && text[at] != text[length] {
            length = borders[length - 1];
        }
        if text[at] == text[length] {
            length += 1;
        }
        borders[at] = length;
    }
    text.len() - length
}

/// Returns an observer that also stops the turn when the model repeats itself, and whether it did.
pub(super) fn stopping_repetition(
    observer: Arc<Observer>,
    stop: CancellationToken,
) -> (Arc<Observer>, Arc<AtomicBool>) {
    let (tail, has_stopped) = (Mutex::<ReplyTail>::default(), Arc::new(AtomicBool::new(false)));
    let flag = Arc::clone(&has_stopped);
    let watching = move |activity: Activity<'_>| {
        let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
        match activity {
            Activity::ModelAsked(_) => *tail = ReplyTail::default(),
            Activity::Content(text) | Activity::Reasoning(text) if tail.push(text) => {
                flag.store(true, Ordering::Relaxed);
                stop.cancel();
            }
            _ => {}
        }
        drop(tail);
        observer(activity);
    };
    (Arc::new(watching), has_stopped)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repeats(text: &str, piece: usize) -> bool {
        let (mut tail, text) = (ReplyTail::default(), text.as_bytes());
        text.chunks(piece).any(|piece| tail.push(std::str::from_utf8(piece).unwrap()))
    }

    #[test]
    fn the_same_words_for_ever_are_a_repetition() {
        let sentence = "I will now check the file again. ";
        for piece in [1, 7, 4_000] {
            assert!(repeats(&sentence.repeat(300), piece), "{piece}");
            assert!(repeats(&format!("{}{}", "Well. ".repeat(50), "no ".repeat(3_000)), piece));
            assert!(!repeats(&sentence.repeat(100), piece), "it may end yet");
        }
        let counted: String =
            (0..400).flat_map(|number| [number.to_string(), format!(": {sentence}")]).collect();
        assert!(!repeats(&counted, 7), "each line is another one");
        let long = (0..60)
            .flat_map(|number| ["word".to_owned(), number.to_string(), " ".to_owned()])
            .collect::<String>();
        assert!(long.len() * LEAST_TIMES > WINDOW && !repeats(&long.repeat(30), 7), "a long piece");
    }

    #[test]
    fn the_turn_is_stopped_once() {
        let stop = CancellationToken::new();
        let (observer, has_stopped) = stopping_repetition(Arc::new(|_| {}), stop.clone());
        for _ in 0..100 {
            observer(Activity::Content("The end of one reply, which is the beginning of the next. "));
        }
        observer(Activity::ModelAsked(agent::CallPurpose::Iteration));
        for _ in 0..100 {
            observer(Activity::Content("The end of one reply, which is the beginning of the next. "));
        }
        assert!(!stop.is_cancelled(), "another reply begins anew");
        for _ in 0..100 {
            observer(Activity::Content("The end of one reply, which is the beginning of the next. "));
        }
        assert!(stop.is_cancelled() && has_stopped.load(Ordering::Relaxed));
    }
}
