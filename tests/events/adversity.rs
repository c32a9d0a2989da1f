//! What must hold when things go wrong together.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ekbatan::events::HandlerOptions;
use futures_util::FutureExt;
use futures_util::future::join_all;
use support::until;
use tokio::sync::Semaphore;
use uuid::Uuid;

use crate::scene::{Foreign, Ledger, Mail, Renamed, Scene, Seen, deposit, node, post};

on_every_database! {
    commits_go_on_while_runs_fail_beside_sweeps,
    a_run_of_a_lost_identity_does_not_let_its_stream_be_overtaken,
    a_replay_before_a_long_backlog_is_handled,
    a_name_that_was_given_up_gets_no_event_again,
    a_name_that_was_given_up_with_a_backlog_stops_nothing,
    many_events_of_one_change_are_handled_in_order,
    a_retry_under_an_earlier_name_releases_what_waits_under_the_present_one,
    a_run_that_panics_outside_of_its_handler_is_tried_again,
    everything_is_handled_once_and_in_order_whatever_happens,
}

fn quick() -> HandlerOptions {
    HandlerOptions::default().retry(Duration::from_millis(1), Duration::from_millis(5))
}

async fn commits_go_on_while_runs_fail_beside_sweeps(scene: &Scene) {
    let other = scene.open_again().await;
    let ledger = Ledger::new(|ctx, event| {
        if event.attempt == 1 {
            return async { Err("the first time".into()) }.boxed();
        }
        post(ctx, event)
    });
    let _node = scene.node().handler_with(ledger, quick()).start().await.unwrap();
    let wallets = join_all((0..8).map(|_| scene.open_wallet())).await;
    // A deposit that waited for too long would fail.
    join_all(wallets.iter().map(|wallet| async {
        for n in 0..60 {
            // The events of the other process have no deliveries yet.
            deposit(if n % 2 == 0 { &other } else { &scene.executor }, *wallet, 1).await;
        }
    }))
    .await;
    scene.until_posted(8 * 61).await;
    for wallet in wallets {
        assert_eq!(scene.posted(wallet).await, (1..=61).collect::<Vec<i64>>());
    }
}

async fn a_run_of_a_lost_identity_does_not_let_its_stream_be_overtaken(scene: &Scene) {
    let gates = [Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0))];
    let (first, second) = (gates[0].clone(), gates[1].clone());
    let (runs, ended) = (Arc::new(Mutex::new(0)), Arc::new(Mutex::new(false)));
    let first_ended = ended.clone();
    let ledger = Ledger::new(move |ctx, event| {
        let (first, second, runs) = (first.clone(), second.clone(), runs.clone());
        let first_ended = first_ended.clone();
        async move {
            if event.model_version == Some(1) {
                let run = {
                    let mut runs = runs.lock().unwrap();
                    *runs += 1;
                    *runs
                };
                if run == 1 {
                    let _open = first.acquire().await?;
                    let answer = post(ctx, event).await;
                    *first_ended.lock().unwrap() = true;
                    return answer;
                }
            }
            if event.model_version == Some(2) {
                let _open = second.acquire().await?;
                return post(ctx, event).await;
            }
            post(ctx, event).await
        }
        .boxed()
    });
    let seen = ledger.seen();
    let lease = Duration::from_secs(1);
    let _node = scene.node().lease(lease).handler(ledger).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    scene.deposit(wallet, 4).await;
    until("the first one is run", async || !seen.lock().unwrap().is_empty()).await;
    scene.scratch.execute(&format!("DELETE FROM {}", scene.scratch.eventlog("nodes"))).await;
    let has_seen = |version: i64| seen.lock().unwrap().iter().any(|seen| seen.version == version);
    until("the second one is run", async || has_seen(2)).await;
    gates[0].add_permits(10);
    until("the first run has ended", async || *ended.lock().unwrap()).await;
    // The node has taken note of that end before it takes note of a later one.
    let later = scene.open_wallet().await;
    until("a later event is handled", async || scene.posted(later).await == [1]).await;
    scene.deposit(later, 1).await;
    // Its second version waits at the gate, so a node that begins a run has begun all that it can.
    let is_later = |seen: &Seen| seen.wallet == later.to_string() && seen.version == 2;
    until("the node begins runs", async || seen.lock().unwrap().iter().any(is_later)).await;
    let overtaken = has_seen(3);
    gates[1].add_permits(10);
    scene.until_handled("ledger.post").await;
    assert!(!overtaken, "the third one was run beside the second one");
    assert_eq!(scene.posted(wallet).await, [1, 2, 3, 4, 5]);
}

