//! The entry point to the rows of one table.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use super::pending::PendingReads;
use super::source::After;
use crate::clock::Clock;
use crate::db::{CommitToken, Route, StagedExpectation, Transaction};
use crate::domain::Entity;
use crate::shard::{Databases, Fencing, Shard, Shards};

/// The rows of one table.
///
/// Reads return rows that are not deleted. They use the primary unless [`Repository::on_replica`]
/// is called, and a transaction only if [`Repository::within`] names it. The last of these calls
/// decides where the repository reads.
///
/// If the rows are spread over shards, a read by id queries the one shard of the id. Every other
/// read queries all shards, several concurrently, and returns rows in the order of the shards; pages
/// and streams are merged into one order.
pub struct Repository<T> {
    pub(super) shards: Arc<Shards>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) route: Route,
    pub(super) after: Option<Arc<After>>,
    pub(super) within: Option<Transaction>,
    pub(super) pending: Option<Arc<dyn PendingReads>>,
    pub(super) fencing: Option<Arc<Fencing>>,
    pub(super) holder: &'static str,
    /// Whether writes may commit beside a transaction that the task has open.
    pub(super) outside_transaction: bool,
    /// Rows that must be unchanged when a write commits.
    pub(super) expected: Vec<StagedExpectation>,
    of: PhantomData<fn() -> T>,
}

impl Databases {
    /// The rows of `T`.
    pub fn repository<T: Entity>(&self) -> Repository<T> {
        Repository::new(self.shards.clone(), self.clock.clone(), "repository")
    }
}

impl<T: Entity> Repository<T> {
    pub(crate) fn new(shards: Arc<Shards>, clock: Arc<dyn Clock>, holder: &'static str) -> Self {
        Self {
            shards,
            clock,
            route: Route::Primary,
            after: None,
            within: None,
            pending: None,
            fencing: None,
            holder,
            outside_transaction: false,
            expected: Vec::new(),
            of: PhantomData,
        }
    }

    /// The same rows, with the pending rows of earlier calls of the same group.
    pub(crate) fn with_pending(mut self, pending: Option<Arc<dyn PendingReads>>) -> Self {
        self.pending = pending;
        self
    }

    /// Returns a repository whose first read of each shard raises the fences there.
    pub(crate) fn fenced(mut self, fencing: Option<Arc<Fencing>>) -> Self {
        self.fencing = fencing;
        self
    }

    /// Returns a repository that reads from the replica, which may lag behind. Without a replica it
    /// reads from the primary.
    #[must_use]
    pub fn on_replica(mut self) -> Self {
        self.route = Route::Replica;
        self.after = None;
        self.within = None;
        self.pending = None;
        self
    }

    /// Returns a repository that reads from the replica after it has applied a commit. If the replica
    /// has not applied it after `patience`, the read goes to the primary. A replica that does not answer takes up
    /// to `connection-timeout` more.
    #[must_use]
    pub fn on_replica_after(mut self, commit: &CommitToken, patience: Duration) -> Self {
        self.route = Route::Replica;
        self.within = None;
        self.pending = None;
        self.after = Some(Arc::new(After { token: commit.clone(), patience }));
        self
    }

    /// Returns a repository of one shard alone: reads find the rows that are there, and new rows are
    /// written there, wherever the placement of `T` would look for them.
    #[must_use]
    pub fn on_shard(mut self, shard: &Shard) -> Self {
        self.shards = Arc::new(Shards::only(shard.database()));
        self.within = None;
        self.pending = None;
        self
    }

    /// Returns a repository that reads and writes in an open transaction, and thus only on its shard.
    /// Ids and rows of another shard are rejected. A read by condition, a page or a count finds the
    /// rows of that shard alone.
    ///
    /// In an action under a lease, the first read of a shard raises the fence there, over a connection
    /// of its own. So read the shard once through `ctx` before you begin the transaction: otherwise each
    /// such action needs two connections of the pool at a time, and what the transaction has read
    /// before by SQL is not fenced.
    #[must_use]
    pub fn within(&self, transaction: &Transaction) -> Self {
        Self {
            route: Route::Primary,
            after: None,
            within: Some(transaction.clone()),
            pending: None,
            ..self.clone()
        }
    }

    /// Returns a repository whose writes may commit beside a transaction that the task has open on
    /// the same database. They stay even if the transaction is rolled back. Without this such a
    /// write is refused. On SQLite it is refused always: the transaction is the one writer.
    #[must_use]
    pub fn outside_transaction(mut self) -> Self {
        self.outside_transaction = true;
        self.within = None;
        self
    }
}

impl<T> Clone for Repository<T> {
    fn clone(&self) -> Self {
        Self {
            shards: self.shards.clone(),
            clock: self.clock.clone(),
            route: self.route,
            after: self.after.clone(),
            within: self.within.clone(),
            pending: self.pending.clone(),
            fencing: self.fencing.clone(),
            holder: self.holder,
            outside_transaction: self.outside_transaction,
            expected: self.expected.clone(),
            of: PhantomData,
        }
    }
}

impl<T> std::fmt::Debug for Repository<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Repository")
            .field("rows", &std::any::type_name::<T>())
            .field("route", &self.route)
            .finish_non_exhaustive()
    }
}
