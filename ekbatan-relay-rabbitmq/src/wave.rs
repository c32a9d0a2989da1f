//! Messages that are sent together on a channel of their own, and what the server answers.
//!
//! Invariant: a wave that ends without an answer to all of its messages, for example because it is dropped, ends its
//! connection, or is waited for. So the client sends nothing more of it once the relay is opened again. What the
//! socket had taken may still reach the server, as a repetition with the same id.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ekbatan_relay::{OutgoingMessage, Receipt, header};
use futures_util::future::join_all;
use lapin::message::BasicReturnMessage;
use lapin::options::BasicPublishOptions;
use lapin::protocol::AMQPSoftError;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Confirmation, ErrorKind, PublisherConfirm};
use tokio::runtime::Handle;

use crate::connection::RabbitMqConnection;
use crate::error::{RabbitMqError, is_soft};

/// The message outlives a restart of the server.
const PERSISTENT: u8 = 2;

/// The longest name: of a routing key, of a header, of an exchange.
pub(crate) const LONGEST_NAME: usize = 255;

/// How many bytes the headers have at most. They stand in one frame, of 128 KiB unless the server is
/// configured otherwise, beside the other properties.
const MOST_HEADER_BYTES: usize = 100 * 1024;

/// What became of a wave.
pub(crate) enum WaveOutcome {
    /// Every message has its receipt.
    All(Vec<Receipt>),
    /// The server closed the channel because of one of the messages.
    Closed(lapin::Error),
    /// The connection is lost, no answer came, or the exchange cannot be used. Nothing is wrong with the messages.
    Unavailable(String),
}

/// The messages of a wave that were handed to the client, and the channel that carries them.
pub(crate) struct Wave {
    connection: Arc<RabbitMqConnection>,
    channel: Channel,
    confirms: Vec<PublisherConfirm>,
    /// Whether the server may get a message of it, or answer to one.
    is_under_way: bool,
}

impl Wave {
    /// A wave on a channel that carries nothing else.
    pub(crate) fn new(connection: Arc<RabbitMqConnection>, channel: Channel) -> Self {
        Self { connection, channel, confirms: Vec::new(), is_under_way: false }
    }

    /// Sends messages, and waits for the confirmations of all of them.
    pub(crate) async fn send(
        mut self,
        exchange: &str,
        messages: &[OutgoingMessage],
        timeout: Duration,
    ) -> WaveOutcome {
        self.is_under_way = true;
        match tokio::time::timeout(timeout, self.publish(exchange, messages)).await {
            Ok(Ok(confirmations)) => {
                self.is_under_way = false;
                self.connection.give_back(self.channel.clone());
                WaveOutcome::All(receipts(messages, confirmations))
            }
            Ok(Err(error)) if error.is_amqp_soft_error() => {
                // The server has closed the channel. It ignores what still comes on it.
                self.is_under_way = false;
                outcome_of_close(exchange, error)
            }
            Ok(Err(error)) => self.give_up(error.to_string()).await,
            Err(_) => self.give_up(format!("no confirmation within {timeout:.0?}")).await,
        }
    }

    /// Ends the connection, and lets the server say that it has read everything. What is left to do is done
    /// when the wave is dropped.
    async fn give_up(self, why: String) -> WaveOutcome {
        if !self.connection.is_blocked() {
            self.connection.end().await;
        }
        WaveOutcome::Unavailable(why)
    }

    async fn publish(
        &mut self,
        exchange: &str,
        messages: &[OutgoingMessage],
    ) -> lapin::Result<Vec<Confirmation>> {
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let mut errors = Vec::new();
        for message in messages {
            let publishing = self.channel.basic_publish(
                exchange.into(),
                message.topic.as_str().into(),
                options,
                &message.payload,
                properties(message),
            );
            match publishing.await {
                Ok(confirm) => self.confirms.push(confirm),
                Err(error) => {
                    errors.push(error);
                    break;
                }
            }
        }
        let mut confirmations = Vec::with_capacity(messages.len());
        for confirmed in join_all(&mut self.confirms).await {
            match confirmed {
                Ok(confirmation) => confirmations.push(confirmation),
                Err(error) => errors.push(error),
            }
        }
        // If the server has closed the channel because of a message, the confirmations say so. The client says of
        // the messages behind it only that the channel is closed.
        match errors.iter().find(|error| error.is_amqp_soft_error()).or(errors.first()) {
            None => Ok(confirmations),
            Some(error) => Err(error.clone()),
        }
    }
}

