//! Leases as rows, by the server's clock.
//!
//! What always holds: a row is never deleted and its token only grows; what changes a lease
//! names its owner and its token; every call is one trip, and whatever it writes one statement
//! and one row, so that calls never wait for each other in a circle.
//!
//! A statement counts from when it began, also if it had to wait for its row. That is safe on
//! both sides: a key that had expired by then has, and a term that began by then does not end
//! before its holder thinks so.
//!
//! Nothing tells a waiter that a key was given back, so waiters ask again and again. Who asks
//! in vain leaves a wish in the row; who gives a wanted key back stays away for a moment, and
//! leaves a short wish of its own, lest the next holder think that nobody else wants it.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use super::link::{Set, value};
use super::pool::LockPool;
use super::sql::{MILLIS, NEVER, micros, text, uuid};
use super::tables::{LEASES, full_name};
use crate::{Attempt, BackendError, Grant, GrantRequest, Holder, LockBackend, Released};

/// Grants keys as rows of the table `lock_leases`; see
/// [`MySqlLocks::leases`](super::MySqlLocks::leases).
pub struct MySqlLeaseBackend {
    pool: LockPool,
    table: String,
    /// By which this process knows its own wishes from those of others.
    process: Uuid,
}

impl MySqlLeaseBackend {
    pub(super) fn new(pool: LockPool, eventlog: &str) -> Self {
        Self { pool, table: full_name(eventlog, &LEASES), process: Uuid::new_v4() }
    }

    /// Takes the key or leaves a wish, and looks whose it is. Nothing is written when it is
    /// held and known to be wanted; what the first look misses, the row itself decides.
    /// Columns are assigned from left to right, each from what those before it became.
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

    /// Gives back; by the owner alone where nobody heard of the token.
    fn give_back(&self, key: &str, grant: &Grant) -> String {
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
                     UTC_TIMESTAMP(6) + INTERVAL {OWN_WISH} MICROSECOND, {NEVER}), \
                 until = {NEVER} \
             WHERE lock_key = {key} AND owner = {owner} {token} AND until > UTC_TIMESTAMP(6)",
            OWN_WISH = OWN_WISH.as_micros()
        )
    }

    async fn affects(&self, what: &str, sql: &str) -> Result<bool, BackendError> {
        let sets = self.pool.run(what, sql).await?;
        Ok(sets.iter().any(|set| set.affected > 0))
    }
}

/// How long to stay away from a wanted key.
pub(super) const GIVE_WAY: Duration = Duration::from_millis(40);

/// How long the wish lasts of who stays away.
pub(super) const OWN_WISH: Duration = Duration::from_millis(200);

fn row(sets: &[Set], statement: usize) -> Option<&MySqlRow> {
    sets.get(statement).and_then(|set| set.rows.first())
}

pub(super) fn duration(row: &MySqlRow, column: usize) -> Result<Duration, BackendError> {
    Ok(Duration::from_micros(u64::try_from(value::<i64>(row, column)?).unwrap_or_default()))
}

#[async_trait]
impl LockBackend for MySqlLeaseBackend {
    fn name(&self) -> &'static str {
        "mysql lease"
    }

    async fn try_grant(&self, key: &str, request: &GrantRequest) -> Result<Attempt, BackendError> {
        let sets = self.pool.run("taking a lease", &self.take(key, request)).await?;
        let Some(row) = row(&sets, 1) else {
            return Err(BackendError::new("taking a lease: the row that was written is not there"));
        };
        Ok(match value(row, 0)? {
            true => Attempt::Granted(Grant { owner: request.owner, token: value(row, 1)? }),
            false => Attempt::Busy(Some(duration(row, 2)?)),
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
        let sets = self.pool.run("giving a lease back", &self.give_back(key, grant)).await?;
        // A lease that has expired is free without our doing.
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
        let sets = self.pool.run("who holds a lease", &sql).await?;
        let Some(row) = row(&sets, 0) else { return Ok(None) };
        Ok(Some(Holder {
            holder: value(row, 0)?,
            token: value(row, 1)?,
            held: Some(duration(row, 2)?),
            remaining: Some(duration(row, 3)?),
            waiting_here: 0,
        }))
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
