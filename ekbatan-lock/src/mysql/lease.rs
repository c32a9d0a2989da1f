//! Leases as rows, by the server's clock.
//!
//! Invariants: a row is never deleted and its token only grows. A statement that changes a
//! lease names its owner and token. Every call is one round trip and writes at most one row,
//! so that calls cannot deadlock.
//!
//! A statement's time is that of its start, even if it waited for its row. This is safe: a key
//! that had expired at the start has expired, and a term that begins at the start does not end
//! later than its holder expects.
//!
//! The server does not notify waiters, so they poll. A waiter that finds the key busy marks
//! the row as wanted. A process that releases a wanted key does not try again for a moment,
//! and leaves a short mark of its own, so that the next holder knows that the key is wanted.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use super::connection::{StatementResult, value};
use super::pool::MySqlLockPool;
use super::sql::{MILLIS, NEVER, micros, text, uuid};
use super::tables::{LEASES, full_name};
use crate::{Attempt, BackendError, Grant, GrantRequest, Holder, LockBackend, Released};

/// Grants keys as rows of the table `lock_leases`.
pub(super) struct MySqlLeases {
    pool: MySqlLockPool,
    table: String,
    /// Distinguishes the marks of this process from those of others.
    process: Uuid,
}

impl MySqlLeases {
    pub(super) fn new(pool: MySqlLockPool, eventlog: &str) -> Self {
        Self { pool, table: full_name(eventlog, &LEASES), process: Uuid::new_v4() }
    }

    /// Takes the key or marks it as wanted, and selects the result. Writes nothing if the key
    /// is held and marked already. If the row changes after that check, the `UPDATE` part
    /// decides. MySQL assigns columns from left to right, each from the new values before it.
    fn take(&self, key: &str, request: &GrantRequest) -> String {
        let table = &self.table;
        let (key, me) = (text(key), uuid(self.process));
        let (owner, holder) = (uuid(request.owner), text(&request.holder));
        let term = micros(request.term);
        format!(
            "INSERT INTO {table} \
                 (lock_key, owner, holder, token, since, until, wanted_by, wanted_until) \
             SELECT {key}, {owner}, {holder}, {MILLIS}, UTC_TIMESTAMP(6), \
                 UTC_TIMESTAMP(6) + INTERVAL {term} MICROSECOND, {me}, {NEVER} \
             FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM {table} h WHERE h.lock_key = {key} \
                 AND h.until > UTC_TIMESTAMP(6) \
                 AND h.wanted_until > UTC_TIMESTAMP(6) + INTERVAL 1 SECOND) \
             ON DUPLICATE KEY UPDATE \
                 owner = IF(until <= UTC_TIMESTAMP(6), {owner}, owner), \
                 holder = IF(until <= UTC_TIMESTAMP(6), {holder}, holder), \
                 token = IF(until <= UTC_TIMESTAMP(6), GREATEST(token + 1, {MILLIS}), token), \
                 since = IF(until <= UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), since), \
                 wanted_by = IF(until <= UTC_TIMESTAMP(6) \
                     OR wanted_until > UTC_TIMESTAMP(6) + INTERVAL 1 SECOND, wanted_by, {me}), \
                 wanted_until = IF(until <= UTC_TIMESTAMP(6), \
                     IF(wanted_by = {me}, {NEVER}, wanted_until), \
                     GREATEST(wanted_until, IF(wanted_by = {me}, \
                         UTC_TIMESTAMP(6) + INTERVAL 2 SECOND, wanted_until))), \
                 until = IF(until <= UTC_TIMESTAMP(6), \
                     UTC_TIMESTAMP(6) + INTERVAL {term} MICROSECOND, until); \
             SELECT owner = {owner}, token, \
                 TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), until) \
             FROM {table} WHERE lock_key = {key}"
        )
    }

    /// Releases the key; by the owner alone if the answer with the token was lost.
    fn release_sql(&self, key: &str, grant: &Grant) -> String {
        let table = &self.table;
        let (key, me, owner) = (text(key), uuid(self.process), uuid(grant.owner));
        let token = match grant.token {
            0 => String::new(),
            token => format!("AND token = {token}"),
        };
        format!(
            "SELECT wanted_until > UTC_TIMESTAMP(6) AND wanted_by <> {me} \
             FROM {table} WHERE lock_key = {key}; \
             UPDATE {table} SET \
                 wanted_by = IF(wanted_until > UTC_TIMESTAMP(6), {me}, wanted_by), \
                 wanted_until = IF(wanted_until > UTC_TIMESTAMP(6), \
                     UTC_TIMESTAMP(6) + INTERVAL {RELEASE_MARK} MICROSECOND, {NEVER}), \
                 until = {NEVER} \
             WHERE lock_key = {key} AND owner = {owner} {token} AND until > UTC_TIMESTAMP(6)",
            RELEASE_MARK = RELEASE_MARK.as_micros()
        )
    }

