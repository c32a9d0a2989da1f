//! What goes on while something else stands still.

use std::sync::{Mutex, mpsc};
use std::time::Duration;

use ekbatan::action::ErrorKind;
use ekbatan::config::{EkbatanConfig, ShardMemberConfig};
use ekbatan::db::Route;
use ekbatan::domain::ShardIdentifier;
use ekbatan::events::HandlerOptions;
use ekbatan::prelude::*;
use ekbatan_testkit::Proxy;
use futures_util::FutureExt;
use support::wallet::{Deposit, DepositMoney};
use support::{Dialect, ScratchDatabase, until};

use crate::scene::{
    Ledger, PostEntry, Posting, Scene, deposit, executor, migrations, node, open_wallet, post,
};

on_every_database! {
    one_model_over_four_nodes_keeps_its_order,
    nodes_of_one_name_are_two,
    a_node_renews_itself_while_its_pool_is_used_up,
    a_node_whose_threads_are_blocked_is_taken_over_and_commits_nothing,
    a_node_whose_threads_were_blocked_begins_nothing_that_others_have_taken_over,
}

mod on_servers {
    use super::*;

    on_every_database! { only postgres and mysql and mariadb:
        an_open_transaction_delays_its_own_model_only,
        a_drain_ends_although_the_server_does_not_answer,
    }
}

async fn one_model_over_four_nodes_keeps_its_order(scene: &Scene) {
    let mut executors = vec![scene.executor.clone()];
    for _ in 1..4 {
        executors.push(scene.open_again().await);
    }
    let mut nodes = Vec::new();
    for executor in &executors {
        nodes.push(node(executor).handler(Ledger::posting()).start().await.unwrap());
    }
    let wallet = scene.open_wallet().await;
    for n in 0..60 {
        deposit(&executors[n % executors.len()], wallet, 1).await;
    }
    scene.until_handled("ledger.post").await;
    assert_eq!(scene.posted(wallet).await, (1..=61).collect::<Vec<i64>>());
}

async fn nodes_of_one_name_are_two(scene: &Scene) {
    let other = scene.open_again().await;
    let first = scene.node().name("pod").handler(Ledger::posting()).start().await.unwrap();
    let second = node(&other).name("pod").handler(Ledger::posting()).start().await.unwrap();
    let nodes = format!("FROM {} ORDER BY id", scene.scratch.eventlog("nodes"));
    let rows = async || scene.scratch.select(&["name", "id"], &nodes).await;
    let both = rows().await;
    assert!(both.len() == 2 && both.iter().all(|row| row[0].as_deref() == Some("pod")), "{both:?}");
    // The end of one leaves the other one its claims.
    first.drain(Duration::from_secs(60)).await;
    // If the first one takes too long to delete its row, the other one does it after its lease.
    let mut left = Vec::new();
    until("the row of the first one is deleted", async || {
        left = rows().await;
        left.len() < 2
    })
    .await;
    assert_eq!(left, both[1..]);
    let wallet = open_wallet(&other).await;
    deposit(&other, wallet, 3).await;
    scene.until_handled("ledger.post").await;
    assert_eq!(scene.posted(wallet).await, [1, 2, 3, 4]);
    second.drain(Duration::from_secs(60)).await;
}

async fn a_node_renews_itself_while_its_pool_is_used_up(scene: &Scene) {
    const CONNECTIONS: usize = 2;
    let config = scene.scratch.config().maximum_pool_size(CONNECTIONS);
    let databases = Databases::connect(&config.into()).await.unwrap();
    let busy = executor(&databases).await;
    let lease = Duration::from_secs(1);
    let _node = node(&busy).lease(lease).handler(Ledger::posting()).start().await.unwrap();
    // Readers hold every connection, and wait for the test.
    let (over, _) = tokio::sync::watch::channel(false);
    let options = ekbatan::db::TransactionOptions::default().read_only();
    let mut readers = tokio::task::JoinSet::new();
    for _ in 0..CONNECTIONS {
        let (transactions, mut over) = (databases.transactions(), over.subscribe());
        readers.spawn(async move {
            let reading = |_| async move {
                over.wait_for(|over| *over).await.map(drop).unwrap();
                Ok::<(), ekbatan::db::DbError>(())
            };
            transactions.in_transaction_with(options, reading).await
        });
    }
    let is_used_up = || databases.pool_status(Route::Primary).holders.len() >= CONNECTIONS;
    until("all connections are held", async || is_used_up()).await;
    // Another process deletes nodes that it does not see renewed for as long as its own lease.
    let other = scene.open_again().await;
    let _other = node(&other).lease(lease * 6).start().await.unwrap();
    let nodes = scene.scratch.eventlog("nodes");
    let version = async || {
        let tail = format!("FROM {nodes} ORDER BY started");
        let rows = scene.scratch.select(&["id", "version"], &tail).await;
        let version = rows[0][1].as_deref().unwrap().parse::<i64>().unwrap();
        (rows[0][0].clone(), version)
    };
    let (id, before) = version().await;
    until("it was renewed for two leases", async || version().await.1 >= before + 40).await;
    assert_eq!(version().await.0, id, "it is the same node");
    over.send_replace(true);
    while let Some(read) = readers.join_next().await {
        read.unwrap().unwrap();
    }
}

