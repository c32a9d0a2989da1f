//! Private FerretDB servers, which speak the protocol of MongoDB.
//!
//! Each [`FerretDbServer`] is a FerretDB with a PostgreSQL of its own below it, which has the extension
//! documentdb. It accepts connections from this machine only.
//!
//! Invariants: a server that `start` returned answers. Dropping the handle removes the
//! server and its folder. If the test process ends in any other way, `SIGKILL` included,
//! they are removed a moment later.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, Connection};
use tokio::net::TcpStream;

use crate::database_url::DatabaseUrl;
use crate::front::front;
use crate::server::{
    Account, Handle, Product, ProgramSearch, ServerEnv, ServerError, Settings, installed_here,
};

const SEARCH: ProgramSearch = ProgramSearch {
    server: "FerretDB",
    programs: "`ferretdb`, and beside it ../lib/postgresql/18/bin/postgres",
    install: "`scripts/install-servers ferretdb`",
    variable: "EKBATAN_FERRETDB_BIN",
    example: ".servers/ferretdb/usr/sbin",
    is_complete: |folder: &Path| folder.join("ferretdb").is_file() && postgres(folder).is_some(),
};

/// PostgreSQL's package creates a system user of this name.
const SUPERUSER: &str = "postgres";

/// The settings of PostgreSQL.
const DEFAULTS: [(&str, &str); 6] = [
    ("fsync", "off"),
    ("full_page_writes", "off"),
    ("max_connections", "200"),
    ("shared_buffers", "32MB"),
    // In the server's folder instead of shared memory, so that a killed server leaves nothing.
    ("dynamic_shared_memory_type", "mmap"),
    ("timezone", "UTC"),
];

/// Prepares the data: $1 the programs of PostgreSQL, $2 the folder, $3.. its settings.
const PREPARATION: &str = include_str!("ferretdb/prepare.sh");

/// Runs both servers: $1 the programs of PostgreSQL, $2 the folder, $3 the program of FerretDB, $4
/// its port, $5.. the settings of PostgreSQL.
const SERVERS: &str = include_str!("ferretdb/run.sh");

/// A private FerretDB server, removed when it is dropped.
///
/// ```no_run
/// # use ekbatan_testkit::{FerretDbServer, ServerError};
/// # async fn example() -> Result<(), ServerError> {
/// let server = FerretDbServer::start().await?;
/// let url = server.url();
/// // … connect to `url`, and see what a crash leaves, which is all that was answered:
/// server.kill().await?;
/// server.restart().await?;
/// # Ok(())
/// # }
/// ```
///
/// Tests that share a server must use different collections.
///
/// `drop` blocks the thread for a moment, until the server and its folder are gone.
/// [`stop`](Self::stop) does the same without blocking.
pub struct FerretDbServer {
    handle: Handle<FerretDbProduct>,
}

front!(FerretDbServer, FerretDbServerBuilder, FerretDbProduct, "EKBATAN_TEST_FERRETDB_URL");

impl FerretDbServer {
    /// The URL of the server, `mongodb://127.0.0.1:…/test`.
    pub fn url(&self) -> String {
        self.handle.url().to_string()
    }

    /// Runs an `update` command, written as extended JSON, in a database: at the PostgreSQL below, so
    /// that a test needs no client.
    ///
    /// # Errors
    ///
    /// Fails if the server does not answer, or refuses the command.
    pub async fn update(&self, database: &str, command: &str) -> Result<(), ServerError> {
        let data = FerretDbProduct::data_folder(self.handle.url()).await.unwrap_or_default();
        let options = PgConnectOptions::new()
            .socket(data.parent().unwrap_or(&data))
            .username(SUPERUSER)
            .database("postgres");
        let mut connection = PgConnection::connect_with(&options).await?;
        let [database, command] = [database, command].map(|text| text.replace('\'', "''"));
        let sql = format!("SELECT documentdb_api.update('{database}', '{command}')");
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await?;
        connection.close().await?;
        Ok(())
    }
}

/// Configures a private server before it starts, see [`FerretDbServer::builder`]. The settings are
/// those of the PostgreSQL below it.
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `start`"]
pub struct FerretDbServerBuilder {
    settings: Settings,
}

