//! What only RabbitMQ refuses: names and headers that its protocol has no room for.

use ekbatan::relay::{RabbitMqBroker, Relay};
use support::{Dialect, until};

use crate::scene::{RELAY, Scene, open_wallet};
use crate::site::Kind;

#[tokio::test(flavor = "multi_thread")]
async fn a_header_for_which_there_is_no_room_stops_its_model_only() {
    let scene = Scene::start(Kind::RabbitMq, Dialect::Sqlite).await;
    let long = open_wallet(&scene.executor).await.to_string();
    let large = open_wallet(&scene.executor).await.to_string();
    let (long_name, large_value) = (long.clone(), large.clone());
    let relay = scene.relay().prepare(move |event, message| {
        if event.model_id == long_name {
            message.set_header("n".repeat(256), "value");
        } else if event.model_id == large_value {
            message.set_header("name", "v".repeat(200_000));
        }
        Ok(())
    });
    let _node = scene.node().relay(relay).start().await.unwrap();
    scene.use_wallets(2, 2).await;
    let received = scene.until_received(6).await;
    assert!(received.iter().all(|one| one.key != long && one.key != large));
    until("both are parked", async || {
        let parked = scene.operations().parked(10).await.unwrap();
        let has = |why: &str| {
            let errors = parked.iter().filter_map(|one| one.last_error.as_deref());
            errors.filter(|error| error.contains(why)).count() == 1
        };
        parked.len() == 2 && has("has 256 bytes; RabbitMQ takes 255") && has("the headers have")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exchange_whose_name_is_too_long_keeps_a_node_from_starting() {
    let scene = Scene::start(Kind::InProcess, Dialect::Sqlite).await;
    let broker = RabbitMqBroker::new("amqp://127.0.0.1:1/%2f").exchange("e".repeat(256));
    let started = scene.node().relay(Relay::new(RELAY, broker)).start().await;
    let why = started.err().unwrap().to_string();
    assert!(why.contains("the name of the exchange has 256 bytes; use at most 255"), "{why}");
}
