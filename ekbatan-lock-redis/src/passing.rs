//! Passing a released key on to the process that has waited longest.
//!
//! Invariants: a key that was passed on is kept for its process for [`CONFIRM`] only, so that a
//! dead process delays the others by that time, and so does a waiter that leaves at that very moment. If
//! nobody here waits any more when the message comes, the key is passed on at once.

use std::sync::Arc;
use std::time::Duration;

use redis::RedisResult;
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::answer::milliseconds;
use crate::commands::Commands;
use crate::names::RedisNames;
use crate::scripts::Scripts;
use crate::waited::PLACE;

/// How long a key that was passed on is kept for the process that waits. If that process is dead
/// or slow, it loses its place.
pub(crate) const CONFIRM: Duration = Duration::from_millis(500);

#[derive(Clone)]
pub(crate) struct Passing {
    names: RedisNames,
    scripts: Arc<Scripts>,
    commands: Arc<Commands>,
}

impl Passing {
    pub(crate) fn new(names: RedisNames, scripts: Arc<Scripts>, commands: Arc<Commands>) -> Self {
        Self { names, scripts, commands }
    }

    /// Releases the key of this owner. Returns whether it was the owner, and whether another
    /// process has the key now. Rejects the owner's cancelled try for this time.
    pub(crate) async fn release(
        &self,
        key: &str,
        owner: Uuid,
        refused_for: u64,
    ) -> RedisResult<(bool, bool)> {
        let release = self.scripts.release.key(self.names.lock(key));
        let release = release
            .key(self.names.waiters(key))
            .key(self.names.given_up(key, owner))
            .key(self.names.fence(key))
            .arg(owner.to_string())
            .arg(self.names.freed())
            .arg(key)
            .arg(refused_for)
            .arg(milliseconds(CONFIRM))
            .arg(milliseconds(PLACE));
        self.commands.run(release).await
    }

    /// Passes on the keys that were kept for this process after it had stopped waiting, until
    /// the subscription ends.
    pub(crate) async fn return_unclaimed(
        self,
        mut unclaimed: mpsc::UnboundedReceiver<String>,
        process: Uuid,
    ) {
        while let Some(key) = unclaimed.recv().await {
            if let Err(error) = self.release(&key, process, 0).await {
                tracing::debug!(%error, key, "a key that nobody here waits for is free a moment later");
            }
        }
    }
}
