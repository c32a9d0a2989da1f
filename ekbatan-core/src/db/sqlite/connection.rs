//! One connection to a database file.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, Connection as _, Row};
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::commit::{Answers, commit};
use super::decode::{bind_query, decode, sqlx_arguments};
use super::error::{classify, is_disk_full};
use super::library::{Library, Patience, is_long};
use super::library_thread::LibraryThread;
use super::pace::CallerThreadPace;
use super::session::StatementRunner;
use super::writer_lock::WriterLock;
use crate::db::{
    ActionId, ColumnInfo, CommitBatch, CommitError, Connection, DbError, DbErrorKind, FenceRaise,
    Nulls, Query, Rows, Rules, Syntax, TableInfo, TransactionOptions,
};
use crate::domain::Table;

pub(crate) struct SqliteConnection {
    /// Reads by id and commits. `None` while a thread uses it, and after a use that did not
    /// complete. Dropped before `inner`, so that the thread of that one closes the file.
    library: Option<Library>,
    /// Started for the first commit that needs it.
    thread: Option<LibraryThread>,
    pace: CallerThreadPace,
    /// Everything else.
    pub(crate) inner: sqlx::SqliteConnection,
    /// How `inner` was opened.
    pub(super) options: Arc<SqliteConnectOptions>,
    pub(super) writer_lock: WriterLock,
    /// Held while a migration or a writing transaction of the transaction manager is open.
    pub(super) writing: Option<OwnedMutexGuard<()>>,
    /// Held while a connection to the file is closed. The last one to be closed writes the log
    /// into the file; of two at the same time, each would leave that to the other.
    closing: Arc<Mutex<()>>,
    /// The transaction has ended before its end. Whatever is written from here on would commit by
    /// itself.
    rolled_back: bool,
    /// Whether the transaction of the migration has ended.
    migration_ended: Arc<AtomicBool>,
    pub(super) trips: u64,
}

impl SqliteConnection {
    pub(super) fn new(
        library: Library,
        pace: CallerThreadPace,
        inner: sqlx::SqliteConnection,
        options: Arc<SqliteConnectOptions>,
        writer_lock: WriterLock,
        closing: Arc<Mutex<()>>,
    ) -> Self {
        Self {
            library: Some(library),
            thread: None,
            pace,
            inner,
            options,
            writer_lock,
            writing: None,
            closing,
            rolled_back: false,
            migration_ended: Arc::default(),
            trips: 0,
        }
    }

    /// Finds out whether the transaction has ended: raw SQL such as `INSERT OR ROLLBACK` rolls it back
    /// when it fails. A `BEGIN` within a transaction fails, and outside of one it locks nothing.
    async fn look_for_transaction(&mut self) -> Result<(), DbError> {
        if !self.rolled_back && self.script("BEGIN").await.is_ok() {
            self.rolled_back = true;
            self.script("ROLLBACK").await?;
        }
        if self.rolled_back { Err(rolled_back_error()) } else { Ok(()) }
    }

    /// Lets SQLite report the end of the transaction. A savepoint would tell, too, but SQLite would
    /// copy each page that the migration changes.
    async fn watch_transaction(&mut self) -> Result<(), DbError> {
        let ended = Arc::new(AtomicBool::new(false));
        self.migration_ended = ended.clone();
        let mut handle = self.inner.lock_handle().await.map_err(classify)?;
        let committed = ended.clone();
        handle.set_commit_hook(move || {
            committed.store(true, Ordering::SeqCst);
            true // lets it commit
        });
        handle.set_rollback_hook(move || ended.store(true, Ordering::SeqCst));
        Ok(())
    }

    async fn unwatch_transaction(&mut self) -> Result<(), DbError> {
        let mut handle = self.inner.lock_handle().await.map_err(classify)?;
        handle.remove_commit_hook();
        handle.remove_rollback_hook();
        Ok(())
    }

