//! The pessimistic strategy: hold the leases of the keys from before the first read until after
//! the commit, and let the leases fence the commit.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::time::Instant;

use super::perform::{Perform, optimistic};
use super::{HeldLease, LeaseError, Leases, Pessimistic};
use crate::action::ContentionError;
use crate::action::attempt::Attempt;
use crate::action::error::AttemptError;
use crate::action::fence::fenced_by;
use crate::db::Committed;
use crate::domain::LockKey;
use crate::shard::Fencing;

/// Runs one attempt under the leases of the keys.
pub(super) async fn pessimistic(
    leases: Option<&dyn Leases>,
    call: &mut dyn Perform,
    keys: &[LockKey],
    options: &Pessimistic,
) -> Result<Committed, AttemptError> {
    let held = take_leases(leases, call.attempt(), keys, options).await?;
    under_leases(call, held, || ()).await
}

/// The leases of a call, and the fences that they give it.
pub(super) type TakenLeases = (Vec<Box<dyn HeldLease>>, Option<Arc<Fencing>>);

/// Runs one attempt under leases. When [`commit`](crate::action::commit::commit) calls `release`, the
/// leases begin to be released, too.
pub(super) async fn under_leases(
    call: &mut dyn Perform,
    (mut held, fencing): TakenLeases,
    release: impl FnOnce() + Send,
) -> Result<Committed, AttemptError> {
    call.attempt().fencing = fencing;
    let release_all = || {
        release();
        held.clear();
    };
    let answer = optimistic(call, release_all).await;
    call.attempt().fencing = None;
    for lease in held {
        lease.release().await;
    }
    answer
}

/// Waits for the leases on keys, one after another. A call takes each lock once, whatever keys name it, so
/// that it does not wait for itself. All calls take them in the same order, so that no two calls wait for
/// each other.
pub(super) async fn take_leases(
    leases: Option<&dyn Leases>,
    attempt: &Attempt,
    keys: &[LockKey],
    options: &Pessimistic,
) -> Result<TakenLeases, AttemptError> {
    let (asked, mut held, mut fencing) = (Instant::now(), Vec::new(), None);
    let lock_of = |key: &LockKey| leases.map_or_else(|| key.clone(), |leases| leases.named(key));
    let locks: BTreeMap<_, _> = keys.iter().map(|key| (lock_of(key), key)).collect();
    for key in locks.into_values() {
        let wait = options.wait.saturating_sub(asked.elapsed());
        // A wait of zero means a single try. A wait that is used up must not become one.
        if wait.is_zero() && !options.wait.is_zero() {
            return Err(LeaseError::Busy { key: key.clone(), waited: asked.elapsed() }.into());
        }
        let options = Pessimistic { wait, ..*options };
        let before = fencing.as_deref();
        let (lease, fenced) = take_lease(leases, attempt, key, &options, before).await?;
        held.push(lease);
        fencing = Some(fenced);
    }
    Ok((held, fencing))
}

/// Waits for the lease on a key, which fences the call in addition to the leases `before` it.
pub(super) async fn take_lease(
    leases: Option<&dyn Leases>,
    attempt: &Attempt,
    key: &LockKey,
    options: &Pessimistic,
    before: Option<&Fencing>,
) -> Result<(Box<dyn HeldLease>, Arc<Fencing>), AttemptError> {
    let Some(leases) = leases else {
        return Err(ContentionError::NoLeases { action: attempt.action_name }.into());
    };
    let lease = attempt.deadline.bound(leases.lease(key, options)).await??;
    let fencing = fenced_by(&attempt.shards, before, &*lease);
    Ok((lease, fencing))
}
