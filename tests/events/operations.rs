//! What operators do: counted replays, purges, pauses, retirements, and what they see.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ekbatan::config::EventsConfig;
use ekbatan::events::{
    DeadLetterState, DeliveryFilter, EventsError, HandlerOptions, InterventionKind,
    InterventionState,
};
use ekbatan::prelude::*;
use futures_util::FutureExt;
use support::wallet::{Deposit, DepositMoney, Wallet};
use support::{Dialect, Recorder, until};

use crate::scene::{Foreign, Ledger, Mail, PostEntry, Posting, Renamed, Scene, post};

on_every_database! {
    dead_letters_are_replayed_as_they_were_counted_and_in_order,
    a_replay_is_refused_if_it_is_not_what_was_counted,
    two_replays_at_a_time_deliver_each_dead_letter_once,
    stored_events_are_replayed_in_order_and_their_steps_run_anew,
    a_replay_keeps_the_order_of_versions_whatever_the_ids_say,
    a_replay_leaves_out_what_is_still_to_be_handled,
    a_long_reason_keeps_no_event_from_a_replay,
    a_replay_reaches_events_from_before_the_handler_began,
    an_event_that_is_too_old_runs_once_more_if_an_operator_wants_it,
    purged_letters_are_gone_and_the_log_says_who_did_it,
    who_and_why_must_be_said,
    a_pause_holds_for_every_node_until_it_ends,
    a_retired_handler_leaves_nothing_to_be_handled,
    a_retired_handler_that_comes_back_goes_on_from_there,
    nothing_is_replayed_for_a_retired_handler_until_it_is_back,
    the_status_counts_what_waits_and_for_how_long,
}

on_every_database! { on_sqlite_only:
    a_node_begins_with_the_settings_of_the_configuration,
    an_event_with_many_dead_letters_is_replayed_once,
}

mod on_servers {
    use super::*;

    on_every_database! {
        only postgres and mysql and mariadb: a_pause_that_waits_for_a_lock_for_too_long_fails,
    }
}

/// How many deliveries a replay inserts in a transaction.
const OF_A_TRANSACTION: usize = 256;

fn quick() -> HandlerOptions {
    HandlerOptions::default().retry(Duration::from_millis(1), Duration::from_millis(5))
}

/// A ledger that fails at versions 2 and 3 while it is closed, and the switch that opens it.
fn closed() -> (Ledger, Arc<AtomicBool>) {
    let is_open = Arc::new(AtomicBool::new(false));
    let switch = is_open.clone();
    let ledger = Ledger::new(move |ctx, event| {
        let fails = matches!(event.model_version, Some(2 | 3)) && !is_open.load(Ordering::SeqCst);
        if fails { async { Err("the ledger is closed".into()) }.boxed() } else { post(ctx, event) }
    });
    (ledger, switch)
}

/// Three wallets with four events each. Those of versions 2 and 3 are dead letters.
async fn with_dead_letters(scene: &Scene) -> (Vec<Id<Wallet>>, ekbatan::events::Node) {
    let (ledger, switch) = closed();
    let options = quick().max_attempts(1).dead_letters();
    let node = scene.node().handler_with(ledger, options).start().await.unwrap();
    let mut wallets = Vec::new();
    for _ in 0..3 {
        let wallet = scene.open_wallet().await;
        scene.deposit(wallet, 3).await;
        wallets.push(wallet);
    }
    scene.until_handled("ledger.post").await;
    switch.store(true, Ordering::SeqCst);
    (wallets, node)
}

async fn dead_letters_are_replayed_as_they_were_counted_and_in_order(scene: &Scene) {
    let (wallets, _node) = with_dead_letters(scene).await;
    let operations = scene.operations();
    let all = DeliveryFilter::dead_letters("ledger.post");
    let count = async |filter: &DeliveryFilter| operations.count(filter).await.unwrap();
    assert_eq!(count(&all).await, 6);
    assert_eq!(count(&all.clone().event_type("WalletMoneyDeposited")).await, 6);
    assert_eq!(count(&all.clone().event_type("WalletOpened")).await, 0);
    assert_eq!(count(&all.clone().model_type("Wallet")).await, 6);
    assert_eq!(count(&all.clone().model_type("Purse")).await, 0);
    let third = operations.dead_letters(10).await.unwrap()[2].died;
    let (before, after) = (all.clone().until(third), all.clone().from(third));
    assert_eq!(count(&before).await + count(&after).await, 6);
    assert!(count(&before).await <= 2);
    let of_one = all.clone().model_id(wallets[0]);
    assert_eq!(count(&of_one).await, 2);
    assert_eq!(count(&DeliveryFilter::dead_letters("mail.send")).await, 0);

    let replayed = operations.replay_all(&of_one, 2, "alice", "it is open again").await.unwrap();
    assert_eq!(replayed, 2);
    scene.until_handled("ledger.post").await;
    assert_eq!(scene.posted(wallets[0]).await, [1, 4, 2, 3]);
    assert_eq!(scene.posted(wallets[1]).await, [1, 4]);
    assert_eq!(count(&all).await, 4);
    let settled = DeliveryFilter::settled_letters("ledger.post");
    assert_eq!(count(&settled).await, 2);

    let log = operations.interventions(10).await.unwrap();
    let expected = format!("dead letters of `ledger.post` with model id `{}`", wallets[0]);
    assert_eq!((log.len(), &log[0].subject), (1, &expected));
    assert_eq!((&*log[0].who, &*log[0].why), ("alice", "it is open again"));
    assert_eq!((log[0].kind, log[0].counted, log[0].done), (InterventionKind::Replay, 2, 2));
    assert_eq!((log[0].state, &*log[0].handler), (InterventionState::Done, "ledger.post"));
    let letters = scene.scratch.eventlog("dead_letters");
    let from = format!("FROM {letters} WHERE state = 'REPLAYED'");
    let rows = scene.scratch.select(&["settled_by", "settled_why"], &from).await;
    let said = ["alice", "it is open again"].map(|text| Some(text.to_owned()));
    assert!(rows.len() == 2 && rows.iter().all(|row| row[..] == said), "{rows:?}");
}

