//! Kafka as the broker: a topic of batches, and a group of consumers. The batches of one window are in one
//! partition.

use std::time::Duration;

use ekbatan::prelude::*;
use ekbatan::relay::{KafkaBroker, header};
use krafka::Kafka;
use krafka::admin::{CreateTopicsOptions, NewTopic};
use krafka::consumer::{AutoOffsetReset, IsolationLevel};
use krafka::error::{ErrorCode, KrafkaError};

use crate::Failure;
use crate::broker::{PAUSE, TOPIC};
use crate::emission::{CONSUMER, handle};

const PARTITIONS: i32 = 4;
const REPLICAS: i16 = 1;

pub fn broker(url: &str) -> KafkaBroker {
    KafkaBroker::new(url)
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
    let address = url.strip_prefix("kafka://").unwrap_or(url);
    let kafka = Kafka::builder(address).connect().await?;
    create_topic(&kafka).await?;
    let consumer = kafka.consumer(CONSUMER);
    let consumer = consumer.auto_offset_reset(AutoOffsetReset::Earliest);
    // What a node has sent that was fenced is never seen.
    let consumer = consumer.isolation_level(IsolationLevel::ReadCommitted);
    let consumer = consumer.enable_auto_commit(false).build().await?;
    consumer.subscribe([TOPIC]).await?;
    loop {
        let records = consumer.poll(Duration::from_millis(500)).await?;
        for record in &records {
            let id = record.headers.iter().find(|(name, _)| **name == *header::EVENT_ID);
            let id = id.and_then(|(_, value)| value.as_deref()).ok_or("a message has no id")?;
            let id = std::str::from_utf8(id)?;
            let payload = record.value.as_deref().unwrap_or_default();
            // Later ones of the partition wait: their offsets would say that this one is done, too.
            while let Err(error) = handle(executor, id, payload).await {
                tracing::warn!(%error, "a batch was not emitted");
                tokio::time::sleep(PAUSE).await;
            }
        }
        if !records.is_empty() {
            consumer.commit().await?;
        }
    }
}

/// A group that subscribes to a topic before it exists may get its partitions only minutes later.
async fn create_topic(kafka: &Kafka) -> Result<(), Failure> {
    let topic = NewTopic::new(TOPIC, PARTITIONS, REPLICAS)?;
    let created = kafka.admin().create_topics([topic], CreateTopicsOptions::default()).await?;
    for created in created.into_values() {
        match created {
            Err(KrafkaError::Broker { code: ErrorCode::TopicAlreadyExists, .. }) => {}
            other => other?,
        }
    }
    Ok(())
}
