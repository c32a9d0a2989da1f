//! Chooses the strategy of a call and runs one attempt by it.

use std::sync::Arc;

use super::coalesce::{Coalescer, coalesced};
use super::conflict_tracker::{ConflictTracker, Handling, HotKey};
use super::hot_rows::HotRows;
use super::perform::{Perform, optimistic};
use super::pessimistic::pessimistic;
use super::{Adaptive, Coalesced, Contention, Leases};
use crate::action::effect::EffectRunner;
use crate::action::error::AttemptError;
use crate::action::{ContentionError, ExecuteError};
use crate::db::Committed;
use crate::domain::LockKey;

/// The largest number of rows that a call learns.
const MOST_ROWS: usize = 8;

/// The strategies of an executor.
pub(in crate::action) struct Strategies {
    /// `None`: adaptive, and without leases that nobody has asked for.
    default: Option<Contention>,
    leases: Option<Arc<dyn Leases>>,
    tracker: Arc<ConflictTracker>,
    rows: Arc<HotRows>,
    coalescer: Arc<Coalescer>,
}

/// The strategy that was chosen for a call, and the keys that the call contends for.
pub(in crate::action) struct ChosenStrategy {
    contention: Contention,
    /// Those that the call or its action names. An adaptive call that names none begins without,
    /// and learns those of the rows on which it meets others.
    keys: Vec<LockKey>,
    learns: bool,
    /// Whether the next attempt waits in the queue of a row that the last one has met.
    queues: bool,
    /// Whether groups of a contested key take its lease. A caller may hold that very lease.
    takes_turns: bool,
}

impl ChosenStrategy {
    /// Whether the next attempt needs no pause, because it waits in a queue.
    pub(in crate::action) fn waits_in_queue(&self) -> bool {
        self.queues
    }

    fn learn(&mut self, keys: Vec<LockKey>) {
        for key in keys {
            if self.keys.len() < MOST_ROWS && !self.keys.contains(&key) {
                self.keys.push(key);
            }
        }
    }
}

impl Strategies {
    pub(in crate::action) fn new(
        default: Option<Contention>,
        leases: Option<Arc<dyn Leases>>,
        effects: EffectRunner,
    ) -> Self {
        let tracker = Arc::new(ConflictTracker::new(leases.is_some()));
        let rows = Arc::new(HotRows::new(tracker.clone()));
        let coalescer = Arc::new(Coalescer::new(tracker.clone(), effects));
        Self { default, leases, tracker, rows, coalescer }
    }

    /// Chooses the strategy of a call: its own or its action's, otherwise the executor's.
    /// Returns `None` for a call that always runs optimistically.
    pub(in crate::action) fn choose(
        &self,
        action: &'static str,
        own: Option<Contention>,
        keys: impl FnOnce() -> Vec<LockKey>,
    ) -> Result<Option<ChosenStrategy>, ContentionError> {
        let is_default = own.is_none();
        let chosen = own.or_else(|| self.default.clone());
        let takes_turns = chosen.is_some();
        let contention = chosen.unwrap_or_default();
        if contention == Contention::Optimistic {
            return Ok(None);
        }
        if contention.takes_leases() && self.leases.is_none() {
            return Err(ContentionError::NoLeases { action });
        }
        let keys = keys();
        let learns = keys.is_empty() && matches!(contention, Contention::Adaptive(_));
        if learns || !keys.is_empty() {
            return Ok(Some(ChosenStrategy {
                contention,
                keys,
                learns,
                queues: false,
                takes_turns,
            }));
        }
        if !is_default {
            return Err(ContentionError::NoKey { action });
        }
        tracing::debug!(action, "no contention key: the call is optimistic");
        Ok(None)
    }

    /// Runs one attempt of a call.
    pub(in crate::action) async fn attempt(
        &self,
        chosen: Option<&mut ChosenStrategy>,
        call: &mut dyn Perform,
    ) -> Result<Committed, AttemptError> {
        let Some(chosen) = chosen else { return optimistic(call, || ()).await };
        let answer = self.attempt_by_choice(chosen, call).await;
        if let Err(ExecuteError::Stale { .. }) = &answer {
            // In a queue it goes before the calls that come after this loss.
            self.coalescer.number(call.attempt());
        }
        answer
    }

