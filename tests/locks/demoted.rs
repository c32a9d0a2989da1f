//! A server that was the primary and does not accept writes any more, as after a fail-over: callers
//! that wait get the key as soon as their address leads to a server that does.

use std::time::Duration;

use ekbatan::lock::{KeyedLockProvider, Lease, LockKey, LockProvider, LockSource, WithLockError};
use ekbatan_lock_redis::RedisBackend;
use ekbatan_testkit::{PostgresServer, Proxy, RedisServer};
use support::until;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::pooler::{Greeting, balanced};
use crate::providers::{Kind, LONG, on_mysql, on_postgres};
use crate::redis::{asked, connection};
use crate::sql::place::{Place, Server};

mod mysql {
    use super::*;

    on_providers! {
        |kind| kind;
        [mysql_lease, mysql_session, mariadb_lease, mariadb_session]
        a_waiter_outlasts_a_read_only_server,
    }
}
mod postgres {
    use super::*;

    on_providers! {
        |kind| kind;
        [postgres_lease, postgres_session]
        a_waiter_leaves_a_replica,
    }
}

/// Longer than an outage of the test.
const OUTAGE: Duration = Duration::from_secs(300);

const TERM: Duration = Duration::from_secs(3);

fn waits(locks: &LockProvider, key: &str) -> JoinHandle<Lease> {
    let (locks, key) = (locks.clone(), LockKey::named(key));
    tokio::spawn(async move {
        locks.try_acquire(&key, OUTAGE, LONG).await.unwrap().expect("the key is free")
    })
}

type Led = JoinHandle<Result<(), WithLockError<()>>>;

/// Leads for ever. Each time that it begins to, it sends its lease.
fn leads(locks: &LockProvider) -> (mpsc::UnboundedReceiver<Lease>, Led) {
    let (led, leases) = mpsc::unbounded_channel();
    let locks = locks.clone();
    let leading = tokio::spawn(async move {
        let work = async |lease: Lease| {
            led.send(lease).unwrap();
            std::future::pending::<Result<(), ()>>().await
        };
        locks.lead(&LockKey::named("leader"), TERM, work).await
    });
    (leases, leading)
}

async fn next(leases: &mut mpsc::UnboundedReceiver<Lease>) -> Lease {
    tokio::time::timeout(OUTAGE, leases.recv()).await.expect("it leads").expect("it does not end")
}

/// The user may not write while the server is read-only, which an administrator may.
async fn a_waiter_outlasts_a_read_only_server(kind: Kind) {
    let server = Server::alone(kind).await;
    let administrator = Place { kind, url: server.create_database().await };
    let url = &administrator.url;
    let (address, database) = url.rsplit_once('/').unwrap();
    let user = format!("u{}", &Uuid::new_v4().simple().to_string()[..12]);
    let script = format!("CREATE USER {user}; GRANT ALL ON {database}.* TO {user}");
    administrator.execute(&script).await;
    let (scheme, host) =
        (url.split(':').next().unwrap(), address.rsplit(['@', '/']).next().unwrap());
    let locks = on_mysql(kind, &format!("{scheme}://{user}@{host}/{database}")).await;
    assert!(locks.acquire(&LockKey::named("k"), LONG).await.unwrap().release().await);
    let (mut leases, leading) = leads(&locks);
    let first = next(&mut leases).await;

    let theirs = format!(
        "SELECT CAST(COALESCE(MAX(id), 0) AS SIGNED) FROM information_schema.processlist WHERE user = '{user}'"
    );
    let newest = administrator.number(&theirs).await;
    administrator.execute("SET GLOBAL read_only = 1").await;
    let waiter = waits(&locks, "k");
    let kept = format!(
        "SELECT COUNT(*) FROM information_schema.processlist WHERE user = '{user}' AND id <= {newest}"
    );
    // The next one may lead to another server.
    until("no connection is kept", async || administrator.number(&kept).await == 0).await;
    tokio::time::timeout(OUTAGE, first.lost()).await.expect("the leader cannot renew its term");
    assert!(!waiter.is_finished() && !leading.is_finished());
    administrator.execute("SET GLOBAL read_only = 0").await;
    assert!(waiter.await.unwrap().release().await);
    drop(next(&mut leases).await);
    leading.abort();
}

