//! Opens sessions and sets them up.
//!
//! Invariants:
//! - Every session is in UTC, strict, in utf8mb4 and READ COMMITTED, whatever the server's
//!   defaults are.
//! - Sessions are in autocommit mode, so that a read leaves no transaction and no metadata lock
//!   behind. Only lanes switch it off (`become_lane`).

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::TryStreamExt;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlRow};
use sqlx::{AssertSqlSafe, Connection as _, Either, Row};

use super::error;
use super::flavour::Flavour;
use super::options::{connect_options, misread};
use super::packets::PacketLimits;
use crate::config::{DataSourceConfig, LONGEST_TIMEOUT, certificate_files};
use crate::db::{DbError, DbErrorKind};

/// Without ANSI_QUOTES and PIPES_AS_CONCAT, because our SQL is written for one mode. Strict, so
/// that the server rejects a value that does not fit instead of truncating it.
const SQL_MODE: &str = "STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ZERO_DATE,NO_ZERO_IN_DATE,NO_ENGINE_SUBSTITUTION";

/// Opens sessions on one server.
pub(super) struct SessionFactory {
    options: MySqlConnectOptions,
    flavour: Flavour,
    address: String,
    database: String,
    setup: String,
    /// The files of certificates.
    files: Vec<PathBuf>,
    timeout: Duration,
}

/// A session, and how long its packets may be.
pub(super) struct NewSession {
    pub(super) connection: MySqlConnection,
    pub(super) packets: PacketLimits,
}

impl SessionFactory {
    pub(super) fn new(config: &DataSourceConfig) -> Result<Self, DbError> {
        let (flavour, options) = connect_options(config)?;
        let scheme = flavour.scheme();
        let (host, port) = (options.get_host(), options.get_port());
        let Some(database) = options.get_database().filter(|name| !name.is_empty()) else {
            let why = format!(
                "it names no database; write {scheme}://USER:PASSWORD@{host}:{port}/DATABASE"
            );
            return Err(misread(&why));
        };
        let is_socket = options.get_socket().is_some();
        Ok(Self {
            address: format!("{scheme}://{host}:{port}/{database}"),
            database: database.to_owned(),
            setup: setup(flavour, config.statement_timeout),
            files: if is_socket { Vec::new() } else { certificate_files(config) },
            flavour,
            timeout: config.connection_timeout,
            options,
        })
    }

    pub(super) fn flavour(&self) -> Flavour {
        self.flavour
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    pub(super) fn database(&self) -> &str {
        &self.database
    }

    pub(super) async fn open(&self) -> Result<NewSession, DbError> {
        match tokio::time::timeout(self.timeout, self.open_and_set()).await {
            Ok(opened) => opened,
            Err(_) => Err(DbError::new(
                DbErrorKind::Unavailable,
                format!("{} did not answer within {:?}", self.address, self.timeout),
            )),
        }
    }

    async fn open_and_set(&self) -> Result<NewSession, DbError> {
        let failed = |error| error::at_connect(error, &self.address, &self.files);
        let mut connection = MySqlConnection::connect_with(&self.options).await.map_err(failed)?;
        let mut rows: Vec<MySqlRow> = Vec::new();
        {
            let mut answers =
                sqlx::raw_sql(AssertSqlSafe(self.setup.as_str())).fetch_many(&mut connection);
            // The version is checked first, because the other server may not know the settings.
            while let Some(next) = answers.try_next().await.map_err(failed)? {
                if let Either::Right(row) = next {
                    if rows.is_empty() {
                        let version: String = row.try_get_unchecked(0).map_err(failed)?;
                        check_version(&version, self.flavour, &self.address)?;
                    }
                    rows.push(row);
                }
            }
        }
        let max_packet: i64 = match rows.first() {
            Some(row) => row.try_get_unchecked(1).map_err(failed)?,
            None => 0,
        };
        let cipher: Option<String> = match rows.get(1) {
            Some(row) => Some(row.try_get_unchecked(1).map_err(failed)?),
            None => None,
        };
        let max_packet = usize::try_from(max_packet).unwrap_or_default();
        // A proxy may not answer; short packets are right for every connection.
        let is_encrypted = cipher.is_none_or(|cipher| !cipher.is_empty());
        let packets = PacketLimits::new(max_packet, is_encrypted);
        Ok(NewSession { connection, packets })
    }
}

/// One packet that asks for the server's version, sets the session up, and asks whether it is
/// encrypted.
fn setup(flavour: Flavour, statement_timeout: Option<Duration>) -> String {
    // In English, because the names of constraints are taken from error messages.
    let mut sql = format!(
        "SELECT VERSION(), @@max_allowed_packet; \
         SET NAMES utf8mb4, time_zone = '+00:00', autocommit = 1, sql_mode = '{SQL_MODE}', lc_messages = 'en_US'"
    );
    if flavour == Flavour::MySql {
        // So that even a very long list of ids is looked up in the index.
        sql.push_str(", range_optimizer_max_mem_size = 0");
    }
    if let Some(timeout) = statement_timeout.map(|timeout| timeout.min(LONGEST_TIMEOUT)) {
        let _ = match flavour {
            Flavour::MySql => {
                write!(sql, ", max_execution_time = {}", timeout.as_millis().max(1))
            }
            Flavour::MariaDb => {
                write!(sql, ", max_statement_time = {:.6}", timeout.as_secs_f64().max(0.000_001))
            }
        };
    }
    sql.push_str("; SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED");
    sql.push_str("; SHOW SESSION STATUS LIKE 'Ssl_cipher'");
    sql
}

/// Rejects a server that the scheme does not name, or that is too old.
fn check_version(version: &str, meant: Flavour, address: &str) -> Result<(), DbError> {
    let is = if version.contains("MariaDB") { Flavour::MariaDb } else { Flavour::MySql };
    let refuse = |why: String| Err(DbError::new(DbErrorKind::Other, format!("{address} {why}")));
    if is != meant {
        return refuse(format!(
            "is a server of version `{version}`; write the url with `{}://`",
            is.scheme()
        ));
    }
    let mut numbers =
        version.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse::<u32>().unwrap_or_default());
    let found = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    let (oldest, name) = match meant {
        Flavour::MySql => ((8, 0), "MySQL 8.0"),
        // The first version with a type for UUIDs.
        Flavour::MariaDb => ((10, 7), "MariaDB 10.7"),
    };
    if found < oldest {
        refuse(format!("is of version `{version}`; {name} is the oldest that is supported"))
    } else {
        Ok(())
    }
}

