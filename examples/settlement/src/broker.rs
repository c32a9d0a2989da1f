//! The way of a batch: a relay sends it to a broker under the key of its window, and the consumer gets
//! it from there.

use std::time::Duration;

use async_nats::jetstream;
use async_nats::jetstream::consumer::pull;
use ekbatan::prelude::*;
use ekbatan::relay::{
    Broker, EventSelection, InProcessBroker, InProcessSubscription, NatsBroker, Relay,
    UndecodedEvent,
};
use ekbatan_testkit::NatsServer;
use futures_util::StreamExt;
use tokio::task::JoinSet;

use crate::Failure;
use crate::emission::{CONSUMER, handle};

const TOPIC: &str = "settlement.batches";
const STREAM: &str = "settlement";

/// Where batches are sent.
#[derive(Debug, Clone, PartialEq)]
pub enum BrokerChoice {
    /// The broker of this process.
    InProcess,
    /// A private NATS server.
    PrivateNats,
    /// The NATS server at this address.
    Nats(String),
}

impl std::str::FromStr for BrokerChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "in-process" => Ok(Self::InProcess),
            "nats" => Ok(Self::PrivateNats),
            url if url.starts_with("nats://") => Ok(Self::Nats(url.to_owned())),
            _ => Err("write in-process, nats or nats://HOST:PORT".to_owned()),
        }
    }
}

/// The consumer behind a broker. It ends when this is dropped.
pub struct Consumer {
    _task: JoinSet<()>,
    /// The private server, which ends with this.
    _server: Option<NatsServer>,
}

/// Opens the way to a broker: the relay to it, and the consumer behind it.
pub async fn open(
    choice: &BrokerChoice,
    executor: &ActionExecutor,
) -> Result<(Relay, Consumer), Failure> {
    let (mut task, mut server) = (JoinSet::new(), None);
    let relay = match choice {
        BrokerChoice::InProcess => {
            let broker = InProcessBroker::new();
            // Before the node starts: a message without a subscription would be refused.
            let subscription = broker.subscribe(CONSUMER, [TOPIC]);
            task.spawn(consume_in_process(subscription, executor.clone()));
            relay(broker)?
        }
        BrokerChoice::PrivateNats | BrokerChoice::Nats(_) => {
            let url = match choice {
                BrokerChoice::Nats(url) => url.clone(),
                _ => server.insert(NatsServer::start().await?).url(),
            };
            task.spawn(consume_nats(url.clone(), executor.clone()));
            relay(NatsBroker::new(url, STREAM).create_stream(["settlement.>"]))?
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

async fn consume_in_process(mut subscription: InProcessSubscription, executor: ActionExecutor) {
    while let Some(message) = subscription.next().await {
        match handle(&executor, &message.id.to_string(), &message.payload).await {
            Ok(()) => message.ack(),
            // It comes again.
            Err(error) => tracing::warn!(%error, "a batch was not emitted"),
        }
    }
}

/// Consumes until the task ends. A server that is away is tried again.
async fn consume_nats(url: String, executor: ActionExecutor) {
    loop {
        if let Err(error) = consume_nats_once(&url, &executor).await {
            tracing::warn!(%error, "the broker is away; trying again");
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn consume_nats_once(
    url: &str,
    executor: &ActionExecutor,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let client = async_nats::connect(url).await?;
    let stream = jetstream::new(client).get_stream(STREAM).await?;
    let config = pull::Config {
        durable_name: Some("emission".to_owned()),
        ack_wait: Duration::from_secs(10),
        ..pull::Config::default()
    };
    let consumer = stream.get_or_create_consumer("emission", config).await?;
    let mut messages = consumer.messages().await?;
    while let Some(message) = messages.next().await {
        let message = message?;
        let headers = message.headers.as_ref();
        let id = headers.and_then(|headers| headers.get("Nats-Msg-Id"));
        let id = id.ok_or("a message has no id")?.as_str().to_owned();
        match handle(executor, &id, &message.payload).await {
            Ok(()) => message.ack().await?,
            Err(error) => tracing::warn!(%error, "a batch was not emitted"),
        }
    }
    Ok(())
}
