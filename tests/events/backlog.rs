//! Long backlogs, and what must not wait behind them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ekbatan::events::HandlerOptions;
use ekbatan::prelude::*;
use futures_util::FutureExt;
use support::{soak, until};
use tokio::sync::Semaphore;

use crate::scene::{Entry, Foreign, Ledger, Mail, PostEntry, Renamed, Scene, deposit, node, post};

on_every_database! {
    a_stream_that_stands_still_keeps_no_other_one,
    a_stream_that_another_node_handles_hides_no_later_event_from_an_idle_node,
    a_parked_event_blocks_all_behind_it_and_nothing_else,
    a_failed_event_is_tried_again_before_a_backlog_ends,
    an_event_that_others_released_runs_once_at_a_time,
    a_process_that_knows_an_earlier_name_overtakes_nothing,
    a_handler_of_many_names_claims_many_models_at_once,
    events_of_models_without_uuids_are_handled,
    two_models_that_share_a_stream_are_handled_one_at_a_time,
}

on_every_database! { on_sqlite_only:
    an_event_that_cannot_be_read_stops_no_other_one,
    a_sweep_after_many_registrations_stops_nothing,
    events_are_swept_where_there_are_only_actions,
}

mod on_postgres {
    use super::*;

    on_every_database! { only postgres: a_sweep_that_takes_longer_than_a_round_does_less_the_next_time }
}

fn quick() -> HandlerOptions {
    // The events of other programs have an old date.
    HandlerOptions::default()
        .retry(Duration::from_millis(1), Duration::from_millis(5))
        .max_age(None)
}

fn unordered() -> HandlerOptions {
    HandlerOptions::unordered()
        .retry(Duration::from_millis(1), Duration::from_millis(5))
        .max_age(None)
}

/// Closings of a wallet, from a version on.
pub fn closings(wallet: Uuid, versions: std::ops::RangeInclusive<i64>) -> Vec<Foreign> {
    let row = |version| Foreign { id: Uuid::now_v7(), wallet, place: Some((version, 0)) };
    versions.map(row).collect()
}

/// Each of them adds a handler of later events, and begins a generation.
async fn a_sweep_after_many_registrations_stops_nothing(scene: &Scene) {
    const REGISTRATIONS: i64 = 510;
    let start =
        async || scene.node().handler_with(Ledger::posting(), quick()).start().await.unwrap();
    start().await.drain(Duration::from_secs(60)).await;
    let row = |since| {
        let id = Uuid::now_v7();
        format!(
            "('{id}', 'handler.{since}', 'WalletClosed', {since}, '2999-01-01T12:00:00.000000Z', \
             'ACTIVE', 1)"
        )
    };
    let rows: Vec<String> = (2..=REGISTRATIONS).map(row).collect();
    let [subscriptions, registry] =
        ["subscriptions", "subscription_registry"].map(|table| scene.scratch.eventlog(table));
    let registered = format!(
        "INSERT INTO {subscriptions} \
         (id, handler, event_type, since, since_date, state, version) VALUES {}; \
         UPDATE {registry} SET version = {REGISTRATIONS} WHERE id = '{}'",
        rows.join(", "),
        Uuid::nil(),
    );
    scene.scratch.execute(&registered).await;
    let wallet = Uuid::now_v7();
    let _node = start().await;
    for version in 1..=2 {
        scene.insert_events(&closings(wallet, version..=version)).await;
        scene.until_posted(version.unsigned_abs()).await;
    }
    assert_eq!(scene.posted(Id::from_uuid(wallet)).await, [1, 2]);
}

/// Retention goes by the generations of events.
async fn events_are_swept_where_there_are_only_actions(scene: &Scene) {
    scene.insert_events(&closings(Uuid::now_v7(), 1..=2)).await;
    let _node = scene.node().action_with(PostEntry, quick()).start().await.unwrap();
    let lacking = format!("{} WHERE fanned_out IS NULL", scene.scratch.eventlog("events"));
    until("all are swept", async || scene.scratch.count(&lacking).await == 0).await;
}

