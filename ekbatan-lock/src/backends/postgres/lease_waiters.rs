//! The requests of this process that the server has registered, and the grants that are handed
//! over to them.
//!
//! Invariants: a request is known here before it is sent, so that no message is missed. A grant
//! is believed for as long as the server does: its end is by the server's clock.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use uuid::Uuid;

use crate::backends::server_clock::ServerClock;
use crate::{Grant, HandOver};

#[derive(Default)]
pub(super) struct LeaseWaiters {
    requests: Mutex<HashMap<Uuid, Waiting>>,
    pub(super) clock: ServerClock,
    /// Whether messages arrive.
    listening: AtomicBool,
    /// Whether a task looks for grants of registered requests.
    looking: AtomicBool,
    /// Notified when a request was registered.
    registered: Notify,
}

struct Waiting {
    key: String,
    /// Whether the server has registered it.
    registered: bool,
    answer: oneshot::Sender<Option<HandOver>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LeaseWaiters {
    pub(super) fn is_listening(&self) -> bool {
        self.listening.load(Ordering::Acquire)
    }

    /// Notes whether messages arrive from now on. All requests are to be repeated, because
    /// messages may have been missed.
    pub(super) fn set_listening(&self, listening: bool) {
        self.listening.store(listening, Ordering::Release);
        self.repeat_all();
    }

    /// Whether a request may be registered: its grant will be found, by a message or by looking.
    pub(super) fn is_looking(&self) -> bool {
        self.looking.load(Ordering::Acquire)
    }

    /// Notes whether a task looks for grants from now on. All requests are to be repeated, because
    /// one that waits could wait for ever.
    pub(super) fn set_looking(&self, looking: bool) {
        self.looking.store(looking, Ordering::Release);
        self.repeat_all();
    }

    /// Has all requests repeated.
    pub(super) fn repeat_all(&self) {
        for (_, waiting) in lock(&self.requests).drain() {
            let _ = waiting.answer.send(None);
        }
    }

    /// Waits for a grant that is handed over to this request; `None` if it has to be repeated.
    pub(super) async fn wait(&self, key: &str, owner: Uuid) -> Option<HandOver> {
        let (answer, answered) = oneshot::channel();
        let waiting = Waiting { key: key.to_owned(), registered: false, answer };
        lock(&self.requests).insert(owner, waiting);
        let _remove = RemoveOnDrop { waiters: self, owner };
        answered.await.unwrap_or(None)
    }

    /// Notes that the server has registered the request.
    pub(super) fn registered(&self, owner: Uuid) {
        if let Some(waiting) = lock(&self.requests).get_mut(&owner) {
            waiting.registered = true;
        }
        self.registered.notify_one();
    }

    /// Passes a grant on to its request. A grant that is over by now is not passed on.
    pub(super) fn hand_over(&self, owner: Uuid, token: i64, ends: i64) {
        let hand_over =
            HandOver { grant: Grant { owner, token }, until: self.clock.moment_of(ends) };
        if hand_over.until <= Instant::now() {
            return;
        }
        if let Some(waiting) = lock(&self.requests).remove(&owner) {
            let _ = waiting.answer.send(Some(hand_over));
        }
    }

    /// A message of the server: owner, token, end and key of a grant.
    pub(super) fn message(&self, text: &str) {
        let mut words = text.split(' ');
        let owner = words.next().and_then(|word| Uuid::parse_str(word).ok());
        let mut number = || words.next().and_then(|word| word.parse().ok());
        if let (Some(owner), Some(token), Some(ends)) = (owner, number(), number()) {
            self.hand_over(owner, token, ends);
        }
    }

    /// Has a request repeated.
    pub(super) fn repeat(&self, owner: Uuid) {
        if let Some(waiting) = lock(&self.requests).remove(&owner) {
            let _ = waiting.answer.send(None);
        }
    }

    /// Waits until a request is registered. Returns the keys and owners of all of them.
    pub(super) async fn all_registered(&self) -> (Vec<String>, Vec<Uuid>) {
        loop {
            let all: (Vec<String>, Vec<Uuid>) = lock(&self.requests)
                .iter()
                .filter(|(_, waiting)| waiting.registered)
                .map(|(owner, waiting)| (waiting.key.clone(), *owner))
                .unzip();
            if !all.0.is_empty() {
                return all;
            }
            self.registered.notified().await;
        }
    }
}

/// Held by the task that hears of grants. If it ends in any way, such as with its runtime, this
/// process looks more often.
pub(super) struct DeafOnDrop(pub(super) Arc<LeaseWaiters>);

impl Drop for DeafOnDrop {
    fn drop(&mut self) {
        self.0.set_listening(false);
    }
}

/// Held by the task that looks for grants. If it ends in any way, this process asks again and again.
pub(super) struct BlindOnDrop(pub(super) Arc<LeaseWaiters>);

impl Drop for BlindOnDrop {
    fn drop(&mut self) {
        self.0.set_looking(false);
    }
}

struct RemoveOnDrop<'w> {
    waiters: &'w LeaseWaiters,
    owner: Uuid,
}

impl Drop for RemoveOnDrop<'_> {
    fn drop(&mut self) {
        lock(&self.waiters.requests).remove(&self.owner);
    }
}

#[cfg(test)]
mod tests {
    use std::future::{Future, poll_fn};
    use std::task::Poll;
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_message_counts_as_long_as_the_server_does() {
        let waiters = LeaseWaiters::default();
        let owner = Uuid::new_v4();
        let mut wait = Box::pin(waiters.wait("a key", owner));
        assert!(poll_fn(|cx| Poll::Ready(wait.as_mut().poll(cx).is_pending())).await);
        let sent = Instant::now();
        tokio::time::advance(Duration::from_secs(1)).await;
        waiters.clock.note(sent, 5_000_000);
        tokio::time::advance(Duration::from_secs(3)).await;
        // It was on its way for longer than the grant lasts.
        waiters.message(&format!("{owner} 7 8000000 a key"));
        waiters.message("nonsense");
        waiters.message(&format!("{} 7 90000000 a key", Uuid::new_v4()));
        assert!(poll_fn(|cx| Poll::Ready(wait.as_mut().poll(cx).is_pending())).await);
        waiters.message(&format!("{owner} 8 10000000 a key"));
        let handed = wait.await.unwrap();
        assert_eq!(handed.grant, Grant { owner, token: 8 });
        assert_eq!(handed.until, sent + Duration::from_secs(5), "by the server's clock");
    }

    #[tokio::test]
    async fn a_request_that_is_dropped_leaves_nothing_behind() {
        let waiters = LeaseWaiters::default();
        let owner = Uuid::new_v4();
        let mut wait = Box::pin(waiters.wait("k", owner));
        assert!(poll_fn(|cx| Poll::Ready(wait.as_mut().poll(cx).is_pending())).await);
        waiters.registered(owner);
        assert_eq!(waiters.all_registered().await.1, [owner]);
        drop(wait);
        assert!(lock(&waiters.requests).is_empty());
        let mut wait = Box::pin(waiters.wait("k", owner));
        assert!(poll_fn(|cx| Poll::Ready(wait.as_mut().poll(cx).is_pending())).await);
        waiters.set_listening(true);
        assert!(wait.await.is_none() && waiters.is_listening());
    }
}
