//! Leases as rows, by the server's clock.
//!
//! Invariants: a key's token only grows, also if its row was [cleaned](super::cleaning). A
//! statement that changes a lease names its owner and token. Every call is one round trip and
//! writes at most one row, so that calls cannot deadlock; statements for several rows take them
//! in the order of their keys. They wait for a locked row for a moment only, and are repeated:
//! they would keep the rows before it from being renewed.
//!
//! A statement's time is that of its start, even if it waited for its row. This is safe: a key
//! that had expired at the start has expired, and a term that begins at the start does not end
//! later than its holder expects.
//!
//! The server does not notify waiters, so one [poller](crate::backends::key_poller) looks at the rows of
//! all keys that this process waits for. A waiter that finds the key busy marks the row as
//! wanted, and the poller renews the mark. A process that releases a wanted key removes the mark and
//! does not try again for a moment. If it wants the key, its next try marks it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::mysql::MySqlRow;
use tokio::time::Instant;
use uuid::Uuid;

use super::cleaning::RowCleaner;
use super::connection::{StatementResult, value};
use super::pool::MySqlLockPool;
use super::sql::{MICROS, MILLIS, NEVER, begins_with, in_time, micros, text, texts, uuid};
use super::tables::{LEASES, full_name};
use crate::backends::key_poller::{KeyPoller, KeyState, KeyStates, Pace};
use crate::backends::server_clock::ServerClock;
use crate::{
    Attempt, BackendError, Grant, GrantExtension, GrantRequest, Holder, LockBackend, Released,
};

/// Grants keys as rows of the table `lock_leases`.
pub(super) struct MySqlLeases {
    rows: LeaseRows,
    poller: KeyPoller,
    cleaner: Arc<RowCleaner>,
}

/// The table, and how to reach it.
#[derive(Clone)]
struct LeaseRows {
    pool: MySqlLockPool,
    table: String,
    /// Distinguishes the marks of this process from those of others.
    process: Uuid,
    clock: Arc<ServerClock>,
}

impl MySqlLeases {
    pub(super) fn new(pool: MySqlLockPool, eventlog: &str) -> Self {
        let table = full_name(eventlog, &LEASES);
        let cleaner = Arc::new(RowCleaner::new(&table, "until <= UTC_TIMESTAMP(6)"));
        let rows = LeaseRows { pool, table, process: Uuid::new_v4(), clock: Arc::default() };
        Self { poller: KeyPoller::new(rows.clone(), POLLS), rows, cleaner }
    }

    /// Deletes old rows if that is due, without the caller waiting for it.
    fn clean(&self) {
        let Some(slice) = self.cleaner.next_slice() else { return };
        let (pool, cleaner) = (self.rows.pool.clone(), self.cleaner.clone());
        tokio::spawn(async move {
            let cleaned = async {
                let rows = pool.run("looking for old leases", &slice).await?;
                match cleaner.deletion(&rows) {
                    Some(deletion) => pool.run("deleting old leases", &deletion).await.map(drop),
                    None => Ok(()),
                }
            };
            if let Err(error) = cleaned.await {
                tracing::debug!(%error, "old rows of leases stay");
            }
        });
    }
}

