//! Bars by day as SVG, drawn on the server by `plotters`: no script has to be loaded. A table with each chart
//! has the same numbers.
//!
//! The library does not know the page's colours: it draws in three marker colours, which `style.css`
//! replaces for light and for dark. Its own `<svg>` is replaced by one that a screen reader can name and
//! that is as wide as its container. Called by `usage`.

use maud::{Markup, PreEscaped, html};
use plotters::coord::Shift;
use plotters::prelude::{
    ChartBuilder, Color as _, DrawingArea, DrawingAreaErrorKind, IntoDrawingArea as _, IntoFont as _,
    IntoSegmentedCoord as _, RGBColor, Rectangle, SVGBackend, SegmentValue,
};

/// One bar.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Bar {
    /// Its label.
    pub(super) label: String,
    /// Its height.
    pub(super) value: f64,
}

type Problem = DrawingAreaErrorKind<std::io::Error>;

const WIDTH: u32 = 720;
const HEIGHT: u32 = 190;
/// The room for the labels of the days, and of the values.
const BELOW: u32 = 24;
const LEFT: u32 = 64;
/// The number of bars for which a chart is divided at least: a chart of a few days has narrow bars too.
const FEWEST: usize = 7;
/// The marks that `style.css` replaces.
const BARS: RGBColor = RGBColor(0x1f, 0x5f, 0xa8);
const LINES: RGBColor = RGBColor(0xdf, 0xe2, 0xe5);
const WORDS: RGBColor = RGBColor(0x5c, 0x66, 0x70);

/// Returns a bar chart; `say` formats a value.
pub(super) fn bar_chart(title: &str, bars: &[Bar], say: &dyn Fn(f64) -> String) -> Markup {
    let highest = bars.iter().map(|bar| bar.value).fold(0.0, f64::max);
    if highest <= 0.0 {
        return html! { figure class="chart" { figcaption { (title) ": none" } } };
    }
    html! {
        figure class="chart" {
            figcaption { (title) ", at most " (say(highest)) }
            svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="img" aria-label={ (title) "; the table below has the numbers" } {
                (PreEscaped(draw_bars(bars, highest, say)))
            }
        }
    }
}

/// Returns the content of the `<svg>`. Drawing into a text does not fail; if it did, the chart would be
/// empty and the table would still be there.
fn draw_bars(bars: &[Bar], highest: f64, say: &dyn Fn(f64) -> String) -> String {
    let mut svg = String::new();
    let draw = draw_area(
        &SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area(),
        bars,
        highest,
        say,
    );
    let inside = svg.split_once('>').and_then(|(_, rest)| rest.rsplit_once("</svg>"));
    draw.ok().and(inside).map(|(inside, _)| inside.to_owned()).unwrap_or_default()
}

fn draw_area(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    bars: &[Bar],
    highest: f64,
    say: &dyn Fn(f64) -> String,
) -> Result<(), Problem> {
    let days = bars.len().max(FEWEST);
    let mut chart = ChartBuilder::on(area)
        .margin_top(8)
        .x_label_area_size(BELOW)
        .y_label_area_size(LEFT)
        .build_cartesian_2d((0..days - 1).into_segmented(), 0.0..highest)?;
    let label = |place: &SegmentValue<usize>| match place {
        SegmentValue::CenterOf(day) => bars.get(*day).map(|bar| bar.label.clone()).unwrap_or_default(),
        SegmentValue::Exact(_) | SegmentValue::Last => String::new(),
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(LINES.mix(0.0))
        .bold_line_style(LINES)
        .axis_style(LINES)
        .label_style(("sans-serif", 11).into_font().color(&WORDS))
        .x_labels(8)
        .y_labels(6)
        .x_label_formatter(&label)
        .y_label_formatter(&|value| say(*value))
        .draw()?;
    chart.draw_series(bars.iter().enumerate().map(|(day, bar)| {
        let corners = [(SegmentValue::Exact(day), 0.0), (SegmentValue::Exact(day + 1), bar.value)];
        let mut rectangle = Rectangle::new(corners, BARS.filled());
        rectangle.set_margin(0, 0, 2, 2);
        rectangle
    }))?;
    area.present()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(label: &str, value: f64) -> Bar {
        Bar { label: label.into(), value }
    }

    #[test]
    fn bars_show_values_and_escape_text() {
        let shown = bar_chart(
            "Tokens <by> day",
            &[bar("<b>", 10.0), bar("11-22", 5.0), bar("none", 0.0)],
            &|value| format!("{value:.1} <i>"),
        );
        let svg = shown.into_string();
        let heights: Vec<u32> = svg
            .split("<rect ")
            .skip(1)
            .map(|rect| rect.split(" height=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap())
            .collect();
        assert_eq!(heights.len(), 3, "{svg}");
        assert!(heights[0].abs_diff(2 * heights[1]) <= 1 && heights[2] <= 1, "{heights:?}");
        assert!(svg.contains("&lt;b&gt;") && svg.contains("10.0 &lt;i&gt;") && !svg.contains("<b>"), "{svg}");
        assert!(svg.contains("role=\"img\"") && svg.contains("aria-label=\"Tokens &lt;by&gt; day"), "{svg}");
        // The page's policy allows no style of its own, and there is one `<svg>`.
        assert!(
            !svg.contains("style=") && !svg.contains("xmlns") && svg.matches("<svg").count() == 1,
            "{svg}"
        );
    }

    #[test]
    fn the_style_sheet_replaces_drawn_colours() {
        let style = include_str!("style.css");
        for mark in [BARS, LINES, WORDS] {
            let mark = format!("#{:02X}{:02X}{:02X}", mark.0, mark.1, mark.2);
            assert!(style.contains(&mark), "{mark}");
        }
    }

    #[test]
    fn any_number_of_days_can_be_drawn() {
        for count in [0, 1, 2, 30, 366] {
            let days: Vec<Bar> = (0..count).map(|day| bar(&day.to_string(), 1.0)).collect();
            let svg = bar_chart("Cost", &days, &|value| value.to_string()).into_string();
            assert_eq!(svg.matches("<rect").count(), count, "{svg}");
            assert!(!svg.contains("NaN"), "{svg}");
        }
        assert!(
            bar_chart("Cost", &[bar("today", 0.0)], &|value| value.to_string())
                .into_string()
                .contains("Cost: none")
        );
    }
}
