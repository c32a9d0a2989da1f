//! Reads after a commit token when a replica of MySQL or MariaDB lags: they return the committed
//! row, from the replica or from the primary. `tests/sharding` has the tests for PostgreSQL.

use std::time::Duration;

use ekbatan::db::Route;
use ekbatan::prelude::*;
use ekbatan::repository::Repository;
use ekbatan_testkit::{MariaDbServer, MySqlServer};
use sqlx::{AssertSqlSafe, Connection as _, MySqlConnection};
use support::wallet::{Deposit, DepositMoney, OpenWallet, Opening, Wallet, migrations};
use support::{ScratchDatabase, until};

/// The statements that control replication.
struct Statements {
    follow: &'static str,
    pause: &'static str,
    resume: &'static str,
}

const MYSQL: Statements = Statements {
    follow: "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = {port}, \
             SOURCE_USER = 'root', SOURCE_AUTO_POSITION = 1; START REPLICA",
    pause: "STOP REPLICA SQL_THREAD",
    resume: "START REPLICA SQL_THREAD",
};

const MARIADB: Statements = Statements {
    follow: "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {port}, \
             MASTER_USER = 'root', MASTER_USE_GTID = slave_pos; START SLAVE",
    pause: "STOP SLAVE SQL_THREAD",
    resume: "START SLAVE SQL_THREAD",
};

async fn execute(replica: &str, sql: &str) {
    let url = replica.replace("mariadb:", "mysql:");
    let mut connection = MySqlConnection::connect(&url).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut connection).await.unwrap();
}

async fn version(wallets: Repository<Wallet>, id: Id<Wallet>) -> i64 {
    wallets.get(id).await.unwrap().version()
}

/// `primary` is a database of the primary; `replica` is the `mysql` database of the replica.
async fn a_read_after_a_token_avoids_or_awaits_a_lagging_replica(
    statements: Statements,
    primary: &str,
    port: u16,
    replica: &str,
) {
    execute(replica, &statements.follow.replace("{port}", &port.to_string())).await;
    let database = primary.rsplit('/').next().unwrap();
    let copy = replica.replace("/mysql", &format!("/{database}"));
    let config = EkbatanConfig::from(ScratchDatabase::config_of(primary).maximum_pool_size(1))
        .replica(ScratchDatabase::config_of(&copy));
    let databases = Databases::connect(&config).await.unwrap();
    databases.migrate(&migrations()).await.unwrap();
    let executor = ActionExecutor::builder(&databases, "tests").build().await.unwrap();
    let opening = Opening { owner: "alice".to_owned(), currency: "EUR".to_owned() };
    let (opened, committed) = executor.execute(&OpenWallet, opening).with_commit().await.unwrap();
    let token = committed.unwrap().token.unwrap();
    let (wallets, id) = (databases.repository::<Wallet>(), opened.id);
    // The replica may not have the table yet.
    let patient = Duration::from_secs(600);
    assert_eq!(version(wallets.clone().on_replica_after(&token, patient), id).await, 1);
    assert_eq!(version(wallets.clone().on_replica(), id).await, 1, "the replica has the row");

    execute(replica, statements.pause).await;
    let deposit = Deposit { wallet: id, amount: Decimal::ONE };
    let (_, committed) = executor.execute(&DepositMoney, deposit).with_commit().await.unwrap();
    let token = committed.unwrap().token.unwrap();
    assert_eq!(version(wallets.clone().on_replica(), id).await, 1, "the replica lags");
    let at_once = wallets.clone().on_replica_after(&token, Duration::ZERO);
    assert_eq!(version(at_once.clone(), id).await, 2, "the primary returns the row");

    // The only connection to the primary is held, so only the replica can return the row.
    let held = databases.mysql().await.unwrap();
    let waiting = tokio::spawn(version(wallets.on_replica_after(&token, patient), id));
    until("the read waits at the replica", async || {
        !databases.pool_status(Route::Replica).holders.is_empty()
    })
    .await;
    execute(replica, statements.resume).await;
    assert_eq!(waiting.await.unwrap(), 2);
    assert_eq!(version(at_once, id).await, 2, "the replica has caught up");
    held.release().await.unwrap();
}

#[tokio::test]
async fn mysql() {
    let primary = MySqlServer::builder().binlog().start().await.unwrap();
    let replica = MySqlServer::builder().binlog().start().await.unwrap();
    let database = primary.create_database().await.unwrap();
    let (port, url) = (primary.port(), replica.url("mysql"));
    a_read_after_a_token_avoids_or_awaits_a_lagging_replica(MYSQL, &database, port, &url).await;
}

#[tokio::test]
async fn mariadb() {
    let primary = MariaDbServer::builder().binlog().start().await.unwrap();
    let replica = MariaDbServer::builder().binlog().start().await.unwrap();
    let database = primary.create_database().await.unwrap();
    let (port, url) = (primary.port(), replica.url("mysql"));
    a_read_after_a_token_avoids_or_awaits_a_lagging_replica(MARIADB, &database, port, &url).await;
}
