//! The contract between the core and a dialect.

use std::any::Any;
use std::borrow::Cow;
use std::time::Duration;

use async_trait::async_trait;

use super::doorbell_session::DoorbellSession;
use super::fence::FenceRaise;
use super::running::RunningTransaction;
use super::{
    ActionId, ColumnInfo, CommitBatch, CommitError, DbError, Query, Rows, Rules, TableInfo,
};
use crate::config::Dialect;
use crate::domain::{Table, Value, ValueType};

/// By how many bytes of a long text every database sorts. MariaDB sorts by 1,024, less what it adds.
pub(crate) const SORTED_BYTES: usize = 1_000;

/// Which pool serves a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Route {
    /// The primary: sees every commit.
    #[default]
    Primary,
    /// The replica, which may lag; the primary where there is no replica.
    Replica,
}

/// What a dialect can do.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Capabilities {
    /// The dialect.
    pub dialect: Dialect,
    /// How many lanes may commit at a time, if the dialect has a limit.
    pub max_lanes: Option<usize>,
    /// Whether one open write blocks every other write to the database.
    pub single_writer: bool,
    /// Whether a transaction may choose its isolation level. If not, all are serializable.
    pub isolation_levels: bool,
    /// Whether a violation names the constraint. If not, it names `table.column`.
    pub names_constraints: bool,
    /// Whether a failed migration leaves nothing behind. If not, the statements before the one
    /// that failed stay applied.
    pub atomic_migrations: bool,
    /// Whether reads by id that wait at the same moment share a statement. A database in this
    /// process answers them faster one by one.
    pub folds_reads: bool,
}

/// The isolation level of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Isolation {
    /// Each statement sees what was committed before it began.
    ReadCommitted,
    /// All statements see one snapshot.
    RepeatableRead,
    /// The outcome is one that some serial order of the transactions would give.
    Serializable,
}

/// How a transaction of the [`TransactionManager`](super::TransactionManager) runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TransactionOptions {
    /// The isolation level; `None` for the database's default.
    pub isolation: Option<Isolation>,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Time after which the transaction is rolled back.
    pub timeout: Option<Duration>,
}

impl TransactionOptions {
    /// Sets the isolation level.
    #[must_use]
    pub fn isolation(mut self, isolation: Isolation) -> Self {
        self.isolation = Some(isolation);
        self
    }

    /// Refuses writes.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// Sets the time after which the transaction is rolled back.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

/// A dialect: opens connections, and says what the dialect can do and how it writes SQL.
#[async_trait]
pub(crate) trait Driver: Send + Sync + 'static {
    fn capabilities(&self) -> &Capabilities;

    fn syntax(&self) -> &dyn Syntax;

    async fn connect(&self, route: Route) -> Result<Box<dyn Connection>, DbError>;

    /// Opens a session for the doorbell, which need not hear anything unless it `listens`. `None` if
    /// the dialect has no such session, or none that is of use.
    async fn doorbell(&self, listens: bool) -> Result<Option<Box<dyn DoorbellSession>>, DbError> {
        let _ = listens;
        Ok(None)
    }

    /// The database's address without secrets, for messages.
    fn address(&self) -> &str;

    /// The source under which the application's migrations are recorded. Databases that share
    /// one `eventlog` need different ones.
    fn migration_source(&self) -> &str {
        "application"
    }
}

/// One connection.
///
/// If a future of a method is dropped before it completes, the state of the session is unknown:
/// the owner has to close the connection.
#[async_trait]
pub(crate) trait Connection: Send {
    async fn fetch(&mut self, query: &Query) -> Result<Rows, DbError>;

    /// Runs a query that selects a row by its id, outside of a transaction.
    async fn find(&mut self, query: &Query) -> Result<Rows, DbError> {
        self.fetch(query).await
    }

    /// Runs a query that reads a small part of an index, also if the database takes the table for so small
    /// that a scan would do. Outside of a transaction.
    async fn look(&mut self, query: &Query) -> Result<Rows, DbError> {
        self.fetch(query).await
    }

