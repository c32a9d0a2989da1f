//! Leases that are granted in advance fail no take and do not pile up.

use std::time::Duration;

use ekbatan::lock::LockBackend;
use ekbatan_lock_etcd::EtcdBackend;
use ekbatan_testkit::{EtcdServer, Proxy};

use super::{Space, taken};
use crate::providers::LONG;

/// The leases that the server knows.
async fn leases(server: &EtcdServer) -> Vec<String> {
    let answer = server.request("/v3/lease/leases", "{}").await.unwrap();
    let ids = answer.split(r#""ID":""#).skip(1);
    ids.filter_map(|rest| rest.split('"').next().map(str::to_owned)).collect()
}

#[tokio::test]
async fn a_lease_that_the_server_has_lost_fails_no_take() {
    let server = EtcdServer::start().await.unwrap();
    let space = Space::on(&server);
    let backend = space.backend().await;
    let mut lost = 0;
    for round in 0..20 {
        let key = format!("k{round}");
        let grant = taken(&backend, &key, LONG).await;
        assert!(backend.release(&key, &grant).await.unwrap().ours);
        for id in leases(&server).await {
            // Some are revoked by the backend meanwhile.
            let revoked = format!(r#"{{"ID":"{id}"}}"#);
            let _ = server.request("/v3/lease/revoke", &revoked).await;
            lost += 1;
        }
    }
    assert!(lost > 0);
    backend.close().await;
    server.stop().await.unwrap();
}

#[tokio::test]
async fn leases_of_terms_in_turn_do_not_pile_up() {
    const TAKES: u32 = 60;
    let server = EtcdServer::start().await.unwrap();
    let space = Space::on(&server);
    let backend = space.backend().await;
    for n in 0..TAKES {
        let grant = taken(&backend, "k", LONG * (1 + n % 2)).await;
        assert!(backend.release("k", &grant).await.unwrap().ours);
    }
    let few = (TAKES / 4) as usize;
    support::until("the leases are revoked", async || leases(&server).await.len() < few).await;
    backend.close().await;
    server.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_closes_leaves_no_lease() {
    let server = EtcdServer::start().await.unwrap();
    let space = Space::on(&server);
    let backend = space.backend().await;
    let once = async || {
        let grant = taken(&backend, "k", LONG * 60).await;
        assert!(backend.release("k", &grant).await.unwrap().ours);
    };
    for _ in 0..40 {
        once().await;
    }
    // Those of takes that came too slowly are revoked by now.
    support::until("some are granted in advance", async || {
        once().await;
        !leases(&server).await.is_empty()
    })
    .await;
    backend.close().await;
    support::until("the leases are revoked", async || leases(&server).await.is_empty()).await;
    server.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_extension_that_is_dropped_leaves_no_lease() {
    let server = EtcdServer::start().await.unwrap();
    let proxy = Proxy::start(("127.0.0.1", server.port())).await.unwrap();
    let backend = EtcdBackend::connect(&proxy.url_for(&server.url()), "test").await.unwrap();
    let grant = taken(&backend, "k", LONG * 60).await;
    // Its lease is granted, and the answer does not arrive before it is dropped.
    proxy.set_delay(Duration::from_secs(2));
    for _ in 0..2 {
        let extending = backend.extend("k", &grant, LONG * 60);
        assert!(tokio::time::timeout(Duration::from_secs(3), extending).await.is_err());
    }
    proxy.set_delay(Duration::ZERO);
    support::until("the leases are revoked", async || leases(&server).await.len() == 1).await;
    assert!(backend.release("k", &grant).await.unwrap().ours);
    backend.close().await;
    server.stop().await.unwrap();
}

#[tokio::test]
async fn leases_that_nobody_has_used_are_revoked() {
    let server = EtcdServer::start().await.unwrap();
    let space = Space::on(&server);
    let backend = space.backend().await;
    let hour = Duration::from_secs(60 * 60);
    let once = async || {
        let grant = taken(&backend, "k", hour).await;
        assert!(backend.release("k", &grant).await.unwrap().ours);
    };
    for _ in 0..20 {
        once().await;
    }
    // The takes come too slowly by now to have others granted.
    support::until("the leases are revoked", async || {
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        once().await;
        leases(&server).await.len() <= 1
    })
    .await;
    backend.close().await;
    server.stop().await.unwrap();
}
