//! Keeps a transcript within the model's window: results are cut to their limits, older ones shrink, and when
//! that is not enough the oldest exchanges make room for a summary.
//!
//! Says what to do; `run` does it. Pure.

use std::ops::Range;

use super::transcript::{Entry, Exchange};

/// Above this share of the window older results shrink, in hundredths.
const SHRINK_ABOVE: u64 = 60;
/// Above this share the oldest exchanges are compacted, in hundredths.
const COMPACT_ABOVE: u64 = 80;
/// The size to which an older result shrinks, in bytes; half of it at each further try.
const SHRUNK: usize = 1_024;
/// Results are not cut below this.
const SMALLEST: usize = 128;

/// The step that must come before the next call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// Nothing.
    Fits,
    /// Older results shrink.
    Shrink,
    /// The oldest exchanges are compacted.
    Compact,
    /// It does not fit.
    TooLarge,
}

/// Judges a prompt of this many tokens. `room`: the part of the window that is left after the reply and the
/// reserve.
pub(super) fn judge_fit(prompt: u64, window: u64, room: u64) -> Fit {
    match prompt.saturating_mul(100) {
        _ if prompt > room => Fit::TooLarge,
        share if share > window.saturating_mul(COMPACT_ABOVE) => Fit::Compact,
        share if share > window.saturating_mul(SHRINK_ABOVE) => Fit::Shrink,
        _ => Fit::Fits,
    }
}

/// Returns a text of at most about `limit` bytes: its beginning, its end, and a note of what is missing
/// between. Also how many bytes are missing.
pub(super) fn head_and_tail(text: &str, limit: usize) -> (String, usize) {
    if text.len() <= limit {
        return (text.to_owned(), 0);
    }
    // A text that was cut before is cut at the same place, and its note names the size that it had.
    let (before, after, size) = find_note(text).unwrap_or((text, text, text.len()));
    let head = &before[..before.floor_char_boundary(limit * 2 / 3)];
    let tail = &after[after.ceil_char_boundary(after.len().saturating_sub(limit / 3))..];
    let missing = size.saturating_sub(head.len() + tail.len());
    (format!("{head}{NOTE_START}{missing} of {size}{NOTE_END}{tail}"), missing)
}

/// The note of what is missing, but for the numbers.
const NOTE_START: &str = "\n[… ";
const NOTE_END: &str = " bytes left out here …]\n";

/// Finds the note in a text that was cut: the text before and behind it, and the size of the whole.
fn find_note(text: &str) -> Option<(&str, &str, usize)> {
    let (rest, after) = text.rsplit_once(NOTE_END)?;
    let (before, numbers) = rest.rsplit_once(NOTE_START)?;
    let (_, size) = numbers.split_once(" of ")?;
    let size = size.parse().ok().filter(|size| *size > text.len())?;
    Some((before, after, size))
}

/// Shrinks the oldest result that can still shrink, at first not those of the last exchange; false when none
/// can.
pub(super) fn shrink_one(entries: &mut [Entry]) -> bool {
    let last = entries.iter().rposition(|entry| matches!(entry, Entry::Exchange(_))).unwrap_or(0);
    let mut limit = SHRUNK;
    while limit >= SMALLEST {
        let older = entries[..last].iter_mut();
        if older.into_iter().any(|entry| shrink_entry(entry, limit)) {
            return true;
        }
        limit /= 2;
    }
    false
}

/// Cuts the results of the last exchange by half; for when nothing older is left to cut.
pub(super) fn halve_last(entries: &mut [Entry]) -> bool {
    let Some(Entry::Exchange(exchange)) =
        entries.iter_mut().rfind(|entry| matches!(entry, Entry::Exchange(_)))
    else {
        return false;
    };
    let longest = exchange.results.iter().map(|result| result.text.len()).max().unwrap_or(0);
    longest > 2 * SMALLEST && shrink_exchange(exchange, longest / 2)
}

fn shrink_entry(entry: &mut Entry, limit: usize) -> bool {
    match entry {
        Entry::Exchange(exchange) => shrink_exchange(exchange, limit),
        _ => false,
    }
}

/// Room for the note of what is missing, so that a text that was cut is not cut again.
const NOTE: usize = 80;

fn shrink_exchange(exchange: &mut Exchange, limit: usize) -> bool {
    let mut shrunk = false;
    for result in exchange.results.iter_mut().filter(|result| result.text.len() > limit + NOTE) {
        result.text = head_and_tail(&result.text, limit).0;
        shrunk = true;
    }
    shrunk
}

/// Returns the entries that a summary may replace: the oldest exchanges in a row. The last exchange and the
/// person's last message always stay. `None` if no exchange is left to summarize.
pub(super) fn oldest_exchanges(entries: &[Entry]) -> Option<Range<usize>> {
    let is_exchange = |entry: &Entry| matches!(entry, Entry::Exchange(_));
    let last = entries.iter().rposition(is_exchange)?;
    let turn = entries.iter().rposition(|entry| matches!(entry, Entry::UserTurn(_)));
    let ours = |place: &usize| !matches!(entries[*place], Entry::ClientMessage(_)) && Some(*place) != turn;
    let first = entries[..last].iter().position(is_exchange)?;
    let start = first - (0..first).rev().take_while(ours).count();
    let end = first + (first..last).take_while(ours).count();
    Some(start..end)
}