async fn a_replay_before_a_long_backlog_is_handled(scene: &Scene) {
    let broken = Ledger::new(|_, _| async { Err("broken".into()) }.boxed());
    let options = quick().max_attempts(1).dead_letters();
    let node = scene.node().handler_with(broken, options.clone()).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    scene.until_handled("ledger.post").await;
    node.drain(Duration::from_secs(10)).await;
    scene.deposit(wallet, 100).await;
    let operations = scene.operations();
    let letters = operations.dead_letters(10).await.unwrap();
    operations.replay(&letters[0], "alice", "again").await.unwrap();
    let _node = scene.node().handler_with(Ledger::posting(), options).start().await.unwrap();
    until("the backlog is handled", async || operations.pending("ledger.post").await.unwrap() == 0)
        .await;
    assert_eq!(scene.posted(wallet).await, (1..=101).collect::<Vec<i64>>());
}

async fn a_name_that_was_given_up_gets_no_event_again(scene: &Scene) {
    let wallet = scene.open_wallet().await;
    let node_of_old = scene.node().handler(Ledger::posting()).start().await.unwrap();
    scene.deposit(wallet, 3).await;
    scene.until_posted(4).await;
    scene.until_handled("ledger.post").await;
    node_of_old.drain(Duration::from_secs(10)).await;
    let options = HandlerOptions::default().alias("ledger.post");
    let renamed = scene.node().handler_with(Renamed::posting(), options);
    let _renamed = renamed.start().await.unwrap();
    scene.deposit(wallet, 1).await;
    scene.until_posted(5).await;
    // An old process starts again during the deployment. Only it sends mails, so that it has swept
    // once they are sent.
    let old = scene.open_again().await;
    let mail = Mail::new(|_, _| async { Ok(()) }.boxed());
    let _old = node(&old).handler(Ledger::posting()).handler(mail).start().await.unwrap();
    scene.deposit(wallet, 1).await;
    scene.until_posted(6).await;
    for handler in ["mail.send", "ledger.post", "ledger.post_again"] {
        scene.until_handled(handler).await;
    }
    assert_eq!(scene.posted(wallet).await, [1, 2, 3, 4, 5, 6]);
}

async fn a_name_that_was_given_up_with_a_backlog_stops_nothing(scene: &Scene) {
    let wallet = scene.open_wallet().await;
    let node_of_old = scene.node().handler(Ledger::posting()).start().await.unwrap();
    scene.until_posted(1).await;
    assert!(node_of_old.pause("ledger.post"));
    scene.deposit(wallet, 3).await;
    node_of_old.drain(Duration::from_secs(10)).await;
    let options = HandlerOptions::default().alias("ledger.post");
    let renamed = scene.node().handler_with(Renamed::posting(), options).start().await.unwrap();
    assert!(renamed.pause("ledger.post_again"));
    // An old process starts again during the deployment. Only it sends mails.
    let old = scene.open_again().await;
    let mail = Mail::new(|_, _| async { Ok(()) }.boxed());
    let old = node(&old).handler(Ledger::posting()).handler(mail).start().await.unwrap();
    assert!(old.pause("ledger.post"));
    scene.deposit(wallet, 1).await;
    scene.until_handled("mail.send").await;
    assert!(renamed.resume("ledger.post_again"));
    assert!(old.resume("ledger.post"));
    scene.until_posted(5).await;
    for handler in ["ledger.post", "ledger.post_again"] {
        scene.until_handled(handler).await;
    }
    assert_eq!(scene.posted(wallet).await, [1, 2, 3, 4, 5]);
}

async fn many_events_of_one_change_are_handled_in_order(scene: &Scene) {
    let order = Arc::new(Mutex::new(Vec::<Uuid>::new()));
    let seen = order.clone();
    let mail = Mail::new(move |_, event| {
        seen.lock().unwrap().push(event.id);
        async { Ok(()) }.boxed()
    });
    let wallet = Uuid::now_v7();
    let ids: Vec<Uuid> = (0..700).map(|_| Uuid::now_v7()).collect();
    let row = |(id, n): (&Uuid, i64)| Foreign { id: *id, wallet, place: Some((1, n)) };
    let rows: Vec<Foreign> = ids.iter().zip(0..).map(row).collect();
    scene.insert_events(&rows).await;
    let options = HandlerOptions::default().max_age(None);
    let _node = scene.node().handler_with(mail, options).start().await.unwrap();
    until("all are handled", async || order.lock().unwrap().len() >= 700).await;
    let order = order.lock().unwrap().clone();
    let wrong = order.iter().zip(&ids).filter(|(a, b)| a != b).count();
    assert_eq!(wrong, 0, "{wrong} of 700 at the wrong place");
}

async fn a_retry_under_an_earlier_name_releases_what_waits_under_the_present_one(scene: &Scene) {
    let wallet = scene.open_wallet().await;
    let broken = Ledger::new(|_, _| async { Err("broken".into()) }.boxed());
    let options = quick().max_attempts(1);
    let node = scene.node().handler_with(broken, options.clone()).start().await.unwrap();
    let operations = scene.operations();
    until("it is parked", async || !operations.parked(10).await.unwrap().is_empty()).await;
    node.drain(Duration::from_secs(10)).await;
    let options = options.alias("ledger.post");
    let renamed = scene.node().handler_with(Renamed::posting(), options);
    let _node = renamed.start().await.unwrap();
    scene.deposit(wallet, 3).await;
    let deliveries = scene.scratch.eventlog("deliveries");
    let blocked = format!("FROM {deliveries} WHERE state = 'BLOCKED'");
    until("they are blocked", async || scene.scratch.select(&["id"], &blocked).await.len() == 3)
        .await;
    let parked = operations.parked(10).await.unwrap();
    operations.retry(parked[0].id, "alice", "mended").await.unwrap();
    until("all are posted", async || scene.entries().count().await.unwrap() == 4).await;
    assert_eq!(scene.posted(wallet).await, [1, 2, 3, 4]);
}

