//! What a lane does when its connection breaks during a commit: it asks the database, over a new
//! connection, which of the batches committed.
//!
//! Invariants:
//! - No caller receives "not committed" for a batch that may still commit. Until the old session is
//!   known to have ended, the actions of its batches count as open.
//! - A row that is not there means "not committed" only while nobody can have deleted it.
//! - Only a server that accepts writes is believed. A standby may have received a commit that it does
//!   not show yet, and may become the primary.

use std::sync::Arc;
use std::time::Duration;

use super::in_flight::InFlight;
use super::tasks::TaskKind;
use super::worker::Lane;
use crate::db::driver::{Connection, Driver, Route};
use crate::db::{ActionId, CommitError, Committed, DbError};

impl Lane {
    /// Answers every batch whose outcome is found out; what stays in flight did not commit.
    /// Returns a connection for the next commit, if one is usable.
    pub(super) async fn settle(
        lane: &Arc<Self>,
        kind: TaskKind,
        in_flight: &mut InFlight,
        cause: &DbError,
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
        let session = in_flight.sent_over()?; // nothing was sent
        let asking = ask_until_answered(&*lane.driver, session.identity.as_deref(), &actions);
        match tokio::time::timeout(lane.settle_timeout, asking).await {
            Ok((mut connection, committed)) => {
                in_flight.settled();
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
                if !session.sent.rows_are_kept() {
                    in_flight.answer_each(|queued| {
                        let why = format!("{cause}; and it was sent so long ago that its rows may have been deleted");
                        Some(Err(CommitError::Unknown(queued.batch.action, why)))
                    });
                }
                Self::prepare(lane, kind, &mut *connection).await.ok().map(|()| connection)
            }
            Err(_) => {
                Self::keep_asking(lane, session, &actions);
                let timeout = lane.settle_timeout;
                in_flight.answer_each(|queued| {
                    let why = format!(
                        "{cause}; and no server that accepts writes could be asked within {timeout:?}"
                    );
                    Some(Err(CommitError::Unknown(queued.batch.action, why)))
                });
                None
            }
        }
    }
}

/// Connects and asks which actions committed, with growing pauses, until there is an answer.
pub(super) async fn ask_until_answered(
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