/// Each name of each model is a bound of its own in what a round asks.
async fn a_handler_of_many_names_claims_many_models_at_once(scene: &Scene) {
    const MODELS: u64 = 70;
    let events: Vec<_> = (0..MODELS).flat_map(|_| closings(Uuid::now_v7(), 1..=1)).collect();
    scene.insert_events(&events).await;
    let options = (0..15).fold(quick(), |options, n| options.alias(format!("ledger.post-{n}")));
    let node = scene.node().claimed_at_once(1_000).handler_with(Ledger::posting(), options);
    let _node = node.start().await.unwrap();
    scene.until_posted(MODELS).await;
}

async fn a_stream_that_stands_still_keeps_no_other_one(scene: &Scene) {
    let slow = Uuid::now_v7();
    let gate = Arc::new(Semaphore::new(0));
    let closed = gate.clone();
    let ledger = Ledger::new(move |ctx, event| {
        let gate = closed.clone();
        async move {
            if event.model_id == slow.to_string() {
                let _open = gate.acquire().await?;
            }
            post(ctx, event).await
        }
        .boxed()
    });
    // More than a round looks at, and all of them are older than the others.
    scene.insert_events(&closings(slow, 1..=600)).await;
    let node = scene.node().handler_with(ledger, quick().timeout(Duration::from_secs(600)));
    let _node = node.start().await.unwrap();
    until("all have their deliveries", async || {
        scene.operations().pending("ledger.post").await.unwrap() == 600
    })
    .await;
    for _ in 0..20 {
        scene.insert_events(&closings(Uuid::now_v7(), 1..=1)).await;
    }
    scene.until_posted(20).await;
    gate.add_permits(1_000);
    scene.until_handled("ledger.post").await;
    assert_eq!(scene.posted(Id::from_uuid(slow)).await, (1..=600).collect::<Vec<i64>>());
}

/// A node passes the stream over for a shorter time than an idle one pauses.
async fn a_stream_that_another_node_handles_hides_no_later_event_from_an_idle_node(scene: &Scene) {
    const PAUSE: Duration = Duration::from_secs(1);
    const NEVER: Duration = Duration::from_secs(60 * 60);
    let slow = Uuid::now_v7();
    // It gives events their deliveries, and claims none. Neither node looks at what others have claimed.
    let delivering = scene.node().handles(false).lease(NEVER).doorbell(false);
    let delivering = delivering.handler_with(Ledger::posting(), quick());
    let _delivering = delivering.start().await.unwrap();
    // More than a node holds.
    scene.insert_events(&closings(slow, 1..=100)).await;
    let deliveries = scene.scratch.eventlog("deliveries");
    until("all have deliveries", async || scene.scratch.count(&deliveries).await == 100).await;
    let another = Uuid::now_v7();
    let claimed = format!(
        "UPDATE {deliveries} SET state = 'CLAIMED', node = '{another}' WHERE model_version = 1"
    );
    scene.scratch.execute(&claimed).await;

    let idle = scene.open_again().await;
    let idle = node(&idle).poll(Duration::from_millis(1), PAUSE).lease(NEVER).doorbell(false);
    let _idle = idle.handler_with(Ledger::posting(), quick()).start().await.unwrap();
    // Its pauses have grown by then.
    tokio::time::sleep(3 * PAUSE).await;
    let later = scene.open_wallet().await;
    until("the later event is handled", async || scene.posted(later).await == [1]).await;
    assert!(scene.posted(Id::from_uuid(slow)).await.is_empty());
}

