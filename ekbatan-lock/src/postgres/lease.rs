//! Leases as rows, by the server's clock.
//!
//! Invariants: a row is never deleted and its token only grows. A statement that changes a
//! lease names its owner and token. Every statement is a transaction of its own.
//!
//! A grant is on disk before its holder learns of it. A release does not wait for the disk: if a
//! crash forgets it, the key is free when its term ends. If grants are asynchronous, a crash may
//! forget them, too, and another holder may be granted the key with another token; the fence in
//! the commit distinguishes the two. Tokens are at least the milliseconds since 1970, so that
//! they grow even if the table is lost.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::address::PostgresAddress;
use super::listener::ReleaseListener;
use super::pool::PostgresLockPool;
use crate::key_hints::KeyHints;
use crate::{Attempt, BackendError, Grant, GrantRequest, Holder, LockBackend, Released};

/// Takes the place of `{unless durable}` in a statement that grants.
const UNLESS_DURABLE: &str = ", set_config('synchronous_commit', 'off', true)";

/// Takes a free key that was leased before. If this statement changes no row, [`TAKE`] follows.
/// The server plans this one in a fraction of the time.
const TAKE_FREE: &str = "\
    UPDATE eventlog.lock_leases SET owner = $2, holder = $3, since = clock_timestamp(), \
        token = greatest(token + 1, \
            floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint), \
        until = clock_timestamp() + $4 * interval '1 microsecond', wanted_until = '-infinity' \
    WHERE lock_key = $1 AND until <= clock_timestamp() \
    RETURNING token{unless durable}";

/// Takes the key, or marks it as wanted. Writes nothing if the key is held and marked already.
/// If the row changes after that check, the conflict clause decides.
const TAKE: &str = "\
    WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now), \
    asked AS ( \
        INSERT INTO eventlog.lock_leases AS l \
            (lock_key, owner, holder, token, since, until, wanted_until) \
        SELECT $1, $2, $3, floor(extract(epoch FROM now) * 1000)::bigint, now, \
            now + $4 * interval '1 microsecond', '-infinity' \
        FROM clock \
        WHERE NOT EXISTS (SELECT FROM eventlog.lock_leases h WHERE h.lock_key = $1 \
            AND h.until > now AND h.wanted_until > now + interval '1 second') \
        ON CONFLICT (lock_key) DO UPDATE SET \
            owner = CASE WHEN l.until <= excluded.since THEN excluded.owner ELSE l.owner END, \
            holder = CASE WHEN l.until <= excluded.since THEN excluded.holder ELSE l.holder END, \
            token = CASE WHEN l.until <= excluded.since \
                THEN greatest(l.token + 1, excluded.token) ELSE l.token END, \
            since = CASE WHEN l.until <= excluded.since THEN excluded.since ELSE l.since END, \
            until = CASE WHEN l.until <= excluded.since THEN excluded.until ELSE l.until END, \
            wanted_until = CASE WHEN l.until <= excluded.since THEN '-infinity' \
                ELSE excluded.since + interval '2 seconds' END \
        RETURNING l.owner = $2 AS granted, l.token, l.until{unless durable} \
    ), \
    answered AS ( \
        SELECT granted, token, until FROM asked \
        UNION ALL \
        SELECT false, h.token, h.until FROM eventlog.lock_leases h \
        WHERE h.lock_key = $1 AND NOT EXISTS (SELECT FROM asked) \
    ) \
    SELECT granted, token, \
        (extract(epoch FROM until - clock_timestamp()) * 1000000)::bigint AS remaining \
    FROM answered";

const EXTEND: &str = "\
    UPDATE eventlog.lock_leases SET until = clock_timestamp() + $4 * interval '1 microsecond' \
    WHERE lock_key = $1 AND owner = $2 AND token = $3 AND until > clock_timestamp() \
    RETURNING true{unless durable}";

/// Releases the key; by the owner alone if the answer with the token was lost. Notifies other
/// processes only if the key is marked as wanted.
const RELEASE: &str = "\
    UPDATE eventlog.lock_leases SET until = '-infinity' \
    WHERE lock_key = $1 AND owner = $2 AND (token = $3 OR $3 = 0) AND until > clock_timestamp() \
    RETURNING wanted_until > clock_timestamp() AS wanted, \
        CASE WHEN wanted_until > clock_timestamp() \
            THEN pg_notify('ekbatan_lock', lock_key)::text END, \
        set_config('synchronous_commit', 'off', true)";

/// Ends the lease that was seen. This waits for the disk: a crash must not restore the lease.
const FORCE: &str = "\
    UPDATE eventlog.lock_leases SET until = '-infinity', token = token + 1 \
    WHERE lock_key = $1 AND owner = $2 AND token = $3 AND until > clock_timestamp() \
    RETURNING CASE WHEN wanted_until > clock_timestamp() \
        THEN pg_notify('ekbatan_lock', lock_key)::text END";