    async fn attempt_by_choice(
        &self,
        chosen: &mut ChosenStrategy,
        call: &mut dyn Perform,
    ) -> Result<Committed, AttemptError> {
        if !chosen.learns {
            return self.attempt_with_keys(chosen, call).await;
        }
        chosen.queues = false;
        if chosen.keys.is_empty() {
            let answer = if self.rows.may_be_met_by(call.attempt()) {
                Box::pin(self.rows.attempt(call)).await
            } else {
                Ok(optimistic(call, || ()).await)
            };
            match answer {
                Ok(answer) => {
                    self.learn(chosen, call, &answer);
                    chosen.queues = !chosen.keys.is_empty() && !call.attempt().is_in_transaction();
                    return answer;
                }
                Err(met) => {
                    let attempt = call.attempt();
                    tracing::debug!(name: "rerun", attempt = attempt.number, row = %met, "the call read a hot row, and runs again in its queue");
                    attempt.number += 1;
                    chosen.keys.push(met);
                }
            }
        }
        let answer = self.attempt_with_keys(chosen, call).await;
        self.learn(chosen, call, &answer);
        answer
    }

    /// Adds the rows on which an attempt met others to the keys of the call.
    fn learn(
        &self,
        chosen: &mut ChosenStrategy,
        call: &mut dyn Perform,
        answer: &Result<Committed, AttemptError>,
    ) {
        let Err(ExecuteError::Stale { rows, .. }) = answer else { return };
        // A call that changes many rows would make all of them hot.
        let rows = &rows[..rows.len().min(MOST_ROWS)];
        chosen.learn(self.rows.conflicted(call.attempt().action_name, rows));
    }

    /// Runs one attempt of a call that has keys.
    async fn attempt_with_keys(
        &self,
        chosen: &ChosenStrategy,
        call: &mut dyn Perform,
    ) -> Result<Committed, AttemptError> {
        let (leases, keys) = (self.leases.as_deref(), &chosen.keys);
        let (strategy, key) = self.resolve(chosen, call);
        // The group counts the conflicts of its key; which other key is hot can only be counted
        // here.
        let counts =
            !chosen.learns && (keys.len() > 1 || !matches!(strategy, Contention::Coalesced(_)));
        let answer = match strategy {
            Contention::Pessimistic(options) => {
                Box::pin(pessimistic(leases, call, keys, &options)).await
            }
            Contention::Coalesced(options) => {
                Box::pin(coalesced(&self.coalescer, leases, call, key, options)).await
            }
            // `resolve` does not return `Adaptive`.
            Contention::Optimistic | Contention::Adaptive(_) => optimistic(call, || ()).await,
        };
        if counts && let Err(ExecuteError::Stale { .. }) = &answer {
            let now = self.tracker.now();
            keys.iter().for_each(|key| self.tracker.conflicted(key, now));
        }
        answer
    }

    /// The strategy of the next attempt, and the key whose queue it would enter. Adaptive calls
    /// go by the present state of their keys. A call that has learned a row has already met
    /// another call there, so it waits in the queue of the row also before that is hot.
    fn resolve<'k>(
        &self,
        ChosenStrategy { contention, keys, learns, takes_turns, .. }: &'k ChosenStrategy,
        call: &mut dyn Perform,
    ) -> (Contention, &'k LockKey) {
        let (key, handling) = self.tracker.hottest(keys, self.tracker.now());
        let resolved = match contention {
            Contention::Adaptive(Adaptive { coalesced }) => {
                let lease = Some(coalesced.lease.unwrap_or_default());
                match handling {
                    Handling::Optimistic if !learns => Contention::Optimistic,
                    Handling::TakingTurns if *takes_turns => {
                        Coalesced { lease, ..*coalesced }.into()
                    }
                    _ => Coalesced { lease: None, ..*coalesced }.into(),
                }
            }
            own => own.clone(),
        };
        let is_group = matches!(resolved, Contention::Coalesced(_));
        // The group would wait for the transaction that this very task holds.
        let would_deadlock = is_group && call.attempt().is_in_transaction();
        (if would_deadlock { Contention::Optimistic } else { resolved }, key)
    }

    /// The keys on which adaptive calls conflict at present.
    pub(in crate::action) fn hot_keys(&self) -> Vec<HotKey> {
        self.tracker.list(self.tracker.now())
    }
}
