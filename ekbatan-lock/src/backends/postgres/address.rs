//! How a connection for locks is made from an address.
//!
//! Invariant: both sides notice within half a minute that the other one has vanished.

use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig};
use ekbatan_core::config::{DataSourceConfig, ExposeSecret, decoded};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{CancelToken, Client, Config, Connection, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::error::{PostgresLocksError, describe};
use super::tls;

/// Idle time before the first keepalive probe.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
/// Time between keepalive probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// Number of unanswered probes before the connection is closed.
const KEEPALIVE_COUNT: u32 = 3;
/// Maximum time that sent data may stay unacknowledged.
const USER_TIMEOUT: Duration = Duration::from_secs(20);
/// The driver's default idle time before the first probe.
const DRIVER_KEEPALIVE_IDLE: Duration = Duration::from_secs(2 * 60 * 60);

/// The address of a server, and how to connect to it. Cheap to clone.
#[derive(Clone)]
pub(super) struct PostgresAddress {
    config: Config,
    tls: MakeRustlsConnect,
}

impl PostgresAddress {
    /// The caller has to poll the driver of the connection.
    pub(super) async fn connect(&self) -> Result<(Client, Driver), tokio_postgres::Error> {
        self.config.connect(self.tls.clone()).await
    }

    /// Has the server cancel the statement of a connection.
    pub(super) async fn cancel(&self, token: CancelToken) -> Result<(), tokio_postgres::Error> {
        token.cancel_query(self.tls.clone()).await
    }

    pub(super) fn manager(&self, config: ManagerConfig) -> Manager {
        Manager::from_config(self.config.clone(), self.tls.clone(), config)
    }
}

/// The future that drives a connection.
type Driver = Connection<Socket, <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream>;

/// Parses an address such as `postgres://user:password@host:port/db?sslmode=disable`. The
/// other keys of the configuration take precedence over the address.
pub(super) fn parse(server: &DataSourceConfig) -> Result<PostgresAddress, PostgresLocksError> {
    let (url, encryption) = tls::split(server)?;
    let (url, options) = for_driver(&url);
    let mut config: Config =
        url.parse().map_err(|error| PostgresLocksError::Address(describe(&error)))?;
    config.ssl_mode(encryption.ssl_mode());
    if !options.is_empty() {
        config.options(options);
    }
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
    if config.get_keepalives_idle() == DRIVER_KEEPALIVE_IDLE {
        config.keepalives_idle(KEEPALIVE_IDLE);
    }
    if config.get_keepalives_interval().is_none() {
        config.keepalives_interval(KEEPALIVE_INTERVAL);
    }
    if config.get_keepalives_retries().is_none() {
        config.keepalives_retries(KEEPALIVE_COUNT);
    }
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(USER_TIMEOUT);
    }
    // Without a key, the configuration has the name of the address.
    if config.get_application_name() != Some(&server.application_name) {
        // `pg_stat_activity` and `inspect` show this name.
        let name = format!("{}-lock process {}", server.application_name, std::process::id());
        config.application_name(name);
    }
    Ok(PostgresAddress { config, tls })
}

/// The address as the driver reads it, and the options of the session. The driver ends the login at the first `@`
/// of the address, and knows no `options[NAME]=VALUE`.
fn for_driver(url: &str) -> (String, String) {
    let (place, query) = url.split_once('?').unwrap_or((url, ""));
    let start = place.find("://").map_or(0, |at| at + 3);
    let end = place[start..].find('/').map_or(place.len(), |at| start + at);
    let (login, place) = place.split_at(place[..end].rfind('@').unwrap_or_default());
    let (mut kept, mut options) = (Vec::new(), Vec::new());
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let Some((name, value)) = pair.split_once('=') else {
            kept.push(pair.to_owned());
            continue;
        };
        let plain = decoded(name);
        match plain.strip_prefix("options[").and_then(|setting| setting.strip_suffix(']')) {
            Some(setting) => {
                let value = decoded(value).replace('\\', r"\\").replace(' ', r"\ ");
                options.push(format!("-c {setting}={value}"));
            }
            None if plain == "options" => options.push(decoded(value)),
            None => kept.push(format!("{name}={}", value.replace('@', "%40"))),
        }
    }
    let mut url = format!("{}{place}", login.replace('@', "%40"));
    if !kept.is_empty() {
        url = format!("{url}?{}", kept.join("&"));
    }
    (url, options.join(" "))
}

/// The statements that make the server notice that this side of the session has vanished.
pub(super) fn server_side() -> String {
    format!(
        "SET tcp_keepalives_idle = {}; SET tcp_keepalives_interval = {}; \
         SET tcp_keepalives_count = {KEEPALIVE_COUNT}; SET tcp_user_timeout = {};",
        KEEPALIVE_IDLE.as_secs(),
        KEEPALIVE_INTERVAL.as_secs(),
        USER_TIMEOUT.as_millis(),
    )
}

#[cfg(test)]
mod tests {
    use tokio_postgres::config::Host;

    use super::*;

    fn parse(url: &str) -> Result<Config, PostgresLocksError> {
        super::parse(&DataSourceConfig::new(url)).map(|server| server.config)
    }

    #[test]
    fn an_invalid_address_does_not_show_its_password() {
        assert!(parse("postgres://u:p@localhost:5432/db").is_ok());
        let refused = parse("postgres://u:secret@localhost/db?x=y").unwrap_err();
        assert!(!refused.to_string().contains("secret"), "{refused}");
    }

    #[test]
    fn settings_of_the_address_are_kept() {
        let config =
            parse("postgres://u@localhost/db?connect_timeout=3&application_name=me").unwrap();
        assert_eq!(config.get_connect_timeout(), Some(&Duration::from_secs(3)));
        assert_eq!(config.get_application_name(), Some("me"));
        assert_eq!(config.get_keepalives_idle(), KEEPALIVE_IDLE);
    }

    #[test]
    fn a_key_gives_sessions_another_name_than_the_address() {
        for url in ["postgres://u@localhost/db?application_name=me", "postgres://u@localhost/db"] {
            let server = DataSourceConfig::new(url).application_name("till");
            let config = super::parse(&server).unwrap().config;
            let name = config.get_application_name().unwrap_or_default();
            assert!(name.starts_with("till-lock process "), "{name}");
        }
    }

    #[test]
    fn a_login_ends_at_the_last_at_sign_before_the_path() {
        for url in [
            "postgres://u:s3cr@t@host/db",
            "postgres://host/db?user=u&password=s3cr@t",
            "postgres://u:s3cr%40t@host/db",
        ] {
            let config = parse(url).unwrap();
            assert_eq!(config.get_hosts(), [Host::Tcp("host".to_owned())], "{url}");
            assert_eq!(config.get_password(), Some(&b"s3cr@t"[..]), "{url}");
        }
    }

    #[test]
    fn options_of_the_address_are_options_of_the_session() {
        let options = |url| parse(url).unwrap().get_options().map(str::to_owned);
        assert_eq!(options("postgres://h/d"), None);
        let url = "postgres://h/d?options[search_path]=a%20b&options=-c%20geqo%3Doff";
        assert_eq!(options(url).as_deref(), Some(r"-c search_path=a\ b -c geqo=off"));
    }
}
