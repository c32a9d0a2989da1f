//! The commit of a group: a task of its own, which no caller can drop.
//!
//! Invariants: each member is answered once, and only with what is known: the group is
//! committed, the member must run again, or the result is unknown.
//!
//! `G` is the guard of a group, which [`group`](super::group) defines.

use std::sync::Arc;

use tokio::sync::oneshot;
use tracing::{Span, field};

use super::group_batch::GroupBatch;
use crate::action::call_queues::QueuedCall;
use crate::action::commit::tokens;
use crate::action::contention::conflict_tracker::ConflictTracker;
use crate::action::contention::{Coalesced, HeldLease};
use crate::action::effect::{Effect, EffectRunner};
use crate::db::{ActionId, CommitError, Committed, Database, DbErrorKind, OpenAction};
use crate::domain::LockKey;
use crate::shard::Fencing;

/// How a call runs once it holds the guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunMode {
    /// In a group.
    First,
    /// In a group once more, after one conflict.
    Again,
    /// By itself, while the queue waits.
    Alone,
}

impl RunMode {
    pub(super) fn after_conflict(self) -> Self {
        if self == RunMode::First { RunMode::Again } else { RunMode::Alone }
    }
}

/// What a call in a queue asks for.
#[derive(Clone, Copy)]
pub(super) struct GroupRequest {
    pub(super) mode: RunMode,
    pub(super) options: Coalesced,
}

/// What a call in a queue or in a group receives.
pub(super) enum GroupOutcome<G> {
    /// The guard: the call runs now.
    Run(G, RunMode),
    /// The group is committed.
    Committed {
        committed: Committed,
        /// The number of members.
        members: usize,
        /// Completes when the call's effects have run, if it has any.
        effects: Option<oneshot::Receiver<()>>,
    },
    /// It is unknown whether the group is committed.
    Unknown(String),
    /// The database could not be reached. Each member alone would fail in the same way.
    Refused(DbErrorKind, String),
}

/// A call that has joined a group.
pub(super) struct Member<G> {
    /// The call's place in the queue, for the case that it must run again.
    pub(super) place: QueuedCall<GroupRequest, GroupOutcome<G>>,
    pub(super) action: ActionId,
    pub(super) wants_token: bool,
    pub(super) effects: Vec<Box<dyn Effect>>,
    /// Lets `executor.outcome` wait, also after the caller was dropped.
    pub(super) open: OpenAction,
}

/// A group that is ready to commit.
pub(super) struct GroupCommit<G> {
    pub(super) key: LockKey,
    pub(super) members: Vec<Member<G>>,
    pub(super) batch: GroupBatch,
    pub(super) fencing: Option<Arc<Fencing>>,
    /// The lease, if it is to be released after this group.
    pub(super) lease: Option<Box<dyn HeldLease>>,
    pub(super) tracker: Arc<ConflictTracker>,
    pub(super) effects: EffectRunner,
}

impl<G> GroupCommit<G> {
    pub(super) fn span(&self) -> Span {
        tracing::info_span!(
            parent: None,
            "ekbatan.contention.commit",
            ekbatan.contention.key = %self.key,
            ekbatan.contention.group_size = self.members.len(),
            ekbatan.batch.size = field::Empty,
            ekbatan.commit.round_trips = field::Empty,
            ekbatan.commit.folded = field::Empty,
            ekbatan.commit.lane_wait_us = field::Empty,
        )
    }

    /// Commits the group and answers its members. Calls `ended` as soon as the next group may
    /// run, with whether this one is committed and which calls must run again.
    pub(super) async fn run(
        mut self,
        ended: impl FnOnce(bool, Vec<QueuedCall<GroupRequest, GroupOutcome<G>>>) + Send,
    ) {
        let batch = std::mem::take(&mut self.batch).into_commit(self.fencing.as_deref());
        // Not reached: a call that changes nothing joins only a group that changes something.
        let Some((database, batch)) = batch else { return };
        Span::current().record("ekbatan.batch.size", batch.changes.len());
        let traced = batch.action;
        let over = self.fencing.as_ref().and_then(|fencing| fencing.over());
        let result = match over {
            Some(key) => Err(CommitError::FenceLost(key.to_owned())),
            None => database.commit(batch).await,
        };
        match result {
            Ok(committed) => {
                ended(true, Vec::new());
                self.answer_committed(&database, committed).await;
            }
            Err(error) => self.answer_failed(&database, traced, error, ended).await,
        }
    }