/// A process whose only thread is in a handler that blocks it.
async fn a_node_whose_threads_are_blocked_is_taken_over_and_commits_nothing(scene: &Scene) {
    let lease = Duration::from_secs(1);
    let wallet = scene.open_wallet().await;
    let ((blocked, is_blocked), (go_on, goes_on)) = (mpsc::channel(), mpsc::channel::<()>());
    let (answers, mut answered) = tokio::sync::mpsc::unbounded_channel();
    let goes_on = Mutex::new(goes_on);
    let ledger = Ledger::new(move |ctx, event| {
        if blocked.send(()).is_ok() {
            let _ = goes_on.lock().unwrap().recv();
        }
        let answers = answers.clone();
        async move {
            let answer = ctx.finish(&PostEntry, Posting::of(event)).await;
            answers.send(answer.as_ref().err().map(|error| error.kind()))?;
            Ok(answer?)
        }
        .boxed()
    });
    let config = scene.scratch.config();
    let (over, is_over) = tokio::sync::oneshot::channel::<()>();
    let process = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let databases = Databases::connect(&config.into()).await.unwrap();
            let executor = executor(&databases).await;
            let _node = node(&executor).lease(lease).handler(ledger).start().await.unwrap();
            is_over.await.unwrap();
        });
    });
    tokio::task::spawn_blocking(move || is_blocked.recv().unwrap()).await.unwrap();
    let other = scene.open_again().await;
    let other = node(&other).lease(lease).handler(Ledger::posting()).start().await.unwrap();
    scene.until_posted(1).await;
    go_on.send(()).unwrap();
    assert_eq!(answered.recv().await.unwrap(), Some(ErrorKind::DeliveryLost));
    assert_eq!(scene.posted(wallet).await, [1]);
    over.send(()).unwrap();
    tokio::task::spawn_blocking(move || process.join().unwrap()).await.unwrap();
    other.drain(Duration::from_secs(60)).await;
}

/// A process whose only thread is blocked for longer than its lease, while the node holds further events.
async fn a_node_whose_threads_were_blocked_begins_nothing_that_others_have_taken_over(
    scene: &Scene,
) {
    let lease = Duration::from_secs(1);
    // The events of three models.
    for _ in 0..3 {
        scene.open_wallet().await;
    }
    let ((blocked, is_blocked), (go_on, goes_on)) = (mpsc::channel(), mpsc::channel::<()>());
    let goes_on = Mutex::new(goes_on);
    let ledger = Ledger::new(move |ctx, event| {
        if blocked.send(()).is_ok() {
            let _ = goes_on.lock().unwrap().recv();
        }
        post(ctx, event)
    });
    let seen = ledger.seen();
    let config = scene.scratch.config();
    let (over, is_over) = tokio::sync::oneshot::channel::<()>();
    let process = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let databases = Databases::connect(&config.into()).await.unwrap();
            let executor = executor(&databases).await;
            let options = HandlerOptions::default().concurrency(1);
            let node = node(&executor).lease(lease).handler_with(ledger, options);
            let _node = node.start().await.unwrap();
            let _ = is_over.await;
        });
    });
    // All three are claimed by the first look, and one is begun.
    let is_blocked = tokio::task::spawn_blocking(move || {
        is_blocked.recv().unwrap();
        is_blocked
    });
    drop(is_blocked.await.unwrap());
    let other = scene.open_again().await;
    let other = node(&other).lease(lease).handler(Ledger::posting()).start().await.unwrap();
    scene.until_posted(3).await;
    go_on.send(()).unwrap();
    // The other process has handled everything, so this one joins again and handles what is new.
    other.drain(Duration::from_secs(60)).await;
    let last = scene.open_wallet().await;
    until("the node has joined again", async || scene.posted(last).await == [1]).await;
    let runs = seen.lock().unwrap().iter().filter(|seen| seen.wallet != last.to_string()).count();
    assert_eq!(runs, 1, "events were run that another node had handled");
    over.send(()).unwrap();
    tokio::task::spawn_blocking(move || process.join().unwrap()).await.unwrap();
}

