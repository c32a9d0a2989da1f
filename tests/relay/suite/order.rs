//! The order of each model while the broker fails, is full, or is restarted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use ekbatan::relay::{Broker, BrokerError, OutgoingMessage, Receipt, RelaySender, RelayTerms};
use support::{Dialect, until};

use crate::scene::{Scene, assert_in_order, assert_nothing_failed, deposit, open_wallet, relay};
use crate::site::{Kind, Limits, SharedBroker};

on_every_broker! {
    a_broker_that_is_killed_and_restarted_gets_all_events_in_order,
    errors_of_the_broker_keep_the_order,
}
on_every_broker! { only if it may be full: a_full_broker_gets_the_rest_in_order_once_it_has_room }

async fn a_broker_that_is_killed_and_restarted_gets_all_events_in_order(kind: Kind) {
    let limits = Limits { dies: true, ..Limits::default() };
    let scene = Scene::limited(kind, Dialect::Sqlite, limits).await;
    let node = scene.node().relay(scene.relay()).start().await.unwrap();
    let wallets = scene.use_wallets(8, 4).await;
    for _ in 0..2 {
        scene.site.kill().await;
        for wallet in &wallets {
            deposit(&scene.executor, *wallet, 5).await;
        }
        scene.site.restart().await;
        for wallet in &wallets {
            deposit(&scene.executor, *wallet, 5).await;
        }
    }
    scene.until_done().await;
    assert_nothing_failed(&node);
    assert_in_order(&scene.until_received(8 * 25).await, 8, 25);
}

async fn a_full_broker_gets_the_rest_in_order_once_it_has_room(kind: Kind) {
    let limits = Limits { messages: Some(30), ..Limits::default() };
    let scene = Scene::limited(kind, Dialect::Sqlite, limits).await;
    let node = scene.node().relay(scene.relay()).start().await.unwrap();
    scene.use_wallets(8, 9).await;
    scene.until_received(30).await;
    assert!(scene.operations().pending("wallets").await.unwrap() > 0, "the broker is full");
    scene.site.make_room().await;
    // A receiver makes room by what it takes.
    let received = scene.until_received(80).await;
    scene.until_done().await;
    assert_nothing_failed(&node);
    assert_in_order(&received, 8, 10);
}

/// Fails as brokers do: before and after a message is kept.
struct Failing {
    broker: SharedBroker,
    calls: AtomicU32,
}

impl Broker for Failing {
    fn describe(&self) -> String {
        self.broker.describe()
    }

    fn keeps_order_in_batch(&self) -> bool {
        self.broker.keeps_order_in_batch()
    }

    async fn check(&self, terms: RelayTerms) -> Result<(), BrokerError> {
        self.broker.check(terms).await
    }

    async fn open(&self, sender: RelaySender) -> Result<(), BrokerError> {
        self.broker.open(sender).await
    }

    async fn publish(&self, sender: RelaySender, messages: Vec<OutgoingMessage>) -> Vec<Receipt> {
        let count = messages.len();
        match self.calls.fetch_add(1, Ordering::SeqCst) % 12 {
            0 => vec![Receipt::unavailable("nothing was sent"); count],
            4 => {
                self.broker.publish(sender, messages).await;
                vec![Receipt::unavailable("the answer was lost"); count]
            }
            8 => {
                // The first half is refused for now.
                let mut receipts = vec![Receipt::refused_for_now("not now"); count / 2];
                let rest = messages.into_iter().skip(count / 2).collect();
                receipts.extend(self.broker.publish(sender, rest).await);
                receipts
            }
            _ => self.broker.publish(sender, messages).await,
        }
    }
}

async fn errors_of_the_broker_keep_the_order(kind: Kind) {
    let scene = Scene::start(kind, Dialect::Sqlite).await;
    let failing = Failing { broker: scene.site.broker(), calls: AtomicU32::new(0) };
    // The test speaks for a broker that keeps no order itself.
    let shared = SharedBroker::new(Unordered(Arc::new(failing)));
    let _node = scene.node().relay(relay(shared).batch(16)).start().await.unwrap();
    scene.use_wallets(6, 9).await;
    scene.until_done().await;
    assert_in_order(&scene.until_received(60).await, 6, 10);
    until("nothing is parked", async || scene.operations().parked(1).await.unwrap().is_empty())
        .await;
}

/// A broker whose messages of one key are handed over one after another.
struct Unordered(Arc<Failing>);

impl Broker for Unordered {
    fn describe(&self) -> String {
        self.0.describe()
    }

    async fn check(&self, terms: RelayTerms) -> Result<(), BrokerError> {
        self.0.check(terms).await
    }

    async fn open(&self, sender: RelaySender) -> Result<(), BrokerError> {
        self.0.open(sender).await
    }

    async fn publish(&self, sender: RelaySender, messages: Vec<OutgoingMessage>) -> Vec<Receipt> {
        Broker::publish(&*self.0, sender, messages).await
    }
}

/// As another program may write them.
#[tokio::test(flavor = "multi_thread")]
async fn two_spellings_of_an_id_are_one_model() {
    let scene = Scene::start(Kind::InProcess, Dialect::Sqlite).await;
    let wallet = open_wallet(&scene.executor).await;
    scene.scratch.execute("UPDATE eventlog_events SET model_id = upper(model_id)").await;
    deposit(&scene.executor, wallet, 1).await;
    let fails = AtomicBool::new(true);
    let relay = scene.relay().prepare(move |event, _| {
        if event.model_version == Some(1) && fails.swap(false, Ordering::SeqCst) {
            return Err("not yet".into());
        }
        Ok(())
    });
    let _node = scene.node().relay(relay).start().await.unwrap();
    let received = scene.until_received(2).await;
    assert_eq!(received.iter().map(|one| one.version).collect::<Vec<_>>(), [1, 2]);
}