impl Drop for Wave {
    /// Ends the connection if an answer is missing, so that the client sends nothing more. One that the
    /// server has blocked stays: after the alarm the server reads every blocked connection to its end, so a new one
    /// for each attempt would deliver one copy for each attempt.
    fn drop(&mut self) {
        if !self.is_under_way {
            return;
        }
        match Handle::try_current() {
            Ok(runtime) if self.connection.is_blocked() => {
                let confirms = std::mem::take(&mut self.confirms);
                self.connection.confirms_later(&runtime, confirmed(self.channel.clone(), confirms));
            }
            _ => self.connection.end_now(),
        }
    }
}

/// Waits until the server has answered to every message that was handed to the client, or the channel is
/// over.
async fn confirmed(channel: Channel, confirms: Vec<PublisherConfirm>) {
    join_all(confirms).await;
    // The client had one whose sending was interrupted.
    let _ = channel.wait_for_confirms().await;
}

fn properties(message: &OutgoingMessage) -> BasicProperties {
    let mut headers = FieldTable::default();
    for (name, value) in message.headers() {
        headers.insert(name.into(), AMQPValue::LongString(value.into()));
    }
    let properties = BasicProperties::default()
        .with_message_id(message.id.to_string().into())
        .with_delivery_mode(PERSISTENT)
        .with_headers(headers);
    match message.header(header::CONTENT_TYPE) {
        Some(content_type) if content_type.len() <= LONGEST_NAME => {
            properties.with_content_type(content_type.into())
        }
        _ => properties,
    }
}

/// Why a message cannot be sent, whatever the server says.
pub(crate) fn fault(message: &OutgoingMessage, most_bytes: usize) -> Option<Receipt> {
    if message.payload.len() > most_bytes {
        let bytes = message.payload.len();
        let why = format!("the message has {bytes} bytes, and this relay sends {most_bytes}");
        return Some(Receipt::refused(why));
    }
    if message.topic.len() > LONGEST_NAME {
        let bytes = message.topic.len();
        return Some(Receipt::refused(format!(
            "the routing key has {bytes} bytes; RabbitMQ takes {LONGEST_NAME}"
        )));
    }
    if let Some((name, _)) = message.headers().find(|(name, _)| name.len() > LONGEST_NAME) {
        let (bytes, begin) = (name.len(), name.get(..32).unwrap_or(name));
        return Some(Receipt::refused(format!(
            "the name of the header `{begin}..` has {bytes} bytes; RabbitMQ takes {LONGEST_NAME}"
        )));
    }
    let bytes: usize = message.headers().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > MOST_HEADER_BYTES {
        return Some(Receipt::refused(format!(
            "the headers have {bytes} bytes; this relay sends {MOST_HEADER_BYTES}"
        )));
    }
    None
}

/// The receipts of messages whose confirmations have all come. A message that nobody can get is confirmed,
/// and returned. The return belongs to the message with its id, whichever confirmation carries it.
fn receipts(messages: &[OutgoingMessage], confirmations: Vec<Confirmation>) -> Vec<Receipt> {
    let are_kept: Vec<bool> = confirmations.iter().map(Confirmation::is_ack).collect();
    let returned = confirmations.into_iter().filter_map(Confirmation::take_message);
    let returned = returned.filter_map(|message| Some((id_of(&message)?, why_of(&message))));
    judge(messages, &are_kept, &returned.collect())
}

/// `returned`: why each message was returned, by its id.
fn judge(
    messages: &[OutgoingMessage],
    are_kept: &[bool],
    returned: &HashMap<String, String>,
) -> Vec<Receipt> {
    let receipt = |(message, is_kept): (&OutgoingMessage, &bool)| {
        match (returned.get(&message.id.to_string()), is_kept) {
            (Some(why), _) => Receipt::refused_for_now(why),
            (None, true) => Receipt::Accepted,
            // The queue is full and rejects, or the server failed to store it.
            (None, false) => {
                Receipt::unavailable("the server refused it (nack): a queue is full, or failed")
            }
        }
    };
    messages.iter().zip(are_kept).map(receipt).collect()
}

fn id_of(message: &BasicReturnMessage) -> Option<String> {
    message.properties.message_id().as_ref().map(ShortString::to_string)
}

fn why_of(message: &BasicReturnMessage) -> String {
    format!(
        "no queue gets it ({}): nothing is bound to the exchange `{}` for `{}`",
        message.reply_text, message.exchange, message.routing_key
    )
}