async fn a_replay_is_refused_if_it_is_not_what_was_counted(scene: &Scene) {
    let (_, _node) = with_dead_letters(scene).await;
    let operations = scene.operations();
    let filter = DeliveryFilter::dead_letters("ledger.post");
    let refused = operations.replay_all(&filter, 5, "alice", "again").await.unwrap_err();
    assert!(matches!(refused, EventsError::Recount { counted: 5, found: 6, .. }), "{refused}");
    let shard = scene.databases.shards().next().unwrap().identifier();
    assert_eq!(
        refused.to_string(),
        format!(
            "shard {shard} has 6 dead letters of `ledger.post`, and 5 were counted; \
             nothing was changed on this shard: count again"
        )
    );
    let refused = operations.purge(&filter, 7, "alice", "again").await.unwrap_err();
    assert!(matches!(refused, EventsError::Recount { counted: 7, found: 6, .. }), "{refused}");
    assert_eq!(operations.count(&filter).await.unwrap(), 6);
    assert_eq!(operations.pending("ledger.post").await.unwrap(), 0);
    assert!(operations.interventions(10).await.unwrap().is_empty());
}

async fn two_replays_at_a_time_deliver_each_dead_letter_once(scene: &Scene) {
    let (wallets, _node) = with_dead_letters(scene).await;
    let operations = scene.operations();
    let filter = DeliveryFilter::dead_letters("ledger.post");
    let replay = async |who: &str| operations.replay_all(&filter, 6, who, "again").await;
    let (alice, bob) = tokio::join!(replay("alice"), replay("bob"));
    // The later one finds none, or leaves out what the earlier one has settled meanwhile.
    let done = |replayed: Result<u64, EventsError>| match replayed {
        Ok(done) => done,
        Err(EventsError::Recount { found: 0, .. }) => 0,
        Err(error) => panic!("{error}"),
    };
    assert_eq!(done(alice) + done(bob), 6);
    scene.until_handled("ledger.post").await;
    for wallet in wallets {
        assert_eq!(scene.posted(wallet).await, [1, 4, 2, 3]);
    }
}

async fn stored_events_are_replayed_in_order_and_their_steps_run_anew(scene: &Scene) {
    let ledger = Ledger::new(|ctx, event| {
        async move {
            ctx.step("before", &PostEntry, Posting::of(event)).await?;
            post(ctx, event).await
        }
        .boxed()
    });
    let _node = scene.node().handler_with(ledger, quick()).start().await.unwrap();
    let (wallet, other) = (scene.open_wallet().await, scene.open_wallet().await);
    scene.deposit(wallet, 300).await;
    scene.until_handled("ledger.post").await;
    let once: Vec<i64> = (1..=301).flat_map(|version| [version; 2]).collect();
    assert_eq!(scene.posted(wallet).await, once);

    let operations = scene.operations();
    let stored = DeliveryFilter::stored_events("ledger.post");
    assert_eq!(operations.count(&stored).await.unwrap(), 302);
    let deposits = stored.event_type("WalletMoneyDeposited").model_type("Wallet");
    assert_eq!(operations.count(&deposits).await.unwrap(), 300);
    assert_eq!(operations.count(&deposits.clone().model_id(other)).await.unwrap(), 0);
    let future = deposits.clone().from(Utc::now() + chrono::TimeDelta::hours(1));
    assert_eq!(operations.count(&future).await.unwrap(), 0);
    let past = deposits.clone().until(Utc::now() + chrono::TimeDelta::hours(1));
    assert_eq!(operations.replay_all(&past, 300, "alice", "lost lines").await.unwrap(), 300);
    scene.until_handled("ledger.post").await;
    let twice: Vec<i64> =
        once.iter().copied().chain((2..=301).flat_map(|version| [version; 2])).collect();
    assert_eq!(scene.posted(wallet).await, twice);
    assert_eq!(scene.posted(other).await, [1, 1]);
    let log = operations.interventions(1).await.unwrap();
    assert_eq!((log[0].counted, log[0].done, log[0].state), (300, 300, InterventionState::Done));
}

