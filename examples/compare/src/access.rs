//! Where the database is, and how each driver opens it.
//!
//! Invariants: every contender gets the same database with the same durability. A
//! password is passed on stdin, never as a command line argument, which other users of
//! the machine could list.

use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;
use ekbatan::config::{DataSourceConfig, Durability, SecretString};
use serde::{Deserialize, Serialize};
use sqlx::ConnectOptions;
use sqlx::mysql::MySqlConnectOptions;
use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};

use crate::failure::Failure;

/// A kind of database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Engine {
    Postgres,
    MySql,
    MariaDb,
    Sqlite,
}

impl Engine {
    /// The engine for the scheme of a URL.
    pub fn of(url: &str) -> Option<Self> {
        match url.split_once(':')?.0 {
            "postgres" | "postgresql" => Some(Self::Postgres),
            "mysql" => Some(Self::MySql),
            "mariadb" => Some(Self::MariaDb),
            "sqlite" => Some(Self::Sqlite),
            _ => None,
        }
    }

    /// The name on the command line and in the results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::MySql => "mysql",
            Self::MariaDb => "mariadb",
            Self::Sqlite => "sqlite",
        }
    }
}

/// What an acknowledged deposit survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DepositDurability {
    /// Power loss.
    Full,
    /// A crash of the process. A power loss may lose the latest deposits.
    Relaxed,
}

impl DepositDurability {
    /// The name on the command line and in the results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Relaxed => "relaxed",
        }
    }
}

/// A database, and the user that opens it.
#[derive(Clone, Serialize, Deserialize)]
pub struct Access {
    pub engine: Engine,
    pub url: String,
    pub username: Option<String>,
    pub password: Option<String>,
    pub durability: DepositDurability,
}

impl Access {
    /// With only what the URL contains.
    pub const fn new(engine: Engine, url: String, durability: DepositDurability) -> Self {
        Self { engine, url, username: None, password: None, durability }
    }

    /// The same database at another URL, such as that of a proxy.
    pub fn through(&self, url: impl FnOnce(&str) -> String) -> Self {
        Self { url: url(&self.url), ..self.clone() }
    }

    pub fn ekbatan(&self, pool: usize) -> DataSourceConfig {
        let mut config = DataSourceConfig::new(&self.url).maximum_pool_size(pool).durability(
            match self.durability {
                DepositDurability::Full => Durability::Full,
                DepositDurability::Relaxed => Durability::Wal,
            },
        );
        config.username = self.username.clone();
        config.password = self.password.clone().map(SecretString::from);
        config
    }

    pub fn postgres(&self) -> Result<PgConnectOptions, Failure> {
        let mut options = PgConnectOptions::from_str(&self.url)?.disable_statement_logging();
        if let Some(username) = &self.username {
            options = options.username(username);
        }
        if let Some(password) = &self.password {
            options = options.password(password);
        }
        Ok(options)
    }

    pub fn mysql(&self) -> Result<MySqlConnectOptions, Failure> {
        let mut options = MySqlConnectOptions::from_str(&self.url)?.disable_statement_logging();
        if let Some(username) = &self.username {
            options = options.username(username);
        }
        if let Some(password) = &self.password {
            options = options.password(password);
        }
        Ok(options)
    }

    pub fn sqlite(&self) -> Result<SqliteConnectOptions, Failure> {
        Ok(SqliteConnectOptions::from_str(&self.url)?
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(match self.durability {
                DepositDurability::Full => SqliteSynchronous::Full,
                DepositDurability::Relaxed => SqliteSynchronous::Normal,
            })
            .busy_timeout(Duration::from_secs(30))
            .foreign_keys(true)
            .disable_statement_logging())
    }

    /// Host and port; `None` for SQLite.
    pub fn target(&self) -> Result<Option<(String, u16)>, Failure> {
        Ok(match self.engine {
            Engine::Sqlite => None,
            Engine::Postgres => {
                let options = self.postgres()?;
                Some((options.get_host().to_owned(), options.get_port()))
            }
            Engine::MySql | Engine::MariaDb => {
                let options = self.mysql()?;
                Some((options.get_host().to_owned(), options.get_port()))
            }
        })
    }
}
