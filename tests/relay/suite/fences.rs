//! Several relays of one node, and a lost node that is kept from sending before others take over.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use ekbatan::domain::ShardIdentifier;
use ekbatan::events::Node;
use ekbatan::relay::{
    Broker, BrokerError, EventSelection, OutgoingMessage, Receipt, Relay, RelaySender, RelayTerms,
};
use support::{Dialect, until};
use tokio::sync::Notify;

use crate::scene::{SHORT_LEASE, Scene, assert_in_order, assert_no_repetition, node, open_wallet};
use crate::site::{Kind, SharedBroker};

on_every_broker! { two_relays_of_a_node_send_side_by_side }

async fn two_relays_of_a_node_send_side_by_side(kind: Kind) {
    let scene = Scene::start(kind, Dialect::Sqlite).await;
    // A stream of NATS would drop what both of them send.
    let opened = EventSelection::of_events(["WalletOpened"]);
    let deposited = EventSelection::of_events(["WalletMoneyDeposited"]);
    let opened = Relay::new("opened", scene.site.broker()).select(opened);
    let deposited = Relay::new("deposited", scene.site.broker()).select(deposited);
    let node = scene.node().relay(opened).relay(deposited).start().await.unwrap();
    for round in 1..=5 {
        scene.use_wallets(2, 2).await;
        let received = scene.until_received(round * 6).await;
        assert_no_repetition(&received);
    }
    until("both have sent", async || {
        let handled: Vec<_> = node.handlers().iter().map(|of| (of.name, of.handled)).collect();
        handled == [("opened", 10), ("deposited", 20)]
    })
    .await;
}

/// Never answers to a message, and fences, or does not answer to that either.
#[derive(Clone)]
struct Fencing {
    broker: Option<SharedBroker>,
    answers: bool,
    begun: Arc<Mutex<usize>>,
    fenced: Arc<Mutex<BTreeSet<&'static str>>>,
}

impl Fencing {
    fn new(broker: Option<SharedBroker>, answers: bool) -> Self {
        Self { broker, answers, begun: Arc::default(), fenced: Arc::default() }
    }
}

impl Broker for Fencing {
    fn describe(&self) -> String {
        "a broker that fences".to_owned()
    }

    fn fences(&self) -> bool {
        true
    }

    async fn check(&self, _terms: RelayTerms) -> Result<(), BrokerError> {
        Ok(())
    }

    async fn open(&self, _sender: RelaySender) -> Result<(), BrokerError> {
        Ok(())
    }

    async fn publish(&self, sender: RelaySender, messages: Vec<OutgoingMessage>) -> Vec<Receipt> {
        *self.begun.lock().unwrap() += messages.len();
        match &self.broker {
            Some(broker) => broker.publish(sender, messages).await,
            None => std::future::pending().await,
        }
    }

    async fn fence(&self, lost: RelaySender) -> Result<(), BrokerError> {
        assert_eq!(lost.shard, ShardIdentifier::DEFAULT);
        if !self.answers {
            return std::future::pending().await;
        }
        self.fenced.lock().unwrap().insert(lost.relay);
        Ok(())
    }
}