async fn a_replay_keeps_the_order_of_versions_whatever_the_ids_say(scene: &Scene) {
    let wallet = Uuid::now_v7();
    let first = Uuid::now_v7().as_u128();
    // Later versions have earlier ids, and there are more than one transaction inserts.
    let event = |version: i64| Foreign {
        id: Uuid::from_u128(first - version.unsigned_abs() as u128),
        wallet,
        place: Some((version, 0)),
    };
    scene.insert_events(&(1..=600).map(event).collect::<Vec<_>>()).await;
    let options = quick().max_age(None);
    let node = scene.node().handler_with(Ledger::posting(), options.clone());
    let node = node.start().await.unwrap();
    scene.until_posted(600).await;
    scene.until_handled("ledger.post").await;
    node.drain(Duration::from_secs(60)).await;
    let operations = scene.operations();
    let stored = DeliveryFilter::stored_events("ledger.post").model_id(wallet);
    let deliveries = scene.scratch.eventlog("deliveries");
    let add_order = match scene.scratch.dialect {
        Dialect::Sqlite => None,
        Dialect::Postgres => Some(format!("ALTER TABLE {deliveries} ADD n bigserial")),
        Dialect::MySql | Dialect::MariaDb => {
            Some(format!("ALTER TABLE {deliveries} ADD n bigint AUTO_INCREMENT UNIQUE"))
        }
    };
    if let Some(add) = &add_order {
        scene.scratch.execute(add).await;
    }
    let order_of_insertion = if add_order.is_some() { "n" } else { "rowid" };
    operations.replay_all(&stored, 600, "alice", "once more").await.unwrap();
    // A node may claim the first ones before the last ones are there, so each transaction inserts
    // earlier versions than the next one.
    let from = format!("FROM {deliveries} ORDER BY {order_of_insertion}");
    let rows = scene.scratch.select(&["model_version"], &from).await;
    let mut inserted: Vec<i64> =
        rows.iter().map(|row| row[0].as_deref().unwrap().parse().unwrap()).collect();
    inserted.chunks_mut(OF_A_TRANSACTION).for_each(<[i64]>::sort_unstable);
    assert_eq!(inserted, (1..=600).collect::<Vec<i64>>());

    let _node = scene.node().handler_with(Ledger::posting(), options).start().await.unwrap();
    scene.until_posted(1_200).await;
    let twice: Vec<i64> = (1..=600).chain(1..=600).collect();
    assert_eq!(scene.posted(Id::from_uuid(wallet)).await, twice);
}

async fn a_replay_leaves_out_what_is_still_to_be_handled(scene: &Scene) {
    let (wallets, node) = with_dead_letters(scene).await;
    let operations = scene.operations();
    let stored = DeliveryFilter::stored_events("ledger.post");
    // Six of twelve events are dead letters.
    assert_eq!(operations.count(&stored).await.unwrap(), 6);
    assert!(node.pause("ledger.post"));
    scene.deposit(wallets[0], 5).await;
    until("the deliveries are there", async || {
        operations.pending("ledger.post").await.unwrap() == 5
    })
    .await;
    assert_eq!(operations.count(&stored).await.unwrap(), 6);
    let letters = operations.dead_letters(10).await.unwrap();
    operations.dismiss(&letters[0], "alice", "posted by hand").await.unwrap();
    assert_eq!(operations.count(&stored).await.unwrap(), 7);
    // What was replayed is to be handled, too.
    assert_eq!(operations.replay_all(&stored, 7, "alice", "again").await.unwrap(), 7);
    assert_eq!(operations.count(&stored).await.unwrap(), 0);
    assert!(node.resume("ledger.post"));
    scene.until_handled("ledger.post").await;
}

async fn a_long_reason_keeps_no_event_from_a_replay(scene: &Scene) {
    let _node = scene.node().handler(Ledger::posting()).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    scene.until_handled("ledger.post").await;
    let operations = scene.operations();
    let stored = DeliveryFilter::stored_events("ledger.post");
    let longest = "a".repeat(65_535);
    assert_eq!(operations.replay_all(&stored, 1, "alice", &longest).await.unwrap(), 1);
    scene.until_posted(2).await;
    assert_eq!(scene.posted(wallet).await, [1, 1]);
    let log = operations.interventions(1).await.unwrap();
    assert_eq!((log[0].state, log[0].why.len()), (InterventionState::Done, longest.len()));
}

