//! Nodes that hear of what other processes commit before they look for it, and that need not hear.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ekbatan::config::{EkbatanConfig, EventsConfig};
use ekbatan::events::{Node, NodeBuilder};
use ekbatan::prelude::*;
use ekbatan_testkit::Proxy;
use futures_util::FutureExt;
use support::{ScratchDatabase, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::scene::{Ledger, Mail, Scene, deposit, executor, migrations, node, open_wallet};
use crate::statements::{logging_server, statements};

on_every_database! {
    without_a_doorbell_events_are_found_by_looking,
    events_are_found_if_one_side_has_no_doorbell,
}

mod with_a_signal {
    use super::*;

    on_every_database! { only sqlite and postgres:
        a_node_hears_of_what_another_process_commits,
        a_node_without_handlers_rings_for_others,
    }
}

mod with_sessions {
    use super::*;

    on_every_database! { only postgres:
        a_listener_whose_session_is_ended_listens_again,
        sessions_that_are_ended_again_and_again_cost_no_event,
        a_notification_that_never_arrives_delays_an_event_only,
        a_closed_database_has_no_doorbell_any_more,
        a_claim_that_fails_is_tried_again_although_the_node_does_not_look,
        a_claim_that_takes_too_long_is_tried_again_although_the_node_does_not_look,
    }
}

mod on_servers {
    use super::*;

    on_every_database! { only postgres and mysql and mariadb:
        an_idle_node_asks_no_more_often_with_a_long_history,
    }
}

const NEVER: Duration = Duration::from_secs(60 * 60);

/// A node that looks for events when it starts and when it hears of some.
fn node_that_does_not_look(executor: &ActionExecutor) -> NodeBuilder {
    Node::builder(executor).poll(NEVER, NEVER).lease(NEVER)
}

/// How many events a handler has been given.
fn count(mail: &Mail) -> impl Fn() -> usize + use<> {
    let seen = mail.seen();
    move || seen.lock().unwrap().len()
}

fn counting() -> Mail {
    Mail::new(|_, _| async { Ok(()) }.boxed())
}

/// The sessions of doorbells.
const SESSIONS: &str = "FROM pg_stat_activity WHERE datname = current_database() \
                        AND application_name LIKE '%-doorbell'";

async fn end_sessions(scene: &Scene) {
    scene.scratch.execute(&format!("SELECT pg_terminate_backend(pid) {SESSIONS}")).await;
}

async fn a_node_hears_of_what_another_process_commits(scene: &Scene) {
    let mail = counting();
    let handled = count(&mail);
    let _node = node_that_does_not_look(&scene.executor).handler(mail).start().await.unwrap();
    let other = scene.open_again().await;
    let _delivering = node_that_does_not_look(&other).start().await.unwrap();
    let wallet = open_wallet(&other).await;
    until("the first event is handled", async || handled() == 1).await;
    for events in 2..=20 {
        deposit(&other, wallet, 1).await;
        until("the next event is handled", async || handled() == events).await;
    }
}

async fn a_node_without_handlers_rings_for_others(scene: &Scene) {
    let other = scene.open_again().await;
    let mail = counting();
    let handled = count(&mail);
    let _node = node_that_does_not_look(&other).handler(mail).start().await.unwrap();
    let without = node_that_does_not_look(&scene.executor).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    until("the first event is handled", async || handled() == 1).await;
    scene.deposit(wallet, 1).await;
    until("the next event is handled", async || handled() == 2).await;
    without.drain(Duration::from_secs(60)).await;
    // A process without a node tells nobody. What it commits is found by nodes that look.
    scene.deposit(wallet, 1).await;
    let looking = scene.open_again().await;
    let _looks = node(&looking).handler(counting()).start().await.unwrap();
    scene.until_handled("mail.send").await;
}

async fn a_listener_whose_session_is_ended_listens_again(scene: &Scene) {
    let mail = counting();
    let handled = count(&mail);
    let _node = node_that_does_not_look(&scene.executor).handler(mail).start().await.unwrap();
    let other = scene.open_again().await;
    let _delivering = node_that_does_not_look(&other).start().await.unwrap();
    let wallet = open_wallet(&other).await;
    until("the first event is handled", async || handled() == 1).await;
    for cut in 1..=3 {
        end_sessions(scene).await;
        // Nobody looks: this is handled because a new session listens or was told.
        deposit(&other, wallet, 1).await;
        until("the next event is handled", async || handled() == 1 + cut).await;
    }
}

async fn sessions_that_are_ended_again_and_again_cost_no_event(scene: &Scene) {
    let _node = scene.node().handler(Ledger::posting()).start().await.unwrap();
    let other = scene.open_again().await;
    let _other = node(&other).handler(Ledger::posting()).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    for _ in 0..10 {
        scene.deposit(wallet, 1).await;
        end_sessions(scene).await;
        deposit(&other, wallet, 2).await;
    }
    scene.until_handled("ledger.post").await;
    assert_eq!(scene.posted(wallet).await, (1..=31).collect::<Vec<i64>>());
}

/// As a pooler does that gives a session to others between transactions: notifications of a server
/// do not reach its clients. Returns the address, and how many there were.
async fn deaf(url: &str) -> (String, Arc<AtomicUsize>) {
    let target = url.split(['@', '/']).find(|part| part.starts_with("127.")).unwrap().to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let deaf = url.replace(&target, &listener.local_addr().unwrap().to_string());
    let dropped = Arc::new(AtomicUsize::new(0));
    let count = dropped.clone();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(serve_deaf(client, target.clone(), count.clone()));
        }
    });
    (deaf, dropped)
}