const INSPECT: &str = "\
    SELECT holder, token, (extract(epoch FROM now - since) * 1000000)::bigint, \
        (extract(epoch FROM until - now) * 1000000)::bigint, owner \
    FROM (SELECT *, clock_timestamp() AS now FROM eventlog.lock_leases WHERE lock_key = $1) l \
    WHERE until > now";

/// The longest term that keeps a timestamp within its range.
const LONGEST: Duration = Duration::from_secs(1_000 * 365 * 86_400);

/// Grants keys as rows of the table `eventlog.lock_leases`.
pub(super) struct PostgresLeases {
    pool: PostgresLockPool,
    take_free: String,
    take: String,
    extend: String,
    hints: Arc<KeyHints>,
    listener: ReleaseListener,
}

impl PostgresLeases {
    pub(super) fn new(pool: PostgresLockPool, server: PostgresAddress, asynchronous: bool) -> Self {
        let unless_durable = if asynchronous { UNLESS_DURABLE } else { "" };
        let statement = |sql: &str| sql.replace("{unless durable}", unless_durable);
        let hints = Arc::new(KeyHints::default());
        let listener = ReleaseListener::start(server, hints.clone());
        let (take_free, take, extend) = (statement(TAKE_FREE), statement(TAKE), statement(EXTEND));
        Self { pool, take_free, take, extend, hints, listener }
    }
}

/// Rounded up: the server must not free a key earlier than its holder expects.
fn micros(term: Duration) -> f64 {
    term.min(LONGEST).as_micros() as f64 + 1.0
}

fn duration(row: &Row, column: usize) -> Duration {
    Duration::from_micros(u64::try_from(row.get::<_, i64>(column)).unwrap_or_default())
}

#[async_trait]
impl LockBackend for PostgresLeases {
    fn name(&self) -> &'static str {
        "postgres lease"
    }

    async fn try_grant(&self, key: &str, request: &GrantRequest) -> Result<Attempt, BackendError> {
        let term = micros(request.term);
        let values: [super::pool::TypedValue<'_>; 4] = [
            (&key, Type::TEXT),
            (&request.owner, Type::UUID),
            (&request.holder, Type::TEXT),
            (&term, Type::FLOAT8),
        ];
        if let Some(row) = self.pool.row("taking a lease", &self.take_free, &values).await? {
            return Ok(Attempt::Granted(Grant { owner: request.owner, token: row.get(0) }));
        }
        let Some(row) = self.pool.row("taking a lease", &self.take, &values).await? else {
            // Another process created the row after the check.
            return Ok(Attempt::Busy(None));
        };
        Ok(if row.get(0) {
            Attempt::Granted(Grant { owner: request.owner, token: row.get(1) })
        } else {
            Attempt::Busy(Some(duration(&row, 2)))
        })
    }

    async fn extend(&self, key: &str, grant: &Grant, term: Duration) -> Result<bool, BackendError> {
        let term = micros(term);
        let values: [super::pool::TypedValue<'_>; 4] = [
            (&key, Type::TEXT),
            (&grant.owner, Type::UUID),
            (&grant.token, Type::INT8),
            (&term, Type::FLOAT8),
        ];
        Ok(self.pool.row("extending a lease", &self.extend, &values).await?.is_some())
    }

    async fn release(&self, key: &str, grant: &Grant) -> Result<Released, BackendError> {
        let values: [super::pool::TypedValue<'_>; 3] =
            [(&key, Type::TEXT), (&grant.owner, Type::UUID), (&grant.token, Type::INT8)];
        let row = self.pool.row("releasing a lease", RELEASE, &values).await?;
        // A lease that has expired is free already.
        Ok(Released { ours: row.is_some(), wanted: row.is_some_and(|row| row.get(0)) })
    }

    async fn inspect(&self, key: &str) -> Result<Option<Holder>, BackendError> {
        let row = self
            .pool
            .row("looking for the holder of a lease", INSPECT, &[(&key, Type::TEXT)])
            .await?;
        Ok(row.map(|row| {
            Holder::new(row.get::<_, String>(0), row.get(1))
                .held(Some(duration(&row, 2)))
                .remaining(Some(duration(&row, 3)))
                .owner(row.get(4))
        }))
    }

    async fn force_release(
        &self,
        key: &str,
        seen: &Grant,
        _why: &str,
    ) -> Result<bool, BackendError> {
        let values: [super::pool::TypedValue<'_>; 3] =
            [(&key, Type::TEXT), (&seen.owner, Type::UUID), (&seen.token, Type::INT8)];
        Ok(self.pool.row("ending a lease", FORCE, &values).await?.is_some())
    }

    fn frees_by_itself(&self) -> bool {
        true
    }

    async fn freed(&self, key: &str) {
        self.hints.freed(key).await;
    }

    fn poll_interval(&self) -> Duration {
        Duration::from_millis(100)
    }

    fn give_way(&self) -> Duration {
        Duration::from_millis(20)
    }

    async fn close(&self) {
        self.listener.stop();
    }
}
