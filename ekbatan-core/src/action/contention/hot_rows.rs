//! Rows as contention keys, for adaptive calls that name no key.
//!
//! A conflict names the row. The next attempt of the call waits in the queue of that row. While
//! the row is hot, later calls of the same action go there as soon as they read it: the attempt
//! is given up at that read, and the call begins again in the queue. Until then it has sent
//! nothing but reads.

use std::collections::HashSet;
use std::sync::{Arc, PoisonError, RwLock};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::watch;
use uuid::Uuid;

use super::conflict_tracker::{ConflictTracker, Handling};
use super::perform::{Perform, commit_performed};
use crate::action::attempt::{Attempt, CallResult};
use crate::db::RowRef;
use crate::domain::{LockKey, TableKey};
use crate::repository::{PendingReads, PendingRow, RowKey};

/// The key of a row. It differs from every key that an application would name, because a call
/// that waits for the row may hold a lease on such a key.
fn row_key(model: &str, id: Uuid) -> LockKey {
    LockKey::of(&format!("row of {model}"), id)
}

/// The rows on which the calls of an executor conflict.
pub(super) struct HotRows {
    tracker: Arc<ConflictTracker>,
    /// The actions that met conflicts, each with the models of the rows. An action that only
    /// reads rows of a model is not among them, and does not wait for those that change them.
    meeting: RwLock<HashSet<(&'static str, &'static str)>>,
}

impl HotRows {
    pub(super) fn new(tracker: Arc<ConflictTracker>) -> Self {
        Self { tracker, meeting: RwLock::default() }
    }

    /// Records that an action met changed rows. Returns their keys.
    pub(super) fn conflicted(&self, action: &'static str, rows: &[RowRef]) -> Vec<LockKey> {
        for row in rows {
            if !self.may_meet_in(action, row.model) {
                let mut meeting = self.meeting.write().unwrap_or_else(PoisonError::into_inner);
                meeting.insert((action, row.model));
            }
        }
        rows.iter().map(|row| row_key(row.model, row.id)).collect()
    }

    /// Whether an attempt may read a hot row.
    pub(super) fn may_be_met(&self, attempt: &Attempt) -> bool {
        let meets = || {
            let meeting = self.meeting.read().unwrap_or_else(PoisonError::into_inner);
            meeting.iter().any(|(action, _)| *action == attempt.action_name)
        };
        self.tracker.has_hot_keys() && meets() && !attempt.is_in_transaction()
    }

    fn may_meet_in(&self, action: &'static str, model: &'static str) -> bool {
        self.meeting.read().unwrap_or_else(PoisonError::into_inner).contains(&(action, model))
    }

    /// Runs an optimistic attempt. Returns the key of the first hot row that it reads, at which
    /// it is given up.
    pub(super) async fn attempt<C: Perform>(
        self: &Arc<Self>,
        call: &mut C,
    ) -> Result<CallResult<C::Output, C::Error>, LockKey> {
        let (action, deadline) = (call.attempt().action_name, call.attempt().deadline);
        let (stage, mut met) = watch::channel(Stage::Running);
        let reads = Arc::new(WatchedReads { rows: self.clone(), action, stage });
        let over = Over(reads.clone());
        let performed = tokio::select! {
            biased;
            performed = deadline.bound(call.perform(Some(reads))) => performed,
            Ok(stage) = met.wait_for(|stage| matches!(stage, Stage::Met(_))) => {
                let Stage::Met(key) = &*stage else { unreachable!("it waits for this stage") };
                return Err(key.clone());
            }
        };
        drop(over);
        Ok(match performed {
            Ok(Ok(performed)) => commit_performed(call, performed, || ()).await,
            Ok(Err(error)) => Err(error),
            Err(passed) => Err(passed.into()),
        })
    }
}

/// How far a watched attempt is.
enum Stage {
    Running,
    /// It read the row with this key, which is hot.
    Met(LockKey),
    /// It has performed, or was given up.
    Over,
}

/// The reads of an attempt that is given up at a hot row.
struct WatchedReads {
    rows: Arc<HotRows>,
    action: &'static str,
    stage: watch::Sender<Stage>,
}

/// Ends the watching when it is dropped. Reads that go on in tasks of their own then continue.
struct Over(Arc<WatchedReads>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.stage.send_replace(Stage::Over);
    }
}

impl PendingReads for WatchedReads {
    fn find(&self, _: RowKey) -> Option<PendingRow> {
        None
    }

    fn settle(&self, _: TableKey) -> Option<BoxFuture<'_, ()>> {
        None
    }

    fn meet(&self, model: &'static str, id: Uuid) -> Option<BoxFuture<'_, ()>> {
        if !self.rows.may_meet_in(self.action, model) {
            return None;
        }
        let (key, tracker) = (row_key(model, id), &self.rows.tracker);
        if tracker.handling(&key, tracker.now()) == Handling::Optimistic {
            return None;
        }
        self.stage.send_if_modified(|stage| {
            let is_first = matches!(stage, Stage::Running);
            if is_first {
                *stage = Stage::Met(key);
            }
            is_first
        });
        let mut stage = self.stage.subscribe();
        let given_up = async move {
            let _ = stage.wait_for(|stage| matches!(stage, Stage::Over)).await;
        };
        Some(given_up.boxed())
    }
}
