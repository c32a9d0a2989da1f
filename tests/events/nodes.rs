//! Nodes that end, in order and not in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use chrono::TimeDelta;
use ekbatan::events::{DeliveryOperations, HandlerOptions};
use ekbatan::prelude::*;
use ekbatan_testkit::Proxy;
use futures_util::FutureExt;
use futures_util::future::join_all;
use support::{Dialect, ScratchDatabase, TestClock, ThreadGate, until};
use tokio::sync::Semaphore;

use crate::scene::{Entry, Ledger, Mail, Scene, deposit, executor, node, open_wallet, post};

on_every_database! {
    others_take_over_what_a_node_had_claimed_that_died,
    an_event_that_ends_one_process_after_another_is_given_up,
    a_failure_after_the_loss_of_a_node_is_counted_once,
    a_silent_node_is_taken_over_after_its_lease_and_a_fifth,
    a_look_claims_no_more_than_there_is_room_for,
    a_drained_node_hands_back_what_it_has_not_handled,
    a_drained_node_waits_for_its_handlers,
    a_node_without_handlers_lets_commits_deliver_to_others,
}

mod with_a_fast_clock {
    use super::*;

    on_every_database! {
        on_sqlite_only: what_a_node_hands_back_is_handled_by_another_at_once,
    }
}

mod on_servers {
    use super::*;

    on_every_database! {
        only postgres and mysql and mariadb:
        sixteen_nodes_claim_beside_each_other,
        a_node_whose_looks_take_longer_than_its_lease_takes_over,
    }
}

/// A ledger that does not end before it is opened.
fn stuck(opened: &Arc<Semaphore>) -> Ledger {
    let opened = opened.clone();
    Ledger::new(move |ctx, event| {
        let opened = opened.clone();
        async move {
            let _opened = opened.acquire().await?;
            post(ctx, event).await
        }
        .boxed()
    })
}

async fn others_take_over_what_a_node_had_claimed_that_died(scene: &Scene) {
    let closed = Arc::new(Semaphore::new(0));
    let ledger = stuck(&closed);
    let seen = ledger.seen();
    let lease = Duration::from_secs(1);
    let dying = scene.node().lease(lease).handler(ledger).start().await.unwrap();
    let wallets = [scene.open_wallet().await, scene.open_wallet().await];
    for wallet in wallets {
        scene.deposit(wallet, 5).await;
    }
    until("both wallets are being handled", async || seen.lock().unwrap().len() == 2).await;
    // As if its process was killed: nothing is given back.
    drop(dying);
    let other = scene.open_again().await;
    let _other = node(&other).lease(lease).handler(Ledger::posting()).start().await.unwrap();
    scene.until_handled("ledger.post").await;
    for wallet in wallets {
        assert_eq!(scene.posted(wallet).await, [1, 2, 3, 4, 5, 6]);
    }
}

/// Each answer takes a twelfth of the lease: a renewal asks for few of them, a look for many.
async fn a_node_whose_looks_take_longer_than_its_lease_takes_over(scene: &Scene) {
    let lease = Duration::from_secs(3);
    let ledger = stuck(&Arc::new(Semaphore::new(0)));
    let seen = ledger.seen();
    let dying = scene.node().lease(lease).handler(ledger).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    until("it is being handled", async || !seen.lock().unwrap().is_empty()).await;
    drop(dying);
    let server = scene.scratch.url.rsplit('@').next().unwrap().split('/').next().unwrap();
    let proxy = Proxy::start(server).await.unwrap();
    let behind = ScratchDatabase::config_of(&proxy.url_for(&scene.scratch.url));
    let far = executor(&Databases::connect(&behind.into()).await.unwrap()).await;
    let _node = node(&far).lease(lease).handler(Ledger::posting()).start().await.unwrap();
    proxy.set_delay(lease / 24);
    until("it is handled", async || scene.posted(wallet).await == [1]).await;
}

/// On threads of its own, because one of them is blocked.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_drain_does_not_wait_for_a_handler_that_blocks_its_thread() {
    let scene = &Scene::start(Dialect::Sqlite).await;
    let (gate, closed) = ThreadGate::closed();
    let blocking = Ledger::new(move |_, _| closed.clone().block().map(Ok).boxed());
    let endless = Mail::new(|_, _| std::future::pending().boxed());
    let mailing = endless.seen();
    let node = scene.node().handler(blocking).handler(endless).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    until("both run", async || gate.is_reached() && !mailing.lock().unwrap().is_empty()).await;
    let drained = tokio::time::timeout(Duration::from_secs(60), node.drain(Duration::ZERO)).await;
    assert_eq!(drained.expect("the drain ends").cancelled, 1);
    let new = format!("FROM {} WHERE state = 'NEW'", scene.scratch.eventlog("deliveries"));
    let given_back = scene.scratch.select(&["handler"], &new).await;
    assert_eq!(given_back, [[Some("mail.send".to_owned())]]);
    // Another node takes the event over, although the thread is still blocked.
    let _other = scene.node().handler(Ledger::posting()).start().await.unwrap();
    scene.until_posted(1).await;
    assert_eq!(scene.posted(wallet).await, [1]);
    drop(gate);
}