async fn a_parked_event_blocks_all_behind_it_and_nothing_else(scene: &Scene) {
    let count = soak::rounds(1_500, 100_000) as i64;
    let broken = Uuid::now_v7();
    let is_mended = Arc::new(AtomicUsize::new(0));
    let mended = is_mended.clone();
    let ledger = Ledger::new(move |ctx, event| {
        let is_broken = event.model_id == broken.to_string() && event.model_version == Some(1);
        match is_broken && mended.load(Ordering::SeqCst) == 0 {
            true => async { Err("broken".into()) }.boxed(),
            false => post(ctx, event),
        }
    });
    for rows in closings(broken, 1..=count).chunks(500) {
        scene.insert_events(rows).await;
    }
    let options = quick().max_attempts(1);
    let _node = scene.node().handler_with(ledger, options).start().await.unwrap();
    let blocked = format!("FROM {} WHERE state = 'BLOCKED'", scene.scratch.eventlog("deliveries"));
    // A busy machine may take longer for all of them than `until` waits.
    let parts = || (0..count).step_by(250);
    for behind in parts().chain([count - 1]) {
        until("those behind it are blocked", async || {
            let rows = scene.scratch.select(&["count(*)"], &blocked).await;
            rows[0][0].as_deref().unwrap().parse::<i64>().unwrap() >= behind
        })
        .await;
    }
    scene.insert_events(&closings(Uuid::now_v7(), 1..=10)).await;
    scene.until_posted(10).await;
    assert!(scene.posted(Id::from_uuid(broken)).await.is_empty());

    is_mended.store(1, Ordering::SeqCst);
    let operations = scene.operations();
    let parked = operations.parked(10).await.unwrap();
    operations.retry(parked[0].id, "alice", "mended").await.unwrap();
    for posted in parts() {
        scene.until_posted(posted as u64).await;
    }
    scene.until_handled("ledger.post").await;
    assert_eq!(scene.posted(Id::from_uuid(broken)).await, (1..=count).collect::<Vec<i64>>());
}

async fn a_failed_event_is_tried_again_before_a_backlog_ends(scene: &Scene) {
    let broken = Uuid::now_v7();
    let mail = Mail::new(move |_, event| {
        if event.model_id == broken.to_string() && event.attempt == 1 {
            return async { Err("the first time".into()) }.boxed();
        }
        async { Ok(()) }.boxed()
    });
    let seen = mail.seen();
    let mut rows = closings(broken, 1..=1);
    rows.extend((0..3_000).flat_map(|_| closings(Uuid::now_v7(), 1..=1)));
    for rows in rows.chunks(500) {
        scene.insert_events(rows).await;
    }
    let _node = scene.node().handler_with(mail, unordered()).start().await.unwrap();
    until("all are handled", async || seen.lock().unwrap().len() == 3_002).await;
    let again = seen.lock().unwrap().iter().position(|seen| seen.attempt == 2);
    assert!(again.is_some_and(|at| at < 2_500), "{again:?}");
}

