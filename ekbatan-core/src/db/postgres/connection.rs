//! One session on a PostgreSQL server.

use std::any::Any;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use sqlx::postgres::{PgArguments, PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Connection as _, Row};
use uuid::Uuid;

use super::decode::{bind_args, decode};
use super::error::{IN_FAILED_TRANSACTION, classify, has_code, is_outdated};
use super::form::Forms;
use super::planned_looks::PlannedLooks;
use crate::config::LONGEST_TIMEOUT;
use crate::db::running::RunningTransaction;
use crate::db::{
    ActionId, ColumnInfo, CommitBatch, CommitError, Connection, DbError, DbErrorKind, FenceRaise,
    Isolation, Nulls, Query, Rows, Rules, TableInfo, TransactionOptions,
};
use crate::domain::Table;

const COPY: &str = "COPY .. FROM STDIN waits for rows that are not sent, so the connection was closed; use INSERT, as \
                    `pg_dump --inserts` writes it";

/// Ends the transaction and restores the session.
const RESET: &str = "ROLLBACK; SET SESSION AUTHORIZATION DEFAULT; RESET ROLE; RESET ALL; CLOSE ALL; UNLISTEN *; \
                     SELECT pg_advisory_unlock_all(); DISCARD TEMP; DISCARD SEQUENCES; DEALLOCATE ALL";

/// Lets the server look every 10 s, also while a statement waits for a lock, whether the client is still there.
/// Otherwise a statement that was given up would keep what its transaction has locked for as long as it waits.
/// Servers on other systems may refuse the setting.
pub(super) const NOTICES_A_LOST_CLIENT: &str = "CASE WHEN version() ~* 'linux' \
    THEN set_config('client_connection_check_interval', '10000', false) END";

pub(crate) struct PostgresConnection {
    pub(crate) inner: PgConnection,
    identity: String,
    pub(super) trips: u64,
    /// Texts of the statements that commit.
    pub(super) forms: Forms,
    /// Whether `eventlog.read_under_fence` works on this connection; see `fence`.
    pub(super) fence_function_works: bool,
    pub(super) looks: PlannedLooks,
    /// The id of the transaction in which the last migration began.
    migration: String,
}

impl PostgresConnection {
    pub(super) fn new(inner: PgConnection, identity: String) -> Self {
        Self {
            inner,
            identity,
            trips: 0,
            forms: Forms::default(),
            fence_function_works: true,
            looks: PlannedLooks::default(),
            migration: String::new(),
        }
    }

    /// The id of the transaction, after `statements`. No prepared statement: a script may have
    /// deallocated all.
    async fn transaction_id(&mut self, statements: &str) -> Result<String, DbError> {
        self.trips += 1;
        let sql = format!("{statements}SELECT pg_catalog.pg_current_xact_id()::pg_catalog.text");
        let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(&mut self.inner).await;
        let last = rows.map_err(classify)?.pop();
        last.map_or(Ok(String::new()), |row| row.try_get(0)).map_err(classify)
    }

    /// The code of users may have deallocated the statements that are known as prepared.
    async fn forget_prepared(&mut self) -> Result<(), DbError> {
        self.trips += 1;
        self.inner.clear_cached_statements().await.map_err(classify)
    }

    async fn fetch_once(
        &mut self,
        query: &Query,
        arguments: PgArguments,
    ) -> Result<Vec<PgRow>, sqlx::Error> {
        self.trips += 1;
        sqlx::query_with(AssertSqlSafe(query.sql.clone()), arguments)
            .fetch_all(&mut self.inner)
            .await
    }

    /// Repeats a read whose prepared statement is outdated. Every statement is prepared again: a
    /// migration that changes one column often changes others.
    async fn prepare_and_fetch(
        &mut self,
        query: &Query,
        arguments: PgArguments,
        outdated: sqlx::Error,
    ) -> Result<Vec<PgRow>, sqlx::Error> {
        self.trips += 1;
        self.inner.clear_cached_statements().await?;
        match self.fetch_once(query, arguments).await {
            // The first error ended the transaction around the read; the caller has to begin anew.
            Err(error) if has_code(&error, IN_FAILED_TRANSACTION) => Err(outdated),
            rows => rows,
        }
    }
}