impl LeaseRows {
    /// Takes the key, or marks it as wanted if the caller waits, and selects the result. Writes
    /// nothing if the key is held and needs no mark, or if the server's clock shows more than `latest`: then the
    /// caller has given up, and nobody would release the key. If the row changes after that check, the `UPDATE` part
    /// decides. MySQL assigns columns from left to right, each from the new values before it.
    fn take_sql(&self, key: &str, request: &GrantRequest, latest: i64) -> String {
        let table = &self.table;
        let (key, me) = (text(key), uuid(self.process));
        let (owner, holder) = (uuid(request.owner), text(&request.holder));
        let term = micros(request.term);
        let (is_marked, mark, marked_until) = if request.waits {
            (
                "AND h.wanted_until > UTC_TIMESTAMP(6) + INTERVAL 1 SECOND",
                format!(
                    "wanted_by = IF(until <= UTC_TIMESTAMP(6) \
                         OR wanted_until > UTC_TIMESTAMP(6) + INTERVAL 1 SECOND, wanted_by, {me}), "
                ),
                format!(
                    "GREATEST(wanted_until, IF(wanted_by = {me}, \
                         UTC_TIMESTAMP(6) + INTERVAL 2 SECOND, wanted_until))"
                ),
            )
        } else {
            ("", String::new(), "wanted_until".to_owned())
        };
        format!(
            "INSERT INTO {table} \
                 (lock_key, owner, holder, token, since, until, wanted_by, wanted_until) \
             SELECT {key}, {owner}, {holder}, {MILLIS}, UTC_TIMESTAMP(6), \
                 UTC_TIMESTAMP(6) + INTERVAL {term} MICROSECOND, {me}, {NEVER} \
             FROM DUAL WHERE {MICROS} <= {latest} AND NOT EXISTS (SELECT 1 FROM {table} h WHERE h.lock_key = {key} \
                 AND h.until > UTC_TIMESTAMP(6) {is_marked}) \
             ON DUPLICATE KEY UPDATE \
                 owner = IF(until <= UTC_TIMESTAMP(6), {owner}, owner), \
                 holder = IF(until <= UTC_TIMESTAMP(6), {holder}, holder), \
                 token = IF(until <= UTC_TIMESTAMP(6), GREATEST(token + 1, {MILLIS}), token), \
                 since = IF(until <= UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), since), \
                 {mark}\
                 wanted_until = IF(until <= UTC_TIMESTAMP(6), \
                     IF(wanted_by = {me}, {NEVER}, wanted_until), {marked_until}), \
                 until = IF(until <= UTC_TIMESTAMP(6), \
                     UTC_TIMESTAMP(6) + INTERVAL {term} MICROSECOND, until); \
             SELECT COALESCE(l.owner = {owner}, 0), COALESCE(l.token, 0), {MICROS}, \
                 l.owner IS NULL \
             FROM (SELECT 1) one LEFT JOIN {table} l ON l.lock_key = {key}"
        )
    }

    async fn read_clock(&self) -> Result<(), BackendError> {
        let asked = Instant::now();
        let sets = self.pool.run("asking for the time", &format!("SELECT {MICROS}")).await;
        let sets = sets.map_err(BackendError::not_sent)?;
        let Some(row) = row(&sets, 0) else {
            return Err(BackendError::new("asking for the time: the server returned no row"));
        };
        self.clock.note(asked, value(row, 0)?);
        Ok(())
    }

    async fn take(&self, key: &str, request: &GrantRequest) -> Result<Attempt, BackendError> {
        let mut again = true;
        loop {
            if !self.clock.is_fresh() {
                self.read_clock().await?;
            }
            let connection = self.pool.usable().await?;
            // The time of a take does not begin before there is a connection for it.
            let Some(latest) = self.clock.shows_after(self.pool.answer()) else { continue };
            let (sql, asked) = (self.take_sql(key, request, latest), Instant::now());
            let sets = MySqlLockPool::run_over(connection, "taking a lease", &sql).await?;
            let Some(row) = row(&sets, 1) else {
                return Err(BackendError::new("taking a lease: the server returned no row"));
            };
            let (now, is_missing): (i64, bool) = (value(row, 2)?, value(row, 3)?);
            self.clock.note(asked, now);
            if value(row, 0)? {
                let token = value(row, 1)?;
                return Ok(Attempt::Granted(Grant { owner: request.owner, token }));
            }
            // The clock was set since it was read.
            let was_late = now > latest;
            if was_late && std::mem::take(&mut again) {
                continue;
            }
            if was_late || is_missing {
                return Err(BackendError::unavailable(
                    "taking a lease: the take was carried out after its time",
                ));
            }
            return Ok(Attempt::Busy(None));
        }
    }

    /// Sets the end of the lease to `until`, if it stands.
    fn change_end_sql(&self, until: &str, key: &str, grant: &Grant) -> String {
        format!(
            "UPDATE {} SET until = {until} \
             WHERE lock_key = {} AND owner = {} AND token = {} AND until > UTC_TIMESTAMP(6)",
            self.table,
            text(key),
            uuid(grant.owner),
            grant.token
        )
    }

