//! Commits whose callers heard "unknown": a task goes on asking what became of them.
//!
//! Invariant: their actions stay open until the database has answered or is closed, also if the
//! runtime of the task ends. Then the task that follows takes them over.

use std::sync::Arc;

use tokio::runtime::Handle;

use super::batches::{SentSession, UnsettledActions};
use super::queue::CommitQueue;
use super::settle::ask_until_answered;
use super::worker::Lane;
use crate::db::ActionId;

/// Puts the actions back if its task is dropped.
struct AskingGuard {
    queue: Arc<CommitQueue>,
    unsettled: Option<UnsettledActions>,
}

impl AskingGuard {
    fn settled(mut self) {
        self.unsettled = None;
    }
}

impl Drop for AskingGuard {
    fn drop(&mut self) {
        if let Some(unsettled) = self.unsettled.take() {
            self.queue.state().unsettled.push(unsettled);
            self.queue.lane_ended.notify_waiters();
        }
    }
}

impl Lane {
    /// Goes on asking in the background, and keeps the actions open until there is an answer.
    pub(super) fn keep_asking(lane: &Arc<Self>, session: SentSession, actions: &[ActionId]) {
        let open = actions.iter().map(|action| lane.queue.open_actions().open(*action)).collect();
        let actions = actions.to_vec();
        Self::ask_on(lane, UnsettledActions { session, actions, open }, &Handle::current());
    }

    /// Takes over what dropped tasks left.
    pub(super) fn take_over_unsettled(lane: &Arc<Self>, runtime: &Handle) {
        let left = std::mem::take(&mut lane.queue.state().unsettled);
        for unsettled in left {
            Self::ask_on(lane, unsettled, runtime);
        }
    }

    fn ask_on(lane: &Arc<Self>, unsettled: UnsettledActions, runtime: &Handle) {
        let lane = lane.clone();
        let (session, actions) = (unsettled.session.clone(), unsettled.actions.clone());
        let guard = AskingGuard { queue: lane.queue.clone(), unsettled: Some(unsettled) };
        drop(runtime.spawn(async move {
            tokio::select! {
                _ = ask_until_answered(&lane, session.identity.as_deref(), &actions) => {}
                () = lane.queue.closed() => {}
            }
            guard.settled();
        }));
    }
}
