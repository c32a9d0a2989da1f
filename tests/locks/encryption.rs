//! Lock connections are encrypted as the configuration asks, or the connection fails.
//!
//! The certificate in `tls/` is valid for `localhost` and not for `127.0.0.1`. The authority that
//! signed it is beside it.

use std::path::PathBuf;

use ekbatan::lock::{KeyedLockProvider, KeyedLocksError, LockRegistry, lock_key};
use ekbatan::prelude::EkbatanConfig;
use ekbatan_lock_redis::WithRedis;
use ekbatan_testkit::{PostgresServer, RedisServer};
use futures_util::future::join_all;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use support::until;

use crate::providers::LONG;
use crate::redis::connection;

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/locks/tls").join(name)
}

async fn connect(keys: &str) -> Result<LockRegistry<WithRedis>, KeyedLocksError> {
    let yaml = format!(
        "ekbatan: {{configs: {{primary-config: {{url: 'sqlite:a.db'}}, lock-config: {{{keys}}}}}}}"
    );
    LockRegistry::<WithRedis>::connect(
        &EkbatanConfig::loader().yaml(&yaml).environment(false).load().unwrap(),
    )
    .await
}

/// Connects with the keys of each case; expects locks, or an error that contains the text.
async fn each(address: impl Fn(&str) -> String, cases: &[(&str, String, Option<&str>)]) {
    let case = async |n: usize, host: &str, keys: &str, refused: Option<&str>| {
        let keys = format!("url: '{}'{keys}", address(host));
        match (connect(&keys).await, refused) {
            (Ok(locks), None) => {
                let key = lock_key!("case", n);
                assert!(locks.acquire(&key, LONG).await.unwrap().release().await, "{keys}");
                locks.close().await;
            }
            (Err(error), Some(text)) => {
                assert!(error.to_string().contains(text), "{keys}: {error}");
            }
            (Ok(_), Some(_)) => panic!("{keys} must be rejected"),
            (Err(error), None) => panic!("{keys}: {error}"),
        }
    };
    // A rejected connection is retried for a while, so that the cases run at the same time.
    join_all(
        cases.iter().enumerate().map(|(n, (host, keys, refused))| case(n, host, keys, *refused)),
    )
    .await;
}

/// A server with TLS. It writes the key file itself, because it must own the file.
async fn postgres() -> (PostgresServer, String) {
    let server = PostgresServer::start().await.unwrap();
    let url = server.create_database().await.unwrap();
    let mut connection = PgConnection::connect(&url).await.unwrap();
    for (name, from) in [("server.crt", "server.pem"), ("server.key", "server.key")] {
        let text = std::fs::read_to_string(file(from)).unwrap();
        let sql = format!(
            "COPY (SELECT unnest(string_to_array('{text}', E'\\n'))) TO PROGRAM 'umask 077 && cat > {name}'"
        );
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
    }
    sqlx::raw_sql("ALTER SYSTEM SET ssl = on").execute(&mut connection).await.unwrap();
    sqlx::raw_sql("SELECT pg_reload_conf()").execute(&mut connection).await.unwrap();
    // The server applies the new settings asynchronously.
    until("the server encrypts", async || {
        PgConnection::connect(&format!("{url}?sslmode=require")).await.is_ok()
    })
    .await;
    (server, url)
}

#[tokio::test]
async fn postgres_certificates_are_verified_as_the_mode_asks() {
    let (server, url) = postgres().await;
    let ca = format!(", tls-root-cert: '{}'", file("ca.pem").display());
    let mode = |mode: &str, ca: &str| format!(", tls-mode: {mode}{ca}");
    let (named, numbered) = ("localhost", "127.0.0.1");
    each(
        |host| url.replace("127.0.0.1", host),
        &[
            (numbered, mode("disable", ""), None),
            (numbered, String::new(), None),
            (numbered, mode("require", ""), None),
            (numbered, mode("verify-ca", &ca), None),
            (named, mode("verify-full", &ca), None),
            (numbered, mode("verify-full", &ca), Some("certificate")),
            (named, mode("verify-full", ""), Some("certificate")),
            (named, mode("verify-ca", ""), Some("certificate")),
            (named, mode("verify-full", ", tls-root-cert: nowhere.pem"), Some("nowhere.pem")),
        ],
    )
    .await;
    server.stop().await.unwrap();
}

