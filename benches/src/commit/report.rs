//! The figures of commits, as a table and as JSON lines.

use std::time::Duration;

use serde::Serialize;

use super::options::{CommitMode, CommitOptions};
use crate::statistics::{RoundResult, median, or_dash, print_json};

/// All rounds of one mode with one number of tasks.
pub struct CommitFigure {
    pub mode: CommitMode,
    pub tasks: u32,
    pub samples: Vec<RoundResult>,
    pub round_trips: Option<f64>,
}

impl CommitFigure {
    pub const fn new(mode: CommitMode, tasks: u32) -> Self {
        Self { mode, tasks, samples: Vec::new(), round_trips: None }
    }

    fn median(&self, value: impl Fn(&RoundResult) -> f64) -> f64 {
        median(self.samples.iter().map(value).collect()).unwrap_or_default()
    }

    /// The ratio to another mode: the median of the ratios of each round. `None` if the
    /// other mode was not measured.
    fn ratio(&self, to: CommitMode, all: &[Self]) -> Option<f64> {
        let other = all.iter().find(|other| other.mode == to && other.tasks == self.tasks)?;
        let of_round =
            |(own, other): (&RoundResult, &RoundResult)| own.per_second / other.per_second;
        median(self.samples.iter().zip(&other.samples).map(of_round).collect())
    }
}

/// A figure as one JSON line.
#[derive(Serialize)]
struct CommitRecord {
    bench: &'static str,
    database: &'static str,
    durability: &'static str,
    mode: &'static str,
    tasks: u32,
    delay_us: u32,
    actions_per_s: f64,
    p50_us: f64,
    p99_us: f64,
    round_trips: Option<f64>,
    ratio_to_sqlx_transaction: Option<f64>,
    ratio_to_single_statement: Option<f64>,
    ratio_to_library: Option<f64>,
}

impl CommitRecord {
    fn new(options: &CommitOptions, figure: &CommitFigure, all: &[CommitFigure]) -> Self {
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        let hundredths = |value: f64| (value * 100.0).round() / 100.0;
        let ratio = |to| figure.ratio(to, all).map(hundredths);
        Self {
            bench: "commit",
            database: options.database.name(),
            durability: options.durability().name(),
            mode: figure.mode.name(),
            tasks: figure.tasks,
            delay_us: options.delay_us,
            actions_per_s: figure.median(|sample| sample.per_second).round(),
            p50_us: figure.median(|sample| micros(sample.p50)).round(),
            p99_us: figure.median(|sample| micros(sample.p99)).round(),
            round_trips: figure.round_trips.map(hundredths),
            ratio_to_sqlx_transaction: ratio(CommitMode::SqlxTransaction),
            ratio_to_single_statement: ratio(CommitMode::SingleStatement),
            ratio_to_library: ratio(CommitMode::Library),
        }
    }
}

/// Prints the table, then the JSON lines.
#[expect(clippy::print_stdout, reason = "stdout is this program's output")]
pub fn print(options: &CommitOptions, figures: &[CommitFigure]) {
    let records: Vec<CommitRecord> =
        figures.iter().map(|figure| CommitRecord::new(options, figure, figures)).collect();
    if let Some(record) = records.first() {
        println!(
            "commit, {}, durability {}{}: medians of {} rounds of {} s, {} wallets\n",
            record.database,
            record.durability,
            match options.delay_us {
                0 => String::new(),
                delay => format!(", {delay} us of network each way"),
            },
            options.repeats,
            options.seconds,
            options.wallets
        );
    }
    println!(
        "{:<16} {:>5} {:>10} {:>9} {:>9} {:>12} {:>11} {:>11} {:>11}",
        "mode",
        "tasks",
        "actions/s",
        "p50 us",
        "p99 us",
        "trips/action",
        "/sqlx-tx",
        "/single-st",
        "/library"
    );
    for (n, record) in records.iter().enumerate() {
        if n > 0 && records[n - 1].tasks != record.tasks {
            println!();
        }
        println!(
            "{:<16} {:>5} {:>10.0} {:>9.0} {:>9.0} {:>12} {:>11} {:>11} {:>11}",
            record.mode,
            record.tasks,
            record.actions_per_s,
            record.p50_us,
            record.p99_us,
            or_dash(record.round_trips),
            or_dash(record.ratio_to_sqlx_transaction),
            or_dash(record.ratio_to_single_statement),
            or_dash(record.ratio_to_library),
        );
    }
    println!();
    print_json(&records);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_within_a_round() {
        let figure = |mode, per_second: [f64; 3]| {
            let sample =
                |per_second| RoundResult { per_second, p50: Duration::ZERO, p99: Duration::ZERO };
            CommitFigure { samples: per_second.map(sample).into(), ..CommitFigure::new(mode, 1) }
        };
        // The machine was twice as fast in the second round. The ratio does not show it.
        let all = [
            figure(CommitMode::SqlxTransaction, [10.0, 20.0, 10.0]),
            figure(CommitMode::Ekbatan, [20.0, 40.0, 30.0]),
        ];
        assert_eq!(all[1].ratio(CommitMode::SqlxTransaction, &all), Some(2.0));
        assert_eq!(all[1].ratio(CommitMode::SingleStatement, &all), None);
    }
}
