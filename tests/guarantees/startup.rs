//! Unreachable databases and invalid URLs.

use std::time::Duration;

use ekbatan::config::DataSourceConfig;
use ekbatan::prelude::*;
use tokio::net::TcpSocket;

async fn error_of(config: DataSourceConfig) -> String {
    let config = config.connection_timeout(Duration::from_millis(300));
    match Databases::connect(&config.into()).await {
        Ok(_) => panic!("no server should be reachable"),
        Err(error) => error.to_string(),
    }
}

#[tokio::test]
async fn an_unreachable_server_is_named_without_its_password() {
    // A port that is bound and not listened to refuses connections.
    let down = TcpSocket::new_v4().unwrap();
    down.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let port = down.local_addr().unwrap().port();
    let url = format!("postgres://app:secret@127.0.0.1:{port}/bank");
    let error = error_of(DataSourceConfig::new(&url)).await;
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
        ("wallet.db", "write sqlite:FILE, postgres://"),
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
