//! Which events arrive, and what their messages say.

use std::time::Duration;

use ekbatan::events::Node;
use ekbatan::relay::EventSelection;
use support::{Dialect, until};

use crate::scene::{
    Scene, assert_in_order, assert_no_repetition, assert_nothing_failed, deposit, open_wallet,
};
use crate::site::Kind;

on_every_broker! {
    a_message_says_what_is_known_of_its_event,
    what_a_later_release_selects_is_left_to_it,
}
on_every_database! {
    every_event_arrives_once_in_the_order_of_its_model,
    a_late_relay_sends_all_earlier_events_while_commits_run,
    only_selected_events_are_sent,
    two_nodes_share_the_work,
}

async fn every_event_arrives_once_in_the_order_of_its_model(kind: Kind, dialect: Dialect) {
    let scene = Scene::start(kind, dialect).await;
    let node = scene.node().relay(scene.relay()).start().await.unwrap();
    scene.use_wallets(10, 9).await;
    scene.until_done().await;
    let received = scene.until_received(100).await;
    assert_in_order(&received, 10, 10);
    assert_no_repetition(&received);
    until("every event is counted", async || node.handlers()[0].handled == 100).await;
    assert_nothing_failed(&node);
    node.drain(Duration::from_secs(30)).await;
}

async fn a_message_says_what_is_known_of_its_event(kind: Kind) {
    let scene = Scene::start(kind, Dialect::Sqlite).await;
    let relay = scene.relay().prepare(|event, message| {
        message.set_header("balance", event.event.len().to_string());
        Ok(())
    });
    let _node = scene.node().relay(relay).start().await.unwrap();
    let wallet = open_wallet(&scene.executor).await;
    scene.until_done().await;
    let received = scene.until_received(1).await;
    let [one] = received.as_slice() else { panic!("{received:?}") };
    assert_eq!(one.topic, "ekbatan.com.example.relay.model.Wallet");
    assert_eq!((one.key.as_str(), one.version), (wallet.to_string().as_str(), 1));
    let expected = serde_json::json!({"owner": "alice", "currency": "EUR"});
    assert_eq!(one.payload, expected);
    for (name, value) in [
        ("ekbatan-event-type", "WalletOpened"),
        ("ekbatan-event-version", "1"),
        ("ekbatan-model-type", "Wallet"),
        ("ekbatan-namespace", "com.example.relay"),
        ("ekbatan-action", "wallet.open"),
        ("ekbatan-shard", "0/0"),
        ("content-type", "application/json"),
    ] {
        assert_eq!(one.header(name), Some(value), "{name}");
    }
    assert!(one.header("balance").is_some() && one.header("ekbatan-event-date").is_some());
    assert_eq!(one.header("ekbatan-principal"), None, "nobody called it by name");
}

async fn a_late_relay_sends_all_earlier_events_while_commits_run(kind: Kind, dialect: Dialect) {
    let scene = Scene::start(kind, dialect).await;
    let wallets = scene.use_wallets(5, 9).await;
    let committing = async {
        for wallet in &wallets {
            deposit(&scene.executor, *wallet, 10).await;
        }
    };
    let (node, ()) = tokio::join!(scene.node().relay(scene.relay()).start(), committing);
    let _node = node.unwrap();
    let received = scene.until_received(100).await;
    scene.until_done().await;
    assert_in_order(&received, 5, 20);
    assert_no_repetition(&received);
}

async fn only_selected_events_are_sent(kind: Kind, dialect: Dialect) {
    let scene = Scene::start(kind, dialect).await;
    let opened = EventSelection::of_events(["WalletOpened"]);
    let node = scene.node().relay(scene.relay().select(opened.clone())).start().await.unwrap();
    scene.use_wallets(2, 3).await;
    assert_eq!(scene.until_received(2).await.len(), 2);
    node.drain(Duration::from_secs(30)).await;
    // More is selected: earlier events are sent, too, and none twice.
    let of_model = opened.and(EventSelection::of_models(["Wallet"]));
    let node = scene.node().relay(scene.relay().select(of_model)).start().await.unwrap();
    let received = scene.until_received(8).await;
    assert_no_repetition(&received);
    node.drain(Duration::from_secs(30)).await;
    // Less is selected: the others are done without being sent.
    let closed = EventSelection::of_events(["WalletClosed"]);
    let _node = scene.node().relay(scene.relay().select(closed)).start().await.unwrap();
    scene.use_wallets(1, 1).await;
    scene.until_done().await;
    assert_eq!(scene.site.received().await.len(), 8);
}

/// Processes of the earlier release run on, and start again.
async fn what_a_later_release_selects_is_left_to_it(kind: Kind) {
    let scene = Scene::start(kind, Dialect::Sqlite).await;
    let opened = EventSelection::of_events(["WalletOpened"]);
    let earlier = || scene.node().relay(scene.relay().select(opened.clone()));
    let node_of_earlier = earlier().start().await.unwrap();
    let wallets = scene.use_wallets(2, 1).await;
    assert_eq!(scene.until_received(2).await.len(), 2);
    let other = scene.open_again().await;
    let later = opened.clone().and(EventSelection::of_models(["Wallet"]));
    let later = crate::scene::node(&other).relay(scene.relay().select(later));
    let _later = later.start().await.unwrap();
    for wallet in &wallets {
        deposit(&scene.executor, *wallet, 1).await;
        deposit(&other, *wallet, 1).await;
    }
    scene.until_received(8).await;
    node_of_earlier.drain(Duration::from_secs(30)).await;
    let _earlier = earlier().start().await.unwrap();
    for wallet in &wallets {
        deposit(&scene.executor, *wallet, 1).await;
    }
    let received = scene.until_received(10).await;
    scene.until_done().await;
    assert_in_order(&received, 2, 5);
    assert_no_repetition(&received);
}

async fn two_nodes_share_the_work(kind: Kind, dialect: Dialect) {
    let scene = Scene::start(kind, dialect).await;
    let other = scene.open_again().await;
    let first = scene.node().relay(scene.relay()).start().await.unwrap();
    let second = crate::scene::node(&other).relay(scene.relay()).start().await.unwrap();
    let sent = |node: &Node| node.handlers()[0].handled;
    let mut opened = 0;
    until("both nodes have sent some", async || {
        for executor in [&scene.executor, &other] {
            open_wallet(executor).await;
            opened += 1;
        }
        sent(&first) > 0 && sent(&second) > 0
    })
    .await;
    let wallets = scene.use_wallets(5, 4).await;
    // The versions of each wallet are committed by both processes in turn.
    for _ in 0..5 {
        for wallet in &wallets {
            deposit(&other, *wallet, 1).await;
            deposit(&scene.executor, *wallet, 1).await;
        }
    }
    let mut received = scene.until_received(opened + 75).await;
    scene.until_done().await;
    assert_no_repetition(&received);
    received.retain(|one| wallets.iter().any(|wallet| one.key == wallet.to_string()));
    assert_in_order(&received, 5, 15);
    until("nothing was sent by both", async || {
        sent(&first) + sent(&second) == (opened + 75) as u64
    })
    .await;
}
