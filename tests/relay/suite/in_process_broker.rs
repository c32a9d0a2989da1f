//! What the broker of the process promises to its consumers.

use std::time::Duration;

use ekbatan::relay::{InProcessBroker, Relay};
use support::{Dialect, until};

use crate::scene::{RELAY, SHORT_LEASE, Scene, assert_nothing_failed, deposit, open_wallet};
use crate::site::Kind;

const TOPIC: &str = "ekbatan.com.example.relay.model.Wallet";

async fn scene() -> Scene {
    Scene::start(Kind::InProcess, Dialect::Sqlite).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_sent_again_unless_every_subscription_has_acknowledged_it() {
    let scene = scene().await;
    let first = InProcessBroker::new();
    let (mut one, mut other) = (first.subscribe("one", [TOPIC]), first.subscribe("other", ["*"]));
    let node = scene.node().relay(Relay::new(RELAY, first.clone())).start().await.unwrap();
    open_wallet(&scene.executor).await;
    let message = one.next().await.unwrap();
    let id = message.id;
    message.ack();
    let unacknowledged = other.next().await.unwrap();
    assert_eq!((unacknowledged.id, first.unacknowledged("other")), (id, 1));
    assert_eq!(scene.operations().pending(RELAY).await.unwrap(), 1, "it is in the database");
    // The process ends: what the broker had is gone.
    drop(node);
    drop((unacknowledged, one, other, first));
    let second = InProcessBroker::new();
    let mut one = second.subscribe("one", [TOPIC]);
    let node = scene.node().lease(SHORT_LEASE).relay(Relay::new(RELAY, second));
    let _node = node.start().await.unwrap();
    let again = one.next().await.unwrap();
    assert_eq!(again.id, id);
    again.ack();
    scene.until_done().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_dropped_comes_again_before_later_ones_of_its_model() {
    let scene = scene().await;
    let broker = InProcessBroker::new();
    let mut consumer = broker.subscribe("consumer", [TOPIC]);
    let _node = scene.node().relay(Relay::new(RELAY, broker.clone())).start().await.unwrap();
    let wallet = open_wallet(&scene.executor).await;
    deposit(&scene.executor, wallet, 1).await;
    for attempt in 1..=3 {
        let message = consumer.next().await.unwrap();
        assert_eq!(message.header("ekbatan-model-version"), Some("1"));
        assert_eq!(message.attempt(), attempt);
        if attempt == 3 {
            message.ack();
        }
    }
    let next = consumer.next().await.unwrap();
    assert_eq!(next.header("ekbatan-model-version"), Some("2"));
    next.ack();
    scene.until_done().await;
    assert_eq!(broker.unacknowledged("consumer"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_consumer_has_a_message_once_however_often_it_is_sent() {
    let scene = scene().await;
    let broker = InProcessBroker::new().ack_timeout(Duration::from_millis(50));
    let mut consumer = broker.subscribe("consumer", [TOPIC]);
    let node = scene.node().relay(Relay::new(RELAY, broker.clone())).start().await.unwrap();
    open_wallet(&scene.executor).await;
    let message = consumer.next().await.unwrap();
    // Others do not get it, and it does not fail, however long it takes.
    let mut other = broker.subscribe("consumer", [TOPIC]);
    assert!(tokio::time::timeout(Duration::from_millis(500), other.next()).await.is_err());
    assert_nothing_failed(&node);
    message.ack();
    // If the relay has just given up to wait, it sends the message once more.
    let done = scene.until_done();
    tokio::pin!(done);
    loop {
        tokio::select! {
            () = &mut done => break,
            message = consumer.next() => message.unwrap().ack(),
        }
    }
    assert_eq!(broker.unacknowledged("consumer"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ended_subscription_keeps_no_message_back() {
    let scene = scene().await;
    let broker = InProcessBroker::new();
    let (mut one, mut ended) =
        (broker.subscribe("one", [TOPIC]), broker.subscribe("ended", [TOPIC]));
    let _node = scene.node().relay(Relay::new(RELAY, broker.clone())).start().await.unwrap();
    open_wallet(&scene.executor).await;
    one.next().await.unwrap().ack();
    let held = ended.next().await.unwrap();
    assert!(broker.unsubscribe("ended"));
    scene.until_done().await;
    drop(held);
    assert!(ended.next().await.is_none());
    assert!(!broker.unsubscribe("ended"));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_relay_sends_messages_of_its_own() {
    let scene = scene().await;
    let broker = InProcessBroker::new();
    let mut consumer = broker.subscribe("consumer", ["a.*", "b.*"]);
    let relay = |name, topic| Relay::new(name, broker.clone()).topic(topic).unwrap();
    let node = scene.node().relay(relay("first", "a.{event}")).relay(relay("second", "b.{event}"));
    let node = node.start().await.unwrap();
    let wallet = open_wallet(&scene.executor).await;
    until("both messages are there", async || broker.unacknowledged("consumer") == 2).await;
    let (one, other) = (consumer.next().await.unwrap(), consumer.next().await.unwrap());
    let mut topics = [one.topic.clone(), other.topic.clone()];
    topics.sort();
    assert_eq!(topics, ["a.WalletOpened", "b.WalletOpened"]);
    assert_eq!((one.id, &one.key), (other.id, &wallet.to_string()));
    one.ack();
    assert_eq!(broker.unacknowledged("consumer"), 1);
    other.ack();
    until("both are done", async || {
        node.handlers().iter().all(|of| of.handled == 1 && of.failed == 0)
    })
    .await;
}
