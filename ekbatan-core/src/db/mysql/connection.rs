//! One session on a MySQL or MariaDB server.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::TryStreamExt;
use sqlx::{AssertSqlSafe, Connection as _, Either, Row};
use uuid::Uuid;

use super::decode::decode;
use super::error::{NO_SAVEPOINT, NO_SUCH_SESSION, classify};
use super::packets::PacketLimits;
use super::placeholders::bind;
use super::session::SessionFactory;
use super::syntax::MySqlSyntax;
use crate::config::LONGEST_TIMEOUT;
use crate::db::eventlog::EVENTS;
use crate::db::running::RunningTransaction;
use crate::db::{
    ActionId, ColumnInfo, CommitBatch, CommitError, Connection, DbError, DbErrorKind, FenceRaise,
    Isolation, Query, Rows, Rules, Syntax, TableInfo, TransactionOptions, too_large,
};
use crate::domain::Table;

/// More than what a packet has besides its text and its arguments.
const PACKET_HEADER: usize = 1_000;

/// Returns 1 if the server accepts no writes. `read_only` is a number, on newer versions of MariaDB a word. On
/// readers of Aurora, `innodb_read_only` is set instead. An operator who promotes a replica must clear
/// `read_only` only after it has applied everything that it received.
const IS_READ_ONLY: &str =
    "SELECT CONCAT(@@GLOBAL.read_only) NOT IN ('0', 'OFF') OR @@GLOBAL.innodb_read_only";

pub(crate) struct MySqlConnection {
    pub(crate) inner: sqlx::MySqlConnection,
    sessions: Arc<SessionFactory>,
    pub(super) syntax: Arc<MySqlSyntax>,
    pub(super) packets: PacketLimits,
    pub(super) trips: u64,
    /// The name of the server-side lock that a lane's session holds, by which it can be found.
    identity: Option<String>,
    /// The server rolled the open transaction back, or a batch could be undone only in part.
    /// Nothing more may be written or committed.
    pub(super) rolled_back: bool,
    /// The session that a migration has left, and that has the lock of migrations; see `migration`.
    pub(super) left: Option<sqlx::MySqlConnection>,
}

impl MySqlConnection {
    pub(super) async fn open(
        sessions: Arc<SessionFactory>,
        syntax: Arc<MySqlSyntax>,
    ) -> Result<Self, DbError> {
        let opened = sessions.open().await?;
        Ok(Self {
            inner: opened.connection,
            packets: opened.packets,
            sessions,
            syntax,
            trips: 0,
            identity: None,
            rolled_back: false,
            left: None,
        })
    }

    /// Replaces the session by a new one, and returns the old one.
    pub(super) async fn renew(&mut self) -> Result<sqlx::MySqlConnection, DbError> {
        let fresh = Self::open(self.sessions.clone(), self.syntax.clone()).await?;
        Ok(std::mem::replace(self, fresh).inner)
    }

    /// The server's address, for messages.
    pub(super) fn address(&self) -> &str {
        self.sessions.address()
    }

    /// The server closes the connection on a packet that is longer than it accepts.
    pub(super) fn check_packet(&self, query: &Query, sql: usize) -> Result<(), DbError> {
        let size = query.size() + sql + PACKET_HEADER;
        if size > self.packets.max {
            let (largest, max) = (query.largest(), self.packets.max);
            return Err(too_large(format!(
                "{largest}, and its packet {size}; the server's max_allowed_packet is {max}; ask for less at once, or raise that"
            )));
        }
        Ok(())
    }

    /// The database that a table without a schema is in.
    pub(super) fn database(&self) -> &str {
        self.sessions.database()
    }

    /// Makes one round trip.
    pub(super) async fn send(&mut self, sql: &str) -> Result<(), DbError> {
        self.trips += 1;
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut self.inner).await.map(drop).map_err(classify)
    }

    /// Makes one round trip; returns the numbers that the statements select.
    pub(super) async fn numbers(&mut self, sql: &str) -> Result<Vec<i64>, DbError> {
        self.trips += 1;
        let mut numbers = Vec::new();
        let mut answers = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_many(&mut self.inner);
        while let Some(next) = answers.try_next().await.map_err(classify)? {
            if let Either::Right(row) = next {
                let number: Option<i64> = row.try_get_unchecked(0).map_err(classify)?;
                numbers.extend(number);
            }
        }
        Ok(numbers)
    }
}

