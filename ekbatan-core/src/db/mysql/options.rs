//! Connection options from the configuration.

use std::str::FromStr;

use sqlx::ConnectOptions;
use sqlx::mysql::{MySqlConnectOptions, MySqlSslMode};

use super::flavour::Flavour;
use crate::config::{DataSourceConfig, ExposeSecret, TlsMode};
use crate::db::{DbError, DbErrorKind};

/// The options by which connections to a server are opened. They set nothing in the session.
///
/// # Errors
///
/// If the url cannot be parsed.
pub fn server_options(config: &DataSourceConfig) -> Result<MySqlConnectOptions, DbError> {
    connect_options(config).map(|(_, options)| options)
}

pub(super) fn connect_options(
    config: &DataSourceConfig,
) -> Result<(Flavour, MySqlConnectOptions), DbError> {
    let (flavour, rest) = match config.url.split_once(':') {
        Some(("mysql", rest)) => (Flavour::MySql, rest),
        Some(("mariadb", rest)) => (Flavour::MariaDb, rest),
        _ => return Err(misread("it begins neither with mysql: nor with mariadb:")),
    };
    let mut options = MySqlConnectOptions::from_str(&format!("mysql:{rest}"))
        .map_err(|e| misread(&e.to_string()))?
        .statement_cache_capacity(500)
        // The session's setup packet sets these together with the rest.
        .pipes_as_concat(false)
        .no_engine_substitution(false)
        .timezone(None)
        .set_names(false)
        .disable_statement_logging();
    if let Some(username) = &config.username {
        options = options.username(username);
    }
    if let Some(password) = &config.password {
        options = options.password(password.expose_secret());
    }
    if let Some(mode) = config.tls_mode {
        options = options.ssl_mode(match mode {
            TlsMode::Disable => MySqlSslMode::Disabled,
            TlsMode::Prefer => MySqlSslMode::Preferred,
            TlsMode::Require => MySqlSslMode::Required,
            TlsMode::VerifyCa => MySqlSslMode::VerifyCa,
            TlsMode::VerifyFull => MySqlSslMode::VerifyIdentity,
        });
    }
    if let Some(file) = &config.tls_root_cert {
        options = options.ssl_ca(file);
    }
    Ok((flavour, options))
}

pub(super) fn misread(why: &str) -> DbError {
    DbError::new(DbErrorKind::Other, format!("the url of the database is not understood: {why}"))
}