/// Others take a node for dead and release what it has claimed, while its runs go on.
async fn an_event_that_others_released_runs_once_at_a_time(scene: &Scene) {
    let gate = Arc::new(Semaphore::new(0));
    let running: Arc<Mutex<HashMap<Uuid, usize>>> = Arc::default();
    let most = Arc::new(AtomicUsize::new(0));
    let (open, now, highest) = (gate.clone(), running.clone(), most.clone());
    let ledger = Ledger::new(move |ctx, event| {
        let (gate, running, most) = (open.clone(), now.clone(), highest.clone());
        async move {
            let count = {
                let mut running = running.lock().unwrap();
                let count = running.entry(event.id).or_default();
                *count += 1;
                *count
            };
            most.fetch_max(count, Ordering::SeqCst);
            let waiting = gate.acquire().await.map(drop);
            let posted = post(ctx, event).await;
            *running.lock().unwrap().entry(event.id).or_default() -= 1;
            waiting?;
            posted
        }
        .boxed()
    });
    let seen = ledger.seen();
    let options = unordered().timeout(Duration::from_secs(600));
    let mail = Mail::new(|_, _| async { Ok(()) }.boxed());
    let node = scene.node().handler_with(ledger, options).handler_with(mail, quick());
    let _node = node.start().await.unwrap();
    for _ in 0..3 {
        scene.insert_events(&closings(Uuid::now_v7(), 1..=1)).await;
    }
    until("all of them run", async || seen.lock().unwrap().len() == 3).await;
    let deliveries = scene.scratch.eventlog("deliveries");
    for n in 1..=5 {
        let released = format!(
            "UPDATE {deliveries} SET state = 'WAITING', version = version + 1 \
             WHERE handler = 'ledger.post'"
        );
        scene.scratch.execute(&released).await;
        // The node looks for deliveries in the meantime.
        scene.insert_events(&closings(Uuid::now_v7(), 1..=1)).await;
        until("a later event is mailed", async || {
            let mails = format!("FROM {deliveries} WHERE handler = 'mail.send'");
            seen.lock().unwrap().len() >= 3 + n
                && scene.scratch.select(&["id"], &mails).await.is_empty()
        })
        .await;
    }
    gate.add_permits(1_000);
    scene.until_handled("ledger.post").await;
    assert_eq!(most.load(Ordering::SeqCst), 1, "an event was run beside itself");
    assert_eq!(scene.entries().count().await.unwrap(), 8);
}

/// During a deployment, the new process has renamed a handler.
async fn a_process_that_knows_an_earlier_name_overtakes_nothing(scene: &Scene) {
    let old = scene.open_again().await;
    let mail = Mail::new(|_, _| async { Ok(()) }.boxed());
    // Its heart finds the new name after an hour.
    let lease = Duration::from_secs(5 * 60 * 60);
    let old_node = node(&old).lease(lease).handler_with(Ledger::posting(), quick());
    let _old_node = old_node.handler_with(mail, quick()).start().await.unwrap();
    let wallet = crate::scene::open_wallet(&old).await;
    scene.until_posted(1).await;
    let renamed = scene.node().handler_with(Renamed::posting(), quick().alias("ledger.post"));
    let renamed = renamed.start().await.unwrap();
    assert!(renamed.pause("ledger.post_again"));
    scene.deposit(wallet, 1).await;
    // The old process does not know yet of the delivery of the second version.
    deposit(&old, wallet, 1).await;
    let later = Uuid::now_v7();
    scene.insert_events(&closings(later, 1..=1)).await;
    until("the old process has looked for events", async || {
        let of_later = format!(
            "FROM {} WHERE stream = '{later}' AND handler = 'mail.send'",
            scene.scratch.eventlog("deliveries")
        );
        let events = format!(
            "FROM {} WHERE model_id = '{later}' AND fanned_out IS NOT NULL",
            scene.scratch.eventlog("events")
        );
        scene.scratch.select(&["id"], &events).await.len() == 1
            && scene.scratch.select(&["id"], &of_later).await.is_empty()
    })
    .await;
    assert_eq!(scene.posted(wallet).await, [1]);
    assert!(renamed.resume("ledger.post_again"));
    scene.until_posted(4).await;
    assert_eq!(scene.posted(wallet).await, [1, 2, 3]);
}

async fn an_event_that_cannot_be_read_stops_no_other_one(scene: &Scene) {
    let events = scene.scratch.eventlog("events");
    let rows = closings(Uuid::now_v7(), 1..=3);
    scene.insert_events(&rows).await;
    let unreadable =
        format!("UPDATE {events} SET event_date = 'yesterday' WHERE model_version = 2");
    scene.scratch.execute(&unreadable).await;
    let wallet = rows[0].wallet;
    let _node = scene.node().handler_with(Ledger::posting(), quick()).start().await.unwrap();
    scene.until_posted(2).await;
    scene.insert_events(&closings(wallet, 4..=4)).await;
    scene.until_posted(3).await;
    assert_eq!(scene.posted(Id::from_uuid(wallet)).await, [1, 3, 4]);
}

