//! Retention: what nobody needs any more is deleted by age, and nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ekbatan::__private::deliveries::{Subscription, SubscriptionState, Subscriptions};
use ekbatan::config::{EkbatanConfig, EventsConfig, ShardMemberConfig};
use ekbatan::domain::ShardIdentifier;
use ekbatan::events::{Deleted, DeliveryFilter, HandlerOptions, Node, Retention, RetentionError};
use ekbatan::prelude::*;
use futures_util::FutureExt;
use support::{Dialect, ScratchDatabase, TestClock, until};
use tokio::sync::watch;

use crate::backlog::closings;
use crate::scene::{Foreign, Ledger, Mail, PostEntry, Posting, Scene, executor, migrations, post};

on_every_database! {
    handled_events_are_deleted_whatever_a_reader_has_marked,
    events_with_deliveries_stay,
    an_event_with_a_dead_letter_stays_until_it_is_settled,
    an_event_whose_dead_letter_is_replayed_stays,
    a_dead_letter_whose_event_is_gone_cannot_be_replayed,
    young_events_stay,
    events_of_another_program_stay_until_they_are_handled,
    without_handlers_only_what_is_delivered_goes,
    a_new_handler_gets_what_is_still_there,
    events_that_nobody_wants_any_more_are_deleted,
    a_long_history_is_deleted_in_pages,
    no_delivery_appears_for_a_deleted_event_while_handlers_register,
    no_delivery_appears_for_a_deleted_event_while_dead_letters_are_replayed,
    keys_messages_and_settled_dead_letters_are_deleted_by_age,
    a_node_runs_its_retention,
    a_node_runs_the_retention_of_its_configuration,
    small_transactions_delete_everything,
}

mod where_ids_are_texts {
    use super::*;

    on_every_database! { only sqlite and mysql: events_without_uuids_stay_and_keep_no_other_one }
}

const HOUR: Duration = Retention::LEAST;

fn days(count: u64) -> Duration {
    Duration::from_secs(count * 24 * 60 * 60)
}

fn once() -> HandlerOptions {
    HandlerOptions::default().max_attempts(1)
}

/// A ledger that fails at a version of every wallet.
fn failing(version: i64) -> Ledger {
    Ledger::new(move |ctx, event| match event.model_version {
        Some(failed) if failed == version => async { Err("the ledger is closed".into()) }.boxed(),
        _ => post(ctx, event),
    })
}

impl Scene {
    /// Makes all events older by two hours.
    pub async fn age_events(&self) {
        let events = self.scratch.eventlog("events");
        let older = match self.scratch.dialect {
            Dialect::Sqlite => {
                "completion_date = strftime('%Y-%m-%dT%H:%M:%f000Z', completion_date, '-2 hours')"
            }
            Dialect::Postgres => "recorded_date = recorded_date - interval '2 hours'",
            Dialect::MySql | Dialect::MariaDb => "recorded_date = recorded_date - INTERVAL 2 HOUR",
        };
        self.scratch.execute(&format!("UPDATE {events} SET {older}")).await;
    }

    /// Deletes handled events that are an hour old. Returns how many.
    async fn delete_events(&self) -> u64 {
        Retention::new().events(HOUR).run(&self.databases).await.unwrap().events
    }

    async fn count(&self, table: &str) -> usize {
        self.scratch.count(&self.scratch.eventlog(table)).await
    }

    /// The number of deliveries whose event is gone.
    async fn orphans(&self) -> usize {
        let (deliveries, events) =
            (self.scratch.eventlog("deliveries"), self.scratch.eventlog("events"));
        let of = format!(
            "{deliveries} d WHERE NOT EXISTS (SELECT 1 FROM {events} e WHERE e.id = d.event_id)"
        );
        self.scratch.count(&of).await
    }
}

