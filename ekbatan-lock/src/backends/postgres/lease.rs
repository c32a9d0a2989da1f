//! Leases as rows, by the server's clock. A release hands the key over to the first waiter.
//!
//! Invariants: tokens of a key only grow. A statement that changes a lease names its owner and
//! token. Every statement is a transaction of its own, and locks the row before it decides.
//!
//! A grant is on disk before its holder learns of it. A release does not wait for the disk: if a
//! crash forgets it, the key is free when its term ends. If grants are asynchronous, a crash may
//! forget them, too, and another holder may be granted the key with another token; the fence in
//! the commit distinguishes the two. Tokens are at least the milliseconds since 1970, so that
//! they grow even if the table is lost.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::task::JoinHandle;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::address::PostgresAddress;
use super::cleaning::RowCleaner;
use super::error::was_too_late;
use super::lease_waiters::{BlindOnDrop, LeaseWaiters};
use super::listener::HandOverListener;
use super::pool::{ANSWER, Late, PostgresLockPool, TypedValue};
use crate::{
    Attempt, BackendError, Grant, GrantExtension, GrantRequest, HandOver, Holder, LockBackend,
    Released,
};

/// The functions of the steps.
pub(super) const FUNCTIONS: &str = include_str!("lease/functions.sql");

/// The last column is computed when the key is taken. It undoes the take if that is too late.
const TAKE: &str = "\
    SELECT *, eventlog.lease_in_time($10) \
    FROM eventlog.lease_take($1, $2, $3, $4, $5, $6, $7, $8, $9)";

/// It may be carried out late, after a later one. So it never shortens a term.
const EXTEND: &str = "\
    UPDATE eventlog.lock_leases \
    SET until = greatest(until, clock_timestamp() + $4 * interval '1 microsecond') \
    WHERE lock_key = $1 AND owner = $2 AND token = $3 AND until > clock_timestamp() \
    RETURNING CASE WHEN NOT $5 THEN set_config('synchronous_commit', 'off', true) END";

const SET_TERM: &str = "\
    UPDATE eventlog.lock_leases SET until = clock_timestamp() + $4 * interval '1 microsecond' \
    WHERE lock_key = $1 AND owner = $2 AND token = $3 AND until > clock_timestamp() \
    RETURNING CASE WHEN NOT $5 THEN set_config('synchronous_commit', 'off', true) END";

/// Rows that others have locked are left out: nothing waits while it has locked other rows.
const EXTEND_ALL: &str = "\
    WITH mine AS (SELECT l.lock_key, v.term FROM eventlog.lock_leases l \
        JOIN unnest($1, $2, $3, $4) AS v(lock_key, owner, token, term) \
            ON l.lock_key = v.lock_key AND l.owner = v.owner AND l.token = v.token \
        WHERE l.until > clock_timestamp() FOR UPDATE OF l SKIP LOCKED) \
    UPDATE eventlog.lock_leases l \
    SET until = greatest(l.until, clock_timestamp() + mine.term * interval '1 microsecond') \
    FROM mine WHERE l.lock_key = mine.lock_key \
    RETURNING l.lock_key, CASE WHEN NOT $5 THEN set_config('synchronous_commit', 'off', true) END";

const RELEASE: &str = "SELECT eventlog.lease_release($1, $2, $3, $4, $5)";

const GIVE_UP: &str = "SELECT eventlog.lease_give_up($1, $2, $3, $4)";

/// The time of the server.
const CLOCK: &str = "SELECT eventlog.lease_micros(clock_timestamp())";

/// The last row has no owner, and only says the time of the server.
const LOOK: &str = "\
    SELECT * FROM eventlog.lease_look_without_waiting($1, $2, $3, $4, $5, $6) \
    UNION ALL SELECT NULL, false, 0, 0, eventlog.lease_micros(clock_timestamp())";

/// Ends the lease that was seen. This waits for the disk: a crash must not restore the lease.
const FORCE: &str = "SELECT eventlog.lease_force($1, $2, $3, $4)";

const INSPECT: &str = "\
    SELECT holder, token, (extract(epoch FROM now - since) * 1000000)::bigint, \
        (extract(epoch FROM until - now) * 1000000)::bigint, owner \
    FROM (SELECT *, clock_timestamp() AS now FROM eventlog.lock_leases WHERE lock_key = $1) l \
    WHERE until > now";

