//! The state of a running call that does not depend on its action's types.
//!
//! It travels with the call through its attempts: [`run`](super::run) counts them, a
//! contention strategy sets the lease, and [`commit`](super::commit) reads what it needs.

use std::sync::Arc;

use super::ExecuteError;
use super::deadline::Deadline;
use super::effect::EffectRunner;
use super::error::AttemptError;
use super::key_locks::KeyLockGuard;
use crate::db::{ActionId, OpenAction};
use crate::shard::{Fencing, Shards};

/// A running call, from its first attempt to its last.
pub(super) struct Attempt {
    pub(super) action: ActionId,
    pub(super) action_name: &'static str,
    pub(super) deadline: Deadline,
    /// The number of the present attempt; the first is 1.
    pub(super) number: u32,
    /// Whether the call must not join a group any more, because groups with it failed.
    pub(super) alone: bool,
    /// The call's place in queues of keys, from its first conflict or the first queue that it entered.
    pub(super) queue_number: Option<u64>,
    /// The fences of the leases under which the call runs.
    pub(super) fencing: Option<Arc<Fencing>>,
    /// Whether the caller wants a commit token.
    pub(super) wants_token: bool,
    /// While this exists, `executor.outcome` waits.
    pub(super) open: Option<OpenAction>,
    /// The lock on the call's key, until the call is committed.
    pub(super) key_lock: Option<KeyLockGuard>,
    pub(super) shards: Arc<Shards>,
    pub(super) effects: EffectRunner,
}

impl Attempt {
    /// Makes the result of the commit known: to `executor.outcome`, and to calls with the same
    /// key. Effects may ask for both, so this comes before they are waited for.
    pub(super) fn close(&mut self) {
        self.open = None;
        self.key_lock = None;
    }

    /// Fails if a lease is known to have ended. Sends nothing.
    pub(super) fn check_lease(&self) -> Result<(), AttemptError> {
        match self.fencing.as_ref().and_then(|fencing| fencing.over()) {
            Some(key) => Err(ExecuteError::FenceLost { key: key.to_owned() }),
            None => Ok(()),
        }
    }

    /// The error of an action if one of its reads was refused by a fence.
    pub(super) fn fence_lost(&self) -> Option<AttemptError> {
        let key = self.fencing.as_ref()?.refused()?;
        Some(ExecuteError::FenceLost { key: key.to_owned() })
    }

    /// Whether this task has a writing transaction open. Another task must not commit the call:
    /// it might wait for that transaction.
    pub(super) fn is_in_transaction(&self) -> bool {
        self.shards.all().any(|database| database.is_in_transaction())
    }
}
