//! Locks that another process holds, and those of a claim.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ekbatan::events::{
    EventRelay, EventSelection, HandlerOptions, RelayError, RelaySender, RelayTerms, SentEvent,
    UndecodedEvent,
};
use ekbatan::prelude::*;
use futures_util::FutureExt;
use support::{Dialect, PlainConnection, until};

use crate::backlog::closings;
use crate::completing::waits_for_a_row;
use crate::scene::{Foreign, Ledger, Scene, executor, node, open_wallet, post};

on_every_database! {
    only postgres and mysql and mariadb:
    a_process_that_stands_still_in_its_sweep_stops_its_models_only,
    a_sweep_looks_past_more_locked_events_than_it_sweeps_at_once,
    an_unreadable_event_of_a_sweep_that_stands_still_stops_no_other_model,
    locked_deliveries_keep_no_other_model_waiting,
    a_locked_event_of_a_lost_node_keeps_no_relay_waiting,
}

mod on_mysql_and_mariadb {
    use super::*;

    on_every_database! { only mysql and mariadb: a_claim_locks_only_the_rows_that_it_names }
}

async fn a_process_that_stands_still_in_its_sweep_stops_its_models_only(scene: &Scene) {
    let options = ekbatan::events::HandlerOptions::default().max_age(None);
    let event = |wallet, version| Foreign { id: Uuid::now_v7(), wallet, place: Some((version, 0)) };
    let swept = Uuid::now_v7();
    let first = [event(swept, 1)];
    scene.insert_events(&first).await;
    let mut stopped = lock_events(scene, &first).await;

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
    let mut stopped = lock_events(scene, &locked).await;

    let node = scene.node().swept_at_once(50).handler_with(Ledger::posting(), options);
    let _node = node.start().await.unwrap();
    let later = open_wallet(&scene.open_again().await).await;
    until("the event behind them is handled", async || scene.posted(later).await == [1]).await;
    stopped.execute("ROLLBACK").await;
    let last = Id::from_uuid(locked[59].wallet);
    until("so are they", async || scene.posted(last).await == [1]).await;
}

async fn an_unreadable_event_of_a_sweep_that_stands_still_stops_no_other_model(scene: &Scene) {
    let options = ekbatan::events::HandlerOptions::default().max_age(None);
    let unreadable = closings(Uuid::now_v7(), 1..=1);
    scene.insert_events(&unreadable).await;
    let events = scene.scratch.eventlog("events");
    let mut writing = scene.scratch.connect().await;
    let date = if scene.scratch.dialect == Dialect::Postgres {
        "infinity"
    } else {
        writing.execute("SET SESSION sql_mode = ''").await;
        "0000-00-00 00:00:00"
    };
    writing.execute(&format!("UPDATE {events} SET event_date = '{date}'")).await;
    let mut stopped = lock_events(scene, &unreadable).await;

    let node = scene.node().handler_with(Ledger::posting(), options);
    let _node = node.start().await.unwrap();
    let later = open_wallet(&scene.open_again().await).await;
    until("the event of another model is handled", async || scene.posted(later).await == [1]).await;
    stopped.execute("ROLLBACK").await;
    let lacking = format!("FROM {events} WHERE fanned_out IS NULL");
    until("the unreadable one is passed over", async || {
        scene.scratch.select(&["id"], &lacking).await.is_empty()
    })
    .await;
}

/// One of them waits for an event that is tried again in an hour, the other one could be claimed.
async fn locked_deliveries_keep_no_other_model_waiting(scene: &Scene) {
    let hour = Duration::from_secs(60 * 60);
    let options = || ekbatan::events::HandlerOptions::default().max_age(None).retry(hour, hour);
    let (failed, free) = (Uuid::now_v7(), Uuid::now_v7());
    let ledger = || {
        Ledger::new(move |ctx, event| match event.model_id == failed.to_string() {
            true => async { Err("not yet".into()) }.boxed(),
            false => post(ctx, event),
        })
    };
    scene.insert_events(&closings(failed, 1..=1)).await;
    let node = scene.node().handler_with(ledger(), options()).start().await.unwrap();
    until("the first one has failed", async || node.handlers()[0].failed == 1).await;
    node.drain(Duration::from_secs(60)).await;
    // It gives events their deliveries, and claims none.
    let node = scene.node().handles(false).handler_with(ledger(), options()).start().await.unwrap();
    scene.insert_events(&closings(failed, 2..=2)).await;
    scene.insert_events(&closings(free, 1..=1)).await;
    let deliveries = scene.scratch.eventlog("deliveries");
    until("all have deliveries", async || scene.scratch.count(&deliveries).await == 3).await;
    node.drain(Duration::from_secs(60)).await;
    let mut operator = lock(scene, &deliveries, "state = 'NEW'", 2).await;

    let other = scene.open_again().await;
    let _node = scene.node().handler_with(ledger(), options()).start().await.unwrap();
    let later = open_wallet(&other).await;
    until("another model is handled", async || scene.posted(later).await == [1]).await;
    let last = open_wallet(&other).await;
    until("so is a later one", async || scene.posted(last).await == [1]).await;
    assert!(scene.posted(Id::from_uuid(free)).await.is_empty());
    operator.execute("ROLLBACK").await;
    until("so is what was locked", async || scene.posted(Id::from_uuid(free)).await == [1]).await;
}

/// A relay whose broker can keep a lost node from sending. It counts what it gets.
struct Fencing(Arc<AtomicUsize>);

impl EventRelay for Fencing {
    fn name(&self) -> &str {
        "out"
    }

    fn selection(&self) -> EventSelection {
        EventSelection::all()
    }

