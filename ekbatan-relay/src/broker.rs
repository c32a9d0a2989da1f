//! The contract of a broker.

use std::error::Error;
use std::time::Duration;

use async_trait::async_trait;
use ekbatan_events::{RelaySender, RelayTerms};

use crate::OutgoingMessage;

/// The time within which a broker answers a [`publish`](Broker::publish): it begins to send nothing whose answer
/// could come later. The relay may drop a call that takes longer, and what was accepted meanwhile is sent again. A broker
/// that [keeps the order in a batch](Broker::keeps_order_in_batch) has twice this time.
pub const PUBLISH_TIME: Duration = Duration::from_secs(30);

/// Why a broker cannot be used.
pub type BrokerError = Box<dyn Error + Send + Sync>;

/// Refuses a time for which an answer cannot be waited: a call of [`Broker::publish`] returns within
/// [`PUBLISH_TIME`].
pub fn check_ack_timeout(timeout: Duration) -> Result<(), BrokerError> {
    if timeout.is_zero() || timeout > PUBLISH_TIME {
        return Err(format!(
            "`ack_timeout` is {timeout:?}; give more than 0 s and at most {PUBLISH_TIME:?}, such as 10 s"
        )
        .into());
    }
    Ok(())
}

/// Takes messages, and keeps them until their receivers have them.
///
/// A broker acknowledges a message only once it is where it was to go, and would be there after a crash
/// of the broker, as far as the broker can promise that. A message that nobody can get is refused. What
/// is sent twice with one id need not be kept twice.
///
/// Every call may be dropped, and a call never waits for ever.
pub trait Broker: Send + Sync + 'static {
    /// The kind and the address of the broker, for messages. Without a password.
    fn describe(&self) -> String;

    /// Whether the broker itself sees to it that of the messages of one [`publish`](Self::publish) with
    /// one key none is accepted behind one that was not. If not, a message of a model is handed over once
    /// the one before it is acknowledged.
    fn keeps_order_in_batch(&self) -> bool {
        false
    }

    /// Whether [`fence`](Self::fence) keeps a sender from sending.
    fn fences(&self) -> bool {
        false
    }

    /// Called before a node starts: whether the broker answers, and whether its settings fit.
    fn check(&self, terms: RelayTerms) -> impl Future<Output = Result<(), BrokerError>> + Send;

    /// Called before a node starts: whether a message can have this topic at all. It is the topic of the relay with
    /// words in the places of [`Relay::topic`](crate::Relay::topic).
    fn check_topic(&self, topic: &str) -> Result<(), BrokerError> {
        let _ = topic;
        Ok(())
    }

    /// Called before messages are sent as this sender, and again after [`Receipt::Unavailable`]. Nothing
    /// that was handed over before may be sent afterwards.
    fn open(&self, sender: RelaySender) -> impl Future<Output = Result<(), BrokerError>> + Send;

    /// Sends messages. The answer has one receipt for each, in the same order. What cannot be answered within
    /// [`PUBLISH_TIME`] is [not sent](Receipt::NotSent).
    fn publish(
        &self,
        sender: RelaySender,
        messages: Vec<OutgoingMessage>,
    ) -> impl Future<Output = Vec<Receipt>> + Send;

    /// Keeps a sender that is lost from sending anything more.
    fn fence(&self, lost: RelaySender) -> impl Future<Output = Result<(), BrokerError>> + Send {
        let _ = lost;
        async { Ok(()) }
    }
}

/// What a broker answered to a message.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Receipt {
    /// It is kept, or was kept before.
    Accepted,
    /// It is not kept.
    Refused {
        /// The cause.
        why: String,
        /// Whether it may be accepted later.
        may_pass: bool,
    },
    /// No answer came, or the broker takes nothing at present.
    Unavailable {
        /// The cause.
        why: String,
    },
    /// It was not sent, because another one of the call was not accepted, or for lack of time.
    NotSent,
}

impl Receipt {
    /// The broker did not answer, or takes nothing at present.
    pub fn unavailable(why: impl ToString) -> Self {
        Self::Unavailable { why: why.to_string() }
    }

    /// The message can never be accepted.
    pub fn refused(why: impl ToString) -> Self {
        Self::Refused { why: why.to_string(), may_pass: false }
    }

    /// The message may be accepted later.
    pub fn refused_for_now(why: impl ToString) -> Self {
        Self::Refused { why: why.to_string(), may_pass: true }
    }
}

/// A broker without its type.
#[async_trait]
pub(crate) trait AnyBroker: Send + Sync {
    fn keeps_order_in_batch(&self) -> bool;
    fn fences(&self) -> bool;
    fn describe(&self) -> String;
    async fn check(&self, terms: RelayTerms) -> Result<(), BrokerError>;
    fn check_topic(&self, topic: &str) -> Result<(), BrokerError>;
    async fn open(&self, sender: RelaySender) -> Result<(), BrokerError>;
    async fn publish(&self, sender: RelaySender, messages: Vec<OutgoingMessage>) -> Vec<Receipt>;
    async fn fence(&self, lost: RelaySender) -> Result<(), BrokerError>;
}

#[async_trait]
impl<B: Broker> AnyBroker for B {
    fn keeps_order_in_batch(&self) -> bool {
        Broker::keeps_order_in_batch(self)
    }

    fn fences(&self) -> bool {
        Broker::fences(self)
    }

    fn describe(&self) -> String {
        Broker::describe(self)
    }

    async fn check(&self, terms: RelayTerms) -> Result<(), BrokerError> {
        Broker::check(self, terms).await
    }

    fn check_topic(&self, topic: &str) -> Result<(), BrokerError> {
        Broker::check_topic(self, topic)
    }

    async fn open(&self, sender: RelaySender) -> Result<(), BrokerError> {
        Broker::open(self, sender).await
    }

    async fn publish(&self, sender: RelaySender, messages: Vec<OutgoingMessage>) -> Vec<Receipt> {
        Broker::publish(self, sender, messages).await
    }

    async fn fence(&self, lost: RelaySender) -> Result<(), BrokerError> {
        Broker::fence(self, lost).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_waited_for_as_long_as_a_call_may_take_at_most() {
        for possible in [Duration::from_millis(1), PUBLISH_TIME] {
            check_ack_timeout(possible).unwrap();
        }
        for impossible in [Duration::ZERO, PUBLISH_TIME + Duration::from_millis(1), Duration::MAX] {
            let why = check_ack_timeout(impossible).unwrap_err().to_string();
            assert!(why.contains("at most 30s, such as 10 s"), "{why}");
        }
    }
}
