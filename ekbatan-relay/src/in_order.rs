//! Hands messages to a broker so that those of one model keep their order.
//!
//! Invariant: a message is handed over only if all messages of its model before it were accepted.

use std::collections::HashSet;
use std::time::Duration;

use ekbatan_events::RelaySender;
use tokio::time::Instant;
use uuid::Uuid;

use crate::OutgoingMessage;
use crate::broker::{AnyBroker, PUBLISH_TIME, Receipt};

/// The time after which the relay gives a batch up. Brokers have shorter ones for their answers.
pub(crate) const TIMEOUT: Duration = PUBLISH_TIME.saturating_mul(2);

/// The time after which the answer to the last messages is not waited for any more: if the relay gave the batch up,
/// the receipts of earlier messages would be lost, too.
const LONGEST_CALL: Duration = TIMEOUT.saturating_sub(Duration::from_secs(3));

/// Sends messages. Those of different models are sent together; of each model one at a time, unless the
/// broker keeps the order itself.
pub(crate) async fn publish(
    broker: &dyn AnyBroker,
    sender: RelaySender,
    messages: Vec<OutgoingMessage>,
) -> Vec<Receipt> {
    if broker.keeps_order_in_batch() {
        let count = messages.len();
        return complete(broker.publish(sender, messages).await, count);
    }
    let begun = Instant::now();
    let end = begun + LONGEST_CALL;
    // The broker may take this long for its answer.
    let until = end - PUBLISH_TIME;
    let mut receipts: Vec<Receipt> = vec![Receipt::NotSent; messages.len()];
    let mut stopped: HashSet<Uuid> = HashSet::new();
    let mut left: Vec<(usize, OutgoingMessage)> = messages.into_iter().enumerate().collect();
    while !left.is_empty() && Instant::now() < until {
        let mut streams = HashSet::new();
        let is_first = |one: &mut (usize, OutgoingMessage)| streams.insert(one.1.stream);
        let (places, wave): (Vec<usize>, Vec<OutgoingMessage>) =
            left.extract_if(.., is_first).unzip();
        let of: Vec<Uuid> = wave.iter().map(|message| message.stream).collect();
        let sent = Instant::now();
        let answer = tokio::time::timeout_at(end, broker.publish(sender, wave)).await;
        let answers = match answer {
            Ok(receipts) => complete(receipts, of.len()),
            Err(_) => {
                let why = format!("no answer within {} s", sent.elapsed().as_secs());
                vec![Receipt::unavailable(why); of.len()]
            }
        };
        let is_away = answers.iter().any(|of| matches!(of, Receipt::Unavailable { .. }));
        for ((place, stream), receipt) in places.into_iter().zip(of).zip(answers) {
            if receipt != Receipt::Accepted {
                stopped.insert(stream);
            }
            if let Some(of_message) = receipts.get_mut(place) {
                *of_message = receipt;
            }
        }
        if is_away {
            break;
        }
        left.retain(|(_, message)| !stopped.contains(&message.stream));
    }
    receipts
}

/// One receipt for each message, also if the broker forgot some.
fn complete(mut receipts: Vec<Receipt>, count: usize) -> Vec<Receipt> {
    receipts.resize(count, Receipt::unavailable("the broker gave no receipt"));
    receipts
}

#[cfg(test)]
mod tests {
    use ekbatan_core::domain::ShardIdentifier;
    use ekbatan_events::RelayTerms;

    use super::*;
    use crate::broker::{Broker, BrokerError};

    /// Accepts everything, after a time that depends on the message.
    struct Slow(fn(&OutgoingMessage) -> Duration);

    impl Broker for Slow {
        fn describe(&self) -> String {
            "slow".to_owned()
        }

        async fn check(&self, _terms: RelayTerms) -> Result<(), BrokerError> {
            Ok(())
        }

        async fn open(&self, _sender: RelaySender) -> Result<(), BrokerError> {
            Ok(())
        }

        async fn publish(&self, _: RelaySender, messages: Vec<OutgoingMessage>) -> Vec<Receipt> {
            tokio::time::sleep(messages.iter().map(self.0).sum()).await;
            vec![Receipt::Accepted; messages.len()]
        }
    }

    /// The receipts of five messages of one model, if they come before the relay drops the call.
    async fn receipts(broker: Slow) -> Vec<Receipt> {
        let message = |id: u128| OutgoingMessage::new(Uuid::from_u128(id), "topic", "key", "{}");
        let messages = (0..5).map(message).collect();
        let sender = RelaySender::new("slow", ShardIdentifier::DEFAULT, Uuid::nil());
        let publishing = publish(&broker, sender, messages);
        tokio::time::timeout(TIMEOUT, publishing).await.unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_slow_broker_has_accepted_is_known_before_the_call_is_dropped() {
        let receipts = receipts(Slow(|_| PUBLISH_TIME * 2 / 3)).await;
        assert_eq!(receipts[..2], [Receipt::Accepted, Receipt::Accepted]);
        assert_eq!(receipts[2..], [Receipt::NotSent, Receipt::NotSent, Receipt::NotSent]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_accepted_is_known_although_the_next_answer_comes_too_late() {
        let time = |message: &OutgoingMessage| match message.id.as_u128() {
            0 => PUBLISH_TIME * 2 / 3,
            _ => PUBLISH_TIME * 2,
        };
        let receipts = receipts(Slow(time)).await;
        assert_eq!(receipts[0], Receipt::Accepted);
        assert!(matches!(receipts[1], Receipt::Unavailable { .. }), "{:?}", receipts[1]);
        assert_eq!(receipts[2..], [Receipt::NotSent, Receipt::NotSent, Receipt::NotSent]);
    }
}
