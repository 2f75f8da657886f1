//! Bars on one time line, one a row: the attempts of a request, the steps of a run. Pure.
//!
//! Each bar is an `<svg>` of its own, whose place and width are attributes: the page's policy allows no
//! styles in the text.

use std::time::Duration;

use maud::{Markup, html};

use super::format;

/// A row with its bar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bar {
    /// Its name.
    pub(super) label: String,
    /// How it ended.
    pub(super) text: String,
    /// Its beginning and its end, from the beginning of the time line.
    pub(super) span: (Duration, Duration),
    /// Its colour: a class of the style sheet.
    pub(super) kind: &'static str,
}

/// Writes the rows; `total` is the length of the time line.
pub(super) fn waterfall(caption: &str, bars: &[Bar], total: Duration) -> Markup {
    let whole = total.as_secs_f64().max(1e-6);
    let percent = |time: Duration| (time.as_secs_f64() / whole * 100.0).clamp(0.0, 100.0);
    html! {
        table class="waterfall" {
            caption class="unseen" { (caption) }
            thead class="unseen" { tr { th scope="col" { "Step" } th scope="col" { "Time line" } th scope="col" { "Took" } } }
            tbody {
                @for bar in bars {
                    @let (from, to) = (percent(bar.span.0), percent(bar.span.1));
                    tr {
                        th scope="row" { (bar.label) p class="cause" { (bar.text) } }
                        td class="line" { svg aria-hidden="true" focusable="false" {
                            rect class=(bar.kind) x={ (format!("{from:.2}")) "%" } width={ (format!("{:.2}", (to - from).max(0.4))) "%" } height="100%" rx="3" {}
                        } }
                        td class="number" { (format::format_duration(bar.span.1.saturating_sub(bar.span.0))) }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_lie_on_one_time_line() {
        let bar = |from, to| Bar {
            label: "<b>".into(),
            text: String::new(),
            span: (Duration::from_secs(from), Duration::from_secs(to)),
            kind: "good",
        };
        let shown =
            waterfall("Steps", &[bar(0, 1), bar(1, 4), bar(9, 9)], Duration::from_secs(4)).into_string();
        assert!(shown.contains("x=\"25.00%\" width=\"75.00%\""), "{shown}");
        assert!(shown.contains("x=\"100.00%\" width=\"0.40%\""), "what has no length is seen: {shown}");
        assert!(!shown.contains("<b>") && !shown.contains("style="), "{shown}");
        assert!(!waterfall("None", &[], Duration::ZERO).into_string().contains("NaN"));
    }
}
