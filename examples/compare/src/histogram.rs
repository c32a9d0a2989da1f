//! A histogram of latencies, in buckets whose width is a fixed share of their value.
//!
//! Invariants: a percentile is at least the exact one and at most 1/64 greater, for any
//! number of latencies. Merging histograms loses nothing.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Buckets per power of two. Smaller values have a bucket each.
const SHARE: u64 = 64;
const SHARE_BITS: u32 = SHARE.trailing_zeros();

/// The number of latencies in each bucket, in microseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    buckets: BTreeMap<u64, u64>,
    count: u64,
    longest: u64,
}

impl Histogram {
    pub fn record(&mut self, micros: u64) {
        *self.buckets.entry(bucket(micros)).or_default() += 1;
        self.count += 1;
        self.longest = self.longest.max(micros);
    }

    pub fn merge(&mut self, other: &Self) {
        for (&bucket, &count) in &other.buckets {
            *self.buckets.entry(bucket).or_default() += count;
        }
        self.count += other.count;
        self.longest = self.longest.max(other.longest);
    }

    /// The smallest latency that `percent` percent of all latencies do not exceed.
    pub fn percentile(&self, percent: f64) -> Option<u64> {
        let rank = ((self.count as f64 * percent / 100.0).ceil() as u64).max(1);
        let mut seen = 0;
        for (&bucket, &count) in &self.buckets {
            seen += count;
            if seen >= rank {
                return Some(greatest_of(bucket).min(self.longest));
            }
        }
        None
    }

    pub fn longest(&self) -> Option<u64> {
        (self.count > 0).then_some(self.longest)
    }
}

fn bucket(micros: u64) -> u64 {
    if micros < SHARE {
        return micros;
    }
    let power = micros.ilog2() - SHARE_BITS;
    u64::from(power) * SHARE + (micros >> power)
}

/// The greatest value of a bucket.
fn greatest_of(bucket: u64) -> u64 {
    if bucket < 2 * SHARE {
        return bucket;
    }
    let power = bucket / SHARE - 1;
    let lowest = (bucket - power * SHARE) << power;
    lowest + (1 << power) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_never_too_small_and_hardly_too_great() {
        let mut values: Vec<u64> = (0..5_000).map(|n: u64| n * n * n / 1_000 + n).collect();
        let mut histogram = Histogram::default();
        values.iter().for_each(|&value| histogram.record(value));
        values.sort_unstable();
        for percent in [0.0, 1.0, 50.0, 95.0, 99.0, 100.0] {
            let rank = ((values.len() as f64 * percent / 100.0).ceil() as usize).max(1);
            let (exact, found) = (values[rank - 1], histogram.percentile(percent).unwrap());
            assert!(found >= exact && found <= exact + exact / SHARE, "{exact} and {found}");
        }
        assert_eq!(histogram.percentile(100.0), values.last().copied());
    }

    #[test]
    fn buckets_follow_one_another() {
        for micros in 0..100_000 {
            assert!(greatest_of(bucket(micros)) >= micros);
            assert!(bucket(micros + 1) - bucket(micros) <= 1);
            assert!(bucket(greatest_of(bucket(micros)) + 1) == bucket(micros) + 1);
        }
    }

    #[test]
    fn merged_is_as_recorded_in_one() {
        let (mut one, mut two, mut both) = <(Histogram, Histogram, Histogram)>::default();
        for micros in [3, 70, 7_000_000, 71, 3] {
            if micros % 2 == 0 { &mut one } else { &mut two }.record(micros);
            both.record(micros);
        }
        one.merge(&two);
        assert_eq!(one, both);
        assert_eq!(Histogram::default().percentile(99.0), None);
    }
}
