//! A call that takes its place in a line, runs when it has the turn, and is committed with
//! the others.

use std::sync::PoisonError;

use serde_json::Value as Json;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::group::{Fit, Member};
use super::line::{Place, Run, Waiter};
use super::strategy::{Encounter, with_turn};
use super::turn::{Told, Turn};
use super::{Coalesced, Pessimistic};
use crate::action::commit::{Answer, Deadline, Keyed, Planned, Tries};
use crate::action::parts::ShardBatch;
use crate::action::{Action, Effect, ExecuteError, Execution};
use crate::db::{ActionId, DbError, DbErrorKind};
use crate::domain::LockKey;
use crate::repository::PendingRow;

/// One attempt of a call in a line, and what it knows of its place there.
pub(super) struct InLine<'c> {
    pub(super) key: &'c LockKey,
    pub(super) options: Coalesced,
    pub(super) deadline: Deadline,
    ticket: u64,
    entered: Instant,
    /// Whether it was refused before, together with others.
    ran_before: bool,
}

/// What a member answers once its group is committed.
struct Held<A: Action> {
    answer: Result<A::Output, ExecuteError<A::Error>>,
    /// Whether the group carries anything of it.
    writes: bool,
}

/// How a turn ended.
enum Ended<A: Action> {
    /// With an answer.
    Answered(Answer<A>),
    /// With a part in the group, or with another place in the line.
    Waits(oneshot::Receiver<Told>, Option<Held<A>>),
    /// It begins again at once.
    Afresh(Turn),
}

