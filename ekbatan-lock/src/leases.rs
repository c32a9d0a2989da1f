//! Leases for the executor's strategies.

use async_trait::async_trait;
use ekbatan_core::action::{ContentionKey, HeldLease, LeaseError, Leases, Pessimistic};
use tokio::time::Instant;

use crate::{KeyedLockProvider, Lease, LockKey, LockOptions, LockProvider};

#[async_trait]
impl Leases for LockProvider {
    async fn lease(
        &self,
        key: &ContentionKey,
        options: &Pessimistic,
    ) -> Result<Box<dyn HeldLease>, LeaseError> {
        let asked = Instant::now();
        let lock = LockKey::named(key.name());
        let lock_options = LockOptions::wait(options.wait).hold(options.hold);
        match self.take(&lock, &lock_options).await {
            Ok(Some(lease)) => Ok(Box::new(lease)),
            Ok(None) => Err(LeaseError::Busy { key: key.clone(), waited: asked.elapsed() }),
            Err(error) => Err(LeaseError::Failed { key: key.clone(), source: Box::new(error) }),
        }
    }
}

#[async_trait]
impl HeldLease for Lease {
    async fn release(self: Box<Self>) {
        Lease::release(&self).await;
    }
}
