//! The pessimistic strategy: hold the key's lease from before the first read until after the
//! commit, and let the lease fence the commit.

use std::sync::Arc;

use super::perform::{Perform, optimistic};
use super::{HeldLease, Leases, Pessimistic};
use crate::action::attempt::{Attempt, CallResult};
use crate::action::fence::fenced_by;
use crate::action::{ContentionError, ExecuteError};
use crate::domain::LockKey;
use crate::shard::Fencing;

/// Runs one attempt under a lease. Once the call is committed and before its effects are
/// waited for, calls `release` and starts to release the lease.
pub(super) async fn pessimistic<C: Perform>(
    leases: Option<&dyn Leases>,
    call: &mut C,
    key: &LockKey,
    options: &Pessimistic,
    release: impl FnOnce() + Send,
) -> CallResult<C::Output, C::Error> {
    let (lease, fencing) = take_lease(leases, call.attempt(), key, options).await?;
    call.attempt().fencing = Some(fencing);
    let mut lease = Some(lease);
    let release_both = || {
        release();
        drop(lease.take());
    };
    let answer = optimistic(call, release_both).await;
    call.attempt().fencing = None;
    if let Some(lease) = lease {
        lease.release().await;
    }
    answer
}

/// Waits for the lease on a key.
pub(super) async fn take_lease<E>(
    leases: Option<&dyn Leases>,
    attempt: &Attempt,
    key: &LockKey,
    options: &Pessimistic,
) -> Result<(Box<dyn HeldLease>, Arc<Fencing>), ExecuteError<E>> {
    let Some(leases) = leases else {
        return Err(ContentionError::NoLeases { action: attempt.action_name }.into());
    };
    let lease = attempt.deadline.bound(leases.lease(key, options)).await??;
    let fencing = fenced_by(&attempt.shards, None, &*lease);
    Ok((lease, fencing))
}
