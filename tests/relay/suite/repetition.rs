//! Messages that are sent again: after a kill between the acknowledgement and the mark, by a node that
//! was frozen, and twice to one broker.

use std::time::Duration;

use ekbatan::domain::ShardIdentifier;
use ekbatan::events::Node;
use ekbatan::prelude::*;
use ekbatan::relay::{Broker, BrokerError, OutgoingMessage, Receipt, RelaySender, RelayTerms};
use serde::{Deserialize, Serialize};
use support::worker_process::{self, WorkerProcess};
use support::{Dialect, until};
use tokio::sync::{Mutex, mpsc};

use crate::scene::{
    RELAY, SHORT_LEASE, Scene, assert_in_order, assert_no_repetition, executor, node, open_wallet,
    relay,
};
use crate::site::{Address, Kind, SharedBroker};

on_every_broker! { a_message_that_is_sent_twice_is_accepted_twice }
on_every_broker! { only servers:
    a_process_killed_between_acknowledgement_and_mark_repeats_with_the_same_ids,
    a_frozen_node_that_comes_back_sends_nothing_new,
}

async fn a_message_that_is_sent_twice_is_accepted_twice(kind: Kind) {
    let scene = Scene::start(kind, Dialect::Sqlite).await;
    let broker = scene.site.broker();
    let sender = RelaySender::new(RELAY, ShardIdentifier::DEFAULT, Uuid::now_v7());
    broker.check(RelayTerms::of_lease(Duration::from_secs(15))).await.unwrap();
    broker.open(sender).await.unwrap();
    let topic = scene.site.topic();
    let mut message = OutgoingMessage::new(Uuid::now_v7(), topic, "key", "{}");
    message.set_header("ekbatan-event-id", message.id.to_string());
    for (name, value) in [("model-id", "key"), ("model-version", "1"), ("event-type", "Tested")] {
        message.set_header(format!("ekbatan-{name}"), value);
    }
    for _ in 0..2 {
        let receipts = broker.publish(sender, vec![message.clone()]).await;
        assert_eq!(receipts, [Receipt::Accepted]);
    }
    let received = scene.site.received().await;
    assert!(received.iter().all(|one| one.id == message.id) && !received.is_empty());
    let expected = if kind.drops_repetitions() { 1 } else { 2 };
    assert_eq!(received.len(), expected);
}

/// What a worker process is to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Order {
    database: String,
    broker: Address,
    /// Whether it answers after a message was sent.
    stops: Stops,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
enum Stops {
    /// It never hears of the acknowledgement.
    AfterSending,
    /// It has claimed messages, and sends them once it is thawed.
    BeforeSending,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Report {
    /// It is about to send this many messages.
    Holds(usize),
    /// So many of them are accepted.
    Sent(usize),
}

const ORDER: &str = "EKBATAN_TEST_RELAY_WORKER";

/// The worker process. Without an order this is no test.
#[tokio::test(flavor = "multi_thread")]
async fn relay_worker() {
    let Some(order) = worker_process::order::<Order>(ORDER) else { return };
    let config = ekbatan::config::EkbatanConfig::single(order.database.clone());
    let databases = Databases::connect(&config).await.unwrap();
    let requests = Mutex::new(worker_process::requests());
    let broker = Stopping { broker: order.broker.connect(), stops: order.stops, requests };
    let relay = relay(SharedBroker::new(broker));
    let executor = executor(&databases).await;
    let node = node(&executor).lease(SHORT_LEASE).relay(relay);
    let _node: Node = node.start().await.unwrap();
    std::future::pending::<()>().await;
}

/// Stops a batch at a chosen point.
struct Stopping {
    broker: SharedBroker,
    stops: Stops,
    /// The test asks it to send.
    requests: Mutex<mpsc::UnboundedReceiver<()>>,
}

impl Broker for Stopping {
    fn describe(&self) -> String {
        self.broker.describe()
    }

