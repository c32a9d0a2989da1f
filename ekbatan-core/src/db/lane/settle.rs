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

use tokio::time::{sleep, timeout};

use super::in_flight::InFlight;
use super::tasks::TaskKind;
use super::worker::Lane;
use crate::db::driver::{Connection, Route};
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
        let asking = ask_until_answered(lane, session.identity.as_deref(), &actions);
        match timeout(lane.settle_timeout, asking).await {
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
                let longest = lane.settle_timeout;
                in_flight.answer_each(|queued| {
                    let why = format!(
                        "{cause}; and no server that accepts writes could be asked within {longest:?}"
                    );
                    Some(Err(CommitError::Unknown(queued.batch.action, why)))
                });
                None
            }
        }
    }
}

/// Connects and asks which actions committed, with growing pauses, until there is an answer. A
/// connection that becomes silent is given up. A server that is slow gets more time to answer each time.
pub(super) async fn ask_until_answered(
    lane: &Lane,
    broken: Option<&str>,
    actions: &[ActionId],
) -> (Box<dyn Connection>, Vec<ActionId>) {
    let most = lane.commit_timeout.max(lane.connection_timeout);
    let mut patience = if lane.driver.capabilities().single_writer {
        Duration::MAX // SQLite runs in this process, and always answers
    } else {
        lane.connection_timeout
    };
    let mut pause = Duration::from_millis(20);
    loop {
        match lane.driver.connect(Route::Primary).await {
            Ok(mut connection) => {
                match timeout(patience, connection.settle(broken, actions)).await {
                    Ok(Ok(committed)) => return (connection, committed),
                    Ok(Err(error)) => {
                        tracing::debug!(%error, "asking what committed failed; trying again")
                    }
                    Err(_) => {
                        tracing::debug!(?patience, "no answer to what committed; trying again");
                        patience = patience.saturating_mul(2).min(most);
                    }
                }
            }
            Err(error) => {
                tracing::debug!(%error, "connecting to ask what committed failed; trying again")
            }
        }
        sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(1));
    }
}
