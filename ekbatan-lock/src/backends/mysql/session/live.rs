//! One session and its statements.
//!
//! Invariants: a statement whose effect is unknown ends the session, so that the server never
//! keeps a lock that this process does not know of. If the process stands still, the server ends
//! the session when it was idle for as long as the last statement allows: until the first of its
//! locks ends, and [`SLACK`]. A session is one connection, which is
//! never shared or reset. No statement waits for a lock.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::mysql::MySqlRow;

use super::statements::SessionStatements;
use crate::backends::key_poller::KeyState;
use crate::backends::mysql::cleaning::RowCleaner;
use crate::backends::mysql::connection::{
    MySqlConnector, MySqlLockConnection, StatementResult, value,
};
use crate::backends::mysql::error::{DEADLOCK_TRIES, MySqlLocksError, StatementFailure};
use crate::backends::mysql::lease::duration;
use crate::backends::session::SessionGrants;
use crate::{BackendError, Holder};

/// How long after the end of a lock the server ends a session that sends nothing. Pings come more
/// often.
const SLACK: Duration = Duration::from_secs(5);

/// How long a key stays marked as wanted.
const MARK: Duration = Duration::from_secs(2);

/// How long a mark is not repeated.
const FRESH: Duration = Duration::from_millis(200);

/// Number of marks that this process remembers before it drops old ones.
const REMEMBERED: usize = 4096;

// Error numbers of KILL: unknown session; not the owner, or missing privilege.
const NO_SUCH_SESSION: u16 = 1094;
const NOT_ALLOWED: [u16; 2] = [1095, 1227];

/// The token of a lock that was taken; `None` if it is busy.
pub(super) type TokenOrBusy = Result<Option<i64>, BackendError>;

/// The keys that this process marks as wanted while other processes hold them.
#[derive(Default)]
struct WantedKeys {
    /// When this process last marked each key.
    marked: HashMap<String, Instant>,
    /// Keys to mark next.
    pending: Vec<String>,
    /// Keys that were released while others wanted them.
    released: Vec<String>,
}

pub(crate) struct MySqlSession {
    connection: MySqlLockConnection,
    /// The connection id at the server.
    id: i64,
    statements: SessionStatements,
    grants: Arc<SessionGrants<String>>,
    wanted_keys: WantedKeys,
    /// Idle time after which the server ends a session whose locks last longer, because its
    /// process is gone or stopped.
    longest_idle: Duration,
    /// The idle time that the server knows, in seconds.
    idle: Option<u64>,
}

impl MySqlSession {
    pub(super) async fn open(
        connector: &MySqlConnector,
        statements: SessionStatements,
    ) -> Result<Self, MySqlLocksError> {
        let longest_idle = (connector.answer * 2).max(SLACK);
        let mut connection = connector.open(Some(longest_idle)).await?;
        connection.server.refuse_a_cluster()?;
        let asked = connection.run("opening a lock session", "SELECT CONNECTION_ID()").await;
        let id = number(&asked.map_err(BackendError::from)?, 0, 0)?.unwrap_or_default();
        let grants = Arc::new(SessionGrants::new());
        let wanted_keys = WantedKeys::default();
        Ok(Self { connection, id, statements, grants, wanted_keys, longest_idle, idle: None })
    }

    pub(super) fn grants(&self) -> Arc<SessionGrants<String>> {
        self.grants.clone()
    }

    /// In seconds, which the server counts in, rounded up.
    fn idle_limit(&self) -> u64 {
        let limit = self.grants.idle_limit(SLACK).unwrap_or(self.longest_idle);
        limit.min(self.longest_idle).as_secs_f64().ceil() as u64
    }