async fn handled_events_are_deleted_whatever_a_reader_has_marked(scene: &Scene) {
    let node = scene.node().handler(Ledger::posting()).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    scene.deposit(wallet, 4).await;
    scene.until_handled("ledger.post").await;
    // The actions of the handler have left five rows without an event.
    scene.age_events().await;
    assert_eq!(scene.delete_events().await, 10);
    assert_eq!(scene.delete_events().await, 0);
    assert_eq!(scene.count("events").await, 0);
    // The next versions are handled as if nothing had happened.
    scene.deposit(wallet, 2).await;
    scene.until_posted(7).await;
    assert_eq!(scene.posted(wallet).await, (1..=7).collect::<Vec<i64>>());
    node.drain(Duration::from_secs(30)).await;
}

async fn events_with_deliveries_stay(scene: &Scene) {
    // Version 2 is parked, version 3 and 4 are blocked behind it.
    let node = scene.node().handler_with(failing(2), once()).start().await.unwrap();
    let poisoned = scene.open_wallet().await;
    scene.deposit(poisoned, 3).await;
    let blocked = async || {
        let state = format!("{} WHERE state = 'BLOCKED'", scene.scratch.eventlog("deliveries"));
        scene.scratch.count(&state).await
    };
    until("the later ones are blocked", async || blocked().await == 2).await;
    node.drain(Duration::from_secs(30)).await;
    // Nobody handles these: no node is left.
    let pending = scene.open_wallet().await;
    scene.deposit(pending, 1).await;
    let _idle = scene.node().start().await.unwrap();
    until("they have deliveries", async || {
        scene.operations().pending("ledger.post").await.unwrap() == 5
    })
    .await;
    scene.age_events().await;
    // The first version of the poisoned wallet, and the row of its handling.
    assert_eq!(scene.delete_events().await, 2);
    assert_eq!(scene.count("events").await, 5);
    assert_eq!(scene.orphans().await, 0);
}

/// Lets the second version of a wallet die. Returns when all else is handled.
async fn dead_letter(scene: &Scene) {
    let options = once().dead_letters();
    let node = scene.node().handler_with(failing(2), options).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    scene.deposit(wallet, 2).await;
    scene.until_handled("ledger.post").await;
    node.drain(Duration::from_secs(30)).await;
}

async fn an_event_with_a_dead_letter_stays_until_it_is_settled(scene: &Scene) {
    dead_letter(scene).await;
    scene.age_events().await;
    assert_eq!(scene.delete_events().await, 4);
    assert_eq!(scene.count("events").await, 1);
    let operations = scene.operations();
    let letter = operations.dead_letters(1).await.unwrap().remove(0);
    operations.dismiss(&letter, "alice", "posted by hand").await.unwrap();
    assert_eq!(scene.delete_events().await, 1);
    assert_eq!(scene.count("dead_letters").await, 1, "the letter itself has its own age");
}

async fn an_event_whose_dead_letter_is_replayed_stays(scene: &Scene) {
    dead_letter(scene).await;
    scene.age_events().await;
    let operations = scene.operations();
    let letter = operations.dead_letters(1).await.unwrap().remove(0);
    operations.replay(&letter, "alice", "the ledger is open again").await.unwrap();
    scene.delete_events().await;
    assert_eq!((scene.count("events").await, scene.orphans().await), (1, 0));
    let ledger = Ledger::posting();
    let seen = ledger.seen();
    let _node = scene.node().handler(ledger).start().await.unwrap();
    scene.until_posted(3).await;
    assert_eq!(seen.lock().unwrap()[0].version, 2);
}

async fn a_dead_letter_whose_event_is_gone_cannot_be_replayed(scene: &Scene) {
    dead_letter(scene).await;
    let operations = scene.operations();
    let letter = operations.dead_letters(1).await.unwrap().remove(0);
    scene.age_events().await;
    let events = scene.scratch.eventlog("events");
    scene.scratch.execute(&format!("DELETE FROM {events} WHERE id = '{}'", letter.event_id)).await;
    let error = operations.replay(&letter, "alice", "again").await.unwrap_err().to_string();
    assert!(error.contains("there is no event"), "{error}");
    assert_eq!(operations.pending("ledger.post").await.unwrap(), 0);
    assert_eq!(operations.dead_letters(1).await.unwrap().len(), 1, "it is not settled");
}

