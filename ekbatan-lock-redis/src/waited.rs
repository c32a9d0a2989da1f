//! The keys that this process waits for, for its poller.
//!
//! Waiters normally hear of a release over the subscription. The poller notices what is not
//! published: terms that end, and releases while the subscription was interrupted. It also
//! renews the marks without which a release publishes nothing.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ekbatan_lock::{BackendError, KeyState, KeyStates, Pace};

use crate::answer::{answered, left, milliseconds};
use crate::commands::Commands;
use crate::names::RedisNames;

/// How the poller looks: once a second for all keys, and when a term ends.
pub(crate) const POLLS: Pace = Pace::new(Duration::from_secs(1), Duration::from_secs(1));

/// How long a key stays marked as wanted. The poller looks more often.
pub(crate) const WANTED: Duration = Duration::from_secs(3);

pub(crate) struct WaitedKeys {
    names: RedisNames,
    commands: Arc<Commands>,
}

impl WaitedKeys {
    pub(crate) fn new(names: RedisNames, commands: Arc<Commands>) -> Self {
        Self { names, commands }
    }
}

#[async_trait]
impl KeyStates for WaitedKeys {
    async fn look(&self, keys: &[String]) -> Result<Vec<KeyState>, BackendError> {
        let mut pipeline = redis::pipe();
        for key in keys {
            pipeline.cmd("PTTL").arg(self.names.lock(key));
            let mark = pipeline.cmd("SET").arg(self.names.wanted(key)).arg("1");
            mark.arg("PX").arg(milliseconds(WANTED)).ignore();
        }
        let mut connection = self.commands.connection();
        let rests: Vec<i64> = answered(pipeline.query_async(&mut connection).await)?;
        // A negative rest other than -2, "no such key", stands for a lock without a term.
        let state = |(key, rest): (&String, i64)| KeyState {
            key: key.clone(),
            grant: 0,
            remaining: if rest == -2 { Some(Duration::ZERO) } else { left(rest) },
        };
        Ok(keys.iter().zip(rests).map(state).collect())
    }
}
