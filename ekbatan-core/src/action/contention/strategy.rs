//! Which strategy a call goes by, attempt for attempt, and what came of it.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use serde_json::Value as Json;

use super::heat::{Handling, Heat, HotKey};
use super::line::Lines;
use super::{Adaptive, Coalesced, Contention, HeldLease, Leases, Pessimistic, Turn};
use crate::action::commit::{Answer, Deadline, Keyed, Tries};
use crate::action::{Action, ContentionError, ExecuteError, Execution};
use crate::domain::LockKey;
use crate::shard::Fencing;

tokio::task_local! {
    /// What the action that runs in this task keeps others from.
    static KEPT: Kept;
}

/// What a running action keeps others from. A call within it does not wait for that.
#[derive(Debug, Clone, Default)]
struct Kept {
    /// The key of its lease.
    lease: Option<LockKey>,
    /// Whether others wait for its turn.
    turn: bool,
}

/// The executor's part in strategies.
pub(in crate::action) struct Strategies {
    pub(in crate::action) default: Contention,
    pub(in crate::action) leases: Option<Arc<dyn Leases>>,
    pub(super) lines: Lines,
    heat: Heat,
    /// Since when there is heat.
    since: Instant,
}

impl Default for Strategies {
    fn default() -> Self {
        Self {
            default: Contention::default(),
            leases: None,
            lines: Lines::default(),
            heat: Heat::default(),
            since: Instant::now(),
        }
    }
}

/// How one attempt runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Optimistic,
    Pessimistic(Pessimistic),
    Coalesced(Coalesced),
}

/// What an attempt met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encounter {
    /// Nobody.
    Calm,
    /// Others in the same line, who would have conflicted otherwise.
    Company,
    /// Somebody who changed a row that it had read.
    Conflict,
    /// Somebody who did so and did not stand in the line: most often another process.
    ForeignConflict,
}

/// What a call contends for, and how it was told to.
pub(in crate::action) struct Contending {
    contention: Contention,
    key: LockKey,
}

/// What others wait for while a call commits.
#[derive(Default)]
pub(in crate::action) struct Waited {
    pub(super) turn: Option<Turn>,
    pub(super) lease: Option<Box<dyn HeldLease>>,
}

impl Strategies {
    /// How a call for this key runs now; asked before every attempt.
    pub(super) fn decide(&self, contention: &Contention, key: &LockKey) -> Mode {
        match contention {
            Contention::Optimistic => Mode::Optimistic,
            Contention::Pessimistic(options) => Mode::Pessimistic(*options),
            Contention::Coalesced(options) => Mode::Coalesced(*options),
            Contention::Adaptive(Adaptive { coalesced }) => {
                let lease = Some(coalesced.lease.unwrap_or_default());
                match self.heat.handling(key, self.since.elapsed()) {
                    Handling::Optimistic => Mode::Optimistic,
                    Handling::Coalesced => Mode::Coalesced(Coalesced { lease: None, ..*coalesced }),
                    Handling::TakingTurns => Mode::Coalesced(Coalesced { lease, ..*coalesced }),
                }
            }
        }
    }

    /// What an attempt for this key met, or a group of them.
    pub(super) fn tell(&self, key: &LockKey, encounter: Encounter) {
        tracing::trace!(%key, ?encounter, "an attempt was made");
        let now = self.since.elapsed();
        match encounter {
            Encounter::Calm => {}
            Encounter::Company => self.heat.met(key, now),
            Encounter::Conflict => self.heat.conflicted(key, now),
            Encounter::ForeignConflict => self.heat.contested(key, now, self.leases.is_some()),
        }
    }

    pub(in crate::action) fn hot_keys(&self) -> Vec<HotKey> {
        self.heat.list(self.since.elapsed())
    }
}

