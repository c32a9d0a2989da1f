//! Leases for the contention strategies of the executor.

use async_trait::async_trait;
use ekbatan_core::action::{HeldLease, LeaseError, Leases, Pessimistic};
use tokio::time::Instant;

use crate::{KeyedLockProvider, Lease, LockKey, LockOptions, LockProvider, LockRegistry};

#[async_trait]
impl Leases for LockProvider {
    async fn lease(
        &self,
        key: &LockKey,
        options: &Pessimistic,
    ) -> Result<Box<dyn HeldLease>, LeaseError> {
        lease(self, key, options).await
    }

    fn named(&self, key: &LockKey) -> LockKey {
        KeyedLockProvider::named(self, key)
    }
}

#[async_trait]
impl<S: 'static> Leases for LockRegistry<S> {
    async fn lease(
        &self,
        key: &LockKey,
        options: &Pessimistic,
    ) -> Result<Box<dyn HeldLease>, LeaseError> {
        lease(self, key, options).await
    }

    fn named(&self, key: &LockKey) -> LockKey {
        KeyedLockProvider::named(self, key)
    }
}

async fn lease(
    locks: &impl KeyedLockProvider,
    key: &LockKey,
    options: &Pessimistic,
) -> Result<Box<dyn HeldLease>, LeaseError> {
    let asked = Instant::now();
    let lock_options = LockOptions::wait(options.wait).hold(options.hold);
    match locks.take(key, &lock_options).await {
        Ok(Some(lease)) => Ok(Box::new(lease)),
        Ok(None) => Err(LeaseError::Busy { key: key.clone(), waited: asked.elapsed() }),
        Err(error) => Err(LeaseError::Failed { key: key.clone(), source: Box::new(error) }),
    }
}

#[async_trait]
impl HeldLease for Lease {
    /// Returns at once. The key's worker releases the key at the server.
    async fn release(self: Box<Self>) {
        self.give_back();
    }
}
