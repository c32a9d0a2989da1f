//! What only Kafka can do: topics that are missing, and producers whose id was taken over.

use std::time::Duration;

use ekbatan::domain::ShardIdentifier;
use ekbatan::prelude::*;
use ekbatan::relay::{Broker, KafkaBroker, OutgoingMessage, Receipt, Relay, RelaySender};
use support::{Dialect, until};

use crate::scene::{RELAY, Scene, assert_no_repetition};
use crate::site::{Kind, Limits};

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
