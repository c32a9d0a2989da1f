//! The HTML page: key figures, charts, the table, and the environment of the run. It
//! needs no other file.

use std::io::{self, Write};

use clap::ValueEnum;

use super::chart::{HEIGHT, WIDTH};
use super::series::{Panel, panels};
use super::style;
use super::svg::{charts, escape, sentence};
use crate::cell::Cell;
use crate::progress::{grouped, millis};
use crate::results::Results;
use crate::strategy::Strategy;

pub fn write(results: &Results, out: &mut dyn Write) -> io::Result<()> {
    let database = escape(&results.machine.database);
    write!(
        out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>Contended wallets on {database}</title>\n<style>\n{}</style></head>\n<body><main>\n",
        style::page()
    )?;
    let cells = results.cells.len();
    let right = results.cells.iter().all(Cell::money_ok);
    writeln!(
        out,
        "<h1>Contended wallets on {database}</h1>\n<p class=\"quiet\">{}</p>\n\
         <p class=\"{}\">{}</p>",
        escape(&format!("{}. {cells} cells.", results.summary())),
        if right { "good" } else { "bad" },
        escape(&results.money())
    )?;
    for panel in panels(results) {
        write_panel(&panel, out)?;
    }
    write_strategies(results, out)?;
    write_table(results, out)?;
    let [machine, versions] = results.machine.lines();
    writeln!(
        out,
        "<h2>Where it ran</h2>\n<p>{}</p><p>{}</p>\n<pre>{}</pre>\n\
         <p class=\"quiet\">Client and server share the machine, so ratios between the lines of a chart \
         say more than their absolute values.</p>\n</main></body></html>",
        escape(&machine),
        escape(&versions),
        escape(&results.machine.command)
    )
}

fn write_panel(panel: &Panel<'_>, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "<h2>{}</h2>", escape(&sentence(&panel.title)))?;
    if let Some(ratios) = panel.ratios() {
        let name = ratios.best.name();
        write!(
            out,
            "<div class=\"tiles\"><div class=\"tile s-{name}\"><b>{} /s</b>{name}, the fastest that \
             reads before it writes; p99 {} ms <span class=\"quiet\">({})</span></div>",
            ratios.rate,
            ratios.p99_ms,
            escape(&ratios.at)
        )?;
        for (other, ratio) in &ratios.to {
            write!(
                out,
                "<div class=\"tile\"><b>{} ×</b><span class=\"quiet\">the rate of {}</span></div>",
                grouped(*ratio),
                other.name()
            )?;
        }
        writeln!(out, "</div>")?;
    }
    writeln!(out, "<div class=\"pair\">")?;
    for chart in charts(panel) {
        writeln!(
            out,
            "<div class=\"card\"><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" font-family=\"{}\" aria-label=\"{}\">{}</svg></div>",
            style::FONTS,
            chart.title,
            chart.draw()
        )?;
    }
    writeln!(out, "</div>")
}

/// The explanation of each strategy, from the help of the command line.
fn write_strategies(results: &Results, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "<h2>What is compared</h2>\n<div class=\"card\"><dl>")?;
    for strategy in Strategy::value_variants() {
        if !results.cells.iter().any(|cell| cell.strategy == *strategy) {
            continue;
        }
        let help = strategy
            .to_possible_value()
            .and_then(|value| value.get_help().map(ToString::to_string))
            .unwrap_or_default();
        let name = strategy.name();
        writeln!(out, "<dt class=\"s-{name}\">{name}</dt><dd>{}</dd>", escape(&help))?;
    }
    writeln!(out, "</dl></div>")
}

fn write_table(results: &Results, out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "<h2>All figures</h2>\n<div class=\"card wide\"><table><thead><tr><th>strategy</th>\
         <th>actions/s</th><th>p50 ms</th><th>p95 ms</th><th>p99 ms</th><th>longest ms</th>\
         <th>attempts</th><th>conflicts</th><th>round trips</th><th>connections</th>\
         <th>slowest task</th><th>money</th></tr></thead><tbody>"
    )?;
    let mut level = None;
    for cell in &results.cells {
        if level != Some(cell.level) {
            level = Some(cell.level);
            let text = escape(&cell.level.text());
            writeln!(out, "<tr class=\"level\"><td colspan=\"12\">{text}</td></tr>")?;
        }
        let (name, latencies) = (cell.strategy.name(), cell.latencies());
        let values = [
            grouped(cell.actions_per_s()),
            millis(latencies.percentile(50.0)),
            millis(latencies.percentile(95.0)),
            millis(latencies.percentile(99.0)),
            millis(latencies.longest()),
            format!("{:.2}", cell.attempts()),
            cell.conflicts().to_string(),
            cell.round_trips.map_or_else(|| "–".to_owned(), |trips| format!("{trips:.2}")),
            cell.connections.map_or_else(|| "–".to_owned(), |connections| connections.to_string()),
            format!("{:.0} %", cell.fairness() * 100.0),
        ];
        let cells: String = values.iter().map(|value| format!("<td>{value}</td>")).collect();
        let (class, money) = if cell.money_ok() { ("good", "ok") } else { ("bad", "WRONG") };
        writeln!(
            out,
            "<tr><td class=\"s s-{name}\">{name}</td>{cells}<td class=\"{class}\">{money}</td></tr>"
        )?;
    }
    writeln!(out, "</tbody></table></div>")
}