    async fn answer_committed(self, database: &Arc<Database>, committed: Committed) {
        Span::current()
            .record("ekbatan.commit.round_trips", committed.round_trips)
            .record("ekbatan.commit.folded", committed.folded)
            .record("ekbatan.commit.lane_wait_us", committed.lane_wait.as_micros() as u64);
        let token = if self.members.iter().any(|member| member.wants_token) {
            tokens(std::slice::from_ref(database)).await
        } else {
            None
        };
        let members = self.members.len();
        let mut effects = Vec::new();
        for member in self.members {
            let token = token.clone().filter(|_| member.wants_token);
            let committed = Committed { action: member.action, token, ..committed.clone() };
            // The outcome is known now, also to effects that ask for it.
            drop(member.open);
            let mut effects_done = None;
            if !member.effects.is_empty() {
                let (ran, done) = oneshot::channel();
                effects.push((member.effects, committed.clone(), ran));
                effects_done = Some(done);
            }
            let outcome = GroupOutcome::Committed { committed, members, effects: effects_done };
            let _ = member.place.reply.send(outcome);
        }
        if let Some(lease) = self.lease {
            lease.release().await;
        }
        for (effects, committed, ran) in effects {
            self.effects.run(effects, committed).await;
            let _ = ran.send(());
        }
    }

    async fn answer_failed(
        self,
        database: &Database,
        traced: ActionId,
        error: CommitError,
        ended: impl FnOnce(bool, Vec<QueuedCall<GroupRequest, GroupOutcome<G>>>) + Send,
    ) {
        let mut open = Vec::new();
        let mut again = Vec::new();
        match error {
            CommitError::Unknown(_, why) => {
                for member in self.members {
                    // The lanes keep the traced action open themselves, and `settled` below
                    // must not wait for this task.
                    if member.action != traced {
                        open.push(member.open);
                    }
                    let _ = member.place.reply.send(GroupOutcome::Unknown(why.clone()));
                }
            }
            // Trying each member alone would fail again, after the same wait for each.
            CommitError::Refused(error) if is_shared(error.kind()) => {
                for member in self.members {
                    let refused = GroupOutcome::Refused(error.kind(), error.to_string());
                    let _ = member.place.reply.send(refused);
                }
            }
            error => {
                if let CommitError::Stale(_) = error {
                    self.tracker.lost_to_others(&self.key, self.tracker.now());
                }
                if let (CommitError::FenceLost(key), Some(fencing)) = (&error, &self.fencing) {
                    fencing.record_loss(key);
                }
                // Neither is the fault of a member.
                let together = matches!(error, CommitError::Stale(_) | CommitError::FenceLost(_));
                tracing::debug!(name: "rerun", members = self.members.len(), %error, "a group was refused and runs again");
                again = run_again(self.members, together);
            }
        }
        ended(false, again);
        if let Some(lease) = self.lease {
            lease.release().await;
        }
        if !open.is_empty() {
            // The lanes go on looking up the batch, under the id of the traced action.
            database.settled(traced).await;
        }
    }
}

/// The places of members that run again: `together` once more, or each by itself, because one
/// of them may be the cause.
fn run_again<G>(
    members: Vec<Member<G>>,
    together: bool,
) -> Vec<QueuedCall<GroupRequest, GroupOutcome<G>>> {
    let places = members.into_iter().map(|member| member.place);
    let mut places: Vec<_> = places.filter(|place| !place.reply.is_closed()).collect();
    for place in &mut places {
        let mode = &mut place.request.mode;
        *mode = if together { mode.after_conflict() } else { RunMode::Alone };
    }
    places
}

/// Whether every member alone would fail for the same reason.
fn is_shared(kind: DbErrorKind) -> bool {
    matches!(
        kind,
        DbErrorKind::Unavailable
            | DbErrorKind::PoolTimeout
            | DbErrorKind::LockTimeout
            | DbErrorKind::Overloaded
    )
}
