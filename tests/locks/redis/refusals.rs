//! Servers that cannot keep locks are rejected on connect, with advice.

use ekbatan::lock::{LockBackend, LockError};
use ekbatan_lock_redis::RedisBackend;
use ekbatan_testkit::RedisServer;
use support::until;

use super::{Space, asked, connection, taken};
use crate::providers::LONG;

async fn rejection(url: &str) -> String {
    match RedisBackend::connect(url, RedisBackend::NAMESPACE).await {
        Err(LockError::Unsafe { reason }) => reason,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_server_that_may_evict_locks_is_rejected() {
    for policy in ["allkeys-lru", "volatile-ttl", "noeviction"] {
        let redis = RedisServer::builder()
            .setting("maxmemory", "64mb")
            .setting("maxmemory-policy", policy)
            .start()
            .await
            .unwrap();
        if policy == "noeviction" {
            RedisBackend::connect(&redis.url(), "app").await.unwrap();
        } else {
            let reason = rejection(&redis.url()).await;
            assert!(reason.contains(policy) && reason.contains("noeviction"), "{reason}");
        }
    }
}

#[tokio::test]
async fn a_replica_is_rejected() {
    let (master, replica) = (RedisServer::start().await.unwrap(), RedisServer::start().await);
    let (replica, port) = (replica.unwrap(), master.port().to_string());
    let mut server = connection(&replica.url()).await;
    let () = asked(&mut server, &["REPLICAOF", "127.0.0.1", &port]).await;
    let reason = rejection(&replica.url()).await;
    assert!(reason.ends_with(&format!("name its master, 127.0.0.1:{port}")), "{reason}");
}

#[tokio::test]
async fn an_incomplete_cluster_is_rejected_and_a_complete_one_serves() {
    let redis = RedisServer::builder().setting("cluster-enabled", "yes").start().await.unwrap();
    let reason = rejection(&redis.url()).await;
    assert!(reason.contains("0 of 16384 slots"), "{reason}");
    let mut server = connection(&redis.url()).await;
    let () = asked(&mut server, &["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).await;
    until("the cluster is ready", async || {
        asked::<String>(&mut server, &["CLUSTER", "INFO"]).await.contains("cluster_state:ok")
    })
    .await;
    // A script may use several keys of a cluster only if they are in one slot.
    let backend = Space::on(&redis).backend().await;
    for key in ["a", "b{c}d", "DC#eu#wallet:17", "e}f"] {
        let grant = taken(&backend, key, LONG).await;
        assert!(backend.release(key, &grant).await.unwrap().ours);
    }
}

#[tokio::test]
async fn a_server_that_hides_its_settings_is_accepted() {
    let redis = RedisServer::start().await.unwrap();
    let mut server = connection(&redis.url()).await;
    // The documented minimum of permissions, without INFO.
    let user = "ACL SETUSER app on >secret ~app:* &app:* -@all +eval +evalsha +script|load \
                +get +set +exists +del +pexpire +pttl +time +publish +subscribe +ping +client";
    let () = asked(&mut server, &user.split(' ').collect::<Vec<_>>()).await;
    let url = redis.url().replace("redis://", "redis://app:secret@");
    let backend = RedisBackend::connect(&url, "app").await.unwrap();
    let grant = taken(&backend, "k", LONG).await;
    assert!(backend.extend("k", &grant, LONG).await.unwrap());
    assert_eq!(backend.inspect("k").await.unwrap().unwrap().grant(), grant);
    assert!(backend.force_release("k", &grant, "").await.unwrap());
}

#[tokio::test]
async fn the_error_for_a_missing_server_hides_the_password() {
    let redis = RedisServer::start().await.unwrap();
    let port = redis.port();
    redis.stop().await.unwrap();
    let url = format!("redis://app:secret@127.0.0.1:{port}");
    for (url, named) in [(&*url, &*port.to_string()), ("rediss://app:secret@host", "")] {
        let error = RedisBackend::connect(url, "app").await.unwrap_err();
        assert!(matches!(error, LockError::Start { .. }), "{error:?}");
        let text = format!("{error} {error:?}");
        assert!(text.contains(named) && !text.contains("secret"), "{text}");
    }
}
