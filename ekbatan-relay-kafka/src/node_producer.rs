//! The producer of a relay of one node on one shard.
//!
//! Invariants:
//! - A transaction has the messages of one batch. Either all of them can be read, or none.
//! - After an error that leaves the outcome open, a producer sends nothing more.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ekbatan_relay::OutgoingMessage;
use futures_util::future::join_all;
use krafka::producer::{TransactionState, TransactionalProducer};
use krafka::{KrafkaError, Record};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::answers;
use crate::error::KafkaError;
use crate::missing_topics::MissingTopics;
use crate::settings::Settings;

/// How much more than its bytes the client may count for a message.
const ROOM: usize = 64 << 10;

/// How many bytes the client keeps for messages that are not acknowledged yet, at least.
const BUFFER: usize = 32 << 20;

/// The producer of a relay of a node.
pub(crate) struct NodeProducer {
    producer: Mutex<TransactionalProducer>,
    pub(crate) missing_topics: MissingTopics,
    /// How long a transaction may take, with its commit or abort. The client limits each part of it by itself.
    longest: Duration,
    is_over: AtomicBool,
}

/// What became of a transaction.
pub(crate) enum Outcome {
    /// All messages can be read.
    Committed,
    /// No message can be read, because of one of them.
    Refused(KrafkaError),
    /// Nothing is known, or the cluster takes nothing.
    Unknown(String),
}

impl NodeProducer {
    /// Takes a transactional id over. The producer that had it before can send nothing more.
    pub(crate) async fn open(settings: &Settings, id: &str) -> Result<Self, KafkaError> {
        let timeout = settings.ack_timeout;
        // The relay itself refuses messages that are too large. The client counts more for each.
        let most = settings.most_bytes.saturating_add(ROOM);
        let opening = async {
            let kafka = settings.connect().await?;
            let producer = kafka
                .producer()
                .delivery_timeout(timeout)
                // Also limits how long the client repeats a commit or an abort without an answer.
                .max_block(timeout)
                .linger(Duration::ZERO)
                .max_request_size(most)
                .buffer_memory(most.max(BUFFER))
                // Longer than a transaction may take.
                .transaction_timeout(timeout.saturating_mul(3))
                .build_transactional(id)
                .await?;
            Ok::<_, KafkaError>((producer, MissingTopics::new(kafka.admin(), timeout)))
        };
        let longest = timeout.saturating_mul(2);
        let (producer, missing_topics) = match tokio::time::timeout(longest, opening).await {
            Ok(opened) => opened?,
            Err(_) => return Err(KafkaError::Silent(longest)),
        };
        let producer = Mutex::new(producer);
        Ok(Self { producer, missing_topics, longest, is_over: AtomicBool::new(false) })
    }

    pub(crate) fn is_usable(&self) -> bool {
        !self.is_over.load(Ordering::SeqCst)
    }

    /// Ends the producer.
    pub(crate) async fn close(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        if let Err(error) = self.producer.lock().await.close().await {
            tracing::debug!(%error, "a producer of Kafka did not end well");
        }
    }

    /// Sends messages in one transaction, and waits for its end until `end`.
    pub(crate) async fn send(&self, messages: &[&OutgoingMessage], end: Instant) -> Outcome {
        if messages.is_empty() {
            return Outcome::Committed;
        }
        let producer = self.producer.lock().await;
        if !self.is_usable() {
            return Outcome::Unknown("the producer is over".to_owned());
        }
        // If this is dropped, nothing is known of the transaction.
        let guard = OverUnlessEnded { producer: self, has_ended: false };
        let end = end.min(Instant::now() + self.longest);
        let silent = |_| Err(Failure::Cluster(KrafkaError::timeout("the end of a transaction")));
        let transaction = tokio::time::timeout_at(end, transact(&producer, messages));
        let outcome = transaction.await.unwrap_or_else(silent);
        guard.end(&outcome);
        match outcome {
            Ok(()) => Outcome::Committed,
            Err(Failure::Record(error)) => Outcome::Refused(error),
            Err(Failure::Cluster(error)) => Outcome::Unknown(error.to_string()),
        }
    }
}

enum Failure {
    /// One of the messages is the cause, and the transaction is aborted.
    Record(KrafkaError),
    Cluster(KrafkaError),
}

/// Lets a producer send nothing more, unless a transaction ends as it should.
struct OverUnlessEnded<'p> {
    producer: &'p NodeProducer,
    has_ended: bool,
}

impl OverUnlessEnded<'_> {
    fn end(mut self, outcome: &Result<(), Failure>) {
        self.has_ended = !matches!(outcome, Err(Failure::Cluster(_)));
    }
}

impl Drop for OverUnlessEnded<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.producer.is_over.store(true, Ordering::SeqCst);
        }
    }
}

async fn transact(
    producer: &TransactionalProducer,
    messages: &[&OutgoingMessage],
) -> Result<(), Failure> {
    producer.begin().map_err(Failure::Cluster)?;
    if let Err(error) = write(producer, messages).await {
        let is_of_record = answers::is_of_record(&error);
        return match producer.abort().await {
            Ok(()) if is_of_record => Err(Failure::Record(error)),
            _ => Err(Failure::Cluster(error)),
        };
    }
    commit(producer).await
}

/// Writes the messages, in their order. The cluster knows the order of a partition by the numbers that an
/// idempotent producer gives.
async fn write(
    producer: &TransactionalProducer,
    messages: &[&OutgoingMessage],
) -> Result<(), KrafkaError> {
    let mut handles = Vec::with_capacity(messages.len());
    let mut refused = None;
    for message in messages {
        match producer.enqueue(record(message)).await {
            Ok(handle) => handles.push(handle),
            Err(error) => {
                refused = Some(error);
                break;
            }
        }
    }
    let written = join_all(handles).await;
    // What a message says comes before what follows from it for the transaction.
    let mut errors = written.into_iter().filter_map(Result::err).chain(refused).peekable();
    let Some(first) = errors.peek().cloned() else { return Ok(()) };
    Err(errors.find(answers::is_of_record).unwrap_or(first))
}

/// Commits. If no attempt was answered, the cluster may have committed.
async fn commit(producer: &TransactionalProducer) -> Result<(), Failure> {
    let Err(error) = producer.commit().await else { return Ok(()) };
    if producer.state() != TransactionState::CommitUnknown {
        // An abort is safe: it is not committed.
        let _ = producer.abort().await;
    }
    Err(Failure::Cluster(error))
}

fn record(message: &OutgoingMessage) -> Record {
    let record = Record::new(message.topic.as_str(), message.payload.clone());
    let record = record.key(message.key.clone());
    message.headers().fold(record, |record, (name, value)| record.header(name, value.to_owned()))
}
