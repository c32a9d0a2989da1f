//! Clusters, tables and settings that cannot keep locks are rejected on connect, with advice.

use ekbatan::config::DataSourceConfig;
use ekbatan::lock::{
    GrantExtension, HBaseBackend, KeyedLockProvider, LockBackend, LockError, LockKey, LockLevel,
    LockProvider,
};
use ekbatan_testkit::HBaseServer;
use tokio::net::TcpSocket;
use uuid::Uuid;

use super::taken;
use crate::providers::LONG;

fn name() -> String {
    format!("refused_{}", Uuid::new_v4().simple())
}

async fn refused(url: &str) -> String {
    match HBaseBackend::connect(url, "app").await {
        Err(error @ (LockError::Start { .. } | LockError::Unsafe { .. })) => {
            let text = format!("{error} {error:?}");
            assert!(!text.contains("secret"), "{text}");
            error.to_string()
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_breaks_a_promise_is_rejected_by_name() {
    let server = HBaseServer::shared().await.unwrap();
    for (of_table, of_family, reason) in [
        (&[][..], &[("REPLICATION_SCOPE", "1")][..], "is replicated"),
        (&[], &[("TTL", "86400")], "forgets its cells after 86400 s"),
        (&[], &[("VERSIONS", "3")], "keeps 3 versions"),
        (&[("DURABILITY", "ASYNC_WAL")], &[], "has DURABILITY ASYNC_WAL"),
        (&[("DURABILITY", "SKIP_WAL")], &[], "has DURABILITY SKIP_WAL"),
        (&[("READONLY", "true")], &[], "is read-only"),
    ] {
        let table = name();
        server.create_table(&table, of_table, of_family).await.unwrap();
        let error = refused(&format!("{}/{table}", server.url())).await;
        assert!(error.contains(reason) && error.contains(&table), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disabled_table_is_rejected_at_once() {
    let server = HBaseServer::shared().await.unwrap();
    let url = format!("{}/{}", server.url(), name());
    let table = url.rsplit('/').next().unwrap();
    HBaseBackend::connect(&url, "app").await.unwrap();
    server.enable_table(table, false).await.unwrap();
    // A new table may take a minute to be enabled, and nobody enables this one.
    let error = tokio::time::timeout(LONG / 2, refused(&url)).await.expect("it does not wait");
    assert!(error.contains("is disabled") && error.contains(table), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_table_is_made_by_the_first_of_several_processes() {
    let server = HBaseServer::shared().await.unwrap();
    let url = format!("{}/{}", server.url(), name());
    let connect = || HBaseBackend::connect(&url, "app");
    let (one, other, third) = tokio::join!(connect(), connect(), connect());
    let (one, other, _) = (one.unwrap(), other.unwrap(), third.unwrap());
    let grant = taken(&one, "k", LONG).await;
    assert_eq!(other.inspect("k").await.unwrap().unwrap().grant(), grant);
    assert!(one.release("k", &grant).await.unwrap().ours);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_cluster_and_another_format_are_rejected() {
    let server = HBaseServer::shared().await.unwrap();
    let error = refused(&format!("{}/?cluster=a-secret", server.url())).await;
    let cluster = server.cluster().await.unwrap();
    assert!(error.contains("the parameter `cluster`") && error.contains(&cluster), "{error}");
    let error = refused(&format!("{}/?user=a-secret", server.url())).await;
    assert!(error.contains("the parameter `user`"), "{error}");

    let table = name();
    let url = format!("{}/{table}", server.url());
    HBaseBackend::connect(&url, "app").await.unwrap();
    let mut rows = server.rows(&table).await.unwrap();
    rows.put("app", "a", b"another format").await.unwrap();
    let error = refused(&url).await;
    assert!(error.contains("`another format`"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_all_zones_need_the_name_of_the_cluster() {
    let url = HBaseServer::shared().await.unwrap().url();
    let key = LockKey::named("k").at_level(LockLevel::Global);
    let namespace = Uuid::new_v4().to_string();
    for (url, allowed) in [(url, false), (super::url().await, true)] {
        let backend = HBaseBackend::connect(&url, &namespace).await.unwrap();
        let locks = LockProvider::new(backend, "test");
        let taken = locks.try_acquire(&key, LONG, LONG).await;
        match taken {
            Ok(lease) if allowed => assert!(lease.expect("it is free").release().await),
            Err(error @ LockError::OneZone { .. }) if !allowed => {
                assert!(error.to_string().contains("hbase"), "{error}");
            }
            other => panic!("allowed: {allowed}, {other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_is_no_lock_is_an_error_that_names_it() {
    let server = HBaseServer::shared().await.unwrap();
    let table = name();
    let backend = HBaseBackend::connect(&format!("{}/{table}", server.url()), "app").await.unwrap();
    let (grant, other) = (taken(&backend, "k", LONG).await, taken(&backend, "other", LONG).await);
    let mut rows = server.rows(&table).await.unwrap();
    rows.put("app/k", "a", b"a cell of somebody else").await.unwrap();
    // The leases on other keys are extended.
    let both =
        [("k", grant), ("other", other)].map(|(key, grant)| GrantExtension::new(key, grant, LONG));
    assert_eq!(backend.extend_all(&both).await.unwrap(), [false, true]);
    let error = backend.inspect("k").await.unwrap_err();
    assert!(!error.may_pass() && error.to_string().contains("`app/k`"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_that_cannot_be_kept_are_rejected() {
    let url = HBaseServer::shared().await.unwrap().url();
    let with = |change: fn(DataSourceConfig) -> DataSourceConfig| {
        let config = change(DataSourceConfig::new(url.clone()));
        async move { HBaseBackend::open(&config, "app").await.unwrap_err().to_string() }
    };
    let error = with(|config| config.password("secret")).await;
    assert!(error.contains("a password is given") && !error.contains("secret"), "{error}");
    let error = HBaseBackend::connect(&url, "/app").await.unwrap_err().to_string();
    assert!(error.contains("`/app`"), "{error}");
    let error = refused(&format!("{url}/nowhere:locks")).await;
    assert!(error.contains("the namespace `nowhere`"), "{error}");
}

#[tokio::test]
async fn the_error_for_a_missing_server_names_it() {
    // A port that is bound and not listened to refuses connections.
    let down = TcpSocket::new_v4().unwrap();
    down.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let address = down.local_addr().unwrap().to_string();
    let reason = refused(&format!("hbase://{address}")).await;
    assert!(reason.contains(&address), "{reason}");
    // Something that is no HBase.
    let server = ekbatan_testkit::RedisServer::shared().await.unwrap();
    let reason = refused(&format!("hbase://127.0.0.1:{}", server.port())).await;
    assert!(reason.contains(&server.port().to_string()), "{reason}");
}

/// A cluster that wants Kerberos answers a connection like this, and closes it.
#[tokio::test]
async fn a_cluster_that_wants_kerberos_is_rejected_by_name() {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 512]).unwrap();
            let class = b"org.apache.hadoop.hbase.security.AccessDeniedException";
            let text = b"Authentication is required";
            // The number -1, and an exception with its class, its text, and that it is final.
            let exception =
                [&[10, class.len() as u8][..], class, &[18, text.len() as u8], text, &[40, 1]]
                    .concat();
            let number = [8, 0xff, 0xff, 0xff, 0xff, 0x0f];
            let header = [&number[..], &[18, exception.len() as u8], &exception].concat();
            let frame = [&[header.len() as u8][..], &header].concat();
            let length = (frame.len() as u32).to_be_bytes();
            stream.write_all(&[&length[..], &frame].concat()).unwrap();
        }
    });
    let reason = refused(&format!("hbase://{address}")).await;
    assert!(reason.contains("Authentication is required"), "{reason}");
    assert!(reason.contains("Kerberos are not supported"), "{reason}");
}
