//! Which strategy a call goes by, and what came of it.

use std::sync::Arc;

use serde_json::Value as Json;
use tokio::time::Instant;

use super::{Contention, ContentionKey, Leases, Pessimistic};
use crate::action::commit::{Answer, Deadline, Keyed};
use crate::action::{Action, ContentionError, ExecuteError, Execution};

/// The executor's part in strategies.
#[derive(Default)]
pub(in crate::action) struct Strategies {
    pub(in crate::action) default: Contention,
    pub(in crate::action) leases: Option<Arc<dyn Leases>>,
}

/// How one call runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Optimistic,
    Pessimistic(Pessimistic),
}

impl Strategies {
    /// How a call for this key runs now.
    fn decide(&self, contention: &Contention, _key: &ContentionKey) -> Mode {
        match contention {
            Contention::Optimistic | Contention::Adaptive(_) | Contention::Coalesced(_) => {
                Mode::Optimistic
            }
            Contention::Pessimistic(pessimistic) => Mode::Pessimistic(*pessimistic),
        }
    }
}

impl<A: Action> Execution<'_, A> {
    /// Runs the call by the strategy that was chosen for it: by the call, the action or the
    /// executor, in this order.
    pub(in crate::action) async fn run_by_strategy(
        &mut self,
        params: &Json,
        keyed: Option<&Keyed<'_, A::Output>>,
        deadline: Deadline,
    ) -> Answer<A> {
        match self.strategy()? {
            None | Some((Mode::Optimistic, _)) => {
                self.attempt_until_done(params, keyed, deadline).await
            }
            Some((Mode::Pessimistic(options), key)) => {
                self.run_under_lease(&key, options, params, keyed, deadline).await
            }
        }
    }

    fn strategy(&self) -> Result<Option<(Mode, ContentionKey)>, ContentionError> {
        // Whoever brings a lease has settled with the others already. To wait for another
        // one, or in a line whose group waits for this very lease, could never end.
        if !self.options.fences.is_empty() {
            return Ok(None);
        }
        let strategies = &self.executor.inner.strategies;
        let chosen = self.options.contention.clone().or_else(|| self.action.contention());
        let by_default = chosen.is_none();
        let contention = chosen.as_ref().unwrap_or(&strategies.default);
        if *contention == Contention::Optimistic {
            return Ok(None);
        }
        if contention.takes_leases() && strategies.leases.is_none() {
            return Err(ContentionError::NoLeases { action: A::NAME });
        }
        let named = self.options.contention_key.clone();
        match named.or_else(|| self.action.contention_key(&self.params)) {
            Some(key) => Ok(Some((strategies.decide(contention, &key), key))),
            None if by_default => {
                tracing::debug!(
                    action = A::NAME,
                    "no contention key: the call runs optimistically"
                );
                Ok(None)
            }
            None => Err(ContentionError::NoKey { action: A::NAME }),
        }
    }

    /// Holds the key's lease from before the action reads until after it has committed.
    async fn run_under_lease(
        &mut self,
        key: &ContentionKey,
        options: Pessimistic,
        params: &Json,
        keyed: Option<&Keyed<'_, A::Output>>,
        deadline: Deadline,
    ) -> Answer<A> {
        let Some(leases) = &self.executor.inner.strategies.leases else {
            return Err(ContentionError::NoLeases { action: A::NAME }.into());
        };
        let lease = deadline
            .bound(leases.lease(key, &options))
            .await
            .map_err(|after| ExecuteError::Deadline { after })??;
        let fence = lease.as_fence();
        let until = Instant::now() + fence.remaining;
        self.options.fences.push((fence, until));
        let answer = self.attempt_until_done(params, keyed, deadline).await;
        lease.release().await;
        answer
    }
}
