//! Wallets in a database, and nodes with a relay.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use ekbatan::events::{DeliveryOperations, Node, NodeBuilder};
use ekbatan::prelude::*;
use ekbatan::relay::Relay;
#[cfg(any(feature = "rabbitmq", feature = "kafka"))]
use ekbatan::relay::{OutgoingMessage, header};
use futures_util::future::join_all;
use support::wallet::{self, Deposit, DepositMoney, OpenWallet, Opening, Wallet};
use support::{Dialect, ScratchDatabase, until};

use crate::site::{Kind, Limits, Received, SharedBroker, Site};

pub const RELAY: &str = "wallets";

/// The lease of nodes that others soon miss. Elsewhere a heartbeat that comes late must not look like a death.
pub const SHORT_LEASE: Duration = Duration::from_secs(1);

/// A database with wallets, and a broker.
pub struct Scene {
    pub databases: Databases,
    pub executor: ActionExecutor,
    pub scratch: ScratchDatabase,
    pub site: Arc<dyn Site>,
}

impl Scene {
    pub async fn start(kind: Kind, dialect: Dialect) -> Self {
        Self::limited(kind, dialect, Limits::default()).await
    }

    pub async fn limited(kind: Kind, dialect: Dialect, limits: Limits) -> Self {
        Self::at(kind.site(limits).await, dialect).await
    }

    pub async fn at(site: Arc<dyn Site>, dialect: Dialect) -> Self {
        let scratch = ScratchDatabase::create(dialect).await;
        let databases = Databases::connect(&scratch.config().into()).await.unwrap();
        databases.migrate(&wallet::migrations()).await.unwrap();
        let executor = executor(&databases).await;
        Self { databases, executor, scratch, site }
    }

    /// The same database, as another process opens it.
    pub async fn open_again(&self) -> ActionExecutor {
        let databases = Databases::connect(&self.scratch.config().into()).await.unwrap();
        executor(&databases).await
    }

    pub fn relay(&self) -> Relay {
        relay(self.site.broker())
    }

    pub fn node(&self) -> NodeBuilder {
        node(&self.executor)
    }

    pub fn operations(&self) -> DeliveryOperations {
        DeliveryOperations::new(&self.databases, &self.databases.shards().next().unwrap())
    }

    /// Opens wallets, and deposits into each so often, all at a time.
    pub async fn use_wallets(&self, wallets: usize, deposits: usize) -> Vec<Id<Wallet>> {
        join_all((0..wallets).map(|_| async {
            let wallet = open_wallet(&self.executor).await;
            deposit(&self.executor, wallet, deposits).await;
            wallet
        }))
        .await
    }

    /// Waits until receivers have got so many different events.
    pub async fn until_received(&self, count: usize) -> Vec<Received> {
        until("the events have arrived", async || ids(&self.site.received().await) >= count).await;
        self.site.received().await
    }

    /// Waits until every event is done.
    pub async fn until_done(&self) {
        until("every event is done", async || self.operations().pending(RELAY).await.unwrap() == 0)
            .await;
    }
}

pub async fn executor(databases: &Databases) -> ActionExecutor {
    let builder = ActionExecutor::builder(databases, "com.example.relay");
    builder.model::<Wallet>().build().await.unwrap()
}

/// A node that finds what others commit soon.
pub fn node(executor: &ActionExecutor) -> NodeBuilder {
    Node::builder(executor).poll(Duration::from_millis(1), Duration::from_millis(50))
}

pub fn relay(broker: SharedBroker) -> Relay {
    Relay::new(RELAY, broker).retry(Duration::from_millis(10), Duration::from_millis(100))
}

pub async fn open_wallet(executor: &ActionExecutor) -> Id<Wallet> {
    let opening = Opening { owner: "alice".to_owned(), currency: "EUR".to_owned() };
    executor.execute(&OpenWallet, opening).await.unwrap().id
}

pub async fn deposit(executor: &ActionExecutor, wallet: Id<Wallet>, times: usize) {
    for _ in 0..times {
        let deposit = Deposit { wallet, amount: Decimal::ONE };
        executor.execute(&DepositMoney, deposit).await.unwrap();
    }
}

/// A message of a model of its own, with what a receiver expects.
#[cfg(any(feature = "rabbitmq", feature = "kafka"))]
pub fn message(topic: impl Into<String>, payload: &str) -> OutgoingMessage {
    let (id, model) = (Uuid::now_v7(), Uuid::now_v7().to_string());
    let mut message = OutgoingMessage::new(id, topic, &model, payload);
    message.set_header(header::EVENT_ID, id.to_string());
    message.set_header(header::EVENT_TYPE, "Opened");
    message.set_header(header::MODEL_ID, model);
    message.set_header(header::MODEL_VERSION, "1");
    message
}

/// How many different events were received.
fn ids(received: &[Received]) -> usize {
    received.iter().map(|one| one.id).collect::<HashSet<_>>().len()
}

/// Asserts that no event has failed, not even once. Of an event that is done, the database does not show it.
pub fn assert_nothing_failed(node: &Node) {
    let failed: Vec<_> = node.handlers().iter().map(|of| (of.name, of.failed)).collect();
    assert_eq!(failed, [(RELAY, 0)]);
}

/// The versions of each model, in the order in which each arrived for the first time.
pub fn first_versions(received: &[Received]) -> BTreeMap<String, Vec<i64>> {
    let mut seen = HashSet::new();
    let mut versions: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for one in received.iter().filter(|one| seen.insert(one.id)) {
        versions.entry(one.key.clone()).or_default().push(one.version);
    }
    versions
}

/// Asserts that each model's events have arrived, all of them and in their order, apart from
/// repetitions.
pub fn assert_in_order(received: &[Received], models: usize, versions: i64) {
    let found = first_versions(received);
    assert_eq!(found.len(), models, "{found:?}");
    for (model, found) in found {
        assert_eq!(found, (1..=versions).collect::<Vec<_>>(), "{model}");
    }
}

/// Asserts that no event has arrived twice.
pub fn assert_no_repetition(received: &[Received]) {
    assert_eq!(ids(received), received.len());
}
