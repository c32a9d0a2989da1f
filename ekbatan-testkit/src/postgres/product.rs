//! How PostgreSQL is prepared, started and recognised.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

use sqlx::Connection;
use sqlx::postgres::{PgConnectOptions, PgConnection};

use super::programs;
use crate::database_url::DatabaseUrl;
use crate::server::{Account, Product, ServerEnv, ServerError, Settings};

/// The only role of a private server, with all privileges. PostgreSQL's package creates a system
/// user of the same name.
const SUPERUSER: &str = "postgres";
/// A database that every server has.
const MAINTENANCE: &str = "postgres";

/// An installed PostgreSQL and its settings.
#[derive(Debug, Clone)]
pub(super) struct PostgresProduct {
    programs: PathBuf,
    settings: Settings,
    /// The port of the primary, if this is a replica.
    primary: Option<u16>,
}

impl PostgresProduct {
    pub(super) fn new(settings: Settings) -> Result<Self, ServerError> {
        Ok(Self { programs: programs::find()?, settings, primary: None })
    }

    /// The same product as a replica of the server at `port`.
    pub(super) fn replica_of(self, port: u16) -> Self {
        Self { primary: Some(port), ..self }
    }

    fn initdb(&self, env: &ServerEnv) -> Command {
        let mut command = env.command(self.programs.join("initdb"));
        command.args(["--username", SUPERUSER, "--auth", "trust"]).args([
            "--encoding",
            "UTF8",
            "--no-locale",
            "--no-sync",
        ]);
        command
    }

    /// Copies the primary, and configures the copy as its replica.
    fn basebackup(&self, env: &ServerEnv, primary: u16) -> Command {
        let mut command = env.command(self.programs.join("pg_basebackup"));
        command
            .args(["--host", "127.0.0.1", "--port", &primary.to_string()])
            .args(["--username", SUPERUSER, "--no-password"])
            .args(["--write-recovery-conf", "--wal-method", "stream"])
            .args(["--checkpoint", "fast", "--no-sync"]);
        command
    }
}

impl Product for PostgresProduct {
    const NAME: &'static str = "postgres";
    const SHARED_URL: &'static str = "EKBATAN_TEST_POSTGRES_URL";
    const EXAMPLE_URL: &'static str = "postgres://user@host:port/database";
    const SHUTDOWN: &'static str = "INT";
    const END: &'static str = "QUIT";

    fn account(folder: &Path) -> Result<Account, ServerError> {
        Account::not_root(folder, SUPERUSER)
    }

    fn preparation(&self, env: &ServerEnv) -> Command {
        let mut command = match self.primary {
            None => self.initdb(env),
            Some(primary) => self.basebackup(env, primary),
        };
        command.arg("--pgdata").arg(env.data());
        command
    }

    fn server(&self, env: &ServerEnv) -> Command {
        let (folder, port) = (env.folder().display().to_string(), env.port().to_string());
        let private = [
            ("listen_addresses", "127.0.0.1"),
            ("port", port.as_str()),
            ("unix_socket_directories", folder.as_str()),
            ("logging_collector", "off"),
        ];
        let mut command = env.command(self.programs.join("postgres"));
        command.arg("-D").arg(env.data());
        for (name, value) in self.settings.with(&private) {
            command.args(["-c", &format!("{name}={value}")]);
        }
        command
    }

    fn url(port: u16) -> DatabaseUrl {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        DatabaseUrl::new("postgres", Some(SUPERUSER), address, MAINTENANCE)
    }

    fn port_of(url: &DatabaseUrl) -> Result<u16, ServerError> {
        Ok(PgConnectOptions::from_str(&url.to_string())?.get_port())
    }

    async fn data_folder(url: &DatabaseUrl) -> Option<PathBuf> {
        let mut connection = PgConnection::connect(&url.to_string()).await.ok()?;
        let folder: String =
            sqlx::query_scalar("SHOW data_directory").fetch_one(&mut connection).await.ok()?;
        connection.close().await.ok()?;
        Some(PathBuf::from(folder))
    }
}
