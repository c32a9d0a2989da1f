//! Rows as contention keys, for adaptive calls that name no key.
//!
//! A conflict names the row. The next attempt of the call waits in the queue of that row. While
//! the row is hot, later calls of the same action go there as soon as they read it: the attempt
//! is given up at that read, and the call begins again in the queue. Until then the framework
//! has sent nothing but reads.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::SetOnce;
use uuid::Uuid;

use super::conflict_tracker::{ConflictTracker, Handling};
use super::perform::{Perform, commit_performed};
use crate::action::attempt::Attempt;
use crate::action::error::AttemptError;
use crate::db::{Committed, RowRef};
use crate::domain::{LockKey, TableKey};
use crate::repository::{PendingReads, PendingRow, RowKey};

/// How long an action is known to meet others on the rows of a model. While its calls wait for
/// each other they do not conflict, so now and then one conflict shows that they still meet.
const KNOWN: Duration = Duration::from_secs(30);

/// The key of a row. It differs from every key that an application would name, because a call
/// that waits for the row may hold a lease on such a key.
fn row_key(model: &str, id: Uuid) -> LockKey {
    LockKey::of(&format!("row of {model}"), id)
}

/// The rows on which the calls of an executor conflict.
pub(super) struct HotRows {
    tracker: Arc<ConflictTracker>,
    /// When an action last met a changed row of a model. An action that only reads rows of a
    /// model is not among them, and does not wait for those that change them.
    conflicts: RwLock<HashMap<(&'static str, &'static str), Duration>>,
}

impl HotRows {
    pub(super) fn new(tracker: Arc<ConflictTracker>) -> Self {
        Self { tracker, conflicts: RwLock::default() }
    }

    /// Records that an action met changed rows. Returns their keys.
    pub(super) fn conflicted(&self, action: &'static str, rows: &[RowRef]) -> Vec<LockKey> {
        let now = self.tracker.now();
        let mut conflicts = self.conflicts.write().unwrap_or_else(PoisonError::into_inner);
        conflicts.extend(rows.iter().map(|row| ((action, row.model), now)));
        drop(conflicts);
        let keys: Vec<_> = rows.iter().map(|row| row_key(row.model, row.id)).collect();
        keys.iter().for_each(|key| self.tracker.conflicted(key, now));
        keys
    }

    /// Whether an attempt may read a hot row that it should wait for.
    pub(super) fn may_be_met_by(&self, attempt: &Attempt) -> bool {
        let now = self.tracker.now();
        let meets = || {
            let conflicts = self.conflicts.read().unwrap_or_else(PoisonError::into_inner);
            let mut of_action = conflicts.iter().filter(|((it, _), _)| *it == attempt.action_name);
            of_action.any(|(_, at)| now < *at + KNOWN)
        };
        self.tracker.has_hot_keys(now) && meets() && !attempt.is_in_transaction()
    }

    /// Whether calls of an action meet others on the rows of a model.
    fn meets(&self, action: &'static str, model: &'static str) -> bool {
        let conflicts = self.conflicts.read().unwrap_or_else(PoisonError::into_inner);
        conflicts.get(&(action, model)).is_some_and(|at| self.tracker.now() < *at + KNOWN)
    }

    /// Runs an optimistic attempt. Returns the key of the first hot row that it reads, at which
    /// it is given up.
    pub(super) async fn attempt(
        self: &Arc<Self>,
        call: &mut dyn Perform,
    ) -> Result<Result<Committed, AttemptError>, LockKey> {
        let (action, deadline) = (call.attempt().action_name, call.attempt().deadline);
        let reads = Arc::new(WatchedReads { rows: self.clone(), action, met: SetOnce::new() });
        let performed = tokio::select! {
            biased;
            performed = deadline.bound(call.perform(Some(reads.clone()))) => performed,
            key = reads.met.wait() => return Err(key.clone()),
        };
        Ok(match performed {
            Ok(Ok(performed)) => commit_performed(call, performed, || ()).await,
            Ok(Err(error)) => Err(error),
            Err(passed) => Err(passed.into()),
        })
    }
}

/// The reads of an attempt that is given up at a hot row.
struct WatchedReads {
    rows: Arc<HotRows>,
    action: &'static str,
    /// The key of the first hot row that was read.
    met: SetOnce<LockKey>,
}

impl PendingReads for WatchedReads {
    fn find(&self, _: RowKey) -> Option<PendingRow> {
        None
    }

    fn settle(&self, _: TableKey) -> Option<BoxFuture<'_, ()>> {
        None
    }

    /// Lets the call give up this attempt. A read that the attempt does not wait for itself, for
    /// example in a task that it spawned, goes on.
    fn meet(&self, model: &'static str, id: Uuid) -> bool {
        if !self.rows.meets(self.action, model) {
            return false;
        }
        let (key, tracker) = (row_key(model, id), &self.rows.tracker);
        tracker.handling(&key, tracker.now()) != Handling::Optimistic && self.met.set(key).is_ok()
    }
}
