//! What keeps a relay from starting, and messages that nobody gets.

use std::time::Duration;

use async_nats::jetstream::consumer::pull;
use async_nats::jetstream::stream::{Config, RetentionPolicy};
use ekbatan::events::StartError;
use ekbatan::relay::{EventSelection, NatsBroker, Relay};
use support::{Dialect, until};

use crate::scene::{
    RELAY, SHORT_LEASE, Scene, assert_no_repetition, deposit, first_versions, node, open_wallet,
};
use crate::site::{Kind, Limits, NatsSite};

on_every_broker! {
    a_message_that_nobody_gets_is_refused_until_somebody_does,
    a_relay_without_events_or_with_a_wrong_batch_is_refused,
}
on_every_broker! { only servers: a_node_does_not_start_without_its_broker }

async fn a_message_that_nobody_gets_is_refused_until_somebody_does(kind: Kind) {
    let scene = Scene::start(kind, Dialect::Sqlite).await;
    let lost = open_wallet(&scene.executor).await;
    let (key, site) = (lost.to_string(), scene.site.clone());
    let relay = scene.relay().prepare(move |event, message| {
        if event.model_id == key {
            message.topic = site.nobodys_topic();
        }
        Ok(())
    });
    let _node = scene.node().relay(relay).start().await.unwrap();
    deposit(&scene.executor, lost, 2).await;
    scene.use_wallets(2, 2).await;
    scene.until_received(6).await;
    until("the first one is refused, and tried again", async || {
        let failing = scene.operations().failing(10).await.unwrap();
        failing.len() == 1 && failing[0].attempts >= 2 && failing[0].model_version == 1
    })
    .await;
    scene.site.receive_nobodys_topic().await;
    scene.until_done().await;
    let received = scene.until_received(9).await;
    assert_eq!(first_versions(&received)[&lost.to_string()], [1, 2, 3]);
}

async fn a_relay_without_events_or_with_a_wrong_batch_is_refused(kind: Kind) {
    let scene = Scene::start(kind, Dialect::Sqlite).await;
    let none = EventSelection::of_models(Vec::<String>::new());
    for (relay, why) in [
        (scene.relay().select(none), "it selects no events"),
        (scene.relay().batch(0), "0 is not from 1 to 1000"),
        (scene.relay().batch(1_001), "1001 is not from 1 to 1000"),
        (scene.relay().batches(0), "use at least 1"),
        (Relay::new(" ", scene.site.broker()), "` ` is blank"),
    ] {
        let error = scene.node().relay(relay).start().await.err().unwrap().to_string();
        assert!(error.contains(why), "{error}");
    }
    let twice = scene.node().relay(scene.relay()).relay(scene.relay()).start().await;
    assert!(matches!(twice.err(), Some(StartError::NameTwice { .. })));
}

