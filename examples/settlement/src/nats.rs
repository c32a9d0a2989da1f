//! NATS JetStream as the broker: a stream of batches, and a durable consumer.

use std::time::Duration;

use async_nats::jetstream;
use async_nats::jetstream::consumer::pull;
use ekbatan::prelude::*;
use ekbatan::relay::NatsBroker;
use futures_util::StreamExt;

use crate::Failure;
use crate::broker::PAUSE;
use crate::emission::handle;

const STREAM: &str = "settlement";

pub fn broker(url: &str) -> NatsBroker {
    NatsBroker::new(url, STREAM).create_stream(["settlement.>"])
}

/// Consumes until the task ends. A server that is away is tried again.
pub async fn consume(url: String, executor: ActionExecutor) {
    loop {
        if let Err(error) = consume_once(&url, &executor).await {
            tracing::warn!(%error, "the broker is away; trying again");
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn consume_once(url: &str, executor: &ActionExecutor) -> Result<(), Failure> {
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
            // Without an acknowledgement it comes again.
            Err(error) => tracing::warn!(%error, "a batch was not emitted"),
        }
    }
    Ok(())
}