#[tokio::test]
async fn postgres_connections_are_encrypted_when_the_server_supports_it() {
    let (server, url) = postgres().await;
    let mut looking = PgConnection::connect(&url).await.unwrap();
    for (keys, encrypted) in
        [("", true), (", tls-mode: require", true), (", tls-mode: disable", false)]
    {
        for strategy in ["lease", "session"] {
            let keys = format!("url: '{url}'{keys}, strategy: {strategy}");
            let locks = connect(&keys).await.unwrap();
            let lease = locks.acquire(&lock_key!("a"), LONG).await.unwrap();
            let sessions: Vec<bool> = sqlx::query_scalar(
                "SELECT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                 WHERE application_name LIKE 'ekbatan-lock process %'",
            )
            .fetch_all(&mut looking)
            .await
            .unwrap();
            assert!(!sessions.is_empty(), "{keys}");
            assert!(sessions.iter().all(|ssl| *ssl == encrypted), "{keys}: {sessions:?}");
            assert!(lease.release().await);
            locks.close().await;
            drop(locks);
            // The next case looks at its own connections only.
            let left = "SELECT count(*) FROM pg_stat_activity \
                 WHERE application_name LIKE 'ekbatan-lock process %'";
            until("the sessions are over", async || {
                sqlx::query_scalar::<_, i64>(left).fetch_one(&mut looking).await.unwrap() == 0
            })
            .await;
        }
    }
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_server_without_tls_is_rejected_when_tls_is_required_on_postgres() {
    let url = PostgresServer::shared().await.unwrap().create_database().await.unwrap();
    let required = |keys: &str| keys.to_owned();
    each(
        |_| url.clone(),
        &[
            ("", String::new(), None),
            ("", required(", tls-mode: require"), Some("TLS")),
            ("", required(", tls-mode: verify-full"), Some("TLS")),
        ],
    )
    .await;
    each(
        |query| format!("{url}{query}"),
        &[
            ("?sslmode=require", String::new(), Some("TLS")),
            ("?sslmode=Prefer", String::new(), None),
        ],
    )
    .await;
}

/// Lets a server listen with TLS, too. Returns the port, one that no outgoing connection gets.
async fn listens_with_tls(server: &RedisServer) -> u16 {
    let mut connection = connection(&server.url()).await;
    for port in 65_000..=u16::MAX {
        let mut command = redis::cmd("CONFIG");
        command.arg("SET").arg("tls-port").arg(port);
        if command.exec_async(&mut connection).await.is_ok() {
            return port;
        }
    }
    panic!("every port is taken");
}

#[tokio::test]
async fn redis_certificates_are_verified_as_the_mode_asks() {
    let path = |name| file(name).display().to_string();
    let server = RedisServer::builder()
        .setting("tls-cert-file", path("server.pem"))
        .setting("tls-key-file", path("server.key"))
        .setting("tls-ca-cert-file", path("ca.pem"))
        .setting("tls-auth-clients", "no")
        .start()
        .await
        .unwrap();
    let port = listens_with_tls(&server).await;
    let ca = format!(", tls-root-cert: '{}'", path("ca.pem"));
    let (named, numbered) = ("rediss://localhost", "rediss://127.0.0.1");
    let mode = |mode: &str, ca: &str| format!(", tls-mode: {mode}{ca}");
    each(
        |host| format!("{host}:{port}"),
        &[
            (named, ca.clone(), None),
            (numbered, ca.clone(), Some("certificate")),
            (named, String::new(), Some("certificate")),
            (numbered, mode("verify-ca", &ca), None),
            (numbered, mode("verify-ca", ""), Some("certificate")),
            (numbered, mode("require", ""), None),
            // The key asks for TLS, the address does not.
            ("redis://localhost", mode("verify-full", &ca), None),
            ("redis://127.0.0.1", mode("verify-full", &ca), Some("certificate")),
            // Contradictions.
            (named, mode("disable", ""), Some("tls-mode is `disable`")),
            ("redis://localhost", ca.clone(), Some("the connection is not encrypted")),
            (named, mode("require", &ca), Some("the certificate is not verified")),
            (named, ", tls-root-cert: nowhere.pem".to_owned(), Some("nowhere.pem")),
        ],
    )
    .await;
    // A server without TLS is never used in plain text unless that is allowed.
    let plain = server.url();
    each(
        |_| plain.clone(),
        &[("", mode("require", ""), Some("redis")), ("", mode("prefer", ""), None)],
    )
    .await;
    server.stop().await.unwrap();
}
