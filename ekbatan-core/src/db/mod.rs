//! The databases: one contract ([`Driver`] and [`Connection`]), one dialect a folder, and
//! what all dialects share: the pool, the lanes that commit, transactions, migrations.

mod batch;
mod database;
mod driver;
mod error;
pub(crate) mod eventlog;
mod fence;
#[cfg(test)]
mod guide;
mod lane;
mod migration;
#[cfg(feature = "mysql")]
pub mod mysql;
mod pool;
#[cfg(feature = "postgres")]
pub mod postgres;
mod query;
mod schema;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod stage;
mod token;
mod transaction;

pub use batch::{
    ActionId, ChangeKind, CommitBatch, CommitError, Committed, FenceCheck, RowChange, RowRef,
};
pub(crate) use database::{Database, Rows, driver};
pub use driver::{Capabilities, Connection, Driver, Isolation, Route, Syntax, TransactionOptions};
pub use error::{DbError, DbErrorKind};
pub use fence::FenceRaise;
pub(crate) use lane::{Lanes, OpenAction};
pub use migration::{AppliedMigration, MigrationError, MigrationState, Migrations};
pub(crate) use migration::{applied, migrate, migration_states};
pub use pool::PoolStatus;
pub(crate) use pool::{Pool, PooledConnection};
pub use query::{Arg, Query};
pub(crate) use schema::TableError;
pub use schema::{ColumnInfo, SchemaError, TableInfo};
pub(crate) use stage::{StageError, StageResult, Staged, resolve, stage_changed, stage_new};
pub use token::{CommitToken, CommitTokenError};
pub use transaction::{
    RawConnection, Transaction, TransactionConnection, TransactionError, TransactionManager,
};