async fn a_drained_node_hands_back_what_it_has_not_handled(scene: &Scene) {
    let closed = Arc::new(Semaphore::new(0));
    let ledger = stuck(&closed);
    let seen = ledger.seen();
    let draining = scene.node().handler(ledger).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    scene.deposit(wallet, 5).await;
    until("the first event is being handled", async || !seen.lock().unwrap().is_empty()).await;
    draining.drain(Duration::from_millis(10)).await;
    let deliveries = scene.scratch.eventlog("deliveries");
    let claimed = format!("FROM {deliveries} WHERE state = 'CLAIMED' OR attempts > 0");
    let rows = scene.scratch.select(&["id"], &claimed).await;
    assert!(rows.is_empty(), "nothing is claimed, and no attempt was counted");
    assert_eq!(scene.operations().pending("ledger.post").await.unwrap(), 6);
    assert_eq!(scene.scratch.count(&scene.scratch.eventlog("nodes")).await, 0);
    let _node = scene.node().handler(Ledger::posting()).start().await.unwrap();
    scene.until_handled("ledger.post").await;
    assert_eq!(scene.posted(wallet).await, [1, 2, 3, 4, 5, 6]);
}

/// The clock of the node that ends is ten minutes fast, and so is that of an operator.
async fn what_a_node_hands_back_is_handled_by_another_at_once(scene: &Scene) {
    let clock = Arc::new(TestClock::default());
    clock.set(Utc::now() + TimeDelta::minutes(10));
    let databases = Databases::connect(&scene.scratch.config().into()).await.unwrap();
    let databases = databases.with_clock(clock);
    let fast = executor(&databases).await;
    let closed = Arc::new(Semaphore::new(0));
    let ledger = stuck(&closed);
    let seen = ledger.seen();
    let draining = node(&fast).handler(ledger).start().await.unwrap();
    let wallet = open_wallet(&fast).await;
    deposit(&fast, wallet, 3).await;
    until("the first event is being handled", async || !seen.lock().unwrap().is_empty()).await;
    draining.drain(Duration::from_millis(10)).await;
    let is_open = Arc::new(AtomicBool::new(false));
    let opened = is_open.clone();
    let ledger = Ledger::new(move |ctx, event| match event.model_version {
        Some(2) if !opened.load(Ordering::SeqCst) => async { Err("closed".into()) }.boxed(),
        _ => post(ctx, event),
    });
    let options = HandlerOptions::default().max_attempts(1);
    let _node = scene.node().handler_with(ledger, options).start().await.unwrap();
    let operations = DeliveryOperations::new(&databases, &databases.shards().next().unwrap());
    until("one is parked", async || !operations.parked(1).await.unwrap().is_empty()).await;
    is_open.store(true, Ordering::SeqCst);
    let parked = operations.parked(1).await.unwrap().remove(0);
    operations.retry(parked.id, "alice", "it is open again").await.unwrap();
    scene.until_handled("ledger.post").await;
    assert_eq!(scene.posted(wallet).await, [1, 2, 3, 4]);
}

async fn a_drained_node_waits_for_its_handlers(scene: &Scene) {
    let opened = Arc::new(Semaphore::new(0));
    let ledger = stuck(&opened);
    let seen = ledger.seen();
    let options = HandlerOptions::default().timeout(Duration::MAX);
    let draining = scene.node().handler_with(ledger, options).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    until("the event is being handled", async || !seen.lock().unwrap().is_empty()).await;
    let drained = tokio::spawn(draining.drain(Duration::MAX));
    opened.add_permits(1);
    drained.await.unwrap();
    assert_eq!(scene.posted(wallet).await, [1]);
}

async fn a_node_without_handlers_lets_commits_deliver_to_others(scene: &Scene) {
    let handling = scene.open_again().await;
    let node_with = node(&handling).handler(Ledger::posting()).start().await.unwrap();
    node_with.drain(Duration::from_secs(60)).await;
    let without = scene.node().start().await.unwrap();
    let wallet = scene.open_wallet().await;
    scene.deposit(wallet, 2).await;
    // The deliveries are there although no node that handles them runs.
    assert_eq!(scene.operations().pending("ledger.post").await.unwrap(), 3);
    assert!(without.handlers().is_empty());
}

