//! The contract between the core and a dialect.

use std::any::Any;
use std::borrow::Cow;
use std::time::Duration;

use async_trait::async_trait;

use super::{
    ActionId, ColumnInfo, CommitBatch, CommitError, DbError, FenceRaise, Query, TableInfo,
};
use crate::domain::{Table, Value, ValueType};

/// Which pool a read takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Route {
    /// The primary: sees every commit.
    #[default]
    Primary,
    /// The replica, or the primary where there is none: may lag.
    Replica,
}

/// What a dialect can do; what it lacks is said here and never pretended.
#[derive(Debug, Clone, Copy)]
pub struct Capabilities {
    /// The dialect's name: `sqlite`, `postgres`, `mysql`, `mariadb`.
    pub name: &'static str,
    /// How many lanes may commit at a time, where the dialect sets a bound.
    pub max_lanes: Option<usize>,
    /// Whether one open write keeps every other one of the database waiting.
    pub single_writer: bool,
    /// Whether a transaction may choose its isolation; where it may not, all are serializable.
    pub isolation_levels: bool,
    /// Whether violations name the constraint; otherwise they name `table.column`.
    pub names_constraints: bool,
    /// Whether a migration that fails leaves nothing; otherwise its statements before the one
    /// that failed stay.
    pub atomic_migrations: bool,
}

/// How strictly a transaction is kept apart from its neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// Each statement sees what was committed before it.
    ReadCommitted,
    /// The whole transaction sees one state.
    RepeatableRead,
    /// As if transactions ran one after another.
    Serializable,
}

/// How a transaction of the [`TransactionManager`](super::TransactionManager) runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TransactionOptions {
    /// The isolation; the database's default when none is chosen.
    pub isolation: Option<Isolation>,
    /// Whether writes are refused.
    pub read_only: bool,
    /// After how long the transaction is rolled back.
    pub timeout: Option<Duration>,
}

/// A dialect: opens connections, says what it can do and how it writes SQL.
#[async_trait]
pub trait Driver: Send + Sync + 'static {
    /// What the dialect can do.
    fn capabilities(&self) -> &Capabilities;

    /// How the dialect writes what differs between dialects.
    fn syntax(&self) -> &dyn Syntax;

    /// Opens a connection.
    async fn connect(&self, route: Route) -> Result<Box<dyn Connection>, DbError>;

    /// The database's address without secrets, for messages.
    fn address(&self) -> &str;

    /// Under which name the application's migrations are recorded. Where several databases may
    /// share one `eventlog`, it tells them apart.
    fn migration_source(&self) -> &str {
        "application"
    }
}

