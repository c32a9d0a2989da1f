//! What is measured: a strategy at a level of contention, and the results.

use std::time::Duration;

use crate::histogram::Histogram;
use crate::strategy::Strategy;

/// The amount of contention, and the distance of the database.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Level {
    pub tasks: u32,
    pub processes: u32,
    pub wallets: u32,
    pub skew: f64,
    pub delay_us: u64,
}

/// One strategy at one level, over all repeats.
#[derive(Debug, Clone)]
pub struct Cell {
    pub strategy: Strategy,
    pub level: Level,
    pub samples: Vec<Sample>,
    /// Round trips per deposit, to the database and to Redis. `None` without a network.
    pub round_trips: Option<f64>,
    /// The number of open connections to them.
    pub connections: Option<usize>,
}

/// One repeat.
#[derive(Debug, Clone)]
pub struct Sample {
    /// The length of the measurement.
    pub window: Duration,
    /// Deposits that were acknowledged within the window.
    pub actions: u64,
    /// Deposits that began within the window, and their attempts.
    pub begun: u64,
    pub attempts: u64,
    /// The latencies of those deposits.
    pub latencies: Histogram,
    /// The number of deposits of the slowest task.
    pub slowest: u64,
    /// Whether the database holds exactly the acknowledged deposits.
    pub money: Result<u64, String>,
}

impl Level {
    /// The level as text. Default values are left out.
    pub fn text(&self) -> String {
        let many =
            |n: u32, one: &str, more: &str| format!("{n} {}", if n == 1 { one } else { more });
        let mut parts = vec![many(self.tasks, "task", "tasks")];
        if self.processes > 1 {
            parts.push(format!("{} processes", self.processes));
        }
        parts.push(many(self.wallets, "wallet", "wallets"));
        if self.skew > 0.0 {
            parts.push(format!("skew {}", self.skew));
        }
        if self.delay_us > 0 {
            parts.push(format!("{} us delay", self.delay_us));
        }
        parts.join(", ")
    }
}

impl Cell {
    pub const fn new(strategy: Strategy, level: Level) -> Self {
        Self { strategy, level, samples: Vec::new(), round_trips: None, connections: None }
    }

    /// The median rate of the repeats.
    pub fn actions_per_s(&self) -> f64 {
        median(self.samples.iter().map(Sample::per_second).collect())
    }

    /// The latencies of all repeats.
    pub fn latencies(&self) -> Histogram {
        let mut all = Histogram::default();
        self.samples.iter().for_each(|sample| all.merge(&sample.latencies));
        all
    }

    pub fn actions(&self) -> u64 {
        self.samples.iter().map(|sample| sample.actions).sum()
    }

    /// The average number of attempts per deposit.
    pub fn attempts(&self) -> f64 {
        let begun: u64 = self.samples.iter().map(|sample| sample.begun).sum();
        let attempts: u64 = self.samples.iter().map(|sample| sample.attempts).sum();
        attempts as f64 / begun.max(1) as f64
    }

    /// The number of attempts that had to be repeated.
    pub fn conflicts(&self) -> u64 {
        self.samples.iter().map(|sample| sample.attempts.saturating_sub(sample.begun)).sum()
    }

    /// The deposits of the slowest task, as a share of the mean.
    pub fn fairness(&self) -> f64 {
        let slowest: u64 = self.samples.iter().map(|sample| sample.slowest).sum();
        slowest as f64 * f64::from(self.level.tasks) / self.actions().max(1) as f64
    }

    pub fn money_ok(&self) -> bool {
        self.samples.iter().all(|sample| sample.money.is_ok())
    }
}

impl Sample {
    pub fn per_second(&self) -> f64 {
        self.actions as f64 / self.window.as_secs_f64()
    }
}

/// The middle value, or the mean of the two middle ones; zero without values.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.get(middle) {
        None => 0.0,
        Some(upper) if values.len() % 2 == 1 => *upper,
        Some(upper) => f64::midpoint(values[middle - 1], *upper),
    }
}