async fn young_events_stay(scene: &Scene) {
    let _node = scene.node().handler(Ledger::posting()).start().await.unwrap();
    scene.open_wallet().await;
    scene.until_handled("ledger.post").await;
    assert_eq!(scene.delete_events().await, 0);
    scene.age_events().await;
    let longer = Retention::new().events(3 * HOUR);
    assert_eq!(longer.run(&scene.databases).await.unwrap(), Deleted::default());
    assert_eq!(scene.count("events").await, 2);
    for retention in [
        Retention::new().events(HOUR / 2),
        Retention::new().keys(HOUR / 2),
        Retention::new().inbox(HOUR / 2),
        Retention::new().dead_letters(HOUR / 2),
    ] {
        let error = retention.run(&scene.databases).await.unwrap_err();
        assert!(matches!(error, RetentionError::TooYoung { .. }), "{error}");
        let error = scene.node().retention(retention).start().await.expect_err("it is refused");
        assert!(error.to_string().contains("at least 3600s"), "{error}");
    }
    // Far from every date that a database knows.
    let endless = Duration::MAX;
    let endless =
        Retention::new().events(endless).keys(endless).inbox(endless).dead_letters(endless);
    assert_eq!(endless.run(&scene.databases).await.unwrap(), Deleted::default());
}

async fn events_of_another_program_stay_until_they_are_handled(scene: &Scene) {
    // Ids of version 7 and of version 4.
    let ids = [Uuid::now_v7(), Uuid::from_u128(0xf47a_c10b_58cc_4372_a567_0e02_b2c3_d479)];
    let rows = ids.map(|id| Foreign { id, wallet: Uuid::now_v7(), place: Some((1, 0)) });
    scene.insert_events(&rows).await;
    // A node that wants none of them, so that there are handlers.
    let only = HandlerOptions::default().only(["WalletOpened"]);
    let node = scene.node().handler_with(Mail::posting(), only).start().await.unwrap();
    node.drain(Duration::from_secs(30)).await;
    let events = scene.scratch.eventlog("events");
    scene.scratch.execute(&format!("UPDATE {events} SET fanned_out = NULL")).await;
    scene.age_events().await;
    assert_eq!(scene.delete_events().await, 0);
    let options = HandlerOptions::default().max_age(None);
    let _node = scene.node().handler_with(Ledger::posting(), options).start().await.unwrap();
    scene.until_posted(2).await;
    scene.until_handled("ledger.post").await;
    scene.age_events().await;
    assert_eq!(scene.delete_events().await, 4, "two events, and the rows of their handling");
}

async fn without_handlers_only_what_is_delivered_goes(scene: &Scene) {
    // An action wants calls, and no events.
    let node = scene.node().action(PostEntry).start().await.unwrap();
    node.drain(Duration::from_secs(30)).await;
    let wallet = scene.open_wallet().await;
    scene.deposit(wallet, 2).await;
    let foreign = Foreign { id: Uuid::now_v7(), wallet: Uuid::now_v7(), place: None };
    scene.insert_events(&[foreign]).await;
    scene.age_events().await;
    assert_eq!(scene.delete_events().await, 0);
    let events = scene.scratch.eventlog("events");
    let yes = if scene.scratch.dialect == Dialect::Postgres { "true" } else { "1" };
    let deliver =
        format!("UPDATE {events} SET delivered = {yes} WHERE event_type <> 'WalletOpened'");
    scene.scratch.execute(&deliver).await;
    assert_eq!(scene.delete_events().await, 3);
    assert_eq!(scene.count("events").await, 1);
}