#[async_trait]
impl Connection for MySqlConnection {
    async fn fetch(&mut self, query: &Query) -> Result<Rows, DbError> {
        if self.rolled_back {
            return Err(rolled_back_error());
        }
        let bound = bind(query)?;
        self.check_packet(query, bound.sql.len())?;
        self.trips += 1;
        let rows = sqlx::query_with(AssertSqlSafe(bound.sql), bound.arguments)
            .persistent(bound.is_reusable)
            .fetch_all(&mut self.inner)
            .await
            .map_err(classify)?;
        rows.iter().map(|row| decode(row, &query.columns)).collect()
    }

    async fn commit(
        &mut self,
        batches: &[&CommitBatch],
    ) -> Result<Vec<Result<(), CommitError>>, DbError> {
        match batches {
            [batch] if !batch.turns.is_empty() => Ok(vec![self.commit_in_turn(batch).await?]),
            _ => self.commit_together(batches).await,
        }
    }

    async fn locked(&mut self, batches: &[&CommitBatch]) -> Result<Vec<bool>, DbError> {
        self.find_locked(batches).await
    }

    async fn write(&mut self, batch: &CommitBatch) -> Result<(), CommitError> {
        if self.rolled_back {
            return Err(CommitError::Refused(rolled_back_error()));
        }
        self.write_within(batch).await
    }

    async fn become_lane(&mut self, lock_timeout: Duration) -> Result<(), DbError> {
        // A lock with a unique name identifies the session. The server releases it when the
        // session ends, and not before.
        let identity = format!("ekbatan-lane-{}", Uuid::now_v7().simple());
        // The shortest lock timeout is a second. The servers want a signed number.
        let seconds = lock_timeout.as_millis().div_ceil(1_000).clamp(1, 1_000_000);
        let half = self.syntax.flavour.half_statement_timeout();
        let sql = format!(
            "SELECT GET_LOCK('{identity}', 0); SET autocommit = 0, lock_wait_timeout = DEFAULT, \
             innodb_lock_wait_timeout = CAST(GREATEST(1, LEAST({seconds}, {half})) AS SIGNED)"
        );
        match self.numbers(&sql).await?[..] {
            [1] => {
                self.identity = Some(identity);
                Ok(())
            }
            ref other => Err(DbError::new(
                DbErrorKind::Unavailable,
                format!("the server did not grant a lane its own lock `{identity}`: {other:?}"),
            )),
        }
    }

    async fn begin(&mut self, options: &TransactionOptions) -> Result<(), DbError> {
        let isolation = match options.isolation {
            None => "",
            Some(Isolation::ReadCommitted) => "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; ",
            Some(Isolation::RepeatableRead) => "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; ",
            Some(Isolation::Serializable) => "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE; ",
        };
        let access = if options.read_only { " READ ONLY" } else { "" };
        self.rolled_back = false;
        self.send(&format!("{isolation}START TRANSACTION{access}; SAVEPOINT ekbatan")).await
    }

    async fn end(&mut self, commit: bool) -> Result<(), DbError> {
        if !commit {
            self.rolled_back = false;
            return self.send("ROLLBACK").await;
        }
        if self.rolled_back {
            return Err(rolled_back_error());
        }
        // If the server rolled the transaction back, or a CREATE in it committed it, the savepoint
        // is gone and the RELEASE fails, so that this is not taken for a commit.
        match self.send("RELEASE SAVEPOINT ekbatan; COMMIT").await {
            Err(error) if error.code() == Some(NO_SAVEPOINT) => {
                Err(DbError::new(DbErrorKind::Other, ENDED).with_source(error))
            }
            ended => ended,
        }
    }

    async fn create_eventlog(&mut self) -> Result<(), DbError> {
        let sql = self.syntax.create_eventlog();
        self.send(&sql).await.map_err(|error| match error.kind() {
            DbErrorKind::Denied => {
                let eventlog = self.syntax.quote(&self.syntax.eventlog);
                let why = format!(
                    "{error}; the framework's tables need a database of their own: GRANT ALL ON {eventlog}.* TO this user, \
                     or name another database with the setting eventlog"
                );
                DbError::new(DbErrorKind::Denied, why).with_source(error)
            }
            _ => error,
        })
    }

    async fn begin_migration(&mut self) -> Result<(), DbError> {
        self.lock_migrations().await
    }

    async fn leave_script(&mut self) -> Result<(), DbError> {
        self.leave_session().await
    }

    async fn end_migration(&mut self, succeeded: bool) -> Result<(), DbError> {
        self.unlock_migrations(succeeded).await
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
        self.send(sql).await
    }

    async fn describe(&mut self, table: &Table) -> Result<Vec<ColumnInfo>, DbError> {
        self.read_columns(table).await
    }

