//! The figures of locks, as a table and as JSON records.

use std::time::Duration;

use serde::Serialize;

use super::options::{LockMode, LocksOptions, Measure, Provider};
use crate::statistics::{RoundResult, median, or_dash, print_json};

/// All rounds of one mode of one provider in one measure.
pub struct LockFigure {
    pub provider: Provider,
    pub measure: Measure,
    pub mode: LockMode,
    pub samples: Vec<RoundResult>,
}

impl LockFigure {
    pub const fn new(provider: Provider, measure: Measure, mode: LockMode) -> Self {
        Self { provider, measure, mode, samples: Vec::new() }
    }

    fn median(&self, value: impl Fn(&RoundResult) -> f64) -> f64 {
        median(self.samples.iter().map(value).collect()).unwrap_or_default()
    }

    /// The ratio to another mode: the median of the ratios of each round. It compares
    /// median times in `free` and `handoff`, and rates in `local` and `processes`. `None`
    /// if the other mode was not measured.
    fn ratio(&self, to: LockMode, all: &[Self]) -> Option<f64> {
        let other = all.iter().find(|other| {
            other.mode == to && (other.provider, other.measure) == (self.provider, self.measure)
        })?;
        let of_round = |(own, other): (&RoundResult, &RoundResult)| match self.measure {
            Measure::Free | Measure::Handoff => micros(own.p50) / micros(other.p50),
            Measure::Local | Measure::Processes => own.per_second / other.per_second,
        };
        median(self.samples.iter().zip(&other.samples).map(of_round).collect())
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// A figure as one JSON line.
#[derive(Serialize)]
struct LockRecord {
    bench: &'static str,
    provider: &'static str,
    measure: &'static str,
    mode: &'static str,
    per_s: f64,
    p50_us: f64,
    p99_us: f64,
    ratio_to_raw: Option<f64>,
    ratio_to_blocking: Option<f64>,
}

impl LockRecord {
    fn new(figure: &LockFigure, all: &[LockFigure]) -> Self {
        let tenths = |value: f64| (value * 10.0).round() / 10.0;
        let ratio = |to| figure.ratio(to, all).map(|ratio: f64| (ratio * 100.0).round() / 100.0);
        Self {
            bench: "locks",
            provider: figure.provider.name(),
            measure: figure.measure.name(),
            mode: figure.mode.name(),
            per_s: figure.median(|sample| sample.per_second).round(),
            p50_us: tenths(figure.median(|sample| micros(sample.p50))),
            p99_us: tenths(figure.median(|sample| micros(sample.p99))),
            ratio_to_raw: ratio(LockMode::Raw),
            ratio_to_blocking: ratio(LockMode::Blocking),
        }
    }
}

/// Prints the table, then the JSON lines.
#[expect(clippy::print_stdout, reason = "stdout is this program's output")]
pub fn print(options: &LocksOptions, figures: &[LockFigure]) {
    let records: Vec<LockRecord> =
        figures.iter().map(|figure| LockRecord::new(figure, figures)).collect();
    println!("locks: medians of {} rounds of {} s\n", options.repeats, options.seconds);
    println!(
        "{:<16} {:<9} {:<8} {:>9} {:>10} {:>10} {:>7} {:>9}",
        "provider", "measure", "mode", "per s", "p50 us", "p99 us", "/raw", "/blocking"
    );
    for (n, record) in records.iter().enumerate() {
        if n > 0 && records[n - 1].measure != record.measure {
            println!();
        }
        println!(
            "{:<16} {:<9} {:<8} {:>9.0} {:>10.1} {:>10.1} {:>7} {:>9}",
            record.provider,
            record.measure,
            record.mode,
            record.per_s,
            record.p50_us,
            record.p99_us,
            or_dash(record.ratio_to_raw),
            or_dash(record.ratio_to_blocking),
        );
    }
    println!();
    print_json(&records);
}
