//! The results of a run, before they become a table or a file.

use crate::cell::Cell;
use crate::machine::Machine;

/// A finished run.
pub struct Results {
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

impl Results {
    /// What was measured, in one sentence.
    pub fn summary(&self) -> String {
        let think = match self.think_us {
            0 => String::new(),
            micros => format!(", {micros} us pause between deposits"),
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

    /// The result of the money checks, in one sentence.
    pub fn money(&self) -> String {
        let wrong = self.cells.iter().filter(|cell| !cell.money_ok()).count();
        let all = self.cells.len();
        let deposits: u64 = self.cells.iter().map(Cell::actions).sum();
        match wrong {
            0 => format!(
                "Money: right in all {all} cells. Balances, versions and events match the acknowledged deposits ({deposits} measured)."
            ),
            wrong => format!("Money: WRONG in {wrong} of {all} cells."),
        }
    }
}
