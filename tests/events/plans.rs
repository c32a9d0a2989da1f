//! What the statements of a round read.

use std::time::Duration;

use ekbatan::events::HandlerOptions;
use futures_util::FutureExt;
use support::until;
use uuid::Uuid;

use crate::backlog::closings;
use crate::scene::{Ledger, Mail, Scene};

on_every_database! { only postgres: a_round_that_finds_nothing_reads_next_to_nothing }

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
            let lacking = format!("FROM {events} WHERE coalesce(fanned_out, 0) <= {n}");
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