    /// Runs statements, and sets how long the session may be idle after them. A broken connection
    /// ends the session.
    async fn run(
        &mut self,
        what: &str,
        sql: &str,
    ) -> Result<Vec<StatementResult>, StatementFailure> {
        let idle = self.idle_limit();
        let limited = format!("{sql}; SET wait_timeout = {idle}");
        let sql = if self.idle == Some(idle) { sql } else { &limited };
        let answer = self.connection.run(what, sql).await;
        // The statements after one that failed were not run.
        self.idle = answer.is_ok().then_some(idle);
        if let Err(StatementFailure::Broken(error)) = &answer {
            self.grants.end(error.to_string());
        }
        answer
    }

    /// Tries to take locks. Returns for each key its token, or `None` if it is busy.
    pub(super) async fn take(
        &mut self,
        asked: &BTreeMap<String, String>,
    ) -> BTreeMap<String, TokenOrBusy> {
        let mut tries = 1;
        loop {
            match self.run("taking a lock", &self.statements.take(asked)).await {
                Ok(sets) => return self.taken(asked, &sets).await,
                Err(failure) => {
                    let again = failure.is_deadlock() && tries < DEADLOCK_TRIES;
                    // The statement may have taken locks before it failed; they stay taken.
                    // Those of a session that has ended do not.
                    if !self.grants.is_over() {
                        self.unlock_unknown(asked.keys().map(String::as_str)).await;
                    }
                    tries += 1;
                    if !again || self.grants.is_over() {
                        return all(asked, &BackendError::from(failure));
                    }
                }
            }
        }
    }

    async fn taken(
        &mut self,
        asked: &BTreeMap<String, String>,
        sets: &[StatementResult],
    ) -> BTreeMap<String, TokenOrBusy> {
        if number(sets, 2, 0).ok().flatten() != Some(self.id) {
            self.end_because(POOLED);
            return all(asked, &BackendError::new(POOLED));
        }
        let mut tokens = HashMap::new();
        for row in sets.get(3).iter().flat_map(|set| &set.rows) {
            if let (Ok(key), Ok(token)) = (value::<String>(row, 0), value::<i64>(row, 1)) {
                tokens.insert(key, token);
            }
        }
        let mut taken = BTreeMap::new();
        let mut uncounted = Vec::new();
        for (n, key) in asked.keys().enumerate() {
            let answer = match (number(sets, 2, n + 1), tokens.get(key)) {
                (Ok(Some(1)), Some(token)) => {
                    self.wanted_keys.marked.remove(key);
                    Ok(Some(*token))
                }
                (Ok(Some(1)), None) => {
                    uncounted.push(key.as_str());
                    Err(BackendError::new("taking a lock: its token was not counted"))
                }
                (Ok(Some(_)), _) => Ok(None),
                (Ok(None), _) => Err(BackendError::new(
                    "taking a lock: the server answered NULL, which means that it was \
                     interrupted or out of memory",
                )),
                (Err(error), _) => {
                    uncounted.push(key.as_str());
                    Err(error)
                }
            };
            taken.insert(key.clone(), answer);
        }
        if !uncounted.is_empty() {
            self.unlock_unknown(uncounted).await;
        }
        taken
    }

