//! The barrier and what not everybody can see: transactions that belong to no session any more, and those
//! of others where the login has few privileges.

use std::time::{Duration, Instant};

use ekbatan::db::BarrierError;
use ekbatan_testkit::{MariaDbServer, MySqlServer, PostgresServer};
use support::{Dialect, PlainConnection, ScratchDatabase, until};

use crate::barrier::{assert_held, barrier, pass};
use crate::orders::Orders;

on_every_database! {
    only mysql and mariadb:
    a_detached_transaction_is_waited_for,
    a_login_that_sees_no_transactions_waits_as_long_as_a_commit_may_take,
    an_old_list_of_transactions_is_not_believed,
}

const INSERT: &str =
    "INSERT INTO orders VALUES ('00000000-0000-7000-8000-000000000001', 0, 'OPEN', 1)";

async fn a_detached_transaction_is_waited_for(dialect: Dialect) {
    let orders = Orders::new(dialect).await;
    // Names of distributed transactions are those of the whole server.
    let name = orders.scratch.url.rsplit('/').next().unwrap().to_owned();
    let mut other = orders.scratch.connect().await;
    other.execute(&format!("XA START '{name}'")).await;
    other.execute(INSERT).await;
    other.execute(&format!("XA END '{name}'")).await;
    other.execute(&format!("XA PREPARE '{name}'")).await;
    let session = other.select(&["connection_id()"], "").await.remove(0).remove(0).unwrap();
    other.close().await;
    // Until then the transaction belongs to the session.
    let sessions = format!("FROM information_schema.processlist WHERE id = {session}");
    until("its session has ended", async || {
        orders.scratch.select(&["id"], &sessions).await.is_empty()
    })
    .await;
    assert_held(&orders, "the prepared transaction ").await;
    orders.scratch.execute(&format!("XA COMMIT '{name}'")).await;
    pass(&orders).await;
    assert_eq!(orders.scratch.count("orders").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prepared_transaction_is_waited_for() {
    let server = PostgresServer::builder().setting("max_prepared_transactions", "5");
    let server = server.start().await.unwrap();
    let scratch = ScratchDatabase::at(&server.create_database().await.unwrap());
    let orders = Orders::with_config(scratch.config()).await;
    let mut other = orders.scratch.connect().await;
    other.execute("BEGIN").await;
    other.execute(INSERT).await;
    let passing = async {
        let before = Instant::now();
        pass(&orders).await;
        before.elapsed()
    };
    let prepare = async {
        // It has no session any more while the barrier waits for it.
        other.execute("PREPARE TRANSACTION 'transfer'").await;
        other.close().await;
        let others = orders.open_again().await;
        assert_held(&others, "the prepared transaction transfer").await;
        orders.scratch.execute("COMMIT PREPARED 'transfer'").await;
        Instant::now()
    };
    let (took, _) = tokio::join!(passing, prepare);
    assert!(took > Duration::ZERO);
    assert_eq!(orders.scratch.count("orders").await, 1);
}

async fn a_login_that_sees_no_transactions_waits_as_long_as_a_commit_may_take(dialect: Dialect) {
    let orders = Orders::new(dialect).await;
    let name = orders.scratch.url.rsplit('/').next().unwrap().to_owned();
    let url = login_with_few_privileges(&orders.scratch.url, &name).await;
    let commit_timeout = Duration::from_millis(700);
    let config = ScratchDatabase::config_of(&url).commit_timeout(commit_timeout);
    let few = Orders::with_config(config).await;
    until("the barrier refuses to wait", async || {
        let began = Instant::now();
        match barrier(&few, commit_timeout / 2).await {
            Err(error @ BarrierError::Unseen { .. }) => {
                assert!(error.to_string().contains("GRANT PROCESS"), "{error}");
                return true;
            }
            // On a busy machine the look alone may take as long as a commit, or longer than it is given.
            Err(BarrierError::Unlisted { .. }) => {}
            Ok(()) => assert!(began.elapsed() >= commit_timeout, "it did not wait"),
            other => panic!("{other:?}"),
        }
        false
    })
    .await;
    let began = Instant::now();
    pass(&few).await;
    assert!(began.elapsed() >= commit_timeout);
    // The same transaction is open all the time, and is not seen.
    assert!(orders.databases.default_shard().transaction_barrier(Duration::MAX).await.is_ok());
}

/// The servers list transactions from a copy, which they do not renew while somebody reads it.
async fn an_old_list_of_transactions_is_not_believed(dialect: Dialect) {
    // A server of its own: on it no other barrier is passed meanwhile.
    let (_mysql, _mariadb);
    let url = match dialect {
        Dialect::MySql => {
            _mysql = MySqlServer::start().await.unwrap();
            _mysql.create_database().await.unwrap()
        }
        _ => {
            _mariadb = MariaDbServer::start().await.unwrap();
            _mariadb.create_database().await.unwrap()
        }
    };
    let orders = Orders::with_config(ScratchDatabase::config_of(&url)).await;
    let (mut reader, mut other) = (orders.scratch.connect().await, orders.scratch.connect().await);
    let (reads, mut has_read) = tokio::sync::watch::channel(0);
    let reading = tokio::spawn(async move {
        loop {
            reader.select(&["count(*)"], "FROM information_schema.innodb_trx").await;
            reads.send_modify(|reads| *reads += 1);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    has_read.wait_for(|reads| *reads > 3).await.unwrap();
    other.execute("BEGIN").await;
    other.execute(INSERT).await;
    let passed = barrier(&orders, Duration::from_millis(1)).await;
    assert!(passed.is_err(), "a transaction is open");
    reading.abort();
    other.execute("ROLLBACK").await;
}

/// The URL of a login that may do everything in the test's databases, and nothing else.
async fn login_with_few_privileges(url: &str, name: &str) -> String {
    let mut root = PlainConnection::connect(url).await;
    let login = format!("few_{}", &name[name.len().saturating_sub(20)..]);
    for host in ["localhost", "127.0.0.1", "%"] {
        root.execute(&format!("CREATE USER '{login}'@'{host}' IDENTIFIED BY 'few'")).await;
        for database in [name.to_owned(), format!("{name}_log")] {
            root.execute(&format!("GRANT ALL ON `{database}`.* TO '{login}'@'{host}'")).await;
        }
    }
    root.close().await;
    let (scheme, rest) = url.split_once("://").unwrap();
    let (_, at) = rest.split_once('@').unwrap();
    format!("{scheme}://{login}:few@{at}")
}
