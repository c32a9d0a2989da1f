//! How a connection for locks is made from an address.
//!
//! What always holds: a peer that vanished is noticed within half a minute, by both sides.

use std::time::Duration;

use ekbatan_core::config::{DataSourceConfig, ExposeSecret, TlsMode};
use tokio_postgres::Config;
use tokio_postgres::config::SslMode;

use super::error::{PostgresLocksError, told};

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

/// Reads an address such as `postgres://user:password@host:port/db?sslmode=disable`, and what
/// is said beside it. What the address says itself is left as it is.
pub(super) fn parse(server: &DataSourceConfig) -> Result<Config, PostgresLocksError> {
    let (url, tls) = without_tls(server)?;
    let mut config: Config =
        url.parse().map_err(|error| PostgresLocksError::Address(told(&error)))?;
    if matches!(tls, TlsMode::Disable | TlsMode::Prefer) && server.tls_root_cert.is_none() {
        // `prefer` without TLS is a connection without TLS.
        config.ssl_mode(SslMode::Disable);
    } else {
        return Err(PostgresLocksError::Address(
            "it asks for encryption (tls-mode, sslmode), which the lock connections do not have; \
             use prefer or disable on a network that you trust"
                .to_owned(),
        ));
    }
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
    Ok(config)
}

/// The address without what it says of encryption, which its driver knows only in part, and
/// the mode that is meant.
fn without_tls(server: &DataSourceConfig) -> Result<(String, TlsMode), PostgresLocksError> {
    let (place, query) = server.url.split_once('?').unwrap_or((&server.url, ""));
    let mut mode = None;
    let mut kept = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("sslmode" | "ssl-mode", word)) => mode = Some(tls_mode(word)?),
            _ => kept.push(pair),
        }
    }
    let url = match kept.is_empty() {
        true => place.to_owned(),
        false => format!("{place}?{}", kept.join("&")),
    };
    Ok((url, server.tls_mode.or(mode).unwrap_or(TlsMode::Prefer)))
}

fn tls_mode(word: &str) -> Result<TlsMode, PostgresLocksError> {
    Ok(match word {
        "disable" => TlsMode::Disable,
        "allow" | "prefer" => TlsMode::Prefer,
        "require" => TlsMode::Require,
        "verify-ca" => TlsMode::VerifyCa,
        "verify-full" => TlsMode::VerifyFull,
        _ => {
            return Err(PostgresLocksError::Address(format!(
                "`{word}` is no sslmode; known are disable, prefer, require, verify-ca and verify-full"
            )));
        }
    })
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
        super::parse(&DataSourceConfig::new(url))
    }

    #[test]
    fn addresses_are_taken_unless_they_ask_for_encryption() {
        for text in [
            "postgres://u:p@localhost:5432/db",
            "postgres://u@localhost/db?sslmode=prefer",
            "postgresql://u@localhost/db?sslmode=disable&connect_timeout=3",
        ] {
            assert!(parse(text).is_ok(), "{text}");
        }
        let refused = parse("postgres://u@localhost/db?sslmode=require").unwrap_err();
        assert!(refused.to_string().contains("use prefer or disable"), "{refused}");
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