async fn serve_deaf(
    mut client: TcpStream,
    target: String,
    dropped: Arc<AtomicUsize>,
) -> std::io::Result<()> {
    // The server has no encryption, for which a client asks by eight bytes.
    let mut first = [0; 8];
    client.read_exact(&mut first).await?;
    let mut server = TcpStream::connect(target).await?;
    if first == [0, 0, 0, 8, 4, 210, 22, 47] {
        client.write_all(b"N").await?;
    } else {
        server.write_all(&first).await?;
    }
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
    loop {
        let mut message = vec![0; 5];
        from_server.read_exact(&mut message).await?;
        let length = u32::from_be_bytes([message[1], message[2], message[3], message[4]]) as usize;
        message.resize(1 + length, 0);
        from_server.read_exact(&mut message[5..]).await?;
        if message[0] == b'A' {
            dropped.fetch_add(1, Ordering::SeqCst);
        } else {
            to_client.write_all(&message).await?;
        }
    }
}

async fn a_notification_that_never_arrives_delays_an_event_only(scene: &Scene) {
    let (url, dropped) = deaf(&scene.scratch.url).await;
    let databases = Databases::open(&url).await.unwrap();
    let behind = executor(&databases).await;
    let _node = node(&behind).handler(Ledger::posting()).start().await.unwrap();
    let _delivering = scene.node().start().await.unwrap();
    let wallet = scene.open_wallet().await;
    let mut events = 1;
    until("a notification was lost", async || {
        scene.deposit(wallet, 1).await;
        events += 1;
        dropped.load(Ordering::SeqCst) > 0
    })
    .await;
    scene.until_handled("ledger.post").await;
    assert_eq!(scene.posted(wallet).await, (1..=events).collect::<Vec<i64>>());
}

async fn a_closed_database_has_no_doorbell_any_more(scene: &Scene) {
    let other = scene.open_again().await;
    // Sessions that end while they are being opened.
    for _ in 0..10 {
        let node = node(&other).handler(counting()).start().await.unwrap();
        node.drain(Duration::from_secs(60)).await;
    }
    let node = node(&other).handler(counting()).start().await.unwrap();
    let sessions = async || scene.scratch.select(&["pid"], SESSIONS).await.len();
    until("the node listens", async || sessions().await == 1).await;
    node.drain(Duration::from_secs(60)).await;
    until("a session that no node needs ends", async || sessions().await == 0).await;
    let again = crate::scene::node(&other).handler(counting()).start().await.unwrap();
    until("the node listens again", async || sessions().await == 1).await;
    other.databases().close().await;
    until("the session has ended", async || sessions().await == 0).await;
    drop(again);
}

async fn a_claim_that_fails_is_tried_again_although_the_node_does_not_look(scene: &Scene) {
    is_handled_after_a_claim_that(scene, "RAISE 'refused by the test'").await;
}

/// Its answer comes after the round has given it up.
async fn a_claim_that_takes_too_long_is_tried_again_although_the_node_does_not_look(scene: &Scene) {
    is_handled_after_a_claim_that(scene, "PERFORM pg_sleep(10)").await;
}

/// Lets the first claim of a node do this at the server.
async fn is_handled_after_a_claim_that(scene: &Scene, does: &str) {
    let mail = counting();
    let handled = count(&mail);
    let _node = node_that_does_not_look(&scene.executor).handler(mail).start().await.unwrap();
    let other = scene.open_again().await;
    let _delivering = node_that_does_not_look(&other).start().await.unwrap();
    let deliveries = scene.scratch.eventlog("deliveries");
    let claims = format!(
        "CREATE SEQUENCE claims; CREATE FUNCTION claim() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN IF nextval('claims') = 1 THEN {does}; END IF; RETURN NEW; END $$; \
         CREATE TRIGGER claim BEFORE UPDATE ON {deliveries} FOR EACH ROW \
         WHEN (NEW.state = 'CLAIMED') EXECUTE FUNCTION claim()"
    );
    scene.scratch.execute(&claims).await;
    open_wallet(&other).await;
    until("the event is handled", async || handled() > 0).await;
    let claims = scene.scratch.select(&["last_value"], "FROM claims").await;
    assert_ne!(claims[0][0].as_deref(), Some("1"), "the first claim has given the node nothing");
}

