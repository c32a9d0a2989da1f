//! One shard of the registry.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::Slot;
use crate::config::same_key;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
use crate::db::RawConnection;
use crate::db::doorbell::DoorbellMember;
use crate::db::{
    BarrierError, Capabilities, Database, DbError, PoolStatus, Route, TransactionError,
    TransactionManager, pass_barrier,
};
use crate::domain::{Changed, Entity, FieldError, ShardIdentifier, Stored};
use crate::outbox::deliveries::{
    Backlog, Claimant, Delivery, Due, PlacesPage, StoredEvent, StoredEvents, Subscriptions, Swept,
    WantedDue, backlog, claimed_rows, due, is_sweep_due, stored_events, stored_places, sweep,
};
use crate::outbox::{Mark, StoredId};

/// One shard of a [`Databases`](super::Databases). Cheap to clone.
#[derive(Clone)]
pub struct Shard {
    pub(super) database: Arc<Database>,
    pub(super) slots: Vec<Slot>,
}

impl Shard {
    pub(crate) fn database(&self) -> &Arc<Database> {
        &self.database
    }

    /// The identifier.
    pub fn identifier(&self) -> ShardIdentifier {
        self.database.shard
    }

    /// The address of the primary, without secrets.
    pub fn address(&self) -> &str {
        self.database.driver.address()
    }

    /// Transactions of user code on this shard.
    pub fn transactions(&self) -> TransactionManager {
        TransactionManager::new(self.database.clone())
    }

    /// The capabilities of the database.
    pub fn capabilities(&self) -> Capabilities {
        *self.database.driver.capabilities()
    }

    /// The status of a pool.
    pub fn pool_status(&self, route: Route) -> PoolStatus {
        self.database.pool(route).status()
    }

    /// Returns once every transaction has ended that had begun on this shard before the call, in any
    /// process. Transactions that begin later are not waited for, and nobody waits for this.
    ///
    /// It closes something without a lock. Actions that may only commit while a row is as they have read
    /// it say so by [`expect_unlocked`](crate::action::ActionPlan::expect_unlocked). Who commits a change
    /// of this row and then passes the barrier sees, from then on, everything that any of them has
    /// committed, and none of them commits any more.
    ///
    /// | Database | How transactions are seen |
    /// |---|---|
    /// | PostgreSQL | by their locks on their own virtual ids, which any login may see |
    /// | MySQL, MariaDB | in `information_schema.innodb_trx`, which needs the privilege `PROCESS`. Without it the call takes `commit_timeout` |
    /// | SQLite | there is one writer at a time, so there is nothing to wait for |
    ///
    /// Transactions that have written nothing are waited for, too, but only for the `commit_timeout` of
    /// the configuration: no commit of this framework takes longer, and a dump takes hours.
    ///
    /// Fails if transactions are still open after `longest`, and names them, or if the server has not listed
    /// them by then. Several calls at a time wait together.
    pub async fn transaction_barrier(&self, longest: Duration) -> Result<(), BarrierError> {
        pass_barrier(&self.database, longest).await
    }

    /// A further database of the shard, by its name in any spelling: `lockConfig`, `lock-config`.
    pub fn slot(&self, name: &str) -> Option<&Slot> {
        self.slots.iter().find(|slot| same_key(slot.name(), name))
    }

    /// The mark of a delivery on this shard.
    #[doc(hidden)]
    pub fn mark(&self, delivery: &Stored<Delivery>) -> Result<Mark, FieldError> {
        Mark::delivery(self.database.clone(), delivery)
    }

    /// The mark of a run on this shard that goes on.
    #[doc(hidden)]
    pub fn mark_of_run<T: Entity>(&self, run: &Stored<T>, job: &str) -> Result<Mark, FieldError> {
        Mark::run(self.database.clone(), run, job)
    }

    /// The mark of a run on this shard that ends with the commit.
    #[doc(hidden)]
    pub fn mark_of_ended_run<T: Entity>(
        &self,
        run: Changed<T>,
        job: &str,
    ) -> Result<Mark, FieldError> {
        Mark::end_of_run(self.database.clone(), run, job)
    }

