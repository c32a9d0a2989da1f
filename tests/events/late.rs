//! Events that were committed without their deliveries: before a handler was known, by a process
//! without a node, or by another program.

use std::time::Duration;

use ekbatan::events::HandlerOptions;
use futures_util::future::join_all;
use support::until;
use uuid::Uuid;

use crate::scene::{Foreign, Ledger, Mail, Renamed, Scene, deposit};

on_every_database! {
    a_new_handler_gets_all_earlier_events_in_order_while_commits_go_on,
    a_new_handler_gets_a_long_history_in_order,
    a_handler_from_now_on_gets_no_earlier_event,
    events_of_a_process_without_a_node_are_handled,
    events_of_another_program_are_handled,
    a_renamed_handler_goes_on_where_it_was,
    a_node_that_knows_fewer_handlers_loses_nothing_for_the_others,
}

async fn a_new_handler_gets_all_earlier_events_in_order_while_commits_go_on(scene: &Scene) {
    let wallets = join_all((0..4).map(|_| scene.open_wallet())).await;
    for wallet in &wallets {
        scene.deposit(*wallet, 30).await;
    }
    let committing = join_all(wallets.iter().map(|wallet| scene.deposit(*wallet, 20)));
    let starting = scene.node().handler(Ledger::posting()).start();
    let (_, node) = tokio::join!(committing, starting);
    let _node = node.unwrap();
    scene.until_posted(4 * 51).await;
    scene.until_handled("ledger.post").await;
    for wallet in wallets {
        assert_eq!(scene.posted(wallet).await, (1..=51).collect::<Vec<i64>>());
    }
}

/// It takes three sweeps until all events have their deliveries.
async fn a_new_handler_gets_a_long_history_in_order(scene: &Scene) {
    const WALLETS: usize = 50;
    const VERSIONS: i64 = 90;
    let wallets: Vec<Uuid> = (0..WALLETS).map(|_| Uuid::now_v7()).collect();
    // The last versions have the first ids, so that a sweep finds them first.
    let versions = (1..=VERSIONS).rev();
    let places = versions.flat_map(|version| wallets.iter().map(move |wallet| (version, *wallet)));
    let row = |(version, wallet)| Foreign { id: Uuid::now_v7(), wallet, place: Some((version, 0)) };
    let rows: Vec<Foreign> = places.map(row).collect();
    scene.insert_events(&rows).await;
    let ledger = Ledger::new(|_, _| Box::pin(async { Ok(()) }));
    let (seen, options) = (ledger.seen(), HandlerOptions::default().max_age(None));
    let _node = scene.node().handler_with(ledger, options).start().await.unwrap();
    // The first ones decide: a handler that starts too early has only late versions.
    until("each wallet is seen", async || seen.lock().unwrap().len() >= 10 * WALLETS).await;
    for wallet in wallets {
        let seen = seen.lock().unwrap();
        let of_wallet = seen.iter().filter(|seen| seen.wallet == wallet.to_string());
        let versions: Vec<i64> = of_wallet.map(|seen| seen.version).collect();
        assert_eq!(versions, (1..=versions.len() as i64).collect::<Vec<i64>>());
    }
}

async fn a_handler_from_now_on_gets_no_earlier_event(scene: &Scene) {
    let wallet = scene.open_wallet().await;
    let options = HandlerOptions::default().from_now_on();
    let mail = Mail::new(|_, _| Box::pin(async { Ok(()) }));
    let node = scene.node().handler_with(Ledger::posting(), options).handler(mail);
    let _node = node.start().await.unwrap();
    scene.deposit(wallet, 2).await;
    scene.until_posted(2).await;
    // The other handler wants all events, so it shows that the earlier one was looked at.
    scene.until_handled("mail.send").await;
    assert_eq!(scene.posted(wallet).await, [2, 3]);
}

async fn events_of_a_process_without_a_node_are_handled(scene: &Scene) {
    let _node = scene.node().handler(Ledger::posting()).start().await.unwrap();
    let other = scene.open_again().await;
    let wallet = crate::scene::open_wallet(&other).await;
    // The process with the node and the one without take turns.
    for _ in 0..10 {
        deposit(&other, wallet, 1).await;
        scene.deposit(wallet, 1).await;
    }
    scene.until_posted(21).await;
    assert_eq!(scene.posted(wallet).await, (1..=21).collect::<Vec<i64>>());
}

async fn events_of_another_program_are_handled(scene: &Scene) {
    let options = HandlerOptions::default().max_age(None);
    let node = scene.node().handler_with(Ledger::posting(), options);
    let _node = node.start().await.unwrap();
    let wallet = Uuid::now_v7();
    let row = |()| Foreign { id: Uuid::now_v7(), wallet, place: None };
    scene.insert_events(&[(); 3].map(row)).await;
    scene.until_posted(3).await;
    scene.until_handled("ledger.post").await;
    assert_eq!(scene.entries().count().await.unwrap(), 3);
}

async fn a_renamed_handler_goes_on_where_it_was(scene: &Scene) {
    let wallet = scene.open_wallet().await;
    let node = scene.node().handler(Ledger::posting()).start().await.unwrap();
    scene.until_posted(1).await;
    // Not handled under the earlier name any more.
    assert!(node.pause("ledger.post"));
    scene.deposit(wallet, 3).await;
    node.drain(Duration::from_secs(60)).await;
    let options = HandlerOptions::default().alias("ledger.post");
    let renamed = scene.node().handler_with(Renamed::posting(), options);
    let renamed = renamed.start().await.unwrap();
    // So that the rows of the next events are still there when the test looks.
    assert!(renamed.pause("ledger.post_again"));
    scene.deposit(wallet, 3).await;
    let later = format!("FROM {} WHERE model_version > 4", scene.scratch.eventlog("deliveries"));
    let names = scene.scratch.select(&["handler"], &later).await;
    assert_eq!(names, vec![vec![Some("ledger.post_again".to_owned())]; 3]);
    assert!(renamed.resume("ledger.post_again"));
    scene.until_posted(7).await;
    scene.until_handled("ledger.post").await;
    scene.until_handled("ledger.post_again").await;
    assert_eq!(scene.posted(wallet).await, [1, 2, 3, 4, 5, 6, 7]);
}

async fn a_node_that_knows_fewer_handlers_loses_nothing_for_the_others(scene: &Scene) {
    let old = scene.open_again().await;
    let mail = Mail::new(|_, _| Box::pin(async { Ok(()) }));
    let _old = crate::scene::node(&old).handler(mail).start().await.unwrap();
    let _new = scene.node().handler(Ledger::posting()).start().await.unwrap();
    // The old process learns of the new handler only some time later.
    let wallet = crate::scene::open_wallet(&old).await;
    deposit(&old, wallet, 10).await;
    scene.until_posted(11).await;
    assert_eq!(scene.posted(wallet).await, (1..=11).collect::<Vec<i64>>());
    scene.until_handled("mail.send").await;
}
