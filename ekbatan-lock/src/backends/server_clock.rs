//! What a server's clock showed, so that times of that clock can be compared with moments here.
//!
//! Invariant: of the two possible errors, the harmless one is made. A time by the server's clock is
//! taken to come a little earlier than it does.

// Each database uses a part of it.
#![allow(dead_code)]

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How long a reading is relied on for when a take is given up: the clocks may run at different
/// speeds.
const FRESH: Duration = Duration::from_secs(600);

/// The last reading.
#[derive(Default)]
pub(crate) struct ServerClock(Mutex<Option<ClockReading>>);

/// A time that the clock showed between two moments, in microseconds since 1970.
#[derive(Clone, Copy)]
struct ClockReading {
    before: Instant,
    after: Instant,
    micros: i64,
}

impl ServerClock {
    /// Notes the time in an answer that came now to a request that was sent at `before`.
    pub(crate) fn note(&self, before: Instant, micros: i64) {
        *self.reading() = Some(ClockReading { before, after: Instant::now(), micros });
    }

    /// When the clock shows this time, or a little earlier. Now, if nothing was read.
    pub(crate) fn moment_of(&self, micros: i64) -> Instant {
        let Some(read) = *self.reading() else { return Instant::now() };
        let rest = u64::try_from(micros.saturating_sub(read.micros)).unwrap_or_default();
        read.before + Duration::from_micros(rest)
    }

    /// What the clock shows after this time, or a little less. `None` if there is no reading that
    /// can be relied on.
    pub(crate) fn shows_after(&self, rest: Duration) -> Option<i64> {
        let read = (*self.reading())?;
        let since = read.after.elapsed();
        let later = i64::try_from((since + rest).as_micros()).ok()?;
        (since < FRESH).then(|| read.micros.saturating_add(later))
    }

    /// Whether there is a reading that can be relied on.
    pub(crate) fn is_fresh(&self) -> bool {
        self.shows_after(Duration::ZERO).is_some()
    }

    fn reading(&self) -> MutexGuard<'_, Option<ClockReading>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_time_of_the_server_comes_a_little_early() {
        let (clock, sent) = (ServerClock::default(), Instant::now());
        assert_eq!(clock.shows_after(Duration::ZERO), None);
        tokio::time::advance(Duration::from_secs(2)).await;
        clock.note(sent, 5_000_000);
        assert_eq!(clock.moment_of(8_000_000), sent + Duration::from_secs(3));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(clock.shows_after(Duration::from_secs(10)), Some(16_000_000));
        tokio::time::advance(FRESH).await;
        assert_eq!(clock.shows_after(Duration::ZERO), None, "the clocks may differ by now");
    }
}
