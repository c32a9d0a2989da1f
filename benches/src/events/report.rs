//! The figures of events, as a table and as JSON lines.

use std::time::Duration;

use serde::Serialize;

use super::options::{EventsMeasure, EventsMode, EventsOptions};
use super::sample::EventsSample;
use crate::statistics::{RoundResult, median, or_dash, print_json};

/// All rounds of one mode in one measure.
pub struct EventsFigure {
    pub measure: EventsMeasure,
    pub mode: EventsMode,
    /// `None` if the measure does not depend on it.
    pub tasks: Option<u32>,
    pub samples: Vec<EventsSample>,
}

impl EventsFigure {
    pub const fn new(measure: EventsMeasure, mode: EventsMode, tasks: Option<u32>) -> Self {
        Self { measure, mode, tasks, samples: Vec::new() }
    }

    fn median(&self, value: impl Fn(&RoundResult) -> f64) -> Option<f64> {
        median(self.samples.iter().map(|sample| value(&sample.result)).collect())
    }

    fn queries(&self) -> Option<f64> {
        median(self.samples.iter().filter_map(|sample| sample.queries_per_second).collect())
    }

    /// The ratio to another figure with the same number of tasks: the median of the ratios of each
    /// round. `None` if the other one was not measured.
    fn ratio(&self, measure: EventsMeasure, mode: EventsMode, all: &[Self]) -> Option<f64> {
        let other = all.iter().find(|other| {
            (other.measure, other.mode, other.tasks) == (measure, mode, self.tasks)
        })?;
        let of_round = |(own, other): (&EventsSample, &EventsSample)| {
            if self.measure.compares_times() {
                micros(own.result.p50) / micros(other.result.p50)
            } else {
                own.result.per_second / other.result.per_second
            }
        };
        median(self.samples.iter().zip(&other.samples).map(of_round).collect())
            .filter(|ratio| ratio.is_finite())
    }

