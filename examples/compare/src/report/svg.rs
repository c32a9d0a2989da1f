//! The charts as one self-contained picture, for a README.

use super::chart::{Chart, HEIGHT, WIDTH};
use super::series::{Panel, panels};
use super::style;
use crate::results::Results;

/// Space above the first row, between rows, and below the last row.
const HEAD: f64 = 76.0;
const ROW: f64 = 34.0;
const FOOT: f64 = 62.0;
const EDGE: f64 = 20.0;

/// The charts of a panel: deposits per second, and the 99th percentile of the latency.
pub fn charts(panel: &Panel<'_>) -> [Chart; 2] {
    let x_label = panel.x.label();
    [
        Chart {
            title: "Deposits per second",
            note: "higher is better",
            x_label,
            unit: "/s",
            series: panel.series(crate::cell::Cell::actions_per_s),
        },
        Chart {
            title: "p99 latency, ms",
            note: "lower is better",
            x_label,
            unit: "ms",
            series: panel
                .series(|cell| cell.latencies().percentile(99.0).unwrap_or_default() as f64 / 1e3),
        },
    ]
}

/// The whole SVG file.
pub fn picture(results: &Results) -> String {
    let panels = panels(results);
    let rows = panels.len() as f64;
    let (width, height) = (2.0 * WIDTH + 2.0 * EDGE, HEAD + rows * (HEIGHT + ROW) + FOOT);
    let mut svg = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" font-family="{}"><rect fill="{}" width="{width}" height="{height}" rx="10"/>"#,
        style::FONTS,
        style::PAPER.light
    );
    let (ink, quiet) = (style::INK.light, style::QUIET.light);
    svg += &format!(
        r#"<text fill="{ink}" font-size="21" font-weight="700" x="{EDGE}" y="40">Deposits into contended wallets: {}</text>"#,
        escape(&results.machine.database)
    );
    svg += &format!(
        r#"<text fill="{quiet}" font-size="12.5" x="{EDGE}" y="62">Read, decide, write the row and its event, commit; durability {}. Solid: ekbatan. Dashed: alternatives, in the same run.</text>"#,
        results.durability
    );
    for (n, panel) in panels.iter().enumerate() {
        let top = HEAD + n as f64 * (HEIGHT + ROW);
        svg += &format!(
            r#"<text fill="{ink}" font-size="15" font-weight="600" x="{EDGE}" y="{}">{}</text>"#,
            top + 22.0,
            escape(&sentence(&panel.title))
        );
        for (chart, left) in charts(panel).iter().zip([EDGE, EDGE + WIDTH]) {
            svg +=
                &format!(r#"<g transform="translate({left} {})">{}</g>"#, top + ROW, chart.draw());
        }
    }
    let foot = [results.machine.lines().join("; "), results.machine.command.clone()];
    for (n, line) in foot.iter().enumerate() {
        let y = height - FOOT + 26.0 + 20.0 * n as f64;
        svg += &format!(
            r#"<text fill="{quiet}" font-size="12.5" x="{EDGE}" y="{y}">{}</text>"#,
            escape(line)
        );
    }
    svg + "</svg>\n"
}

/// The text with a capital first letter.
pub fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => first.to_uppercase().chain(letters).collect(),
        None => String::new(),
    }
}

/// The text, escaped for markup.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cell::{Cell, Level, Sample};
    use crate::histogram::Histogram;
    use crate::machine::Machine;
    use crate::strategy::Strategy;

    fn results() -> Results {
        let cell = |strategy, tasks| {
            let mut latencies = Histogram::default();
            latencies.record(1_000);
            let level = Level { tasks, processes: 1, wallets: 1, skew: 0.0, delay_us: 0 };
            let mut cell = Cell::new(strategy, level);
            cell.samples.push(Sample {
                window: Duration::from_secs(1),
                actions: 100,
                begun: 100,
                attempts: 100,
                latencies,
                slowest: 1,
                money: Ok(100),
            });
            cell
        };
        let cells = Strategy::usual(2).into_iter().flat_map(|it| [cell(it, 1), cell(it, 8)]);
        Results {
            machine: Machine::look("SQLite 3".to_owned()),
            database: "sqlite",
            durability: "full",
            lock: "process",
            seconds: 1.0,
            warm_up: 1.0,
            repeats: 1,
            think_us: 0,
            cells: cells.collect(),
        }
    }

    /// A viewer that knows no CSS variables would draw a black box.
    #[test]
    fn the_picture_has_plain_colours_as_attributes() {
        let svg = picture(&results());
        assert!(!svg.contains("var(") && !svg.contains("<style"), "{svg}");
        assert!(svg.contains(r##"<rect fill="#ffffff""##), "{svg}");
        for strategy in Strategy::usual(2) {
            let stroke = format!("stroke=\"{}\"", style::color(strategy).light);
            assert!(svg.contains(&stroke), "{}: {svg}", strategy.name());
        }
    }

    #[test]
    fn the_style_sheet_of_the_page_has_plain_colours() {
        assert!(!style::page().contains("var("));
    }

    #[test]
    fn the_picture_of_the_guide_is_drawn_the_same_way() {
        let svg = include_str!("../../../../docs/src/images/compare.svg");
        assert!(!svg.contains("var(") && !svg.contains("<style"));
        // The opening is the same as that of a new picture, except for the size.
        let opening = |svg: &str| svg.split_once("role=").map(|(_, rest)| rest[..150].to_owned());
        assert_eq!(opening(svg), opening(&picture(&results())));
    }
}
