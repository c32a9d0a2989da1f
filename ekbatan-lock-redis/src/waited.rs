//! The keys that this process waits for, for its poller.
//!
//! The process that a key is passed on to normally hears of it over the subscription. The poller
//! notices what is not published: terms that end, and messages that were lost. It also renews the
//! places of this process among those that wait.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ekbatan_lock::{BackendError, KeyState, KeyStates, Pace};
use uuid::Uuid;

use crate::answer::{answered, left, milliseconds};
use crate::commands::Commands;
use crate::names::RedisNames;
use crate::scripts::Scripts;

/// Time between the looks of the poller, which are for all keys. It also looks when a term ends.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(1);

pub(crate) const POLLS: Pace = Pace::new(LOOK_EVERY, LOOK_EVERY);

/// How long a process keeps its place among those that wait. The poller renews it more often.
pub(crate) const PLACE: Duration = Duration::from_secs(3);

pub(crate) struct WaitedKeys {
    names: RedisNames,
    scripts: Arc<Scripts>,
    commands: Arc<Commands>,
    /// This process, in the order of those that wait.
    process: Uuid,
}

impl WaitedKeys {
    pub(crate) fn new(
        names: RedisNames,
        scripts: Arc<Scripts>,
        commands: Arc<Commands>,
        process: Uuid,
    ) -> Self {
        Self { names, scripts, commands, process }
    }
}

#[async_trait]
impl KeyStates for WaitedKeys {
    async fn look(&self, keys: &[String]) -> Result<Vec<KeyState>, BackendError> {
        let wait = |key: &String| {
            let wait = self.scripts.wait.key(self.names.lock(key)).key(self.names.waiters(key));
            wait.arg(self.process).arg(milliseconds(PLACE))
        };
        let calls: Vec<_> = keys.iter().map(wait).collect();
        let rests: Vec<i64> = answered(self.commands.run_all(&calls).await)?;
        // A negative rest other than -2, "free", stands for a lock without a term.
        let state = |(key, rest): (&String, i64)| KeyState {
            key: key.clone(),
            grant: 0,
            remaining: if rest == -2 { Some(Duration::ZERO) } else { left(rest) },
        };
        Ok(keys.iter().zip(rests).map(state).collect())
    }
}