fn relay(name: &str, broker: &Fencing) -> Relay {
    Relay::new(name, SharedBroker::new(broker.clone()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_does_not_fence_keeps_no_other_relay_waiting() {
    let scene = Scene::start(Kind::InProcess, Dialect::Sqlite).await;
    let silent = Fencing::new(None, false);
    let lost = scene.node().relay(relay("first", &silent)).relay(relay("second", &silent));
    let lost = lost.start().await.unwrap();
    open_wallet(&scene.executor).await;
    until("both are sending it", async || *silent.begun.lock().unwrap() == 2).await;
    drop(lost);

    let sending = Fencing::new(Some(scene.site.broker()), true);
    let other = scene.open_again().await;
    let node = node(&other).lease(SHORT_LEASE).relay(relay("first", &silent));
    let _node = node.relay(relay("second", &sending)).start().await.unwrap();
    assert_in_order(&scene.until_received(1).await, 1, 1);
    assert_eq!(*silent.begun.lock().unwrap(), 2, "the lost node may still send the other one");
}

/// The lost node may have run another version of the program.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_node_is_fenced_under_all_names_of_relays() {
    let scene = Scene::start(Kind::InProcess, Dialect::Sqlite).await;
    let silent = Fencing::new(None, true);
    let lost = scene.node().relay(relay("earlier", &silent).alias("first")).start().await.unwrap();
    open_wallet(&scene.executor).await;
    until("it is being sent", async || *silent.begun.lock().unwrap() == 1).await;
    drop(lost);

    let sending = Fencing::new(Some(scene.site.broker()), true);
    let later = relay("later", &sending).alias("earlier");
    let other = scene.open_again().await;
    let _node = node(&other).lease(SHORT_LEASE).relay(later).start().await.unwrap();
    assert_in_order(&scene.until_received(1).await, 1, 1);
    assert_eq!(*sending.fenced.lock().unwrap(), BTreeSet::from(["earlier", "later"]));
}

/// Fences at the first request only, once the test lets it, or panics at it.
#[derive(Clone)]
struct FencesOnce {
    broker: SharedBroker,
    panics: bool,
    requests: Arc<AtomicUsize>,
    answer: Arc<Notify>,
}

impl Broker for FencesOnce {
    fn describe(&self) -> String {
        self.broker.describe()
    }

    fn fences(&self) -> bool {
        true
    }

    async fn check(&self, terms: RelayTerms) -> Result<(), BrokerError> {
        self.broker.check(terms).await
    }

    async fn open(&self, sender: RelaySender) -> Result<(), BrokerError> {
        self.broker.open(sender).await
    }

    async fn publish(&self, sender: RelaySender, messages: Vec<OutgoingMessage>) -> Vec<Receipt> {
        self.broker.publish(sender, messages).await
    }

    async fn fence(&self, _lost: RelaySender) -> Result<(), BrokerError> {
        let is_first = self.requests.fetch_add(1, Ordering::SeqCst) == 0;
        match (self.panics, is_first) {
            (true, true) => panic!("a broker with a defect"),
            (true, false) => {}
            (false, true) => self.answer.notified().await,
            (false, false) => std::future::pending().await,
        }
        Ok(())
    }
}

/// A node that was lost while it sent an event, and one that fences it by this broker.
async fn takes_over(panics: bool) -> (Scene, FencesOnce, Node) {
    let scene = Scene::start(Kind::InProcess, Dialect::Sqlite).await;
    let silent = Fencing::new(None, true);
    let lost = scene.node().relay(relay("first", &silent)).start().await.unwrap();
    open_wallet(&scene.executor).await;
    until("it is being sent", async || *silent.begun.lock().unwrap() == 1).await;
    drop(lost);
    let (requests, answer) = (Arc::default(), Arc::default());
    let fencing = FencesOnce { broker: scene.site.broker(), panics, requests, answer };
    let relay = Relay::new("first", SharedBroker::new(fencing.clone()));
    let node = node(&scene.open_again().await).lease(SHORT_LEASE).relay(relay);
    let node = node.start().await.unwrap();
    until("it is fenced", async || fencing.requests.load(Ordering::SeqCst) > 0).await;
    (scene, fencing, node)
}

/// The version of the only node that renews its row.
async fn renewals(scene: &Scene) -> i64 {
    let nodes = scene.scratch.eventlog("nodes");
    let rows = scene.scratch.select(&["max(version)"], &format!("FROM {nodes}")).await;
    rows[0][0].as_deref().unwrap_or("0").parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_that_takes_longer_than_a_heartbeat_goes_on() {
    let (scene, fencing, _node) = takes_over(false).await;
    let began = renewals(&scene).await;
    until("several heartbeats", async || renewals(&scene).await >= began + 3).await;
    assert_eq!(fencing.requests.load(Ordering::SeqCst), 1, "it was not begun anew");
    fencing.answer.notify_one();
    assert_in_order(&scene.until_received(1).await, 1, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_that_panics_is_tried_again() {
    let (scene, fencing, _node) = takes_over(true).await;
    assert_in_order(&scene.until_received(1).await, 1, 1);
    assert!(fencing.requests.load(Ordering::SeqCst) >= 2);
}
