//! Streams that other nodes handle at present, and those with a locked row. A node leaves them alone for a
//! while, so that what waits there does not keep it from finding other deliveries.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::claims::claimed::StreamKey;

/// For how long a stream is left alone the first time.
const SHORTEST: Duration = Duration::from_millis(50);

/// For how long it is left alone at most.
const LONGEST: Duration = Duration::from_millis(400);

/// How many streams are remembered.
const MOST: usize = 1_024;

/// The streams that are left alone.
#[derive(Debug, Default)]
pub(crate) struct Elsewhere {
    streams: HashMap<StreamKey, Rest>,
}

#[derive(Debug, Clone, Copy)]
struct Rest {
    until: Instant,
    length: Duration,
}

impl Elsewhere {
    /// Leaves a stream alone, for longer than the last time if it was just looked at again. `false` if so many are left
    /// alone that this one cannot be.
    pub(crate) fn leave(&mut self, stream: StreamKey, now: Instant) -> bool {
        let last = self.streams.get(&stream).filter(|last| now < last.until + LONGEST);
        let length = last.map_or(SHORTEST, |last| (last.length * 2).min(LONGEST));
        self.leave_for(stream, now, length)
    }

    /// The same, for this long.
    pub(crate) fn leave_for(&mut self, stream: StreamKey, now: Instant, length: Duration) -> bool {
        self.streams.retain(|_, rest| now < rest.until + LONGEST);
        let has_place = self.streams.len() < MOST || self.streams.contains_key(&stream);
        if has_place {
            self.streams.insert(stream, Rest { until: now + length, length });
        }
        has_place
    }

    /// The streams that are left alone at a time.
    pub(crate) fn at(&self, now: Instant) -> impl Iterator<Item = StreamKey> {
        self.streams.iter().filter(move |(_, rest)| now < rest.until).map(|(stream, _)| *stream)
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    const LEDGER: &str = "ledger.post";

    fn stream(n: u128) -> StreamKey {
        (LEDGER, Uuid::from_u128(n))
    }

    #[test]
    fn a_stream_is_left_alone_for_longer_each_time_and_then_looked_at_again() {
        let (mut elsewhere, mut now) = (Elsewhere::default(), Instant::now());
        for length in [50, 100, 200, 400, 400].map(Duration::from_millis) {
            elsewhere.leave(stream(1), now);
            now += length - Duration::from_millis(1);
            assert_eq!(elsewhere.at(now).count(), 1, "{length:?}");
            now += Duration::from_millis(1);
            assert_eq!(elsewhere.at(now).count(), 0, "{length:?}");
        }
        // Free for long.
        now += LONGEST;
        elsewhere.leave(stream(1), now);
        assert_eq!(elsewhere.at(now + SHORTEST).count(), 0);
    }

    #[test]
    fn no_more_streams_are_remembered_than_a_question_can_name() {
        let (mut elsewhere, now) = (Elsewhere::default(), Instant::now());
        assert_eq!((0..2_000).filter(|n| elsewhere.leave(stream(*n), now)).count(), MOST);
        assert!(elsewhere.leave(stream(0), now));
        assert_eq!(elsewhere.at(now).count(), MOST);
    }
}
