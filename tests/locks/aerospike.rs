//! What only the locks in Aerospike have to show: namespaces that are rejected, tokens over a loss of
//! the data, and records that are forgotten.

use std::time::Duration;

use ekbatan::lock::{
    Attempt, Grant, GrantRequest, KeyedLockProvider, LockBackend, LockError, LockKey, LockLevel,
};
use ekbatan_lock_aerospike::AerospikeBackend;
use ekbatan_testkit::AerospikeServer;
use uuid::Uuid;

use crate::providers::{Kind, LONG};
use crate::stores::{provider, proxied, url};

async fn refused(url: &str, set: &str) -> String {
    match AerospikeBackend::connect(url, set).await {
        Err(error @ (LockError::Start { .. } | LockError::Unsafe { .. })) => {
            let text = format!("{error} {error:?}");
            assert!(!text.contains("secret"), "{text}");
            error.to_string()
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn namespaces_that_break_promises_are_rejected_by_name() {
    for (name, value, said) in [
        ("nsup-period", "0", "nsup-period 0"),
        ("storage.evict-used-pct", "50", "evict-used-pct 50"),
        ("evict-indexes-memory-pct", "50", "evict-indexes-memory-pct 50"),
        ("write-commit-level-override", "master", "write-commit-level-override master"),
        ("reject-non-xdr-writes", "true", "other clusters"),
    ] {
        let server = AerospikeServer::builder().setting(name, value).start().await.unwrap();
        let reason = refused(&server.url(), "locks").await;
        assert!(reason.contains(said) && reason.contains("`test`"), "{reason}");
    }
}

#[tokio::test]
async fn addresses_that_name_nothing_are_rejected() {
    let server = AerospikeServer::shared().await.unwrap();
    let other = server.url().replace("/test", "/other");
    let reason = refused(&other, "locks").await;
    assert!(reason.contains("`other`") && reason.contains("does not exist"), "{reason}");
    let reason = refused(&server.url(), "a:b").await;
    assert!(reason.contains("`a:b`"), "{reason}");
    let server = AerospikeServer::start().await.unwrap();
    let port = server.port();
    server.stop().await.unwrap();
    let reason = refused(&format!("aerospike://127.0.0.1:{port}/test"), "locks").await;
    assert!(reason.contains(&port.to_string()), "{reason}");
}

#[tokio::test]
async fn keys_of_all_zones_are_rejected_where_the_namespace_is_not_consistent() {
    let locks = provider(Kind::Aerospike, &url(Kind::Aerospike).await, "levels").await;
    let key = LockKey::named("k").at_level(LockLevel::Global);
    let error = locks.acquire(&key, LONG).await.unwrap_err();
    assert!(matches!(error, LockError::OneZone { backend: "aerospike", .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_grow_over_a_loss_of_the_data() {
    let server = AerospikeServer::start().await.unwrap();
    let url = format!("{}?seed-only=true", server.url());
    let locks = provider(Kind::Aerospike, &url, "locks").await;
    let (key, mut last) = (LockKey::named("k"), 0);
    for _ in 0..3 {
        // A request that began while the server was down may still fail.
        let mut acquired = None;
        support::until("the key is granted", async || {
            acquired = locks.acquire(&key, LONG).await.ok();
            acquired.is_some()
        })
        .await;
        let lease = acquired.unwrap();
        assert!(lease.token() > last, "{} after {last}", lease.token());
        last = lease.token();
        // The data are in memory. The lease is forgotten, and the fence refuses its commits.
        server.kill().await.unwrap();
        server.restart().await.unwrap();
        let released = tokio::time::timeout(LONG, lease.release()).await.unwrap();
        assert!(!released, "the server has lost the lease");
    }
}

/// Also the record of a key of which only a try that was given up is known.
#[tokio::test]
async fn every_record_is_forgotten_at_some_time() {
    // Otherwise it counts once an hour.
    let server = AerospikeServer::builder().setting("nsup-hist-period", "1").start().await.unwrap();
    let url = format!("{}?seed-only=true", server.url());
    let backend = AerospikeBackend::connect(&url, "locks").await.unwrap();
    let given_up = Grant { owner: Uuid::new_v4(), token: 0 };
    assert!(!backend.release("k", &given_up).await.unwrap().ours);
    // This counts the records that expire, once a second: that of the key, and that of the check at
    // the start.
    support::until("two records expire", async || {
        let histogram = server.info("histogram:namespace=test;type=ttl").await.unwrap();
        let counts = histogram.rsplit("buckets=").next().unwrap_or_default();
        counts.split(',').filter_map(|count| count.parse::<u64>().ok()).sum::<u64>() == 2
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_that_is_dropped_keeps_no_connection() {
    let (url, proxy) = proxied(Kind::Aerospike).await;
    let backend = AerospikeBackend::connect(&url, "dropped").await.unwrap();
    assert!(proxy.connections() > 0);
    drop(backend);
    support::until("its connections are closed", async || proxy.connections() == 0).await;
}

/// The record of a key outlives its grant by a day, and so does the token.
#[tokio::test]
async fn a_record_outlives_its_grant() {
    let url = url(Kind::Aerospike).await;
    let set = Uuid::new_v4().to_string();
    let backend = AerospikeBackend::connect(&url, &set).await.unwrap();
    let request = || GrantRequest::new(Uuid::new_v4(), "a test", Duration::from_millis(1));
    let Attempt::Granted(first) = backend.try_grant("k", &request()).await.unwrap() else {
        panic!("the key is free");
    };
    // The server deletes expired records every second.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    let server = AerospikeServer::shared().await.unwrap();
    let sets = server.info(&format!("sets/test/{set}")).await.unwrap();
    // The key, and that of the check at the start.
    assert!(sets.contains("objects=2:"), "{sets}");
    let Attempt::Granted(second) = backend.try_grant("k", &request()).await.unwrap() else {
        panic!("its term is over");
    };
    assert!(second.token > first.token);
}