    /// Commits on the thread of the caller; `None` if the commit would wait there.
    fn commit_here(&mut self, batches: &[&CommitBatch]) -> Option<Answers> {
        // The turns of a group may be many.
        if batches.iter().any(|batch| !batch.turns.is_empty()) {
            return None;
        }
        let rows = batches.iter().map(|batch| batch.rows()).sum();
        let bytes = batches.iter().map(|batch| batch.size()).sum();
        if !self.pace.may_commit(rows, bytes) {
            return None;
        }
        let library = self.library.as_mut()?;
        let answers = self.pace.run(|| commit(library, batches, Patience::None));
        (!meets_other_writer(&answers)).then_some(answers)
    }

    /// Commits on the connection's own thread. The writer lock is held until the commit has ended,
    /// also if the caller is dropped.
    async fn commit_there(
        &mut self,
        batches: &[&CommitBatch],
        writing: OwnedMutexGuard<()>,
    ) -> Answers {
        let mut library = self.library.take().ok_or_else(library_lost)?;
        let thread = match &mut self.thread {
            Some(thread) => thread,
            None => self.thread.insert(LibraryThread::start()?),
        };
        let batches: Vec<CommitBatch> = batches.iter().copied().cloned().collect();
        let work = move || {
            let batches: Vec<&CommitBatch> = batches.iter().collect();
            let answers = commit(&mut library, &batches, Patience::Full);
            drop(writing);
            (library, answers)
        };
        let (library, answers) = thread.run(work).await?;
        self.library = Some(library);
        answers
    }
}

#[async_trait]
impl Connection for SqliteConnection {
    async fn fetch(&mut self, query: &Query) -> Result<Rows, DbError> {
        let (sql, arguments) = bind_query(query)?;
        self.trips += 1;
        let is_long = is_long(&arguments);
        let rows = sqlx::query_with(AssertSqlSafe(sql), sqlx_arguments(arguments)?)
            .persistent(!is_long)
            .fetch_all(&mut self.inner)
            .await
            .map_err(classify)?;
        rows.iter().map(|row| decode(row, &query.columns)).collect()
    }

    /// A read by id that would wait for the disk or for another process goes to the thread of sqlx.
    async fn find(&mut self, query: &Query) -> Result<Rows, DbError> {
        if let Some(library) = &mut self.library
            && self.pace.may_read()
        {
            let rows = self.pace.run(|| library.read(query));
            if !matches!(&rows, Err(error) if error.kind() == DbErrorKind::LockTimeout) {
                self.trips += 1;
                return rows;
            }
        }
        self.fetch(query).await
    }

    async fn commit(
        &mut self,
        batches: &[&CommitBatch],
    ) -> Result<Vec<Result<(), CommitError>>, DbError> {
        let writing = self.writer_lock.acquire().await?;
        self.trips += 1;
        match self.commit_here(batches) {
            Some(answers) => answers,
            None => self.commit_there(batches, writing).await,
        }
    }

    async fn write(&mut self, batch: &CommitBatch) -> Result<(), CommitError> {
        let run = |error| CommitError::Refused(error);
        self.look_for_transaction().await.map_err(run)?;
        self.script("SAVEPOINT batch").await.map_err(run)?;
        let mut session =
            StatementRunner::Sqlx { connection: &mut self.inner, trips: &mut self.trips };
        let answer = match session.write_batch(batch).await {
            Ok(answer) => answer,
            Err(error) => Err(CommitError::Refused(error)),
        };
        let end = if answer.is_ok() { "RELEASE batch" } else { "ROLLBACK TO batch; RELEASE batch" };
        if let Err(error) = self.script(end).await {
            self.rolled_back = true;
            return answer.and(Err(run(error)));
        }
        answer
    }

    async fn become_lane(&mut self, _: Duration) -> Result<(), DbError> {
        Ok(()) // the writer lock and the busy timeout have limits of their own
    }

