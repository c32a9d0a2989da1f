//! One call on its way through the queue of its key: it enters, waits for the guard, performs,
//! joins the group, and returns once the group is committed.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::group::{Coalescer, GroupGuard, MemberOutcome, QueuePlace};
use super::group_commit::{GroupOutcome, GroupRequest, Member, RunMode};
use super::guard::{GroupView, Standing};
use crate::action::commit::{COMMIT_STOPPED, commit, raise_fences};
use crate::action::contention::perform::{Perform, Performed, optimistic};
use crate::action::contention::pessimistic::{take_lease, take_leases, under_leases};
use crate::action::contention::{Coalesced, LeaseError, Leases, Pessimistic};
use crate::action::deadline::DeadlinePassed;
use crate::action::error::AttemptError;
use crate::action::shard_batches::{Planned, ShardBatch};
use crate::action::{Effect, ExecuteError};
use crate::db::{Committed, DbError, DbErrorKind};
use crate::domain::LockKey;
use crate::repository::PendingRow;

/// Runs one attempt of a call in a group or, if that failed before, alone. A group that is
/// refused because of a conflict runs again within the attempt.
pub(in crate::action::contention) async fn coalesced(
    coalescer: &Arc<Coalescer>,
    leases: Option<&dyn Leases>,
    call: &mut dyn Perform,
    key: &LockKey,
    options: Coalesced,
) -> Result<Committed, AttemptError> {
    let number = coalescer.number(call.attempt());
    let mode = if call.attempt().alone { RunMode::Alone } else { RunMode::First };
    let entered = Instant::now();
    let inherited_lease = false;
    CoalescedCall { call, coalescer, leases, key, options, number, entered, mode, inherited_lease }
        .run()
        .await
}

/// A call and its place in the queue.
struct CoalescedCall<'c> {
    call: &'c mut dyn Perform,
    coalescer: &'c Arc<Coalescer>,
    leases: Option<&'c dyn Leases>,
    key: &'c LockKey,
    options: Coalesced,
    number: u64,
    entered: Instant,
    mode: RunMode,
    /// Whether the group's lease was taken by an earlier call, which may have held it for long.
    inherited_lease: bool,
}

/// What a call returns once its group is committed.
struct Joined {
    result: Result<(), AttemptError>,
    /// Whether the group's batch contains rows or records of the call.
    writes: bool,
}

/// What an action staged.
type Staged = Result<Planned, AttemptError>;

/// What follows after a call has held the guard.
enum NextStep {
    /// The call returns.
    Return(Result<Committed, AttemptError>),
    /// It waits for the group that it has joined.
    Joined(oneshot::Receiver<MemberOutcome>, Joined),
    /// It returns to its old place in the queue, and then passes the guard on.
    QueueAgain(GroupGuard, RunMode),
    /// It keeps its turn and runs again at once.
    RunAgain(GroupGuard, RunMode),
    /// It runs again, outside of the queue.
    RunAlone,
}

