//! Leases for the executor's strategies.

use async_trait::async_trait;
use ekbatan_core::action::{ContentionKey, HeldLease, LeaseError, Leases, Pessimistic};
use tokio::time::Instant;

use crate::{KeyedLockProvider, Lease, LockKey, LockOptions, LockProvider, LockRegistry};

#[async_trait]
impl Leases for LockProvider {
    async fn lease(
        &self,
        key: &ContentionKey,
        options: &Pessimistic,
    ) -> Result<Box<dyn HeldLease>, LeaseError> {
        lease(self, key, options).await
    }
}

#[async_trait]
impl<S: 'static> Leases for LockRegistry<S> {
    async fn lease(
        &self,
        key: &ContentionKey,
        options: &Pessimistic,
    ) -> Result<Box<dyn HeldLease>, LeaseError> {
        lease(self, key, options).await
    }
}

async fn lease(
    locks: &impl KeyedLockProvider,
    key: &ContentionKey,
    options: &Pessimistic,
) -> Result<Box<dyn HeldLease>, LeaseError> {
    let asked = Instant::now();
    let lock = LockKey::named(key.name());
    let lock = match key.shard() {
        Some(shard) => lock.on_shard(shard),
        None => lock,
    };
    let lock_options = LockOptions::wait(options.wait).hold(options.hold);
    match locks.take(&lock, &lock_options).await {
        Ok(Some(lease)) => Ok(Box::new(lease)),
        Ok(None) => Err(LeaseError::Busy { key: key.clone(), waited: asked.elapsed() }),
        Err(error) => Err(LeaseError::Failed { key: key.clone(), source: Box::new(error) }),
    }
}

#[async_trait]
impl HeldLease for Lease {
    /// Leaves it to the desk to tell the server: nobody waits for that.
    async fn release(self: Box<Self>) {
        self.give_back();
    }
}
