//! A server that is killed a moment after a grant. It writes asynchronous commits so late that a
//! crash forgets them.

use std::time::Duration;

use ekbatan::lock::{KeyedLockProvider, Lease, LockKey, LockProvider, PostgresLocks};
use ekbatan_testkit::PostgresServer;
use sqlx::{Connection, PgConnection};

use crate::providers::Kind;

const LONG: Duration = Duration::from_secs(3_600);

async fn late_writer() -> (PostgresServer, String) {
    let server = PostgresServer::builder()
        .setting("synchronous_commit", "off")
        .setting("wal_writer_delay", "10s")
        .setting("wal_writer_flush_after", "0")
        .start()
        .await
        .unwrap();
    let url = server.create_database().await.unwrap();
    (server, url)
}

async fn crash(server: &PostgresServer) {
    server.kill().await.unwrap();
    server.restart().await.unwrap();
}

/// Acquires from a server that may just have come back.
async fn eventually(locks: &LockProvider, key: &LockKey) -> Lease {
    loop {
        match locks.acquire(key, LONG).await {
            Ok(lease) => return lease,
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

async fn is_busy(locks: &LockProvider, key: &LockKey) -> bool {
    loop {
        match locks.try_acquire(key, Duration::ZERO, LONG).await {
            Ok(lease) => return lease.is_none(),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_of_postgres_leases_survive_a_crash_unless_they_are_asynchronous() {
    let (server, url) = late_writer().await;
    let connect = async || PostgresLocks::connect(&url, 2).await.unwrap();
    let leases =
        async |locks: PostgresLocks| LockProvider::new(locks.leases().await.unwrap(), "test");
    let other = leases(connect().await).await;
    for round in 0..3 {
        let here = leases(connect().await).await;
        let key = LockKey::of("durable", round);
        let short = Duration::from_secs(60);
        let lease = eventually(&here, &key).await;
        assert!(lease.release().await);
        // The row exists: this is the short statement.
        let lease = here.try_acquire(&key, short, short).await.unwrap().unwrap();
        lease.extend(LONG).await.unwrap();
        crash(&server).await;
        assert!(is_busy(&other, &key).await, "a key has two holders after a crash");
        assert!(lease.is_held());
    }
    let mut forgotten = 0;
    for round in 0..3 {
        let here = leases(connect().await.asynchronous()).await;
        let key = LockKey::of("asynchronous", round);
        let lease = here.acquire(&key, LONG).await.unwrap();
        crash(&server).await;
        forgotten += usize::from(!is_busy(&other, &key).await);
        drop(lease);
    }
    assert!(
        forgotten > 0,
        "the server writes every grant at once, so the rounds above show nothing"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_of_postgres_sessions_grow_over_crashes() {
    let (server, url) = late_writer().await;
    let key = LockKey::named("k");
    let mut last = 0;
    for _ in 0..4 {
        let locks = Kind::PostgresSession.connect(&url).await;
        // What the session wrote when it opened is on disk, what follows is not.
        let mut connection = PgConnection::connect(&url).await.unwrap();
        sqlx::raw_sql("CHECKPOINT").execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
        for _ in 0..40 {
            let lease = eventually(&locks, &key).await;
            assert!(lease.token() > last, "{} after {last}", lease.token());
            last = lease.token();
            lease.release().await;
        }
        crash(&server).await;
    }
}