impl CoalescedCall<'_> {
    async fn run(mut self) -> Result<Committed, AttemptError> {
        let (mut outcome, mut joined) = (self.enter(None).await?, None);
        loop {
            let guard = match outcome {
                GroupOutcome::Run(guard, mode) => {
                    self.mode = mode;
                    guard
                }
                ended => return self.answer(ended, joined).await,
            };
            joined = None;
            if !guard.restart_turn(self.options.turn) {
                // The turn was granted to a call that nobody polled, and was ended.
                outcome = self.enter(None).await?;
                continue;
            }
            if self.mode == RunMode::Alone {
                self.call.attempt().alone = true;
                return self.run_alone(Some(guard)).await;
            }
            let step = self.run_in_group(guard).await;
            // The lease, if there is one, belongs to the group.
            self.call.attempt().fencing = None;
            outcome = match step {
                NextStep::Return(answer) => {
                    // After conflicts in two groups a third one would hardly succeed.
                    let stale = matches!(answer, Err(ExecuteError::Stale { .. }));
                    self.call.attempt().alone |= self.mode == RunMode::Again && stale;
                    return answer;
                }
                NextStep::RunAlone => {
                    self.call.attempt().number += 1;
                    return self.run_alone(None).await;
                }
                NextStep::RunAgain(guard, mode) => GroupOutcome::Run(guard, mode),
                NextStep::QueueAgain(guard, mode) => {
                    self.mode = mode;
                    self.enter(Some(guard)).await?
                }
                NextStep::Joined(waiting, part) => {
                    let writes = part.writes;
                    joined = Some(part);
                    self.wait(waiting, writes).await?
                }
            };
            if let GroupOutcome::Run(_, mode) = &outcome {
                let attempt = self.call.attempt();
                tracing::debug!(name: "rerun", attempt = attempt.number, run = ?mode, "the call runs again");
                attempt.number += 1;
            }
        }
    }

    /// Enters the queue at the place that the call's number gives, passes on the guard that the
    /// call held before, and waits for the next one.
    async fn enter(&mut self, held: Option<GroupGuard>) -> Result<MemberOutcome, AttemptError> {
        let entered = self.coalescer.enter(self.key, self.number, self.request());
        drop(held);
        match entered {
            Ok(guard) => Ok(GroupOutcome::Run(guard, self.mode)),
            Err(waiting) => {
                self.coalescer.watch_turns();
                self.wait(waiting, false).await
            }
        }
    }

    /// An ordinary attempt. The queue waits for it as long as the call holds the guard.
    async fn run_alone(&mut self, guard: Option<GroupGuard>) -> Result<Committed, AttemptError> {
        let attempt = self.call.attempt();
        tracing::debug!(name: "alone", attempt = attempt.number, "the call runs by itself");
        if let Some(guard) = &guard {
            attempt.deadline.bound(guard.sealed()).await?;
            // An earlier holder may have left a lease, and this call would wait for it forever.
            drop(guard.take_lease());
        }
        let Some(lease) = self.options.lease else {
            return optimistic(self.call, || drop(guard)).await;
        };
        let restart_turn = |bound| {
            if let Some(guard) = &guard {
                guard.restart_turn(bound);
            }
        };
        // The wait for the lease does not count.
        restart_turn(self.options.turn.saturating_add(lease.wait));
        let key = std::slice::from_ref(self.key);
        let held = take_leases(self.leases, self.call.attempt(), key, &lease).await?;
        restart_turn(self.options.turn);
        under_leases(self.call, held, || drop(guard)).await
    }

    /// Runs on the rows that the members stage, and joins them.
    async fn run_in_group(&mut self, guard: GroupGuard) -> NextStep {
        if let Err(error) = self.prepare(&guard).await {
            return NextStep::Return(Err(error));
        }
        if guard.is_lost() {
            return NextStep::RunAlone;
        }
        let performed = self.perform(&guard).await;
        let batches = performed.as_ref().map_or(&[][..], |planned| &planned.batches);
        let standing = match self.standing(&guard, batches).await {
            Ok(standing) => standing,
            Err(passed) => return NextStep::Return(Err(passed.into())),
        };
        match (standing, performed) {
            (Standing::Lost { relied }, performed) => {
                self.finish_late(guard, relied, performed).await
            }
            (Standing::Invalid, _) => self.queue_again(guard),
            (Standing::Holds(group), Ok(planned)) => {
                self.commit_or_join(guard, group, planned).await
            }
            // An error that is based on pending rows is returned only after they commit.
            (Standing::Holds(group), Err(error)) if group.relies_on_members => {
                self.join(guard, None, Vec::new(), Vec::new(), Err(error))
            }
            (Standing::Holds(_), Err(error)) => self.fail(guard, error),
        }
    }

    /// Returns the error, unless a fresh lease helps.
    fn fail(&mut self, guard: GroupGuard, error: AttemptError) -> NextStep {
        match (error, &self.call.attempt().fencing) {
            (ExecuteError::FenceLost { key }, Some(fencing)) if self.inherited_lease => {
                fencing.record_loss(&key);
                NextStep::RunAgain(guard.renew(self.options.turn), self.mode)
            }
            (error, _) => NextStep::Return(Err(error)),
        }
    }

    /// Waits for sealed members, and takes the group's lease if there is to be one.
    async fn prepare(&mut self, guard: &GroupGuard) -> Result<(), AttemptError> {
        self.call.attempt().deadline.bound(guard.sealed()).await?;
        guard.begin(self.options);
        let Some(options) = self.options.lease else {
            // An earlier holder may have failed and left a lease that nobody needs.
            drop(guard.take_unused_lease());
            return Ok(());
        };
        let attempt = self.call.attempt();
        self.inherited_lease = false;
        if let Some(fencing) = guard.fencing() {
            if fencing.over().is_none() {
                self.inherited_lease = true;
                attempt.fencing = Some(fencing);
                return Ok(());
            }
            // The lease has ended. The members cannot commit any more, and run again.
            guard.seal();
            drop(guard.take_lease());
            attempt.deadline.bound(guard.sealed()).await?;
        }
        let wait = options.wait.saturating_sub(self.entered.elapsed());
        let options = Pessimistic { wait, ..options };
        // The next member would have to wait for the lease as well.
        guard.restart_turn(self.options.turn.saturating_add(wait));
        let taken = take_lease(self.leases, attempt, self.key, &options, None).await;
        let (lease, fencing) = taken.map_err(|error| busy_since(self.entered, error))?;
        guard.restart_turn(self.options.turn);
        attempt.fencing = Some(fencing.clone());
        guard.set_lease(lease, fencing);
        Ok(())
    }

    /// Performs and plans. When the group's time is up before the action returns, the members
    /// are committed meanwhile.
    async fn perform(&mut self, guard: &GroupGuard) -> Staged {
        let deadline = self.call.attempt().deadline;
        let performing = async {
            let mut performing = std::pin::pin!(self.call.perform(Some(guard.reads())));
            if let Some(until) = guard.until() {
                tokio::select! {
                    biased;
                    performed = &mut performing => return performed,
                    () = tokio::time::sleep_until(until) => guard.seal(),
                }
            }
            performing.await
        };
        let performed: Result<Performed, _> = deadline.bound(performing).await?;
        // What was read of sealed members is valid only once they are committed.
        deadline.bound(guard.sealed()).await?;
        self.call.plan(performed?).await
    }

    /// How the call stands, once sealed members are committed or not. A task to which the action gave
    /// a repository may seal them at any time.
    async fn standing(
        &mut self,
        guard: &GroupGuard,
        batches: &[ShardBatch],
    ) -> Result<Standing, DeadlinePassed> {
        loop {
            if let Some(standing) = guard.standing(batches) {
                return Ok(standing);
            }
            self.call.attempt().deadline.bound(guard.sealed()).await?;
        }
    }

    async fn commit_or_join(
        &mut self,
        guard: GroupGuard,
        mut group: GroupView,
        mut planned: Planned,
    ) -> NextStep {
        if !(group.is_empty || (group.may_join && group.has_room)) {
            guard.seal();
            group = match self.standing(&guard, &planned.batches).await {
                // The rows that it changes or expects are those before the members' commit.
                Ok(Standing::Holds(_)) if group.is_outdated => {
                    return NextStep::RunAgain(guard.renew(self.options.turn), self.mode);
                }
                Ok(Standing::Holds(group)) => group,
                Ok(Standing::Invalid) => return self.queue_again(guard),
                Ok(Standing::Lost { relied }) => {
                    return self.finish_late(guard, relied, Ok(planned)).await;
                }
                Err(passed) => return NextStep::Return(Err(passed.into())),
            };
        }
        let by_itself = if planned.batches.is_empty() {
            group.is_empty || !group.relies_on_members
        } else {
            !group.may_join || (group.is_empty && !group.has_waiters)
        };
        if by_itself {
            return self.commit_with_guard(guard, planned).await;
        }
        if group.is_empty
            && let Err(error) = raise_fences(self.call.attempt(), &planned.batches).await
        {
            return self.fail(guard, error);
        }
        // From here on the commit does not depend on this call any more.
        if let Err(passed) = self.call.attempt().deadline.check() {
            return NextStep::Return(Err(passed.into()));
        }
        let batch = planned.batches.pop();
        self.join(guard, batch, planned.pending, planned.effects, Ok(()))
    }

    /// An ordinary commit while the queue waits.
    async fn commit_with_guard(&mut self, guard: GroupGuard, planned: Planned) -> NextStep {
        let mut lease = guard.take_unused_lease();
        let mut held = Some(guard);
        let release = || {
            // The next call would only wait for the lease.
            drop(lease.take());
            drop(held.take());
        };
        let committed = commit(self.call.attempt(), planned, release).await;
        let step = match (committed, held) {
            // The same as a group of one member that is refused.
            (Err(ExecuteError::Stale { rows, attempts }), Some(guard))
                if self.mode == RunMode::First =>
            {
                let tracker = &self.coalescer.tracker;
                tracker.lost_to_others(self.key, tracker.now());
                if self.call.attempt().number == 1 {
                    NextStep::RunAgain(guard.renew(self.options.turn), RunMode::Again)
                } else {
                    // This is not its first run, and it is alone: it pauses, as any retry does.
                    NextStep::Return(Err(ExecuteError::Stale { rows, attempts }))
                }
            }
            (Err(error), Some(guard)) => self.fail(guard, error),
            (committed, _) => NextStep::Return(committed),
        };
        if let Some(lease) = lease {
            lease.release().await;
        }
        step
    }

    /// Finishes a call that lost its turn. Its result is right unless it is based on rows that
    /// were not committed, because the commit compares the versions of what it read.
    async fn finish_late(&mut self, lost: GroupGuard, relied: bool, performed: Staged) -> NextStep {
        let attempt = self.call.attempt();
        tracing::debug!(name: "late", attempt = attempt.number, "the call lost its turn in the queue");
        // The lease stays with the group, and may end before this call commits.
        let lost_lease =
            self.options.lease.is_some() && !matches!(performed, Err(ExecuteError::Domain(_)));
        if relied || lost_lease {
            return NextStep::RunAlone;
        }
        let planned = match performed {
            Ok(planned) => planned,
            Err(error) => return NextStep::Return(Err(error)),
        };
        match commit(attempt, planned, || ()).await {
            Err(ExecuteError::Stale { .. }) if self.mode == RunMode::First => {
                NextStep::QueueAgain(lost, RunMode::Again)
            }
            committed => NextStep::Return(committed),
        }
    }

    /// Adds the call to the group and passes the guard on.
    fn join(
        &mut self,
        guard: GroupGuard,
        batch: Option<ShardBatch>,
        pending: Vec<PendingRow>,
        effects: Vec<Box<dyn Effect>>,
        result: Result<(), AttemptError>,
    ) -> NextStep {
        let writes = batch.is_some();
        let (reply, waiting) = oneshot::channel();
        let request = self.request();
        let attempt = self.call.attempt();
        let member = Member {
            place: QueuePlace { number: self.number, request, reply },
            action: attempt.action,
            wants_token: attempt.wants_token,
            effects,
            open: attempt.shards.default().open_action(attempt.action),
        };
        if guard.join(member, batch, pending) {
            NextStep::Joined(waiting, Joined { result, writes })
        } else {
            // In this moment the turn was lost, or a repository has sealed the group.
            NextStep::RunAlone
        }
    }

    /// Returns to the queue, behind the calls that must run again before.
    fn queue_again(&self, guard: GroupGuard) -> NextStep {
        NextStep::QueueAgain(guard, self.mode.after_conflict())
    }

    fn request(&self) -> GroupRequest {
        GroupRequest { mode: self.mode, options: self.options }
    }

    /// Waits for the guard, or for the group that the call has joined. If the group `writes`
    /// something of the call, an interrupted wait means that the result is unknown.
    async fn wait(
        &mut self,
        waiting: oneshot::Receiver<MemberOutcome>,
        writes: bool,
    ) -> Result<MemberOutcome, AttemptError> {
        let attempt = self.call.attempt();
        let action = attempt.action;
        let unknown = |why: String| ExecuteError::CommitUnknown { action, why };
        match attempt.deadline.bound(waiting).await {
            Ok(Ok(outcome)) => Ok(outcome),
            Ok(Err(_)) if writes => Err(unknown(COMMIT_STOPPED.to_owned())),
            Ok(Err(_)) => Err(stopped()),
            Err(passed) if writes => Err(unknown(passed.during_commit())),
            Err(passed) => Err(passed.into()),
        }
    }

    /// The result of a call whose group has ended.
    async fn answer(
        &mut self,
        outcome: MemberOutcome,
        joined: Option<Joined>,
    ) -> Result<Committed, AttemptError> {
        let attempt = self.call.attempt();
        match outcome {
            GroupOutcome::Committed { mut committed, token, members, effects } => {
                tracing::Span::current().record("ekbatan.contention.group_size", members);
                if members > 1 {
                    let tracker = &self.coalescer.tracker;
                    tracker.met_others(self.key, tracker.now());
                }
                // Not reached: only a call that has joined is a member.
                let Some(Joined { result, .. }) = joined else { return Err(stopped()) };
                result?;
                attempt.close();
                if let Some(token) = token {
                    committed.token = attempt.deadline.bound(token).await.unwrap_or_default();
                }
                if let Some(effects) = effects {
                    // A deadline that passes now ends the wait, not the effects.
                    let _ = attempt.deadline.bound(effects).await;
                }
                Ok(committed)
            }
            GroupOutcome::Unknown(why) => {
                Err(ExecuteError::CommitUnknown { action: attempt.action, why })
            }
            GroupOutcome::Refused(error) => Err(error.into()),
            // Not reached: the caller runs the call.
            GroupOutcome::Run(..) => Err(stopped()),
        }
    }
}

/// Lets the error of a lease that was not free name the whole wait, also that in the queue.
fn busy_since(entered: Instant, error: AttemptError) -> AttemptError {
    match error {
        ExecuteError::Lease(LeaseError::Busy { key, .. }) => {
            LeaseError::Busy { key, waited: entered.elapsed() }.into()
        }
        other => other,
    }
}

fn stopped() -> AttemptError {
    let why = "the queue of the call's key was stopped; nothing was written";
    DbError::new(DbErrorKind::Unavailable, why).into()
}
