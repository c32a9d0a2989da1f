//! A relay that is closed and opened again while a round is under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ekbatan::relay::{Broker, BrokerError, OutgoingMessage, Receipt, RelaySender, RelayTerms};
use support::{Dialect, PlainConnection, until};
use tokio::sync::{Mutex, mpsc};

use crate::scene::{Scene, assert_in_order, deposit, open_wallet, relay};
use crate::site::{Kind, SharedBroker};

/// The lock for which a claim of the third version of a model waits.
const HELD_BACK: &str = "\
    CREATE FUNCTION hold_back() RETURNS trigger LANGUAGE plpgsql AS \
        $$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NEW; END $$; \
    CREATE TRIGGER hold_back BEFORE UPDATE ON eventlog.deliveries FOR EACH ROW \
        WHEN (NEW.model_version = 3 AND NEW.state = 'CLAIMED') EXECUTE FUNCTION hold_back()";

/// Sends a batch, or says that the broker is away, as the test tells it.
#[derive(Clone)]
struct Directed {
    broker: SharedBroker,
    begun: Arc<AtomicUsize>,
    opened: Arc<AtomicUsize>,
    /// Once the test tells nothing more, everything is sent.
    directions: Arc<Mutex<mpsc::UnboundedReceiver<Direction>>>,
}

enum Direction {
    Send,
    BeAway,
}

impl Broker for Directed {
    fn describe(&self) -> String {
        self.broker.describe()
    }

    async fn check(&self, terms: RelayTerms) -> Result<(), BrokerError> {
        self.broker.check(terms).await
    }

    async fn open(&self, sender: RelaySender) -> Result<(), BrokerError> {
        self.broker.open(sender).await?;
        self.opened.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    async fn publish(&self, sender: RelaySender, messages: Vec<OutgoingMessage>) -> Vec<Receipt> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        match self.directions.lock().await.recv().await {
            Some(Direction::BeAway) => vec![Receipt::unavailable("away"); messages.len()],
            Some(Direction::Send) | None => self.broker.publish(sender, messages).await,
        }
    }
}

async fn count(database: &mut PlainConnection, from: &str) -> usize {
    database.select(&["count(*)"], from).await[0][0].clone().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_round_claimed_before_the_relay_was_closed_overtakes_nothing() {
    let scene = Scene::start(Kind::InProcess, Dialect::Postgres).await;
    let (direct, directions) = mpsc::unbounded_channel();
    let broker = Directed {
        broker: scene.site.broker(),
        begun: Arc::default(),
        opened: Arc::default(),
        directions: Arc::new(Mutex::new(directions)),
    };
    let relay = relay(SharedBroker::new(broker.clone())).batches(1);
    let _node = scene.node().relay(relay).start().await.unwrap();
    until("the relay is open", async || broker.opened.load(Ordering::SeqCst) == 1).await;

    // The first event is being sent; the second one of the other model waits for that.
    let mut wallets = Vec::new();
    for _ in 0..2 {
        direct.send(Direction::Send).ok().unwrap();
        wallets.push(open_wallet(&scene.executor).await);
        scene.until_received(wallets.len()).await;
    }
    scene.until_done().await;
    deposit(&scene.executor, wallets[0], 1).await;
    until("it is being sent", async || broker.begun.load(Ordering::SeqCst) == 3).await;
    deposit(&scene.executor, wallets[1], 1).await;
    let mut database = scene.scratch.connect().await;
    let claimed = "FROM eventlog.deliveries WHERE state = 'CLAIMED'";
    until("the next one is claimed", async || count(&mut database, claimed).await == 2).await;

    // A round claims the third version, and takes long.
    database.execute(HELD_BACK).await;
    database.execute("SELECT pg_advisory_lock(1)").await;
    deposit(&scene.open_again().await, wallets[1], 1).await;
    let waiting = "FROM pg_locks JOIN pg_database ON pg_database.oid = database \
        WHERE datname = current_database() AND locktype = 'advisory' AND NOT granted";
    until("the third one is being claimed", async || count(&mut database, waiting).await == 1)
        .await;

    // Meanwhile the relay is closed, gives the second one back, and is opened again.
    direct.send(Direction::BeAway).ok().unwrap();
    until("it is open again", async || broker.opened.load(Ordering::SeqCst) == 2).await;
    assert_eq!(count(&mut database, claimed).await, 0, "all that it held is given back");
    drop(direct);
    database.execute("SELECT pg_advisory_unlock(1)").await;
    deposit(&scene.executor, wallets[0], 1).await;
    scene.until_done().await;
    assert_in_order(&scene.until_received(6).await, 2, 3);
}
