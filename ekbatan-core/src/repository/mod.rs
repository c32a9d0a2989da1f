//! Reading and, outside of actions, writing the rows of one table.

mod condition;
mod error;
mod merge;
mod page;
mod pending;
mod read;
mod scatter;
mod source;
mod write;

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::db::{CommitToken, Route, Transaction};
use crate::domain::Entity;
use crate::shard::{Databases, Fencing, Shards};

pub use condition::{Column, Condition};
pub use error::{ReadError, ShardFailure, WriteError};
pub use page::{Direction, Page, PageRequest};
pub(crate) use pending::{PendingReads, PendingRow, RowKey};
pub use scatter::Reachable;

/// The rows of one table.
///
/// Reads see what is not deleted, on the primary unless [`Repository::on_replica`] says
/// otherwise, and never join an open transaction unless [`Repository::within`] names it.
///
/// Where the rows are spread over shards, reads by id ask the one shard that the id leads
/// to. All others ask every shard, several at a time, and answer in the order of the shards;
/// pages and streams are merged into one order.
pub struct Repository<T> {
    shards: Arc<Shards>,
    clock: Arc<dyn Clock>,
    route: Route,
    after: Option<Arc<After>>,
    within: Option<Transaction>,
    pending: Option<Arc<dyn PendingReads>>,
    fencing: Option<Arc<Fencing>>,
    holder: &'static str,
    of: PhantomData<fn() -> T>,
}

/// What a replica must have seen before it is read.
pub(crate) struct After {
    pub(crate) token: CommitToken,
    pub(crate) patience: Duration,
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
            of: PhantomData,
        }
    }

    /// The same rows, with the pending rows of earlier calls of the same group.
    pub(crate) fn with_pending(mut self, pending: Option<Arc<dyn PendingReads>>) -> Self {
        self.pending = pending;
        self
    }

    /// The same rows; the first read of a shard raises the fence there.
    pub(crate) fn fenced(mut self, fencing: Option<Arc<Fencing>>) -> Self {
        self.fencing = fencing;
        self
    }

    /// The same rows as the replica has them, which may lag; as the primary has them where
    /// there is no replica.
    #[must_use]
    pub fn on_replica(mut self) -> Self {
        self.route = Route::Replica;
        self.pending = None;
        self
    }

    /// The same rows as the replica has them once it has seen a commit. A replica that has
    /// not seen it after `patience` is left for the primary; with no patience it is left at
    /// once.
    #[must_use]
    pub fn on_replica_after(mut self, commit: &CommitToken, patience: Duration) -> Self {
        self.route = Route::Replica;
        self.pending = None;
        self.after = Some(Arc::new(After { token: commit.clone(), patience }));
        self
    }

    /// The same rows, read and written within an open transaction, and so on its shard only:
    /// ids and rows of another shard are refused.
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
            of: PhantomData,
        }
    }
}
