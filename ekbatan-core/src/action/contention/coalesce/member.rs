//! One call on its way through the queue of its key: it enters, waits for the guard, performs,
//! joins the group, and returns once the group is committed.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::group::{Coalescer, GroupGuard, MemberOutcome, QueuePlace};
use super::group_commit::{GroupOutcome, GroupRequest, Member, RunMode};
use crate::action::attempt::CallResult;
use crate::action::commit::{commit, raise_fences};
use crate::action::contention::held_resources::HeldResources;
use crate::action::contention::perform::{Perform, Performed, optimistic};
use crate::action::contention::pessimistic::{pessimistic, take_lease};
use crate::action::contention::{Coalesced, Leases, Pessimistic};
use crate::action::deadline::DeadlinePassed;
use crate::action::shard_batches::{Planned, ShardBatch};
use crate::action::{Effect, ExecuteError};
use crate::db::{DbError, DbErrorKind};
use crate::domain::LockKey;
use crate::repository::PendingRow;

/// Runs one attempt of a call in a group or, if that failed before, alone. A group that is
/// refused because of a conflict runs again within the attempt.
pub(in crate::action::contention) async fn coalesced<C: Perform>(
    coalescer: &Arc<Coalescer>,
    leases: Option<&dyn Leases>,
    call: &mut C,
    key: &LockKey,
    options: Coalesced,
) -> CallResult<C::Output, C::Error> {
    let number = coalescer.queues.draw_number();
    let mode = if call.attempt().alone { RunMode::Alone } else { RunMode::First };
    let entered = Instant::now();
    CoalescedCall { call, coalescer, leases, key, options, number, entered, mode }.run().await
}

/// A call and its place in the queue.
struct CoalescedCall<'c, C> {
    call: &'c mut C,
    coalescer: &'c Arc<Coalescer>,
    leases: Option<&'c dyn Leases>,
    key: &'c LockKey,
    options: Coalesced,
    number: u64,
    entered: Instant,
    mode: RunMode,
}

/// What a call returns once its group is committed.
struct Joined<C: Perform> {
    result: Result<C::Output, ExecuteError<C::Error>>,
    /// Whether the group's batch contains rows or records of the call.
    writes: bool,
}

/// What follows after a call has held the guard.
enum NextStep<C: Perform> {
    /// The call returns.
    Return(CallResult<C::Output, C::Error>),
    /// It waits: for its group if it has joined one, otherwise in the queue again.
    Wait(oneshot::Receiver<MemberOutcome>, Option<Joined<C>>),
    /// It runs again at once.
    RunAgain(GroupGuard),
}