const LIST: &str = "\
    SELECT holder, token, (extract(epoch FROM now - since) * 1000000)::bigint, \
        (extract(epoch FROM until - now) * 1000000)::bigint, owner, lock_key \
    FROM (SELECT *, clock_timestamp() AS now FROM eventlog.lock_leases \
        WHERE EXISTS (SELECT FROM unnest($1) AS prefix WHERE starts_with(lock_key, prefix))) l \
    WHERE until > now ORDER BY lock_key LIMIT $2";

/// The longest term that keeps a timestamp within its range.
const LONGEST: Duration = Duration::from_secs(1_000 * 365 * 86_400);

/// For how long a waiter is granted a key that is handed over to it. It extends that to its
/// whole term. If its process has died, the key is handed over again after this time.
const CONFIRM: Duration = Duration::from_secs(2);

/// For how long a process that waits is registered. It renews that at half the time. So several
/// waiters that have died delay the others by at most this time and one confirm term.
const REGISTERED: Duration = Duration::from_secs(5);

/// Time between two looks at the keys that the process waits for.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The same, while no messages arrive: much shorter than the confirm term of a grant.
const LOOK_EVERY_WITHOUT_MESSAGES: Duration = Duration::from_millis(100);

/// Grants keys as rows of the table `eventlog.lock_leases`.
pub(super) struct PostgresLeases {
    rows: LeaseRows,
    listener: HandOverListener,
    looker: JoinHandle<()>,
    cleaner: Arc<RowCleaner>,
}

/// The rows, as this process changes them. Cheap to clone.
#[derive(Clone)]
struct LeaseRows {
    pool: PostgresLockPool,
    /// The name of this process in registrations.
    process: String,
    waiters: Arc<LeaseWaiters>,
    /// Whether grants wait for the disk.
    durable: bool,
}

impl PostgresLeases {
    pub(super) fn new(pool: PostgresLockPool, server: PostgresAddress, asynchronous: bool) -> Self {
        let process = Uuid::new_v4().simple().to_string();
        let (waiters, durable) = (Arc::<LeaseWaiters>::default(), !asynchronous);
        let channel = format!("ekbatan_lock_{process}");
        let listener = HandOverListener::start(server, channel, waiters.clone());
        let rows = LeaseRows { pool, process, waiters, durable };
        rows.waiters.set_looking(true);
        let looker = tokio::spawn(rows.clone().look_again_and_again());
        Self { rows, listener, looker, cleaner: Arc::default() }
    }

    /// Deletes old rows if that is due, without the caller of the release waiting for it.
    fn clean_after(&self, released: &str) {
        if let Some(slice) = self.cleaner.slice_after(released) {
            let (pool, cleaner) = (self.rows.pool.clone(), self.cleaner.clone());
            tokio::spawn(async move {
                if let Err(error) = cleaner.clean(slice, &pool).await {
                    tracing::debug!(%error, "old rows of leases stay");
                }
            });
        }
    }
}

impl Drop for PostgresLeases {
    fn drop(&mut self) {
        self.looker.abort();
    }
}

/// Rounded up: the server must not free a key earlier than its holder expects.
fn micros(term: Duration) -> i64 {
    i64::try_from(term.min(LONGEST).as_micros() + 1).unwrap_or(i64::MAX)
}

fn duration(row: &Row, column: usize) -> Duration {
    Duration::from_micros(u64::try_from(row.get::<_, i64>(column)).unwrap_or_default())
}

/// The holder in a row of [`INSPECT`] or [`LIST`].
fn holder(row: &Row) -> Holder {
    Holder::new(row.get::<_, String>(0), row.get(1))
        .held(Some(duration(row, 2)))
        .remaining(Some(duration(row, 3)))
        .owner(row.get(4))
}

