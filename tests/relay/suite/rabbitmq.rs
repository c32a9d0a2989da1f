//! What only RabbitMQ does: it refuses names and headers that its protocol has no room for, closes channels, blocks
//! connections, and rejects what a queue has no room for.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ekbatan::domain::ShardIdentifier;
use ekbatan::relay::{
    Broker, BrokerError, OutgoingMessage, RabbitMqBroker, Receipt, Relay, RelaySender, RelayTerms,
};
use ekbatan_testkit::Proxy;
use futures_util::FutureExt;
use support::{Dialect, until};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use uuid::Uuid;

use crate::scene::{
    RELAY, Scene, assert_in_order, assert_no_repetition, assert_nothing_failed, deposit, message,
    open_wallet, relay,
};
use crate::site::{EXCHANGE, Kind, Limits, RabbitMqSite, SharedBroker, Site};

fn sender() -> RelaySender {
    RelaySender::new(RELAY, ShardIdentifier::DEFAULT, Uuid::nil())
}

/// Counts how often a relay is opened, or tries to be.
#[derive(Clone)]
struct CountsOpenings {
    broker: SharedBroker,
    openings: Arc<AtomicUsize>,
}

impl CountsOpenings {
    fn new(site: &RabbitMqSite, ack_timeout: Duration) -> Self {
        let broker = RabbitMqBroker::new(site.server.url()).exchange(EXCHANGE);
        let broker = SharedBroker::new(broker.ack_timeout(ack_timeout));
        Self { broker, openings: Arc::default() }
    }

    fn relay(&self) -> Relay {
        relay(SharedBroker::new(self.clone()))
    }

    fn openings(&self) -> usize {
        self.openings.load(Ordering::SeqCst)
    }
}

impl Broker for CountsOpenings {
    fn describe(&self) -> String {
        self.broker.describe()
    }

    async fn check(&self, terms: RelayTerms) -> Result<(), BrokerError> {
        self.broker.check(terms).await
    }

    async fn open(&self, sender: RelaySender) -> Result<(), BrokerError> {
        self.openings.fetch_add(1, Ordering::SeqCst);
        self.broker.open(sender).await
    }