impl FerretDbServerBuilder {
    fn new() -> Self {
        Self { settings: Settings::new(&DEFAULTS) }
    }

    fn product(self) -> Result<FerretDbProduct, ServerError> {
        let folder = SEARCH.find(|| installed_here("ferretdb", "usr/sbin"))?;
        // It is there, or the folder would not have been found.
        let postgres = postgres(&folder).unwrap_or_default();
        Ok(FerretDbProduct { folder, postgres, settings: self.settings })
    }
}

/// The programs of the PostgreSQL that came with FerretDB.
fn postgres(folder: &Path) -> Option<PathBuf> {
    let versions = fs::read_dir(folder.parent()?.join("lib/postgresql")).ok()?;
    let programs = versions.flatten().map(|version| version.path().join("bin"));
    programs.into_iter().find(|programs| programs.join("postgres").is_file())
}

/// How both servers are prepared, started and recognised.
#[derive(Debug, Clone)]
struct FerretDbProduct {
    folder: PathBuf,
    postgres: PathBuf,
    settings: Settings,
}

impl FerretDbProduct {
    fn settings(&self, env: &ServerEnv) -> Vec<String> {
        let folder = env.folder().display().to_string();
        let this_server = format!("host={folder}");
        let private = [
            ("listen_addresses", ""),
            ("unix_socket_directories", folder.as_str()),
            ("shared_preload_libraries", "pg_cron,pg_documentdb_core,pg_documentdb"),
            ("cron.database_name", "postgres"),
            ("cron.host", folder.as_str()),
            ("documentdb.localhost_connection_string", this_server.as_str()),
        ];
        let settings = self.settings.with(&private);
        settings.flat_map(|(name, value)| ["-c".to_owned(), format!("{name}={value}")]).collect()
    }
}

impl Product for FerretDbProduct {
    const NAME: &'static str = "ferretdb";
    const SHARED_URL: &'static str = "EKBATAN_TEST_FERRETDB_URL";
    const EXAMPLE_URL: &'static str = "mongodb://host:port/database";
    const SHUTDOWN: &'static str = "TERM";
    const END: &'static str = "KILL";

    fn account(folder: &Path) -> Result<Account, ServerError> {
        Account::not_root(folder, SUPERUSER)
    }

    fn preparation(&self, env: &ServerEnv) -> Command {
        let mut command = env.command("sh");
        command.args(["-c", PREPARATION, "ekbatan-ferretdb"]).arg(&self.postgres);
        command.arg(env.folder()).args(self.settings(env));
        command
    }

    fn server(&self, env: &ServerEnv) -> Command {
        let mut command = env.command("sh");
        command.args(["-c", SERVERS, "ekbatan-ferretdb"]).arg(&self.postgres).arg(env.folder());
        command.arg(self.folder.join("ferretdb")).arg(env.port().to_string());
        command.args(self.settings(env));
        command
    }

    fn url(port: u16) -> DatabaseUrl {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        DatabaseUrl::new("mongodb", None, address, "test")
    }

    fn port_of(url: &DatabaseUrl) -> Result<u16, ServerError> {
        Ok(url.port().unwrap_or(27_017))
    }

    /// The server itself does not name its folder; its command line does.
    async fn data_folder(url: &DatabaseUrl) -> Option<PathBuf> {
        let port = url.port()?;
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.ok()?;
        tokio::task::spawn_blocking(move || folder_of(port).ok().flatten()).await.ok()?
    }
}

/// The data folder of the FerretDB that listens on a port.
fn folder_of(port: u16) -> io::Result<Option<PathBuf>> {
    let listens = format!("--listen-addr=127.0.0.1:{port}");
    for process in fs::read_dir("/proc")?.flatten() {
        let Ok(line) = fs::read(process.path().join("cmdline")) else { continue };
        let line = String::from_utf8_lossy(&line).into_owned();
        let mut words = line.split('\0');
        if words.clone().any(|word| word == listens)
            && let Some(folder) = words.find_map(|word| word.strip_prefix("--state-dir="))
        {
            return Ok(Path::new(folder).parent().map(|folder| folder.join("data")));
        }
    }
    Ok(None)
}
