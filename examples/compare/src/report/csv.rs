//! The cells as CSV: a header, then one row per cell. No value contains a comma or a
//! quote.

use std::io::{self, Write};

use serde_json::Value;

use super::json::CellRecord;
use crate::results::Results;

/// In the order of the JSON lines.
const COLUMNS: [&str; 25] = [
    "bench",
    "database",
    "durability",
    "lock",
    "strategy",
    "tasks",
    "processes",
    "wallets",
    "skew",
    "think_us",
    "delay_us",
    "seconds",
    "repeats",
    "actions",
    "actions_per_s",
    "p50_us",
    "p95_us",
    "p99_us",
    "max_us",
    "attempts",
    "conflicts",
    "round_trips",
    "connections",
    "slowest_task",
    "money_ok",
];

pub fn write(results: &Results, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}", COLUMNS.join(","))?;
    for cell in &results.cells {
        let line = serde_json::to_value(CellRecord::new(results, cell))?;
        let values = COLUMNS.map(|column| match &line[column] {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        });
        writeln!(out, "{}", values.join(","))?;
    }
    Ok(())
}
