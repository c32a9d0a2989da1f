//! Locks that another process holds, and those of a claim.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ekbatan::events::{
    EventRelay, EventSelection, HandlerOptions, Node, RelayError, RelaySender, RelayTerms,
    SentEvent, UndecodedEvent,
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
    locked_deliveries_without_an_order_keep_no_other_model_waiting,
    locked_deliveries_behind_others_keep_no_other_model_waiting,
    a_locked_delivery_behind_a_parked_one_leaves_no_other_one_blocked,
    a_locked_event_of_a_lost_node_keeps_no_relay_waiting,
    a_locked_row_of_a_lost_node_keeps_no_deliveries_of_others_waiting,
    locked_deliveries_of_a_lost_node_hide_no_others,
    a_lost_node_that_cannot_be_fenced_hides_no_other_one,
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

async fn locked_deliveries_without_an_order_keep_no_other_model_waiting(scene: &Scene) {
    is_handled_beside_locked_ones(scene, HandlerOptions::unordered(), 1).await;
}

async fn locked_deliveries_behind_others_keep_no_other_model_waiting(scene: &Scene) {
    is_handled_beside_locked_ones(scene, HandlerOptions::default(), 2).await;
}

/// The last of so many events of each of many models is locked, and those before it wait.
async fn is_handled_beside_locked_ones(scene: &Scene, options: HandlerOptions, versions: i64) {
    /// A round has room for so many, and these are the oldest.
    const MODELS: usize = 64;
    let options = options.max_age(None);
    let builder = || scene.node().handler_with(Ledger::posting(), options.clone());
    let of_model = |_| closings(Uuid::now_v7(), 1..=versions);
    let events: Vec<_> = (0..MODELS).flat_map(of_model).collect();
    scene.insert_events(&events).await;
    // It gives events their deliveries, and claims none.
    let node = builder().handles(false).start().await.unwrap();
    let deliveries = scene.scratch.eventlog("deliveries");
    until("all have deliveries", async || scene.scratch.count(&deliveries).await == events.len())
        .await;
    node.drain(Duration::from_secs(60)).await;
    let waiting = format!(
        "UPDATE {deliveries} SET state = 'WAITING', due = '2999-01-01' \
         WHERE model_version < {versions}"
    );
    scene.scratch.execute(&waiting).await;
    let mut operator = lock(scene, &deliveries, "state = 'NEW'", MODELS).await;

    let _node = builder().start().await.unwrap();
    let later = open_wallet(&scene.open_again().await).await;
    until("another model is handled", async || scene.posted(later).await == [1]).await;
    assert_eq!(scene.entries().count().await.unwrap(), 1);
    operator.execute("ROLLBACK").await;
    let new = format!("FROM {deliveries} WHERE state = 'NEW'");
    until("the node has come to all", async || {
        scene.scratch.select(&["id"], &new).await.is_empty()
    })
    .await;
}

async fn a_locked_delivery_behind_a_parked_one_leaves_no_other_one_blocked(scene: &Scene) {
    let options = HandlerOptions::default().max_age(None).max_attempts(1);
    let broken = Ledger::new(|_, _| async { Err("broken".into()) }.boxed());
    let wallet = Uuid::now_v7();
    for version in 1..=3 {
        scene.insert_events(&closings(wallet, version..=version)).await;
        // The ids of their deliveries have the same order: they begin with the milliseconds.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let node = scene.node().handler_with(broken, options.clone()).start().await.unwrap();
    let deliveries = scene.scratch.eventlog("deliveries");
    let states = format!("FROM {deliveries} ORDER BY model_version");
    let mut rows = Vec::new();
    until("two are blocked behind a parked one", async || {
        rows = scene.scratch.select(&["state", "id"], &states).await;
        let states: Vec<_> = rows.iter().map(|row| row[0].as_deref().unwrap()).collect();
        states == ["PARKED", "BLOCKED", "BLOCKED"]
    })
    .await;
    node.drain(Duration::from_secs(60)).await;
    let ids: Vec<_> = rows.iter().map(|row| row[1].as_deref().unwrap()).collect();
    let mut operator = lock(scene, &deliveries, &format!("id = '{}'", ids[1]), 1).await;
    let first = ids[0].parse().unwrap();
    scene.operations().retry(first, "alice", "mended").await.unwrap_err();
    let third = format!("FROM {deliveries} WHERE model_version = 3");
    assert_eq!(scene.scratch.select(&["state"], &third).await, [[Some("NEW".to_owned())]]);
    operator.execute("ROLLBACK").await;
    let _node = scene.node().handler_with(Ledger::posting(), options).start().await.unwrap();
    until("all are handled", async || scene.posted(Id::from_uuid(wallet)).await == [1, 2, 3]).await;
}

/// A relay whose broker can keep a lost node from sending. It counts what it gets.
struct Fencing {
    sent: Arc<AtomicUsize>,
    /// A node for which the broker gives no answer.
    unanswered: Option<Uuid>,
}

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
        self.sent.fetch_add(events.len(), Ordering::SeqCst);
        vec![SentEvent::Acknowledged; events.len()]
    }

    async fn fence(&self, lost: RelaySender) -> Result<(), RelayError> {
        if self.unanswered == Some(lost.node) {
            std::future::pending::<()>().await;
        }
        Ok(())
    }
}