    /// Commits batches, each of them whole or not at all and independently of the others. The
    /// outcomes are in the order of the batches. No two batches change the same row, and no batch
    /// expects a row to be unchanged that a batch before it changes. A batch with turns is the only
    /// one.
    ///
    /// `Err` applies to all batches: nothing was written, unless the connection broke; then any
    /// of them may have committed.
    async fn commit(
        &mut self,
        batches: &[&CommitBatch],
    ) -> Result<Vec<Result<(), CommitError>>, DbError>;

    /// Divides batches into those that are best committed by one `commit`: a number for each
    /// batch.
    fn part(&mut self, batches: &[&CommitBatch]) -> Vec<usize> {
        vec![0; batches.len()]
    }

    /// Which of the batches change a row that another transaction keeps locked at this moment, perhaps
    /// with its whole table. Waits for no row. With a single writer no row is locked by itself.
    async fn locked(&mut self, batches: &[&CommitBatch]) -> Result<Vec<bool>, DbError> {
        Ok(vec![false; batches.len()])
    }

    /// Writes a batch within the open transaction.
    async fn write(&mut self, batch: &CommitBatch) -> Result<(), CommitError>;

    /// Prepares the session for committing. From here on no commit waits longer than
    /// `lock_timeout` for a row lock, because all batches of its statement wait with it. It waits
    /// for at most half of the session's statement timeout, so that the server
    /// reports a lock timeout and not a statement timeout, where it allows one that short.
    async fn become_lane(&mut self, lock_timeout: Duration) -> Result<(), DbError>;

    /// Opens a transaction.
    async fn begin(&mut self, options: &TransactionOptions) -> Result<(), DbError>;

    /// Ends the open transaction.
    async fn end(&mut self, commit: bool) -> Result<(), DbError>;

    /// Creates the schema of the framework's tables and the table of applied migrations, if they
    /// do not exist.
    async fn create_eventlog(&mut self) -> Result<(), DbError>;

    /// Begins a migration and blocks other processes from migrating until it ends. It is one
    /// transaction if [`Capabilities::atomic_migrations`] is set.
    async fn begin_migration(&mut self) -> Result<(), DbError> {
        self.begin(&TransactionOptions::default()).await
    }

    /// Called after a script of the application that runs in one transaction with its record. Takes back
    /// the settings of the script by which the record could fail. Returns whether the transaction of
    /// [`begin_migration`](Connection::begin_migration) is still open: a script may have ended it, and
    /// begun another one.
    async fn end_script(&mut self) -> Result<bool, DbError> {
        Ok(true)
    }

    /// Goes on in a new session, because no record can be written in that of the script. Commits what the
    /// script left open, and goes on keeping other processes from migrating. Only where a migration is
    /// not one transaction.
    async fn leave_script(&mut self) -> Result<(), DbError> {
        Ok(())
    }

    /// Fails if the migration's script left what must not be committed.
    async fn check_migration(&mut self) -> Result<(), DbError> {
        Ok(())
    }

    /// Ends the migration, also a failed one, and lets other processes migrate.
    async fn end_migration(&mut self, succeeded: bool) -> Result<(), DbError> {
        self.end(succeeded).await
    }

    /// Raises the fence of a key to a lease's token, unless a later token is stored; returns
    /// whether it was raised. If the same token is stored, its end is never moved forward in
    /// time. Waits for commits in flight that check the fence.
    async fn raise_fence(&mut self, raise: &FenceRaise) -> Result<bool, DbError>;

    /// Raises a fence, then runs `query`, which selects a row of `table` by its id, `$1`. `None`
    /// if the fence was not raised. The read sees every commit that the raise waited for. Takes
    /// one round trip where the dialect can do both in one.
    async fn find_under_fence(
        &mut self,
        raise: &FenceRaise,
        query: &Query,
        table: &TableInfo,
    ) -> Result<Option<Rows>, DbError>;

