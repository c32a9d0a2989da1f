//! Events that were sent already and are sent again because an operator wants it.

use ekbatan::events::DeliveryFilter;
use support::{Dialect, until};

use crate::scene::{RELAY, Scene};
use crate::site::Kind;

on_every_database! { stored_events_are_counted_and_sent_again }

async fn stored_events_are_counted_and_sent_again(kind: Kind, dialect: Dialect) {
    let scene = Scene::start(kind, dialect).await;
    let _node = scene.node().relay(scene.relay()).start().await.unwrap();
    scene.use_wallets(2, 4).await;
    scene.until_received(10).await;
    scene.until_done().await;
    let operations = scene.operations();
    let all = DeliveryFilter::stored_events(RELAY);
    assert_eq!(operations.count(&all).await.unwrap(), 10);
    let opened = all.event_type("WalletOpened");
    assert_eq!(operations.count(&opened).await.unwrap(), 2);
    assert_eq!(operations.replay_all(&opened, 2, "alice", "they were lost").await.unwrap(), 2);
    until("they have arrived again", async || scene.site.received().await.len() == 12).await;
    let received = scene.site.received().await;
    assert_eq!(received.iter().filter(|one| one.version == 1).count(), 4);
}
