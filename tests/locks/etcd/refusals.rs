//! Clusters and settings that cannot keep locks are rejected on connect, with advice.

use ekbatan::lock::{LockBackend, LockError};
use ekbatan_lock_etcd::EtcdBackend;
use ekbatan_testkit::{EtcdServer, Proxy};
use tokio::net::TcpSocket;

use super::{Space, taken};
use crate::providers::LONG;

async fn refused(url: &str) -> String {
    match EtcdBackend::connect(url, "app").await {
        Err(error @ (LockError::Start { .. } | LockError::Unsafe { .. })) => {
            let text = format!("{error} {error:?}");
            assert!(!text.contains("secret"), "{text}");
            error.to_string()
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn members_of_two_clusters_are_rejected() {
    let named =
        |name: &'static str| EtcdServer::builder().setting("initial-cluster-token", name).start();
    let (one, other) = tokio::join!(named("one"), named("other"));
    let (one, other) = (one.unwrap(), other.unwrap());
    let reason = refused(&format!("{},127.0.0.1:{}", one.url(), other.port())).await;
    assert!(reason.contains("members of different clusters"), "{reason}");
    let twice = format!("{},127.0.0.1:{}", one.url(), one.port());
    let backend = EtcdBackend::connect(&twice, "app").await.unwrap();
    let grant = taken(&backend, "k", LONG).await;
    assert!(backend.release("k", &grant).await.unwrap().ours);
}

#[tokio::test]
async fn the_error_for_a_missing_server_names_it_and_hides_the_password() {
    let server = EtcdServer::start().await.unwrap();
    let port = server.port();
    server.stop().await.unwrap();
    let reason = refused(&format!("etcd://app:secret@127.0.0.1:{port}")).await;
    assert!(reason.contains(&format!("127.0.0.1:{port}")), "{reason}");
    let reason = refused("etcd://app:secret@host/path").await;
    assert!(reason.contains("has a path"), "{reason}");
    let reason = refused("etcd://host?key=secret").await;
    assert!(reason.contains("has a path or parameters"), "{reason}");
    let reason = refused(&format!("etcd://:secret@127.0.0.1:{port}")).await;
    assert!(reason.contains("a password and no user; write etcd://USER:PASSWORD@"), "{reason}");
}

#[tokio::test]
async fn a_namespace_with_a_slash_is_rejected() {
    let space = Space::shared().await;
    let error = EtcdBackend::connect(&space.url, "/app").await.unwrap_err();
    assert!(error.to_string().contains("`/app`"), "{error}");
}

#[tokio::test]
async fn a_login_is_used_renewed_and_asked_for() {
    let server = EtcdServer::builder().setting("auth-token-ttl", "5").start().await.unwrap();
    // Names and permissions, as JSON; `YXBwLw==` to `YXBwMA==` are the keys that begin with `app/`.
    let steps = [
        ("user/add", r#"{"name":"root","password":"secret"}"#),
        ("user/grant", r#"{"user":"root","role":"root"}"#),
        ("role/add", r#"{"name":"app"}"#),
        (
            "role/grant",
            r#"{"name":"app","perm":{"permType":"READWRITE","key":"YXBwLw==","range_end":"YXBwMA=="}}"#,
        ),
        ("user/add", r#"{"name":"app","password":"secret"}"#),
        ("user/grant", r#"{"user":"app","role":"app"}"#),
        ("user/add", r#"{"name":"other","password":"secret"}"#),
        ("enable", "{}"),
    ];
    for (path, json) in steps {
        let answer = server.request(&format!("/v3/auth/{path}"), json).await.unwrap();
        assert!(answer.contains("200 OK"), "{path}: {answer}");
    }
    let port = server.port();
    let url = |login: &str| format!("etcd://{login}127.0.0.1:{port}");
    let reason = refused(&url("")).await;
    assert!(reason.contains("give `username` and `password`"), "{reason}");
    let reason = refused(&url("app:wrong@")).await;
    assert!(reason.contains("login of the user `app`"), "{reason}");
    let reason = refused(&url("other:secret@")).await;
    assert!(reason.contains("permission"), "{reason}");

    let backend = EtcdBackend::connect(&url("app:secret@"), "app").await.unwrap();
    let grant = taken(&backend, "k", LONG).await;
    // The proof of the login ends after five seconds without use, give or take one. It has to last from a login to
    // the request after it, also on a busy machine.
    tokio::time::sleep(std::time::Duration::from_secs(7)).await;
    assert!(backend.extend("k", &grant, LONG).await.unwrap());
    assert_eq!(backend.inspect("k").await.unwrap().unwrap().grant(), grant);
    assert_eq!(backend.list(&[String::new()], 10).await.unwrap().len(), 1);
    assert!(backend.release("k", &grant).await.unwrap().ours);
    a_login_passes_over_members_that_are_down(port).await;
}

/// At the start, and when the member goes down that was used so far.
async fn a_login_passes_over_members_that_are_down(port: u16) {
    // A port that is bound and not listened to refuses connections.
    let down = [(); 2].map(|()| TcpSocket::new_v4().unwrap());
    let [first, third] = down.each_ref().map(|socket| {
        socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
        socket.local_addr().unwrap()
    });
    let second = Proxy::start(("127.0.0.1", port)).await.unwrap();
    let url = format!("etcd://app:secret@{first},{},{third},127.0.0.1:{port}", second.address());
    let backend = EtcdBackend::connect(&url, "app").await.unwrap();
    let grant = taken(&backend, "k", LONG).await;
    second.cut();
    assert!(backend.inspect("k").await.unwrap().is_some());
    assert!(backend.release("k", &grant).await.unwrap().ours);
}