/// The address leads to a replica for a while.
async fn a_waiter_leaves_a_replica(kind: Kind) {
    let primary = PostgresServer::start().await.unwrap();
    let url = primary.create_database().await.unwrap();
    let proxy = Proxy::start(("127.0.0.1", primary.port())).await.unwrap();
    let locks = on_postgres(kind, &proxy.url_for(&url)).await;
    // Open connections stay with the replica.
    led_to_a_replica(&primary, &proxy, &locks, async || ()).await;
}

/// A replica refuses the transaction that a statement needs there before the statement.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_pooler_of_postgres_a_waiter_leaves_a_replica() {
    let primary = PostgresServer::start().await.unwrap();
    let url = primary.create_database().await.unwrap();
    let proxy = Proxy::start(("127.0.0.1", primary.port())).await.unwrap();
    let pooled = balanced(&proxy.url_for(&url), 1, Greeting::OfThePooler).await;
    let locks = on_postgres(Kind::PostgresLease, &pooled).await;
    led_to_a_replica(&primary, &proxy, &locks, async || {
        // The pooler keeps its connection to the replica.
        proxy.cut();
        proxy.restore();
    })
    .await;
}

async fn led_to_a_replica(
    primary: &PostgresServer,
    proxy: &Proxy,
    locks: &LockProvider,
    back: impl AsyncFnOnce(),
) {
    assert!(locks.acquire(&LockKey::named("k"), LONG).await.unwrap().release().await);
    let (mut leases, leading) = leads(locks);
    let first = next(&mut leases).await;
    let replica = primary.start_replica().await.unwrap();

    proxy.lead_to(("127.0.0.1", replica.port())).await.unwrap();
    proxy.cut();
    proxy.restore();
    let waiter = waits(locks, "k");
    tokio::time::timeout(OUTAGE, first.lost()).await.expect("the leader cannot renew its term");
    assert!(!waiter.is_finished() && !leading.is_finished());
    proxy.lead_to(("127.0.0.1", primary.port())).await.unwrap();
    back().await;
    assert!(waiter.await.unwrap().release().await);
    drop(next(&mut leases).await);
    leading.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_leaves_a_replica_of_redis() {
    let (primary, former) =
        (RedisServer::start().await.unwrap(), RedisServer::start().await.unwrap());
    let proxy = Proxy::start(("127.0.0.1", former.port())).await.unwrap();
    let backend = RedisBackend::connect(&proxy.url_for(&former.url()), "test").await.unwrap();
    let locks = LockProvider::new(backend, "test");
    assert!(locks.acquire(&LockKey::named("k"), LONG).await.unwrap().release().await);
    let (mut leases, leading) = leads(&locks);
    let first = next(&mut leases).await;

    let mut administrator = connection(&former.url()).await;
    let () = asked(&mut administrator, &["REPLICAOF", "127.0.0.1", "1"]).await;
    let waiter = waits(&locks, "k");
    tokio::time::timeout(OUTAGE, first.lost()).await.expect("the leader cannot renew its term");
    assert!(!waiter.is_finished() && !leading.is_finished());
    // Open connections stay with the replica.
    proxy.lead_to(("127.0.0.1", primary.port())).await.unwrap();
    assert!(waiter.await.unwrap().release().await);
    drop(next(&mut leases).await);
    leading.abort();
}

/// A server that refuses all writes for a while, as with too few replicas.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_outlasts_a_redis_server_that_lacks_replicas() {
    let server = RedisServer::start().await.unwrap();
    let backend = RedisBackend::connect(&server.url(), "test").await.unwrap();
    let locks = LockProvider::new(backend, "test");
    let mut administrator = connection(&server.url()).await;
    let lacking = ["CONFIG", "SET", "min-replicas-to-write", "1"];
    let () = asked(&mut administrator, &lacking).await;
    // A caller that does not wait gets the server's answer, however late it comes.
    let refused = locks.try_acquire(&LockKey::named("k"), Duration::ZERO, LONG).await;
    assert!(refused.unwrap_err().to_string().contains("NOREPLICAS"));
    let waiter = waits(&locks, "k");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!waiter.is_finished());
    let () = asked(&mut administrator, &["CONFIG", "SET", "min-replicas-to-write", "0"]).await;
    assert!(waiter.await.unwrap().release().await);
}