/// The lost node had claimed an event for a handler, which an operator looks at, and for a relay.
async fn a_locked_event_of_a_lost_node_keeps_no_relay_waiting(scene: &Scene) {
    let sent = Arc::new(AtomicUsize::new(0));
    let builder = || {
        let options = HandlerOptions::default().max_age(None);
        let relay = Fencing { sent: sent.clone(), unanswered: None };
        let node = scene.node().lease(Duration::from_secs(5)).relay(relay);
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

async fn a_locked_row_of_a_lost_node_keeps_no_deliveries_of_others_waiting(scene: &Scene) {
    let builder = || {
        let options = HandlerOptions::default().max_age(None);
        scene.node().lease(Duration::from_secs(5)).handler_with(Ledger::posting(), options)
    };
    scene.insert_events(&closings(Uuid::now_v7(), 1..=1)).await;
    let lost = builder().handles(false).start().await.unwrap();
    let deliveries = scene.scratch.eventlog("deliveries");
    until("there is a delivery", async || scene.scratch.count(&deliveries).await == 1).await;
    // As if its process was killed.
    drop(lost);
    // Nobody claims it until then.
    let later = format!("UPDATE {deliveries} SET state = 'WAITING', due = '2999-01-01'");
    scene.scratch.execute(&later).await;
    let mut locked = lock(scene, &scene.scratch.eventlog("nodes"), "1 = 1", 1).await;
    let _node = builder().start().await.unwrap();
    until("its row is to be deleted", async || waits_for_a_row(scene).await).await;
    let another = Uuid::now_v7();
    assert_eq!(scene.entries().count().await.unwrap(), 0);
    let claimed = format!("UPDATE {deliveries} SET state = 'CLAIMED', node = '{another}'");
    scene.scratch.execute(&claimed).await;
    scene.until_posted(1).await;
    locked.execute("ROLLBACK").await;
}

/// As a node leaves them that stands still while it looks at what lost nodes had claimed.
async fn locked_deliveries_of_a_lost_node_hide_no_others(scene: &Scene) {
    let builder = || {
        let options = HandlerOptions::default().max_age(None);
        scene.node().lease(Duration::from_secs(20)).handler_with(Ledger::posting(), options)
    };
    let node = builder().handles(false).start().await.unwrap();
    let first = claimed_by_lost_nodes(scene, node, [(); 2].map(|()| Uuid::now_v7())).await;
    let deliveries = scene.scratch.eventlog("deliveries");
    let mut stopped = scene.scratch.connect().await;
    stopped.execute("BEGIN").await;
    // One by one: a scan would lock the others, too.
    for id in &first {
        stopped.execute(&format!("SELECT 1 FROM {deliveries} WHERE id = {id} FOR UPDATE")).await;
    }

    let _node = builder().start().await.unwrap();
    scene.until_posted(FOUND_LAST as u64).await;
    stopped.execute("ROLLBACK").await;
    scene.until_posted((FOUND_FIRST + FOUND_LAST) as u64).await;
}

async fn a_lost_node_that_cannot_be_fenced_hides_no_other_one(scene: &Scene) {
    let sent = Arc::new(AtomicUsize::new(0));
    let lost = [(); 2].map(|()| Uuid::now_v7());
    let builder = || {
        let relay = Fencing { sent: sent.clone(), unanswered: Some(lost[0]) };
        scene.node().lease(Duration::from_secs(20)).relay(relay)
    };
    let node = builder().handles(false).start().await.unwrap();
    claimed_by_lost_nodes(scene, node, lost).await;
    let _node = builder().start().await.unwrap();
    until("the relay gets the events of the other one", async || {
        sent.load(Ordering::SeqCst) >= FOUND_LAST
    })
    .await;
}

/// More deliveries than a node looks at together.
const FOUND_FIRST: usize = 300;
/// How many a look finds after them.
const FOUND_LAST: usize = 20;

/// Has a node give events of many models their deliveries, as if lost nodes had claimed these: the second one those that a
/// look finds last. Returns the ids of the others.
async fn claimed_by_lost_nodes(scene: &Scene, node: Node, lost: [Uuid; 2]) -> Vec<String> {
    let closing = |_| closings(Uuid::now_v7(), 1..=1);
    let events: Vec<_> = (0..FOUND_FIRST + FOUND_LAST).flat_map(closing).collect();
    scene.insert_events(&events).await;
    let deliveries = scene.scratch.eventlog("deliveries");
    until("all have deliveries", async || scene.scratch.count(&deliveries).await == events.len())
        .await;
    node.drain(Duration::from_secs(60)).await;
    let ids = scene.scratch.select(&["id"], &format!("FROM {deliveries} ORDER BY id")).await;
    let ids: Vec<_> = ids.iter().map(|row| format!("'{}'", row[0].as_deref().unwrap())).collect();
    let (first, last) = ids.split_at(FOUND_FIRST);
    for (node, ids, due) in [(lost[0], first, "2026-01-31"), (lost[1], last, "2026-02-28")] {
        let claimed = format!(
            "UPDATE {deliveries} SET state = 'CLAIMED', node = '{node}', due = '{due}' \
             WHERE id IN ({})",
            ids.join(", ")
        );
        scene.scratch.execute(&claimed).await;
    }
    first.to_vec()
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
