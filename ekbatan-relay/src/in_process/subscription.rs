//! What a consumer has: the messages of its subscription, one after another.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use super::queue::{MessageKey, Popped, Queue};
use crate::OutgoingMessage;

/// The pause before a message is delivered again that was not acknowledged. It doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// The longest of these pauses.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Gets the messages of a name. Several consumers of one name share them.
pub struct InProcessSubscription {
    queue: Arc<Queue>,
}

/// A message that a consumer has. If it is dropped without [`ack`](Self::ack), the message is delivered
/// again.
///
/// Dereferences to the message.
pub struct InProcessMessage {
    key: MessageKey,
    message: Arc<OutgoingMessage>,
    queue: Arc<Queue>,
    attempt: u32,
    is_done: bool,
}

impl InProcessSubscription {
    pub(super) fn new(queue: Arc<Queue>) -> Self {
        Self { queue }
    }

    /// Waits for the next message. `None` once the broker has ended the subscription. May be dropped:
    /// no message is lost.
    pub async fn next(&mut self) -> Option<InProcessMessage> {
        let Popped { key, message, attempt } = self.queue.pop().await?;
        Some(InProcessMessage { key, message, queue: self.queue.clone(), attempt, is_done: false })
    }
}

impl InProcessMessage {
    /// How often the subscription had the message since the process began, this time included.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Says that the message is handled, and never needs to come again.
    pub fn ack(mut self) {
        self.is_done = true;
        self.queue.acknowledge(self.key);
    }
}

impl Deref for InProcessMessage {
    type Target = OutgoingMessage;

    fn deref(&self) -> &OutgoingMessage {
        &self.message
    }
}

impl Drop for InProcessMessage {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        let doubled = 2_u32.saturating_pow(self.attempt.saturating_sub(1).min(16));
        let pause = FIRST_PAUSE.saturating_mul(doubled).min(LONGEST_PAUSE);
        let puts_back = PutsBack { queue: self.queue.clone(), key: self.key };
        // Without a runtime, the message comes again at once.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                tokio::time::sleep(pause).await;
                drop(puts_back);
            });
        }
    }
}

/// Puts a message back when it is dropped. So the message is put back, too, if the runtime of its consumer ends during
/// the pause.
struct PutsBack {
    queue: Arc<Queue>,
    key: MessageKey,
}

impl Drop for PutsBack {
    fn drop(&mut self) {
        self.queue.put_back(self.key);
    }
}

impl std::fmt::Debug for InProcessSubscription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InProcessSubscription")
            .field("name", &self.queue.name)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for InProcessMessage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InProcessMessage")
            .field("message", &self.message)
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_message_comes_again_although_the_runtime_of_its_consumer_has_ended() {
        let queue = Arc::new(Queue::new("consumer".to_owned()));
        let message = Arc::new(OutgoingMessage::new(Uuid::nil(), "topic", "key", "{}"));
        let _ack = queue.push(MessageKey { relay: "relay", id: message.id }, &message);
        let mut subscription = InProcessSubscription::new(queue);
        for attempt in 1..=2 {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
            let runtime = runtime.unwrap();
            let message = runtime.block_on(async { subscription.next().now_or_never() });
            let message = message.flatten().expect("the message is put back");
            assert_eq!(message.attempt(), attempt);
            // The runtime ends before the pause does.
            runtime.block_on(async { drop(message) });
        }
        let message = subscription.next().now_or_never().flatten().unwrap();
        // There is no runtime.
        drop(message);
        assert_eq!(subscription.next().now_or_never().flatten().unwrap().attempt(), 4);
    }
}
