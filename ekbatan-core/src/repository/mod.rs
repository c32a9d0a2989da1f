//! Reading and, outside of actions, writing the rows of one table.

mod condition;
mod error;
mod page;
mod read;
mod stage;
mod write;

use std::marker::PhantomData;
use std::sync::Arc;

use crate::clock::Clock;
use crate::db::{Database, Route, Transaction};
use crate::domain::Entity;

pub use condition::{Column, Condition};
pub use error::{ReadError, WriteError};
pub use page::{Direction, Page, PageRequest};
pub(crate) use stage::{StageError, StageResult, Staged, resolve, stage_changed, stage_new};

/// The rows of one table.
///
/// Reads see what is not deleted, on the primary unless [`Repository::on_replica`] says
/// otherwise, and never join an open transaction unless [`Repository::within`] names it.
pub struct Repository<T> {
    database: Arc<Database>,
    clock: Arc<dyn Clock>,
    route: Route,
    within: Option<Transaction>,
    holder: &'static str,
    of: PhantomData<fn() -> T>,
}

impl<T: Entity> Repository<T> {
    pub(crate) fn new(
        database: Arc<Database>,
        clock: Arc<dyn Clock>,
        holder: &'static str,
    ) -> Self {
        Self { database, clock, route: Route::Primary, within: None, holder, of: PhantomData }
    }

    /// The same rows as the replica has them, which may lag; as the primary has them where
    /// there is no replica.
    #[must_use]
    pub fn on_replica(mut self) -> Self {
        self.route = Route::Replica;
        self
    }

    /// The same rows, read and written within an open transaction.
    #[must_use]
    pub fn within(&self, transaction: &Transaction) -> Self {
        Self {
            database: transaction.database().clone(),
            clock: self.clock.clone(),
            route: Route::Primary,
            within: Some(transaction.clone()),
            holder: self.holder,
            of: PhantomData,
        }
    }
}

impl<T> Clone for Repository<T> {
    fn clone(&self) -> Self {
        Self {
            database: self.database.clone(),
            clock: self.clock.clone(),
            route: self.route,
            within: self.within.clone(),
            holder: self.holder,
            of: PhantomData,
        }
    }
}