/// A transaction replays 256 letters, and what it delivers is handled before the next one begins.
async fn an_event_with_many_dead_letters_is_replayed_once(scene: &Scene) {
    let closed = Ledger::new(|_, _| async { Err("the ledger is closed".into()) }.boxed());
    let options = quick().max_attempts(1).dead_letters();
    let node = scene.node().handler_with(closed, options).start().await.unwrap();
    scene.open_wallet().await;
    scene.until_handled("ledger.post").await;
    node.drain(Duration::from_secs(60)).await;
    let [letters, deliveries] =
        ["dead_letters", "deliveries"].map(|table| scene.scratch.eventlog(table));
    let columns = "handler, stream, model_version, event_index, event_id, attempts, error, died, \
                   state, version";
    let copies = format!(
        "WITH RECURSIVE copies(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM copies WHERE n < 256) \
         INSERT INTO {letters} (id, {columns}) \
         SELECT printf('01990000-0000-7000-8000-%012d', n), {columns} FROM {letters}, copies"
    );
    scene.scratch.execute(&copies).await;
    let handling = format!(
        "CREATE TRIGGER handled AFTER INSERT ON {deliveries} \
         BEGIN DELETE FROM {deliveries} WHERE id = NEW.id; END"
    );
    scene.scratch.execute(&handling).await;
    let operations = scene.operations();
    let all = DeliveryFilter::dead_letters("ledger.post");
    assert_eq!(operations.count(&all).await.unwrap(), 257);
    assert_eq!(operations.replay_all(&all, 257, "alice", "it is open").await.unwrap(), 1);
}

async fn a_replay_reaches_events_from_before_the_handler_began(scene: &Scene) {
    let wallet = scene.open_wallet().await;
    scene.deposit(wallet, 2).await;
    let options = quick().from_now_on();
    let _node = scene.node().handler_with(Ledger::posting(), options).start().await.unwrap();
    scene.deposit(wallet, 1).await;
    scene.until_posted(1).await;
    assert_eq!(scene.posted(wallet).await, [4]);
    let operations = scene.operations();
    let stored = DeliveryFilter::stored_events("ledger.post");
    let counted = async || operations.count(&stored).await.unwrap() == 4;
    until("the sweep has seen the earlier events", counted).await;
    operations.replay_all(&stored, 4, "alice", "the ledger begins earlier").await.unwrap();
    scene.until_posted(5).await;
    assert_eq!(scene.posted(wallet).await, [4, 1, 2, 3, 4]);
}

async fn an_event_that_is_too_old_runs_once_more_if_an_operator_wants_it(scene: &Scene) {
    let wallet = scene.open_wallet().await;
    let (ledger, seen) = {
        let ledger = Ledger::new(|ctx, event| match event.attempt {
            1 => async { Err("not yet".into()) }.boxed(),
            _ => post(ctx, event),
        });
        let seen = ledger.seen();
        (ledger, seen)
    };
    let options = quick().max_age(Duration::ZERO);
    let node = scene.node().handler_with(ledger, options.clone()).start().await.unwrap();
    let operations = scene.operations();
    let is_parked = async || !operations.parked(10).await.unwrap().is_empty();
    until("it is parked", is_parked).await;
    assert!(seen.lock().unwrap().is_empty());
    let id = operations.parked(10).await.unwrap()[0].id;
    operations.retry(id, "alice", "late is better than never").await.unwrap();
    until("it has run once", async || seen.lock().unwrap().len() == 1).await;
    until("it is parked again", is_parked).await;
    let log = operations.interventions(10).await.unwrap();
    assert_eq!((log[0].kind, &log[0].subject), (InterventionKind::Retry, &id.to_string()));
    node.drain(Duration::from_secs(60)).await;

    operations.skip(id, "alice", "it is too late").await.unwrap();
    let node = scene.node().handler_with(Ledger::posting(), options);
    let _node = node.start().await.unwrap();
    let settled = DeliveryFilter::settled_letters("ledger.post");
    operations.replay_all(&settled, 1, "bob", "it is not").await.unwrap();
    scene.until_posted(1).await;
    assert_eq!(scene.posted(wallet).await, [1]);
}

async fn purged_letters_are_gone_and_the_log_says_who_did_it(scene: &Scene) {
    let (wallets, _node) = with_dead_letters(scene).await;
    let operations = scene.operations();
    let letters = operations.dead_letters(10).await.unwrap();
    operations.dismiss(&letters[0], "alice", "posted by hand").await.unwrap();
    let settled = DeliveryFilter::settled_letters("ledger.post");
    assert_eq!(operations.purge(&settled, 1, "bob", "settled long ago").await.unwrap(), 1);
    assert_eq!(operations.count(&settled).await.unwrap(), 0);
    assert!(operations.dead_letter(letters[0].id.uuid()).await.unwrap().is_none());
    let dead = DeliveryFilter::dead_letters("ledger.post");
    assert_eq!(operations.count(&dead).await.unwrap(), 5);
    let of_one = dead.model_id(wallets[2]);
    assert_eq!(operations.purge(&of_one, 2, "bob", "a test wallet").await.unwrap(), 2);
    assert_eq!(scene.scratch.count(&scene.scratch.eventlog("dead_letters")).await, 3);
    assert_eq!(scene.scratch.count_events().await, 12 + 6, "the events stay");
    let log = operations.interventions(10).await.unwrap();
    let kinds: Vec<_> = log.iter().map(|row| (row.kind, &*row.who, row.done)).collect();
    let purge = InterventionKind::Purge;
    assert_eq!(kinds, [(purge, "bob", 2), (purge, "bob", 1)]);
    let stored = DeliveryFilter::stored_events("ledger.post");
    let refused = operations.purge(&stored, 0, "bob", "all").await.unwrap_err().to_string();
    assert_eq!(
        refused,
        "`filter` selects stored events, which are not purged; select dead letters"
    );
}