/// The server answers nothing while a handler runs, and the timeouts of the configuration are long.
async fn a_drain_ends_although_the_server_does_not_answer(scene: &Scene) {
    let url = &scene.scratch.url;
    let server = url.rsplit('@').next().unwrap().split('/').next().unwrap();
    let proxy = Proxy::start(server).await.unwrap();
    let long = Duration::from_secs(600);
    let config = ScratchDatabase::config_of(&proxy.url_for(url));
    let config = config.read_timeout(long).commit_timeout(long);
    let databases = Databases::connect(&config.into()).await.unwrap();
    let executor = executor(&databases).await;
    let ledger = Ledger::new(|_, _| std::future::pending().boxed());
    let seen = ledger.seen();
    let node = node(&executor).lease(Duration::from_secs(1)).handler(ledger);
    let node = node.start().await.unwrap();
    open_wallet(&executor).await;
    until("the event is being handled", async || !seen.lock().unwrap().is_empty()).await;
    proxy.stall();
    let drained = tokio::time::timeout(Duration::from_secs(100), node.drain(Duration::ZERO));
    drained.await.expect("the drain ends");
    proxy.resume();
}

async fn an_open_transaction_delays_its_own_model_only(scene: &Scene) {
    let _node = scene.node().handler(Ledger::posting()).start().await.unwrap();
    let (held, other) = (scene.open_wallet().await, scene.open_wallet().await);
    let mut connection = scene.scratch.connect().await;
    connection.execute("BEGIN").await;
    let touch = format!("UPDATE wallets SET version = version WHERE id = '{held}'");
    connection.execute(&touch).await;
    let waiting = async {
        let deposit = || Deposit { wallet: held, amount: Decimal::ONE };
        // On a busy machine the others may take longer than a commit waits for a row.
        while let Err(error) = scene.executor.execute(&DepositMoney, deposit()).await {
            assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        }
    };
    let others = async {
        scene.deposit(other, 20).await;
        until("the other model's events are handled", async || {
            scene.posted(other).await.len() == 21
        })
        .await;
        connection.execute("ROLLBACK").await;
    };
    tokio::join!(waiting, others);
    scene.until_handled("ledger.post").await;
    assert_eq!(scene.posted(held).await, [1, 2]);
    assert_eq!(scene.posted(other).await, (1..=21).collect::<Vec<i64>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_that_does_not_answer_delays_no_other() {
    let shard = ShardIdentifier::new(0, 1).expect("a shard");
    let silent = ScratchDatabase::create(Dialect::Postgres).await;
    let answering = Scene::start(Dialect::Sqlite).await;
    let address = silent.url.split(['@', '/']).find(|part| part.starts_with("127."));
    let proxy = Proxy::start(address.unwrap()).await.unwrap();
    let behind = ScratchDatabase::config_of(&proxy.url_for(&silent.url));
    let config = EkbatanConfig::from(answering.scratch.config());
    let config = config.shard(shard, ShardMemberConfig::new(0, behind));
    let databases = Databases::connect(&config).await.unwrap();
    databases.migrate(&migrations()).await.unwrap();
    let both = executor(&databases).await;
    let node = node(&both).lease(Duration::from_secs(1)).name("both");
    let _node = node.handler(Ledger::posting()).start().await.unwrap();
    proxy.stall();
    let wallet = answering.open_wallet().await;
    answering.deposit(wallet, 20).await;
    until("all are posted", async || answering.posted(wallet).await.len() == 21).await;
    // So does what keeps it alive: it renews its row, and finds what others commit.
    let nodes = format!("FROM {} WHERE name = 'both'", answering.scratch.eventlog("nodes"));
    let renewals = async || {
        let rows = answering.scratch.select(&["version"], &nodes).await;
        rows[0][0].as_deref().unwrap().parse::<i64>().unwrap()
    };
    let before = renewals().await;
    until("it is renewed", async || renewals().await >= before + 3).await;
    let of_another = open_wallet(&answering.open_again().await).await;
    until("it is posted", async || answering.posted(of_another).await == [1]).await;
    proxy.resume();
}