    /// Extends the leases, and selects the keys of those that are valid then. Takes the rows in the
    /// order of their keys.
    fn extend_all_sql(&self, extensions: &[GrantExtension]) -> String {
        let table = &self.table;
        let keys = texts(extensions.iter().map(|of| &of.key));
        let each = |write: fn(&GrantExtension) -> String, between: &str| {
            extensions.iter().map(write).collect::<Vec<_>>().join(between)
        };
        let terms = each(|of| format!("WHEN {} THEN {}", text(&of.key), micros(of.term)), " ");
        let grants = each(
            |of| {
                let (key, owner) = (text(&of.key), uuid(of.grant.owner));
                format!("(lock_key = {key} AND owner = {owner} AND token = {})", of.grant.token)
            },
            " OR ",
        );
        let mine = format!("lock_key IN ({keys}) AND ({grants}) AND until > UTC_TIMESTAMP(6)");
        format!(
            "UPDATE {table} SET until = GREATEST(until, UTC_TIMESTAMP(6) \
                 + INTERVAL CASE lock_key {terms} END MICROSECOND) WHERE {mine} ORDER BY lock_key; \
             SELECT lock_key FROM {table} WHERE {mine}"
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
                 wanted_until = {NEVER}, until = {NEVER} \
             WHERE lock_key = {key} AND owner = {owner} {token} AND until > UTC_TIMESTAMP(6)"
        )
    }

    /// Selects the states of the keys, and renews the marks that are about to end.
    fn look_sql(&self, keys: &[String]) -> String {
        let keys = texts(keys);
        format!(
            "SELECT lock_key, token, TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), until) \
             FROM {table} WHERE lock_key IN ({keys}); \
             UPDATE {table} SET wanted_by = {me}, \
                 wanted_until = UTC_TIMESTAMP(6) + INTERVAL 2 SECOND \
             WHERE lock_key IN ({keys}) AND until > UTC_TIMESTAMP(6) \
                 AND wanted_until <= UTC_TIMESTAMP(6) + INTERVAL 1 SECOND",
            table = self.table,
            me = uuid(self.process)
        )
    }

    /// Selects the holders of the keys that are held and for which the condition is true.
    fn holders(&self, condition: &str) -> String {
        format!(
            "SELECT holder, token, TIMESTAMPDIFF(MICROSECOND, since, UTC_TIMESTAMP(6)), \
                 TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), until), owner, lock_key \
             FROM {} WHERE {condition} AND until > UTC_TIMESTAMP(6)",
            self.table
        )
    }

    async fn affects(&self, what: &str, sql: &str) -> Result<bool, BackendError> {
        let sets = self.pool.run(what, sql).await?;
        Ok(sets.iter().any(|set| set.affected > 0))
    }
}

/// How the pollers of both strategies look.
pub(super) const POLLS: Pace = Pace::new(Duration::from_millis(5), Duration::from_millis(300));

/// Time between tries for a key without a hint. The poller gives the hints.
pub(super) const WITHOUT_HINT: Duration = Duration::from_secs(300);

/// How long this process does not try for a wanted key that it released.
pub(super) const GIVE_WAY: Duration = Duration::from_millis(40);

fn row(sets: &[StatementResult], statement: usize) -> Option<&MySqlRow> {
    sets.get(statement).and_then(|set| set.rows.first())
}

pub(super) fn duration(row: &MySqlRow, column: usize) -> Result<Duration, BackendError> {
    Ok(Duration::from_micros(u64::try_from(value::<i64>(row, column)?).unwrap_or_default()))
}

fn holder(row: &MySqlRow) -> Result<Holder, BackendError> {
    let holder = Holder::new(value::<String>(row, 0)?, value(row, 1)?).owner(value(row, 4)?);
    Ok(holder.held(Some(duration(row, 2)?)).remaining(Some(duration(row, 3)?)))
}

/// The state of a row with a key, a token and the rest of a term.
fn state(row: &MySqlRow) -> Result<KeyState, BackendError> {
    Ok(KeyState { key: value(row, 0)?, grant: value(row, 1)?, remaining: Some(duration(row, 2)?) })
}

