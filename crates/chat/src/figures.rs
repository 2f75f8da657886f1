//! Formats counts, numbers and times, and measures the terminal.

use std::time::Duration;

/// Formats a count with its noun.
pub(super) fn format_count(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Formats a duration for people.
pub(super) fn format_seconds(duration: Duration) -> String {
    let seconds = duration.as_secs_f32();
    match seconds {
        ..10.0 => format!("{seconds:.1} s"),
        ..60.0 => format!("{seconds:.0} s"),
        _ => format!("{} min {} s", duration.as_secs() / 60, duration.as_secs() % 60),
    }
}

/// Formats a number with separated thousands.
pub(super) fn format_thousands(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|group| std::str::from_utf8(group).ok()).collect();
    groups.join(",")
}

/// Returns the columns of the terminal.
pub(super) fn terminal_columns() -> usize {
    let (columns, _) = termimad::terminal_size();
    usize::from(columns).max(20)
}