    async fn publish(&self, sender: RelaySender, messages: Vec<OutgoingMessage>) -> Vec<Receipt> {
        self.broker.publish(sender, messages).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_header_for_which_there_is_no_room_stops_its_model_only() {
    let scene = Scene::start(Kind::RabbitMq, Dialect::Sqlite).await;
    let long = open_wallet(&scene.executor).await.to_string();
    let large = open_wallet(&scene.executor).await.to_string();
    let (long_name, large_value) = (long.clone(), large.clone());
    let relay = scene.relay().prepare(move |event, message| {
        if event.model_id == long_name {
            message.set_header("n".repeat(256), "value");
        } else if event.model_id == large_value {
            message.set_header("name", "v".repeat(200_000));
        }
        Ok(())
    });
    let _node = scene.node().relay(relay).start().await.unwrap();
    scene.use_wallets(2, 2).await;
    let received = scene.until_received(6).await;
    assert!(received.iter().all(|one| one.key != long && one.key != large));
    until("both are parked", async || {
        let parked = scene.operations().parked(10).await.unwrap();
        let has = |why: &str| {
            let errors = parked.iter().filter_map(|one| one.last_error.as_deref());
            errors.filter(|error| error.contains(why)).count() == 1
        };
        parked.len() == 2 && has("has 256 bytes; RabbitMQ takes 255") && has("the headers have")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exchange_whose_name_is_too_long_keeps_a_node_from_starting() {
    let scene = Scene::start(Kind::InProcess, Dialect::Sqlite).await;
    let broker = RabbitMqBroker::new("amqp://127.0.0.1:1/%2f").exchange("e".repeat(256));
    let started = scene.node().relay(Relay::new(RELAY, broker)).start().await;
    let why = started.err().unwrap().to_string();
    assert!(why.contains("the name of the exchange has 256 bytes; use at most 255"), "{why}");
}

/// A server that is short of memory accepts connections, and reads none of them from their first message on. What it
/// has not read it reads once it has memory again.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_the_server_has_blocked_is_kept_and_nothing_is_sent_meanwhile() {
    let site = Arc::new(RabbitMqSite::start(Limits::default()).await);
    let scene = Scene::at(site.clone(), Dialect::Sqlite).await;
    let broker = CountsOpenings::new(&site, Duration::from_secs(5));
    scene.use_wallets(10, 4).await;
    let set_memory = async |of_all: &str| {
        site.server.control(&["set_vm_memory_high_watermark", of_all]).await.unwrap();
    };
    set_memory("0.00001").await;
    let _node = scene.node().relay(broker.relay()).start().await.unwrap();
    until("it was tried several times", async || broker.openings() >= 3).await;
    let connections = site.server.control(&["list_connections", "name"]).await.unwrap();
    assert_eq!(connections.lines().filter(|line| line.contains("->")).count(), 1, "{connections}");

    set_memory("0.8").await;
    scene.until_done().await;
    let received = scene.until_received(50).await;
    assert_in_order(&received, 10, 5);
    let mut copies: HashMap<Uuid, usize> = HashMap::new();
    for one in received {
        *copies.entry(one.id).or_default() += 1;
    }
    assert!(copies.values().all(|copies| *copies <= 2), "{copies:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_channel_that_is_closed_while_others_are_sent_stops_one_model_only() {
    let limits = Limits { bytes: Some(4_000), ..Limits::default() };
    let scene = Scene::limited(Kind::RabbitMq, Dialect::Sqlite, limits).await;
    let large = open_wallet(&scene.executor).await.to_string();
    scene.use_wallets(255, 0).await;
    let relay = scene.relay().prepare(move |event, message| {
        if event.model_id == large {
            message.payload = format!("\"{}\"", "x".repeat(40_000)).into_bytes();
        }
        Ok(())
    });
    let _node = scene.node().relay(relay).start().await.unwrap();
    scene.until_received(255).await;
    until("the large one is parked", async || {
        scene.operations().parked(10).await.unwrap().len() == 1
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_lets_nothing_be_sent_again_that_goes_to_others() {
    let site = Arc::new(RabbitMqSite::start(Limits::default()).await);
    site.let_nobodys_topic_be_full().await;
    let scene = Scene::at(site.clone(), Dialect::Sqlite).await;
    let broker = CountsOpenings::new(&site, Duration::from_secs(20));
    let full = open_wallet(&scene.executor).await;
    deposit(&scene.executor, full, 1).await;
    let wallets = scene.use_wallets(8, 9).await;
    let (key, topic) = (full.to_string(), site.nobodys_topic());
    let relay = broker.relay().batch(20).prepare(move |event, message| {
        if event.model_id == key {
            message.topic = topic.clone();
        }
        Ok(())
    });
    let _node = scene.node().relay(relay).start().await.unwrap();
    let mut rounds = 0;
    until("it was opened several times", async || {
        rounds += 1;
        for wallet in &wallets {
            deposit(&scene.executor, *wallet, 1).await;
        }
        broker.openings() >= 5
    })
    .await;
    site.end_full_queue().await;
    scene.until_done().await;
    let mut received = site.received().await;
    received.retain(|one| one.key != full.to_string());
    assert_no_repetition(&received);
    assert_in_order(&received, 8, 10 + rounds);
}

/// Nothing is wrong with the events, so a relay that gives an event up after one failure gives none up.
#[tokio::test(flavor = "multi_thread")]
async fn while_the_exchange_is_gone_the_relay_waits_and_counts_no_attempts() {
    let site = Arc::new(RabbitMqSite::start(Limits::default()).await);
    let scene = Scene::at(site.clone(), Dialect::Sqlite).await;
    let broker = CountsOpenings::new(&site, Duration::from_secs(5));
    let wallets = scene.use_wallets(4, 0).await;
    let node = scene.node().relay(broker.relay().max_attempts(1)).start().await.unwrap();
    scene.until_received(4).await;
    scene.until_done().await;
    site.delete_exchange().await;
    for wallet in &wallets {
        deposit(&scene.executor, *wallet, 2).await;
    }
    let before = broker.openings();
    until("it was tried several times", async || broker.openings() >= before + 3).await;
    assert_nothing_failed(&node);
    site.declare_exchange().await;
    scene.until_done().await;
    assert_in_order(&scene.until_received(12).await, 4, 3);
    assert_nothing_failed(&node);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_exchange_is_named_for_every_message() {
    let site = RabbitMqSite::start(Limits::default()).await;
    let broker = RabbitMqBroker::new(site.server.url()).exchange(EXCHANGE);
    broker.open(sender()).await.unwrap();
    site.delete_exchange().await;
    let names_it = |why: &str| {
        why.contains("the exchange `events` cannot be used")
            && why.contains("NOT_FOUND")
            && why.contains("declare it, and bind the queues of its receivers to it")
    };
    for count in [1, 3] {
        let messages = (0..count).map(|_| message(site.topic(), "{}")).collect();
        let receipts = broker.publish(sender(), messages).await;
        assert_eq!(receipts.len(), count);
        for receipt in receipts {
            assert!(
                matches!(&receipt, Receipt::Unavailable { why } if names_it(why)),
                "{receipt:?}"
            );
        }
    }
    let error = broker.open(sender()).await.unwrap_err().to_string();
    assert!(names_it(&error), "{error}");
    site.declare_exchange().await;
    broker.open(sender()).await.unwrap();
    assert_eq!(
        broker.publish(sender(), vec![message(site.topic(), "{}")]).await,
        [Receipt::Accepted]
    );
}

/// Without the right to the exchange nothing can be sent. Without the right to a topic, the messages of others can.
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_right_to_the_exchange_is_the_fault_of_no_message() {
    let site = RabbitMqSite::start(Limits::default()).await;
    let control = async |arguments: &[&str]| site.server.control(arguments).await.unwrap();
    control(&["add_user", "app", "secret"]).await;
    control(&["set_permissions", "app", "", "", ""]).await;
    let broker = RabbitMqBroker::new(site.server.url()).exchange(EXCHANGE).login("app", "secret");
    broker.open(sender()).await.unwrap();
    let says_why = |why: &str| {
        why.contains("the exchange `events` cannot be used")
            && why.contains("access to exchange 'events' in vhost '/' refused for user 'app'")
            && why.contains("give the user the right to write to it")
    };
    for count in [1, 3] {
        let messages = (0..count).map(|_| message(site.topic(), "{}")).collect();
        let receipts = broker.publish(sender(), messages).await;
        assert_eq!(receipts.len(), count);
        for receipt in receipts {
            assert!(
                matches!(&receipt, Receipt::Unavailable { why } if says_why(why)),
                "{receipt:?}"
            );
        }
    }

    control(&["set_permissions", "app", "", EXCHANGE, ""]).await;
    let only = format!("^{}$", site.topic());
    control(&["set_topic_permissions", "app", EXCHANGE, &only, ""]).await;
    let topics = [site.topic(), site.nobodys_topic(), site.topic()];
    let messages = topics.map(|topic| message(topic, "{}")).into();
    let receipts = broker.publish(sender(), messages).await;
    let says_topic = |why: &str| why.contains("ACCESS_REFUSED") && why.contains("access to topic");
    assert!(
        matches!(
            &receipts[..],
            [Receipt::Accepted, Receipt::Refused { why, may_pass: true }, Receipt::Accepted]
                if says_topic(why)
        ),
        "{receipts:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publication_that_is_dropped_takes_its_connection_with_it() {
    let site = RabbitMqSite::start(Limits::default()).await;
    let proxy = Proxy::start(("127.0.0.1", site.server.port())).await.unwrap();
    let broker = RabbitMqBroker::new(proxy.url_for(&site.server.url())).exchange(EXCHANGE);
    broker.open(sender()).await.unwrap();
    assert_eq!(proxy.connections(), 1);
    proxy.stall();
    let mut publishing = Box::pin(broker.publish(sender(), vec![message(site.topic(), "{}")]));
    // It is handed over, and no answer comes.
    assert!((&mut publishing).now_or_never().is_none());
    drop(publishing);

    let next = broker.publish(sender(), vec![message(site.topic(), "{}")]).now_or_never();
    assert!(matches!(next.as_deref(), Some([Receipt::Unavailable { .. }])), "{next:?}");
    proxy.resume();
    until("the connection has ended", async || proxy.connections() == 0).await;
    broker.open(sender()).await.unwrap();
    assert_eq!(
        broker.publish(sender(), vec![message(site.topic(), "{}")]).await,
        [Receipt::Accepted]
    );
    assert_eq!(proxy.connections(), 1);
}

/// The server reads a blocked connection to its end later, so what was handed over is waited for.
#[tokio::test(flavor = "multi_thread")]
async fn a_publication_that_is_dropped_leaves_a_blocked_connection_and_is_waited_for() {
    let site = RabbitMqSite::start(Limits::default()).await;
    let broker = RabbitMqBroker::new(site.server.url()).exchange(EXCHANGE);
    let broker = Arc::new(broker.ack_timeout(Duration::from_secs(30)));
    broker.open(sender()).await.unwrap();
    site.server.control(&["set_vm_memory_high_watermark", "0.00001"]).await.unwrap();
    until("the server is short of memory", async || {
        let alarms = site.server.control(&["eval", "rabbit_alarm:get_alarms()."]).await.unwrap();
        alarms.contains("memory")
    })
    .await;
    let only = message(site.topic(), "{}");
    let id = only.id;
    let publisher = broker.clone();
    let publishing = tokio::spawn(async move { publisher.publish(sender(), vec![only]).await });
    let says_blocked = |why: &str| why.contains("has blocked the connection");
    until("the connection is blocked", async || {
        // It is never sent: its routing key is too long.
        let mut unsendable = message(site.topic(), "{}");
        unsendable.topic = "t".repeat(256);
        let receipts = broker.publish(sender(), vec![unsendable]).await;
        matches!(&receipts[..], [Receipt::Unavailable { why }] if says_blocked(why))
    })
    .await;
    publishing.abort();
    assert!(publishing.await.unwrap_err().is_cancelled());
    let opened = broker.open(sender()).await.map_err(|error| error.to_string());
    assert!(opened.as_ref().is_err_and(|why| says_blocked(why)), "another one was opened");

    site.server.control(&["set_vm_memory_high_watermark", "0.8"]).await.unwrap();
    until("it is open again", async || broker.open(sender()).await.is_ok()).await;
    let received: Vec<Uuid> = site.received().await.iter().map(|one| one.id).collect();
    assert_eq!(received, [id]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_to_connect_that_is_given_up_leaves_no_connection() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (begun, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counts = (begun.clone(), ended.clone());
    let _silent_server = tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            counts.0.fetch_add(1, Ordering::SeqCst);
            let ended = counts.1.clone();
            tokio::spawn(async move {
                let _ = connection.read_to_end(&mut Vec::new()).await;
                ended.fetch_add(1, Ordering::SeqCst);
            });
        }
    });
    let broker = RabbitMqBroker::new(format!("amqp://{address}/%2f"));
    let broker = broker.ack_timeout(Duration::from_millis(100));
    for _ in 0..3 {
        let error = broker.open(sender()).await.unwrap_err().to_string();
        assert!(error.contains("did not answer within 100ms"), "{error}");
    }
    until("all of them have ended", async || {
        begun.load(Ordering::SeqCst) == 3 && ended.load(Ordering::SeqCst) == 3
    })
    .await;
}
