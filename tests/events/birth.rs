//! Deliveries that a commit inserts as claimed by the node of its process: their handlers need no
//! look at the database, and whatever happens in between, they keep their order.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ekbatan::domain::LockKey;
use ekbatan::events::{HandlerOptions, Node, NodeBuilder};
use ekbatan::prelude::*;
use ekbatan_testkit::Proxy;
use futures_util::FutureExt;
use futures_util::future::join_all;
use support::wallet::{Deposit, DepositMoney, Wallet};
use support::{Dialect, until};
use tokio::sync::Semaphore;

use crate::scene::{Ledger, Mail, Scene, deposit, node, open_wallet, post};

on_every_database! {
    an_event_is_handled_although_no_node_looks_for_it,
    what_a_handler_commits_is_handled_although_no_node_looks_for_it,
    what_a_node_has_no_room_for_is_handled_by_another,
    what_is_committed_during_a_pause_has_no_owner,
    what_is_committed_during_a_drain_has_no_owner_when_it_ends,
    events_that_rely_on_one_that_fails_wait_for_it,
    a_lost_identity_keeps_the_order_of_what_is_being_committed,
    calls_that_are_dropped_or_refused_leave_nothing_behind,
    calls_that_commit_together_keep_the_order,
}

pub const NEVER: Duration = Duration::from_secs(60 * 60);

/// A node that looks for events when it starts, and then not during the test.
pub fn node_that_does_not_look(executor: &ActionExecutor) -> NodeBuilder {
    Node::builder(executor).poll(NEVER, NEVER).lease(NEVER)
}

/// A handler that only counts.
fn counting() -> Mail {
    Mail::new(|_, _| async { Ok(()) }.boxed())
}

fn quick() -> HandlerOptions {
    HandlerOptions::default().retry(Duration::from_millis(1), Duration::from_millis(5))
}

/// The versions of deliveries when they are deleted. Each claim raises the version.
struct Deleted<'s>(&'s Scene);

impl<'s> Deleted<'s> {
    async fn watch(scene: &'s Scene) -> Self {
        let deliveries = scene.scratch.eventlog("deliveries");
        let insert = "INSERT INTO deleted (handler, version) VALUES (OLD.handler, OLD.version)";
        let trigger = match scene.scratch.dialect {
            Dialect::Sqlite => format!(
                "CREATE TRIGGER deleted_delivery AFTER DELETE ON {deliveries} BEGIN {insert}; END"
            ),
            Dialect::Postgres => format!(
                "CREATE FUNCTION deleted_delivery() RETURNS trigger LANGUAGE plpgsql AS \
                 $$ BEGIN {insert}; RETURN NULL; END $$; \
                 CREATE TRIGGER deleted_delivery AFTER DELETE ON {deliveries} \
                 FOR EACH ROW EXECUTE FUNCTION deleted_delivery()"
            ),
            Dialect::MySql | Dialect::MariaDb => {
                let (log, _) = deliveries.rsplit_once('.').unwrap();
                let test = log.strip_suffix("_log").unwrap();
                let insert = insert.replace("INTO deleted", &format!("INTO {test}.deleted"));
                format!(
                    "CREATE TRIGGER {log}.deleted_delivery AFTER DELETE ON {deliveries} \
                     FOR EACH ROW {insert}"
                )
            }
        };
        let table = "CREATE TABLE deleted (handler varchar(64) NOT NULL, version bigint NOT NULL)";
        scene.scratch.execute(table).await;
        scene.scratch.execute(&trigger).await;
        Self(scene)
    }

    /// How many of a handler's deliveries were deleted as they had been inserted, and all.
    async fn count(&self, handler: &str) -> (usize, usize) {
        let from = format!("FROM deleted WHERE handler = '{handler}'");
        let rows = self.0.scratch.select(&["version"], &from).await;
        let unclaimed = rows.iter().filter(|row| row[0].as_deref() == Some("1")).count();
        (unclaimed, rows.len())
    }
}

/// The states of all deliveries.
async fn states(scene: &Scene) -> HashMap<String, usize> {
    let from = format!("FROM {}", scene.scratch.eventlog("deliveries"));
    let mut states = HashMap::new();
    for row in scene.scratch.select(&["state"], &from).await {
        *states.entry(row[0].clone().unwrap()).or_default() += 1;
    }
    states
}