    /// What the figure is a part of: the deposits alone, without a call, or the same without a parked
    /// event.
    fn ratio_to_base(&self, all: &[Self]) -> Option<f64> {
        match self.measure {
            EventsMeasure::Commits
                if matches!(self.mode, EventsMode::Calls | EventsMode::CallsInTurn) =>
            {
                self.ratio(EventsMeasure::Commits, EventsMode::Ekbatan, all)
            }
            EventsMeasure::Throughput => self.ratio(EventsMeasure::Commits, self.mode, all),
            EventsMeasure::Parked => self.ratio(EventsMeasure::Throughput, self.mode, all),
            _ => None,
        }
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// A figure as one JSON line.
#[derive(Serialize)]
struct EventsRecord {
    bench: &'static str,
    /// `None` if events are not sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    broker: Option<&'static str>,
    database: &'static str,
    durability: &'static str,
    measure: &'static str,
    mode: &'static str,
    tasks: Option<u32>,
    per_s: Option<f64>,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    queries_per_s: Option<f64>,
    ratio_to_base: Option<f64>,
    ratio_to_outbox: Option<f64>,
    ratio_to_graphile: Option<f64>,
}

impl EventsRecord {
    fn new(options: &EventsOptions, figure: &EventsFigure, all: &[EventsFigure]) -> Self {
        let hundredths = |value: f64| (value * 100.0).round() / 100.0;
        let measure = figure.measure;
        let time = |value: fn(&RoundResult) -> Duration| {
            figure.median(|sample| micros(value(sample))).filter(|_| measure.has_times())
        };
        let rate = figure.median(|sample| sample.per_second).filter(|_| measure.has_rate());
        let by_hand = match options.broker {
            Some(_) => EventsMode::PollAndPublish,
            None => EventsMode::OutboxSkipLocked,
        };
        let to_outbox = figure.ratio(measure, by_hand, all);
        let to_graphile = figure.ratio(measure, figure.mode.graphile(), all);
        Self {
            bench: options.subject.name(),
            broker: options.broker.map(super::broker_site::BenchBroker::name),
            database: options.database.name(),
            durability: options.durability().name(),
            measure: measure.name(),
            mode: figure.mode.name(),
            tasks: figure.tasks,
            per_s: rate.map(f64::round),
            p50_us: time(|sample| sample.p50).map(f64::round),
            p99_us: time(|sample| sample.p99).map(f64::round),
            queries_per_s: figure.queries().map(|queries| (queries * 10.0).round() / 10.0),
            ratio_to_base: figure.ratio_to_base(all).map(hundredths),
            ratio_to_outbox: to_outbox.filter(|_| measure.has_rate()).map(hundredths),
            ratio_to_graphile: to_graphile.filter(|_| measure.has_rate()).map(hundredths),
        }
    }
}

fn whole(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.0}"))
}

/// Prints the table, then the JSON lines.
#[expect(clippy::print_stdout, reason = "stdout is this program's output")]
pub fn print(options: &EventsOptions, figures: &[EventsFigure]) {
    let records: Vec<EventsRecord> =
        figures.iter().map(|figure| EventsRecord::new(options, figure, figures)).collect();
    println!(
        "{}, {}, durability {}: medians of {} rounds of {} s, {} wallets, backlog {}\n",
        options.subject.name(),
        options.database.name(),
        options.durability().name(),
        options.repeats,
        options.seconds,
        options.wallets,
        options.backlog
    );
    println!(
        "{:<18} {:<18} {:>5} {:>9} {:>9} {:>9} {:>10} {:>7} {:>8} {:>9}",
        "measure",
        "mode",
        "tasks",
        "per s",
        "p50 us",
        "p99 us",
        "queries/s",
        "/base",
        "/outbox",
        "/graphile"
    );
    for (n, record) in records.iter().enumerate() {
        let is_next =
            |last: &EventsRecord| (last.measure, last.tasks) != (record.measure, record.tasks);
        if n > 0 && is_next(&records[n - 1]) {
            println!();
        }
        println!(
            "{:<18} {:<18} {:>5} {:>9} {:>9} {:>9} {:>10} {:>7} {:>8} {:>9}",
            record.measure,
            record.mode,
            record.tasks.map_or("-".to_owned(), |tasks| tasks.to_string()),
            whole(record.per_s),
            whole(record.p50_us),
            whole(record.p99_us),
            whole(record.queries_per_s),
            or_dash(record.ratio_to_base),
            or_dash(record.ratio_to_outbox),
            or_dash(record.ratio_to_graphile),
        );
    }
    println!();
    print_json(&records);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_a_base_and_times_are_compared_by_their_medians() {
        let figure = |measure, mode, per_second: [f64; 3], p50: [u64; 3]| {
            let sample = |(per_second, p50)| EventsSample {
                result: RoundResult {
                    per_second,
                    p50: Duration::from_micros(p50),
                    p99: Duration::ZERO,
                },
                queries_per_second: None,
            };
            let samples = per_second.into_iter().zip(p50).map(sample).collect();
            EventsFigure { samples, ..EventsFigure::new(measure, mode, Some(1)) }
        };
        let (measure, outbox) = (EventsMeasure::LatencySameNode, EventsMode::OutboxSkipLocked);
        let all = [
            figure(EventsMeasure::Commits, EventsMode::Ekbatan, [100.0, 200.0, 100.0], [1; 3]),
            figure(EventsMeasure::Throughput, EventsMode::Ekbatan, [50.0, 100.0, 50.0], [1; 3]),
            figure(measure, EventsMode::Ekbatan, [1.0; 3], [100, 200, 300]),
            figure(measure, outbox, [1.0; 3], [200, 400, 600]),
        ];
        assert_eq!(all[1].ratio_to_base(&all), Some(0.5));
        assert_eq!(all[2].ratio_to_base(&all), None);
        assert_eq!(all[2].ratio(measure, outbox, &all), Some(0.5));
        assert_eq!(all[1].ratio(EventsMeasure::Throughput, outbox, &all), None);
    }
}