    async fn affects(&self, what: &str, sql: &str) -> Result<bool, BackendError> {
        let sets = self.pool.run(what, sql).await?;
        Ok(sets.iter().any(|set| set.affected > 0))
    }
}

/// How long this process does not try for a wanted key that it released.
pub(super) const GIVE_WAY: Duration = Duration::from_millis(40);

/// How long the mark lasts that this process leaves when it releases a wanted key.
pub(super) const RELEASE_MARK: Duration = Duration::from_millis(200);

fn row(sets: &[StatementResult], statement: usize) -> Option<&MySqlRow> {
    sets.get(statement).and_then(|set| set.rows.first())
}

pub(super) fn duration(row: &MySqlRow, column: usize) -> Result<Duration, BackendError> {
    Ok(Duration::from_micros(u64::try_from(value::<i64>(row, column)?).unwrap_or_default()))
}

#[async_trait]
impl LockBackend for MySqlLeases {
    fn name(&self) -> &'static str {
        "mysql lease"
    }

    async fn try_grant(&self, key: &str, request: &GrantRequest) -> Result<Attempt, BackendError> {
        let sets = self.pool.run("taking a lease", &self.take(key, request)).await?;
        let Some(row) = row(&sets, 1) else {
            return Err(BackendError::new(
                "taking a lease: the row that was written does not exist",
            ));
        };
        Ok(if value(row, 0)? {
            Attempt::Granted(Grant { owner: request.owner, token: value(row, 1)? })
        } else {
            Attempt::Busy(Some(duration(row, 2)?))
        })
    }

    async fn extend(&self, key: &str, grant: &Grant, term: Duration) -> Result<bool, BackendError> {
        let sql = format!(
            "UPDATE {} SET until = UTC_TIMESTAMP(6) + INTERVAL {} MICROSECOND \
             WHERE lock_key = {} AND owner = {} AND token = {} AND until > UTC_TIMESTAMP(6)",
            self.table,
            micros(term),
            text(key),
            uuid(grant.owner),
            grant.token
        );
        self.affects("extending a lease", &sql).await
    }

    async fn release(&self, key: &str, grant: &Grant) -> Result<Released, BackendError> {
        let sets = self.pool.run("releasing a lease", &self.release_sql(key, grant)).await?;
        // A lease that has expired is free already.
        let ours = sets.get(1).is_some_and(|set| set.affected > 0);
        let wanted = row(&sets, 0).map(|row| value(row, 0)).transpose()?.unwrap_or(false);
        Ok(Released { ours, wanted: ours && wanted })
    }

    async fn inspect(&self, key: &str) -> Result<Option<Holder>, BackendError> {
        let sql = format!(
            "SELECT holder, token, TIMESTAMPDIFF(MICROSECOND, since, UTC_TIMESTAMP(6)), \
                 TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), until) \
             FROM {} WHERE lock_key = {} AND until > UTC_TIMESTAMP(6)",
            self.table,
            text(key)
        );
        let sets = self.pool.run("looking for the holder of a lease", &sql).await?;
        let Some(row) = row(&sets, 0) else { return Ok(None) };
        let holder = Holder::new(value::<String>(row, 0)?, value(row, 1)?);
        Ok(Some(holder.held(Some(duration(row, 2)?)).remaining(Some(duration(row, 3)?))))
    }

    async fn force_release(&self, key: &str, _why: &str) -> Result<bool, BackendError> {
        let sql = format!(
            "UPDATE {} SET until = {NEVER}, token = token + 1 \
             WHERE lock_key = {} AND until > UTC_TIMESTAMP(6)",
            self.table,
            text(key)
        );
        self.affects("ending a lease", &sql).await
    }

    fn frees_by_itself(&self) -> bool {
        true
    }

    fn poll_interval(&self) -> Duration {
        Duration::from_millis(20)
    }

    fn give_way(&self) -> Duration {
        GIVE_WAY
    }
}
