//! Leases as rows, by the clock of the machine.
//!
//! Invariants: a key's token only grows, also if its row was [cleaned](super::cleaning). A
//! statement that changes a lease names its owner and token. Every change is one statement, which
//! reads the clock after it has become the only writer of the file.
//!
//! Tokens are at least the milliseconds since 1970, so that they grow even if the file is
//! lost.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ekbatan_core::__private::serde_json;
use sqlx::sqlite::SqliteRow;
use uuid::Uuid;

use super::cleaning::RowCleaner;
use super::columns::{duration, get};
use super::file::{LockFile, SqliteValue};
use super::rows::WaitedRows;
use crate::backends::key_poller::{KeyPoller, Pace};
use crate::{
    Attempt, BackendError, Grant, GrantExtension, GrantRequest, Holder, LockBackend, Released,
};

/// One row per key that was leased within the last day, or is leased.
const CREATE: &str = "\
    CREATE TABLE IF NOT EXISTS eventlog_lock_leases ( \
        lock_key     TEXT PRIMARY KEY, \
        owner        TEXT NOT NULL, \
        holder       TEXT NOT NULL, \
        token        INTEGER NOT NULL, \
        since        INTEGER NOT NULL, \
        until        INTEGER NOT NULL, \
        wanted_until INTEGER NOT NULL \
    )";

/// Selects a key that is held, for which nothing has to be written: it is marked as wanted, or the
/// caller does not wait.
const LOOK: &str = concat!(
    "SELECT 1 FROM eventlog_lock_leases WHERE lock_key = $1 AND until > ",
    now!(),
    " AND (wanted_until > ",
    now!(),
    " + 1000 OR NOT $2)"
);

/// Takes the key, or marks it as wanted if the caller waits.
const TAKE: &str = concat!(
    "INSERT INTO eventlog_lock_leases AS l \
        (lock_key, owner, holder, token, since, until, wanted_until) \
    VALUES ($1, $2, $3, ",
    now!(),
    ", ",
    now!(),
    ", ",
    now!(),
    " + $4, 0) \
    ON CONFLICT (lock_key) DO UPDATE SET \
        owner = CASE WHEN l.until <= excluded.since THEN excluded.owner ELSE l.owner END, \
        holder = CASE WHEN l.until <= excluded.since THEN excluded.holder ELSE l.holder END, \
        token = CASE WHEN l.until <= excluded.since \
            THEN max(l.token + 1, excluded.token) ELSE l.token END, \
        since = CASE WHEN l.until <= excluded.since THEN excluded.since ELSE l.since END, \
        until = CASE WHEN l.until <= excluded.since THEN excluded.until ELSE l.until END, \
        wanted_until = CASE WHEN l.until <= excluded.since THEN 0 \
            WHEN $5 THEN excluded.since + 2000 ELSE l.wanted_until END \
    RETURNING owner = $2, token"
);

/// It may be carried out late, after a later one. So it never shortens a term.
const EXTEND: &str = concat!(
    "UPDATE eventlog_lock_leases SET until = max(until, ",
    now!(),
    " + $4) WHERE lock_key = $1 AND owner = $2 AND token = $3 AND until > ",
    now!(),
    " RETURNING token"
);

const SET_TERM: &str = concat!(
    "UPDATE eventlog_lock_leases SET until = ",
    now!(),
    " + $4 WHERE lock_key = $1 AND owner = $2 AND token = $3 AND until > ",
    now!(),
    " RETURNING token"
);

/// The grants are one JSON text: a list of key, owner, token and term.
const EXTEND_ALL: &str = concat!(
    "UPDATE eventlog_lock_leases SET until = max(until, ",
    now!(),
    " + v.term) FROM (SELECT value ->> 0 AS lock_key, value ->> 1 AS owner, \
            CAST(value ->> 2 AS INTEGER) AS token, CAST(value ->> 3 AS INTEGER) AS term \
        FROM json_each($1)) AS v \
    WHERE eventlog_lock_leases.lock_key = v.lock_key AND eventlog_lock_leases.owner = v.owner \
        AND eventlog_lock_leases.token = v.token AND until > ",
    now!(),
    " RETURNING lock_key"
);

