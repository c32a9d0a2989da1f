//! The table for the terminal.

use std::io::{self, Write};

use crate::cell::Cell;
use crate::progress::{grouped, millis};
use crate::results::Results;

pub fn write(results: &Results, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}", results.summary())?;
    results.machine.lines().iter().try_for_each(|line| writeln!(out, "{line}"))?;
    let mut level = None;
    for cell in &results.cells {
        if level != Some(cell.level) {
            level = Some(cell.level);
            writeln!(out, "\n{}", cell.level.text())?;
            writeln!(
                out,
                "  {:<16} {:>10} {:>9} {:>9} {:>9} {:>9} {:>10} {:>7} {:>6} {:>8}  money",
                "strategy",
                "actions/s",
                "p50 ms",
                "p95 ms",
                "p99 ms",
                "attempts",
                "conflicts",
                "trips",
                "conns",
                "slowest"
            )?;
        }
        row(cell, out)?;
    }
    writeln!(out, "\n{}", results.money())
}

fn row(cell: &Cell, out: &mut dyn Write) -> io::Result<()> {
    let latencies = cell.latencies();
    let of = |percent| millis(latencies.percentile(percent));
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    writeln!(
        out,
        "  {:<16} {:>10} {:>9} {:>9} {:>9} {:>9} {:>10} {:>7} {:>6} {:>7.0}%  {}",
        cell.strategy.name(),
        grouped(cell.actions_per_s()),
        of(50.0),
        of(95.0),
        of(99.0),
        format!("{:.2}", cell.attempts()),
        cell.conflicts(),
        or_dash(cell.round_trips.map(|trips| format!("{trips:.2}"))),
        or_dash(cell.connections.map(|connections| connections.to_string())),
        cell.fairness() * 100.0,
        if cell.money_ok() { "ok" } else { "WRONG" },
    )?;
    for wrong in cell.samples.iter().filter_map(|sample| sample.money.as_ref().err()) {
        writeln!(out, "    {wrong}")?;
    }
    Ok(())
}