    /// Releases locks that this session may or may not have.
    async fn unlock_unknown<'k>(&mut self, keys: impl IntoIterator<Item = &'k str>) {
        let unlock = format!("DO {}", self.statements.unlock(keys));
        if let Err(failure) = self.run("releasing locks that may be held", &unlock).await {
            self.grants.end(BackendError::from(failure).to_string());
        }
    }

    /// Releases locks. Returns those that other processes want.
    pub(super) async fn release(&mut self, keys: &[String]) -> Result<Vec<String>, BackendError> {
        let answer = self.run("releasing a lock", &self.statements.release(keys)).await;
        let mut wanted = Vec::new();
        let known = answer.map_err(BackendError::from).and_then(|sets| {
            for row in sets.get(1).iter().flat_map(|set| &set.rows) {
                wanted.push(value(row, 0)?);
            }
            for n in 0..keys.len() {
                if number(&sets, 0, n)? != Some(1) {
                    return Err(BackendError::new(
                        "the server did not know a lock that this session held",
                    ));
                }
            }
            Ok(())
        });
        if let Err(error) = known {
            self.grants.end(error.to_string());
            return Err(error);
        }
        self.wanted_keys.released.extend(wanted.iter().cloned());
        Ok(wanted)
    }

    /// Has the key marked as wanted after this batch.
    pub(super) fn want(&mut self, key: &str) {
        self.wanted_keys.add(key);
    }

    /// Removes the marks of released keys, and marks wanted ones. A holder lets other processes have the
    /// key only if it is marked. The mark of a process that has gone would stop each holder for a moment;
    /// one that still waits marks the key again when it looks.
    pub(super) async fn note_wanted_keys(&mut self) {
        let released = std::mem::take(&mut self.wanted_keys.released);
        let pending = std::mem::take(&mut self.wanted_keys.pending);
        if !released.is_empty() {
            self.write_marks(&self.statements.unmark(&released)).await;
        }
        if !pending.is_empty() {
            self.write_marks(&self.statements.want(&pending, MARK)).await;
        }
    }

    async fn write_marks(&mut self, sql: &str) {
        if self.grants.is_over() {
            return;
        }
        if let Err(failure) = self.run("marking a wanted key", sql).await {
            let error = BackendError::from(failure);
            tracing::debug!(%error, "marking wanted keys failed; their holders do not know of the waiters");
        }
    }

    /// The states of keys that this process waits for. Renews their marks.
    pub(super) async fn look(&mut self, keys: &[String]) -> Result<Vec<KeyState>, BackendError> {
        let sql = self.statements.look(keys, MARK);
        let sets = self.run("looking for freed locks", &sql).await.map_err(BackendError::from)?;
        let state = |row| {
            let remaining = value::<bool>(row, 2)?.then_some(Duration::ZERO);
            Ok(KeyState { key: value(row, 0)?, grant: value(row, 1)?, remaining })
        };
        sets.iter().flat_map(|set| &set.rows).map(state).collect()
    }

    /// Deletes old rows if that is due.
    pub(super) async fn clean(&mut self, cleaner: &RowCleaner) {
        let Some(slice) = cleaner.next_slice().filter(|_| !self.grants.is_over()) else { return };
        let cleaned = async {
            let rows = self.run("looking for old locks", &slice).await?;
            match cleaner.deletion(&rows) {
                Some(deletion) => self.run("deleting old locks", &deletion).await.map(drop),
                None => Ok(()),
            }
        };
        if let Err(failure) = cleaned.await {
            let error = BackendError::from(failure);
            tracing::debug!(%error, "old rows of locks stay");
        }
    }

    pub(super) async fn inspect(&mut self, key: &str) -> Result<Option<Holder>, BackendError> {
        let sets = self.run("looking for the holder of a lock", &self.statements.holder(key)).await;
        let sets = sets.map_err(BackendError::from)?;
        let Some(session) = number(&sets, 0, 0)? else { return Ok(None) };
        let row = match sets.get(1).and_then(|set| set.rows.first()) {
            Some(row) => Some((row, value(row, 0)?)),
            None => None,
        };
        let mut holder = holder(session, row)?;
        holder.owner = self.grants.held(&key.to_owned()).map(|held| held.grant.owner);
        Ok(Some(holder))
    }

    /// Tells the session that has the lock under this token to end, unless it is `ending`,
    /// which was told before. Returns the session that has the lock.
    pub(super) async fn force(
        &mut self,
        key: &str,
        token: i64,
        ending: Option<i64>,
    ) -> Result<Option<i64>, BackendError> {
        let sets = self.run("looking for the holder of a lock", &self.statements.holder(key)).await;
        let sets = sets.map_err(BackendError::from)?;
        let Some(session) = number(&sets, 0, 0)? else { return Ok(None) };
        if session == self.id || ending.is_some_and(|ending| ending != session) {
            // Another session has taken the lock since; it was not meant.
            return Ok(None);
        }
        let row = sets.get(1).and_then(|set| set.rows.first());
        let known = match row {
            Some(row) if value::<i64>(row, 0)? == session => Some(value::<i64>(row, 2)?),
            _ => None,
        };
        if token == 0 || known.is_none() {
            return Err(BackendError::unavailable(format!(
                "session {session} took the key a moment ago and has not stored its token yet; force the \
                 release again"
            )));
        }
        if known != Some(token) {
            return Ok(None);
        }
        if ending.is_none() {
            match self.run("ending a session", &format!("KILL CONNECTION {session}")).await {
                Ok(_) | Err(StatementFailure::Refused { number: NO_SUCH_SESSION, .. }) => {}
                Err(StatementFailure::Refused { number, error })
                    if NOT_ALLOWED.contains(&number) =>
                {
                    return Err(BackendError::new(format!(
                        "session {session} holds it, which this user may not end ({error}): \
                         release it there, grant this user CONNECTION_ADMIN (on MariaDB \
                         CONNECTION ADMIN), or end all that it holds by `KILL {session}`"
                    )));
                }
                Err(failure) => return Err(failure.into()),
            }
        }
        Ok(Some(session))
    }

    /// Checks that the server answers, and that it is the same session.
    pub(super) async fn ping(&mut self) {
        match self.run("checking a lock session", "SELECT CONNECTION_ID()").await {
            Ok(sets) if number(&sets, 0, 0).ok().flatten() != Some(self.id) => {
                self.end_because(POOLED);
            }
            Ok(_) => {}
            Err(failure) => self.grants.end(BackendError::from(failure).to_string()),
        }
    }

    pub(super) fn end_because(&self, why: &str) {
        self.grants.end(why.to_owned());
    }

    /// Closes the session, which ends all its grants.
    pub(super) async fn close(self, why: &str) {
        self.end_because(why);
        self.connection.close().await;
    }
}