/// Notes the version of the survivor's row, which counts its renewals, when another row is deleted.
async fn note_takeovers(scene: &Scene) {
    let nodes = scene.scratch.eventlog("nodes");
    let insert = |table: &str| {
        format!(
            "INSERT INTO {table} (renewals) SELECT version FROM {nodes} WHERE name = 'survivor'"
        )
    };
    scene.scratch.execute("CREATE TABLE takeovers (renewals bigint NOT NULL)").await;
    let trigger = match scene.scratch.dialect {
        Dialect::Sqlite => format!(
            "CREATE TRIGGER takeover AFTER DELETE ON {nodes} BEGIN {}; END",
            insert("takeovers")
        ),
        Dialect::Postgres => format!(
            "CREATE FUNCTION takeover() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN {}; RETURN NULL; END $$; \
             CREATE TRIGGER takeover AFTER DELETE ON {nodes} \
             FOR EACH ROW EXECUTE FUNCTION takeover()",
            insert("takeovers")
        ),
        Dialect::MySql | Dialect::MariaDb => {
            let (log, _) = nodes.rsplit_once('.').unwrap();
            let test = log.strip_suffix("_log").unwrap();
            format!(
                "CREATE TRIGGER {log}.takeover AFTER DELETE ON {nodes} FOR EACH ROW {}",
                insert(&format!("{test}.takeovers"))
            )
        }
    };
    scene.scratch.execute(&trigger).await;
}

/// The time is counted in renewals of the node that takes over: five are a lease.
/// As with a stack overflow: of a run whose node is dropped nothing is stored.
async fn an_event_that_ends_one_process_after_another_is_given_up(scene: &Scene) {
    let options = HandlerOptions::default().max_attempts(2);
    let (runs, operations) = (Arc::new(AtomicUsize::new(0)), scene.operations());
    let parked = async || operations.parked(1).await.unwrap().pop();
    let mut processes = 0;
    while parked().await.is_none() {
        assert!(runs.load(Ordering::SeqCst) < 10, "it is not given up");
        let counted = runs.clone();
        let ending = Ledger::new(move |_, _| {
            counted.fetch_add(1, Ordering::SeqCst);
            std::future::pending().boxed()
        });
        let node = scene.node().lease(Duration::from_secs(1));
        let node = node.handler_with(ending, options.clone()).start().await.unwrap();
        if processes == 0 {
            scene.open_wallet().await;
        }
        processes += 1;
        until("it runs, or is given up", async || {
            runs.load(Ordering::SeqCst) >= processes || parked().await.is_some()
        })
        .await;
        drop(node);
    }
    let parked = parked().await.unwrap();
    assert_eq!(parked.attempts, 2);
    assert!(runs.load(Ordering::SeqCst) > 2, "that the first one ends its process was not known");
    assert_eq!(parked.last_error.as_deref(), Some("the node that had it was lost"));
}

async fn a_failure_after_the_loss_of_a_node_is_counted_once(scene: &Scene) {
    let ledger = stuck(&Arc::new(Semaphore::new(0)));
    let seen = ledger.seen();
    let dying = scene.node().handler(ledger).start().await.unwrap();
    scene.open_wallet().await;
    until("it runs", async || !seen.lock().unwrap().is_empty()).await;
    drop(dying);
    let failing = Ledger::new(|_, _| async { Err("the ledger is closed".into()) }.boxed());
    let options = HandlerOptions::default().max_attempts(1);
    let node = scene.node().lease(Duration::from_secs(1)).handler_with(failing, options);
    let _node = node.start().await.unwrap();
    let operations = scene.operations();
    until("it is parked", async || !operations.parked(1).await.unwrap().is_empty()).await;
    let parked = operations.parked(1).await.unwrap().pop().unwrap();
    assert_eq!(parked.attempts, 1);
    assert_eq!(parked.last_error.as_deref(), Some("the ledger is closed"));
}

async fn a_silent_node_is_taken_over_after_its_lease_and_a_fifth(scene: &Scene) {
    note_takeovers(scene).await;
    let mut late = Vec::new();
    // A look at the other nodes that takes longer than half a lease is given up, and the next one may be too
    // late. So it need not be in time each time, but is never too early.
    for _ in 0..5 {
        let renewals = take_over(scene).await;
        if renewals <= 7 {
            return;
        }
        late.push(renewals);
    }
    panic!("it is too late each time: {late:?}");
}

