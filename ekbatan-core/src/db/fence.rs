//! Fences: per lock key, the database stores the token of the last lease that read or wrote under
//! it. A commit checks that its lease's token is still the stored one.
//!
//! Each dialect checks and raises them in its own `fence` file.
//!
//! Invariant: a token that is refused stays refused after the row of its key was deleted. A token
//! is the time of its grant, so a fence that is not there is raised only by a token that is at most
//! [`RAISED_NEW`] old, and a row is deleted only when its token is older than that by [`MARGIN`].
//! All tokens that the row refused are older still.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{DbError, DbErrorKind};

/// A hundred years, in microseconds. The end of a fence stays within the range of dates.
const LONGEST: i64 = 3_155_760_000_000_000;

/// The longest key, in characters.
const LONGEST_KEY: usize = 255;

/// The low bits of a token. The bits above them are the milliseconds since 1970 at the grant.
pub const TOKEN_BITS: u32 = 16;

/// How old a token may be that raises a fence which is not there, by the clock of the database.
const RAISED_NEW: Duration = Duration::from_secs(30 * 86_400);

/// By how much more the token of a row is older before the row is deleted, and how long before
/// that its lease has ended. Statements that began while the row was there have ended by then, and
/// the clock of the database is not set back by more.
const MARGIN: Duration = Duration::from_secs(86_400);

/// The first token that is taken for a time: that of the year 2020. Locks that are not the
/// framework's may count from one. Their rows are never deleted, so their tokens may have any age.
const FIRST_TIME: i64 = 1_577_836_800_000 << TOKEN_BITS;

/// The condition that a token may raise a fence that is not there. `seconds` is the time of the
/// database, in seconds since 1970.
pub(super) fn may_raise_new(token: &str, seconds: &str) -> String {
    format!("{token} < {FIRST_TIME} OR {token} >= {}", token_at(seconds, RAISED_NEW))
}

/// The condition that the row of a fence may be deleted. PostgreSQL has it in a function.
#[cfg_attr(not(any(feature = "mysql", feature = "sqlite")), allow(dead_code))]
pub(super) fn is_old(seconds: &str, ended_before: impl FnOnce(u64) -> String) -> String {
    let (least, ended) = (token_at(seconds, RAISED_NEW + MARGIN), ended_before(MARGIN.as_secs()));
    format!("token >= {FIRST_TIME} AND token < {least} AND {ended}")
}

/// The first token of the time so long ago.
fn token_at(seconds: &str, ago: Duration) -> String {
    format!("({seconds} - {}) * {}", ago.as_secs(), 1_000_i64 << TOKEN_BITS)
}

/// A lease's token that must still be the key's when the batch commits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FenceCheck {
    pub(crate) key: String,
    pub(crate) token: i64,
}

impl FenceCheck {
    /// Rejects a key that not every database stores as it is. PostgreSQL, MySQL and MariaDB cut spaces at the
    /// end of a longer one silently, so that it would be another lock's key.
    pub(crate) fn check_key(&self) -> Result<(), DbError> {
        let length = self.key.chars().count();
        let why = if length > LONGEST_KEY {
            format!("has {length} characters; use at most {LONGEST_KEY}")
        } else if self.key.contains('\0') {
            "holds the character 0, which not every database stores; remove it".to_owned()
        } else {
            return Ok(());
        };
        let why = format!("the fence's key {:?} {why}", self.key);
        Err(DbError::new(DbErrorKind::ValueOutOfRange, why))
    }
}

/// The time until a lease ends, whenever it is called.
pub(crate) type Remaining = Arc<dyn Fn() -> Duration + Send + Sync>;

/// When a lease ends. A lease that is extended ends later.
#[derive(Clone)]
pub(crate) struct LeaseEnd {
    known: Instant,
    remaining: Option<Remaining>,
}

impl LeaseEnd {
    /// Ends at `known`, or later if `remaining` says so.
    pub(crate) fn new(known: Instant, remaining: Option<Remaining>) -> Self {
        Self { known, remaining }
    }

    /// Whether the lease is over, be it at its end or before.
    pub(crate) fn is_over(&self) -> bool {
        let at_its_end = Instant::now() >= self.get();
        at_its_end || self.remaining.as_ref().is_some_and(|remaining| remaining().is_zero())
    }

    /// The end as it is known now.
    pub(crate) fn get(&self) -> Instant {
        let Some(remaining) = &self.remaining else { return self.known };
        // Read the clock first: a slow answer must not prolong the lease.
        let now = Instant::now();
        match remaining() {
            // Otherwise a lease that is over would end now, whenever it is asked.
            Duration::ZERO => self.known,
            rest => self.known.max(now.checked_add(rest).unwrap_or(self.known)),
        }
    }
}

impl fmt::Debug for LeaseEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LeaseEnd").field(&self.get()).finish()
    }
}

/// A fence to raise to the token of a lease. Raising it twice has the effect of raising it once.
#[derive(Debug, Clone)]
pub(crate) struct FenceRaise {
    pub(crate) check: FenceCheck,
    /// When the lease ends, by this process's clock.
    pub(crate) until: LeaseEnd,
    /// Whether the raise must survive a crash of the server. It need not if a commit on the same
    /// database follows: after a crash that commit finds no fence with its token, and is
    /// rejected. Only PostgreSQL can leave it to memory.
    #[cfg_attr(not(feature = "postgres"), allow(dead_code))]
    pub(crate) to_disk: bool,
}

impl FenceRaise {
    /// The microseconds that are left of the lease. Called when the statement is sent, so that
    /// the wait for a connection is not counted as time of the lease.
    pub(crate) fn micros(&self) -> i64 {
        let remaining = self.until.get().saturating_duration_since(Instant::now());
        i64::try_from(remaining.as_micros()).unwrap_or(i64::MAX).min(LONGEST)
    }
}
