//! The charts as one picture that stands alone, such as in a README.

use super::chart::{Chart, HEIGHT, WIDTH};
use super::series::{Panel, panels};
use super::{Report, style};

/// Above the first row, between rows, and below the last one.
const HEAD: f64 = 76.0;
const ROW: f64 = 34.0;
const FOOT: f64 = 62.0;
const EDGE: f64 = 20.0;

/// Deposits per second, and the latency that one in a hundred exceeds.
pub fn charts(panel: &Panel<'_>) -> [Chart; 2] {
    let x_label = panel.x.label();
    [
        Chart {
            title: "Deposits per second",
            note: "higher is better",
            x_label,
            unit: "/s",
            lines: panel.lines(crate::cell::Cell::actions_per_s),
        },
        Chart {
            title: "p99 latency, ms",
            note: "lower is better",
            x_label,
            unit: "ms",
            lines: panel
                .lines(|cell| cell.latencies().percentile(99.0).unwrap_or_default() as f64 / 1e3),
        },
    ]
}

/// The whole of an SVG file.
pub fn picture(report: &Report) -> String {
    let panels = panels(report);
    let rows = panels.len() as f64;
    let (width, height) = (2.0 * WIDTH + 2.0 * EDGE, HEAD + rows * (HEIGHT + ROW) + FOOT);
    let mut svg = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img"><style>{}</style><rect class="paper" width="{width}" height="{height}" rx="10"/>"#,
        style::CHARTS
    );
    svg += &format!(
        r#"<text class="title" x="{EDGE}" y="40">Deposits into contended wallets: {}</text>"#,
        escape(&report.machine.database)
    );
    svg += &format!(
        r#"<text class="note" x="{EDGE}" y="62">Read, decide, write the row and its event, commit; durability {}. Solid: ekbatan. Dashed: alternatives, in the same run.</text>"#,
        report.durability
    );
    for (n, panel) in panels.iter().enumerate() {
        let top = HEAD + n as f64 * (HEIGHT + ROW);
        svg += &format!(
            r#"<text class="head" x="{EDGE}" y="{}">{}</text>"#,
            top + 22.0,
            escape(&sentence(&panel.title))
        );
        for (chart, left) in charts(panel).iter().zip([EDGE, EDGE + WIDTH]) {
            svg +=
                &format!(r#"<g transform="translate({left} {})">{}</g>"#, top + ROW, chart.draw());
        }
    }
    let foot = [report.machine.lines().join("; "), report.machine.command.clone()];
    for (n, line) in foot.iter().enumerate() {
        let y = height - FOOT + 26.0 + 20.0 * n as f64;
        svg += &format!(r#"<text class="note" x="{EDGE}" y="{y}">{}</text>"#, escape(line));
    }
    svg + "</svg>\n"
}

/// With a capital letter at its beginning.
pub fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => first.to_uppercase().chain(letters).collect(),
        None => String::new(),
    }
}

/// As text within markup.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