/// Releases the key; by the owner alone if the answer with the token was lost.
const RELEASE: &str = concat!(
    "UPDATE eventlog_lock_leases SET until = 0 \
    WHERE lock_key = $1 AND owner = $2 AND (token = $3 OR $3 = 0) AND until > ",
    now!(),
    " RETURNING wanted_until > ",
    now!()
);

/// Ends the lease that was seen.
const FORCE: &str = concat!(
    "UPDATE eventlog_lock_leases SET until = 0, token = token + 1 \
    WHERE lock_key = $1 AND owner = $2 AND token = $3 AND until > ",
    now!(),
    " RETURNING token"
);

const INSPECT: &str = concat!(
    "SELECT holder, token, ",
    now!(),
    " - since, until - ",
    now!(),
    ", owner FROM eventlog_lock_leases WHERE lock_key = $1 AND until > ",
    now!()
);

const LIST: &str = concat!(
    "SELECT holder, token, ",
    now!(),
    " - since, until - ",
    now!(),
    ", owner, lock_key FROM eventlog_lock_leases WHERE until > ",
    now!()
);

/// The longest term: a thousand years.
const LONGEST: Duration = Duration::from_secs(1_000 * 365 * 86_400);

/// How the poller looks whether the file has changed. No look takes a lock on the file.
const POLLS: Pace = Pace::new(Duration::from_millis(2), Duration::from_millis(20));

/// Time between tries for a key without a hint. The poller gives the hints.
const WITHOUT_HINT: Duration = Duration::from_secs(300);

/// How long this process does not try for a wanted key that it released.
const GIVE_WAY: Duration = Duration::from_millis(40);

/// Grants keys as rows of the table `eventlog_lock_leases`.
pub(super) struct SqliteLeases {
    file: LockFile,
    poller: KeyPoller,
    cleaner: Arc<RowCleaner>,
}

impl SqliteLeases {
    pub(super) async fn open(file: LockFile) -> Result<Self, BackendError> {
        let there = "SELECT 1 FROM sqlite_schema WHERE name = 'eventlog_lock_leases'";
        if file.row("looking for the lock table", there, &[]).await?.is_none() {
            file.row("creating the lock table", CREATE, &[]).await?;
        }
        let poller = KeyPoller::new(WaitedRows::new(file.clone()), POLLS);
        Ok(Self { file, poller, cleaner: Arc::default() })
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
        let owner = grant.owner.to_string();
        let values = [
            SqliteValue::Text(key),
            SqliteValue::Text(&owner),
            SqliteValue::Int(grant.token),
            SqliteValue::Int(millis(term)),
        ];
        Ok(self.file.row(what, sql, &values).await?.is_some())
    }

    /// Deletes old rows if that is due, without the caller waiting for it.
    fn clean(&self) {
        if self.cleaner.released() {
            let (file, cleaner) = (self.file.clone(), self.cleaner.clone());
            tokio::spawn(async move {
                if let Err(error) = cleaner.clean(&file).await {
                    tracing::debug!(%error, "old rows of leases stay");
                }
            });
        }
    }
}

/// The holder in a row of [`INSPECT`] or [`LIST`].
fn holder(row: &SqliteRow) -> Result<Holder, BackendError> {
    let mut holder = Holder::new(get::<String>(row, 0)?, get(row, 1)?)
        .held(Some(duration(row, 2)?))
        .remaining(Some(duration(row, 3)?));
    holder.owner = Uuid::parse_str(&get::<String>(row, 4)?).ok();
    Ok(holder)
}

/// Rounded up: the file must not free a key earlier than its holder expects.
fn millis(term: Duration) -> i64 {
    // A thousand years of milliseconds fit.
    i64::try_from(term.min(LONGEST).as_millis()).unwrap_or(i64::MAX >> 1) + 1
}

