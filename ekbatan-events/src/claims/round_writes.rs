//! The writes of a round, which do not wait for rows that other transactions keep locked.
//!
//! Invariant: a row that is locked keeps a round from this row only, and no longer than the limit. What is
//! written after that, the check of claimed deliveries finds. From then on, rounds first ask which of their
//! rows are locked, and leave those alone. A round that leaves a row alone says so: another one follows soon.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ekbatan_core::__private::deliveries::Delivery;
use ekbatan_core::domain::Stored;
use ekbatan_core::shard::Shard;
use tokio::time::Instant;
use uuid::Uuid;

use crate::error::EventsError;
use crate::nodes::membership::free_deliveries;

/// How long the writes of a round take at most, if no round has taken longer.
const SHORTEST_LIMIT: Duration = Duration::from_secs(2);

/// How long they take at most, whatever rounds have taken.
const LONGEST_LIMIT: Duration = Duration::from_secs(15);

/// For how long rounds ask which of their rows are locked after one was.
const CAREFUL: Duration = Duration::from_secs(60);

/// How the writes of the next round are made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WriteTerms {
    limit: Duration,
    careful_until: Option<Instant>,
}

impl Default for WriteTerms {
    fn default() -> Self {
        Self { limit: SHORTEST_LIMIT, careful_until: None }
    }
}

impl WriteTerms {
    fn is_careful(&self) -> bool {
        self.careful_until.is_some_and(|until| Instant::now() < until)
    }

    /// Writes that may take so long.
    pub(crate) fn at_most(limit: Duration) -> Self {
        Self { limit, careful_until: None }
    }

    /// Asks for locked rows for as long as the others do.
    pub(crate) fn careful_as(&mut self, others: Self) {
        self.careful_until = others.careful_until;
    }

    /// Takes note of the writes of a round. A database that is slow, and has no locked row, gets more time.
    fn note(&mut self, took: Duration, is_late: bool) {
        let limit = if is_late { self.limit * 2 } else { took * 4 };
        self.limit = limit.clamp(SHORTEST_LIMIT, LONGEST_LIMIT);
        if is_late {
            self.careful_until = Some(Instant::now() + CAREFUL);
        }
    }
}

/// The writes of one round.
pub(crate) struct RoundWrites<'w> {
    shard: &'w Shard,
    terms: WriteTerms,
    begun: Instant,
    /// Whether a write has waited for as long as it may.
    is_late: AtomicBool,
    /// Whether a row is left as it was, because it was locked or its write failed.
    left_rows: AtomicBool,
}

impl<'w> RoundWrites<'w> {
    pub(crate) fn begin(shard: &'w Shard, terms: WriteTerms) -> Self {
        let (is_late, left_rows) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { shard, terms, begun: Instant::now(), is_late, left_rows }
    }

    /// Waits for a write. `None` if a row is locked, or if the answer does not come in time.
    pub(crate) async fn answer<T>(
        &self,
        write: impl Future<Output = Result<T, EventsError>>,
    ) -> Result<Option<T>, EventsError> {
        // A database with one writer locks no single rows.
        let answered = if self.shard.capabilities().single_writer {
            write.await
        } else {
            match tokio::time::timeout_at(self.begun + self.terms.limit, write).await {
                Ok(answered) => answered,
                Err(late) => {
                    self.note_late(&late);
                    return Ok(None);
                }
            }
        };
        match answered {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if error.is_locked() => {
                self.note_late(&error);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn note_late(&self, error: &dyn std::error::Error) {
        self.is_late.store(true, Ordering::Relaxed);
        self.note_failure(error);
    }

    pub(crate) fn note_failure(&self, error: &dyn std::error::Error) {
        self.left_rows.store(true, Ordering::Relaxed);
        let shard = self.shard.identifier();
        tracing::warn!(%shard, %error, "deliveries were not claimed or put off; a row may be locked");
    }

    /// Those of these rows that another transaction keeps locked, if a round has met one lately.
    pub(crate) async fn locked(
        &self,
        rows: impl Iterator<Item = &Stored<Delivery>>,
    ) -> Result<HashSet<Uuid>, EventsError> {
        let asks = self.is_careful() && !self.shard.capabilities().single_writer;
        let mut locked: HashSet<Uuid> = rows.filter(|_| asks).map(|row| row.id.uuid()).collect();
        if locked.is_empty() {
            return Ok(locked);
        }
        for free in free_deliveries(self.shard, locked.iter().copied().collect()).await? {
            locked.remove(&free);
        }
        self.left_rows.fetch_or(!locked.is_empty(), Ordering::Relaxed);
        Ok(locked)
    }

    /// Whether each row is written by itself, because a row was locked lately.
    pub(crate) fn is_careful(&self) -> bool {
        self.terms.is_careful()
    }

    /// Whether a row is left as it was, because it was locked or its write failed.
    pub(crate) fn left_rows(&self) -> bool {
        self.left_rows.load(Ordering::Relaxed)
    }

    /// Ends the writes. Returns how the next ones are made.
    pub(crate) fn end(self) -> WriteTerms {
        let mut terms = self.terms;
        terms.note(self.begun.elapsed(), self.is_late.into_inner());
        terms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_database_gets_more_time_and_a_quick_one_less_again() {
        let (mut terms, slow) = (WriteTerms::default(), Duration::from_secs(3));
        assert!(!terms.is_careful());
        terms.note(terms.limit, true);
        assert_eq!(terms.limit, SHORTEST_LIMIT * 2);
        assert!(terms.is_careful());
        terms.note(slow, false);
        assert_eq!(terms.limit, slow * 4, "what takes three seconds each time does not fail again");
        terms.note(Duration::from_millis(1), false);
        assert_eq!(terms.limit, SHORTEST_LIMIT);
        (0..10).for_each(|_| terms.note(terms.limit, true));
        assert_eq!(terms.limit, LONGEST_LIMIT);
    }
}