impl<A: Action> Execution<'_, A> {
    /// One attempt, with others or, if that failed before, alone. A group that is refused
    /// because of a conflict runs again within the attempt.
    pub(super) async fn attempt_in_line(
        &mut self,
        key: &LockKey,
        options: Coalesced,
        tries: &mut Tries,
        params: &Json,
        keyed: Option<&Keyed<'_, A::Output>>,
        deadline: Deadline,
    ) -> Answer<A> {
        let inner = self.executor.inner.clone();
        let lines = &inner.strategies.lines;
        let ticket = lines.ticket();
        let mut line =
            InLine { key, options, deadline, ticket, entered: Instant::now(), ran_before: false };
        let run = if tries.alone { Run::Alone } else { Run::First };
        let mut told = match lines.enter(&inner, key, ticket, run, options) {
            Place::Turn(turn) => Told::Turn(turn, run),
            Place::Waits(told) => line.wait(told, None).await?,
        };
        let mut held = None;
        loop {
            let (turn, run) = match told {
                Told::Turn(turn, run) => (turn, run),
                told => {
                    if let Told::Committed { members, .. } = told {
                        let met = if members > 1 { Encounter::Company } else { Encounter::Calm };
                        inner.strategies.tell(key, met);
                    }
                    return self.answer_of(told, held, deadline).await;
                }
            };
            held = None;
            line.ran_before |= run == Run::Again;
            if run == Run::Alone {
                tries.alone = true;
                return self.attempt_with_turn(turn, &line, params, keyed, tries.number).await;
            }
            let ended = self.take_turn(turn, &mut line, params, keyed, tries.number).await;
            // The lease, if there was one, is the group's.
            self.options.fencing = None;
            told = match ended {
                Ended::Answered(answer) => {
                    // What two groups could not do, a third would hardly.
                    tries.alone |=
                        line.ran_before && matches!(answer, Err(ExecuteError::Stale { .. }));
                    if answer.is_ok() {
                        inner.strategies.tell(key, Encounter::Calm);
                    }
                    return answer;
                }
                Ended::Afresh(turn) => {
                    inner.strategies.tell(key, Encounter::ForeignConflict);
                    Told::Turn(turn, Run::Again)
                }
                Ended::Waits(told, part) => {
                    held = part;
                    let writes = held.as_ref().is_some_and(|held: &Held<A>| held.writes);
                    line.wait(told, writes.then_some(self.id)).await?
                }
            };
            if let Told::Turn(_, run) = &told {
                tracing::debug!(name: "rerun", attempt = tries.number, ?run, "the call runs again");
                tries.number += 1;
            }
        }
    }

    /// An ordinary attempt while the line waits.
    async fn attempt_with_turn(
        &mut self,
        turn: Turn,
        line: &InLine<'_>,
        params: &Json,
        keyed: Option<&Keyed<'_, A::Output>>,
        attempt: u32,
    ) -> Answer<A> {
        tracing::debug!(name: "alone", attempt, "the call runs by itself");
        line.deadline.bound(turn.seat().sealed()).await.map_err(late)?;
        // One before it may have left a lease, for which this call would wait for ever.
        drop(turn.take_lease());
        self.waited.get_mut().unwrap_or_else(PoisonError::into_inner).turn = Some(turn);
        let answer = match line.options.lease {
            Some(lease) => {
                let run = self.attempt_under_lease(
                    line.key,
                    lease,
                    params,
                    keyed,
                    line.deadline,
                    attempt,
                );
                with_turn(run).await
            }
            None => with_turn(self.attempt(params, keyed, line.deadline, attempt)).await,
        };
        self.let_go();
        answer
    }

    /// Runs on what the group so far will leave, and joins it.
    async fn take_turn(
        &mut self,
        turn: Turn,
        line: &mut InLine<'_>,
        params: &Json,
        keyed: Option<&Keyed<'_, A::Output>>,
        attempt: u32,
    ) -> Ended<A> {
        if let Err(error) = self.prepare(&turn, line).await {
            return Ended::Answered(Err(error));
        }
        let performed = self.perform_in_line(&turn, line, params, keyed, attempt).await;
        if turn.was_misled() {
            return line.again(turn);
        }
        match performed {
            Err(error) if turn.relies_on_group() => {
                self.join(turn, line, None, Vec::new(), Vec::new(), Err(error))
            }
            Err(error) => Ended::Answered(Err(error)),
            Ok((output, planned)) => {
                self.commit_or_join(turn, line, planned, output, attempt).await
            }
        }
    }

    /// Waits for what the group so far stands behind, and sees to its lease.
    async fn prepare(
        &mut self,
        turn: &Turn,
        line: &InLine<'_>,
    ) -> Result<(), ExecuteError<A::Error>> {
        line.deadline.bound(turn.seat().sealed()).await.map_err(late)?;
        turn.group(|group| {
            if group.is_empty() {
                group.options = line.options;
            }
        });
        let Some(options) = line.options.lease else {
            // One before it may have failed, and left a lease that nobody needs.
            if turn.is_group_empty() {
                drop(turn.take_lease());
            }
            return Ok(());
        };
        self.options.fencing = turn.fencing();
        if self.options.fencing.is_some() {
            return Ok(());
        }
        let wait = options.wait.saturating_sub(line.entered.elapsed());
        let options = Pessimistic { wait, ..options };
        let (lease, fencing) = self.take_lease(line.key, &options, line.deadline).await?;
        self.options.fencing = Some(fencing.clone());
        turn.group(|group| {
            group.lease = Some(lease);
            group.fencing = Some(fencing);
        });
        Ok(())
    }

    /// `perform` and what comes of it. A group that is to be committed before it ends is.
    async fn perform_in_line(
        &self,
        turn: &Turn,
        line: &InLine<'_>,
        params: &Json,
        keyed: Option<&Keyed<'_, A::Output>>,
        attempt: u32,
    ) -> Result<(A::Output, Planned), ExecuteError<A::Error>> {
        let started = self.executor.inner.databases.clock.now();
        let mut ctx = self.context(started, attempt, Some(turn.seat().clone()));
        let until = turn.until();
        let performing = async {
            let mut performing = std::pin::pin!(with_turn(self.perform(&mut ctx)));
            if let Some(until) = until {
                tokio::select! {
                    biased;
                    performed = &mut performing => return performed,
                    () = tokio::time::sleep_until(until) => turn.seat().seal(),
                }
            }
            performing.await
        };
        let performed = line.deadline.bound(performing).await.map_err(late)?;
        let plan = ctx.plan;
        // Whatever was read of a group that is on its way counts once that is committed.
        line.deadline.bound(turn.seat().sealed()).await.map_err(late)?;
        let output = performed?;
        self.planned(plan, output, params, keyed, started, line.deadline).await
    }

    async fn commit_or_join(
        &mut self,
        turn: Turn,
        line: &mut InLine<'_>,
        mut planned: Planned,
        output: A::Output,
        attempt: u32,
    ) -> Ended<A> {
        let fit = match &planned.parts[..] {
            [] => Fit::Joins,
            [part] => turn.fit(part),
            _ => Fit::Apart,
        };
        if fit != Fit::Joins && !turn.is_group_empty() {
            turn.seat().seal();
            if let Err(after) = line.deadline.bound(turn.seat().sealed()).await {
                return Ended::Answered(Err(late(after)));
            }
            if turn.was_misled() {
                return line.again(turn);
            }
        }
        let first = turn.is_group_empty();
        let by_itself = match planned.parts.is_empty() {
            true => first || !turn.relies_on_group(),
            false => fit == Fit::Apart || (first && !turn.is_waited_for()),
        };
        if by_itself {
            return self.commit_with_turn(turn, line, planned, output, attempt).await;
        }
        if first && let Err(error) = self.raise_before_commit(&planned.parts, line.deadline).await {
            return Ended::Answered(Err(error));
        }
        let Planned { effects, left, .. } = planned;
        self.join(turn, line, planned.parts.pop(), left, effects, Ok(output))
    }

    /// An ordinary commit while the line waits.
    async fn commit_with_turn(
        &mut self,
        turn: Turn,
        line: &mut InLine<'_>,
        planned: Planned,
        output: A::Output,
        attempt: u32,
    ) -> Ended<A> {
        let lease = turn.is_group_empty().then(|| turn.take_lease()).flatten();
        self.waited.get_mut().unwrap_or_else(PoisonError::into_inner).turn = Some(turn);
        let Planned { parts, effects, events, .. } = planned;
        let committed = self.commit(parts, effects, line.deadline, attempt, events).await;
        let turn = self.waited.get_mut().unwrap_or_else(PoisonError::into_inner).turn.take();
        let ended = match (committed, turn) {
            // A group of one is refused, and runs again.
            (Err(ExecuteError::Stale { .. }), Some(turn)) if !line.ran_before => {
                Ended::Afresh(turn.afresh())
            }
            (committed, _) => Ended::Answered(committed.map(|done| (output, Some(done)))),
        };
        if let Some(lease) = lease {
            lease.release().await;
        }
        ended
    }

    /// Leaves a part in the group, and the turn to the next.
    fn join(
        &self,
        turn: Turn,
        line: &InLine<'_>,
        part: Option<ShardBatch>,
        left: Vec<PendingRow>,
        effects: Vec<Box<dyn Effect>>,
        answer: Result<A::Output, ExecuteError<A::Error>>,
    ) -> Ended<A> {
        let (tell, told) = oneshot::channel();
        let writes = part.is_some();
        let shards = &self.executor.inner.databases.shards;
        let member = Member {
            ticket: line.ticket,
            action: self.id,
            options: line.options,
            ran_before: line.ran_before,
            token: self.options.token,
            effects,
            tell,
            open: shards.default().open_action(self.id),
        };
        turn.join(member, part, left);
        Ended::Waits(told, Some(Held { answer, writes }))
    }

    /// The answer of a member whose group was answered.
    async fn answer_of(&self, told: Told, held: Option<Held<A>>, deadline: Deadline) -> Answer<A> {
        match told {
            Told::Committed { committed, members, effects } => {
                tracing::Span::current().record("ekbatan.contention.group_size", members);
                // Only a member that holds an answer is told of a commit.
                let Some(held) = held else { return Err(broken()) };
                let output = held.answer?;
                drop(self.open.lock().unwrap_or_else(PoisonError::into_inner).take());
                if let Some(effects) = effects {
                    // A deadline that passes now ends the waiting, not the effects.
                    let _ = deadline.bound(effects).await;
                }
                Ok((output, Some(committed)))
            }
            Told::Unknown(why) => Err(ExecuteError::CommitUnknown { action: self.id, why }),
            Told::Refused(kind, message) => Err(DbError::new(kind, message).into()),
            Told::Turn(..) => Err(broken()),
        }
    }
}