async fn a_new_handler_gets_what_is_still_there(scene: &Scene) {
    let _node = scene.node().handler(Ledger::posting()).start().await.unwrap();
    let early = scene.open_wallet().await;
    scene.until_handled("ledger.post").await;
    scene.age_events().await;
    assert_eq!(scene.delete_events().await, 2);
    scene.deposit(early, 2).await;
    scene.until_handled("ledger.post").await;
    let mail = Mail::new(|_, _| async { Ok(()) }.boxed());
    let seen = mail.seen();
    let other = scene.open_again().await;
    let _new = crate::scene::node(&other).handler(mail).start().await.unwrap();
    until("it gets the others", async || seen.lock().unwrap().len() == 2).await;
    scene.until_handled("mail.send").await;
    let versions: Vec<i64> = seen.lock().unwrap().iter().map(|seen| seen.version).collect();
    assert_eq!(versions, [2, 3]);
}

/// A handler that wants no earlier events lets them go, although they never get its generation.
async fn events_that_nobody_wants_any_more_are_deleted(scene: &Scene) {
    let clock = Arc::new(TestClock::default());
    let past = Databases::connect(&scene.scratch.config().into()).await.unwrap();
    let past = past.with_clock(clock.clone());
    clock.set(Utc::now() - days(40));
    crate::scene::open_wallet(&executor(&past).await).await;
    scene.age_events().await;
    let options = HandlerOptions::default().from_now_on();
    let _node = scene.node().handler_with(Ledger::posting(), options).start().await.unwrap();
    scene.open_wallet().await;
    scene.until_posted(1).await;
    scene.until_handled("ledger.post").await;
    assert_eq!(scene.delete_events().await, 1);
    assert_eq!(scene.count("events").await, 2);
}

async fn a_long_history_is_deleted_in_pages(scene: &Scene) {
    let row = |_| Foreign { id: Uuid::now_v7(), wallet: Uuid::now_v7(), place: Some((1, 0)) };
    let rows: Vec<Foreign> = (0..2_300).map(row).collect();
    scene.insert_events(&rows).await;
    let only = HandlerOptions::default().only(["WalletOpened"]);
    let _node = scene.node().handler_with(Ledger::posting(), only).start().await.unwrap();
    let lacking = format!("{} WHERE fanned_out IS NULL", scene.scratch.eventlog("events"));
    until("all are swept", async || scene.scratch.count(&lacking).await == 0).await;
    scene.age_events().await;
    // Two at the same time do not count a row twice.
    let (one, other) = tokio::join!(scene.delete_events(), scene.delete_events());
    assert!(one + other <= 2_300, "{one} and {other}");
    assert_eq!(one + other + scene.delete_events().await, 2_300);
    assert_eq!(scene.count("events").await, 0);
}

async fn events_without_uuids_stay_and_keep_no_other_one(scene: &Scene) {
    let events = scene.scratch.eventlog("events");
    scene.insert_events(&closings(Uuid::now_v7(), 1..=6)).await;
    let mut ids = vec!["'import-1'", "'import-2'", "upper(id)"];
    if scene.scratch.dialect == Dialect::Sqlite {
        ids.push("x'00ff'");
    }
    for (id, version) in ids.iter().zip(1..) {
        let renamed = format!("UPDATE {events} SET id = {id} WHERE model_version = {version}");
        scene.scratch.execute(&renamed).await;
    }
    let others = 6 - ids.len() as u64;
    let options = HandlerOptions::default().max_age(None);
    let node = scene.node().handler_with(Ledger::posting(), options).start().await.unwrap();
    scene.until_posted(others).await;
    let lacking = format!("{events} WHERE fanned_out IS NULL");
    until("all are swept", async || scene.scratch.count(&lacking).await == 0).await;
    scene.until_handled("ledger.post").await;
    node.drain(Duration::from_secs(30)).await;
    let stored = DeliveryFilter::stored_events("ledger.post");
    assert_eq!(scene.operations().count(&stored).await.unwrap(), others);
    scene.age_events().await;
    let retention = Retention::new().events(HOUR).rows_at_once(1);
    let delete = async || retention.run(&scene.databases).await.unwrap().events;
    // The actions of the handler have left a row for each event.
    assert_eq!([delete().await, delete().await], [2 * others, 0]);
    assert_eq!(scene.count("events").await, ids.len());
    scene.scratch.execute(&format!("UPDATE {events} SET delivered = 1")).await;
    assert_eq!(scene.databases.prune_outbox(HOUR).await.unwrap(), 0);
    assert_eq!(scene.count("events").await, ids.len());
}

