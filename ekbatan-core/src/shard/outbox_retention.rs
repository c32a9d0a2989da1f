//! Deletes old rows of the outbox on every shard.

use std::time::Duration;

use super::Databases;
use super::shards::visit;
use crate::db::DbError;
use crate::db::eventlog::EVENTS_KEPT;
use crate::domain::ShardIdentifier;
use crate::outbox::prune;

/// Error returned by [`Databases::prune_outbox`] and [`Databases::prune_fences`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PruneError {
    /// The rows are needed for longer than that.
    #[error(
        "rows of the outbox are kept for at least {kept:?}, to find out what committed; {asked:?} is less"
    )]
    #[non_exhaustive]
    TooYoung {
        /// The age that was asked for.
        asked: Duration,
        /// The least age, [`Databases::OUTBOX_KEPT`].
        kept: Duration,
    },
    /// Some shards failed. The others were pruned.
    #[error("{}", .0.iter().map(|(shard, error)| format!("shard {shard}: {error}")).collect::<Vec<_>>().join("\n"))]
    Shards(Vec<(ShardIdentifier, DbError)>),
}

impl Databases {
    /// For how long no row of the outbox can be deleted after its commit. A lane that lost its
    /// connection relies on it.
    pub const OUTBOX_KEPT: Duration = EVENTS_KEPT;

    /// Deletes, on every shard, the rows of the outbox that are `older_than` this: those that are
    /// marked as delivered, and those without an event. Returns how many. The clock of each
    /// database decides; on SQLite the dates of the rows are those of the application's clock.
    ///
    /// It reads the table once, in pages, and deletes at most a thousand rows in a transaction.
    /// Run it from time to time, in one process. An [outcome] can be asked for as long as the rows of
    /// the execution are there.
    ///
    /// [outcome]: crate::action::ActionExecutor::outcome
    ///
    /// ```
    /// # use std::time::Duration;
    /// # async fn run(databases: &ekbatan_core::shard::Databases) -> Result<(), Box<dyn std::error::Error>> {
    /// let week = Duration::from_secs(7 * 24 * 60 * 60);
    /// let deleted = databases.prune_outbox(week).await?;
    /// # Ok(()) }
    /// ```
    pub async fn prune_outbox(&self, older_than: Duration) -> Result<u64, PruneError> {
        if older_than < Self::OUTBOX_KEPT {
            return Err(PruneError::TooYoung { asked: older_than, kept: Self::OUTBOX_KEPT });
        }
        let pruning = self.shards.all().map(|database| async move {
            prune(database, older_than).await.map_err(|error| (database.shard, error))
        });
        gather(visit(pruning.collect()).await)
    }
}

/// The sum over all shards, or the failures.
pub(super) fn gather(
    pruned: Vec<Result<u64, (ShardIdentifier, DbError)>>,
) -> Result<u64, PruneError> {
    let (mut deleted, mut failures) = (0, Vec::new());
    for of_shard in pruned {
        match of_shard {
            Ok(count) => deleted += count,
            Err(failure) => failures.push(failure),
        }
    }
    if failures.is_empty() { Ok(deleted) } else { Err(PruneError::Shards(failures)) }
}
