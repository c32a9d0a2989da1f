//! How a connection for locks is made from an address.
//!
//! What always holds: a peer that vanished is noticed within half a minute, by both sides.

use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig};
use ekbatan_core::config::{DataSourceConfig, ExposeSecret};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, Connection, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::error::{PostgresLocksError, told};
use super::tls;

/// How long a connection may be silent before the other side is asked for a sign of life.
const SILENT: Duration = Duration::from_secs(10);
/// How long it may take to answer before it is asked again.
const ASKED_AGAIN: Duration = Duration::from_secs(5);
/// How often it is asked.
const ASKED: u32 = 3;
/// How long what was sent may stay unconfirmed.
const UNCONFIRMED: Duration = Duration::from_secs(20);
/// After how much silence the driver asks unless told otherwise.
const DRIVER_SILENT: Duration = Duration::from_secs(2 * 60 * 60);

/// A server, and how connections to it are made. Cheap to clone.
#[derive(Clone)]
pub(super) struct Server {
    config: Config,
    tls: MakeRustlsConnect,
}

impl Server {
    /// The connection's driver has to be polled by whoever asks.
    pub(super) async fn connect(&self) -> Result<(Client, Driver), tokio_postgres::Error> {
        self.config.connect(self.tls.clone()).await
    }

    pub(super) fn manager(&self, config: ManagerConfig) -> Manager {
        Manager::from_config(self.config.clone(), self.tls.clone(), config)
    }
}

/// What carries a connection.
type Driver = Connection<Socket, <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream>;

/// Reads an address such as `postgres://user:password@host:port/db?sslmode=disable`, and what
/// is said beside it, which wins in what both say.
pub(super) fn parse(server: &DataSourceConfig) -> Result<Server, PostgresLocksError> {
    let (url, encryption) = tls::split(server)?;
    let mut config: Config =
        url.parse().map_err(|error| PostgresLocksError::Address(told(&error)))?;
    config.ssl_mode(encryption.asked_for());
    let tls = encryption.connector()?;
    if let Some(username) = &server.username {
        config.user(username);
    }
    if let Some(password) = &server.password {
        config.password(password.expose_secret());
    }
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(server.connection_timeout);
    }
    if config.get_keepalives_idle() == DRIVER_SILENT {
        config.keepalives_idle(SILENT);
    }
    if config.get_keepalives_interval().is_none() {
        config.keepalives_interval(ASKED_AGAIN);
    }
    if config.get_keepalives_retries().is_none() {
        config.keepalives_retries(ASKED);
    }
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(UNCONFIRMED);
    }
    if config.get_application_name().is_none() {
        // Operators see it in pg_stat_activity, and those who ask who holds a key.
        let name = format!("{}-lock process {}", server.application_name, std::process::id());
        config.application_name(name);
    }
    Ok(Server { config, tls })
}

/// What has the server notice that this side vanished, for the session that says it.
pub(super) fn server_side() -> String {
    format!(
        "SET tcp_keepalives_idle = {}; SET tcp_keepalives_interval = {}; \
         SET tcp_keepalives_count = {ASKED}; SET tcp_user_timeout = {};",
        SILENT.as_secs(),
        ASKED_AGAIN.as_secs(),
        UNCONFIRMED.as_millis(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Config, PostgresLocksError> {
        super::parse(&DataSourceConfig::new(url)).map(|server| server.config)
    }

    #[test]
    fn an_address_that_is_none_does_not_show_its_password() {
        assert!(parse("postgres://u:p@localhost:5432/db").is_ok());
        let refused = parse("postgres://u:secret@localhost/db?x=y").unwrap_err();
        assert!(!refused.to_string().contains("secret"), "{refused}");
    }

    #[test]
    fn what_the_address_says_itself_is_kept() {
        let config =
            parse("postgres://u@localhost/db?connect_timeout=3&application_name=me").unwrap();
        assert_eq!(config.get_connect_timeout(), Some(&Duration::from_secs(3)));
        assert_eq!(config.get_application_name(), Some("me"));
        assert_eq!(config.get_keepalives_idle(), SILENT);
    }
}
