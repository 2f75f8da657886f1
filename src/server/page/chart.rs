//! Bars by day as SVG, written on the server: no script and no library has to be loaded. A table beside it says the same in numbers.

use maud::{Markup, html};

/// One bar.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Bar {
    /// What it is about.
    pub(super) label: String,
    /// How high it is.
    pub(super) value: f64,
    /// Its value for people.
    pub(super) text: String,
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 160.0;
/// The height below the bars that their labels need.
const BELOW: f64 = 18.0;

/// A chart of bars.
pub(super) fn bars(title: &str, bars: &[Bar]) -> Markup {
    let highest = bars.iter().map(|bar| bar.value).fold(0.0, f64::max);
    let count = u32::try_from(bars.len().max(1)).unwrap_or(u32::MAX);
    let step = WIDTH / f64::from(count.max(7));
    let every = usize::try_from(count.div_ceil(8)).unwrap_or(1);
    let place = |index: usize| f64::from(u32::try_from(index).unwrap_or(u32::MAX)) * step;
    let height = |value: f64| {
        if highest > 0.0 {
            (value / highest * (HEIGHT - 8.0)).max(if value > 0.0 { 1.0 } else { 0.0 })
        } else {
            0.0
        }
    };
    let most = bars.iter().find(|bar| bar.value >= highest).map(|bar| bar.text.as_str()).unwrap_or_default();
    html! {
        figure class="chart" {
            figcaption { (title) @if highest > 0.0 { ", at most " (most) } }
            svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT + BELOW) } role="img" aria-label={ (title) "; the table below has the numbers" } {
                line class="axis" x1="0" x2=(WIDTH) y1=(HEIGHT) y2=(HEIGHT) {}
                @for (index, bar) in bars.iter().enumerate() {
                    rect class="bar" x=(rounded(place(index) + step * 0.12)) width=(rounded(step * 0.76)) rx="2"
                        y=(rounded(HEIGHT - height(bar.value))) height=(rounded(height(bar.value))) {
                        title { (bar.label) ": " (bar.text) }
                    }
                    @if index % every == 0 {
                        text class="label" text-anchor="middle" x=(rounded(place(index) + step / 2.0)) y=(HEIGHT + 14.0) { (bar.label) }
                    }
                }
            }
        }
    }
}

fn rounded(number: f64) -> String {
    format!("{number:.1}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_bar_fills_the_chart_and_text_is_escaped() {
        let bar = |label: &str, value| Bar { label: label.into(), value, text: value.to_string() };
        let svg = bars("Tokens", &[bar("<b>", 10.0), bar("11-22", 5.0), bar("none", 0.0)]).into_string();
        assert!(
            svg.contains("height=\"152.0\"")
                && svg.contains("height=\"76.0\"")
                && svg.contains("height=\"0.0\""),
            "{svg}"
        );
        assert!(svg.contains("&lt;b&gt;") && !svg.contains("<b>"));
        assert!(!bars("Tokens", &[]).into_string().contains("NaN"));
    }
}
