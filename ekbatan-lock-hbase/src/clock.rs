//! The clock of the cluster, as the server has stamped the last changes.
//!
//! Invariant: the clock of this machine is not asked. Between two stamps, time is counted from the
//! last one.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

#[derive(Default)]
pub(crate) struct ServerClock {
    /// A time of the server in milliseconds, and when it was or a little later.
    last: Mutex<Option<(u64, Instant)>>,
}

impl ServerClock {
    fn last(&self) -> MutexGuard<'_, Option<(u64, Instant)>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the server has just stamped a change with this time.
    pub(crate) fn note(&self, stamp: u64) {
        *self.last() = Some((stamp, Instant::now()));
    }

    /// The server's time in milliseconds, or a little less. Zero if it is not known yet.
    pub(crate) fn now(&self) -> u64 {
        let last = *self.last();
        last.map_or(0, |(stamp, at)| {
            let since = u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX);
            stamp.saturating_add(since)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_clock_of_the_server_goes_on_between_its_stamps() {
        let clock = ServerClock::default();
        assert_eq!(clock.now(), 0);
        clock.note(5_000);
        tokio::time::sleep(Duration::from_millis(7)).await;
        assert_eq!(clock.now(), 5_007);
        // It was set back.
        clock.note(100);
        assert_eq!(clock.now(), 100);
    }
}