/// Handlers register, one after another, and want all events, while retention deletes them.
async fn no_delivery_appears_for_a_deleted_event_while_handlers_register(scene: &Scene) {
    let shard = scene.databases.shards().next().expect("a shard");
    let row = |_| Foreign { id: Uuid::now_v7(), wallet: Uuid::now_v7(), place: Some((1, 0)) };
    let (mut swept, mut deleted) = (0, 0);
    for round in 1..=25 {
        let rows: Vec<Foreign> = (0..200).map(row).collect();
        scene.insert_events(&rows).await;
        register(scene, round).await;
        shard.sweep(&subscriptions(round), 1_000).await.unwrap();
        let deliveries = scene.scratch.eventlog("deliveries");
        scene.scratch.execute(&format!("DELETE FROM {deliveries}")).await;
        scene.age_events().await;
        // All events are handled. Now there is one handler more.
        let over = AtomicBool::new(false);
        let (swept_by_now, mut of_sweep) = watch::channel(0);
        let deleting = async {
            // Each round begins at another point of the sweep.
            of_sweep.wait_for(|swept| *swept >= 10 * (round as usize % 10)).await.unwrap();
            let mut count = 0;
            while !over.load(Ordering::SeqCst) {
                count += scene.delete_events().await;
            }
            count
        };
        let sweeping = async {
            let next = subscriptions(round + 1);
            let (mut count, mut last) = (0, 1);
            while last > 0 {
                last = shard.sweep(&next, 10).await.unwrap().events;
                count += last;
                swept_by_now.send_replace(count);
            }
            over.store(true, Ordering::SeqCst);
            count
        };
        let (of_round, swept_of_round) = tokio::join!(deleting, sweeping);
        assert_eq!(scene.orphans().await, 0, "in round {round}");
        assert_eq!(of_round as usize + swept_of_round, 200, "in round {round}");
        (deleted, swept) = (deleted + of_round, swept + swept_of_round);
        let events = scene.scratch.eventlog("events");
        scene.scratch.execute(&format!("DELETE FROM {deliveries}; DELETE FROM {events}")).await;
    }
    assert!(deleted > 0 && swept > 0, "{deleted} were deleted, {swept} were swept");
}

/// Handlers of which each begins a generation.
fn subscriptions(generation: i64) -> Subscriptions {
    let subscription = |since: i64| Subscription {
        id: Id::from_uuid(Uuid::now_v7()),
        handler: format!("handler.{since}"),
        event_type: "WalletClosed".to_owned(),
        since,
        since_date: None,
        state: SubscriptionState::Active,
    };
    Subscriptions::new(generation, (1..=generation).map(subscription))
}

/// Stores the handler of a generation.
async fn register(scene: &Scene, generation: i64) {
    let [rows, registry] =
        ["subscriptions", "subscription_registry"].map(|table| scene.scratch.eventlog(table));
    let (id, nil) = (Uuid::now_v7(), Uuid::nil());
    let sql = format!(
        "INSERT INTO {rows} (id, handler, event_type, since, state, version) \
         VALUES ('{id}', 'handler.{generation}', 'WalletClosed', {generation}, 'ACTIVE', 1); \
         DELETE FROM {registry}; \
         INSERT INTO {registry} (id, state, version) VALUES ('{nil}', 'ACTIVE', {generation})"
    );
    scene.scratch.execute(&sql).await;
}