async fn who_and_why_must_be_said(scene: &Scene) {
    let (_, _node) = with_dead_letters(scene).await;
    let operations = scene.operations();
    let letters = operations.dead_letters(10).await.unwrap();
    let filter = DeliveryFilter::dead_letters("ledger.post");
    let blank = "`who` is blank; say it, it is stored with what is done";
    let refused = operations.replay_all(&filter, 6, " ", "again").await.unwrap_err();
    assert_eq!(refused.to_string(), blank);
    let refused = operations.dismiss(&letters[0], "", "again").await.unwrap_err();
    assert_eq!(refused.to_string(), blank);
    let refused = operations.pause("ledger.post", "alice", "").await.unwrap_err();
    assert_eq!(refused.to_string(), blank.replace("who", "why"));
    let long = "a".repeat(256);
    let refused = operations.purge(&filter, 6, &long, "again").await.unwrap_err();
    assert_eq!(refused.to_string(), "`who` has 256 characters; use at most 255");
    let long = "a".repeat(65_536);
    let refused = operations.purge(&filter, 6, "alice", &long).await.unwrap_err();
    assert_eq!(refused.to_string(), "`why` has 65536 bytes; use at most 65535");
    let no_nul = "`why` holds the character 0, which not every database stores; remove it";
    let refused = operations.purge(&filter, 6, "alice", "a\0").await.unwrap_err();
    assert_eq!(refused.to_string(), no_nul);
    let refused = operations.purge(&filter, 6, "a\0", "again").await.unwrap_err();
    assert_eq!(refused.to_string(), no_nul.replace("why", "who"));
    let unknown = operations.pause("ledger.pots", "alice", "again").await.unwrap_err();
    let shard = scene.databases.shards().next().unwrap().identifier();
    assert_eq!(
        unknown.to_string(),
        format!("shard {shard} knows no handler `ledger.pots`; it knows `ledger.post`")
    );
    assert_eq!(operations.count(&filter).await.unwrap(), 6);
}

async fn a_pause_holds_for_every_node_until_it_ends(scene: &Scene) {
    let first = scene.node().handler(Ledger::posting()).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    scene.until_handled("ledger.post").await;
    first.drain(Duration::from_secs(60)).await;
    let operations = scene.operations();
    operations.pause("ledger.post", "alice", "the ledger is audited").await.unwrap();

    let builder = scene.node().lease(Duration::from_secs(1));
    let mail = Mail::new(|_, _| async { Ok(()) }.boxed());
    let _node = builder.handler(Ledger::posting()).handler(mail).start().await.unwrap();
    scene.deposit(wallet, 5).await;
    // Mails of later events are sent meanwhile, in rounds that find the ledger's, too.
    scene.until_handled("mail.send").await;
    scene.deposit(wallet, 5).await;
    scene.until_handled("mail.send").await;
    assert_eq!(scene.posted(wallet).await, [1]);
    let status = operations.status().await.unwrap();
    assert!(status[0].is_paused && !status[1].is_paused, "{status:?}");
    assert_eq!((&*status[0].handler, status[0].pending), ("ledger.post", 10));

    operations.resume("ledger.post", "alice", "the audit is over").await.unwrap();
    scene.until_handled("ledger.post").await;
    assert_eq!(scene.posted(wallet).await, (1..=11).collect::<Vec<i64>>());
    assert!(!operations.status().await.unwrap()[0].is_paused);
    let log = operations.interventions(10).await.unwrap();
    let kinds: Vec<_> = log.iter().map(|row| row.kind).collect();
    assert_eq!(kinds, [InterventionKind::Resume, InterventionKind::Pause]);

    // A node that runs learns of a pause, too.
    operations.pause("ledger.post", "alice", "once more").await.unwrap();
    until("a deposit stays", async || {
        scene.deposit(wallet, 1).await;
        scene.until_handled("mail.send").await;
        scene.deposit(wallet, 1).await;
        scene.until_handled("mail.send").await;
        operations.pending("ledger.post").await.unwrap() >= 2
    })
    .await;
    operations.resume("ledger.post", "alice", "and over").await.unwrap();
    scene.until_handled("ledger.post").await;
}