impl InLine<'_> {
    /// Waits to be told; `on_its_way` is the action of which something may be committed.
    async fn wait<E>(
        &self,
        told: oneshot::Receiver<Told>,
        on_its_way: Option<ActionId>,
    ) -> Result<Told, ExecuteError<E>> {
        let unknown = |action, why: String| ExecuteError::CommitUnknown { action, why };
        match (self.deadline.bound(told).await, on_its_way) {
            (Ok(Ok(told)), _) => Ok(told),
            (Ok(Err(_)), Some(action)) => {
                Err(unknown(action, "the task that committed it was stopped".to_owned()))
            }
            (Ok(Err(_)), None) => Err(broken()),
            (Err(after), Some(action)) => {
                let why =
                    format!("the deadline of {after:?} passed while the commit was on its way");
                Err(unknown(action, why))
            }
            (Err(after), None) => Err(late(after)),
        }
    }

    /// Takes the old place in the line: behind those who have to run again before it.
    fn again<A: Action>(&mut self, turn: Turn) -> Ended<A> {
        let run = if self.ran_before { Run::Alone } else { Run::Again };
        let (tell, told) = oneshot::channel();
        turn.put_back(Waiter { ticket: self.ticket, run, options: self.options, tell });
        Ended::Waits(told, None)
    }
}

fn late<E>(after: std::time::Duration) -> ExecuteError<E> {
    ExecuteError::Deadline { after }
}

fn broken<E>() -> ExecuteError<E> {
    DbError::new(DbErrorKind::Unavailable, "the line was broken off; nothing was written").into()
}