/// One connection. A future of it that is dropped leaves it in doubt: its owner closes it.
#[async_trait]
pub trait Connection: Send + 'static {
    /// Reads.
    async fn fetch(&mut self, query: &Query) -> Result<Vec<Vec<Value>>, DbError>;

    /// Commits batches, each whole or not at all and independent of its neighbours. The
    /// answers stand in the order of the batches. No two of them update the same row.
    ///
    /// `Err` is about all of them: nothing was written, unless the connection broke, when any
    /// of them may have been.
    async fn commit(
        &mut self,
        batches: &[&CommitBatch],
    ) -> Result<Vec<Result<(), CommitError>>, DbError>;

    /// Writes a batch within the transaction that is open.
    async fn write(&mut self, batch: &CommitBatch) -> Result<(), CommitError>;

    /// Readies the connection for committing, where no commit may wait for somebody else's
    /// row longer than this: those that share its statement wait with it.
    async fn become_lane(&mut self, patience: Duration) -> Result<(), DbError>;

    /// Opens a transaction.
    async fn begin(&mut self, options: &TransactionOptions) -> Result<(), DbError>;

    /// Ends the transaction that is open.
    async fn end(&mut self, commit: bool) -> Result<(), DbError>;

    /// Makes the place for the framework's tables, if it is not there.
    async fn create_eventlog(&mut self) -> Result<(), DbError>;

    /// Begins a migration and keeps every other starter out until it ends. It is one
    /// transaction where the dialect says [`Capabilities::atomic_migrations`].
    async fn begin_migration(&mut self) -> Result<(), DbError> {
        self.begin(&TransactionOptions::default()).await
    }

    /// Ends the migration, however it went, and lets the others in.
    async fn end_migration(&mut self, worked: bool) -> Result<(), DbError> {
        self.end(worked).await
    }

    /// Raises the fence of a key to this token until its lease ends, unless a later token
    /// stands there; answers whether it did. Where the token stands already, its time is never
    /// shortened. Waits for commits on their way that look at the fence.
    async fn raise_fence(&mut self, raise: &FenceRaise) -> Result<bool, DbError>;

    /// Raises a fence, and then reads by the query that selects a row of a table by its id,
    /// `$1`; answers nothing if the fence was not raised. The read sees every commit that the
    /// raise waited for. One trip to the server, where the dialect can do so in one.
    async fn find_under_fence(
        &mut self,
        raise: &FenceRaise,
        query: &Query,
        table: &TableInfo,
    ) -> Result<Option<Vec<Vec<Value>>>, DbError>;

    /// Runs a script of statements without arguments.
    async fn script(&mut self, sql: &str) -> Result<(), DbError>;

    /// The columns of a table; none when there is no such table.
    async fn describe(&mut self, table: &Table) -> Result<Vec<ColumnInfo>, DbError>;

    /// Makes sure that nothing sent over a broken connection can still commit, and answers
    /// which of the actions did. Called on a fresh connection, with what
    /// [`Connection::identity`] said of the broken one.
    async fn settle(
        &mut self,
        broken: Option<&str>,
        actions: &[ActionId],
    ) -> Result<Vec<ActionId>, DbError>;

    /// How far this database has come, for a replica to be measured by; nothing where there
    /// are no replicas.
    async fn position(&mut self) -> Result<Option<String>, DbError> {
        Ok(None)
    }

    /// Whether this replica has seen what [`Connection::position`] answered on its primary,
    /// if need be after waiting for it.
    async fn has_reached(&mut self, position: &str, patience: Duration) -> Result<bool, DbError> {
        let _ = (position, patience);
        Ok(true)
    }

    /// Who this connection is at the server, where that can be known.
    fn identity(&self) -> Option<&str>;

    /// How many trips to the server this connection has made.
    fn round_trips(&self) -> u64;

    /// Brings the session back to how it was opened, after user code had it.
    async fn reset(&mut self) -> Result<(), DbError>;

    /// The connection as its own type, for the escape hatch to sqlx.
    fn as_any(&mut self) -> &mut dyn Any;
}

/// What differs between dialects in a `SELECT` or in a migration.
pub trait Syntax: Send + Sync {
    /// An identifier, quoted.
    fn quote(&self, identifier: &str) -> String {
        format!("\"{}\"", identifier.replace('"', "\"\""))
    }

    /// The table's name, quoted.
    fn table(&self, table: &Table) -> String;

    /// Argument `n`, as it is compared with `column`.
    fn argument(&self, n: usize, ty: ValueType, column: &ColumnInfo) -> String;

    /// Whether the column's value is among those of argument `n`, a list.
    fn any(&self, n: usize, ty: ValueType, column: &ColumnInfo) -> String;

    /// Why a field of this type cannot be kept in this column, if it cannot.
    fn misfit(&self, column: &ColumnInfo, ty: ValueType) -> Option<String>;

    /// The text of one of the framework's own migrations, with the names that hold here.
    fn framework_migration<'t>(&self, text: &'t str) -> Cow<'t, str> {
        Cow::Borrowed(text)
    }

    /// The column where it is compared or ordered.
    fn operand(&self, column: &ColumnInfo, ty: ValueType) -> String;

    /// A column's value, or one that it is compared with, as a page is ordered by it.
    fn page_key(&self, expression: String, column: &ColumnInfo, ty: ValueType) -> String {
        let _ = (column, ty);
        expression
    }

    /// The column where its order must be that of [`Value`]s, in which the rows of several
    /// databases are merged: texts by their bytes, UUIDs by theirs.
    fn merge_operand(&self, column: &ColumnInfo, ty: ValueType) -> String {
        self.operand(column, ty)
    }

    /// Argument `n`, as it is compared with [`Syntax::merge_operand`].
    fn merge_argument(&self, n: usize, ty: ValueType, column: &ColumnInfo) -> String {
        self.argument(n, ty, column)
    }
}