/// A server refuses an `UPDATE` so after it has waited.
async fn a_pause_that_waits_for_a_lock_for_too_long_fails(scene: &Scene) {
    let _node = scene.node().handler(Ledger::posting()).start().await.unwrap();
    let subscriptions = scene.scratch.eventlog("subscriptions");
    let refusing = if scene.scratch.dialect == Dialect::Postgres {
        format!(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN RAISE 'locked' USING ERRCODE = '55P03'; END $$; \
             CREATE TRIGGER refused BEFORE UPDATE ON {subscriptions} \
             FOR EACH ROW EXECUTE FUNCTION refuse()"
        )
    } else {
        let (log, _) = subscriptions.rsplit_once('.').unwrap();
        format!(
            "CREATE TRIGGER {log}.refused BEFORE UPDATE ON {subscriptions} FOR EACH ROW \
             SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1205, MESSAGE_TEXT = 'locked'"
        )
    };
    scene.scratch.execute(&refusing).await;
    let operations = scene.operations();
    let pausing = operations.pause("ledger.post", "alice", "the ledger is audited");
    // As long as `until` waits.
    let paused = tokio::time::timeout(Duration::from_secs(120), pausing).await;
    paused.expect("the pause is tried again and again").unwrap_err();
}

async fn a_retired_handler_leaves_nothing_to_be_handled(scene: &Scene) {
    let mail = Mail::new(|_, _| async { Ok(()) }.boxed());
    let both = scene.node().handler(Ledger::posting()).handler(mail).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    scene.until_handled("ledger.post").await;
    scene.until_handled("mail.send").await;
    both.drain(Duration::from_secs(60)).await;
    let operations = scene.operations();
    // Nobody handles these any more.
    scene.deposit(wallet, 300).await;
    assert_eq!(operations.pending("mail.send").await.unwrap(), 300);
    let moved = operations.retire("mail.send", "alice", "mails are sent elsewhere").await.unwrap();
    assert_eq!((moved, operations.pending("mail.send").await.unwrap()), (300, 0));
    assert_eq!(operations.pending("ledger.post").await.unwrap(), 300);
    assert!(operations.dead_letters(10).await.unwrap().is_empty(), "they are settled");
    let letters = scene.scratch.eventlog("dead_letters");
    let from = format!("FROM {letters} WHERE settled_by = 'alice' AND state = 'SKIPPED'");
    assert_eq!(scene.scratch.select(&["id"], &from).await.len(), 300);

    // This process still inserts for it until a node tells it; then the rest is moved.
    let builder = scene.node().lease(Duration::from_secs(1));
    let _node = builder.handler(Ledger::posting()).start().await.unwrap();
    scene.until_handled("ledger.post").await;
    operations.retire("mail.send", "alice", "the rest").await.unwrap();
    scene.deposit(wallet, 3).await;
    scene.until_handled("ledger.post").await;
    assert_eq!(operations.pending("mail.send").await.unwrap(), 0);
    let status = operations.status().await.unwrap();
    assert!(!status[0].is_retired && status[1].is_retired, "{status:?}");
    let unknown = operations.retire("mail.post", "alice", "gone").await.unwrap_err().to_string();
    assert!(unknown.ends_with("it knows `ledger.post`, `mail.send`"), "{unknown}");
}

async fn a_retired_handler_that_comes_back_goes_on_from_there(scene: &Scene) {
    let node = scene.node().handler(Ledger::posting()).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    scene.deposit(wallet, 2).await;
    scene.until_handled("ledger.post").await;
    node.drain(Duration::from_secs(60)).await;
    let operations = scene.operations();
    operations.retire("ledger.post", "alice", "no ledger any more").await.unwrap();
    // Another process, which knows that it is retired, commits meanwhile.
    let other = scene.open_again().await;
    let quiet = crate::scene::node(&other).start().await.unwrap();
    crate::scene::deposit(&other, wallet, 2).await;
    assert_eq!(operations.pending("ledger.post").await.unwrap(), 0);
    let _node = scene.node().handler(Ledger::posting()).start().await.unwrap();
    scene.deposit(wallet, 1).await;
    scene.until_posted(6).await;
    assert_eq!(scene.posted(wallet).await, [1, 2, 3, 4, 5, 6]);
    assert!(!operations.status().await.unwrap()[0].is_retired);
    quiet.drain(Duration::from_secs(60)).await;
}

async fn nothing_is_replayed_for_a_retired_handler_until_it_is_back(scene: &Scene) {
    let (wallets, node) = with_dead_letters(scene).await;
    node.drain(Duration::from_secs(60)).await;
    let operations = scene.operations();
    operations.retire("ledger.post", "alice", "no ledger any more").await.unwrap();
    let letters = DeliveryFilter::dead_letters("ledger.post");
    let stored = DeliveryFilter::stored_events("ledger.post");
    let one = operations.dead_letters(1).await.unwrap().remove(0);
    for refused in [
        operations.replay_all(&letters, 6, "alice", "again").await.map(drop),
        operations.replay_all(&stored, 6, "alice", "again").await.map(drop),
        operations.replay(&one, "alice", "again").await,
    ] {
        let refused = refused.unwrap_err();
        assert!(matches!(refused, EventsError::RetiredHandler { .. }), "{refused}");
        let why = refused.to_string();
        assert!(why.contains("`ledger.post` is retired on shard"), "{why}");
        assert!(why.ends_with("start a node with it, then replay"), "{why}");
    }
    assert_eq!(operations.count(&letters).await.unwrap(), 6);
    assert_eq!(operations.pending("ledger.post").await.unwrap(), 0);

    // Under another name, too, it handles what is delivered to the earlier one.
    let renamed = quick().alias("ledger.post");
    let _node = scene.node().handler_with(Renamed::posting(), renamed).start().await.unwrap();
    assert_eq!(operations.replay_all(&letters, 6, "alice", "it is back").await.unwrap(), 6);
    scene.until_handled("ledger.post").await;
    assert_eq!(scene.posted(wallets[0]).await, [1, 4, 2, 3]);
}

