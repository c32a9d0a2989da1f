//! What only Kafka can do: topics that are missing, producers whose id was taken over, and limits of its client.

use std::time::Duration;

use ekbatan::domain::ShardIdentifier;
use ekbatan::prelude::*;
use ekbatan::relay::{Broker, KafkaBroker, OutgoingMessage, Receipt, Relay, RelaySender};
use support::{Dialect, until};

use crate::scene::{RELAY, Scene, assert_no_repetition, message};
use crate::site::{Address, Kind, Limits};

/// Each of them costs the client the time for an answer. All of them together would take longer than a batch
/// may.
#[tokio::test(flavor = "multi_thread")]
async fn models_whose_topic_is_missing_keep_no_others_waiting() {
    const MISSING: usize = 40;
    let scene = Scene::start(Kind::Kafka, Dialect::Sqlite).await;
    let (missing, topic) = (scene.use_wallets(MISSING, 1).await, scene.site.nobodys_topic());
    let missing: Vec<String> = missing.iter().map(Id::to_string).collect();
    scene.use_wallets(2, 4).await;
    let relay = scene.relay().prepare(move |event, message| {
        if missing.contains(&event.model_id) {
            message.topic = topic.clone();
        }
        Ok(())
    });
    let _node = scene.node().relay(relay).start().await.unwrap();
    let received = scene.until_received(2 * 5).await;
    until("each model of the missing topic is refused", async || {
        let failing = scene.operations().failing(2 * MISSING).await.unwrap();
        failing.len() == MISSING && failing.iter().all(|one| one.model_version == 1)
    })
    .await;
    scene.site.receive_nobodys_topic().await;
    scene.until_done().await;
    assert_no_repetition(&received);
    assert_no_repetition(&scene.until_received(2 * 5 + MISSING * 2).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_producer_whose_id_was_taken_over_is_opened_again() {
    let site = Kind::Kafka.site(Limits::default()).await;
    let (broker, other) = (site.broker(), site.broker());
    let sender = RelaySender::new(RELAY, ShardIdentifier::DEFAULT, Uuid::now_v7());
    let send = async || {
        let topic = site.topic();
        let message = OutgoingMessage::new(Uuid::now_v7(), topic, "key", "{}");
        broker.publish(sender, vec![message]).await.remove(0)
    };
    broker.open(sender).await.unwrap();
    assert_eq!(send().await, Receipt::Accepted);
    // The cluster does the same to a producer that was silent during a transaction.
    other.fence(sender).await.unwrap();
    assert!(matches!(send().await, Receipt::Unavailable { .. }));
    assert!(matches!(send().await, Receipt::Unavailable { .. }), "it was not opened again");
    broker.open(sender).await.unwrap();
    assert_eq!(send().await, Receipt::Accepted);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_time_for_an_answer_that_cannot_be_waited_for_is_refused() {
    let scene = Scene::start(Kind::InProcess, Dialect::Sqlite).await;
    // After a minute a batch is given up, and what the broker has learnt from it.
    for timeout in [Duration::ZERO, Duration::from_secs(60), Duration::MAX] {
        let broker = KafkaBroker::new("kafka://127.0.0.1:1").ack_timeout(timeout);
        let started = scene.node().relay(Relay::new(RELAY, broker)).start().await;
        let why = started.err().unwrap().to_string();
        assert!(why.contains("`ack_timeout`") && why.contains("at most 30s"), "{why}");
    }
}

/// A message of this size.
fn message_of(bytes: usize, topic: &str) -> OutgoingMessage {
    let mut message = message(topic, "");
    let quotes = 2;
    let text = "x".repeat(bytes - message.size() - quotes);
    message.payload = format!("\"{text}\"").into_bytes();
    assert_eq!(message.size(), bytes);
    message
}

/// The client has limits of its own, for a message, for what it sends together, and for what it holds.
#[tokio::test(flavor = "multi_thread")]
async fn the_relay_sends_messages_of_every_size_that_its_limit_allows() {
    const GREATEST: usize = 33 << 20;
    let limits = Limits { bytes: Some(GREATEST), ..Limits::default() };
    let site = Kind::Kafka.site(limits).await;
    let Address::Kafka(url) = site.address() else { unreachable!("it is Kafka") };
    let broker = || KafkaBroker::new(&url).ack_timeout(Duration::from_secs(30));
    let usual = 1_048_588 - 512;
    let mut sent = Vec::new();
    for (limit, broker) in [
        (500, broker().most_bytes(500)),
        (16_000, broker().most_bytes(16_000)),
        (usual, broker()),
        (GREATEST, broker().most_bytes(GREATEST)),
    ] {
        let sender = RelaySender::new(RELAY, ShardIdentifier::DEFAULT, Uuid::now_v7());
        broker.open(sender).await.unwrap_or_else(|error| panic!("{limit}: {error}"));
        for bytes in [400, limit] {
            let message = message_of(bytes, &site.topic());
            sent.push(message.id);
            let receipts = broker.publish(sender, vec![message]).await;
            assert_eq!(receipts, [Receipt::Accepted], "{bytes} of {limit}");
        }
        let too_large = message_of(limit + 1, &site.topic());
        let receipts = broker.publish(sender, vec![too_large]).await;
        assert!(
            matches!(receipts[..], [Receipt::Refused { may_pass: false, .. }]),
            "{limit}: {receipts:?}"
        );
    }
    until("all of them have arrived", async || {
        let received: Vec<Uuid> = site.received().await.iter().map(|one| one.id).collect();
        received == sent
    })
    .await;
}
