//! Events of one model in order, those of different models side by side.

use std::collections::HashMap;

use ekbatan::events::HandlerOptions;
use futures_util::future::join_all;
use support::until;

use crate::scene::{Ledger, Mail, Scene, node};

on_every_database! {
    each_event_is_handled_once_and_in_the_order_of_its_model,
    two_handlers_of_the_same_events_are_independent,
    two_nodes_that_commit_and_handle_keep_the_order,
    a_handler_gets_only_the_events_that_it_wants,
    a_paused_handler_gets_nothing_until_it_goes_on,
}

async fn each_event_is_handled_once_and_in_the_order_of_its_model(scene: &Scene) {
    let node = scene.node().handler(Ledger::posting()).start().await.unwrap();
    let wallets = join_all((0..5).map(|_| scene.open_wallet())).await;
    join_all(wallets.iter().map(|wallet| scene.deposit(*wallet, 19))).await;
    scene.until_handled("ledger.post").await;
    for wallet in wallets {
        assert_eq!(scene.posted(wallet).await, (1..=20).collect::<Vec<i64>>());
    }
    // The count follows the commit that marks the last event.
    until("every event is counted", async || node.handlers()[0].handled == 100).await;
    node.drain(std::time::Duration::from_secs(60)).await;
}

async fn two_handlers_of_the_same_events_are_independent(scene: &Scene) {
    let broken = Mail::new(|_, _| Box::pin(async { Err("the mail server is away".into()) }));
    let node = scene.node().handler(Ledger::posting()).handler(broken);
    let _node = node.start().await.unwrap();
    let wallet = scene.open_wallet().await;
    scene.deposit(wallet, 4).await;
    scene.until_handled("ledger.post").await;
    assert_eq!(scene.posted(wallet).await, [1, 2, 3, 4, 5]);
    assert_eq!(scene.operations().pending("mail.send").await.unwrap(), 5);
}

async fn two_nodes_that_commit_and_handle_keep_the_order(scene: &Scene) {
    let other = scene.open_again().await;
    let (ledgers, executors) = ([Ledger::posting(), Ledger::posting()], [&scene.executor, &other]);
    let seen = ledgers.each_ref().map(Ledger::seen);
    let mut nodes = Vec::new();
    for (ledger, executor) in ledgers.into_iter().zip(executors) {
        nodes.push(node(executor).handler(ledger).start().await.unwrap());
    }
    let wallets = join_all((0..8).map(|_| scene.open_wallet())).await;
    // Each wallet gets its deposits from both processes in turn.
    join_all(wallets.iter().map(|wallet| async {
        for n in 0..20 {
            crate::scene::deposit(executors[n % 2], *wallet, 1).await;
        }
    }))
    .await;
    scene.until_handled("ledger.post").await;
    for wallet in &wallets {
        assert_eq!(scene.posted(*wallet).await, (1..=21).collect::<Vec<i64>>());
    }
    let runs: usize = seen.iter().map(|seen| seen.lock().unwrap().len()).sum();
    assert_eq!(runs, 8 * 21, "no event was handled twice");
}

async fn a_handler_gets_only_the_events_that_it_wants(scene: &Scene) {
    let mail = Mail::new(|_, _| Box::pin(async { Ok(()) }));
    let seen = mail.seen();
    let only = HandlerOptions::default().only(["WalletMoneyDeposited"]);
    let _node = scene.node().handler_with(mail, only).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    scene.deposit(wallet, 2).await;
    until("both deposits are seen", async || seen.lock().unwrap().len() == 2).await;
    scene.until_handled("mail.send").await;
    let mut names = HashMap::<String, usize>::new();
    seen.lock().unwrap().iter().for_each(|seen| *names.entry(seen.name.clone()).or_default() += 1);
    assert_eq!(names, HashMap::from([("WalletMoneyDeposited".to_owned(), 2)]));
}

async fn a_paused_handler_gets_nothing_until_it_goes_on(scene: &Scene) {
    let ledger = Ledger::posting();
    let (seen, mail) = (ledger.seen(), Mail::new(|_, _| Box::pin(async { Ok(()) })));
    let node = scene.node().handler(ledger).handler(mail).start().await.unwrap();
    assert!(node.pause("ledger.post"));
    assert!(!node.pause("ledger.unknown"));
    assert!(node.handlers()[0].is_paused);
    let wallet = scene.open_wallet().await;
    scene.deposit(wallet, 2).await;
    // The other handler shows that the node looks for events.
    scene.until_handled("mail.send").await;
    assert_eq!(scene.operations().pending("ledger.post").await.unwrap(), 3);
    assert!(seen.lock().unwrap().is_empty());
    assert!(node.resume("ledger.post"));
    scene.until_handled("ledger.post").await;
    assert_eq!(scene.posted(wallet).await, [1, 2, 3]);
}