impl LeaseRows {
    async fn take(&self, key: &str, request: &GrantRequest) -> Result<Attempt, BackendError> {
        let (term, registered, confirm) =
            (micros(request.term), micros(REGISTERED), micros(CONFIRM));
        // Without messages, too, because a registered waiter of another process goes first.
        let waits = request.waits && self.waiters.is_looking();
        let mut again = true;
        let (sent, rows) = loop {
            if !self.waiters.clock.is_fresh() {
                self.read_clock().await?;
            }
            let connection = self.pool.connection().await?;
            // The time of a take does not begin before there is a connection for it.
            let Some(latest) = self.waiters.clock.shows_after(ANSWER) else { continue };
            let values: [TypedValue<'_>; 10] = [
                (&key, Type::TEXT),
                (&request.owner, Type::UUID),
                (&request.holder, Type::TEXT),
                (&term, Type::INT8),
                (&self.process, Type::TEXT),
                (&waits, Type::BOOL),
                (&registered, Type::INT8),
                (&confirm, Type::INT8),
                (&self.durable, Type::BOOL),
                (&latest, Type::INT8),
            ];
            let what = "taking a lease";
            let taken =
                self.pool.timed_rows_over(connection, what, TAKE, &values, Late::Cancelled).await;
            if taken.as_ref().is_err_and(was_too_late) && std::mem::take(&mut again) {
                // The clock was set since it was read.
                self.read_clock().await?;
                continue;
            }
            break taken?;
        };
        let Some(row) = rows.first() else {
            return Err(BackendError::new("taking a lease: the server returned no row"));
        };
        let (granted, token): (bool, i64) = (row.get(0), row.get(1));
        let (ends, now, stood): (i64, i64, bool) = (row.get(2), row.get(3), row.get(4));
        self.waiters.clock.note(sent, now);
        if granted {
            let grant = Grant { owner: request.owner, token };
            // A grant that stood before lasts for the rest of its own term.
            return Ok(if stood {
                Attempt::HandedOver(HandOver { grant, until: self.waiters.clock.moment_of(ends) })
            } else {
                Attempt::Granted(grant)
            });
        }
        if waits {
            self.waiters.registered(request.owner);
            return Ok(Attempt::Queued);
        }
        let rest = u64::try_from(ends.saturating_sub(now)).unwrap_or_default();
        Ok(Attempt::Busy(Some(Duration::from_micros(rest))))
    }

    async fn read_clock(&self) -> Result<(), BackendError> {
        let what = "asking for the time";
        let (sent, rows) =
            self.pool.timed_rows(what, CLOCK, &[]).await.map_err(BackendError::not_sent)?;
        let Some(row) = rows.first() else {
            return Err(BackendError::new("asking for the time: the server returned no row"));
        };
        self.waiters.clock.note(sent, row.get(0));
        Ok(())
    }

    /// Returns whether the lease stands.
    async fn change_end(
        &self,
        what: &'static str,
        sql: &'static str,
        key: &str,
        grant: &Grant,
        term: Duration,
    ) -> Result<bool, BackendError> {
        let term = micros(term) as f64;
        let values: [TypedValue<'_>; 5] = [
            (&key, Type::TEXT),
            (&grant.owner, Type::UUID),
            (&grant.token, Type::INT8),
            (&term, Type::FLOAT8),
            (&self.durable, Type::BOOL),
        ];
        Ok(self.pool.row(what, sql, &values).await?.is_some())
    }

    /// Looks at all keys that the process waits for, in one statement.
    async fn look(&self, keys: &[String], owners: &[Uuid]) -> Result<(), BackendError> {
        let (registered, confirm) = (micros(REGISTERED), micros(CONFIRM));
        let values: [TypedValue<'_>; 6] = [
            (&self.process, Type::TEXT),
            (&keys, Type::TEXT_ARRAY),
            (&owners, Type::UUID_ARRAY),
            (&registered, Type::INT8),
            (&confirm, Type::INT8),
            (&self.durable, Type::BOOL),
        ];
        let what = "looking at waited-for leases";
        let (sent, rows) = self.pool.timed_rows(what, LOOK, &values).await?;
        for row in rows {
            // Also if there is nothing else to tell: the times in messages are by this clock.
            self.waiters.clock.note(sent, row.get(4));
            let Some(owner) = row.get::<_, Option<Uuid>>(0) else { continue };
            if row.get(1) {
                self.waiters.hand_over(owner, row.get(2), row.get(3));
            } else {
                self.waiters.repeat(owner);
            }
        }
        Ok(())
    }

    /// Finds messages that were lost and grants that have ended, while the process waits for keys:
    /// once per second, or more often if no messages arrive.
    async fn look_again_and_again(self) {
        let _blind = BlindOnDrop(self.waiters.clone());
        loop {
            drop(self.waiters.all_registered().await);
            let listening = self.waiters.is_listening();
            let pause = if listening { LOOK_EVERY } else { LOOK_EVERY_WITHOUT_MESSAGES };
            tokio::time::sleep(pause).await;
            let (keys, owners) = self.waiters.all_registered().await;
            if let Err(error) = self.look(&keys, &owners).await {
                tracing::debug!(%error, "looking at waited-for leases");
                // The callers learn it from their own requests.
                self.waiters.repeat_all();
            }
        }
    }
}

