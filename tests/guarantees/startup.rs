//! Unreachable databases, invalid URLs, and settings with which no connection can be opened.

use std::error::Error as _;
use std::time::Duration;

use ekbatan::config::{DataSourceConfig, TlsMode};
use ekbatan::prelude::*;
use ekbatan::shard::ConnectError;
use ekbatan_testkit::{MySqlServer, PostgresServer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket};

async fn refused(config: DataSourceConfig) -> ConnectError {
    let config = config.connection_timeout(Duration::from_millis(300));
    match Databases::connect(&config.into()).await {
        Ok(_) => panic!("no server should be reachable"),
        Err(error) => error,
    }
}

async fn error_of(config: DataSourceConfig) -> String {
    refused(config).await.to_string()
}

#[tokio::test]
async fn an_unreachable_server_is_named_without_its_password() {
    // A port that is bound and not listened to refuses connections.
    let down = TcpSocket::new_v4().unwrap();
    down.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let port = down.local_addr().unwrap().port();
    let url = format!("postgres://app:secret@127.0.0.1:{port}/bank");
    let refused = refused(DataSourceConfig::new(&url)).await;
    let mut cause = refused.source();
    while let Some(outer) = cause.filter(|cause| !cause.is::<std::io::Error>()) {
        cause = outer.source();
    }
    assert!(cause.is_some(), "{refused:?}");
    let error = refused.to_string();
    assert!(error.contains(&format!("127.0.0.1:{port}/bank")), "{error}");
    assert!(error.contains("tried") && error.contains("time(s) in"), "{error}");
    assert!(!error.contains("secret"), "{error}");
    assert!(!format!("{:?}", DataSourceConfig::new(&url)).contains("secret"));
}

#[tokio::test]
async fn connecting_to_a_silent_server_times_out() {
    // The listener accepts connections into its backlog and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let error =
        error_of(DataSourceConfig::new(format!("postgres://app@127.0.0.1:{port}/bank"))).await;
    assert!(error.contains("did not answer within 300ms"), "{error}");
}

#[tokio::test]
async fn an_invalid_url_says_what_to_write() {
    for (url, hint) in [
        ("wallet.db", "write sqlite:wallet.db for a file, postgres://"),
        ("oracle://localhost/bank", "write sqlite:FILE, postgres://"),
        ("mysql://app@localhost:3306", "write mysql://USER:PASSWORD@localhost:3306/DATABASE"),
        ("mariadb://app@localhost", "it names no database"),
        ("sqlite::memory:", "name a file"),
        ("sqlite:", "name a file"),
        ("sqlite://?mode=rwc", "name a file"),
        ("sqlite:file:", "name a file"),
        ("sqlite:/no/such/folder/wallet.db", "does its folder exist"),
    ] {
        let error = error_of(DataSourceConfig::new(url)).await;
        assert!(error.contains(hint), "{url}: {error}");
    }
    for config in [
        DataSourceConfig::new("sqlite:wallet.db").lanes(0),
        DataSourceConfig::new("sqlite:wallet.db").maximum_pool_size(0),
        DataSourceConfig::new("sqlite:wallet.db").fold_limit(0),
    ] {
        assert!(error_of(config).await.contains("must be at least 1"));
    }
}

/// The error of settings that waiting does not mend.
async fn mistake(config: DataSourceConfig) -> String {
    // Room for many tries.
    let config = config.connection_timeout(Duration::from_secs(30));
    let Err(error) = Databases::connect(&config.into()).await else {
        panic!("it must not connect")
    };
    let text = error.to_string();
    assert!(text.contains("(tried 1 time(s) in"), "{text}");
    assert!(!text.contains("is not to be reached"), "{text}");
    text
}

#[tokio::test]
async fn a_connection_that_cannot_be_encrypted_as_configured_is_tried_once() {
    let plain = PostgresServer::shared().await.unwrap().url("postgres");
    let refused = mistake(DataSourceConfig::new(&plain).tls_mode(TlsMode::Require)).await;
    assert!(refused.contains("does not support TLS"), "{refused}");
    assert!(refused.contains("see `tls-mode`"), "{refused}");

    // Its certificate is signed by itself.
    let encrypted = MySqlServer::shared().await.unwrap().create_database().await.unwrap();
    let verified = DataSourceConfig::new(&encrypted).tls_mode(TlsMode::VerifyCa);
    let refused = mistake(verified.clone()).await;
    assert!(refused.contains("invalid peer certificate"), "{refused}");
    assert!(refused.contains("see `tls-mode`"), "{refused}");
    let refused = mistake(verified.tls_root_cert("nowhere.pem")).await;
    assert!(refused.contains("cannot be read from `nowhere.pem`"), "{refused}");

    let url = format!("{}?sslmode=verify-ca&sslrootcert=nowhere.pem", answering(&[b"S"]).await);
    let refused = mistake(DataSourceConfig::new(url)).await;
    assert!(refused.contains("cannot be read from `nowhere.pem`"), "{refused}");
}

/// A server that gives each client these answers, one after the other.
async fn answering(answers: &'static [&'static [u8]]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut asked = [0; 1_024];
            for answer in answers {
                // Each question comes in one piece.
                let _ = client.read(&mut asked).await;
                let _ = client.write_all(answer).await;
            }
            // The client closes the connection.
            while client.read(&mut asked).await.is_ok_and(|read| read > 0) {}
        }
    });
    format!("postgres://{address}/bank")
}

#[tokio::test]
async fn a_password_that_the_driver_refuses_is_not_shown() {
    // A server that asks for SCRAM, and one round of it.
    let url = answering(&[
        b"R\0\0\0\x17\0\0\0\x0aSCRAM-SHA-256\0\0",
        b"R\0\0\0\x1f\0\0\0\x0br=abc,s=c2FsdA==,i=4096",
    ])
    .await;
    let config = DataSourceConfig::new(format!("{url}?sslmode=disable"));
    for (user, password, hidden) in [
        ("app", "s3cr\u{1f600}t", "\u{1f600}"),
        ("app", "s3cr\u{7}t", "u{7}"),
        ("\u{1f600}", "s3crt", "s3crt"),
    ] {
        let refused = mistake(config.clone().username(user).password(password)).await;
        assert!(refused.contains("SASLprep (RFC 4013) does not allow"), "{refused}");
        assert!(!refused.contains(hidden) && !refused.contains("s3cr"), "{refused}");
    }
}
