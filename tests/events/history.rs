//! Handling reads next to nothing of what is handled already, or waits.
//!
//! The servers count the rows of each table that are read. Each test has a database of its own, so nobody else
//! adds to its counts.

use std::time::Duration;

use ekbatan::events::HandlerOptions;
use ekbatan::prelude::*;
use ekbatan_testkit::MySqlServer;
use futures_util::FutureExt;
use support::{Dialect, Recorder, ScratchDatabase, soak, until};

use crate::backlog::closings;
use crate::scene::{Ledger, Mail, Scene, deposit, node, open_wallet, post};

on_every_database! {
    only postgres and mariadb:
    handling_reads_next_to_nothing_of_a_long_history,
}

/// The server that other tests share counts nothing, to be quick.
#[tokio::test]
async fn handling_reads_next_to_nothing_of_a_long_history_on_mysql() {
    Recorder::install();
    let server = MySqlServer::builder().setting("performance-schema", "ON").start().await.unwrap();
    let url = server.create_database().await.unwrap();
    let scene = Scene::start_in(ScratchDatabase::at(&url)).await;
    handling_reads_next_to_nothing_of_a_long_history(&scene).await;
}

/// So many events are handled, and so many deliveries wait.
fn history() -> usize {
    soak::rounds(10_000, 1_000_000)
}

/// What is read at most, however long the history is.
const NEXT_TO_NOTHING: u64 = 10_000;

const TABLES: [&str; 2] = ["events", "deliveries"];

async fn handling_reads_next_to_nothing_of_a_long_history(scene: &Scene) {
    make_history(scene).await;
    let before = read(scene).await;
    handle_all_kinds_of_events(scene).await;
    until("the server has counted", async || has_counted(scene).await).await;
    for ((table, before), after) in TABLES.iter().zip(before).zip(read(scene).await) {
        let read = after - before;
        assert!(read < NEXT_TO_NOTHING, "{read} rows of {table} were read");
    }
}

/// Events of many wallets that are handled, and deliveries that wait for long.
async fn make_history(scene: &Scene) {
    if scene.scratch.dialect == Dialect::MariaDb {
        scene.scratch.execute("SET GLOBAL userstat = 1").await;
    }
    for _ in 0..history() / 5_000 {
        let rows: Vec<_> = (0..5_000).flat_map(|_| closings(Uuid::now_v7(), 1..=1)).collect();
        scene.insert_events(&rows).await;
    }
    let [events, deliveries] = TABLES.map(|table| scene.scratch.eventlog(table));
    let stream =
        if scene.scratch.dialect == Dialect::Postgres { "model_id::uuid" } else { "model_id" };
    let (node, analyze) = (
        Uuid::nil(),
        match scene.scratch.dialect {
            Dialect::Postgres => "VACUUM ANALYZE",
            _ => "ANALYZE TABLE",
        },
    );
    for statement in [
        format!("UPDATE {events} SET fanned_out = 1000000"),
        format!(
            "INSERT INTO {deliveries} (id, handler, stream, model_version, event_index, event_id, due, \
             attempts, node, state, version) SELECT id, 'ledger.post', {stream}, model_version, event_index, \
             id, '2999-01-01', 0, '{node}', 'WAITING', 1 FROM {events}"
        ),
        format!("{analyze} {events}"),
        format!("{analyze} {deliveries}"),
    ] {
        scene.scratch.execute(&statement).await;
    }
    // Both statements have read all events.
    until("the server has counted", async || read(scene).await[0] >= 2 * history() as u64).await;
}

/// Deliveries that are born claimed, that fail, that are claimed, and events without deliveries.
async fn handle_all_kinds_of_events(scene: &Scene) {
    let (one, other) = (scene.open_again().await, scene.open_again().await);
    let ledger = Ledger::new(|ctx, event| match (event.model_version, event.attempt) {
        (Some(2), 1) => async { Err("the ledger is closed".into()) }.boxed(),
        _ => post(ctx, event),
    });
    let mail = Mail::new(|_, _| async { Ok(()) }.boxed());
    let seen = mail.seen();
    let quick = HandlerOptions::default()
        .max_age(None)
        .retry(Duration::from_millis(1), Duration::from_millis(5));
    let unordered = HandlerOptions::unordered().max_age(None).from_now_on();
    let node = node(&one).handler_with(ledger, quick).handler_with(mail, unordered);
    let node = node.start().await.unwrap();
    let wallet = open_wallet(&one).await;
    deposit(&one, wallet, 9).await;
    deposit(&other, wallet, 10).await;
    for _ in 0..20 {
        scene.insert_events(&closings(Uuid::now_v7(), 1..=2)).await;
    }
    scene.until_posted(20 + 40).await;
    until("the mail is sent", async || seen.lock().unwrap().len() >= 20).await;
    node.drain(Duration::from_secs(60)).await;
    for databases in [one.databases(), other.databases(), &scene.databases] {
        databases.close().await;
    }
}

/// By table, how many rows and entries of indexes were read.
async fn read(scene: &Scene) -> [u64; 2] {
    let mut counts = [0; 2];
    for (count, table) in counts.iter_mut().zip(TABLES) {
        let name = scene.scratch.eventlog(table);
        let (schema, table) = name.split_once('.').unwrap();
        let (column, from) = match scene.scratch.dialect {
            Dialect::Postgres => (
                "seq_tup_read + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes i WHERE i.relid = t.relid)",
                format!(
                    "FROM pg_stat_user_tables t WHERE schemaname = '{schema}' AND relname = '{table}'"
                ),
            ),
            Dialect::MySql => (
                "COUNT_FETCH",
                format!(
                    "FROM performance_schema.table_io_waits_summary_by_table \
                     WHERE OBJECT_SCHEMA = '{schema}' AND OBJECT_NAME = '{table}'"
                ),
            ),
            _ => (
                "ROWS_READ",
                format!(
                    "FROM information_schema.TABLE_STATISTICS \
                     WHERE TABLE_SCHEMA = '{schema}' AND TABLE_NAME = '{table}'"
                ),
            ),
        };
        let rows = scene.scratch.select(&[column], &from).await;
        let text = rows.first().and_then(|row| row[0].clone());
        *count = text.map_or(0, |text| text.parse().unwrap());
    }
    counts
}

/// Whether the server has counted what sessions have read that are over.
async fn has_counted(scene: &Scene) -> bool {
    if scene.scratch.dialect != Dialect::Postgres {
        return true;
    }
    let others =
        "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
    scene.scratch.end_looks().await;
    scene.scratch.select(&["pid"], others).await.is_empty()
}
