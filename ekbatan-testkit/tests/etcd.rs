//! Private etcd servers start, crash and restart on request, and leave nothing behind.

use std::path::PathBuf;

use ekbatan_testkit::{EtcdServer, ServerError};

async fn has(server: &EtcdServer, key: &str) -> bool {
    server.keys("").await.unwrap().iter().any(|known| known == key)
}

async fn data_of(server: &EtcdServer) -> PathBuf {
    let members = server.request("/v3/cluster/member/list", "{}").await.unwrap();
    let name = members.split(r#""name":""#).nth(1).unwrap();
    PathBuf::from(name.split('"').next().unwrap())
}

#[tokio::test]
async fn a_server_keeps_its_data_until_they_are_lost() {
    let server = EtcdServer::start().await.unwrap();
    let port = server.port();
    assert_eq!(server.url(), format!("etcd://127.0.0.1:{port}"));
    server.put("a/b", "1").await.unwrap();
    server.kill().await.unwrap();
    let down = server.keys("").await.unwrap_err();
    assert!(matches!(down, ServerError::Request { .. }), "{down}");
    assert!(down.to_string().contains("Connection refused"), "{down}");
    server.restart().await.unwrap();
    assert_eq!(server.port(), port);
    assert!(has(&server, "a/b").await);
    // An orderly restart behaves the same way.
    server.restart().await.unwrap();
    assert!(has(&server, "a/b").await);
    server.delete("a").await.unwrap();
    assert!(!has(&server, "a/b").await);
    server.put("a/b", "1").await.unwrap();
    server.lose_data().await.unwrap();
    assert!(!has(&server, "a/b").await);
    // So are the data of a server that is down.
    server.put("a/b", "1").await.unwrap();
    server.kill().await.unwrap();
    server.lose_data().await.unwrap();
    assert!(!has(&server, "a/b").await);
}

#[tokio::test]
async fn servers_are_independent() {
    let (one, other) = tokio::join!(EtcdServer::start(), EtcdServer::start());
    let (one, other) = (one.unwrap(), other.unwrap());
    assert_ne!(one.port(), other.port());
    one.put("a", "1").await.unwrap();
    assert!(!has(&other, "a").await);
    one.kill().await.unwrap();
    assert!(!has(&other, "a").await);
}

#[tokio::test]
async fn a_stopped_or_dropped_server_leaves_nothing() {
    let (stopped, dropped) = tokio::join!(EtcdServer::start(), EtcdServer::start());
    let (stopped, dropped) = (stopped.unwrap(), dropped.unwrap());
    let folders = [data_of(&stopped).await, data_of(&dropped).await];
    assert!(folders.iter().all(|data| data.exists()));
    stopped.stop().await.unwrap();
    drop(dropped);
    for data in folders {
        assert!(!data.parent().unwrap().exists());
    }
}

#[tokio::test]
async fn the_shared_server_is_one_server() {
    let (one, other) = tokio::join!(EtcdServer::shared(), EtcdServer::shared());
    assert_eq!(one.unwrap().port(), other.unwrap().port());
}

#[tokio::test]
async fn an_invalid_setting_is_reported_with_the_output_of_the_server() {
    let error = EtcdServer::builder().setting("election-timeout", "x").start().await.unwrap_err();
    assert!(error.to_string().contains("election-timeout"), "{error}");
}
