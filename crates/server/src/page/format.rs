//! Numbers, times and durations as people read them. Pure.

use std::time::Duration;

use maud::{Markup, html};

use usage::Money;

/// Formats a time, to the second.
pub(super) fn format_time(millis: u64) -> String {
    clock::format_time(millis).replace('T', " ").replace('Z', " UTC")
}

/// Formats a time in UTC in a list: without its day if that is today's.
pub(super) fn format_short_time(millis: u64, now: u64) -> String {
    let (text, today) = (format_time(millis), format_time(now));
    if text[..10] == today[..10] { text[11..19].to_owned() } else { text[5..16].to_owned() }
}

/// Formats a duration with two significant digits.
pub(super) fn format_duration(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    match seconds {
        0.0..1.0 => format!("{:.0} ms", seconds * 1_000.0),
        1.0..10.0 => format!("{seconds:.1} s"),
        10.0..120.0 => format!("{seconds:.0} s"),
        120.0..7_200.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3_600.0),
    }
}

/// Formats how long ago something was.
pub(super) fn format_age(then: u64, now: u64) -> String {
    format!("{} ago", format_duration(Duration::from_millis(now.saturating_sub(then))))
}

/// Formats a count with separated thousands.
pub(super) fn format_count(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    out
}

/// Formats a large count in short.
pub(super) fn format_short_count(count: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "it is rounded anyway")]
    let number = count as f64;
    match count {
        0..10_000 => self::format_count(count),
        10_000..1_000_000 => format!("{:.0} k", number / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} M", number / 1e6),
        _ => format!("{:.1} G", number / 1e9),
    }
}

/// A column of amounts, all of which have the same number of decimal places.
#[derive(Clone, Copy, Debug)]
pub(super) struct MoneyColumn {
    places: usize,
}

impl MoneyColumn {
    /// Chooses the places by the largest amount, so that two of its digits can be read.
    pub(super) fn new(amounts: impl Iterator<Item = Money>) -> Self {
        let largest = amounts.map(|amount| amount.units().abs()).fold(0.0, f64::max);
        let places = match largest {
            0.0 | 1.0.. => 2,
            0.01.. => 3,
            _ => 6,
        };
        Self { places }
    }

    pub(super) fn format(self, amount: Money) -> String {
        let least = 10_f64.powi(-i32::try_from(self.places).unwrap_or(0));
        match amount.units() {
            units if units > 0.0 && units < least / 2.0 => format!("< {least:.*}", self.places),
            units => format!("{units:.*}", self.places),
        }
    }
}

/// Shows the parts of a text between backticks as code.
pub(super) fn with_code(text: &str) -> Markup {
    let is_paired = text.matches('`').count().is_multiple_of(2);
    if !is_paired {
        return html! { (text) };
    }
    html! {
        @for (index, part) in text.split('`').enumerate() {
            @if index % 2 == 1 { code { (part) } } @else { (part) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backticks_become_code() {
        let check = |text: &str, expected: &str| assert_eq!(with_code(text).into_string(), expected);
        check("Set `a<b` or `c`.", "Set <code>a&lt;b</code> or <code>c</code>.");
        check("no code", "no code");
        check("one ` alone", "one ` alone");
    }

    #[test]
    fn amounts_of_a_column_are_aligned() {
        let shown = |amounts: &[f64]| {
            let amounts = amounts.iter().copied().map(Money::from_units);
            let column = MoneyColumn::new(amounts.clone());
            amounts.map(|amount| column.format(amount)).collect::<Vec<_>>()
        };
        assert_eq!(shown(&[12.5, 0.013]), ["12.50", "0.01"]);
        assert_eq!(shown(&[0.013, 0.000_029, 0.0]), ["0.013", "< 0.001", "0.000"]);
        assert_eq!(shown(&[0.000_029]), ["0.000029"]);
    }

    #[test]
    fn numbers_for_people() {
        let at = 1_795_223_698_123;
        assert_eq!(format_time(at), "2026-11-21 01:14:58 UTC");
        assert_eq!(format_short_time(at, at + 1), "01:14:58");
        assert_eq!(format_short_time(at, at + 86_400_000), "11-21 01:14");
        for (millis, expected) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (1_250, "1.2 s"),
            (61_000, "61 s"),
            (600_000, "10 min"),
            (9_000_000, "2.5 h"),
        ] {
            assert_eq!(format_duration(Duration::from_millis(millis)), expected);
        }
        for (number, expected, in_short) in [
            (0, "0", "0"),
            (1_234, "1\u{202f}234", "1\u{202f}234"),
            (1_234_567, "1\u{202f}234\u{202f}567", "1.2 M"),
        ] {
            assert_eq!(
                (format_count(number).as_str(), format_short_count(number).as_str()),
                (expected, in_short)
            );
        }
    }
}