async fn the_status_counts_what_waits_and_for_how_long(scene: &Scene) {
    let ledger = Ledger::new(|ctx, event| match event.model_version {
        Some(2) => async { Err("closed".into()) }.boxed(),
        _ => post(ctx, event),
    });
    let options = quick().max_attempts(1);
    let mail = Mail::new(|_, event| match event.model_version {
        Some(2) => async { Err("no mail".into()) }.boxed(),
        Some(3) => async { Err("later".into()) }.boxed(),
        _ => async { Ok(()) }.boxed(),
    });
    let dead = quick().max_attempts(1).dead_letters();
    let node = scene.node().handler_with(ledger, options).handler_with(mail, dead);
    let node = node.start().await.unwrap();
    let wallet = scene.open_wallet().await;
    scene.deposit(wallet, 1).await;
    let operations = scene.operations();
    until("it is parked", async || !operations.parked(10).await.unwrap().is_empty()).await;
    scene.deposit(wallet, 4).await;
    scene.until_handled("mail.send").await;
    until("the others are blocked", async || operations.status().await.unwrap()[0].blocked == 4)
        .await;
    let status = operations.status().await.unwrap();
    assert!(operations.parked(0).await.unwrap().is_empty());
    assert!(operations.dead_letters(0).await.unwrap().is_empty());
    let (ledger, mail) = (&status[0], &status[1]);
    assert_eq!((&*ledger.handler, &*mail.handler), ("ledger.post", "mail.send"));
    assert_eq!((ledger.pending, ledger.parked, ledger.blocked), (5, 1, 4));
    assert_eq!((ledger.failing, ledger.dead_letters, ledger.is_paused), (0, 0, false));
    assert_eq!((mail.pending, mail.parked, mail.dead_letters, mail.oldest), (0, 0, 2, None));
    // The oldest is the parked one: the first deposit.
    let events = scene.scratch.eventlog("events");
    let from = format!("FROM {events} WHERE model_version = 2 AND event_date > '2000-01-01'");
    assert_eq!(scene.scratch.select(&["id"], &from).await.len(), 1);
    let age = Utc::now() - ledger.oldest.unwrap();
    let parked = operations.delivery(operations.parked(1).await.unwrap()[0].id).await.unwrap();
    assert_eq!(parked.unwrap().model_version, 2);
    assert!(age >= chrono::TimeDelta::zero() && age < chrono::TimeDelta::hours(1), "{age}");
    node.drain(Duration::from_secs(60)).await;
    let letters = operations.dead_letters(10).await.unwrap();
    assert!(letters.iter().all(|letter| letter.state == DeadLetterState::Dead));
}

async fn a_node_begins_with_the_settings_of_the_configuration(scene: &Scene) {
    let mut events = EventsConfig::default();
    events.max_age = Duration::from_nanos(1);
    events.handles = false;
    let config = EkbatanConfig::from(scene.scratch.config());
    let databases = Databases::connect(&config.clone().events(events.clone())).await.unwrap();
    let executor = crate::scene::executor(&databases).await;
    let wallet = scene.open_wallet().await;
    let quiet = crate::scene::node(&executor).handler(Ledger::posting()).start().await.unwrap();
    assert!(quiet.handlers()[0].is_paused);
    // It delivers what it commits, and handles nothing.
    crate::scene::deposit(&executor, wallet, 1).await;
    assert!(scene.operations().pending("ledger.post").await.unwrap() >= 1);
    quiet.drain(Duration::from_secs(60)).await;
    assert!(scene.posted(wallet).await.is_empty());

    // The age is that of the configuration, unless a handler has options of its own.
    events.handles = true;
    let databases = Databases::connect(&config.events(events)).await.unwrap();
    let executor = crate::scene::executor(&databases).await;
    let closed = Ledger::new(|_, _| async { Err("the ledger is closed".into()) }.boxed());
    let busy = crate::scene::node(&executor).handler(closed).start().await.unwrap();
    until("it is given up", async || !scene.operations().parked(1).await.unwrap().is_empty()).await;
    let parked = scene.operations().parked(1).await.unwrap();
    assert_eq!(parked[0].attempts, 1, "the first pause is longer than the age");
    busy.drain(Duration::from_secs(60)).await;
}

