//! What a lane does when its connection breaks during a commit: it asks the database, over a new
//! connection, which of the batches committed.
//!
//! Invariants:
//! - No caller receives "not committed" for a batch that may still commit. Until the old session is
//!   known to have ended, the actions of its batches count as open.
//! - A row that is not there means "not committed" only while nobody can have deleted it.

use std::time::{Duration, Instant, SystemTime};

use super::open_actions::OpenAction;
use super::queue::InFlight;
use super::worker::Lane;
use crate::db::driver::{Connection, Driver, Route};
use crate::db::eventlog::EVENTS_KEPT;
use crate::db::{ActionId, CommitError, Committed, DbError};

/// When batches were sent, by two clocks: one may stand still while the machine sleeps, the other
/// may be set back.
#[derive(Debug, Clone, Copy)]
pub(super) struct SentAt {
    monotonic: Instant,
    system: SystemTime,
}

impl SentAt {
    pub(super) fn now() -> Self {
        Self { monotonic: Instant::now(), system: SystemTime::now() }
    }

    /// Whether a row that was written since cannot have been deleted. Half of the time is kept
    /// for the server's clock.
    fn rows_are_kept(self) -> bool {
        let elapsed = self.system.elapsed().unwrap_or_default().max(self.monotonic.elapsed());
        elapsed < EVENTS_KEPT / 2
    }
}

impl Lane {
    /// Answers every batch whose outcome is found out; what stays in flight did not commit.
    /// Returns a connection for the next commit, if one is usable.
    pub(super) async fn settle(
        &self,
        broken: Option<&str>,
        in_flight: &mut InFlight,
        cause: &DbError,
        sent: SentAt,
    ) -> Option<Box<dyn Connection>> {
        in_flight.answer_each(|queued| {
            (!queued.batch.traceable).then(|| {
                let why = format!("{cause}; the write left no action id by which to look it up");
                Err(CommitError::Unknown(queued.batch.action, why))
            })
        });
        let actions: Vec<ActionId> =
            in_flight.batches().iter().map(|queued| queued.batch.action).collect();
        if actions.is_empty() {
            return None;
        }
        let asking = ask_until_answered(&*self.driver, broken, &actions);
        match tokio::time::timeout(self.settle_timeout, asking).await {
            Ok((mut connection, committed)) => {
                in_flight.answer_each(|queued| {
                    committed.contains(&queued.batch.action).then(|| {
                        Ok(Committed {
                            action: queued.batch.action,
                            round_trips: 1,
                            folded: actions.len(),
                            lane_wait: Duration::ZERO,
                            token: None,
                        })
                    })
                });
                if !sent.rows_are_kept() {
                    in_flight.answer_each(|queued| {
                        let why = format!("{cause}; and it was sent so long ago that its rows may have been deleted");
                        Some(Err(CommitError::Unknown(queued.batch.action, why)))
                    });
                }
                self.prepare(&mut *connection).await.ok().map(|()| connection)
            }
            Err(_) => {
                self.keep_asking(broken, &actions);
                let timeout = self.settle_timeout;
                in_flight.answer_each(|queued| {
                    let why =
                        format!("{cause}; and the database could not be asked within {timeout:?}");
                    Some(Err(CommitError::Unknown(queued.batch.action, why)))
                });
                None
            }
        }
    }

    /// Goes on asking in the background after the callers received "unknown", and keeps the
    /// actions open until there is an answer.
    fn keep_asking(&self, broken: Option<&str>, actions: &[ActionId]) {
        let open: Vec<OpenAction> =
            actions.iter().map(|action| self.queue.open_actions().open(*action)).collect();
        let (driver, queue) = (self.driver.clone(), self.queue.clone());
        let (broken, actions) = (broken.map(str::to_owned), actions.to_vec());
        tokio::spawn(async move {
            tokio::select! {
                _ = ask_until_answered(&*driver, broken.as_deref(), &actions) => {}
                () = queue.closed() => {}
            }
            drop(open);
        });
    }
}

/// Connects and asks which actions committed, with growing pauses, until there is an answer.
async fn ask_until_answered(
    driver: &dyn Driver,
    broken: Option<&str>,
    actions: &[ActionId],
) -> (Box<dyn Connection>, Vec<ActionId>) {
    let mut pause = Duration::from_millis(20);
    loop {
        match driver.connect(Route::Primary).await {
            Ok(mut connection) => match connection.settle(broken, actions).await {
                Ok(committed) => return (connection, committed),
                Err(error) => {
                    tracing::debug!(%error, "asking what committed failed; trying again")
                }
            },
            Err(error) => {
                tracing::debug!(%error, "connecting to ask what committed failed; trying again")
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_row_means_not_committed_only_for_half_an_hour() {
        let now = SentAt::now();
        assert!(now.rows_are_kept());
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        let earlier = |by| SentAt { system: now.system - by, ..now };
        assert!(earlier(minutes(29)).rows_are_kept());
        assert!(!earlier(minutes(31)).rows_are_kept());
        // The system's clock was set back since.
        let ahead = SentAt { system: now.system + minutes(90), ..now };
        assert!(ahead.rows_are_kept());
    }
}
