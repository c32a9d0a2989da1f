//! Messages that a broker does not take stop their model only.

use std::time::Duration;

use ekbatan::relay::Relay;
use support::{Dialect, until};

use crate::scene::{RELAY, Scene, deposit, first_versions};
use crate::site::{Kind, Limits};

on_every_broker! {
    a_message_that_is_too_large_parks_its_model_only,
    a_message_that_is_too_large_goes_to_the_dead_letters_by_choice,
}

const MOST: usize = 4_000;

/// The second event of the wallet is too large.
fn with_large_second(scene: &Scene, wallet: String) -> Relay {
    scene.relay().prepare(move |event, message| {
        if event.model_id == wallet && event.model_version == Some(2) {
            message.payload = format!("\"{}\"", "x".repeat(10 * MOST)).into_bytes();
        }
        Ok(())
    })
}

async fn scene(kind: Kind) -> Scene {
    Scene::limited(kind, Dialect::Sqlite, Limits { bytes: Some(MOST), ..Limits::default() }).await
}

async fn a_message_that_is_too_large_parks_its_model_only(kind: Kind) {
    let scene = scene(kind).await;
    let wallets = scene.use_wallets(4, 4).await;
    let large = wallets[0].to_string();
    let relay = with_large_second(&scene, large.clone());
    let _node = scene.node().relay(relay).start().await.unwrap();
    let received = scene.until_received(3 * 5 + 1).await;
    let versions = first_versions(&received);
    assert_eq!(versions[&large], [1]);
    assert!(versions.iter().all(|(key, of)| *key == large || of.len() == 5), "{versions:?}");
    let parked = async || scene.operations().parked(10).await.unwrap();
    until("the large one is parked", async || parked().await.len() == 1).await;
    let parked = parked().await.remove(0);
    assert_eq!((parked.stream.to_string(), parked.model_version), (large.clone(), 2));
    assert!(parked.last_error.is_some(), "{parked:?}");
    // Later events of other models pass; an operator lets those of this one pass.
    deposit(&scene.executor, wallets[1], 1).await;
    scene.until_received(3 * 5 + 2).await;
    scene.operations().skip(parked.id, "alice", "it is too large").await.unwrap();
    let received = scene.until_received(3 * 5 + 5).await;
    assert_eq!(first_versions(&received)[&large], [1, 3, 4, 5]);
    scene.until_done().await;
}

async fn a_message_that_is_too_large_goes_to_the_dead_letters_by_choice(kind: Kind) {
    let scene = scene(kind).await;
    let wallets = scene.use_wallets(2, 4).await;
    let large = wallets[0].to_string();
    let relay = with_large_second(&scene, large.clone()).dead_letters();
    let node = scene.node().relay(relay).start().await.unwrap();
    scene.until_done().await;
    let received = scene.until_received(9).await;
    assert_eq!(first_versions(&received)[&large], [1, 3, 4, 5]);
    let letters = scene.operations().dead_letters(10).await.unwrap();
    let [letter] = letters.as_slice() else { panic!("{letters:?}") };
    assert_eq!((letter.handler.as_str(), letter.model_version), (RELAY, 2));
    node.drain(Duration::from_secs(30)).await;
    // Once it is small enough, it is replayed, with the same id.
    let _node = scene.node().relay(scene.relay()).start().await.unwrap();
    scene.operations().replay(letter, "alice", "it is smaller now").await.unwrap();
    let received = scene.until_received(10).await;
    assert_eq!(received.last().map(|last| (last.id, last.version)), Some((letter.event_id, 2)));
}