#[derive(Debug)]
struct Unprintable;

impl std::fmt::Display for Unprintable {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        panic!("an error that cannot be shown")
    }
}

impl std::error::Error for Unprintable {}

async fn a_run_that_panics_outside_of_its_handler_is_tried_again(scene: &Scene) {
    let runs = Arc::new(Mutex::new(0));
    let known = runs.clone();
    let ledger = Ledger::new(move |ctx, event| {
        let mut runs = known.lock().unwrap();
        *runs += 1;
        if *runs == 1 {
            return async { Err(Box::new(Unprintable).into()) }.boxed();
        }
        post(ctx, event)
    });
    let _node = scene.node().handler_with(ledger, quick()).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    until("it is posted", async || scene.posted(wallet).await == [1]).await;
}

/// Nodes come and go, handlers fail, panic, hang, and time out. In the end every event has one line
/// in the ledger, in the order of its wallet.
async fn everything_is_handled_once_and_in_order_whatever_happens(scene: &Scene) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let wild = || {
        Ledger::new(|ctx, event| match fastrand::u32(0..40) {
            0..3 => async { Err("at random".into()) }.boxed(),
            3 => async { panic!("at random") }.boxed(),
            4 => std::future::pending().boxed(),
            5 => async move {
                tokio::time::sleep(Duration::from_millis(250)).await;
                post(ctx, event).await
            }
            .boxed(),
            6 => async move {
                post(ctx, event).await?;
                Err("after the commit".into())
            }
            .boxed(),
            _ => post(ctx, event),
        })
    };
    let options = || quick().timeout(Duration::from_millis(300)).max_attempts(4).concurrency(4);
    let lease = Duration::from_secs(1);
    let mut executors = vec![scene.executor.clone()];
    for _ in 0..3 {
        executors.push(scene.open_again().await);
    }
    let mut nodes = Vec::new();
    nodes.push(
        node(&executors[0]).lease(lease).handler_with(wild(), options()).start().await.unwrap(),
    );
    let wallets = join_all((0..10).map(|_| scene.open_wallet())).await;
    let committing = join_all(wallets.iter().enumerate().map(|(w, wallet)| {
        let executors = &executors;
        async move {
            // A process that commits several versions one after another claims them as it does.
            let mut at = w;
            for _ in 0..60 {
                if fastrand::u32(0..4) == 0 {
                    at = fastrand::usize(0..executors.len());
                }
                deposit(&executors[at % executors.len()], *wallet, 1).await;
                tokio::time::sleep(Duration::from_millis(fastrand::u64(0..100))).await;
            }
        }
    }));
    let operations = scene.operations();
    let turmoil = async {
        for _ in 0..30 {
            tokio::time::sleep(Duration::from_millis(random.u64(50..400))).await;
            match random.u32(0..10) {
                0..3 if nodes.len() < 4 => {
                    let at = random.usize(0..executors.len());
                    let starting =
                        node(&executors[at]).lease(lease).handler_with(wild(), options());
                    nodes.push(starting.start().await.unwrap());
                }
                3..5 if !nodes.is_empty() => {
                    drop(nodes.swap_remove(random.usize(0..nodes.len())));
                }
                5 if !nodes.is_empty() => {
                    let one = nodes.swap_remove(random.usize(0..nodes.len()));
                    one.drain(Duration::from_millis(random.u64(0..200))).await;
                }
                6 => {
                    // Others take all nodes for dead.
                    let rows = scene.scratch.eventlog("nodes");
                    scene.scratch.execute(&format!("DELETE FROM {rows}")).await;
                }
                _ => {}
            }
            for parked in operations.parked(100).await.unwrap() {
                let _ = operations.retry(parked.id, "alice", "mended").await;
            }
        }
    };
    let (_, ()) = tokio::join!(committing, turmoil);
    let calm = node(&executors[1]).lease(lease).handler_with(Ledger::posting(), options());
    nodes.push(calm.start().await.unwrap());
    until("everything is handled", async || {
        for parked in operations.parked(100).await.unwrap() {
            let _ = operations.retry(parked.id, "alice", "mended").await;
        }
        operations.pending("ledger.post").await.unwrap() == 0
            && scene.entries().count().await.unwrap() >= 610
    })
    .await;
    for wallet in wallets {
        assert_eq!(scene.posted(wallet).await, (1..=61).collect::<Vec<i64>>(), "seed {seed}");
    }
}