#[async_trait]
impl Connection for PostgresConnection {
    async fn fetch(&mut self, query: &Query) -> Result<Rows, DbError> {
        let rows = match self.fetch_once(query, bind_args(query)?).await {
            Err(error) if is_outdated(&error) => {
                self.prepare_and_fetch(query, bind_args(query)?, error).await
            }
            rows => rows,
        };
        let rows = rows.map_err(classify)?;
        rows.iter().map(|row| decode(row, &query.columns)).collect()
    }

    async fn look(&mut self, query: &Query) -> Result<Rows, DbError> {
        self.look_by_index(query).await
    }

    async fn commit(
        &mut self,
        batches: &[&CommitBatch],
    ) -> Result<Vec<Result<(), CommitError>>, DbError> {
        match batches {
            [batch] if !batch.turns.is_empty() => Ok(vec![self.commit_in_turn(batch).await?]),
            _ => self.apply(batches).await,
        }
    }

    fn part(&mut self, batches: &[&CommitBatch]) -> Vec<usize> {
        self.forms.part(batches)
    }

    async fn locked(&mut self, batches: &[&CommitBatch]) -> Result<Vec<bool>, DbError> {
        self.find_locked(batches).await
    }

    async fn write(&mut self, batch: &CommitBatch) -> Result<(), CommitError> {
        match self.apply(&[batch]).await {
            Ok(mut answers) => answers.remove(0),
            Err(error) => Err(CommitError::Refused(error)),
        }
    }

    async fn become_lane(&mut self, lock_timeout: Duration) -> Result<(), DbError> {
        // A statement that commits looks each row up by its key. It is planned once, perhaps when
        // its tables were empty, and the plan of a scan would be kept while they grow.
        let plans = "SET enable_seqscan = off; SET jit = off";
        let milliseconds = lock_timeout.min(LONGEST_TIMEOUT).as_millis().max(1);
        // The role or the database may set a statement timeout, too, so the server is asked. Its
        // unit is the millisecond, and zero means none.
        let waits = format!(
            "SELECT set_config('lock_timeout', least({milliseconds}, \
             (SELECT greatest(setting::bigint / 2, 1) FROM pg_settings \
             WHERE name = 'statement_timeout' AND setting <> '0'))::text, false)"
        );
        self.script(&format!("{waits}; {plans}")).await
    }

    async fn begin(&mut self, options: &TransactionOptions) -> Result<(), DbError> {
        let isolation = match options.isolation {
            None => "",
            Some(Isolation::ReadCommitted) => " ISOLATION LEVEL READ COMMITTED",
            Some(Isolation::RepeatableRead) => " ISOLATION LEVEL REPEATABLE READ",
            Some(Isolation::Serializable) => " ISOLATION LEVEL SERIALIZABLE",
        };
        let access = if options.read_only { " READ ONLY" } else { "" };
        self.script(&format!("BEGIN{isolation}{access}")).await
    }

    async fn end(&mut self, commit: bool) -> Result<(), DbError> {
        if !commit {
            return self.script("ROLLBACK").await;
        }
        // The COMMIT of a failed transaction rolls back and returns no error. The SELECT before
        // it fails in that case, so that the rollback is not taken for a commit.
        self.script("SELECT 1; COMMIT").await
    }

    async fn create_eventlog(&mut self) -> Result<(), DbError> {
        self.script(
        "CREATE SCHEMA IF NOT EXISTS eventlog; \
         CREATE TABLE IF NOT EXISTS eventlog.migrations (source varchar(64) NOT NULL, version bigint NOT NULL, \
         name varchar(255) NOT NULL, checksum varchar(64) NOT NULL, applied_date timestamp NOT NULL, \
         PRIMARY KEY (source, version))",
        )
        .await
    }

    async fn begin_migration(&mut self) -> Result<(), DbError> {
        // The number stands for migrations of eventlogs.
        let begin = "BEGIN; SELECT pg_advisory_xact_lock(28545284254495086); ";
        self.migration = self.transaction_id(begin).await?;
        Ok(())
    }

    async fn end_script(&mut self) -> Result<bool, DbError> {
        // What is deferred to the commit runs with the settings of the script, too.
        let reset = "SET CONSTRAINTS ALL IMMEDIATE; SET SESSION AUTHORIZATION DEFAULT; RESET ROLE; RESET ALL; ";
        let is_open = self.transaction_id(reset).await? == self.migration;
        self.forget_prepared().await?;
        Ok(is_open)
    }