    /// The time by the clock of the primary.
    #[doc(hidden)]
    pub async fn database_time(&self) -> Result<DateTime<Utc>, DbError> {
        self.database.time().await
    }

    /// The events with these ids, in no order.
    #[doc(hidden)]
    pub async fn events(&self, ids: Vec<Uuid>) -> Result<Vec<StoredEvent>, DbError> {
        let events = stored_events(&self.database, ids, None).await?;
        Ok(events.into_iter().map(|(event, _)| event).collect())
    }

    /// The events with these ids, in no order. Instead of a payload with more than `longest` bytes, its size
    /// is returned.
    #[doc(hidden)]
    pub async fn short_events(
        &self,
        ids: Vec<Uuid>,
        longest: usize,
    ) -> Result<Vec<(StoredEvent, Option<usize>)>, DbError> {
        stored_events(&self.database, ids, Some(longest)).await
    }

    /// The places of stored events in the window after an id.
    #[doc(hidden)]
    pub async fn stored_places(
        &self,
        wanted: &StoredEvents,
        after: &StoredId,
    ) -> Result<PlacesPage, DbError> {
        stored_places(&self.database, wanted, after).await
    }

    /// Counts what is not handled yet, by handler and state.
    #[doc(hidden)]
    pub async fn backlog(&self) -> Result<Vec<Backlog>, DbError> {
        backlog(&self.database).await
    }

    /// The deliveries that are due: for each question, up to `most`.
    #[doc(hidden)]
    pub async fn due(
        &self,
        wanted: &[WantedDue<'_>],
        now: DateTime<Utc>,
        most: usize,
    ) -> Result<Due, DbError> {
        due(&self.database, wanted, now, most).await
    }

    /// The ids of up to `most` deliveries that are claimed.
    #[doc(hidden)]
    pub async fn claimed(&self, claimant: Claimant, most: usize) -> Result<Vec<Uuid>, DbError> {
        claimed_rows(&self.database, claimant, most).await
    }

    /// Adds a node to the doorbell of this shard. As long as there is one, commits of this process
    /// let nodes of other processes know of deliveries. `listens`: the node hears of theirs.
    #[doc(hidden)]
    pub fn join_doorbell(&self, listens: bool) -> DoorbellMember {
        self.database.doorbell.join(listens)
    }

    /// Gives deliveries to events on this shard that lack some.
    #[doc(hidden)]
    pub async fn sweep(
        &self,
        subscriptions: &Subscriptions,
        most: usize,
    ) -> Result<Swept, TransactionError<DbError>> {
        sweep(&self.database, subscriptions, most).await
    }

    /// Whether events on this shard lack deliveries.
    #[doc(hidden)]
    pub async fn lacks_deliveries(&self, subscriptions: &Subscriptions) -> Result<bool, DbError> {
        is_sweep_due(&self.database, subscriptions).await
    }

    /// A connection for raw SQL on PostgreSQL.
    #[cfg(feature = "postgres")]
    pub async fn postgres(&self) -> Result<RawConnection<sqlx::PgConnection>, DbError> {
        RawConnection::checkout(&self.database.primary, crate::db::postgres::raw).await
    }

    /// A connection for raw SQL on MySQL or MariaDB.
    #[cfg(feature = "mysql")]
    pub async fn mysql(&self) -> Result<RawConnection<sqlx::MySqlConnection>, DbError> {
        RawConnection::checkout(&self.database.primary, crate::db::mysql::raw).await
    }

    /// A connection for raw SQL on SQLite.
    #[cfg(feature = "sqlite")]
    pub async fn sqlite(&self) -> Result<RawConnection<sqlx::SqliteConnection>, DbError> {
        RawConnection::checkout(&self.database.primary, crate::db::sqlite::raw).await
    }
}

impl std::fmt::Debug for Shard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shard")
            .field("identifier", &self.identifier())
            .field("address", &self.address())
            .finish_non_exhaustive()
    }
}