#[async_trait]
impl LockBackend for PostgresLeases {
    fn name(&self) -> &'static str {
        "postgres lease"
    }

    async fn try_grant(&self, key: &str, request: &GrantRequest) -> Result<Attempt, BackendError> {
        self.rows.take(key, request).await
    }

    async fn extend(&self, key: &str, grant: &Grant, term: Duration) -> Result<bool, BackendError> {
        self.rows.change_end("extending a lease", EXTEND, key, grant, term).await
    }

    async fn set_term(
        &self,
        key: &str,
        grant: &Grant,
        term: Duration,
    ) -> Result<bool, BackendError> {
        self.rows.change_end("setting the term of a lease", SET_TERM, key, grant, term).await
    }

    async fn extend_all(&self, extensions: &[GrantExtension]) -> Result<Vec<bool>, BackendError> {
        let keys: Vec<&str> = extensions.iter().map(|of| of.key.as_str()).collect();
        let owners: Vec<Uuid> = extensions.iter().map(|of| of.grant.owner).collect();
        let tokens: Vec<i64> = extensions.iter().map(|of| of.grant.token).collect();
        let terms: Vec<f64> = extensions.iter().map(|of| micros(of.term) as f64).collect();
        let values: [TypedValue<'_>; 5] = [
            (&keys, Type::TEXT_ARRAY),
            (&owners, Type::UUID_ARRAY),
            (&tokens, Type::INT8_ARRAY),
            (&terms, Type::FLOAT8_ARRAY),
            (&self.rows.durable, Type::BOOL),
        ];
        let rows = self.rows.pool.rows("extending leases", EXTEND_ALL, &values).await?;
        let extended: HashSet<&str> = rows.iter().map(|row| row.get(0)).collect();
        Ok(keys.into_iter().map(|key| extended.contains(key)).collect())
    }

    async fn release(&self, key: &str, grant: &Grant) -> Result<Released, BackendError> {
        let confirm = micros(CONFIRM);
        let (key_value, owner) = ((&key as _, Type::TEXT), (&grant.owner as _, Type::UUID));
        let (confirm, durable) =
            ((&confirm as _, Type::INT8), (&self.rows.durable as _, Type::BOOL));
        let pool = &self.rows.pool;
        // A token of zero stands for a take whose answer was lost.
        let row = if grant.token == 0 {
            let values = [key_value, owner, confirm, durable];
            pool.row("giving up a lease", GIVE_UP, &values).await?
        } else {
            let token = (&grant.token as _, Type::INT8);
            let values = [key_value, owner, token, confirm, durable];
            pool.row("releasing a lease", RELEASE, &values).await?
        };
        self.clean_after(key);
        // A lease that has expired is free already. If a process waits, it has the key by now.
        Ok(Released { ours: row.is_some_and(|row| row.get(0)), wanted: false })
    }

    async fn handed_over(&self, key: &str, owner: Uuid) -> Option<HandOver> {
        self.rows.waiters.wait(key, owner).await
    }

    async fn inspect(&self, key: &str) -> Result<Option<Holder>, BackendError> {
        let row = self
            .rows
            .pool
            .row("looking for the holder of a lease", INSPECT, &[(&key, Type::TEXT)])
            .await?;
        Ok(row.as_ref().map(holder))
    }

    async fn list(
        &self,
        prefixes: &[String],
        most: usize,
    ) -> Result<Vec<(String, Holder)>, BackendError> {
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let values: [TypedValue<'_>; 2] = [(&prefixes, Type::TEXT_ARRAY), (&most, Type::INT8)];
        let rows = self.rows.pool.rows("listing leases", LIST, &values).await?;
        Ok(rows.iter().map(|row| (row.get(5), holder(row))).collect())
    }

    async fn force_release(
        &self,
        key: &str,
        seen: &Grant,
        _why: &str,
    ) -> Result<bool, BackendError> {
        let confirm = micros(CONFIRM);
        let values: [TypedValue<'_>; 4] = [
            (&key, Type::TEXT),
            (&seen.owner, Type::UUID),
            (&seen.token, Type::INT8),
            (&confirm, Type::INT8),
        ];
        let row = self.rows.pool.row("ending a lease", FORCE, &values).await?;
        Ok(row.is_some_and(|row| row.get(0)))
    }

    fn frees_by_itself(&self) -> bool {
        true
    }

    /// While the process is not registered.
    fn poll_interval(&self) -> Duration {
        Duration::from_millis(100)
    }

    async fn close(&self) {
        self.listener.stop();
        self.looker.abort();
    }
}
