//! A broker within this process, for tests, for examples, and for programs of one process.
//!
//! Invariants:
//! - A message is acknowledged to its sender only once every subscription of its topic has acknowledged
//!   it. So whatever the process has in memory when it is killed is still in the database, and is sent
//!   again.
//! - A subscription has a message of a relay at most once at a time, however often it is sent.

mod queue;
mod subscription;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ekbatan_events::{RelaySender, RelayTerms};
use futures_util::future::join_all;

pub use subscription::{InProcessMessage, InProcessSubscription};

use crate::OutgoingMessage;
use crate::broker::{Broker, BrokerError, Receipt, check_ack_timeout};
use queue::{MessageKey, Queue};

/// The time after which an acknowledgement is not waited for any more.
const ACK_TIMEOUT: Duration = Duration::from_secs(30);

/// A broker within this process.
///
/// It holds nothing that lasts: the database does. A relay to it marks an event as sent only once every
/// subscription of the topic has acknowledged the message. If the process is killed before, the next one
/// gets the message again. So consumers get each message at least once, in the order of its model, and
/// recognise a repetition by its id.
///
/// - A consumer that does not acknowledge in time, 30 s unless [set](Self::ack_timeout), gets the message
///   again later; the next message of the model waits for it.
/// - A message without any subscription is refused, and tried again: it waits for one. Subscribe before
///   the node starts.
/// - Consumers in other processes get nothing: each process has its own broker.
///
/// Clones are the same broker.
///
/// ```
/// use ekbatan_relay::{InProcessBroker, Relay};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let broker = InProcessBroker::new();
/// let mut billing = broker.subscribe("billing", ["ekbatan.com.example.shop.model.Order"]);
/// let relay = Relay::new("orders", broker.clone());
/// // .. a node gets the relay
/// # let _ = relay;
/// tokio::spawn(async move {
///     while let Some(message) = billing.next().await {
///         println!("{} says {}", message.id, String::from_utf8_lossy(&message.payload));
///         message.ack();
///     }
/// });
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct InProcessBroker {
    inner: Arc<Mutex<Inner>>,
    ack_timeout: Duration,
}

#[derive(Default)]
struct Inner {
    queues: Vec<Arc<Queue>>,
}

impl Default for InProcessBroker {
    fn default() -> Self {
        Self { inner: Arc::default(), ack_timeout: ACK_TIMEOUT }
    }
}

impl InProcessBroker {
    /// A broker without subscriptions.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how long the acknowledgements of a message are waited for by relays that are given this
    /// broker, or a clone that is made of it from now on; 30 s unless set, and at most that.
    #[must_use]
    pub fn ack_timeout(mut self, timeout: Duration) -> Self {
        self.ack_timeout = timeout;
        self
    }

    /// Subscribes to topics. Each message goes to one of those who subscribed under one name, and to every
    /// name. A `*` at the end of a topic stands for any end.
    ///
    /// Later subscriptions under the name add their topics. A name stays subscribed when its
    /// subscriptions are dropped: its messages wait for the next one.
    pub fn subscribe<T: Into<String>>(
        &self,
        name: impl Into<String>,
        topics: impl IntoIterator<Item = T>,
    ) -> InProcessSubscription {
        let name = name.into();
        let mut inner = self.inner();
        let queue = match inner.queues.iter().find(|queue| queue.name == name) {
            Some(queue) => queue.clone(),
            None => {
                let queue = Arc::new(Queue::new(name));
                inner.queues.push(queue.clone());
                queue
            }
        };
        queue.add_topics(topics.into_iter().map(Into::into));
        InProcessSubscription::new(queue)
    }

    /// Ends a subscription by its name: its messages count as acknowledged, and
    /// [`next`](InProcessSubscription::next) answers `None`. `false` if there is none.
    pub fn unsubscribe(&self, name: &str) -> bool {
        let mut inner = self.inner();
        let found = inner.queues.iter().position(|queue| queue.name == name);
        found.map(|at| inner.queues.remove(at).close()).is_some()
    }

    /// How many messages wait for an acknowledgement of a subscription.
    pub fn unacknowledged(&self, name: &str) -> usize {
        let queue = self.inner().queues.iter().find(|queue| queue.name == name).cloned();
        queue.map_or(0, |queue| queue.len())
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn publish_one(&self, relay: &'static str, message: OutgoingMessage) -> Receipt {
        let timeout = self.ack_timeout;
        let queues: Vec<_> = {
            let inner = self.inner();
            inner.queues.iter().filter(|queue| queue.wants(&message.topic)).cloned().collect()
        };
        if queues.is_empty() {
            let why = format!("nobody in this process subscribes to `{}`", message.topic);
            return Receipt::refused_for_now(why);
        }
        let key = MessageKey { relay, id: message.id };
        let message = Arc::new(message);
        let acks: Vec<_> = queues.iter().map(|queue| queue.push(key, &message)).collect();
        let all = join_all(acks.into_iter().map(|ack| ack.acknowledged()));
        match tokio::time::timeout(timeout, all).await {
            Ok(_) => Receipt::Accepted,
            Err(_) => {
                let slow = queues.iter().filter(|queue| queue.has(key));
                let names: Vec<String> = slow.map(|queue| format!("`{}`", queue.name)).collect();
                if names.is_empty() {
                    // The last one has just acknowledged it.
                    return Receipt::Accepted;
                }
                let why = format!("no acknowledgement of {} within {timeout:?}", names.join(", "));
                Receipt::unavailable(why)
            }
        }
    }
}

impl fmt::Debug for InProcessBroker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let debug = &mut f.debug_struct("InProcessBroker");
        debug.field("ack_timeout", &self.ack_timeout).finish_non_exhaustive()
    }
}

impl Broker for InProcessBroker {
    fn describe(&self) -> String {
        "the broker of this process".to_owned()
    }

    async fn check(&self, _terms: RelayTerms) -> Result<(), BrokerError> {
        check_ack_timeout(self.ack_timeout)
    }

    async fn open(&self, _sender: RelaySender) -> Result<(), BrokerError> {
        Ok(())
    }

    async fn publish(&self, sender: RelaySender, messages: Vec<OutgoingMessage>) -> Vec<Receipt> {
        let publish = |message| self.publish_one(sender.relay, message);
        join_all(messages.into_iter().map(publish)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_time_for_an_acknowledgement_that_cannot_be_waited_for_is_refused() {
        let terms = RelayTerms::of_lease(Duration::from_secs(15));
        InProcessBroker::new().check(terms).await.unwrap();
        for timeout in [Duration::ZERO, ACK_TIMEOUT + Duration::from_millis(1), Duration::MAX] {
            let refused = InProcessBroker::new().ack_timeout(timeout).check(terms).await;
            let why = refused.unwrap_err().to_string();
            assert!(why.contains("at most 30s"), "{why}");
        }
    }
}