/// Returns all that was before the person's last message and that a summary may replace, the last exchange
/// too, for when nothing else makes room. `None` without an exchange.
pub(super) fn earlier_turns(entries: &[Entry]) -> Option<Range<usize>> {
    let turn = entries.iter().rposition(|entry| matches!(entry, Entry::UserTurn(_)))?;
    let is_clients = |entry: &Entry| matches!(entry, Entry::ClientMessage(_));
    let start = entries[..turn].iter().rposition(is_clients).map_or(0, |place| place + 1);
    entries[start..turn].iter().any(|entry| matches!(entry, Entry::Exchange(_))).then_some(start..turn)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transcript::ToolResult;

    fn exchange(text: &str) -> Entry {
        let results = vec![ToolResult { id: "a".into(), ok: true, text: text.into() }];
        Entry::Exchange(Exchange { results, ..Exchange::default() })
    }

    fn lengths(entries: &[Entry]) -> Vec<usize> {
        let length = |entry: &Entry| match entry {
            Entry::Exchange(exchange) => Some(exchange.results[0].text.len()),
            _ => None,
        };
        entries.iter().filter_map(length).collect()
    }

    #[test]
    fn the_shares_of_the_window() {
        for (prompt, expected) in
            [(6_000, Fit::Fits), (6_001, Fit::Shrink), (8_001, Fit::Compact), (9_001, Fit::TooLarge)]
        {
            assert_eq!(judge_fit(prompt, 10_000, 9_000), expected, "{prompt}");
        }
        assert_eq!(judge_fit(7_000, 10_000, 6_500), Fit::TooLarge);
    }

    #[test]
    fn the_note_says_what_was_cut() {
        let text = format!("BEGIN{}END", "ä".repeat(5_000));
        let (cut, missing) = head_and_tail(&text, 300);
        assert!(cut.starts_with("BEGIN") && cut.ends_with("END"), "{cut}");
        assert!(cut.contains(&format!("{missing} of {} bytes left out", text.len())));
        assert!(cut.len() < 400 && missing > 9_000);
        assert_eq!(head_and_tail("short", 5), ("short".to_owned(), 0));
        let (again, missing) = head_and_tail(&cut, 100);
        assert!(again.contains(&format!("{missing} of {} bytes left out", text.len())), "{again}");
        assert_eq!(again.matches("left out").count(), 1, "{again}");
        assert!(again.starts_with("BEGIN") && again.ends_with("END") && again.len() < cut.len(), "{again}");
    }

    #[test]
    fn older_results_shrink_before_the_last_one() {
        let mut entries =
            vec![exchange(&"a".repeat(9_000)), exchange(&"b".repeat(9_000)), exchange(&"c".repeat(9_000))];
        assert!(shrink_one(&mut entries));
        let first = lengths(&entries);
        assert!(first[0] < 1_200 && first[1..] == [9_000, 9_000], "{first:?}");
        while shrink_one(&mut entries) {}
        let all = lengths(&entries);
        assert!(all[0] < 300 && all[1] < 300 && all[2] == 9_000, "{all:?}");
        assert!(halve_last(&mut entries) && lengths(&entries)[2] < 4_700);
        while halve_last(&mut entries) {}
        assert!(lengths(&entries)[2] < 400);
    }

    #[test]
    fn a_summary_stands_for_all_but_the_last_exchange() {
        let client_message = || Entry::ClientMessage(serde_json::json!({"role": "user", "content": "x"}));
        assert_eq!(oldest_exchanges(&[client_message(), exchange("a")]), None);
        let entries =
            [client_message(), exchange("a"), Entry::Note("n".into()), exchange("b"), exchange("c")];
        assert_eq!(oldest_exchanges(&entries), Some(1..4));
        assert_eq!(oldest_exchanges(&[client_message(), Entry::Summary("s".into()), exchange("c")]), None);
        let entries = [client_message(), exchange("a"), client_message(), exchange("b"), exchange("c")];
        assert_eq!(oldest_exchanges(&entries), Some(1..2));
    }

    #[test]
    fn at_last_all_earlier_turns_make_room() {
        let turn = || Entry::UserTurn(serde_json::json!({"role": "user", "content": "x"}));
        let first = Entry::ClientMessage(serde_json::json!({"role": "user", "content": "x"}));
        let check = |entries: &[Entry], expected: Option<Range<usize>>| {
            assert_eq!(earlier_turns(entries), expected);
        };
        check(&[first.clone(), exchange("a"), turn()], Some(1..2));
        check(&[first.clone(), Entry::Summary("s".into()), exchange("a"), turn(), exchange("b")], Some(1..3));
        check(&[first.clone(), Entry::Summary("s".into()), turn()], None);
        check(&[first, exchange("a")], None);
    }

    #[test]
    fn earlier_turns_are_summarised_together() {
        let turn = || Entry::UserTurn(serde_json::json!({"role": "user", "content": "x"}));
        let client_message = || Entry::ClientMessage(serde_json::json!({"role": "user", "content": "x"}));
        let mut entries = vec![
            client_message(),
            exchange("a"),
            turn(),
            exchange("b"),
            turn(),
            exchange("c"),
            exchange("d"),
        ];
        assert_eq!(oldest_exchanges(&entries), Some(1..4));
        entries.splice(1..4, [Entry::Summary("s".into())]);
        assert_eq!(oldest_exchanges(&entries), Some(3..4), "then those of this turn");
    }
}