/// Lets a node take over from a silent one. Returns the version of its row then, which is 1 before its first
/// renewal.
async fn take_over(scene: &Scene) -> i64 {
    let closed = Arc::new(Semaphore::new(0));
    let ledger = stuck(&closed);
    let seen = ledger.seen();
    let dying = node(&scene.open_again().await).handler(ledger).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    until("the event is being handled", async || !seen.lock().unwrap().is_empty()).await;
    drop(dying);
    let lease = Duration::from_secs(1);
    let survivor = node(&scene.open_again().await).name("survivor").lease(lease);
    let started = Instant::now();
    let survivor = survivor.handler(Ledger::posting()).start().await.unwrap();
    until("the event is posted", async || !scene.posted(wallet).await.is_empty()).await;
    assert!(started.elapsed() >= lease, "{:?}", started.elapsed());
    assert_eq!(scene.posted(wallet).await, [1]);
    let takeovers = scene.scratch.select(&["renewals"], "FROM takeovers").await;
    assert_eq!(takeovers.len(), 1, "{takeovers:?}");
    let renewals = takeovers[0][0].as_deref().unwrap().parse().unwrap();
    // The first look comes after the first renewal.
    assert!(renewals >= 3, "{renewals}");
    survivor.drain(Duration::from_secs(60)).await;
    // Also the row of the survivor, if it had no time to delete it.
    for table in [&scene.scratch.eventlog("nodes"), "takeovers"] {
        scene.scratch.execute(&format!("DELETE FROM {table}")).await;
    }
    renewals
}

async fn a_look_claims_no_more_than_there_is_room_for(scene: &Scene) {
    let other = scene.open_again().await;
    let wallets = join_all((0..150).map(|_| open_wallet(&other))).await;
    let closed = Arc::new(Semaphore::new(0));
    let options = HandlerOptions::default().concurrency(1).timeout(Duration::from_secs(600));
    let mail = Mail::new(|_, _| async { Ok(()) }.boxed());
    let ledger = stuck(&closed);
    let node = scene.node().handler_with(ledger, options).handler(mail).start().await.unwrap();
    let mailed = async |count: u64| {
        until("a look has found the mails", async || {
            node.handlers().iter().any(|one| one.name == "mail.send" && one.handled == count)
        })
        .await;
    };
    mailed(150).await;
    for n in 1..=20 {
        // Each is found by a look, which finds the others again.
        deposit(&other, wallets[n % wallets.len()], 1).await;
        mailed(150 + n as u64).await;
    }
    let deliveries = scene.scratch.eventlog("deliveries");
    let claimed = format!("FROM {deliveries} WHERE state = 'CLAIMED' AND handler = 'ledger.post'");
    assert_eq!(scene.scratch.select(&["id"], &claimed).await.len(), 64);
    closed.add_permits(1);
    scene.until_posted(170).await;
}

/// Four processes with four nodes each.
async fn sixteen_nodes_claim_beside_each_other(scene: &Scene) {
    let committing = scene.open_again().await;
    let mut nodes = Vec::new();
    for _ in 0..4 {
        let config = scene.scratch.config().maximum_pool_size(6);
        let databases = Databases::connect(&config.into()).await.unwrap();
        let executor = crate::scene::executor(&databases).await;
        for _ in 0..4 {
            let options = HandlerOptions::unordered();
            let ledger = node(&executor).handler(Ledger::posting());
            let mail = Mail::new(|ctx, event| post(ctx, event));
            nodes.push(ledger.handler_with(mail, options).start().await.unwrap());
        }
    }
    let wallets = join_all((0..10).map(|_| open_wallet(&committing))).await;
    join_all(wallets.iter().map(|wallet| deposit(&committing, *wallet, 9))).await;
    for handler in ["ledger.post", "mail.send"] {
        scene.until_handled(handler).await;
    }
    for wallet in wallets {
        let of_wallet = Entry::WALLET.eq(wallet.to_string());
        let mut entries = scene.entries().find_where(of_wallet).await.unwrap();
        entries.sort_by_key(|entry| entry.wallet_version);
        let versions: Vec<i64> = entries.iter().map(|entry| entry.wallet_version).collect();
        let twice: Vec<i64> = (1..=10).flat_map(|version| [version; 2]).collect();
        assert_eq!(versions, twice, "each handler has posted each event once");
    }
    let counts = |count: fn(&ekbatan::events::HandlerStatus) -> u64| -> u64 {
        nodes.iter().flat_map(|node| node.handlers()).map(|handler| count(&handler)).sum()
    };
    until("all runs have ended", async || counts(|handler| handler.handled) == 200).await;
    assert_eq!(counts(|handler| handler.failed), 0, "no run met a deadlock");
}