/// What the end of a channel says of the messages that it carried. All of them go to one exchange, so one that is
/// missing, or that the user may not write to, is the fault of none of them.
fn outcome_of_close(exchange: &str, source: lapin::Error) -> WaveOutcome {
    let is_of_exchange = is_soft(&source, AMQPSoftError::NOTFOUND)
        || (is_soft(&source, AMQPSoftError::ACCESSREFUSED) && !names_topic(&source));
    if is_of_exchange {
        return WaveOutcome::Unavailable(RabbitMqError::of_exchange(exchange, source).to_string());
    }
    WaveOutcome::Closed(source)
}

/// Whether the user may write to the exchange, but not with the topic of a message: the server refuses
/// `access to topic 'TOPIC' in exchange 'EXCHANGE'`, and otherwise `access to exchange 'EXCHANGE'`.
fn names_topic(error: &lapin::Error) -> bool {
    let ErrorKind::ProtocolError(error) = error.kind() else { return false };
    let refused = error.get_message().as_str().split_once("access to ");
    refused.is_some_and(|(_, what)| what.starts_with("topic "))
}

/// What the end of a channel says of the only message that it carried.
pub(crate) fn receipt_of_close(error: &lapin::Error) -> Receipt {
    if is_soft(error, AMQPSoftError::PRECONDITIONFAILED) {
        Receipt::refused(error)
    } else {
        Receipt::refused_for_now(error)
    }
}

#[cfg(test)]
mod tests {
    use lapin::protocol::AMQPError;

    use super::*;

    #[test]
    fn a_returned_message_is_refused_although_it_is_confirmed() {
        let message = |id: u128| {
            OutgoingMessage::new(uuid::Uuid::from_u128(id), "topic", id.to_string(), "{}")
        };
        let messages = [message(1), message(2), message(3)];
        // The client attaches a return to any confirmation: only the id tells whose it is.
        let returned = HashMap::from([(messages[1].id.to_string(), "NO_ROUTE".to_owned())]);
        let receipts = judge(&messages, &[true, true, false], &returned);
        assert_eq!(receipts[..2], [Receipt::Accepted, Receipt::refused_for_now("NO_ROUTE")]);
        assert!(matches!(receipts[2], Receipt::Unavailable { .. }), "a queue is full");
    }

    #[test]
    fn an_exchange_that_cannot_be_used_is_the_fault_of_no_message() {
        let closed = |code: AMQPSoftError, text: &str| {
            let error = AMQPError::new(code.into(), text.into());
            outcome_of_close("events", ErrorKind::ProtocolError(error).into())
        };
        for (code, text, advice) in [
            (AMQPSoftError::NOTFOUND, "NOT_FOUND - no exchange 'events'", "declare it"),
            (
                AMQPSoftError::ACCESSREFUSED,
                "ACCESS_REFUSED - access to exchange 'access to topic 't' in exchange' in vhost '/' refused",
                "give the user the right to write to it",
            ),
        ] {
            let WaveOutcome::Unavailable(why) = closed(code, text) else { panic!("{text}") };
            assert!(why.contains("the exchange `events` cannot be used"), "{why}");
            assert!(why.contains(text) && why.contains(advice), "{why}");
        }
        for (code, text) in [
            (AMQPSoftError::PRECONDITIONFAILED, "PRECONDITION_FAILED - message size"),
            (
                AMQPSoftError::ACCESSREFUSED,
                "ACCESS_REFUSED - write access to topic 't' in exchange 'events' in vhost '/' refused",
            ),
        ] {
            assert!(matches!(closed(code, text), WaveOutcome::Closed(_)), "{text}");
        }
    }

    #[test]
    fn what_the_server_would_close_the_channel_for_is_not_sent() {
        let id = uuid::Uuid::nil();
        let large = OutgoingMessage::new(id, "topic", "key", "x".repeat(11));
        assert!(matches!(fault(&large, 10), Some(Receipt::Refused { may_pass: false, .. })));
        assert!(fault(&large, 11).is_none());
        let long = OutgoingMessage::new(id, "t".repeat(256), "key", "{}");
        assert!(matches!(fault(&long, 10), Some(Receipt::Refused { may_pass: false, .. })));
        for (name, value) in [(256, 1), (1, MOST_HEADER_BYTES)] {
            let mut message = OutgoingMessage::new(id, "topic", "key", "{}");
            message.set_header("n".repeat(name), "v".repeat(value));
            assert!(matches!(fault(&message, 10), Some(Receipt::Refused { may_pass: false, .. })));
        }
        let mut message = OutgoingMessage::new(id, "topic", "key", "{}");
        message.set_header("n".repeat(255), "v".repeat(MOST_HEADER_BYTES - 255));
        assert!(fault(&message, 10).is_none());
        properties(&message);
    }
}
