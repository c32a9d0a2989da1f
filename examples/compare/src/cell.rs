//! What is measured: a strategy at a level of contention, and what came of it.

use std::time::Duration;

use crate::histogram::Histogram;
use crate::strategy::Strategy;

/// How much contention there is, and how far away the database.
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
    /// Round trips to the database and to Redis, for each deposit; none where there is no
    /// network.
    pub round_trips: Option<f64>,
    /// Connections to them that were open.
    pub connections: Option<usize>,
}

/// One repeat.
#[derive(Debug, Clone)]
pub struct Sample {
    /// How long was measured.
    pub window: Duration,
    /// Deposits that were acknowledged within it.
    pub actions: u64,
    /// Deposits that began within it, and how often they were tried.
    pub begun: u64,
    pub attempts: u64,
    /// Of those.
    pub latencies: Histogram,
    /// Deposits of the task that made the fewest.
    pub slowest: u64,
    /// Whether the database holds what was acknowledged, and nothing else.
    pub money: Result<u64, String>,
}

impl Level {
    /// As it stands in messages: what is not as usual is left out.
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

    /// The median of the repeats.
    pub fn actions_per_s(&self) -> f64 {
        median(self.samples.iter().map(Sample::per_second).collect())
    }

    /// Of all repeats together.
    pub fn latencies(&self) -> Histogram {
        let mut all = Histogram::default();
        self.samples.iter().for_each(|sample| all.merge(&sample.latencies));
        all
    }

    pub fn actions(&self) -> u64 {
        self.samples.iter().map(|sample| sample.actions).sum()
    }

    /// How often a deposit was tried, on average.
    pub fn attempts(&self) -> f64 {
        let begun: u64 = self.samples.iter().map(|sample| sample.begun).sum();
        let attempts: u64 = self.samples.iter().map(|sample| sample.attempts).sum();
        attempts as f64 / begun.max(1) as f64
    }

    /// How often a deposit had to be tried again.
    pub fn conflicts(&self) -> u64 {
        self.samples.iter().map(|sample| sample.attempts.saturating_sub(sample.begun)).sum()
    }

    /// What the task that made the fewest made, as a share of the mean.
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

/// The middle value, or the mean of the two in the middle; zero of none.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.get(middle) {
        None => 0.0,
        Some(upper) if values.len() % 2 == 1 => *upper,
        Some(upper) => f64::midpoint(values[middle - 1], *upper),
    }
}
