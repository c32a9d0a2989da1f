//! The cells as JSON lines.

use std::io::{self, Write};

use serde::Serialize;

use crate::cell::Cell;
use crate::machine::Machine;
use crate::results::Results;

/// A cell, with everything that is needed to interpret it.
#[derive(Serialize)]
pub struct CellRecord<'a> {
    pub bench: &'static str,
    pub database: &'static str,
    pub durability: &'static str,
    pub lock: &'static str,
    pub strategy: &'static str,
    pub tasks: u32,
    pub processes: u32,
    pub wallets: u32,
    pub skew: f64,
    pub think_us: u64,
    pub delay_us: u64,
    pub seconds: f64,
    pub repeats: u32,
    pub actions: u64,
    pub actions_per_s: f64,
    pub p50_us: Option<u64>,
    pub p95_us: Option<u64>,
    pub p99_us: Option<u64>,
    pub max_us: Option<u64>,
    pub attempts: f64,
    pub conflicts: u64,
    pub round_trips: Option<f64>,
    pub connections: Option<usize>,
    pub slowest_task: f64,
    pub money_ok: bool,
    pub machine: &'a Machine,
}

impl<'a> CellRecord<'a> {
    pub fn new(results: &'a Results, cell: &Cell) -> Self {
        let latencies = cell.latencies();
        let hundredths = |value: f64| (value * 100.0).round() / 100.0;
        Self {
            bench: "compare",
            database: results.database,
            durability: results.durability,
            lock: results.lock,
            strategy: cell.strategy.name(),
            tasks: cell.level.tasks,
            processes: cell.level.processes,
            wallets: cell.level.wallets,
            skew: cell.level.skew,
            think_us: results.think_us,
            delay_us: cell.level.delay_us,
            seconds: results.seconds,
            repeats: results.repeats,
            actions: cell.actions(),
            actions_per_s: hundredths(cell.actions_per_s()),
            p50_us: latencies.percentile(50.0),
            p95_us: latencies.percentile(95.0),
            p99_us: latencies.percentile(99.0),
            max_us: latencies.longest(),
            attempts: hundredths(cell.attempts()),
            conflicts: cell.conflicts(),
            round_trips: cell.round_trips.map(hundredths),
            connections: cell.connections,
            slowest_task: hundredths(cell.fairness()),
            money_ok: cell.money_ok(),
            machine: &results.machine,
        }
    }
}

pub fn write(results: &Results, out: &mut dyn Write) -> io::Result<()> {
    for cell in &results.cells {
        serde_json::to_writer(&mut *out, &CellRecord::new(results, cell))?;
        out.write_all(b"\n")?;
    }
    Ok(())
}
