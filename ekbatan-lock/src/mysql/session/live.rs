//! One session and its statements.
//!
//! What always holds: a statement whose effect is unknown ends the session, so that the server
//! never holds a lock that nobody here knows of; a session is one connection, which is neither
//! lent nor reset; no statement waits for a lock.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::grants::Grants;
use super::names::Names;
use crate::mysql::error::{Failure, MySqlLocksError};
use crate::mysql::lease::{OWN_WISH, duration};
use crate::mysql::link::{Link, Opener, Set, value};
use crate::{BackendError, Holder};

/// After how much silence the server ends a session: its process is gone, or stopped.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a wish lasts at the server.
const WISH: Duration = Duration::from_secs(2);

/// For how long a wish is taken to be there without looking again.
const WISHED: Duration = Duration::from_millis(200);

/// How many wishes are kept before old ones are dropped.
const WISHES: usize = 4096;

/// How often a statement is sent that met another one.
const TRIES: usize = 5;

/// No such session; not ours to end, or not allowed to.
const NO_SUCH_SESSION: u16 = 1094;
const NOT_ALLOWED: [u16; 2] = [1095, 1227];

/// What became of a try.
pub(super) type Taken = Result<Option<i64>, BackendError>;

/// What one process wants of keys that others hold.
#[derive(Default)]
struct Wishes {
    /// When which wish was last left at the server.
    left: HashMap<String, Instant>,
    /// To be left next.
    open: Vec<String>,
    /// Of keys that were given back because others want them.
    own: Vec<String>,
}

pub(super) struct Session {
    link: Link,
    /// The number by which the server knows the session.
    id: i64,
    names: Names,
    grants: Arc<Grants>,
    wishes: Wishes,
}

impl Session {
    pub(super) async fn open(opener: &Opener, names: Names) -> Result<Self, MySqlLocksError> {
        let mut link = opener.open(Some(PATIENCE)).await?;
        link.server.refuse_a_cluster()?;
        let asked = link.run("opening a lock session", "SELECT CONNECTION_ID()").await;
        let id = number(&asked.map_err(BackendError::from)?, 0, 0)?.unwrap_or_default();
        let grants = Arc::new(Grants::new());
        Ok(Self { link, id, names, grants, wishes: Wishes::default() })
    }

    pub(super) fn grants(&self) -> Arc<Grants> {
        self.grants.clone()
    }

    /// Runs statements; a connection that is of no more use ends the session.
    async fn run(&mut self, what: &str, sql: &str) -> Result<Vec<Set>, Failure> {
        let answer = self.link.run(what, sql).await;
        if let Err(Failure::Broken(error)) = &answer {
            self.grants.end(error.to_string());
        }
        answer
    }

    /// Tries for locks; answers each key's token, or nothing if somebody else has it.
    pub(super) async fn take(
        &mut self,
        asked: &BTreeMap<String, String>,
    ) -> BTreeMap<String, Taken> {
        let mut tries = 1;
        loop {
            match self.run("taking a lock", &self.names.take(asked)).await {
                Ok(sets) => return self.taken(asked, &sets).await,
                Err(failure) => {
                    let again = failure.met_another() && tries < TRIES;
                    // It may have failed behind the locks, which it does not give back.
                    self.make_sure(asked.keys().map(String::as_str)).await;
                    tries += 1;
                    if !again || self.grants.is_over() {
                        let why = BackendError::from(failure).to_string();
                        return all(asked, &why);
                    }
                }
            }
        }
    }