async fn events_of_models_without_uuids_are_handled(scene: &Scene) {
    let events = scene.scratch.eventlog("events");
    for n in 0..40 {
        let rows = closings(Uuid::now_v7(), 1..=1);
        scene.insert_events(&rows).await;
        let named = format!(
            "UPDATE {events} SET model_id = 'customer {n}' WHERE model_id = '{}'",
            rows[0].wallet
        );
        scene.scratch.execute(&named).await;
    }
    let _node = scene.node().handler_with(Ledger::posting(), quick()).start().await.unwrap();
    scene.until_posted(40).await;
    for n in 0..40 {
        let of_model = Entry::WALLET.eq(format!("customer {n}"));
        assert_eq!(scene.entries().count_where(of_model).await.unwrap(), 1);
    }
}

/// The id of one model is the hash of the id of another one.
async fn two_models_that_share_a_stream_are_handled_one_at_a_time(scene: &Scene) {
    let (gate, running, most) =
        (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (open, now, highest) = (gate.clone(), running.clone(), most.clone());
    let ledger = Ledger::new(move |ctx, event| {
        let (gate, running, most) = (open.clone(), now.clone(), highest.clone());
        async move {
            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            let waited = gate.acquire().await.map(drop);
            let posted = post(ctx, event).await;
            running.fetch_sub(1, Ordering::SeqCst);
            waited?;
            posted
        }
        .boxed()
    });
    let named = closings(Uuid::now_v7(), 1..=3);
    scene.insert_events(&named).await;
    let (events, deliveries) =
        (scene.scratch.eventlog("events"), scene.scratch.eventlog("deliveries"));
    let rename = format!("UPDATE {events} SET model_id = 'order 7'");
    scene.scratch.execute(&rename).await;
    let options = quick().timeout(Duration::from_secs(600));
    let _node = scene.node().handler_with(ledger, options).start().await.unwrap();
    until("it has its deliveries", async || scene.scratch.count(&deliveries).await == 3).await;
    let streams = scene.scratch.select(&["stream"], &format!("FROM {deliveries}")).await;
    let hashed: Uuid = streams[0][0].as_deref().unwrap().parse().unwrap();
    scene.insert_events(&closings(hashed, 1..=3)).await;
    until("so has the other one", async || scene.scratch.count(&deliveries).await == 6).await;
    let streams = scene.scratch.select(&["stream"], &format!("FROM {deliveries}")).await;
    assert!(streams.iter().all(|stream| stream == &streams[0]), "{streams:?}");
    gate.add_permits(1);
    scene.until_handled("ledger.post").await;
    assert_eq!(most.load(Ordering::SeqCst), 1, "one of both runs at a time");
    for model in ["order 7".to_owned(), hashed.to_string()] {
        let mut entries = scene.entries().find_where(Entry::WALLET.eq(model)).await.unwrap();
        entries.sort_by_key(|entry| entry.id.uuid());
        let posted: Vec<i64> = entries.iter().map(|entry| entry.wallet_version).collect();
        assert_eq!(posted, [1, 2, 3]);
    }
}

/// A round has 30 s, and all of these events would take 40 s.
async fn a_sweep_that_takes_longer_than_a_round_does_less_the_next_time(scene: &Scene) {
    let deliveries = scene.scratch.eventlog("deliveries");
    let slow = format!(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ \
         BEGIN PERFORM pg_sleep(0.04); RETURN NEW; END $$; \
         CREATE TRIGGER slow BEFORE INSERT ON {deliveries} FOR EACH ROW EXECUTE FUNCTION slow()"
    );
    scene.scratch.execute(&slow).await;
    for _ in 0..10 {
        scene.insert_events(&closings(Uuid::now_v7(), 1..=100)).await;
    }
    let builder = scene.node().swept_at_once(1_000).handler_with(Ledger::posting(), quick());
    let _node = builder.start().await.unwrap();
    until("some are handled", async || scene.entries().count().await.unwrap() > 0).await;
}
