//! Hand-written locks in Redis: `SET NX PX`, a script that deletes the client's own key
//! and publishes that, and one subscription per process for waiting clients.

use std::sync::Arc;
use std::time::Duration;

use ekbatan::prelude::Uuid;
use futures_util::StreamExt;
use redis::aio::MultiplexedConnection;
use redis::{Client, Script};
use tokio::sync::Notify;

use super::key::{KEY, MAX_HOLD};
use crate::failure::Failure;

/// The channel of release messages.
const CHANNEL: &str = "bench-freed";

/// Maximum wait for a release message before a client tries again.
const POLL: Duration = Duration::from_millis(50);

const RELEASE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
    redis.call('DEL', KEYS[1]) redis.call('PUBLISH', ARGV[2], KEYS[1]) return 1 end return 0";

/// One client, with its own connection.
pub struct SetNx {
    connection: MultiplexedConnection,
    release: Script,
    owner: String,
    freed: Arc<Notify>,
}

/// Connects the clients of one process.
pub async fn connect(url: &str, count: usize) -> Result<Vec<SetNx>, Failure> {
    let client = Client::open(url)?;
    let mut subscription = client.get_async_pubsub().await?;
    subscription.subscribe(CHANNEL).await?;
    let freed = Arc::new(Notify::new());
    let tell = freed.clone();
    tokio::spawn(async move {
        let mut messages = subscription.on_message();
        while messages.next().await.is_some() {
            tell.notify_waiters();
        }
    });
    let mut clients = Vec::new();
    for _ in 0..count {
        clients.push(SetNx {
            connection: client.get_multiplexed_async_connection().await?,
            release: Script::new(RELEASE),
            owner: Uuid::now_v7().to_string(),
            freed: freed.clone(),
        });
    }
    Ok(clients)
}

impl SetNx {
    pub async fn acquire(&mut self) -> Result<(), Failure> {
        loop {
            // Register before trying, so that a message between the try and the wait is
            // not missed.
            let freed = self.freed.notified();
            let mut set = redis::cmd("SET");
            set.arg(KEY).arg(&self.owner).arg("NX").arg("PX").arg(MAX_HOLD.as_millis() as u64);
            let taken: Option<String> = set.query_async(&mut self.connection).await?;
            if taken.is_some() {
                return Ok(());
            }
            let _ = tokio::time::timeout(POLL, freed).await;
        }
    }

    pub async fn release(&mut self) -> Result<bool, Failure> {
        let mut script = self.release.key(KEY);
        script.arg(&self.owner).arg(CHANNEL);
        Ok(script.invoke_async::<i64>(&mut self.connection).await? == 1)
    }
}