    async fn begin(&mut self, options: &TransactionOptions) -> Result<(), DbError> {
        if options
            .isolation
            .is_some_and(|isolation| isolation != crate::db::Isolation::Serializable)
        {
            return Err(DbError::new(
                DbErrorKind::Other,
                "every transaction of SQLite is serializable; leave the isolation out, or choose Serializable",
            ));
        }
        self.rolled_back = false;
        if options.read_only {
            return self.script("PRAGMA query_only = ON; BEGIN").await;
        }
        self.writing = Some(self.writer_lock.acquire().await?);
        let begun = self.script("BEGIN IMMEDIATE").await;
        if begun.is_err() {
            self.writing = None;
        }
        begun
    }

    async fn end(&mut self, commit: bool) -> Result<(), DbError> {
        if commit && self.rolled_back {
            return Err(rolled_back_error());
        }
        let ended = self.script(if commit { "COMMIT" } else { "ROLLBACK" }).await;
        // A COMMIT that fails so has not committed: the caller rolls back, or closes the connection.
        let ended = ended
            .map_err(|error| if commit && is_disk_full(&error) { error.undone() } else { error });
        // Only a reading transaction holds no writer lock.
        if ended.is_ok() && self.writing.take().is_none() {
            self.script("PRAGMA query_only = OFF").await?;
        }
        ended
    }

    async fn create_eventlog(&mut self) -> Result<(), DbError> {
        self.script(
        "CREATE TABLE IF NOT EXISTS eventlog_migrations (source TEXT NOT NULL, version INTEGER NOT NULL, \
         name TEXT NOT NULL, checksum TEXT NOT NULL, applied_date TEXT NOT NULL, PRIMARY KEY (source, version))",
        )
        .await
    }

    async fn begin_migration(&mut self) -> Result<(), DbError> {
        self.begin_without_foreign_keys().await?;
        self.watch_transaction().await
    }

    async fn end_script(&mut self) -> Result<bool, DbError> {
        // Otherwise the script could keep its record from being written.
        self.script("PRAGMA query_only = OFF").await?;
        Ok(!self.migration_ended.load(Ordering::SeqCst))
    }

    async fn check_migration(&mut self) -> Result<(), DbError> {
        self.check_foreign_keys().await
    }

    async fn end_migration(&mut self, succeeded: bool) -> Result<(), DbError> {
        self.unwatch_transaction().await?;
        self.end_with_foreign_keys(succeeded).await
    }

    async fn raise_fence(&mut self, raise: &FenceRaise) -> Result<bool, DbError> {
        Ok(self.raise_and_read(raise, None).await?.is_some())
    }

    async fn find_under_fence(
        &mut self,
        raise: &FenceRaise,
        query: &Query,
        _: &TableInfo,
    ) -> Result<Option<Rows>, DbError> {
        self.raise_and_read(raise, Some(query)).await
    }