    async fn end_migration(&mut self, succeeded: bool) -> Result<(), DbError> {
        self.end(succeeded).await?;
        if succeeded { Ok(()) } else { self.forget_prepared().await }
    }

    async fn raise_fence(&mut self, raise: &FenceRaise) -> Result<bool, DbError> {
        self.raise(raise).await
    }

    async fn find_under_fence(
        &mut self,
        raise: &FenceRaise,
        query: &Query,
        table: &TableInfo,
    ) -> Result<Option<Rows>, DbError> {
        self.raise_and_find(raise, query, table).await
    }

    async fn script(&mut self, sql: &str) -> Result<(), DbError> {
        self.trips += 1;
        let ran = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut self.inner).await;
        ran.map(drop).map_err(|error| match &error {
            // The server waits for rows, and sqlx can neither send them nor end the wait.
            sqlx::Error::Protocol(what) if what.contains("CopyInResponse") => {
                DbError::new(DbErrorKind::Unavailable, COPY).with_source(error)
            }
            _ => classify(error),
        })
    }

    async fn describe(&mut self, table: &Table) -> Result<Vec<ColumnInfo>, DbError> {
        self.trips += 1;
        // Type 7 of a trigger is one that runs before the insert of each row, and may fill columns.
        let rows = sqlx::query(
            "SELECT a.attname::text, \
             CASE WHEN t.typtype = 'e' OR t.typname = 'citext' AND NOT pg_type_is_visible(t.oid) \
             THEN format('%I.%I', s.nspname, t.typname) ELSE t.typname::text END, \
             t.typtype = 'e', a.atttypmod, \
             CASE WHEN c.relkind IN ('r', 'p') THEN NOT a.attnotnull END, \
             c.relkind IN ('r', 'p') AND a.attnotnull AND NOT a.atthasdef AND a.attidentity = '' \
             AND NOT EXISTS (SELECT FROM pg_trigger g WHERE g.tgrelid = c.oid AND NOT g.tgisinternal \
             AND g.tgtype & 7 = 7), \
             a.attgenerated <> '' OR a.attidentity = 'a' \
             FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid \
             JOIN pg_namespace s ON s.oid = t.typnamespace JOIN pg_class c ON c.oid = a.attrelid \
             WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
        )
        .bind(crate::db::Syntax::table(&super::syntax::PostgresSyntax, table))
        .fetch_all(&mut self.inner)
        .await
        .map_err(classify)?;
        rows.iter()
            .map(|row| {
                let modifier: i32 = row.try_get(3)?;
                let db_type: String = row.try_get(1)?;
                let numeric = (db_type == "numeric" && modifier >= 4).then(|| {
                    let packed = modifier - 4;
                    // PostgreSQL stores the scale as a number of eleven bits with a sign.
                    (((packed >> 16) & 0xffff) as u32, ((packed & 0x7ff) ^ 0x400) - 0x400)
                });
                let length = match db_type.as_str() {
                    // The modifier of a text includes a header of four bytes.
                    "varchar" | "bpchar" => modifier.checked_sub(4),
                    "timestamp" | "timestamptz" => Some(modifier),
                    _ => None,
                };
                Ok(ColumnInfo {
                    name: row.try_get(0)?,
                    db_type,
                    numeric,
                    length: length.and_then(|length| u32::try_from(length).ok()),
                    is_enum: row.try_get(2)?,
                    is_padded: false,
                    nulls: Nulls::of(row.try_get(4)?),
                    required: row.try_get(5)?,
                    is_computed: row.try_get(6)?,
                    references: Vec::new(),
                })
            })
            .collect::<Result<_, sqlx::Error>>()
            .map_err(classify)
    }

    async fn identify(&mut self, table: &Table) -> Result<Option<String>, DbError> {
        self.trips += 1;
        sqlx::query_scalar("SELECT to_regclass($1)::oid::text")
            .bind(crate::db::Syntax::table(&super::syntax::PostgresSyntax, table))
            .fetch_one(&mut self.inner)
            .await
            .map_err(classify)
    }

    async fn rules(&mut self, table: &Table) -> Result<Rules, DbError> {
        self.read_rules(table).await
    }

    async fn settle(
        &mut self,
        broken: Option<&str>,
        actions: &[ActionId],
    ) -> Result<Vec<ActionId>, DbError> {
        // While the old session lives, its statement may still commit. So the session is ended
        // before its actions are looked up.
        if let Some((pid, started)) = broken.and_then(|identity| identity.split_once(' ')) {
            loop {
                self.trips += 1;
                let alive: Option<bool> = sqlx::query_scalar(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                     WHERE pid = $1::int4 AND extract(epoch FROM backend_start)::text = $2",
                )
                .bind(pid.parse::<i32>().unwrap_or_default())
                .bind(started)
                .fetch_optional(&mut self.inner)
                .await
                .map_err(classify)?;
                if alive.is_none() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        // A server that waits for a table does not notice that the question is given up. It must not keep a
        // session for each of them.
        self.script("SET lock_timeout = '5s'").await?;
        self.recorded(actions).await
    }

    async fn recorded(&mut self, actions: &[ActionId]) -> Result<Vec<ActionId>, DbError> {
        let ids: Vec<Uuid> = actions.iter().map(|action| action.0).collect();
        self.trips += 1;
        // A transaction is read-only if the server was a standby when it began, which is before it
        // sees any row. `pg_is_in_recovery()` would be evaluated later, perhaps after a promotion that
        // the rows do not show. A promotion ends only after the server has replayed all that it received.
        let (is_read_only, found): (bool, Vec<Uuid>) = sqlx::query_as(
            "SELECT current_setting('transaction_read_only')::boolean, \
             ARRAY(SELECT DISTINCT action_id FROM eventlog.events WHERE action_id = ANY($1))",
        )
        .bind(ids)
        .fetch_one(&mut self.inner)
        .await
        .map_err(classify)?;
        if is_read_only {
            return Err(DbError::may_be_standby());
        }
        Ok(found.into_iter().map(ActionId).collect())
    }

    async fn running(&mut self) -> Result<Option<Vec<RunningTransaction>>, DbError> {
        self.read_running().await.map(Some)
    }

    async fn position(&mut self) -> Result<Option<String>, DbError> {
        self.trips += 1;
        // Not the flushed position: it excludes commits that do not wait for the disk.
        sqlx::query_scalar("SELECT pg_current_wal_insert_lsn()::text")
            .fetch_one(&mut self.inner)
            .await
            .map(Some)
            .map_err(classify)
    }

    async fn has_reached(&mut self, position: &str, timeout: Duration) -> Result<bool, DbError> {
        let started = Instant::now();
        let mut pause = Duration::from_millis(1);
        loop {
            self.trips += 1;
            let reached: bool = sqlx::query_scalar(
                "SELECT CASE WHEN pg_is_in_recovery() THEN coalesce(pg_last_wal_replay_lsn() >= $1::text::pg_lsn, false) ELSE true END",
            )
            .bind(position)
            .fetch_one(&mut self.inner)
            .await
            .map_err(classify)?;
            let left = timeout.saturating_sub(started.elapsed());
            if reached || left.is_zero() {
                return Ok(reached);
            }
            // The server has no command that waits for a position.
            tokio::time::sleep(pause.min(left)).await;
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    fn identity(&self) -> Option<&str> {
        Some(&self.identity)
    }

    fn round_trips(&self) -> u64 {
        self.trips
    }

    async fn reset(&mut self) -> Result<(), DbError> {
        self.forget_prepared().await?;
        // Usually no transaction is open, and then a ROLLBACK alone would put a warning into the log of the
        // server. In a transaction that has failed, a BEGIN is an error.
        let restore = format!("{RESET}; SELECT {NOTICES_A_LOST_CLIENT}");
        let mut reset = self.script(&format!("BEGIN; {restore}")).await;
        if let Err(error) = &reset
            && error.code() == Some(IN_FAILED_TRANSACTION)
        {
            reset = self.script(&restore).await;
        }
        reset.map_err(|error| {
            let why = format!("the session could not be reset: {error}");
            DbError::new(DbErrorKind::Unavailable, why)
        })
    }

    async fn close(self: Box<Self>) {
        // A connection that is already broken is closed all the same.
        let _ = self.inner.close().await;
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}