    /// Runs statements without arguments.
    async fn script(&mut self, sql: &str) -> Result<(), DbError>;

    /// The columns of a table; empty if there is no such table.
    async fn describe(&mut self, table: &Table) -> Result<Vec<ColumnInfo>, DbError>;

    /// What the catalogue calls a table, however the code names it; `None` if there is no such
    /// table.
    async fn identify(&mut self, table: &Table) -> Result<Option<String>, DbError>;

    /// The rules of a table, as the catalogue lists them.
    async fn rules(&mut self, table: &Table) -> Result<Rules, DbError>;

    /// Makes sure that nothing sent over a broken connection can still commit, then returns
    /// which of the actions are [recorded](Connection::recorded). Called on a new connection;
    /// `broken` is the [`Connection::identity`] of the broken one.
    async fn settle(
        &mut self,
        broken: Option<&str>,
        actions: &[ActionId],
    ) -> Result<Vec<ActionId>, DbError>;

    /// Which of the actions have a row in the outbox. Outside of a transaction.
    ///
    /// Fails as [`ReadOnly`](super::DbErrorKind::ReadOnly) on a server that accepts no writes: it may be
    /// a standby, which has received a commit and does not show it yet. A primary shows every commit.
    async fn recorded(&mut self, actions: &[ActionId]) -> Result<Vec<ActionId>, DbError>;

    /// The transactions of other sessions that have begun and not ended. Those that can write nothing
    /// may be left out. `None` if they cannot be seen. With a single writer there are none: a transaction
    /// writes either before a commit or begins after it.
    async fn running(&mut self) -> Result<Option<Vec<RunningTransaction>>, DbError> {
        Ok(Some(Vec::new()))
    }

    /// The current position in the database's log, with which a replica can be compared; `None`
    /// where there are no replicas.
    async fn position(&mut self) -> Result<Option<String>, DbError> {
        Ok(None)
    }

    /// Whether this replica has applied the log up to `position` of its primary. Waits for at
    /// most `timeout`.
    async fn has_reached(&mut self, position: &str, timeout: Duration) -> Result<bool, DbError> {
        let _ = (position, timeout);
        Ok(true)
    }

    /// Identifies this session to the server, where that is possible.
    fn identity(&self) -> Option<&str>;

    /// How many round trips this connection has made.
    fn round_trips(&self) -> u64;

    /// Restores the session to the state in which it was opened, after user code used it.
    async fn reset(&mut self) -> Result<(), DbError>;

    /// Ends the session in an orderly way. When it returns, the database has no trace of it: on
    /// SQLite the last connection merges the log into the file.
    async fn close(self: Box<Self>);

    /// The concrete type, for direct access to the sqlx connection.
    fn as_any(&mut self) -> &mut dyn Any;
}

/// SQL fragments that differ between dialects, in a `SELECT` or in a migration.
pub(crate) trait Syntax: Send + Sync {
    /// An identifier, quoted.
    fn quote(&self, identifier: &str) -> String {
        format!("\"{}\"", identifier.replace('"', "\"\""))
    }

    /// The table's name, quoted.
    fn table(&self, table: &Table) -> String;

    /// Argument `n`, in the form in which it is compared with `column`.
    fn argument(&self, n: usize, ty: ValueType, column: &ColumnInfo) -> String;

    /// The condition that the column's value is in argument `n`, a list.
    fn any(&self, n: usize, ty: ValueType, column: &ColumnInfo) -> String;

    /// How many values of this type a list may have, where that is bounded.
    fn longest_list(&self, ty: ValueType) -> Option<usize> {
        let _ = ty;
        None
    }

    /// How many arguments a statement may have.
    fn most_parameters(&self) -> usize {
        usize::from(u16::MAX)
    }

    /// Of the values that this database holds, the one nearest to a value that only others hold.
    /// `None` if this one holds the value.
    fn nearest(&self, value: &Value) -> Option<Value> {
        let _ = value;
        None
    }

