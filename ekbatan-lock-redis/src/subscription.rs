//! Messages about keys that were passed on, over one subscription for all keys. A message names the
//! process and the key.
//!
//! Invariants: a lost hint only costs time, because waiters also poll. The subscription is
//! opened again after it has ended, and all waiters are woken then, because hints may have
//! been missed.

use std::sync::Arc;
use std::time::Duration;

use ekbatan_lock::KeyHints;
use futures_util::StreamExt;
use redis::aio::PubSub;
use redis::{Client, RedisError, RedisResult};
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use crate::commands::ANSWER;

/// Time between pings on the subscription.
const PING: Duration = Duration::from_secs(10);

/// Minimum and maximum time to wait before subscribing again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(2));

pub(crate) struct Subscription {
    hints: Arc<KeyHints>,
    listening: JoinHandle<()>,
}

impl Subscription {
    /// Subscribes until dropped.
    /// Keys that were passed on to this process while nobody listens go to `unclaimed`.
    pub(crate) async fn open(
        client: Client,
        channel: String,
        process: Uuid,
        unclaimed: UnboundedSender<String>,
    ) -> RedisResult<Self> {
        let subscription = subscribe(&client, &channel).await?;
        let hints = Arc::new(KeyHints::default());
        let process = process.to_string();
        let here = Here { hints: hints.clone(), process, unclaimed };
        let listening = tokio::spawn(listen(client, channel, subscription, here));
        Ok(Self { hints, listening })
    }

    /// Resolves with the next hint for the key.
    pub(crate) async fn freed(&self, key: &str) {
        self.hints.freed(key).await;
    }

    pub(crate) fn stop(&self) {
        self.listening.abort();
    }
}

/// What the messages are for.
struct Here {
    hints: Arc<KeyHints>,
    process: String,
    unclaimed: UnboundedSender<String>,
}

impl Here {
    fn receive(&self, message: &str) {
        if let Some((process, key)) = message.split_once(' ')
            && process == self.process
            && !self.hints.wake_any(key)
        {
            // Nobody receives after the backend was dropped.
            let _ = self.unclaimed.send(key.to_owned());
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn subscribe(client: &Client, channel: &str) -> RedisResult<PubSub> {
    let subscribing = async {
        let mut subscription = client.get_async_pubsub().await?;
        subscription.subscribe(channel).await?;
        Ok(subscription)
    };
    timeout(ANSWER, subscribing).await.unwrap_or_else(|_| Err(silent()))
}

fn silent() -> RedisError {
    std::io::Error::new(std::io::ErrorKind::TimedOut, "the server did not answer").into()
}

async fn listen(client: Client, channel: String, first: PubSub, here: Here) {
    let mut subscription = first;
    loop {
        forward(subscription, &here).await;
        tracing::debug!("the subscription to freed locks ended; subscribing again");
        subscription = resubscribe(&client, &channel).await;
        here.hints.wake_all();
    }
}

async fn resubscribe(client: &Client, channel: &str) -> PubSub {
    let mut pause = PAUSE.0;
    loop {
        // Jitter keeps processes from reconnecting in step.
        sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
        match subscribe(client, channel).await {
            Ok(subscription) => return subscription,
            Err(error) => {
                tracing::warn!(%error, "subscribing to freed locks failed; waiters poll");
            }
        }
        pause = (pause * 2).min(PAUSE.1);
    }
}

/// Forwards messages until the subscription ends.
async fn forward(subscription: PubSub, here: &Here) {
    let (mut sink, mut messages) = subscription.split();
    let mut next_ping = Instant::now() + PING;
    loop {
        tokio::select! {
            message = messages.next() => match message {
                Some(message) => here.receive(&String::from_utf8_lossy(message.get_payload_bytes())),
                None => return,
            },
            () = tokio::time::sleep_until(next_ping) => {
                // Without a ping, a dead connection looks like an idle one.
                match timeout(ANSWER, sink.ping::<redis::Value>()).await {
                    Ok(Ok(_)) => next_ping = Instant::now() + PING,
                    _ => return,
                }
            }
        }
    }
}
