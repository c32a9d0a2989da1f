//! The commit of a group: a task of its own, which no caller can drop.
//!
//! Invariants: each member is answered once, and only with what is known: it is committed, the
//! database refused it, it must run again, or the result is unknown.
//!
//! `G` is the guard of a group, which [`group`](super::group) defines.

use std::sync::Arc;

use tokio::sync::oneshot;
use tracing::{Instrument, Span, field};

use super::group_batch::GroupBatch;
use super::group_sender::{FailedTurn, GroupSender, Sent, is_shared};
use crate::action::call_queues::QueuedCall;
use crate::action::commit::{SharedToken, shared_token};
use crate::action::contention::conflict_tracker::ConflictTracker;
use crate::action::contention::{Coalesced, HeldLease};
use crate::action::effect::{Effect, EffectRunner};
use crate::action::sent_births::SentBirths;
use crate::db::{ActionId, CommitError, Committed, Database, DbError, DbErrorKind, OpenAction};
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
        /// Without its token.
        committed: Committed,
        /// The token of the group, for a member that wants it.
        token: Option<SharedToken>,
        /// The number of members.
        members: usize,
        /// Completes when the call's effects have run, if it has any.
        effects: Option<oneshot::Receiver<()>>,
    },
    /// It is unknown whether the group is committed.
    Unknown(String),
    /// The database refused the member, or could not be reached.
    Refused(DbError),
}

/// A call in the queue of its key.
type Place<G> = QueuedCall<GroupRequest, GroupOutcome<G>>;

/// A call that has joined a group.
pub(super) struct Member<G> {
    /// The call's place in the queue, for the case that it must run again.
    pub(super) place: Place<G>,
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
    /// run, with whether all of this one is committed and which calls must run again.
    pub(super) async fn run(mut self, ended: impl FnOnce(bool, Vec<Place<G>>) + Send) {
        let mut batch = std::mem::take(&mut self.batch);
        // Not reached: a call that changes nothing joins only a group that changes something.
        let Some(database) = batch.database().cloned() else { return };
        let sender = GroupSender { database: &database, batch: &batch, fencing: &self.fencing };
        let Sent { result, failed } = sender.send().await;
        // Before the next group, whose members change what these have left.
        let turns = failed.as_ref().map_or(batch.turns(), |failed| failed.turn);
        let traced = batch.traced(turns);
        for births in batch.take_births(turns) {
            SentBirths::new(births, &database, traced).answered(&result);
        }
        let mut again = Vec::new();
        let mut refused = None;
        if let Some(FailedTurn { turn, error }) = failed {
            tracing::debug!(name: "rerun", members = self.members.len(), %error, "a member of a group failed; those behind it run again");
            let mut behind = self.members.split_off(batch.member(turn)).into_iter();
            // If others changed a row, no member is to blame.
            let stale = error.kind() == DbErrorKind::Serialization;
            if stale {
                self.tracker.lost_to_others(&self.key, self.tracker.now());
            } else if is_final(error.kind()) && result.is_ok() {
                // Answered only after the rows are committed on which the refusal is based.
                refused = behind.next().map(|member| (member, error));
            } else {
                again.extend(behind.next().map(|member| run_alone(member.place)));
            }
            // They may have read what the member that failed would have left.
            let place = |member: Member<G>| {
                if stale { after_conflict(member.place) } else { member.place }
            };
            again.extend(behind.map(place));
        }
        match result {
            Ok(committed) => {
                ended(again.is_empty() && refused.is_none(), waiting(again));
                if let Some((member, error)) = refused {
                    let _ = member.place.reply.send(GroupOutcome::Refused(error));
                }
                self.answer_committed(&database, committed).await;
            }
            Err(error) => self.answer_failed(&database, traced, error, again, ended).await,
        }
    }

    async fn answer_committed(self, database: &Arc<Database>, committed: Option<Committed>) {
        let Some(committed) = committed else { return self.release().await };
        Span::current()
            .record("ekbatan.commit.round_trips", committed.round_trips)
            .record("ekbatan.commit.folded", committed.folded)
            .record("ekbatan.commit.lane_wait_us", committed.lane_wait.as_micros() as u64);
        let members = self.members.len();
        let wants_token = self.members.iter().any(|member| member.wants_token);
        let token = wants_token.then(|| shared_token(vec![database.clone()]));
        let mut effects = Vec::new();
        for member in self.members {
            let committed = Committed { action: member.action, ..committed.clone() };
            let token = token.clone().filter(|_| member.wants_token);
            // The outcome is known now, also to effects that ask for it.
            drop(member.open);
            let mut effects_done = None;
            if !member.effects.is_empty() {
                let (ran, done) = oneshot::channel();
                effects.push((member.effects, committed.clone(), token.clone(), ran));
                effects_done = Some(done);
            }
            let outcome =
                GroupOutcome::Committed { committed, token, members, effects: effects_done };
            let _ = member.place.reply.send(outcome);
        }
        if let Some(lease) = self.lease {
            lease.release().await;
        }
        for (effects, mut committed, token, ran) in effects {
            let runner = self.effects.clone();
            // A task for each call, as for calls that commit by themselves: no call waits for
            // the effects of another.
            let running = async move {
                if let Some(token) = token {
                    committed.token = token.await;
                }
                runner.run(effects, committed).await;
                let _ = ran.send(());
            };
            tokio::spawn(running.in_current_span());
        }
    }

    async fn release(self) {
        if let Some(lease) = self.lease {
            lease.release().await;
        }
    }

    /// Answers the members that are left after their commit failed. `again` are those behind
    /// them, which run again.
    async fn answer_failed(
        self,
        database: &Database,
        traced: ActionId,
        error: CommitError,
        mut again: Vec<Place<G>>,
        ended: impl FnOnce(bool, Vec<Place<G>>) + Send,
    ) {
        let mut open = Vec::new();
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
                    let _ = member.place.reply.send(GroupOutcome::Refused(error.copy()));
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
                again = run_again(self.members, together).chain(again).collect();
            }
        }
        ended(false, waiting(again));
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
fn run_again<G>(members: Vec<Member<G>>, together: bool) -> impl Iterator<Item = Place<G>> {
    let places = members.into_iter().map(|member| member.place);
    places.map(move |place| if together { after_conflict(place) } else { run_alone(place) })
}

fn after_conflict<G>(mut place: Place<G>) -> Place<G> {
    place.request.mode = place.request.mode.after_conflict();
    place
}

fn run_alone<G>(mut place: Place<G>) -> Place<G> {
    place.request.mode = RunMode::Alone;
    place
}

/// The calls that were not dropped meanwhile.
fn waiting<G>(mut places: Vec<Place<G>>) -> Vec<Place<G>> {
    places.retain(|place| !place.reply.is_closed());
    places
}

/// Whether the same call would be refused again.
fn is_final(kind: DbErrorKind) -> bool {
    matches!(
        kind,
        DbErrorKind::UniqueViolation
            | DbErrorKind::ForeignKeyViolation
            | DbErrorKind::NotNullViolation
            | DbErrorKind::CheckViolation
            | DbErrorKind::ValueOutOfRange
    )
}
