//! The databases: the contract of a dialect (`Driver` and `Connection`), one folder per
//! dialect, and what the dialects share: pools, the lanes that commit, transactions, migrations.
//!
//! Invariants:
//! - No dialect imports another one.
//! - Outside of the dialects, only `raw` names sqlx.

mod barrier_queue;
mod batch;
mod database;
#[cfg(all(test, feature = "sqlite"))]
mod delete_tests;
mod dialect;
pub(crate) mod doorbell;
mod doorbell_session;
mod driver;
mod error;
pub(crate) mod eventlog;
mod exact;
pub(crate) mod fence;
#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod guide;
mod lane;
mod merge;
mod migration;
#[cfg(feature = "mysql")]
pub(crate) mod mysql;
#[cfg(any(feature = "mysql", feature = "sqlite"))]
mod nearest;
mod open_transactions;
mod performing;
mod pool;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
mod query;
mod raw;
mod read_fold;
mod rules;
mod running;
mod same_table;
mod schema;
mod select;
mod size;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod sqlx_error;
mod stage;
mod token;
mod transaction;
mod transaction_barrier;

pub use crate::config::Dialect;
pub use batch::{ActionId, ChangeKind, CommitError, Committed, RowRef};
pub(crate) use batch::{CommitBatch, ExpectedRow, RowChange};
pub(crate) use database::Database;
pub(crate) use dialect::driver_for;
pub use driver::{Capabilities, Isolation, Route, TransactionOptions};
pub(crate) use driver::{Connection, Driver, SORTED_BYTES, Syntax};
pub(crate) use error::beginning;
pub use error::{DbError, DbErrorKind};
#[cfg(any(feature = "mysql", feature = "sqlite"))]
pub(crate) use exact::boolean;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) use exact::exact_decimal;
pub(crate) use fence::{FenceCheck, FenceRaise, LeaseEnd};
pub(crate) use lane::{Lanes, OpenAction};
pub(crate) use merge::may_merge;
pub use migration::{AppliedMigration, MigrationError, MigrationState, Migrations};
pub(crate) use migration::{applied, migrate, migration_states};
#[cfg(any(feature = "mysql", feature = "sqlite"))]
pub(crate) use nearest::nearest_date;
pub(crate) use open_transactions::outside_transaction;
pub(crate) use performing::{performed_action, performing};
pub use pool::PoolStatus;
pub(crate) use pool::{Pool, PooledConnection, Use};
pub(crate) use query::{Arg, Columns, Query, Rows};
pub use raw::{RawConnection, TransactionConnection};
pub(crate) use read_fold::FoldedReads;
pub(crate) use rules::{Rule, Rules};
#[cfg(feature = "mysql")]
pub(crate) use schema::Reference;
pub use schema::SchemaError;
pub(crate) use schema::{ColumnInfo, Nulls, TableError, TableInfo};
pub(crate) use size::SizeLimits;
#[cfg(feature = "mysql")]
pub(crate) use size::largest;
#[cfg(any(feature = "mysql", feature = "sqlite"))]
pub(crate) use size::too_large;
pub(crate) use stage::{
    StageError, StageResult, Staged, StagedExpectation, resolve, stage_changed, stage_deleted,
    stage_expected, stage_new,
};
pub use token::{CommitToken, CommitTokenError};
pub use transaction::{Transaction, TransactionError, TransactionManager};
pub use transaction_barrier::BarrierError;
pub(crate) use transaction_barrier::pass_barrier;