    fn keeps_order_in_batch(&self) -> bool {
        self.broker.keeps_order_in_batch()
    }

    fn fences(&self) -> bool {
        self.broker.fences()
    }

    async fn check(&self, terms: RelayTerms) -> Result<(), BrokerError> {
        self.broker.check(terms).await
    }

    async fn open(&self, sender: RelaySender) -> Result<(), BrokerError> {
        self.broker.open(sender).await
    }

    async fn publish(&self, sender: RelaySender, messages: Vec<OutgoingMessage>) -> Vec<Receipt> {
        worker_process::report(&Report::Holds(messages.len()));
        if self.stops == Stops::BeforeSending {
            // The test freezes the process here, and thaws it once another node has taken over.
            self.requests.lock().await.recv().await;
        }
        let receipts = self.broker.publish(sender, messages).await;
        // On a busy machine an answer may be late. Then the batch is sent again.
        let accepted = receipts.iter().filter(|receipt| **receipt == Receipt::Accepted).count();
        if self.stops == Stops::AfterSending && accepted == 0 {
            return receipts;
        }
        worker_process::report(&Report::Sent(accepted));
        if self.stops == Stops::AfterSending {
            std::future::pending::<()>().await;
        }
        receipts
    }

    async fn fence(&self, lost: RelaySender) -> Result<(), BrokerError> {
        self.broker.fence(lost).await
    }
}

fn start_worker(scene: &Scene, stops: Stops) -> WorkerProcess<Report> {
    let order =
        Order { database: scene.scratch.config().url.clone(), broker: scene.site.address(), stops };
    WorkerProcess::start("repetition::relay_worker", ORDER, &order, Some)
}

async fn a_process_killed_between_acknowledgement_and_mark_repeats_with_the_same_ids(kind: Kind) {
    let scene = Scene::start(kind, Dialect::Postgres).await;
    scene.use_wallets(4, 4).await;
    let mut worker = start_worker(&scene, Stops::AfterSending);
    let sent = loop {
        if let Report::Sent(sent) = worker.receive().await {
            break sent;
        }
    };
    worker.kill();
    until("what was sent has arrived", async || scene.site.received().await.len() >= sent).await;
    let sent = scene.site.received().await.len();
    let node = scene.node().lease(SHORT_LEASE).relay(scene.relay());
    let _node = node.start().await.unwrap();
    scene.until_done().await;
    let received = scene.until_received(20).await;
    assert_in_order(&received, 4, 5);
    if kind.drops_repetitions() {
        assert_no_repetition(&received);
    } else {
        // What was sent and not marked came again, and nothing else did.
        assert_eq!(received.len(), 20 + sent);
    }
}

async fn a_frozen_node_that_comes_back_sends_nothing_new(kind: Kind) {
    let scene = Scene::start(kind, Dialect::Postgres).await;
    scene.use_wallets(4, 4).await;
    let mut worker = start_worker(&scene, Stops::BeforeSending);
    let Report::Holds(held) = worker.receive().await else { panic!("nothing was sent yet") };
    worker.freeze();
    let node = scene.node().lease(SHORT_LEASE).relay(scene.relay());
    let _node = node.start().await.unwrap();
    scene.until_done().await;
    assert_eq!(scene.until_received(20).await.len(), 20);
    worker.send(&());
    worker.thaw();
    while !matches!(worker.receive().await, Report::Sent(_)) {}
    let wallet = open_wallet(&scene.executor).await.to_string();
    until("a later event has arrived", async || {
        scene.site.received().await.iter().any(|one| one.key == wallet)
    })
    .await;
    let received = scene.site.received().await;
    if kind.fences() || kind.drops_repetitions() {
        assert_no_repetition(&received);
    } else {
        // The server may have closed the connection meanwhile.
        assert!(received.len() <= 21 + held, "{held} were held: {}", received.len());
    }
    assert_in_order(&received[..20], 4, 5);
}
