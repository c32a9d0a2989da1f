//! What a run says in the end: a table, and the files that were asked for.

mod chart;
mod csv;
mod html;
mod json;
mod series;
mod style;
mod svg;
mod table;

use std::fs::File;
use std::io::{self, Write, stdout};
use std::path::Path;

use crate::Failure;
use crate::arguments::Arguments;
use crate::cell::Cell;
use crate::machine::Machine;

/// A run that is over.
pub struct Report {
    pub machine: Machine,
    pub database: &'static str,
    pub durability: &'static str,
    pub lock: &'static str,
    pub seconds: f64,
    pub warm_up: f64,
    pub repeats: u32,
    pub think_us: u64,
    pub cells: Vec<Cell>,
}

impl Report {
    /// What was done, in a sentence.
    fn summary(&self) -> String {
        let think = match self.think_us {
            0 => String::new(),
            micros => format!(", {micros} us of thought between deposits"),
        };
        format!(
            "{}, durability {}, locks in {}: {} x {} s after {} s of warm-up{think}",
            self.machine.database,
            self.durability,
            self.lock,
            self.repeats,
            self.seconds,
            self.warm_up,
        )
    }

    /// What came of the money, in a sentence.
    fn money(&self) -> String {
        let wrong = self.cells.iter().filter(|cell| !cell.money_ok()).count();
        let all = self.cells.len();
        let deposits: u64 = self.cells.iter().map(Cell::actions).sum();
        match wrong {
            0 => format!(
                "Money: right in all {all} cells. Balances, versions and events say exactly what was acknowledged ({deposits} measured deposits)."
            ),
            wrong => format!("Money: WRONG in {wrong} of {all} cells."),
        }
    }
}

/// Prints the table and writes what was asked for.
pub fn write(report: &Report, arguments: &Arguments) -> Result<(), Failure> {
    table::write(report, &mut stdout().lock())?;
    if let Some(path) = &arguments.json {
        to(path, |out| json::write(report, out))?;
    }
    if let Some(path) = &arguments.csv {
        to(path, |out| csv::write(report, out))?;
    }
    if let Some(path) = &arguments.html {
        to(path, |out| html::write(report, out))?;
    }
    if let Some(path) = &arguments.svg {
        to(path, |out| out.write_all(svg::picture(report).as_bytes()))?;
    }
    Ok(())
}

fn to(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
    if path.as_os_str() == "-" {
        return Ok(write(&mut stdout().lock())?);
    }
    let written = File::create(path).and_then(|file| {
        let mut out = io::BufWriter::new(file);
        write(&mut out)?;
        out.flush()
    });
    written.map_err(|error| format!("{} cannot be written: {error}", path.display()).into())
}
