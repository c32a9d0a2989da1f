//! Locks that another process holds.

use ekbatan::prelude::*;
use support::{Dialect, PlainConnection, until};

use crate::scene::{Foreign, Ledger, Scene, open_wallet};

on_every_database! {
    only postgres and mysql and mariadb:
    a_process_that_stands_still_in_its_sweep_stops_its_models_only,
    a_sweep_looks_past_more_locked_events_than_it_sweeps_at_once,
}

async fn a_process_that_stands_still_in_its_sweep_stops_its_models_only(scene: &Scene) {
    let options = ekbatan::events::HandlerOptions::default().max_age(None);
    let event = |wallet, version| Foreign { id: Uuid::now_v7(), wallet, place: Some((version, 0)) };
    let swept = Uuid::now_v7();
    let first = [event(swept, 1)];
    scene.insert_events(&first).await;
    let mut stopped = lock(scene, &first).await;

    let node = scene.node().handler_with(Ledger::posting(), options);
    let _node = node.start().await.unwrap();
    let other = scene.open_again().await;
    let later = open_wallet(&other).await;
    until("the event of another model is handled", async || scene.posted(later).await == [1]).await;
    // A later version has its delivery with the commit, but the sweep of the first one goes on.
    scene.insert_events(&[event(swept, 2)]).await;
    let last = open_wallet(&other).await;
    until("a still later one is handled", async || scene.posted(last).await == [1]).await;
    assert!(scene.posted(Id::from_uuid(swept)).await.is_empty(), "the first one was overtaken");
    stopped.execute("ROLLBACK").await;
    until("both are handled", async || scene.posted(Id::from_uuid(swept)).await == [1, 2]).await;
}

async fn a_sweep_looks_past_more_locked_events_than_it_sweeps_at_once(scene: &Scene) {
    let options = ekbatan::events::HandlerOptions::default().max_age(None);
    let event = |_| Foreign { id: Uuid::now_v7(), wallet: Uuid::now_v7(), place: Some((1, 0)) };
    let locked: Vec<_> = (0..60).map(event).collect();
    scene.insert_events(&locked).await;
    let mut stopped = lock(scene, &locked).await;

    let node = scene.node().swept_at_once(50).handler_with(Ledger::posting(), options);
    let _node = node.start().await.unwrap();
    let later = open_wallet(&scene.open_again().await).await;
    until("the event behind them is handled", async || scene.posted(later).await == [1]).await;
    stopped.execute("ROLLBACK").await;
    let last = Id::from_uuid(locked[59].wallet);
    until("so are they", async || scene.posted(last).await == [1]).await;
}

/// Locks the events, as a sweep leaves them whose process was stopped.
async fn lock(scene: &Scene, events: &[Foreign]) -> PlainConnection {
    let mut stopped = scene.scratch.connect().await;
    // As sweeps are on every database. It is what PostgreSQL does unless told otherwise.
    if scene.scratch.dialect != Dialect::Postgres {
        stopped.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED").await;
    }
    stopped.execute("BEGIN").await;
    let table = scene.scratch.eventlog("events");
    let ids: Vec<_> = events.iter().map(|event| format!("'{}'", event.id)).collect();
    let of = format!("FROM {table} WHERE id IN ({}) FOR UPDATE", ids.join(", "));
    assert_eq!(stopped.select(&["id"], &of).await.len(), events.len());
    stopped
}