    async fn taken(
        &mut self,
        asked: &BTreeMap<String, String>,
        sets: &[Set],
    ) -> BTreeMap<String, Taken> {
        if number(sets, 2, 0).ok().flatten() != Some(self.id) {
            self.end_because(POOLED);
            return all(asked, POOLED);
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
                    self.wishes.left.remove(key);
                    Ok(Some(*token))
                }
                (Ok(Some(1)), None) => {
                    uncounted.push(key.as_str());
                    Err(BackendError::new("taking a lock: its token was not counted"))
                }
                (Ok(Some(_)), _) => {
                    self.wishes.of(key);
                    Ok(None)
                }
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
            self.make_sure(uncounted).await;
        }
        taken
    }

    /// Frees locks of which it is unknown whether they are held.
    async fn make_sure<'k>(&mut self, keys: impl IntoIterator<Item = &'k str>) {
        let unlock = format!("DO {}", self.names.unlock(keys));
        if let Err(failure) = self.run("making sure", &unlock).await {
            self.grants.end(BackendError::from(failure).to_string());
        }
    }

    /// Gives locks back that are held; answers which of them others want.
    pub(super) async fn give_back(&mut self, keys: &[String]) -> Result<Vec<String>, BackendError> {
        let answer = self.run("giving a lock back", &self.names.give_back(keys)).await;
        let mut wanted = Vec::new();
        let known = answer.map_err(BackendError::from).and_then(|sets| {
            for row in sets.get(1).iter().flat_map(|set| &set.rows) {
                wanted.push(value(row, 0)?);
            }
            for n in 0..keys.len() {
                if number(&sets, 0, n)? != Some(1) {
                    return Err(BackendError::new("the server did not know a lock that was held"));
                }
            }
            Ok(())
        });
        if let Err(error) = known {
            self.grants.end(error.to_string());
            return Err(error);
        }
        self.wishes.own.extend(wanted.iter().cloned());
        Ok(wanted)
    }

    /// Leaves the wishes that are due. Without one, who holds a key does not make way.
    pub(super) async fn wish(&mut self) {
        for (keys, lasts, first) in [
            (std::mem::take(&mut self.wishes.open), WISH, false),
            // The wish that is there is of who comes next, and goes with the grant.
            (std::mem::take(&mut self.wishes.own), OWN_WISH, true),
        ] {
            if keys.is_empty() || self.grants.is_over() {
                continue;
            }
            let sql = self.names.wish(&keys, lasts, first);
            if let Err(failure) = self.run("leaving a wish", &sql).await {
                let error = BackendError::from(failure);
                tracing::debug!(%error, "holders do not know who waits");
            }
        }
    }

    /// The session that has the lock, if any.
    async fn used_by(&mut self, key: &str) -> Result<Option<i64>, BackendError> {
        let sql = format!("SELECT IS_USED_LOCK('{}')", self.names.lock(key));
        let sets = self.run("who holds a lock", &sql).await.map_err(BackendError::from)?;
        number(&sets, 0, 0)
    }

    pub(super) async fn inspect(&mut self, key: &str) -> Result<Option<Holder>, BackendError> {
        let sets = self.run("who holds a lock", &self.names.holder(key)).await;
        let sets = sets.map_err(BackendError::from)?;
        let Some(session) = number(&sets, 0, 0)? else { return Ok(None) };
        if let Some(row) = sets.get(1).and_then(|set| set.rows.first())
            && value::<i64>(row, 0)? == session
        {
            let holder = Holder::new(value::<String>(row, 1)?, value(row, 2)?);
            return Ok(Some(holder.held(Some(duration(row, 3)?))));
        }
        // It has the lock, and is about to write its name down.
        Ok(Some(Holder::new(format!("session {session}"), 0)))
    }

    /// Tells the session that has the lock to end, unless it is the one that was told already;
    /// answers which one has it.
    pub(super) async fn force(
        &mut self,
        key: &str,
        ending: Option<i64>,
    ) -> Result<Option<i64>, BackendError> {
        let Some(session) = self.used_by(key).await? else { return Ok(None) };
        if session == self.id || ending.is_some_and(|ending| ending != session) {
            // Whoever came next is not the one who was meant.
            return Ok(None);
        }
        if ending.is_none() {
            match self.run("ending a session", &format!("KILL CONNECTION {session}")).await {
                Ok(_) | Err(Failure::Refused { number: NO_SUCH_SESSION, .. }) => {}
                Err(Failure::Refused { number, error }) if NOT_ALLOWED.contains(&number) => {
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

    /// Asks for a sign of life.
    pub(super) async fn ping(&mut self) {
        match self.run("a sign of life", "SELECT CONNECTION_ID()").await {
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

    /// Ends the session, and every grant with it.
    pub(super) async fn close(self, why: &str) {
        self.end_because(why);
        self.link.close().await;
    }
}

const POOLED: &str = "another session answered: there is a pooler in between that shares \
    sessions, with which named locks get lost; give the server's own address, or use leases \
    (`MySqlLocks::leases`)";

impl Wishes {
    /// The key is wanted.
    fn of(&mut self, key: &str) {
        let now = Instant::now();
        if self.left.len() >= WISHES {
            self.left.retain(|_, at| now < *at + WISHED);
        }
        if self.left.get(key).is_none_or(|at| now >= *at + WISHED) {
            self.left.insert(key.to_owned(), now);
            self.open.push(key.to_owned());
        }
    }
}

fn all(asked: &BTreeMap<String, String>, why: &str) -> BTreeMap<String, Taken> {
    asked.keys().map(|key| (key.clone(), Err(BackendError::new(why)))).collect()
}

/// A number, or NULL, of the first row of a statement's answer.
fn number(sets: &[Set], statement: usize, column: usize) -> Result<Option<i64>, BackendError> {
    match sets.get(statement).and_then(|set| set.rows.first()) {
        Some(row) => value(row, column),
        None => Err(BackendError::new("the server answered less than it was asked")),
    }
}