    async fn identify(&mut self, table: &Table) -> Result<Option<String>, DbError> {
        self.read_name(table).await
    }

    async fn rules(&mut self, table: &Table) -> Result<Rules, DbError> {
        self.read_rules(table).await
    }

    async fn settle(
        &mut self,
        broken: Option<&str>,
        actions: &[ActionId],
    ) -> Result<Vec<ActionId>, DbError> {
        // While the old session lives, its packet may still commit. So the session is ended before
        // its actions are looked up. It is found by its lock, because the server may have given
        // its connection id to another session.
        if let Some(lock) = broken {
            while let [session] = self.numbers(&format!("SELECT IS_USED_LOCK('{lock}')")).await?[..]
            {
                match self.send(&format!("KILL CONNECTION {session}")).await {
                    Err(error) if error.code() != Some(NO_SUCH_SESSION) => return Err(error),
                    _ => tokio::time::sleep(Duration::from_millis(10)).await,
                }
            }
        }
        // A server that waits for a table does not notice that the question is given up. It must not keep a
        // session for each of them.
        self.send("SET lock_wait_timeout = 5").await?;
        self.recorded(actions).await
    }

    async fn recorded(&mut self, actions: &[ActionId]) -> Result<Vec<ActionId>, DbError> {
        let ids: Vec<String> = actions.iter().map(|action| format!("'{action}'")).collect();
        // The server is asked first whether it is read-only. Asked afterwards, it might have been
        // promoted after it was asked for the rows.
        let sql = format!(
            "{IS_READ_ONLY}; SELECT DISTINCT action_id FROM {} WHERE action_id IN ({})",
            self.syntax.table(&EVENTS),
            ids.join(", ")
        );
        self.trips += 1;
        let rows =
            sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(&mut self.inner).await.map_err(classify)?;
        let Some((first, found)) = rows.split_first() else {
            return Err(DbError::new(
                DbErrorKind::Decode,
                "the server did not say whether it is read-only",
            ));
        };
        if first.try_get_unchecked::<i64, _>(0).map_err(classify)? != 0 {
            return Err(DbError::may_be_standby());
        }
        found
            .iter()
            .map(|row| Ok(row.try_get_unchecked::<String, _>(0)?.parse().ok().map(ActionId)))
            .filter_map(Result::transpose)
            .collect::<Result<_, sqlx::Error>>()
            .map_err(classify)
    }

    async fn running(&mut self) -> Result<Option<Vec<RunningTransaction>>, DbError> {
        self.read_running().await
    }

    async fn position(&mut self) -> Result<Option<String>, DbError> {
        self.trips += 1;
        let position: String = sqlx::query_scalar(self.syntax.flavour.position())
            .fetch_one(&mut self.inner)
            .await
            .map_err(classify)?;
        // The server breaks a set of several servers into lines. Without a binary log it is empty.
        let position: String = position.split_whitespace().collect();
        Ok(Some(position).filter(|position| !position.is_empty()))
    }

    async fn has_reached(&mut self, position: &str, timeout: Duration) -> Result<bool, DbError> {
        self.trips += 1;
        let reached: Option<i64> = sqlx::query_scalar(self.syntax.flavour.has_reached())
            .bind(position)
            .bind(position)
            // Zero would mean no timeout.
            .bind(timeout.min(LONGEST_TIMEOUT).as_secs_f64().max(0.001))
            .fetch_one(&mut self.inner)
            .await
            .map_err(classify)?;
        Ok(reached == Some(1))
    }

    fn identity(&self) -> Option<&str> {
        self.identity.as_deref()
    }

    fn round_trips(&self) -> u64 {
        self.trips
    }

    /// Replaces the session by a new one: sqlx does not offer the protocol's reset, and no list of
    /// settings covers everything that user code may have changed.
    async fn reset(&mut self) -> Result<(), DbError> {
        // The transaction of the old one must be over before the caller continues.
        self.renew().await?.close().await.map_err(classify)
    }

    async fn close(self: Box<Self>) {
        // A connection that is already broken is closed all the same.
        let _ = self.inner.close().await;
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

const ENDED: &str = "the transaction had ended before its commit: the server rolled it back, or a statement in it \
                     (CREATE, ALTER, DROP, COMMIT) committed what was before it";

pub(super) fn rolled_back_error() -> DbError {
    DbError::new(
        DbErrorKind::Other,
        "the transaction was rolled back after an earlier error (a deadlock or a lock that was not to be had); begin anew",
    )
}
