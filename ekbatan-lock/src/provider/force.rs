//! Ending a lease by force, so that its holder can no longer commit.
//!
//! The lock server and the databases do not know of each other, and the holder may hear from
//! neither. Invariant: after the call has returned, no commit succeeds under the ended lease
//! or an earlier one.

use std::time::Duration;

use ekbatan_core::shard::Databases;

use crate::provider::key_worker::HAND_OFF_BITS;
use crate::{BackendError, KeyedLockProvider, LockError, LockKey, LockOptions, LockProvider};

/// Pause before looking again for the holder of the key.
const PAUSE: Duration = Duration::from_millis(5);

impl LockProvider {
    /// Ends the lease of the current holder, as
    /// [`force_release`](KeyedLockProvider::force_release) does, and raises the fence on every
    /// shard, so that the holder's commit fails even if its process has not noticed. Returns
    /// `false` if there was no lease; the fence is raised in any case.
    ///
    /// # Errors
    ///
    /// If the call fails, the fence may not be raised. Session locks of PostgreSQL can be ended
    /// by the process that holds them only, and their tokens are known to that process only.
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
        let ended = self.force(key, why).await?;
        let token = match ended {
            // Tokens grow with each grant, so a successor's is at least this one.
            Some(ended) if ended.token > 0 => (ended.token + 1) << HAND_OFF_BITS,
            _ => self.next_token(key).await?,
        };
        databases
            .fence_off(&self.fence(key), token)
            .await
            .map_err(|source| LockError::Fence { key: key.clone(), source })?;
        Ok(ended.is_some())
    }

    /// A token greater than that of every lease that is over, and not greater than that of the
    /// current holder.
    async fn next_token(&self, key: &LockKey) -> Result<i64, LockError> {
        loop {
            let only_try = LockOptions::wait(Duration::ZERO);
            if let Some(lease) = self.take(key, &only_try).await? {
                let token = lease.token();
                lease.release().await;
                return Ok(token);
            }
            match self.inspect(key).await? {
                Some(holder) if holder.token > 0 => return Ok(holder.token << HAND_OFF_BITS),
                // With no token, the fence would stay where it is.
                Some(holder) => {
                    let source = BackendError::new(format!(
                        "the fence was not raised: {} has the key by now, and the server does \
                         not know its token; call again when that lease is over",
                        holder.holder
                    ));
                    return Err(LockError::Backend { key: key.clone(), source });
                }
                None => {}
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}
