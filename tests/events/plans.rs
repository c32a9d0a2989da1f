//! What the statements of a round read.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ekbatan::events::{HandlerOptions, Node};
use ekbatan::prelude::*;
use futures_util::FutureExt;
use futures_util::future::join_all;
use support::{TestClock, instant, until};

use crate::backlog::closings;
use crate::birth::NEVER;
use crate::scene::{Ledger, Mail, Scene, executor, open_wallet};

on_every_database! {
    only postgres:
    a_round_that_finds_nothing_reads_next_to_nothing,
    an_old_snapshot_makes_no_round_read_more,
}

fn quick() -> HandlerOptions {
    HandlerOptions::default().max_age(None)
}

/// What rounds read of the tables, while nothing is due.
async fn a_round_that_finds_nothing_reads_next_to_nothing(scene: &Scene) {
    // The history of three deployments. One handler wants no earlier events.
    for (n, mail) in [quick(), quick().from_now_on()].into_iter().enumerate() {
        let other = Mail::new(|_, _| async { Ok(()) }.boxed());
        let node = scene.node().handler_with(Ledger::posting(), quick());
        let node = if n == 1 { node.handler_with(other, mail) } else { node };
        let node = node.start().await.unwrap();
        scene.insert_events(&closings(Uuid::now_v7(), 1..=5_000)).await;
        until("they are swept", async || {
            let events = scene.scratch.eventlog("events");
            let lacking = format!("FROM {events} WHERE coalesce(fanned_out, 0) <= {n} LIMIT 1");
            scene.scratch.select(&["id"], &lacking).await.is_empty()
        })
        .await;
        node.drain(Duration::from_secs(0)).await;
    }
    // What is left is not due for long.
    let deliveries = scene.scratch.eventlog("deliveries");
    let later = "state = 'WAITING', due = '2999-01-01'";
    scene.scratch.execute(&format!("UPDATE {deliveries} SET {later}; ANALYZE {deliveries}")).await;
    scene.scratch.execute(&format!("ANALYZE {}", scene.scratch.eventlog("events"))).await;
    let statistics = async |table: &str| {
        let from = format!("FROM pg_stat_user_tables WHERE relname = '{table}'");
        let columns = ["idx_scan", "seq_tup_read + coalesce(idx_tup_fetch, 0) + idx_scan"];
        let rows = scene.scratch.select(&columns, &from).await;
        let number = |at: usize| rows[0][at].as_deref().unwrap_or("0").parse::<u64>().unwrap();
        (number(0), number(1))
    };
    scene.scratch.end_looks().await;
    let mail = Mail::new(|_, _| async { Ok(()) }.boxed());
    let node = scene.node().handler_with(Ledger::posting(), quick());
    let _node = node.handler_with(mail, quick().from_now_on()).start().await.unwrap();
    for table in ["deliveries", "events"] {
        let (scans, _) = statistics(table).await;
        let goal = scans + 200;
        until("the node has begun", async || statistics(table).await.0 > goal).await;
        let before = statistics(table).await;
        until("rounds were counted", async || statistics(table).await.0 > before.0 + 400).await;
        let after = statistics(table).await;
        let per_scan = (after.1 - before.1) as f64 / (after.0 - before.0) as f64;
        assert!(per_scan < 4.0, "{per_scan} rows of {table} were read by each look into an index");
    }
}

/// An executor of a process of its own, with this clock.
async fn process(scene: &Scene, clock: &Arc<TestClock>) -> ActionExecutor {
    let databases = Databases::connect(&scene.scratch.config().into()).await.unwrap();
    executor(&databases.with_clock(clock.clone())).await
}

/// How many entries of its indexes and rows were read for a table, also those that nobody sees any
/// more.
async fn read(scene: &Scene, table: &str) -> usize {
    let columns = ["(SELECT sum(seq_tup_read) FROM pg_stat_user_tables WHERE relname = t.name) + \
                    (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname = t.name)"];
    let rows = scene.scratch.select(&columns, &format!("FROM (SELECT '{table}' AS name) t")).await;
    rows[0][0].as_deref().unwrap().parse().unwrap()
}

/// A transaction that reads for long keeps the server from removing what claims leave in the index.
async fn an_old_snapshot_makes_no_round_read_more(scene: &Scene) {
    const BATCHES: usize = 150;
    const EVENTS: usize = 10;
    let clock = Arc::new(TestClock::default());
    // Its commits give the deliveries to the nodes of others.
    let committing = process(scene, &clock).await;
    let seen = counting_node(&process(scene, &clock).await).await;
    let _committing_node = Node::builder(&committing).lease(NEVER).start().await.unwrap();
    let mut snapshot = scene.scratch.connect().await;
    snapshot.execute("BEGIN ISOLATION LEVEL REPEATABLE READ").await;
    snapshot.select(&["count(*)"], &format!("FROM {}", scene.scratch.eventlog("deliveries"))).await;
    let began = Instant::now();
    for batch in 1..=BATCHES {
        clock.set(instant(60 * i64::try_from(batch).unwrap()));
        join_all((0..EVENTS).map(|_| open_wallet(&committing))).await;
        until("the batch is handled", async || {
            seen.handlers()[0].handled >= (batch * EVENTS) as u64
        })
        .await;
    }
    until("the server has counted", async || read(scene, "deliveries").await > BATCHES * EVENTS)
        .await;
    // Now and then, the node checks all that there is.
    let checks = began.elapsed().as_secs() as usize + 2;
    let (events, read) = (BATCHES * EVENTS, read(scene, "deliveries").await);
    assert!(read < events * (40 + 3 * checks), "{read} for {events} events and {checks} checks");
    snapshot.execute("ROLLBACK").await;
}

/// A node whose handler only counts.
async fn counting_node(executor: &ActionExecutor) -> Node {
    let mail = Mail::new(|_, _| async { Ok(()) }.boxed());
    let options = HandlerOptions::unordered().max_age(None);
    let node = Node::builder(executor).lease(NEVER).handler_with(mail, options);
    node.poll(Duration::from_millis(5), Duration::from_millis(500)).start().await.unwrap()
}
