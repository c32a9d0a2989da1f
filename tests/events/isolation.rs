//! What goes on while something else stands still.

use std::time::Duration;

use ekbatan::config::{EkbatanConfig, ShardMemberConfig};
use ekbatan::db::Route;
use ekbatan::domain::ShardIdentifier;
use ekbatan::prelude::*;
use ekbatan_testkit::Proxy;
use support::{Dialect, ScratchDatabase, until};

use crate::scene::{Ledger, Scene, deposit, executor, migrations, node, open_wallet};

on_every_database! {
    one_model_over_four_nodes_keeps_its_order,
    nodes_of_one_name_are_two,
    a_node_renews_itself_while_its_pool_is_used_up,
}

mod on_servers {
    use super::*;

    on_every_database! { only postgres and mysql and mariadb:
        an_open_transaction_delays_its_own_model_only,
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
    let nodes = scene.scratch.eventlog("nodes");
    let names = scene.scratch.select(&["name"], &format!("FROM {nodes}")).await;
    assert_eq!(names, vec![vec![Some("pod".to_owned())]; 2]);
    // The end of one leaves the other one its claims.
    first.drain(Duration::from_secs(60)).await;
    assert_eq!(scene.scratch.count(&nodes).await, 1);
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
    // Another process deletes nodes that it does not see renewed for as long as the lease.
    let other = scene.open_again().await;
    let _other = node(&other).lease(lease).start().await.unwrap();
    let nodes = scene.scratch.eventlog("nodes");
    let version = async || {
        let tail = format!("FROM {nodes} ORDER BY started");
        let rows = scene.scratch.select(&["id", "version"], &tail).await;
        let version = rows[0][1].as_deref().unwrap().parse::<i64>().unwrap();
        (rows[0][0].clone(), version)
    };
    let (id, before) = version().await;
    until("it was renewed for two leases", async || version().await.1 >= before + 12).await;
    assert_eq!(version().await.0, id, "it is the same node");
    over.send_replace(true);
    while let Some(read) = readers.join_next().await {
        read.unwrap().unwrap();
    }
}

async fn an_open_transaction_delays_its_own_model_only(scene: &Scene) {
    let _node = scene.node().handler(Ledger::posting()).start().await.unwrap();
    let (held, other) = (scene.open_wallet().await, scene.open_wallet().await);
    let mut connection = scene.scratch.connect().await;
    connection.execute("BEGIN").await;
    let touch = format!("UPDATE wallets SET version = version WHERE id = '{held}'");
    connection.execute(&touch).await;
    let waiting = scene.deposit(held, 1);
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
    let _node = node(&both).handler(Ledger::posting()).start().await.unwrap();
    proxy.stall();
    let wallet = answering.open_wallet().await;
    answering.deposit(wallet, 20).await;
    until("all are posted", async || answering.posted(wallet).await.len() == 21).await;
    proxy.resume();
}