#[async_trait]
impl KeyStates for LeaseRows {
    async fn look(&self, keys: &[String]) -> Result<Vec<KeyState>, BackendError> {
        let sets = self.pool.run("looking for freed leases", &self.look_sql(keys)).await?;
        sets.iter().flat_map(|set| &set.rows).map(state).collect()
    }
}

#[async_trait]
impl LockBackend for MySqlLeases {
    fn name(&self) -> &'static str {
        "mysql lease"
    }

    async fn try_grant(&self, key: &str, request: &GrantRequest) -> Result<Attempt, BackendError> {
        let attempt = self.rows.take(key, request).await?;
        if matches!(attempt, Attempt::Busy(_)) {
            // The poller notices when the term ends.
            self.poller.busy(key);
        }
        Ok(attempt)
    }

    async fn extend(&self, key: &str, grant: &Grant, term: Duration) -> Result<bool, BackendError> {
        // It may be carried out late, after a later one. So it never shortens a term.
        let until = format!("GREATEST(until, {})", in_time(term));
        let sql = self.rows.change_end_sql(&until, key, grant);
        self.rows.affects("extending a lease", &sql).await
    }

    async fn set_term(
        &self,
        key: &str,
        grant: &Grant,
        term: Duration,
    ) -> Result<bool, BackendError> {
        let sql = self.rows.change_end_sql(&in_time(term), key, grant);
        self.rows.affects("setting the term of a lease", &sql).await
    }

    async fn extend_all(&self, extensions: &[GrantExtension]) -> Result<Vec<bool>, BackendError> {
        let sql = self.rows.extend_all_sql(extensions);
        let sets = self.rows.pool.run("extending leases", &sql).await?;
        let rows = sets.iter().flat_map(|set| &set.rows);
        let valid: HashSet<String> = rows.map(|row| value(row, 0)).collect::<Result<_, _>>()?;
        Ok(extensions.iter().map(|of| valid.contains(&of.key)).collect())
    }

    async fn release(&self, key: &str, grant: &Grant) -> Result<Released, BackendError> {
        let rows = &self.rows;
        let sets = rows.pool.run("releasing a lease", &rows.release_sql(key, grant)).await?;
        self.cleaner.released(key);
        self.clean();
        // A lease that has expired is free already.
        let ours = sets.get(1).is_some_and(|set| set.affected > 0);
        let wanted = row(&sets, 0).map(|row| value(row, 0)).transpose()?.unwrap_or(false);
        Ok(Released { ours, wanted: ours && wanted })
    }

    async fn inspect(&self, key: &str) -> Result<Option<Holder>, BackendError> {
        let sql = self.rows.holders(&format!("lock_key = {}", text(key)));
        let sets = self.rows.pool.run("looking for the holder of a lease", &sql).await?;
        row(&sets, 0).map(holder).transpose()
    }

    async fn list(
        &self,
        prefixes: &[String],
        most: usize,
    ) -> Result<Vec<(String, Holder)>, BackendError> {
        let all = self.rows.holders(&begins_with(prefixes));
        let sql = format!("{all} ORDER BY lock_key LIMIT {most}");
        let sets = self.rows.pool.run("listing leases", &sql).await?;
        let rows = sets.iter().flat_map(|set| &set.rows);
        rows.map(|row| Ok((value(row, 5)?, holder(row)?))).collect()
    }

    async fn force_release(
        &self,
        key: &str,
        seen: &Grant,
        _why: &str,
    ) -> Result<bool, BackendError> {
        let sql = format!(
            "UPDATE {} SET until = {NEVER}, token = token + 1 \
             WHERE lock_key = {} AND owner = {} AND token = {} AND until > UTC_TIMESTAMP(6)",
            self.rows.table,
            text(key),
            uuid(seen.owner),
            seen.token
        );
        self.rows.affects("ending a lease", &sql).await
    }

    fn frees_by_itself(&self) -> bool {
        true
    }

    async fn freed(&self, key: &str) {
        self.poller.freed(key).await;
    }

    fn poll_interval(&self) -> Duration {
        WITHOUT_HINT
    }

    fn give_way(&self) -> Duration {
        GIVE_WAY
    }
}