async fn a_node_does_not_start_without_its_broker(kind: Kind) {
    let scene = Scene::start(kind, Dialect::Sqlite).await;
    scene.site.kill().await;
    let error = scene.node().relay(scene.relay()).start().await.err().unwrap();
    let text = error.to_string();
    assert!(text.contains(RELAY) && text.contains("cannot start"), "{text}");
    // A node that only commits needs no broker.
    let only_commits = scene.node().handles(false).relay(scene.relay()).start().await.unwrap();
    open_wallet(&scene.executor).await;
    assert_eq!(scene.operations().pending(RELAY).await.unwrap(), 1);
    only_commits.drain(Duration::from_secs(30)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_whose_window_is_shorter_than_the_time_of_repetitions_is_refused() {
    let scene = Scene::start(Kind::Nats, Dialect::Sqlite).await;
    let site = NatsSite::start(Limits::default()).await;
    let jetstream = site.jetstream().await;
    let short = Config {
        name: "short".to_owned(),
        subjects: vec!["short.>".to_owned()],
        duplicate_window: Duration::from_secs(5),
        ..Config::default()
    };
    jetstream.create_stream(short).await.unwrap();
    let relay = |stream: &str| Relay::new(RELAY, NatsBroker::new(site.server.url(), stream));
    let refused = async |builder: ekbatan::events::NodeBuilder| {
        builder.start().await.err().map(|error| error.to_string())
    };
    let short = scene.node().lease(SHORT_LEASE).relay(relay("short"));
    let why = refused(short).await.unwrap();
    assert!(
        why.contains("the stream `short` recognises a repetition for 5s, and the relay may repeat a message after 81.5s"),
        "{why}"
    );
    // A long lease needs a longer window than the usual one.
    let long = node(&scene.executor).lease(Duration::from_secs(600)).relay(relay("events"));
    assert!(refused(long).await.unwrap().contains("may repeat a message after 980s"));
    assert!(refused(scene.node().relay(relay("events"))).await.is_none());
    let why = refused(scene.node().relay(relay("absent"))).await.unwrap();
    assert!(why.contains("there is no stream `absent`") && why.contains("create_stream"), "{why}");
    // A stream that the relay creates has a window that is long enough.
    let broker = NatsBroker::new(site.server.url(), "own").create_stream(["own.>"]);
    let long = node(&scene.executor).lease(Duration::from_secs(600));
    let own = Relay::new("own", broker).topic("own.{model}").unwrap();
    let _node = long.relay(own).start().await.unwrap();
    let info = jetstream.get_stream("own").await.unwrap();
    assert_eq!(info.cached_info().config.duplicate_window, Duration::from_secs(980));
}

/// The server acknowledges what it does not keep.
#[tokio::test(flavor = "multi_thread")]
async fn nats_that_keeps_messages_for_consumers_only_needs_one() {
    let scene = Scene::start(Kind::InProcess, Dialect::Sqlite).await;
    let site = NatsSite::start(Limits::default()).await;
    let interest = Config {
        name: "interest".to_owned(),
        subjects: vec!["interest.>".to_owned()],
        retention: RetentionPolicy::Interest,
        ..Config::default()
    };
    let stream = site.jetstream().await.create_stream(interest).await.unwrap();
    let start = async || {
        let broker = NatsBroker::new(site.server.url(), "interest");
        let relay = Relay::new(RELAY, broker).topic("interest.{model}").unwrap();
        scene.node().relay(relay).start().await
    };
    let why = start().await.err().unwrap().to_string();
    assert!(why.contains("the stream `interest` keeps messages only for its consumers"), "{why}");
    let durable = pull::Config { durable_name: Some("mail".to_owned()), ..Default::default() };
    stream.create_consumer(durable).await.unwrap();
    let node = start().await.unwrap();
    open_wallet(&scene.executor).await;
    scene.until_done().await;
    assert_eq!(stream.get_info().await.unwrap().state.messages, 1);
    node.drain(Duration::from_secs(30)).await;
}

/// Otherwise each event would be given up by itself. The check needs no server.
#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_no_server_of_nats_takes_keeps_a_node_from_starting() {
    let scene = Scene::start(Kind::InProcess, Dialect::Sqlite).await;
    for topic in ["a b", "a..b", ".", "*", "x.>", "a\n", "a.{event}."] {
        let broker = NatsBroker::new("nats://127.0.0.1:1", "events");
        let relay = Relay::new(RELAY, broker).topic(topic).unwrap();
        let why = scene.node().relay(relay).start().await.err().unwrap().to_string();
        assert!(why.contains(RELAY) && why.contains("is no subject of NATS"), "{topic}: {why}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subject_to_which_nats_lets_nobody_send_stops_its_models_only() {
    let limits = Limits { denies: true, ..Limits::default() };
    let scene = Scene::limited(Kind::Nats, Dialect::Sqlite, limits).await;
    let denied = open_wallet(&scene.executor).await;
    deposit(&scene.executor, denied, 2).await;
    scene.use_wallets(1, 4).await;
    let (key, topic) = (denied.to_string(), scene.site.nobodys_topic());
    let relay = scene.relay().prepare(move |event, message| {
        if event.model_id == key {
            message.topic = topic.clone();
        }
        Ok(())
    });
    let _node = scene.node().relay(relay).start().await.unwrap();
    assert_no_repetition(&scene.until_received(5).await);
    until("the denied one is refused, and tried again", async || {
        let failing = scene.operations().failing(10).await.unwrap();
        let error = failing.first().and_then(|one| one.last_error.clone()).unwrap_or_default();
        failing.len() == 1 && failing[0].attempts >= 2 && error.contains("no permission to send")
    })
    .await;
}