async fn an_event_is_handled_although_no_node_looks_for_it(scene: &Scene) {
    let deleted = Deleted::watch(scene).await;
    let options = HandlerOptions::unordered();
    let builder = node_that_does_not_look(&scene.executor).handler(Ledger::posting());
    let node = builder.handler_with(counting(), options).start().await.unwrap();
    let wallets = join_all((0..8).map(|_| scene.open_wallet())).await;
    for version in 2..=12 {
        join_all(wallets.iter().map(|wallet| scene.deposit(*wallet, 1))).await;
        until("they are handled", async || {
            node.handlers().iter().all(|handler| handler.handled == 8 * version)
        })
        .await;
    }
    for wallet in wallets {
        assert_eq!(scene.posted(wallet).await, (1..=12).collect::<Vec<i64>>());
    }
    for handler in ["ledger.post", "mail.send"] {
        until("they are deleted", async || deleted.count(handler).await == (96, 96)).await;
    }
}

async fn what_a_handler_commits_is_handled_although_no_node_looks_for_it(scene: &Scene) {
    let ledger = Ledger::new(|ctx, event| {
        async move {
            if event.model_version == Some(4) {
                return post(ctx, event).await;
            }
            let wallet = event.model_id.parse()?;
            Ok(ctx
                .finish(&DepositMoney, Deposit { wallet, amount: Decimal::ONE })
                .await
                .map(drop)?)
        }
        .boxed()
    });
    let seen = ledger.seen();
    let node = node_that_does_not_look(&scene.executor).handler(ledger).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    until("the last one is handled", async || node.handlers()[0].handled == 4).await;
    let versions: Vec<i64> = seen.lock().unwrap().iter().map(|seen| seen.version).collect();
    assert_eq!(versions, [1, 2, 3, 4]);
    assert_eq!(scene.posted(wallet).await, [4]);
}

async fn what_a_node_has_no_room_for_is_handled_by_another(scene: &Scene) {
    let closed = Arc::new(Semaphore::new(0));
    let opened = closed.clone();
    let stuck = Ledger::new(move |ctx, event| {
        let opened = opened.clone();
        async move {
            let _opened = opened.acquire().await?;
            post(ctx, event).await
        }
        .boxed()
    });
    let options = HandlerOptions::default().concurrency(1);
    let full = node_that_does_not_look(&scene.executor).handler_with(stuck, options);
    let full = full.start().await.unwrap();
    for _ in 0..20 {
        join_all((0..10).map(|_| scene.open_wallet())).await;
    }
    assert!(states(scene).await["CLAIMED"] >= 64);
    let other = scene.open_again().await;
    let _other = node(&other).handler(Ledger::posting()).start().await.unwrap();
    // The first look of the full node may have found as many once more as it has room for.
    scene.until_posted(200 - 2 * 64).await;
    assert_eq!(full.handlers()[0].handled, 0);
    closed.add_permits(200);
    scene.until_posted(200).await;
    scene.until_handled("ledger.post").await;
    assert_eq!(scene.entries().count().await.unwrap(), 200);
}

async fn what_is_committed_during_a_pause_has_no_owner(scene: &Scene) {
    let deleted = Deleted::watch(scene).await;
    let node = scene.node().handler(Ledger::posting()).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    scene.until_handled("ledger.post").await;
    until("the node knows", async || node.handlers()[0].handled > 0).await;
    // A busy machine may have released and claimed the first one once more.
    let (before, _) = deleted.count("ledger.post").await;
    assert!(node.pause("ledger.post"));
    scene.deposit(wallet, 3).await;
    let other = scene.open_wallet().await;
    assert!(node.resume("ledger.post"));
    scene.until_handled("ledger.post").await;
    assert_eq!(scene.posted(wallet).await, [1, 2, 3, 4]);
    assert_eq!(scene.posted(other).await, [1]);
    let none_more = (before, 5);
    assert_eq!(
        deleted.count("ledger.post").await,
        none_more,
        "what was committed during the pause had none"
    );
}

async fn what_is_committed_during_a_drain_has_no_owner_when_it_ends(scene: &Scene) {
    let wallets = join_all((0..8).map(|_| scene.open_wallet())).await;
    for _ in 0..5 {
        let node = scene.node().handler_with(Ledger::posting(), quick()).start().await.unwrap();
        let committing = join_all(wallets.iter().map(|wallet| scene.deposit(*wallet, 20)));
        let draining = async {
            until("something is handled", async || node.handlers()[0].handled > 0).await;
            node.drain(NEVER).await;
            assert_eq!(states(scene).await.get("CLAIMED"), None, "no run is going on");
        };
        tokio::join!(committing, draining);
        assert_eq!(states(scene).await.get("CLAIMED"), None);
    }
    let _node = scene.node().handler(Ledger::posting()).start().await.unwrap();
    scene.until_handled("ledger.post").await;
    for wallet in wallets {
        assert_eq!(scene.posted(wallet).await, (1..=101).collect::<Vec<i64>>());
    }
}