impl<C: Perform> CoalescedCall<'_, C> {
    async fn run(mut self) -> CallResult<C::Output, C::Error> {
        let request = GroupRequest { mode: self.mode, options: self.options };
        let mut outcome = match self.coalescer.enter(self.key, self.number, request) {
            Ok(guard) => GroupOutcome::Run(guard, self.mode),
            Err(waiting) => self.wait(waiting, false).await?,
        };
        let mut joined = None;
        loop {
            let guard = match outcome {
                GroupOutcome::Run(guard, mode) => {
                    self.mode = mode;
                    guard
                }
                ended => return self.answer(ended, joined).await,
            };
            joined = None;
            if self.mode == RunMode::Alone {
                self.call.attempt().alone = true;
                return self.run_alone(guard).await;
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
                NextStep::RunAgain(guard) => {
                    let tracker = &self.coalescer.tracker;
                    tracker.lost_to_others(self.key, tracker.now());
                    GroupOutcome::Run(guard, RunMode::Again)
                }
                NextStep::Wait(waiting, part) => {
                    joined = part;
                    let writes = joined.as_ref().is_some_and(|joined: &Joined<C>| joined.writes);
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

    /// An ordinary attempt while the queue waits.
    async fn run_alone(&mut self, guard: GroupGuard) -> CallResult<C::Output, C::Error> {
        let attempt = self.call.attempt();
        tracing::debug!(name: "alone", attempt = attempt.number, "the call runs by itself");
        attempt.deadline.bound(guard.sealed()).await?;
        // An earlier holder may have left a lease, and this call would wait for it forever.
        drop(guard.take_lease());
        let mut guard = Some(guard);
        let release = || drop(guard.take());
        match self.options.lease {
            Some(lease) => {
                let run = pessimistic(self.leases, self.call, self.key, &lease, release);
                HeldResources::with_group(run).await
            }
            None => HeldResources::with_group(optimistic(self.call, release)).await,
        }
    }

    /// Runs on the rows that the members stage, and joins them.
    async fn run_in_group(&mut self, guard: GroupGuard) -> NextStep<C> {
        if let Err(error) = self.prepare(&guard).await {
            return NextStep::Return(Err(error));
        }
        let performed = self.perform(&guard).await;
        if guard.is_invalid() {
            return self.wait_again(guard);
        }
        match performed {
            Ok((output, planned)) => self.commit_or_join(guard, planned, output).await,
            // An error that is based on pending rows is returned only after they commit.
            Err(error) if guard.relies_on_members() => {
                self.join(guard, None, Vec::new(), Vec::new(), Err(error))
            }
            Err(error) => NextStep::Return(Err(error)),
        }
    }

    /// Waits for sealed members, and takes the group's lease if there is to be one.
    async fn prepare(&mut self, guard: &GroupGuard) -> Result<(), ExecuteError<C::Error>> {
        self.call.attempt().deadline.bound(guard.sealed()).await?;
        guard.begin(self.options);
        let Some(options) = self.options.lease else {
            // An earlier holder may have failed and left a lease that nobody needs.
            if guard.is_group_empty() {
                drop(guard.take_lease());
            }
            return Ok(());
        };
        let attempt = self.call.attempt();
        attempt.fencing = guard.fencing();
        if attempt.fencing.is_some() {
            return Ok(());
        }
        let wait = options.wait.saturating_sub(self.entered.elapsed());
        let options = Pessimistic { wait, ..options };
        let (lease, fencing) = take_lease(self.leases, attempt, self.key, &options).await?;
        attempt.fencing = Some(fencing.clone());
        guard.set_lease(lease, fencing);
        Ok(())
    }

    /// Performs and plans. When the group's time is up before the action returns, the members
    /// are committed meanwhile.
    async fn perform(
        &mut self,
        guard: &GroupGuard,
    ) -> Result<(C::Output, Planned), ExecuteError<C::Error>> {
        let deadline = self.call.attempt().deadline;
        let performing = async {
            let performing = self.call.perform(Some(guard.reads()));
            let mut performing = std::pin::pin!(HeldResources::with_group(performing));
            if let Some(until) = guard.until() {
                tokio::select! {
                    biased;
                    performed = &mut performing => return performed,
                    () = tokio::time::sleep_until(until) => guard.seal(),
                }
            }
            performing.await
        };
        let performed: Result<Performed<C::Output>, _> = deadline.bound(performing).await?;
        // What was read of sealed members is valid only once they are committed.
        deadline.bound(guard.sealed()).await?;
        self.call.plan(performed?).await
    }

    async fn commit_or_join(
        &mut self,
        guard: GroupGuard,
        mut planned: Planned,
        output: C::Output,
    ) -> NextStep<C> {
        let (can_merge, fits) = match &planned.batches[..] {
            [] => (true, true),
            [batch] => (guard.can_merge(batch), guard.has_room_for(batch)),
            _ => (false, true),
        };
        let can_join = can_merge && fits;
        if !can_join && !guard.is_group_empty() {
            guard.seal();
            if let Err(passed) = self.call.attempt().deadline.bound(guard.sealed()).await {
                return NextStep::Return(Err(passed.into()));
            }
            if guard.is_invalid() {
                return self.wait_again(guard);
            }
        }
        let first = guard.is_group_empty();
        let by_itself = if planned.batches.is_empty() {
            first || !guard.relies_on_members()
        } else {
            !can_merge || (first && !guard.is_waited_for())
        };
        if by_itself {
            return self.commit_with_guard(guard, planned, output).await;
        }
        if first && let Err(error) = raise_fences(self.call.attempt(), &planned.batches).await {
            return NextStep::Return(Err(error));
        }
        let batch = planned.batches.pop();
        self.join(guard, batch, planned.pending, planned.effects, Ok(output))
    }

    /// An ordinary commit while the queue waits.
    async fn commit_with_guard(
        &mut self,
        guard: GroupGuard,
        planned: Planned,
        output: C::Output,
    ) -> NextStep<C> {
        let lease = if guard.is_group_empty() { guard.take_lease() } else { None };
        let mut held = Some(guard);
        let committed = commit(self.call.attempt(), planned, || drop(held.take())).await;
        let step = match (committed, held) {
            // The same as a group of one member that is refused.
            (Err(ExecuteError::Stale { .. }), Some(guard)) if self.mode == RunMode::First => {
                NextStep::RunAgain(guard.renew())
            }
            (committed, _) => NextStep::Return(committed.map(|done| (output, Some(done)))),
        };
        if let Some(lease) = lease {
            lease.release().await;
        }
        step
    }

    /// Adds the call to the group and passes the guard on.
    fn join(
        &mut self,
        guard: GroupGuard,
        batch: Option<ShardBatch>,
        pending: Vec<PendingRow>,
        effects: Vec<Box<dyn Effect>>,
        result: Result<C::Output, ExecuteError<C::Error>>,
    ) -> NextStep<C> {
        let writes = batch.is_some();
        let (place, waiting) = self.place(self.mode);
        let attempt = self.call.attempt();
        let member = Member {
            place,
            action: attempt.action,
            wants_token: attempt.wants_token,
            effects,
            open: attempt.shards.default().open_action(attempt.action),
        };
        guard.join(member, batch, pending);
        NextStep::Wait(waiting, Some(Joined { result, writes }))
    }

    /// Returns to the call's old place in the queue, behind those that must run again before.
    fn wait_again(&mut self, guard: GroupGuard) -> NextStep<C> {
        let (place, waiting) = self.place(self.mode.after_conflict());
        guard.put_back(place);
        NextStep::Wait(waiting, None)
    }

    fn place(&self, mode: RunMode) -> (QueuePlace, oneshot::Receiver<MemberOutcome>) {
        let (reply, waiting) = oneshot::channel();
        let request = GroupRequest { mode, options: self.options };
        (QueuePlace { number: self.number, request, reply }, waiting)
    }

    /// Waits for the guard, or for the group that the call has joined. If the group `writes`
    /// something of the call, an interrupted wait means that the result is unknown.
    async fn wait(
        &mut self,
        waiting: oneshot::Receiver<MemberOutcome>,
        writes: bool,
    ) -> Result<MemberOutcome, ExecuteError<C::Error>> {
        let attempt = self.call.attempt();
        let action = attempt.action;
        let unknown = |why: String| ExecuteError::CommitUnknown { action, why };
        match attempt.deadline.bound(waiting).await {
            Ok(Ok(outcome)) => Ok(outcome),
            Ok(Err(_)) if writes => {
                Err(unknown("the task that committed it was stopped".to_owned()))
            }
            Ok(Err(_)) => Err(stopped()),
            Err(DeadlinePassed(after)) if writes => Err(unknown(passed_during_commit(after))),
            Err(passed) => Err(passed.into()),
        }
    }

    /// The result of a call whose group has ended.
    async fn answer(
        &mut self,
        outcome: MemberOutcome,
        joined: Option<Joined<C>>,
    ) -> CallResult<C::Output, C::Error> {
        let attempt = self.call.attempt();
        match outcome {
            GroupOutcome::Committed { committed, members, effects } => {
                tracing::Span::current().record("ekbatan.contention.group_size", members);
                if members > 1 {
                    let tracker = &self.coalescer.tracker;
                    tracker.met_others(self.key, tracker.now());
                }
                // Not reached: only a call that has joined is a member.
                let Some(Joined { result, .. }) = joined else { return Err(stopped()) };
                let output = result?;
                attempt.open = None;
                if let Some(effects) = effects {
                    // A deadline that passes now ends the wait, not the effects.
                    let _ = attempt.deadline.bound(effects).await;
                }
                Ok((output, Some(committed)))
            }
            GroupOutcome::Unknown(why) => {
                Err(ExecuteError::CommitUnknown { action: attempt.action, why })
            }
            GroupOutcome::Refused(kind, message) => Err(DbError::new(kind, message).into()),
            // Not reached: the caller runs the call.
            GroupOutcome::Run(..) => Err(stopped()),
        }
    }
}

fn passed_during_commit(after: Duration) -> String {
    format!("the deadline of {after:?} passed while the commit was on its way")
}

fn stopped<E>() -> ExecuteError<E> {
    let why = "the queue of the call's key was stopped; nothing was written";
    DbError::new(DbErrorKind::Unavailable, why).into()
}