async fn no_delivery_appears_for_a_deleted_event_while_dead_letters_are_replayed(scene: &Scene) {
    let options = once().dead_letters();
    let node = scene.node().handler_with(failing(2), options).start().await.unwrap();
    for _ in 0..40 {
        let wallet = scene.open_wallet().await;
        scene.deposit(wallet, 1).await;
    }
    scene.until_handled("ledger.post").await;
    node.drain(Duration::from_secs(30)).await;
    scene.age_events().await;
    let operations = scene.operations();
    let letters = operations.dead_letters(100).await.unwrap();
    assert_eq!(letters.len(), 40);
    let over = AtomicBool::new(false);
    let deleting = async {
        while !over.load(Ordering::SeqCst) {
            scene.delete_events().await;
        }
    };
    let replaying = async {
        for letter in &letters {
            operations.replay(letter, "alice", "again").await.unwrap();
        }
        over.store(true, Ordering::SeqCst);
    };
    tokio::join!(deleting, replaying);
    assert_eq!(operations.pending("ledger.post").await.unwrap(), 40);
    assert_eq!(scene.orphans().await, 0);
}

async fn keys_messages_and_settled_dead_letters_are_deleted_by_age(scene: &Scene) {
    dead_letter(scene).await;
    let operations = scene.operations();
    let letter = operations.dead_letters(1).await.unwrap().remove(0);
    let clock = Arc::new(TestClock::default());
    clock.set(Utc::now() - days(10));
    let past = Databases::connect(&scene.scratch.config().into()).await.unwrap();
    let past = past.with_clock(clock.clone());
    let posting = |n: u128| {
        let (event, wallet) = (Uuid::from_u128(n), n.to_string());
        Posting { event, wallet, wallet_version: 1 }
    };
    let old = executor(&past).await;
    for n in 0..1_200 {
        let call = old.execute(&PostEntry, posting(n));
        call.once("payments", format!("m{n}")).await.map(drop).unwrap();
    }
    old.execute(&PostEntry, posting(1)).idempotency_key("old").await.unwrap();
    scene.executor.execute(&PostEntry, posting(2)).idempotency_key("young").await.unwrap();
    let young = scene.executor.execute(&PostEntry, posting(2)).once("payments", "young");
    assert!(matches!(young.await.unwrap(), ekbatan::action::Once::Done(())));

    let retention = Retention::new().keys(days(9)).inbox(days(9)).dead_letters(days(9));
    let longer = Retention::new().keys(days(11)).inbox(days(11)).dead_letters(days(11));
    assert_eq!(longer.run(&scene.databases).await.unwrap(), Deleted::default());
    let deleted = retention.run(&scene.databases).await.unwrap();
    assert_eq!((deleted.keys, deleted.inbox, deleted.dead_letters), (1, 1_200, 0));
    assert_eq!((scene.count("idempotency_keys").await, scene.count("inbox").await), (1, 1));
    let again = scene.executor.execute(&PostEntry, posting(2)).once("payments", "young");
    assert_eq!(again.await.unwrap(), ekbatan::action::Once::Duplicate);

    // The date on which the letter was settled counts, and not that on which it died.
    let died = |date: &str| {
        let letters = scene.scratch.eventlog("dead_letters");
        format!("UPDATE {letters} SET {date} = '2020-01-01T00:00:00.000000Z'")
    };
    let date = |column: &str| match scene.scratch.dialect {
        Dialect::Sqlite => died(column),
        _ => died(column).replace("T00:00:00.000000Z", " 00:00:00"),
    };
    scene.scratch.execute(&date("died")).await;
    assert_eq!(retention.run(&scene.databases).await.unwrap(), Deleted::default());
    let letter = scene.operations().dead_letters(1).await.unwrap().pop().unwrap_or(letter);
    operations.dismiss(&letter, "alice", "posted by hand").await.unwrap();
    assert_eq!(retention.run(&scene.databases).await.unwrap(), Deleted::default());
    scene.scratch.execute(&date("settled")).await;
    assert_eq!(retention.run(&scene.databases).await.unwrap().dead_letters, 1);
    assert_eq!(scene.count("dead_letters").await, 0);
}

