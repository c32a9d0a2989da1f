//! Counts that halve with time, and a sketch that counts conflicts of any number of keys in
//! bounded memory.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hash};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The time in which a count halves.
const HALF_LIFE: Duration = Duration::from_secs(1);
/// How far the clock of a caller may be behind that of another one, in milliseconds.
const MOST_BEHIND: u32 = 60_000;
const ROWS: usize = 2;
/// The cells of a row: 256 KiB for all rows. A thousand conflicts a second, each on another
/// key, make no key look hot.
const WIDTH: usize = 16_384;

/// A count that halves every [`HALF_LIFE`].
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DecayingCount {
    value: f32,
    at: Duration,
}

impl DecayingCount {
    pub(super) fn new(value: f32, at: Duration) -> Self {
        Self { value, at }
    }

    pub(super) fn at(self, now: Duration) -> f32 {
        let lives = now.saturating_sub(self.at).as_secs_f32() / HALF_LIFE.as_secs_f32();
        self.value * (-lives).exp2()
    }

    pub(super) fn increment(&mut self, now: Duration) {
        *self = Self { value: self.at(now) + 1.0, at: now.max(self.at) };
    }

    /// The count and its time in one word. The time is in milliseconds and wraps every 49
    /// days, so a count of exactly that age can be taken for a recent one.
    fn pack(self) -> u64 {
        u64::from(self.value.to_bits()) << 32 | u64::from(self.at.as_millis() as u32)
    }

    fn unpack(word: u64, now: Duration) -> Self {
        let age = (now.as_millis() as u32).wrapping_sub(word as u32);
        // Another thread may have stored a time that is a little later; the age is zero then.
        let age = if age > u32::MAX - MOST_BEHIND { 0 } else { age };
        let at = now.saturating_sub(Duration::from_millis(age.into()));
        Self { value: f32::from_bits((word >> 32) as u32), at }
    }
}

/// Counts per key in a fixed number of cells.
pub(super) struct ConflictSketch {
    cells: Box<[AtomicU64]>,
    hashers: [RandomState; ROWS],
}

impl Default for ConflictSketch {
    fn default() -> Self {
        Self {
            cells: (0..ROWS * WIDTH).map(|_| AtomicU64::default()).collect(),
            hashers: std::array::from_fn(|_| RandomState::new()),
        }
    }
}

impl ConflictSketch {
    /// Counts a conflict and returns the key's count. Keys that share a cell in every row add
    /// up, so a count can be too high and never too low.
    pub(super) fn count(&self, key: &impl Hash, now: Duration) -> f32 {
        let rows = self.hashers.iter().zip(self.cells.chunks_exact(WIDTH));
        rows.map(|(hasher, row)| {
            let cell = &row[hasher.hash_one(key) as usize % WIDTH];
            let mut counted = DecayingCount::default();
            // The closure always returns a value, so the update cannot fail.
            let _ = cell.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |word| {
                counted = DecayingCount::unpack(word, now);
                counted.increment(now);
                Some(counted.pack())
            });
            counted.value
        })
        .fold(f32::INFINITY, f32::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    #[test]
    fn a_count_stays_old_for_as_long_as_its_time_can_tell() {
        let word = DecayingCount::new(8.0, DAY).pack();
        for days in [1, 25, 30, 49] {
            let now = DAY * (days + 1);
            assert_eq!(DecayingCount::unpack(word, now).at(now), 0.0, "after {days} days");
        }
    }

    #[test]
    fn a_count_of_a_later_time_is_fresh() {
        let word = DecayingCount::new(8.0, DAY).pack();
        let now = DAY - Duration::from_secs(1);
        assert_eq!(DecayingCount::unpack(word, now).at(now), 8.0);
    }
}
