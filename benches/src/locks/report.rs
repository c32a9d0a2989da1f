//! The figures of locks, as a table and as JSON lines.

use std::time::Duration;

use serde::Serialize;

use super::{Measure, Mode, Options, Provider};
use crate::report::{Sample, median};

/// One mode of one provider in one measure.
pub struct Figure {
    pub provider: Provider,
    pub measure: Measure,
    pub mode: Mode,
    pub samples: Vec<Sample>,
}

impl Figure {
    pub const fn new(provider: Provider, measure: Measure, mode: Mode) -> Self {
        Self { provider, measure, mode, samples: Vec::new() }
    }

    fn median(&self, value: impl Fn(&Sample) -> f64) -> f64 {
        median(self.samples.iter().map(value).collect()).unwrap_or_default()
    }

    /// The median of the rounds' ratios to another mode, if that was measured: of times where
    /// what counts is how long it takes, of rates where it is how many there are.
    fn ratio(&self, to: Mode, all: &[Self]) -> Option<f64> {
        let other = all.iter().find(|other| {
            other.mode == to && (other.provider, other.measure) == (self.provider, self.measure)
        })?;
        let of_round = |(own, other): (&Sample, &Sample)| match self.measure {
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
struct Line {
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

impl Line {
    fn new(figure: &Figure, all: &[Figure]) -> Self {
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
            ratio_to_raw: ratio(Mode::Raw),
            ratio_to_blocking: ratio(Mode::Blocking),
        }
    }
}

/// Prints the table, then the lines.
#[expect(clippy::print_stdout, reason = "what this program is for")]
pub fn print(options: &Options, figures: &[Figure]) {
    let lines: Vec<Line> = figures.iter().map(|figure| Line::new(figure, figures)).collect();
    println!("locks: medians of {} rounds of {} s\n", options.repeats, options.seconds);
    let or_dash = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
    println!(
        "{:<16} {:<9} {:<8} {:>9} {:>10} {:>10} {:>7} {:>9}",
        "provider", "measure", "mode", "per s", "p50 us", "p99 us", "/raw", "/blocking"
    );
    for (n, line) in lines.iter().enumerate() {
        if n > 0 && lines[n - 1].measure != line.measure {
            println!();
        }
        println!(
            "{:<16} {:<9} {:<8} {:>9.0} {:>10.1} {:>10.1} {:>7} {:>9}",
            line.provider,
            line.measure,
            line.mode,
            line.per_s,
            line.p50_us,
            line.p99_us,
            or_dash(line.ratio_to_raw),
            or_dash(line.ratio_to_blocking),
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