async fn a_node_runs_its_retention(scene: &Scene) {
    let retention = Retention::new().events(HOUR).every(Duration::from_millis(50));
    let builder = scene.node().handler(Ledger::posting()).retention(retention);
    let node = builder.start().await.unwrap();
    scene.open_wallet().await;
    scene.until_handled("ledger.post").await;
    scene.age_events().await;
    until("the events are deleted", async || scene.count("events").await == 0).await;
    node.drain(Duration::from_secs(30)).await;
}

async fn a_node_runs_the_retention_of_its_configuration(scene: &Scene) {
    let mut events = EventsConfig::default();
    events.retention.events = Some(HOUR);
    events.retention.every = Duration::from_millis(50);
    (events.claimed_at_once, events.swept_at_once) = (16, 1);
    let config = EkbatanConfig::from(scene.scratch.config()).events(events);
    let databases = Databases::connect(&config).await.unwrap();
    // The first events have no deliveries.
    let wallet = scene.open_wallet().await;
    scene.deposit(wallet, 40).await;
    let configured = executor(&databases).await;
    let builder = crate::scene::node(&configured).handler(Ledger::posting());
    let node = builder.start().await.unwrap();
    scene.until_posted(41).await;
    scene.until_handled("ledger.post").await;
    assert_eq!(scene.posted(wallet).await, (1..=41).collect::<Vec<i64>>());
    scene.age_events().await;
    until("the events are deleted", async || scene.count("events").await == 0).await;
    node.drain(Duration::from_secs(30)).await;
    assert_eq!(Retention::configured(&databases).run(&databases).await.unwrap().events, 0);
}

async fn small_transactions_delete_everything(scene: &Scene) {
    let node = scene.node().handler(Ledger::posting()).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    scene.deposit(wallet, 6).await;
    scene.until_handled("ledger.post").await;
    node.drain(Duration::from_secs(30)).await;
    scene.age_events().await;
    // Keys of a day ago.
    let clock = Arc::new(TestClock::default());
    clock.set(Utc::now() - days(1));
    let past = Databases::connect(&scene.scratch.config().into()).await.unwrap().with_clock(clock);
    let old = executor(&past).await;
    for n in 0..5 {
        let posting = Posting { event: Uuid::from_u128(n), wallet: "w".into(), wallet_version: 1 };
        old.execute(&PostEntry, posting).idempotency_key(format!("k{n}")).await.unwrap();
    }
    let retention = Retention::new().events(HOUR).keys(HOUR);
    for wrong in [0, Retention::MOST_AT_ONCE + 1] {
        let error = retention.clone().rows_at_once(wrong).run(&scene.databases).await.unwrap_err();
        assert!(matches!(error, RetentionError::RowsAtOnce { .. }), "{error}");
    }
    let deleted = retention.rows_at_once(2).run(&scene.databases).await.unwrap();
    assert_eq!((deleted.events, deleted.keys), (14, 5));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_that_fails_is_named_and_the_others_are_done() {
    let shard = ShardIdentifier::new(0, 1).expect("a shard");
    let (first, second) =
        (Scene::start(Dialect::Sqlite).await, ScratchDatabase::create(Dialect::Postgres).await);
    let config = EkbatanConfig::from(second.config());
    let config = config.shard(shard, ShardMemberConfig::new(0, first.scratch.config()));
    let databases = Databases::connect(&config).await.unwrap();
    databases.migrate(&migrations()).await.unwrap();
    let node = Node::builder(&first.executor).handler(Ledger::posting()).start().await.unwrap();
    first.open_wallet().await;
    first.until_handled("ledger.post").await;
    node.drain(Duration::from_secs(30)).await;
    first.age_events().await;
    second.execute("DROP TABLE eventlog.subscriptions").await;
    match Retention::new().events(HOUR).run(&databases).await.unwrap_err() {
        RetentionError::Shards { failed, deleted, .. } => {
            let shards: Vec<_> = failed.iter().map(|(shard, _)| *shard).collect();
            assert_eq!(shards, [ShardIdentifier::DEFAULT]);
            assert_eq!(deleted.events, 2);
        }
        other => panic!("{other}"),
    }
}