/// Spans are recorded on one thread only.
#[tokio::test]
async fn a_run_has_the_trace_of_the_call_that_emitted_the_event() {
    let scene = Scene::start(Dialect::Sqlite).await;
    let (recorder, _guard) = Recorder::start();
    let _node = scene.node().handler(Ledger::posting()).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    scene.until_posted(1).await;
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let deposit = Deposit { wallet, amount: Decimal::ONE };
    scene.executor.execute(&DepositMoney, deposit).trace_parent(trace).await.unwrap();
    scene.until_posted(2).await;
    let runs = recorder.of("ekbatan.event.handle");
    let traces: Vec<_> = runs.iter().map(|run| run.field("ekbatan.event.trace_parent")).collect();
    assert_eq!(traces, [None, Some(trace)]);
    // The call of the handler has it, too: its row in the outbox names the same trace.
    let from = format!(
        "FROM {} WHERE action_name = 'ledger.post_entry' ORDER BY started_date",
        scene.scratch.eventlog("events")
    );
    let rows = scene.scratch.select(&["trace_parent"], &from).await;
    assert_eq!(rows.last().unwrap()[0].as_deref(), Some(trace));
    assert_eq!((rows.len(), rows[0][0].as_deref()), (2, None));
}

#[tokio::test]
async fn a_run_whose_event_is_given_up_says_so() {
    let scene = Scene::start(Dialect::Sqlite).await;
    let (recorder, _guard) = Recorder::start();
    let closed = Ledger::new(|_, _| async { Err("the ledger is closed".into()) }.boxed());
    let options = quick().max_attempts(1).dead_letters();
    let _node = scene.node().handler_with(closed, options).start().await.unwrap();
    scene.open_wallet().await;
    until("the run has ended", async || {
        let runs = recorder.of("ekbatan.event.handle");
        runs.first().is_some_and(|run| run.field("ekbatan.event.outcome").is_some())
    })
    .await;
    let run = recorder.one("ekbatan.event.handle");
    assert_eq!(run.field("ekbatan.event.outcome"), Some("dead letter"));
}

#[tokio::test]
async fn a_node_reports_what_its_handlers_had_under_earlier_names() {
    let scene = Scene::start(Dialect::Sqlite).await;
    let closed = Ledger::new(|_, _| async { Err("the ledger is closed".into()) }.boxed());
    let options = quick().max_attempts(1);
    let node = scene.node().handler_with(closed, options.clone()).start().await.unwrap();
    scene.open_wallet().await;
    let operations = scene.operations();
    until("it is parked", async || !operations.parked(1).await.unwrap().is_empty()).await;
    node.drain(Duration::from_secs(60)).await;
    let (recorder, _guard) = Recorder::start();
    let closed = Renamed::new(|_, _| async { Err("the ledger is closed".into()) }.boxed());
    let builder = scene.node().gauges(Duration::from_millis(20));
    let _node = builder.handler_with(closed, options.alias("ledger.post")).start().await.unwrap();
    scene.open_wallet().await;
    until("both are reported", async || {
        recorder.all().iter().any(|event| {
            event.field("message") == Some("ekbatan.event.gauges")
                && event.field("handler") == Some("ledger.post_again")
                && event.field("parked") == Some("2")
        })
    })
    .await;
}

#[tokio::test]
async fn a_node_reports_how_far_its_handlers_are() {
    let scene = Scene::start(Dialect::Sqlite).await;
    let (recorder, _guard) = Recorder::start();
    let ledger = Ledger::new(|ctx, event| match event.model_version {
        Some(2) => async { Err("closed".into()) }.boxed(),
        _ => post(ctx, event),
    });
    let builder = scene.node().gauges(Duration::from_millis(20));
    let node = builder.handler_with(ledger, quick().max_attempts(1)).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    scene.deposit(wallet, 1).await;
    let of = |name: &'static str, value: &'static str| {
        let all = recorder.all();
        let report = |event: &&support::Recorded| {
            event.field("message") == Some("ekbatan.event.gauges")
                && event.field(name) == Some(value)
        };
        all.iter().find(report).cloned()
    };
    until("the parked event is reported", async || of("parked", "1").is_some()).await;
    let report = of("parked", "1").unwrap();
    assert_eq!(report.field("handler"), Some("ledger.post"));
    assert_eq!((report.field("pending"), report.field("handled")), (Some("1"), Some("1")));
    assert_eq!((report.field("failed"), report.field("paused")), (Some("1"), Some("false")));
    assert!(report.field("oldest_age_ms").unwrap().parse::<i64>().unwrap() >= 0);
    let shard = scene.databases.shards().next().unwrap().identifier().to_string();
    assert_eq!(report.field("shard"), Some(&*shard));
    assert!(node.pause("ledger.post"));
    until("the pause is reported", async || of("paused", "true").is_some()).await;
    // A node that leaves reports no more, and its end does not wait for the next report.
    node.drain(Duration::from_secs(60)).await;
}