#[async_trait]
impl LockBackend for SqliteLeases {
    fn name(&self) -> &'static str {
        "sqlite lease"
    }

    async fn try_grant(&self, key: &str, request: &GrantRequest) -> Result<Attempt, BackendError> {
        // The poller notices when the term of a busy key ends.
        let waits = i64::from(request.waits);
        let values = [SqliteValue::Text(key), SqliteValue::Int(waits)];
        if self.file.row("reading a lease", LOOK, &values).await?.is_some() {
            self.poller.busy(key);
            return Ok(Attempt::Busy(None));
        }
        let owner = request.owner.to_string();
        let values = [
            SqliteValue::Text(key),
            SqliteValue::Text(&owner),
            SqliteValue::Text(&request.holder),
            SqliteValue::Int(millis(request.term)),
            SqliteValue::Int(waits),
        ];
        let Some(row) = self.file.row("taking a lease", TAKE, &values).await? else {
            return Err(BackendError::new(
                "taking a lease: the row was neither inserted nor updated",
            ));
        };
        Ok(if get(&row, 0)? {
            Attempt::Granted(Grant { owner: request.owner, token: get(&row, 1)? })
        } else {
            self.poller.busy(key);
            Attempt::Busy(None)
        })
    }

    async fn extend(&self, key: &str, grant: &Grant, term: Duration) -> Result<bool, BackendError> {
        self.change_end("extending a lease", EXTEND, key, grant, term).await
    }

    async fn set_term(
        &self,
        key: &str,
        grant: &Grant,
        term: Duration,
    ) -> Result<bool, BackendError> {
        self.change_end("setting the term of a lease", SET_TERM, key, grant, term).await
    }

    async fn extend_all(&self, extensions: &[GrantExtension]) -> Result<Vec<bool>, BackendError> {
        let list = |of: &GrantExtension| {
            (of.key.clone(), of.grant.owner.to_string(), of.grant.token, millis(of.term))
        };
        let lists: Vec<_> = extensions.iter().map(list).collect();
        let lists = serde_json::to_string(&lists)
            .map_err(|error| BackendError::caused("extending leases", error))?;
        let values = [SqliteValue::Text(&lists)];
        let rows = self.file.rows("extending leases", EXTEND_ALL, &values).await?;
        let extended: HashSet<String> =
            rows.iter().map(|row| get(row, 0)).collect::<Result<_, _>>()?;
        Ok(extensions.iter().map(|of| extended.contains(&of.key)).collect())
    }

    async fn release(&self, key: &str, grant: &Grant) -> Result<Released, BackendError> {
        let owner = grant.owner.to_string();
        let values =
            [SqliteValue::Text(key), SqliteValue::Text(&owner), SqliteValue::Int(grant.token)];
        let row = self.file.row("releasing a lease", RELEASE, &values).await?;
        self.file.note_release();
        self.clean();
        // A lease that has expired is free already.
        let wanted = row.as_ref().map_or(Ok(false), |row| get(row, 0))?;
        Ok(Released { ours: row.is_some(), wanted })
    }

    async fn inspect(&self, key: &str) -> Result<Option<Holder>, BackendError> {
        let row = self
            .file
            .row("looking for the holder of a lease", INSPECT, &[SqliteValue::Text(key)])
            .await?;
        row.as_ref().map(holder).transpose()
    }

    async fn list(
        &self,
        prefixes: &[String],
        most: usize,
    ) -> Result<Vec<(String, Holder)>, BackendError> {
        let begins = (1..=prefixes.len())
            .map(|n| format!("substr(lock_key, 1, length(${n})) = ${n}"))
            .collect::<Vec<_>>()
            .join(" OR ");
        // A literal beyond this would be no integer.
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let sql = format!("{LIST} AND ({begins}) ORDER BY lock_key LIMIT {most}");
        let values: Vec<SqliteValue<'_>> =
            prefixes.iter().map(|prefix| SqliteValue::Text(prefix)).collect();
        let rows = self.file.rows("listing leases", &sql, &values).await?;
        rows.iter().map(|row| Ok((get(row, 5)?, holder(row)?))).collect()
    }

    async fn force_release(
        &self,
        key: &str,
        seen: &Grant,
        _why: &str,
    ) -> Result<bool, BackendError> {
        let owner = seen.owner.to_string();
        let values =
            [SqliteValue::Text(key), SqliteValue::Text(&owner), SqliteValue::Int(seen.token)];
        let row = self.file.row("ending a lease", FORCE, &values).await?;
        self.file.note_release();
        Ok(row.is_some())
    }

    fn frees_by_itself(&self) -> bool {
        true
    }

    fn spans_zones(&self) -> bool {
        false
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
