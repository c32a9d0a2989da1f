//! Chooses the strategy of a call and runs one attempt by it.

use std::sync::Arc;

use super::coalesce::{Coalescer, coalesced};
use super::conflict_tracker::{ConflictTracker, Handling, HotKey};
use super::perform::{Perform, optimistic};
use super::pessimistic::pessimistic;
use super::{Adaptive, Coalesced, Contention, Leases};
use crate::action::attempt::CallResult;
use crate::action::effect::EffectRunner;
use crate::action::{ContentionError, ExecuteError};
use crate::domain::LockKey;

/// The strategies of an executor.
pub(in crate::action) struct Strategies {
    default: Contention,
    leases: Option<Arc<dyn Leases>>,
    tracker: Arc<ConflictTracker>,
    coalescer: Arc<Coalescer>,
}

/// The strategy that was chosen for a call, and the keys that the call contends for.
pub(in crate::action) struct ChosenStrategy {
    contention: Contention,
    /// At least one.
    keys: Vec<LockKey>,
}

impl Strategies {
    pub(in crate::action) fn new(
        default: Contention,
        leases: Option<Arc<dyn Leases>>,
        effects: EffectRunner,
    ) -> Self {
        let tracker = Arc::new(ConflictTracker::new(leases.is_some()));
        let coalescer = Arc::new(Coalescer::new(tracker.clone(), effects));
        Self { default, leases, tracker, coalescer }
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
        let contention = own.unwrap_or_else(|| self.default.clone());
        if contention == Contention::Optimistic {
            return Ok(None);
        }
        if contention.takes_leases() && self.leases.is_none() {
            return Err(ContentionError::NoLeases { action });
        }
        let keys = keys();
        if !keys.is_empty() {
            return Ok(Some(ChosenStrategy { contention, keys }));
        }
        if !is_default {
            return Err(ContentionError::NoKey { action });
        }
        tracing::debug!(action, "no contention key: the call is optimistic");
        Ok(None)
    }

    /// Runs one attempt of a call.
    pub(in crate::action) async fn attempt<C: Perform>(
        &self,
        chosen: Option<&ChosenStrategy>,
        call: &mut C,
    ) -> CallResult<C::Output, C::Error> {
        let Some(ChosenStrategy { contention, keys }) = chosen else {
            return optimistic(call, || ()).await;
        };
        let leases = self.leases.as_deref();
        let (strategy, key) = self.resolve(contention, keys, call);
        // The group counts the conflicts of its key; which other key is hot can only be counted
        // here.
        let counts = keys.len() > 1 || !matches!(strategy, Contention::Coalesced(_));
        let answer = match strategy {
            Contention::Pessimistic(options) => {
                Box::pin(pessimistic(leases, call, keys, &options, || ())).await
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
    /// go by the present state of their keys.
    fn resolve<'k>(
        &self,
        contention: &Contention,
        keys: &'k [LockKey],
        call: &mut impl Perform,
    ) -> (Contention, &'k LockKey) {
        let (key, handling) = self.tracker.hottest(keys, self.tracker.now());
        let resolved = match contention {
            Contention::Adaptive(Adaptive { coalesced }) => {
                let lease = Some(coalesced.lease.unwrap_or_default());
                match handling {
                    Handling::Optimistic => Contention::Optimistic,
                    Handling::Coalesced => Coalesced { lease: None, ..*coalesced }.into(),
                    Handling::TakingTurns => Coalesced { lease, ..*coalesced }.into(),
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
