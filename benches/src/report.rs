//! From latencies to a table and to JSON lines.

use std::time::Duration;

use serde::Serialize;

use crate::{Mode, Options};

/// One mode with one number of tasks, in one round.
pub struct Sample {
    pub per_second: f64,
    pub p50: Duration,
    pub p99: Duration,
}

impl Sample {
    pub fn new(mut latencies: Vec<Duration>, took: Duration) -> Self {
        latencies.sort_unstable();
        Self {
            per_second: latencies.len() as f64 / took.as_secs_f64(),
            p50: percentile(&latencies, 50),
            p99: percentile(&latencies, 99),
        }
    }
}

/// One mode with one number of tasks.
pub struct Figure {
    pub mode: Mode,
    pub tasks: u32,
    pub samples: Vec<Sample>,
    pub round_trips: Option<f64>,
}

impl Figure {
    pub const fn new(mode: Mode, tasks: u32) -> Self {
        Self { mode, tasks, samples: Vec::new(), round_trips: None }
    }

    fn median(&self, value: impl Fn(&Sample) -> f64) -> f64 {
        median(self.samples.iter().map(value).collect()).unwrap_or_default()
    }

    /// The median of the rounds' ratios to another mode, if that was measured.
    fn ratio(&self, to: Mode, all: &[Self]) -> Option<f64> {
        let other = all.iter().find(|other| other.mode == to && other.tasks == self.tasks)?;
        let of_round = |(own, other): (&Sample, &Sample)| own.per_second / other.per_second;
        median(self.samples.iter().zip(&other.samples).map(of_round).collect())
    }
}

/// The smallest latency that so many percent do not exceed.
fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or_default()
}

pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    Some(if values.len() % 2 == 1 { upper } else { (values[middle - 1] + upper) / 2.0 })
}

/// A figure as one JSON line.
#[derive(Serialize)]
struct Line {
    bench: &'static str,
    database: &'static str,
    durability: &'static str,
    mode: &'static str,
    tasks: u32,
    actions_per_s: f64,
    p50_us: f64,
    p99_us: f64,
    round_trips: Option<f64>,
    ratio_to_sqlx_transaction: Option<f64>,
    ratio_to_single_statement: Option<f64>,
}

impl Line {
    fn new(options: &Options, figure: &Figure, all: &[Figure]) -> Self {
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        let hundredths = |value: f64| (value * 100.0).round() / 100.0;
        let ratio = |to| figure.ratio(to, all).map(hundredths);
        Self {
            bench: "commit",
            database: options.database.name(),
            durability: options.durability().name(),
            mode: figure.mode.name(),
            tasks: figure.tasks,
            actions_per_s: figure.median(|sample| sample.per_second).round(),
            p50_us: figure.median(|sample| micros(sample.p50)).round(),
            p99_us: figure.median(|sample| micros(sample.p99)).round(),
            round_trips: figure.round_trips.map(hundredths),
            ratio_to_sqlx_transaction: ratio(Mode::SqlxTransaction),
            ratio_to_single_statement: ratio(Mode::SingleStatement),
        }
    }
}

/// Prints the table, then the lines.
#[expect(clippy::print_stdout, reason = "what this program is for")]
pub fn print(options: &Options, figures: &[Figure]) {
    let lines: Vec<Line> =
        figures.iter().map(|figure| Line::new(options, figure, figures)).collect();
    if let Some(line) = lines.first() {
        println!(
            "commit, {}, durability {}: medians of {} rounds of {} s, {} wallets\n",
            line.database, line.durability, options.repeats, options.seconds, options.wallets
        );
    }
    let or_dash = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
    println!(
        "{:<16} {:>5} {:>10} {:>9} {:>9} {:>12} {:>11} {:>11}",
        "mode", "tasks", "actions/s", "p50 us", "p99 us", "trips/action", "/sqlx-tx", "/single-st"
    );
    for (n, line) in lines.iter().enumerate() {
        if n > 0 && lines[n - 1].tasks != line.tasks {
            println!();
        }
        println!(
            "{:<16} {:>5} {:>10.0} {:>9.0} {:>9.0} {:>12} {:>11} {:>11}",
            line.mode,
            line.tasks,
            line.actions_per_s,
            line.p50_us,
            line.p99_us,
            or_dash(line.round_trips),
            or_dash(line.ratio_to_sqlx_transaction),
            or_dash(line.ratio_to_single_statement),
        );
    }
    println!();
    for line in &lines {
        // Numbers, texts and nothing: this cannot fail.
        if let Ok(json) = serde_json::to_string(line) {
            println!("{json}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_latencies_that_occurred() {
        let sorted: Vec<Duration> = (1..=200).map(Duration::from_micros).collect();
        assert_eq!(percentile(&sorted, 50), Duration::from_micros(100));
        assert_eq!(percentile(&sorted, 99), Duration::from_micros(198));
        assert_eq!(percentile(&sorted[..1], 99), Duration::from_micros(1));
        assert_eq!(percentile(&[], 50), Duration::ZERO);
    }

    #[test]
    fn an_even_number_of_rounds_has_its_median_between_two() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(Vec::new()), None);
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        let figure = |mode, per_second: [f64; 3]| {
            let sample =
                |per_second| Sample { per_second, p50: Duration::ZERO, p99: Duration::ZERO };
            Figure { samples: per_second.map(sample).into(), ..Figure::new(mode, 1) }
        };
        // The machine was twice as quick in the second round; the ratio does not show it.
        let all = [
            figure(Mode::SqlxTransaction, [10.0, 20.0, 10.0]),
            figure(Mode::Ekbatan, [20.0, 40.0, 30.0]),
        ];
        assert_eq!(all[1].ratio(Mode::SqlxTransaction, &all), Some(2.0));
        assert_eq!(all[1].ratio(Mode::SingleStatement, &all), None);
    }
}
