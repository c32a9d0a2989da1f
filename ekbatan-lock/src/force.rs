//! Ending a lease by force so that its commits end with it.
//!
//! The lock server and the databases know nothing of each other, and the holder may hear of
//! neither. What always holds: when this has returned, no commit goes through under the lease
//! that was ended, nor under any before it.

use std::time::Duration;

use ekbatan_core::shard::Databases;

use crate::desk::HAND_OFF_BITS;
use crate::{KeyedLockProvider, LockError, LockKey, LockOptions, LockProvider};

/// How long is waited before looking again who has the key.
const PAUSE: Duration = Duration::from_millis(5);

impl LockProvider {
    /// Ends somebody's lease as [`force_release`](KeyedLockProvider::force_release) does, and
    /// raises the fence on every shard, so that the holder's commit fails also if its process
    /// has not noticed. `false` says that there was no lease; the fence is raised all the same.
    ///
    /// ```
    /// # use ekbatan_core::shard::Databases;
    /// # use ekbatan_lock::*;
    /// # async fn run(locks: &LockProvider, databases: &Databases) -> Result<(), LockError> {
    /// locks.force_release_fenced(&lock_key!("wallet", 17), "its process hangs", databases).await?;
    /// # Ok(()) }
    /// ```
    pub async fn force_release_fenced(
        &self,
        key: &LockKey,
        why: &str,
        databases: &Databases,
    ) -> Result<bool, LockError> {
        let ended = self.force_release(key, why).await?;
        let token = self.next_token(key).await?;
        databases
            .fence_off(&self.stored(key), token)
            .await
            .map_err(|source| LockError::Fence { key: key.clone(), source })?;
        Ok(ended)
    }

    /// A token that is later than that of every lease which is over by now, and not later than
    /// that of whoever holds the key.
    async fn next_token(&self, key: &LockKey) -> Result<i64, LockError> {
        loop {
            let only_try = LockOptions::wait(Duration::ZERO);
            if let Some(lease) = self.take(key, &only_try).await? {
                let token = lease.token();
                lease.release().await;
                return Ok(token);
            }
            if let Some(holder) = self.inspect(key).await? {
                return Ok(holder.token << HAND_OFF_BITS);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}