/// Rejects what MySQL does not accept as the name of a database.
pub(super) fn check_eventlog(name: &str) -> Result<(), DbError> {
    let why = if name.is_empty() {
        "is empty"
    } else if name.chars().count() > 64 {
        "has more than 64 characters"
    } else if name.ends_with(' ') || name.chars().any(char::is_control) {
        "ends with a space or holds control characters"
    } else {
        return Ok(());
    };
    Err(DbError::new(
        DbErrorKind::Other,
        format!("the setting eventlog, `{}`, {why}; name a database", name.escape_debug()),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_session_is_set_up_by_one_packet() {
        assert_eq!(
            setup(Flavour::MySql, Some(Duration::from_millis(1_500))),
            "SELECT VERSION(), @@max_allowed_packet; \
             SET NAMES utf8mb4, time_zone = '+00:00', autocommit = 1, sql_mode = \
             'STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ZERO_DATE,NO_ZERO_IN_DATE,NO_ENGINE_SUBSTITUTION', \
             lc_messages = 'en_US', range_optimizer_max_mem_size = 0, max_execution_time = 1500; \
             SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; \
             SHOW SESSION STATUS LIKE 'Ssl_cipher'"
        );
        let mariadb = setup(Flavour::MariaDb, Some(Duration::from_millis(1_500)));
        assert!(mariadb.contains("max_statement_time = 1.500000"), "{mariadb}");
    }

    #[test]
    fn a_server_is_what_it_says_and_not_too_old() {
        let refused = |version: &str, flavour| {
            check_version(version, flavour, "HERE").err().map(|error| error.to_string())
        };
        for version in ["8.0.36", "9.7.4-2", "8.4.0-commercial"] {
            assert_eq!(refused(version, Flavour::MySql), None);
        }
        for version in ["10.7.1-MariaDB", "11.8.9-MariaDB-4 from Debian"] {
            assert_eq!(refused(version, Flavour::MariaDb), None);
        }
        let other = refused("11.8.9-MariaDB", Flavour::MySql).unwrap();
        assert!(other.contains("11.8.9-MariaDB") && other.contains("mariadb://"), "{other}");
        let other = refused("9.7.4", Flavour::MariaDb).unwrap();
        assert!(other.contains("`mysql://`"), "{other}");
        let old = refused("5.7.44", Flavour::MySql).unwrap();
        assert!(old.contains("5.7.44") && old.contains("MySQL 8.0"), "{old}");
        let old = refused("10.6.20-MariaDB", Flavour::MariaDb).unwrap();
        assert!(old.contains("10.6.20") && old.contains("MariaDB 10.7"), "{old}");
    }

    #[test]
    fn an_eventlog_that_cannot_name_a_database_is_rejected() {
        assert!(check_eventlog("orders`log").is_ok());
        for name in ["", "a ", "a\nb", &"x".repeat(65)] {
            assert!(check_eventlog(name).is_err(), "{name:?}");
        }
    }
}