async fn events_that_rely_on_one_that_fails_wait_for_it(scene: &Scene) {
    let closed = Arc::new(Semaphore::new(0));
    let opened = closed.clone();
    let ledger = Ledger::new(move |ctx, event| {
        let opened = opened.clone();
        async move {
            if event.model_version == Some(2) && event.attempt <= 3 {
                opened.acquire().await?.forget();
                return Err("not yet".into());
            }
            post(ctx, event).await
        }
        .boxed()
    });
    let seen = ledger.seen();
    let _node = scene.node().handler_with(ledger, quick()).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    scene.deposit(wallet, 4).await;
    for failures in 1..=3 {
        let is_failing = |seen: &&crate::scene::Seen| seen.version == 2;
        until("the second one is run", async || {
            seen.lock().unwrap().iter().filter(is_failing).count() == failures
        })
        .await;
        // The failure meets a commit that is under way.
        let failing = async { closed.add_permits(1) };
        tokio::join!(scene.deposit(wallet, 1), failing);
    }
    scene.until_handled("ledger.post").await;
    assert_eq!(scene.posted(wallet).await, (1..=8).collect::<Vec<i64>>());
    let runs: Vec<i64> = seen.lock().unwrap().iter().map(|seen| seen.version).collect();
    assert_eq!(runs, [1, 2, 2, 2, 2, 3, 4, 5, 6, 7, 8]);
}

async fn a_lost_identity_keeps_the_order_of_what_is_being_committed(scene: &Scene) {
    let lease = Duration::from_secs(1);
    let other = scene.open_again().await;
    let mut nodes = Vec::new();
    for executor in [&scene.executor, &other] {
        let builder = node(executor).lease(lease).handler_with(Ledger::posting(), quick());
        nodes.push(builder.start().await.unwrap());
    }
    let wallets = join_all((0..8).map(|_| scene.open_wallet())).await;
    let committing = join_all(wallets.iter().enumerate().map(|(at, wallet)| {
        // Each wallet is with one process for some time.
        let executors = [&scene.executor, &other];
        async move {
            for turn in 0..10 {
                deposit(executors[(at + turn) % 2], *wallet, 10).await;
            }
        }
    }));
    let losing = async {
        for round in 1..=6 {
            until("some are posted", async || scene.entries().count().await.unwrap() >= round * 60)
                .await;
            let delete = format!("DELETE FROM {}", scene.scratch.eventlog("nodes"));
            scene.scratch.execute(&delete).await;
        }
    };
    tokio::join!(committing, losing);
    scene.until_handled("ledger.post").await;
    for wallet in wallets {
        assert_eq!(scene.posted(wallet).await, (1..=101).collect::<Vec<i64>>());
    }
}

async fn calls_that_are_dropped_or_refused_leave_nothing_behind(scene: &Scene) {
    let node = scene.node().handler_with(Ledger::posting(), quick()).start().await.unwrap();
    let wallets = join_all((0..4).map(|_| scene.open_wallet())).await;
    join_all((0..24).map(|caller| {
        let wallet = wallets[caller % wallets.len()];
        async move {
            for n in 0..20 {
                let deposit = Deposit { wallet, amount: Decimal::ONE };
                // Callers of one wallet refuse each other, and some do not wait for the answer.
                let call = scene.executor.execute(&DepositMoney, deposit);
                let patience = if n % 2 == 0 { NEVER } else { Duration::from_micros(n * 150) };
                let _ = tokio::time::timeout(patience, call.into_future()).await;
            }
        }
    }))
    .await;
    for wallet in &wallets {
        scene.deposit(*wallet, 1).await;
    }
    scene.until_handled("ledger.post").await;
    for wallet in wallets {
        let version = scene.databases.repository::<Wallet>().get(wallet).await.unwrap().version();
        assert_eq!(scene.posted(wallet).await, (1..=version).collect::<Vec<i64>>());
    }
    // It waits for what is still reserved.
    let drained = tokio::spawn(node.drain(Duration::MAX));
    until("the node is drained", async || drained.is_finished()).await;
}