    fn options(&self) -> HandlerOptions {
        HandlerOptions::default()
    }

    fn batch_size(&self) -> usize {
        1
    }

    fn fences(&self) -> bool {
        true
    }

    async fn check(&self, _: RelayTerms) -> Result<(), RelayError> {
        Ok(())
    }

    async fn open(&self, _: RelaySender) -> Result<(), RelayError> {
        Ok(())
    }

    async fn send(&self, _: RelaySender, events: &[UndecodedEvent]) -> Vec<SentEvent> {
        self.0.fetch_add(events.len(), Ordering::SeqCst);
        vec![SentEvent::Acknowledged; events.len()]
    }
}

/// The lost node had claimed an event for a handler, which an operator looks at, and for a relay.
async fn a_locked_event_of_a_lost_node_keeps_no_relay_waiting(scene: &Scene) {
    let sent = Arc::new(AtomicUsize::new(0));
    let builder = || {
        let options = HandlerOptions::default().max_age(None);
        let node = scene.node().lease(Duration::from_secs(5)).relay(Fencing(sent.clone()));
        node.handler_with(Ledger::posting(), options)
    };
    let wallet = Uuid::now_v7();
    scene.insert_events(&closings(wallet, 1..=1)).await;
    let node = builder().handles(false).start().await.unwrap();
    let deliveries = scene.scratch.eventlog("deliveries");
    until("both have a delivery", async || scene.scratch.count(&deliveries).await == 2).await;
    node.drain(Duration::from_secs(60)).await;
    let lost = Uuid::now_v7();
    let claimed = format!("UPDATE {deliveries} SET state = 'CLAIMED', node = '{lost}'");
    scene.scratch.execute(&claimed).await;
    // A scan would lock the other row, too.
    let of_ledger = format!("FROM {deliveries} WHERE handler = 'ledger.post'");
    let row = scene.scratch.select(&["id"], &of_ledger).await.remove(0);
    let is_row = format!("id = '{}'", row[0].as_deref().unwrap());
    let mut operator = lock(scene, &deliveries, &is_row, 1).await;

    let _node = builder().start().await.unwrap();
    until("the relay gets its event", async || sent.load(Ordering::SeqCst) == 1).await;
    assert!(scene.posted(Id::from_uuid(wallet)).await.is_empty());
    operator.execute("ROLLBACK").await;
    scene.until_posted(1).await;
}

/// A claim of the second and the last of four deliveries waits for the last one. The others are free meanwhile,
/// and so is the place in the indexes where a new one goes.
async fn a_claim_locks_only_the_rows_that_it_names(scene: &Scene) {
    // From then on, commits insert deliveries of the handler, which nobody claims.
    let registering = scene.node().handler(Ledger::posting()).start().await.unwrap();
    registering.drain(Duration::from_secs(60)).await;
    let committing = scene.open_again().await;
    let _committing = node(&committing).start().await.unwrap();
    for _ in 0..4 {
        open_wallet(&committing).await;
    }
    let deliveries = scene.scratch.eventlog("deliveries");
    let ids = scene.scratch.select(&["id"], &format!("FROM {deliveries} ORDER BY id")).await;
    let ids: Vec<_> = ids.iter().map(|row| format!("'{}'", row[0].as_deref().unwrap())).collect();
    let [first, _, third, last] = &ids[..] else { panic!("{ids:?}") };
    let unclaimed = format!(
        "UPDATE {deliveries} SET state = 'WAITING', due = '2999-01-01' WHERE id IN ({first}, {third})"
    );
    scene.scratch.execute(&unclaimed).await;
    let mut held = lock(scene, &deliveries, &format!("id = {last}"), 1).await;

    // The claim waits at the server for as long as the test looks at what it has locked.
    let long = Duration::from_secs(600);
    let config = scene.scratch.config().connection_timeout(long).commit_timeout(long);
    let databases = Databases::connect(&config.into()).await.unwrap();
    let claiming = executor(&databases).await;
    let _claiming = node(&claiming).handler(Ledger::posting()).start().await.unwrap();
    until("the claim waits", async || waits_for_a_row(scene).await).await;
    let mut others = scene.scratch.connect().await;
    others.execute("BEGIN").await;
    let free = format!("FROM {deliveries} WHERE id IN ({first}, {third}) FOR UPDATE SKIP LOCKED");
    assert_eq!(others.select(&["id"], &free).await.len(), 2);
    others.execute("ROLLBACK").await;
    open_wallet(&committing).await;
    assert!(waits_for_a_row(scene).await, "the claim waits still");
    held.execute("ROLLBACK").await;
    scene.until_posted(3).await;
}

/// Locks the events, as a sweep leaves them whose process was stopped.
async fn lock_events(scene: &Scene, events: &[Foreign]) -> PlainConnection {
    let ids: Vec<_> = events.iter().map(|event| format!("'{}'", event.id)).collect();
    let among = format!("id IN ({})", ids.join(", "));
    lock(scene, &scene.scratch.eventlog("events"), &among, events.len()).await
}

/// Locks so many rows in a transaction that is left open.
async fn lock(scene: &Scene, table: &str, condition: &str, count: usize) -> PlainConnection {
    let mut open = scene.scratch.connect().await;
    // As sweeps are on every database. It is what PostgreSQL does unless told otherwise.
    if scene.scratch.dialect != Dialect::Postgres {
        open.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED").await;
    }
    open.execute("BEGIN").await;
    let of = format!("FROM {table} WHERE {condition} FOR UPDATE");
    assert_eq!(open.select(&["id"], &of).await.len(), count);
    open
}