    async fn script(&mut self, sql: &str) -> Result<(), DbError> {
        self.trips += 1;
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut self.inner).await.map(drop).map_err(classify)
    }

    async fn describe(&mut self, table: &Table) -> Result<Vec<ColumnInfo>, DbError> {
        self.trips += 1;
        let name = super::syntax::SqliteSyntax.table(table);
        // A column of a primary key is never null here, although SQLite allows it for most types.
        // An integer that is the key is filled by SQLite. `pragma_table_info` leaves out computed columns, which
        // are hidden in the ways 2 and 3. In the way 1 virtual tables hide parameters of their own.
        let sql = "SELECT c.name, c.type, \
            CASE WHEN t.type = 'view' THEN NULL ELSE c.\"notnull\" = 0 AND c.pk = 0 END, \
            c.\"notnull\" AND c.dflt_value IS NULL AND c.hidden = 0 AND NOT (c.pk AND upper(c.type) = 'INTEGER'), \
            c.hidden IN (2, 3) \
            FROM pragma_table_xinfo(?1) c \
            LEFT JOIN sqlite_schema t ON t.name = ?1 COLLATE NOCASE AND t.type IN ('table', 'view') \
            WHERE c.hidden <> 1 ORDER BY c.cid";
        let rows = sqlx::query(sql)
            .bind(name.trim_matches('"'))
            .fetch_all(&mut self.inner)
            .await
            .map_err(classify)?;
        rows.iter()
            .map(|row| {
                Ok(ColumnInfo {
                    name: row.try_get(0)?,
                    db_type: row.try_get(1)?,
                    numeric: None,
                    length: None,
                    is_enum: false,
                    is_padded: false,
                    nulls: Nulls::of(row.try_get(2)?),
                    required: row.try_get(3)?,
                    is_computed: row.try_get(4)?,
                    references: Vec::new(),
                })
            })
            .collect::<Result<_, sqlx::Error>>()
            .map_err(classify)
    }

    async fn identify(&mut self, table: &Table) -> Result<Option<String>, DbError> {
        self.trips += 1;
        // Names are compared without regard to case.
        let name = super::syntax::SqliteSyntax.table(table);
        sqlx::query_scalar("SELECT name FROM sqlite_schema WHERE name = ? COLLATE NOCASE")
            .bind(name.trim_matches('"'))
            .fetch_optional(&mut self.inner)
            .await
            .map_err(classify)
    }

    async fn rules(&mut self, table: &Table) -> Result<Rules, DbError> {
        self.read_rules(table).await
    }

    async fn settle(
        &mut self,
        _: Option<&str>,
        actions: &[ActionId],
    ) -> Result<Vec<ActionId>, DbError> {
        // A thread may still commit what a caller sent that was dropped with its runtime. It holds
        // the writer lock until then.
        let writing = self.writer_lock.acquire().await?;
        self.script("BEGIN IMMEDIATE; ROLLBACK").await?;
        drop(writing);
        self.recorded(actions).await
    }

    async fn recorded(&mut self, actions: &[ActionId]) -> Result<Vec<ActionId>, DbError> {
        let ids: Vec<String> = actions.iter().map(ActionId::to_string).collect();
        self.trips += 1;
        let found: Vec<String> = sqlx::query_scalar(
            "SELECT DISTINCT action_id FROM eventlog_events WHERE action_id IN (SELECT value FROM json_each(?))",
        )
        .bind(serde_json::Value::from(ids).to_string())
        .fetch_all(&mut self.inner)
        .await
        .map_err(classify)?;
        Ok(found.iter().filter_map(|id| id.parse().ok().map(ActionId)).collect())
    }

    fn identity(&self) -> Option<&str> {
        None
    }

    fn round_trips(&self) -> u64 {
        self.trips
    }

    /// Replaces the session by a new one: no list of settings covers everything that user code may
    /// have changed, such as pragmas, temporary tables and attached files.
    async fn reset(&mut self) -> Result<(), DbError> {
        let _ = self.script("ROLLBACK").await; // fails if no transaction is open
        let failed = |error| {
            let why = format!("the session could not be reset: {error}");
            DbError::new(DbErrorKind::Unavailable, why)
        };
        let fresh = sqlx::SqliteConnection::connect_with(&self.options).await.map_err(failed)?;
        let old = std::mem::replace(&mut self.inner, fresh);
        // The new one keeps the file open, so this close is not the one that writes the log into it.
        old.close().await.map_err(failed)?;
        self.writing = None;
        Ok(())
    }

    async fn close(self: Box<Self>) {
        let Self { library, inner, writing, closing, .. } = *self;
        let _alone = closing.lock().await;
        drop(library);
        if let Err(error) = inner.close().await {
            tracing::warn!(%error, "a connection was not closed in order");
        }
        // The thread of the connection rolled back what was open; only now may others write.
        drop(writing);
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

fn meets_other_writer(answers: &Answers) -> bool {
    matches!(answers, Err(error) if error.kind() == DbErrorKind::LockTimeout)
}

fn library_lost() -> DbError {
    DbError::new(DbErrorKind::Unavailable, "the last commit on this connection did not complete")
}

fn rolled_back_error() -> DbError {
    DbError::new(
        DbErrorKind::Other,
        "the transaction had ended before: SQLite rolled it back after an earlier error, or raw SQL ended it; begin anew",
    )
}
