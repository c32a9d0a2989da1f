//! Rates, percentiles and medians, and how results are printed.

use std::time::Duration;

use serde::Serialize;

/// The result of one round of one mode.
pub struct RoundResult {
    pub per_second: f64,
    pub p50: Duration,
    pub p99: Duration,
}

impl RoundResult {
    pub fn new(mut latencies: Vec<Duration>, took: Duration) -> Self {
        latencies.sort_unstable();
        Self {
            per_second: latencies.len() as f64 / took.as_secs_f64(),
            p50: percentile(&latencies, 50),
            p99: percentile(&latencies, 99),
        }
    }
}

/// The smallest latency that `percent` percent of all latencies do not exceed.
fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or_default()
}

/// The middle value, or the mean of the two middle ones; `None` without values.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    Some(if values.len() % 2 == 1 { upper } else { (values[middle - 1] + upper) / 2.0 })
}

/// A value of the table with two decimals, or a dash.
pub fn or_dash(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.2}"))
}

/// Prints each record as one JSON line.
#[expect(clippy::print_stdout, reason = "stdout is this program's output")]
pub fn print_json(records: &[impl Serialize]) {
    for record in records {
        // Records hold only numbers, texts and options of them, so serializing cannot fail.
        if let Ok(json) = serde_json::to_string(record) {
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
    fn the_median_of_an_even_number_is_the_mean_of_the_middle_two() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(Vec::new()), None);
    }
}
