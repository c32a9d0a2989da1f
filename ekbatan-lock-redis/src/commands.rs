//! The one connection for all commands.
//!
//! Invariants: a lost connection is replaced, and a command that it may not have executed is
//! sent once more. If the server does not answer in time, or refuses commands for a time, the call
//! fails, and the next call uses a new connection.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ekbatan_lock::FailureKind;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Client, ErrorKind, FromRedisValue, RedisError, RedisResult, ServerErrorKind};

use crate::answer::{kind, refuses_for_a_time};
use crate::scripts::{By, ScriptCall};

/// Maximum time for the server to answer, and to accept a connection.
pub(crate) const ANSWER: Duration = Duration::from_secs(5);

pub(crate) struct Commands {
    client: Client,
    current: Mutex<Current>,
}

struct Current {
    manager: ConnectionManager,
    generation: u64,
}

fn config() -> ConnectionManagerConfig {
    ConnectionManagerConfig::new()
        .set_response_timeout(Some(ANSWER))
        .set_connection_timeout(Some(ANSWER))
        // Callers have their own deadlines, and should learn soon that a server is down.
        .set_number_of_retries(2)
        .set_max_delay(Duration::from_millis(500))
}

impl Commands {
    pub(crate) async fn connect(client: Client) -> RedisResult<Self> {
        let manager = ConnectionManager::new_with_config(client.clone(), config()).await?;
        Ok(Self { client, current: Mutex::new(Current { manager, generation: 0 }) })
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A handle to the connection, for single commands.
    pub(crate) fn connection(&self) -> ConnectionManager {
        self.current().manager.clone()
    }

    pub(crate) async fn run<T: FromRedisValue>(&self, call: ScriptCall<'_>) -> RedisResult<T> {
        let mut answers = self.run_all(&[call]).await?;
        answers.pop().ok_or_else(|| {
            RedisError::from((ErrorKind::UnexpectedReturnType, "the server returned no answer"))
        })
    }

    /// Runs several calls in one round trip.
    pub(crate) async fn run_all<T: FromRedisValue>(
        &self,
        calls: &[ScriptCall<'_>],
    ) -> RedisResult<Vec<T>> {
        let mut answered = self.once(calls, By::Hash).await;
        let mut unknown = None;
        // Often a proxy has closed an idle connection.
        if answered.as_ref().is_err_and(RedisError::is_connection_dropped) {
            unknown = answered.err().filter(|error| kind(error) == FailureKind::InDoubt);
            answered = self.once(calls, By::Hash).await;
        }
        // One request, so that nobody can have the scripts forgotten in between.
        let is_unknown_script =
            |error: &RedisError| error.kind() == ErrorKind::Server(ServerErrorKind::NoScript);
        if answered.as_ref().is_err_and(is_unknown_script) {
            answered = self.once(calls, By::Text).await;
        }
        match (answered, unknown) {
            // The first request may have had its effect nevertheless.
            (Err(error), Some(unknown)) if kind(&error) == FailureKind::Unavailable => Err(unknown),
            (answered, _) => answered,
        }
    }

    async fn once<T: FromRedisValue>(
        &self,
        calls: &[ScriptCall<'_>],
        by: By,
    ) -> RedisResult<Vec<T>> {
        let (mut manager, generation) = {
            let current = self.current();
            (current.manager.clone(), current.generation)
        };
        let mut pipeline = redis::pipe();
        for call in calls {
            pipeline.add_command(call.command(by));
        }
        let answered = pipeline.query_async(&mut manager).await;
        let leaves = |error: &RedisError| error.is_timeout() || refuses_for_a_time(error);
        if answered.as_ref().is_err_and(leaves) {
            self.replace(generation);
        }
        answered
    }

    /// Replaces the connection, unless another caller has replaced it.
    fn replace(&self, generation: u64) {
        let mut current = self.current();
        if current.generation != generation {
            return;
        }
        if let Ok(manager) = ConnectionManager::new_lazy_with_config(self.client.clone(), config())
        {
            *current = Current { manager, generation: generation + 1 };
        }
    }
}
