//! Bars over time as SVG, written on the server: no script has to be loaded. A table with each chart has the
//! same numbers.
//!
//! Colours and the size of the text come from `style.css`. The labels of the values stand on their lines,
//! left of the bars. Called by `usage`.

use maud::{Markup, html};

/// One bar.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Bar {
    /// Its label.
    pub(super) label: String,
    /// Its height.
    pub(super) value: f64,
}

const WIDTH: f64 = 720.0;
/// Where the first bar begins, to the right of the labels of the values.
const LEFT: f64 = 76.0;
/// The lowest and the highest place of a bar.
const BOTTOM: f64 = 170.0;
const TOP: f64 = 20.0;
/// The number of bars for which a chart is divided at least: a chart of a few days has narrow bars too.
const FEWEST: usize = 7;
/// At most this many bars have a label.
const LABELS: usize = 8;

/// Returns a bar chart; `say` formats a value.
pub(super) fn bar_chart(title: &str, bars: &[Bar], say: &dyn Fn(f64) -> String) -> Markup {
    let highest = bars.iter().map(|bar| bar.value).fold(0.0, f64::max);
    if highest <= 0.0 {
        return html! { figure class="chart" { figcaption { (title) ": none" } } };
    }
    let lines = grid_values(highest);
    let scale = lines.last().copied().unwrap_or(highest).max(highest);
    let y = |value: f64| BOTTOM - value / scale * (BOTTOM - TOP);
    #[expect(clippy::cast_precision_loss, reason = "a chart has some hundred bars")]
    let step = (WIDTH - LEFT) / bars.len().max(FEWEST) as f64;
    #[expect(clippy::cast_precision_loss, reason = "a chart has some hundred bars")]
    let x = |index: usize| LEFT + index as f64 * step;
    let every = bars.len().div_ceil(LABELS).max(1);
    html! {
        figure class="chart" {
            figcaption { (title) }
            svg viewBox="0 0 720 192" role="img" aria-label={ (title) "; the table below has the numbers" } {
                @for value in &lines {
                    line class="grid" x1="0" x2="720" y1=(place(y(*value))) y2=(place(y(*value))) {}
                }
                @for (index, bar) in bars.iter().enumerate() {
                    g {
                        title { (bar.label) ": " (say(bar.value)) }
                        rect class="room" x=(place(x(index))) y=(place(TOP)) width=(place(step)) height=(place(BOTTOM - TOP)) {}
                        rect class="bar" x=(place(x(index) + step * 0.1)) y=(place(y(bar.value))) width=(place(step * 0.8)) height=(place(BOTTOM - y(bar.value))) rx="2" {}
                    }
                    // The last bar, which is now, has a label.
                    @let from_end = bars.len() - 1 - index;
                    @if from_end.is_multiple_of(every) {
                        text class=[(!from_end.is_multiple_of(3 * every)).then_some("wide")] x=(place(x(index) + step / 2.0)) y="187" text-anchor="middle" { (bar.label) }
                    }
                }
                @for value in lines.iter().skip(1) { text x="0" y=(place(y(*value) - 4.0)) { (say(*value)) } }
            }
        }
    }
}

/// Returns the values of the lines across a chart: round numbers from zero to above the highest bar.
fn grid_values(highest: f64) -> Vec<f64> {
    let unit = 10_f64.powf((highest / 4.0).log10().floor());
    let step =
        [1.0, 2.0, 5.0, 10.0].map(|factor| factor * unit).into_iter().find(|step| step * 4.0 >= highest);
    let step = step.unwrap_or(highest);
    (0..=4).map(|line| f64::from(line) * step).take_while(|value| *value < highest + step).collect()
}

fn place(number: f64) -> String {
    format!("{number:.1}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(label: &str, value: f64) -> Bar {
        Bar { label: label.into(), value }
    }

    #[test]
    fn bars_show_values_and_escape_text() {
        let bars = [bar("<b>", 10.0), bar("11-22", 5.0), bar("none", 0.0)];
        let svg = bar_chart("Tokens <by> day", &bars, &|value| format!("{value:.1} <i>")).into_string();
        let heights: Vec<f64> = svg
            .split("<rect class=\"bar\"")
            .skip(1)
            .map(|rect| rect.split(" height=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap())
            .collect();
        assert_eq!(heights.len(), 3, "{svg}");
        assert!((heights[0] - 2.0 * heights[1]).abs() < 0.2 && heights[2] < 0.1, "{heights:?}");
        assert!(svg.contains("<title>&lt;b&gt;: 10.0 &lt;i&gt;</title>") && !svg.contains("<b>"), "{svg}");
        assert!(svg.contains("role=\"img\"") && svg.contains("aria-label=\"Tokens &lt;by&gt; day"), "{svg}");
        assert!(!svg.contains("style="), "the page's policy allows none: {svg}");
    }

    #[test]
    fn lines_are_round_numbers() {
        assert_eq!(grid_values(10.0), [0.0, 5.0, 10.0]);
        assert_eq!(grid_values(21_300.0), [0.0, 10_000.0, 20_000.0, 30_000.0]);
        let small = grid_values(0.000_3);
        assert!(small.len() <= 5 && small.last().is_some_and(|last| *last >= 0.000_3), "{small:?}");
    }

    #[test]
    fn any_number_of_days_can_be_drawn() {
        for count in [1, 2, 30, 366] {
            let days: Vec<Bar> = (0..count).map(|day| bar(&day.to_string(), 1.0)).collect();
            let svg = bar_chart("Cost", &days, &|value| value.to_string()).into_string();
            assert_eq!(svg.matches("class=\"bar\"").count(), count, "{svg}");
            assert!(!svg.contains("NaN"), "{svg}");
            assert!(svg.contains(&format!(">{}</text>", count - 1)), "the last one is now: {svg}");
        }
        for bars in [&[][..], &[bar("today", 0.0)]] {
            assert!(bar_chart("Cost", bars, &|value| value.to_string()).into_string().contains("Cost: none"));
        }
    }
}
