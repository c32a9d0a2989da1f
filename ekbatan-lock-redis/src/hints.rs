//! Word of keys that have become free, over one subscription, whatever the number of keys.
//!
//! What always holds: word that is lost costs time and no more, as whoever waits also asks;
//! the subscription comes back by itself, and has everybody ask then, since what was said
//! meanwhile was not heard.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use redis::aio::PubSub;
use redis::{Client, RedisError, RedisResult};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::commands::PATIENCE;

/// How often it is asked whether the server is still there.
const SIGN_OF_LIFE: Duration = Duration::from_secs(10);

/// How long to wait before subscribing anew: at first, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(2));

pub(crate) struct Hints {
    listeners: Arc<Listeners>,
    listening: JoinHandle<()>,
}

impl Hints {
    /// Subscribes, and stays subscribed until it is dropped.
    pub(crate) async fn subscribe(client: Client, channel: String) -> RedisResult<Self> {
        let subscription = subscribe(&client, &channel).await?;
        let listeners = Arc::new(Listeners::default());
        let listening = tokio::spawn(listen(client, channel, subscription, listeners.clone()));
        Ok(Self { listeners, listening })
    }

    /// Resolves when there is word of the key.
    pub(crate) async fn freed(&self, key: &str) {
        self.listeners.word_of(key).await;
    }

    pub(crate) fn stop(&self) {
        self.listening.abort();
    }
}

impl Drop for Hints {
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
    timeout(PATIENCE, subscribing).await.unwrap_or_else(|_| Err(silent()))
}

fn silent() -> RedisError {
    std::io::Error::new(std::io::ErrorKind::TimedOut, "the server did not answer").into()
}

async fn listen(client: Client, channel: String, first: PubSub, listeners: Arc<Listeners>) {
    let mut subscription = first;
    loop {
        hear(subscription, &listeners).await;
        tracing::debug!("the subscription to freed locks ended; subscribing anew");
        subscription = resubscribe(&client, &channel).await;
        listeners.wake_all();
    }
}

async fn resubscribe(client: &Client, channel: &str) -> PubSub {
    let mut pause = PAUSE.0;
    loop {
        // Jitter keeps the processes of a fleet from coming back in step.
        sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
        match subscribe(client, channel).await {
            Ok(subscription) => return subscription,
            Err(error) => {
                tracing::warn!(%error, "word of freed locks is not heard for now; who waits asks");
            }
        }
        pause = (pause * 2).min(PAUSE.1);
    }
}

/// Passes on what is said, until the subscription ends.
async fn hear(subscription: PubSub, listeners: &Listeners) {
    let (mut sink, mut said) = subscription.split();
    let mut next_sign = Instant::now() + SIGN_OF_LIFE;
    loop {
        tokio::select! {
            message = said.next() => match message {
                Some(message) => listeners.wake(&String::from_utf8_lossy(message.get_payload_bytes())),
                None => return,
            },
            () = tokio::time::sleep_until(next_sign) => {
                // A connection that leads nowhere is as quiet as one on which nothing is said.
                match timeout(PATIENCE, sink.ping::<redis::Value>()).await {
                    Ok(Ok(_)) => next_sign = Instant::now() + SIGN_OF_LIFE,
                    _ => return,
                }
            }
        }
    }
}

/// Those who wait for word, by key.
#[derive(Default)]
struct Listeners {
    keys: Mutex<HashMap<String, Listener>>,
}

struct Listener {
    word: Arc<Notify>,
    count: usize,
}

impl Listeners {
    fn keys(&self) -> MutexGuard<'_, HashMap<String, Listener>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self, key: &str) {
        if let Some(listener) = self.keys().get(key) {
            listener.word.notify_waiters();
        }
    }

    fn wake_all(&self) {
        self.keys().values().for_each(|listener| listener.word.notify_waiters());
    }

    async fn word_of(&self, key: &str) {
        let place = Place::take(self, key);
        place.word.notified().await;
    }
}

/// A place among the listeners, given up when it is dropped.
struct Place<'l> {
    listeners: &'l Listeners,
    key: &'l str,
    word: Arc<Notify>,
}

impl<'l> Place<'l> {
    fn take(listeners: &'l Listeners, key: &'l str) -> Self {
        let mut keys = listeners.keys();
        let listener = keys
            .entry(key.to_owned())
            .or_insert_with(|| Listener { word: Arc::new(Notify::new()), count: 0 });
        listener.count += 1;
        let word = listener.word.clone();
        drop(keys);
        Self { listeners, key, word }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut keys = self.listeners.keys();
        if let Some(listener) = keys.get_mut(self.key) {
            listener.count -= 1;
            if listener.count == 0 {
                keys.remove(self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{Future, poll_fn};
    use std::pin::Pin;
    use std::task::Poll;

    use super::*;

    async fn has_word(listener: &mut Pin<Box<impl Future<Output = ()>>>) -> bool {
        poll_fn(|cx| Poll::Ready(listener.as_mut().poll(cx).is_ready())).await
    }

    #[tokio::test]
    async fn word_reaches_those_who_listen_and_nobody_else() {
        let listeners = Listeners::default();
        let mut a = Box::pin(listeners.word_of("a"));
        let mut also_a = Box::pin(listeners.word_of("a"));
        let mut b = Box::pin(listeners.word_of("b"));
        listeners.wake("a"); // nobody listens yet
        assert!(!has_word(&mut a).await && !has_word(&mut also_a).await);
        assert!(!has_word(&mut b).await);
        listeners.wake("a");
        assert!(has_word(&mut a).await);
        assert!(has_word(&mut also_a).await);
        assert!(!has_word(&mut b).await);
        listeners.wake_all();
        assert!(has_word(&mut b).await);
    }

    #[tokio::test]
    async fn who_stops_listening_leaves_nothing_behind() {
        let listeners = Listeners::default();
        let mut a = Box::pin(listeners.word_of("a"));
        let mut also_a = Box::pin(listeners.word_of("a"));
        assert!(!has_word(&mut a).await);
        assert!(!has_word(&mut also_a).await);
        drop(a);
        listeners.wake("a");
        assert!(has_word(&mut also_a).await);
        drop(also_a);
        assert!(listeners.keys().is_empty());
    }
}