const POOLED: &str = "another session answered: there is a pooler in between that shares \
    sessions, with which named locks get lost; give the server's own address, or use leases \
    (`MySqlLocks::leases`)";

impl WantedKeys {
    /// Marks the key with the next batch, unless its mark is fresh.
    fn add(&mut self, key: &str) {
        let now = Instant::now();
        if self.marked.len() >= REMEMBERED {
            self.marked.retain(|_, at| now < *at + FRESH);
        }
        if self.marked.get(key).is_none_or(|at| now >= *at + FRESH) {
            self.marked.insert(key.to_owned(), now);
            self.pending.push(key.to_owned());
        }
    }
}

/// The session that has a lock, described by the lock's row: holder, token and microseconds in the
/// columns 1 to 3. The row names the session that wrote it.
pub(super) fn holder(session: i64, row: Option<(&MySqlRow, i64)>) -> Result<Holder, BackendError> {
    let Some((row, _)) = row.filter(|(_, of)| *of == session) else {
        // The session has the lock, but has not written its row yet.
        return Ok(Holder::new(format!("session {session}"), 0));
    };
    let holder = Holder::new(value::<String>(row, 1)?, value(row, 2)?);
    Ok(holder.held(Some(duration(row, 3)?)))
}

fn all(asked: &BTreeMap<String, String>, error: &BackendError) -> BTreeMap<String, TokenOrBusy> {
    asked.keys().map(|key| (key.clone(), Err(error.repeated()))).collect()
}

/// A number, or NULL, from the first row of a statement's result.
fn number(
    sets: &[StatementResult],
    statement: usize,
    column: usize,
) -> Result<Option<i64>, BackendError> {
    match sets.get(statement).and_then(|set| set.rows.first()) {
        Some(row) => value(row, column),
        None => Err(BackendError::new("the server returned fewer results than expected")),
    }
}
