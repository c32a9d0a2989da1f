//! The way of a batch: a relay sends it to a broker under the key of its window, and the consumer gets
//! it from there.

use std::any::Any;
use std::time::Duration;

use ekbatan::prelude::*;
use ekbatan::relay::{
    Broker, EventSelection, InProcessBroker, InProcessSubscription, Relay, UndecodedEvent,
};
use ekbatan_testkit::NatsServer;
use tokio::task::JoinSet;

use crate::Failure;
use crate::emission::{CONSUMER, handle};
#[cfg(feature = "kafka")]
use crate::kafka;
use crate::nats;

/// What brokers call the place of the batches.
pub const TOPIC: &str = "settlement.batches";

/// The pause before a consumer tries again.
pub const PAUSE: Duration = Duration::from_millis(200);

/// Where batches are sent.
#[derive(Debug, Clone, PartialEq)]
pub enum BrokerChoice {
    /// The broker of this process.
    InProcess,
    /// The NATS server at this address, or a private one.
    Nats(Option<String>),
    /// The Kafka cluster at this address, or a private server.
    #[cfg(feature = "kafka")]
    Kafka(Option<String>),
}

impl std::str::FromStr for BrokerChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let given = || Some(text.to_owned()).filter(|text| text.contains("://"));
        match text.split("://").next() {
            Some("in-process") => Ok(Self::InProcess),
            Some("nats") => Ok(Self::Nats(given())),
            #[cfg(feature = "kafka")]
            Some("kafka") => Ok(Self::Kafka(given())),
            #[cfg(not(feature = "kafka"))]
            Some("kafka") => Err("this program was built without Kafka; build it with \
                                  `-p ekbatan-settlement --features kafka`"
                .to_owned()),
            _ => {
                Err("write in-process, nats, kafka, nats://HOST:PORT or kafka://HOST:PORT"
                    .to_owned())
            }
        }
    }
}

/// The consumer behind a broker. It ends when this is dropped.
pub struct Consumer {
    _task: JoinSet<()>,
    /// A private server, which ends with this.
    _server: Option<Box<dyn Any + Send>>,
}

/// Opens the way to a broker: the relay to it, and the consumer behind it.
pub async fn open(
    choice: &BrokerChoice,
    executor: &ActionExecutor,
) -> Result<(Relay, Consumer), Failure> {
    let mut task = JoinSet::new();
    let mut server: Option<Box<dyn Any + Send>> = None;
    let executor = executor.clone();
    let relay = match choice {
        BrokerChoice::InProcess => {
            let broker = InProcessBroker::new();
            // Before the node starts: a message without a subscription would be refused.
            task.spawn(consume(broker.subscribe(CONSUMER, [TOPIC]), executor));
            relay(broker)?
        }
        BrokerChoice::Nats(url) => {
            let url = match url {
                Some(url) => url.clone(),
                None => {
                    let private = NatsServer::start().await?;
                    let url = private.url();
                    server = Some(Box::new(private));
                    url
                }
            };
            task.spawn(nats::consume(url.clone(), executor));
            relay(nats::broker(&url))?
        }
        #[cfg(feature = "kafka")]
        BrokerChoice::Kafka(url) => {
            let url = match url {
                Some(url) => url.clone(),
                None => {
                    let private = ekbatan_testkit::KafkaServer::start().await?;
                    let url = private.url();
                    server = Some(Box::new(private));
                    url
                }
            };
            task.spawn(kafka::consume(url.clone(), executor));
            relay(kafka::broker(&url))?
        }
    };
    Ok((relay, Consumer { _task: task, _server: server }))
}

/// A relay of batches, each under the key of its window.
fn relay(broker: impl Broker) -> Result<Relay, Failure> {
    let relay = Relay::new("str.batches", broker);
    let relay = relay.select(EventSelection::of_events(["OrdersBatched"])).topic(TOPIC)?;
    Ok(relay.retry(Duration::from_millis(100), Duration::from_secs(5)).prepare(
        |event: &UndecodedEvent, message| {
            let payload: serde_json::Value = serde_json::from_str(&event.event)?;
            let key = payload["key"].as_str().ok_or("the event has no key of a window")?;
            message.key = key.to_owned();
            Ok(())
        },
    ))
}

/// Consumes what the broker of this process has.
async fn consume(mut subscription: InProcessSubscription, executor: ActionExecutor) {
    while let Some(message) = subscription.next().await {
        match handle(&executor, &message.id.to_string(), &message.payload).await {
            Ok(()) => message.ack(),
            // It comes again.
            Err(error) => tracing::warn!(%error, "a batch was not emitted"),
        }
    }
}