async fn calls_that_commit_together_keep_the_order(scene: &Scene) {
    let deleted = Deleted::watch(scene).await;
    let _node = scene.node().handler(Ledger::posting()).start().await.unwrap();
    let wallets = [scene.open_wallet().await, scene.open_wallet().await];
    for _ in 0..10 {
        join_all((0..24).map(|caller| {
            let deposit = Deposit { wallet: wallets[caller % 2], amount: Decimal::ONE };
            let call = scene.executor.execute(&DepositMoney, deposit);
            call.contention(ekbatan::action::Coalesced::default())
                .contention_keys([LockKey::named(&format!("wallet {}", caller % 2))])
                .into_future()
        }))
        .await
        .into_iter()
        .for_each(|answer| drop(answer.unwrap()));
    }
    scene.until_handled("ledger.post").await;
    for wallet in wallets {
        assert_eq!(scene.posted(wallet).await, (1..=121).collect::<Vec<i64>>());
    }
    let (unclaimed, all) = deleted.count("ledger.post").await;
    assert!(
        unclaimed > 2 && all == 242,
        "{unclaimed} of {all} were claimed when they were inserted"
    );
}

/// SQLite has no round trips.
mod round_trips {
    use super::*;

    on_every_database! {
        only postgres and mysql and mariadb: a_handled_event_takes_one_after_its_commit,
    }

    async fn a_handled_event_takes_one_after_its_commit(scene: &Scene) {
        let server = scene.scratch.url.rsplit('@').next().unwrap().split('/').next().unwrap();
        let proxy = Proxy::start(server).await.unwrap();
        let mut config = scene.scratch.config();
        config.url = proxy.url_for(&scene.scratch.url);
        let databases = Databases::connect(&config.lanes(1).into()).await.unwrap();
        let executor = crate::scene::executor(&databases).await;
        let builder = node_that_does_not_look(&executor).handler(counting());
        let node = builder.start().await.unwrap();
        let wallet = open_wallet(&executor).await;
        let mut fewest = u64::MAX;
        for version in 2..=30 {
            proxy.reset();
            deposit(&executor, wallet, 1).await;
            until("it is handled", async || node.handlers()[0].handled == version).await;
            // The first look of the node goes on beside the first ones.
            fewest = fewest.min(proxy.round_trips());
        }
        assert_eq!(fewest, 3, "the read and the commit of the deposit, and the deletion");
    }
}

/// The test binary starts itself as the process that is killed.
mod killed {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use support::ScratchDatabase;

    use super::*;

    const URL: &str = "EKBATAN_TEST_KILLED_COMMITTER_URL";

    support::on_every_database! {
        #[tokio::test(flavor = "multi_thread")]
        |dialect| dialect;
        what_a_process_commits_that_is_killed_is_handled_by_another,
    }

    async fn what_a_process_commits_that_is_killed_is_handled_by_another(dialect: Dialect) {
        if let Ok(url) = std::env::var(URL) {
            return commit_and_handle_nothing(&url).await;
        }
        let scene = Scene::start(dialect).await;
        let case = match dialect {
            Dialect::Sqlite => "sqlite",
            Dialect::Postgres => "postgres",
            Dialect::MySql => "mysql",
            Dialect::MariaDb => "mariadb",
        };
        let test = "what_a_process_commits_that_is_killed_is_handled_by_another";
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("birth::killed::{case}::{test}"), "--nocapture"])
            .env(URL, &scene.scratch.url)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let wallet = loop {
            let line = lines.next().expect("the process runs until it is killed").unwrap();
            if let Some(wallet) = line.strip_prefix("committed ") {
                break wallet.parse::<Id<Wallet>>().unwrap();
            }
        };
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(states(&scene).await, HashMap::from([("CLAIMED".to_owned(), 5)]));
        let lease = Duration::from_secs(1);
        let _node = scene.node().lease(lease).handler(Ledger::posting()).start().await.unwrap();
        scene.until_handled("ledger.post").await;
        assert_eq!(scene.posted(wallet).await, [1, 2, 3, 4, 5]);
    }

    async fn commit_and_handle_nothing(url: &str) {
        let config = ScratchDatabase::config_of(url);
        let databases = Databases::connect(&config.into()).await.unwrap();
        let executor = crate::scene::executor(&databases).await;
        let ledger = Ledger::new(|_, _| std::future::pending().boxed());
        let _node = node_that_does_not_look(&executor).handler(ledger).start().await.unwrap();
        let wallet = open_wallet(&executor).await;
        deposit(&executor, wallet, 4).await;
        println!("committed {wallet}");
        std::future::pending::<()>().await;
    }
}