impl<A: Action> Execution<'_, A> {
    /// What the call contends for, by what the call, the action or the executor says, in this
    /// order; nothing where it runs optimistically in any case.
    pub(in crate::action) fn contending(&self) -> Result<Option<Contending>, ContentionError> {
        // Whoever brings a lease has settled with the others already. To wait for another
        // one, or in a line whose group waits for this very lease, could never end.
        if self.options.fencing.is_some() {
            return Ok(None);
        }
        let strategies = &self.executor.inner.strategies;
        let chosen = self.options.contention.clone().or_else(|| self.action.contention());
        let by_default = chosen.is_none();
        let contention = chosen.unwrap_or_else(|| strategies.default.clone());
        if contention == Contention::Optimistic {
            return Ok(None);
        }
        if contention.takes_leases() && strategies.leases.is_none() {
            return Err(ContentionError::NoLeases { action: A::NAME });
        }
        let named = self.options.contention_key.clone();
        match named.or_else(|| self.action.contention_key(&self.params)) {
            Some(key) => Ok(Some(Contending { contention, key })),
            None if by_default => {
                tracing::debug!(action = A::NAME, "no contention key: the call is optimistic");
                Ok(None)
            }
            None => Err(ContentionError::NoKey { action: A::NAME }),
        }
    }

    /// One attempt, in the way that is decided for it now.
    pub(in crate::action) async fn attempt_as_decided(
        &mut self,
        contending: Option<&Contending>,
        tries: &mut Tries,
        params: &Json,
        keyed: Option<&Keyed<'_, A::Output>>,
        deadline: Deadline,
    ) -> Answer<A> {
        let Some(Contending { contention, key }) = contending else {
            return self.attempt(params, keyed, deadline, tries.number).await;
        };
        let strategies = &self.executor.inner.strategies;
        let mode = self.without_what_is_kept(strategies.decide(contention, key), key);
        let answer = match mode {
            Mode::Optimistic => self.attempt(params, keyed, deadline, tries.number).await,
            Mode::Pessimistic(options) => {
                let run =
                    self.attempt_under_lease(key, options, params, keyed, deadline, tries.number);
                Box::pin(run).await
            }
            // Tells by itself what it met.
            Mode::Coalesced(options) => {
                let run = self.attempt_in_line(key, options, tries, params, keyed, deadline);
                return Box::pin(run).await;
            }
        };
        match &answer {
            Ok(_) => strategies.tell(key, Encounter::Calm),
            Err(ExecuteError::Stale { .. }) => strategies.tell(key, Encounter::Conflict),
            Err(_) => {}
        }
        answer
    }

    /// A call within an action whose lease or turn it would wait for would wait for ever, and
    /// so would one that waits for the one writer while its own task is that writer.
    fn without_what_is_kept(&self, mode: Mode, key: &LockKey) -> Mode {
        let kept = KEPT.try_with(Kept::clone).unwrap_or_default();
        match mode {
            Mode::Pessimistic(_) if kept.lease.as_ref() == Some(key) => Mode::Optimistic,
            Mode::Coalesced(_) if kept.turn || self.is_writing() => Mode::Optimistic,
            mode => mode,
        }
    }

    fn is_writing(&self) -> bool {
        let shards = &self.executor.inner.databases.shards;
        shards.all().any(|database| database.check_not_writing().is_err())
    }

    /// An ordinary attempt that holds the key's lease from before it reads until after it has
    /// committed.
    pub(super) async fn attempt_under_lease(
        &mut self,
        key: &LockKey,
        options: Pessimistic,
        params: &Json,
        keyed: Option<&Keyed<'_, A::Output>>,
        deadline: Deadline,
        attempt: u32,
    ) -> Answer<A> {
        let (lease, fencing) = self.take_lease(key, &options, deadline).await?;
        self.options.fencing = Some(fencing);
        self.waited.get_mut().unwrap_or_else(PoisonError::into_inner).lease = Some(lease);
        let mut kept = KEPT.try_with(Kept::clone).unwrap_or_default();
        kept.lease = Some(key.clone());
        let answer = KEPT.scope(kept, self.attempt(params, keyed, deadline, attempt)).await;
        self.options.fencing = None;
        let lease = self.waited.get_mut().unwrap_or_else(PoisonError::into_inner).lease.take();
        if let Some(lease) = lease {
            lease.release().await;
        }
        answer
    }

    pub(super) async fn take_lease(
        &self,
        key: &LockKey,
        options: &Pessimistic,
        deadline: Deadline,
    ) -> Result<(Box<dyn HeldLease>, Arc<Fencing>), ExecuteError<A::Error>> {
        let Some(leases) = &self.executor.inner.strategies.leases else {
            return Err(ContentionError::NoLeases { action: A::NAME }.into());
        };
        let taken = deadline.bound(leases.lease(key, options)).await;
        let lease = taken.map_err(|after| ExecuteError::Deadline { after })??;
        let fencing = self.executor.fencing(None, &*lease);
        Ok((lease, fencing))
    }

    /// Lets those go on who wait for this call to commit. Its effects must not keep them, for
    /// they may want the same key.
    pub(in crate::action) fn let_go(&self) {
        let waited =
            std::mem::take(&mut *self.waited.lock().unwrap_or_else(PoisonError::into_inner));
        drop(waited);
    }
}

/// Runs an action that has the turn of a line.
pub(super) async fn with_turn<T>(performing: impl Future<Output = T>) -> T {
    let mut kept = KEPT.try_with(Kept::clone).unwrap_or_default();
    kept.turn = true;
    KEPT.scope(kept, performing).await
}