async fn without_a_doorbell_events_are_found_by_looking(scene: &Scene) {
    let mut events = EventsConfig::default();
    events.doorbell = false;
    let config = EkbatanConfig::from(scene.scratch.config()).events(events);
    let other = executor(&Databases::connect(&config).await.unwrap()).await;
    let _node = node(&other).handler(Ledger::posting()).start().await.unwrap();
    let _delivering = scene.node().doorbell(false).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    scene.deposit(wallet, 5).await;
    scene.until_handled("ledger.post").await;
    assert_eq!(scene.posted(wallet).await, [1, 2, 3, 4, 5, 6]);
}

async fn events_are_found_if_one_side_has_no_doorbell(scene: &Scene) {
    let other = scene.open_again().await;
    let _node = node(&other).handler(Ledger::posting()).start().await.unwrap();
    let delivering = scene.node().doorbell(false).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    scene.deposit(wallet, 5).await;
    scene.until_handled("ledger.post").await;
    delivering.drain(Duration::from_secs(60)).await;
    // A process without a node.
    scene.deposit(wallet, 5).await;
    scene.until_handled("ledger.post").await;
    until("all are posted", async || scene.posted(wallet).await.len() == 11).await;
    assert_eq!(scene.posted(wallet).await, (1..=11).collect::<Vec<i64>>());
}

async fn an_idle_node_asks_no_more_often_with_a_long_history(scene: &Scene) {
    let address = scene.scratch.url.split(['@', '/']).find(|part| part.starts_with("127."));
    let proxy = Proxy::start(address.unwrap()).await.unwrap();
    let url = proxy.url_for(&scene.scratch.url);
    let config = ScratchDatabase::config_of(&url);
    for history in [0, 2_000] {
        if history > 0 {
            let node = scene.node().handler(counting()).start().await.unwrap();
            let wallets: Vec<_> = futures_util::future::join_all((0..20).map(|_| async {
                let wallet = scene.open_wallet().await;
                scene.deposit(wallet, history / 20).await;
            }))
            .await;
            assert_eq!(wallets.len(), 20);
            scene.until_handled("mail.send").await;
            node.drain(Duration::from_secs(60)).await;
        }
        let databases = Databases::connect(&config.clone().into()).await.unwrap();
        let idle = executor(&databases).await;
        let node = Node::builder(&idle).lease(NEVER).handler(counting()).start().await.unwrap();
        let began = Instant::now();
        proxy.reset();
        tokio::time::sleep(Duration::from_secs(3)).await;
        let (trips, took) = (proxy.round_trips(), began.elapsed());
        // Pauses of 2, 4, 8 .. 256 ms, and then of 500 ms; each look is at most three trips, but the
        // first ones prepare their statements on several connections, and each five seconds rows are
        // checked.
        let looks = 9 + took.as_millis() / 500 + 1;
        let most = u64::try_from(looks * 3 + 40).unwrap();
        assert!(trips <= most, "{trips} trips in {took:?}, with {history} events; most {most}");
        assert!(trips > 0, "it looks");
        node.drain(Duration::from_secs(60)).await;
        databases.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_commit_of_data_has_a_notification() {
    let (server, scratch) = logging_server().await;
    let databases = Databases::connect(&scratch.config().into()).await.unwrap();
    databases.migrate(&migrations()).await.unwrap();
    let committing = executor(&databases).await;
    let others = Databases::connect(&scratch.config().into()).await.unwrap();
    let handling = executor(&others).await;
    let mail = counting();
    let handled = count(&mail);
    let _node = node_that_does_not_look(&handling).handler(mail).start().await.unwrap();
    let _delivering = node_that_does_not_look(&committing).start().await.unwrap();
    let wallet = open_wallet(&committing).await;
    deposit(&committing, wallet, 30).await;
    until("all events are handled", async || handled() == 31).await;
    // The session that tells others may open after the first look of the node has found all events.
    let mut log = String::new();
    until("a node is told", async || {
        log = server.log().await.unwrap();
        log.to_lowercase().contains("notify")
    })
    .await;
    let sessions = statements(&log);
    let notifies = |statement: &&String| statement.to_lowercase().contains("notify");
    let mut rings = 0;
    for session in sessions.values().filter(|all| all.iter().any(|one| notifies(&one))) {
        rings += session.iter().filter(notifies).count();
        for statement in session {
            let text = statement.to_lowercase();
            for word in ["insert", "update ", "delete", "begin", "commit", "eventlog.events"] {
                assert!(!text.contains(word), "a session that notifies has sent {statement}");
            }
        }
    }
    assert!(rings > 0, "a node was told");
    assert!(rings <= 31, "{rings} notifications of 31 commits");
    let commits = sessions.values().flatten().filter(|one| one.contains("INSERT INTO")).count();
    assert!(commits > 0, "the log has the commits");
}