    /// The condition on rows for which some bound `(a, b, c)` has: first column = `a`, second = `b`, third <= `c`.
    /// The arguments from `first` on are three lists, of the `a`, `b` and `c` of all bounds. Of the rows that meet
    /// it, at least `most` do, if there are as many. `None` if it has to be spelt out.
    fn up_to_any(
        &self,
        first: usize,
        columns: [(&ColumnInfo, ValueType); 3],
        table: &TableInfo,
        most: usize,
    ) -> Option<String> {
        let _ = (first, columns, table, most);
        None
    }

    /// Why a field of this type cannot be stored in this column; `None` if it can.
    fn misfit(&self, column: &ColumnInfo, ty: ValueType) -> Option<String>;

    /// The time by the clock of the database, as a column of dates holds it.
    fn present(&self) -> &'static str;

    /// The condition that a row of the outbox was written more than so many seconds ago.
    fn recorded_before(&self, seconds: u64) -> String;

    /// The condition that the row of a fence may be deleted; see `fence`.
    fn fence_is_old(&self) -> String;

    /// The condition that an event has generation `$g` and at least the id `$i`. It does not compare
    /// by equality: a planner would order by the id alone then, and read all later events.
    fn of_generation(&self, g: usize, i: usize) -> String {
        format!("(fanned_out, id) >= (${g}, ${i}) AND fanned_out <= ${g}")
    }

    /// What follows the name of the events' table where they are read by generation.
    fn by_generation(&self) -> &'static str {
        ""
    }

    /// The size in bytes of the payload of an event.
    fn bytes_of_payload(&self) -> &'static str {
        "octet_length(payload)"
    }

    /// The text of a framework migration, with the names of this database filled in.
    fn framework_migration<'t>(&self, text: &'t str) -> Cow<'t, str> {
        Cow::Borrowed(text)
    }

    /// Whether a statement that creates or drops something failed because it had run before.
    fn has_run_before(&self, _statement: &str, _error: &DbError) -> bool {
        false
    }

    /// Whether a statement does not fail if it has run before, and takes back then what it did.
    fn swaps(&self, _statement: &str) -> bool {
        false
    }

    /// The column, in the form in which it is compared or ordered.
    fn operand(&self, column: &ColumnInfo, ty: ValueType) -> String;

    /// The column of the state, in the form in which it is compared with the text of a deleted row.
    fn state_operand(&self, column: &ColumnInfo) -> String {
        self.quote(&column.name)
    }

    /// A column or a value compared with it, in the form by which a page is ordered.
    fn page_key(&self, expression: String, column: &ColumnInfo, ty: ValueType) -> String {
        let _ = (column, ty);
        expression
    }

    /// What a key of a page needs in `ORDER BY` so that null is less than every value.
    fn null_is_least(&self, descending: bool) -> &'static str {
        let _ = descending;
        ""
    }

    /// The column, in a form whose order is that of [`Value`]s, by which
    /// the rows of several databases are merged: texts and UUIDs by their bytes.
    fn merge_operand(&self, column: &ColumnInfo, ty: ValueType) -> String {
        self.operand(column, ty)
    }

    /// Argument `n`, in the form in which it is compared with [`Syntax::merge_operand`].
    fn merge_argument(&self, n: usize, ty: ValueType, column: &ColumnInfo) -> String {
        self.argument(n, ty, column)
    }

    /// Whether the database sorts by all bytes of a text, however long it is.
    fn sorts_by_all_bytes(&self) -> bool {
        true
    }

    /// The first [`SORTED_BYTES`] of a merged text or of merged bytes, as bytes.
    fn first_bytes(&self, merged: &str, ty: ValueType) -> String;

    /// Whether no value of the column has more than [`SORTED_BYTES`], so that the column can be
    /// merged as it is, in the order of its index.
    fn has_few_bytes(&self, _column: &ColumnInfo, _ty: ValueType) -> bool {
        false
    }
}
