//! MariaDB.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::client;
use super::parameters::{Parameters, USER};
use crate::database_url::DatabaseUrl;
use crate::server::{
    Handle, Place, Product, Search, ServerError, front, installed_here, usual_places,
};

const SEARCH: Search = Search {
    server: "MariaDB",
    programs: "`mariadbd`, with `mariadb-install-db` there or in the folder `bin` or `scripts` \
               next to it",
    install: "`scripts/install-servers`, or `apt-get install mariadb-server-core \
              mariadb-client-core` on Debian and Ubuntu",
    variable: "EKBATAN_MARIADB_BIN",
    example: "/usr/sbin",
    is_complete,
};

const IDENTIFIERS: [(&str, &str); 1] = [("gtid-strict-mode", "ON")];

/// A MariaDB server of one's own, gone when it is dropped.
///
/// ```no_run
/// # use ekbatan_testkit::{MariaDbServer, ServerError};
/// # async fn example() -> Result<(), ServerError> {
/// let server = MariaDbServer::start().await?;
/// let url = server.create_database().await?;
/// // … connect to `url`, write, and see what a crash leaves:
/// server.kill().await?;
/// server.restart().await?;
/// # Ok(())
/// # }
/// ```
///
/// Dropping it takes a moment, in which the thread waits until server and folder
/// are gone; [`stop`](Self::stop) waits without blocking the thread.
pub struct MariaDbServer {
    handle: Handle<MariaDb>,
}

front!(MariaDbServer, MariaDbServerBuilder, MariaDb, "EKBATAN_TEST_MARIADB_URL");

impl MariaDbServer {
    /// The address of one of the server's databases.
    pub fn url(&self, database: &str) -> String {
        self.handle.url().clone().with_database(database).to_string()
    }

    /// Creates an empty database with a name that no other has, and returns its
    /// address. Other databases of the server can be used from it, see the
    /// [module](super).
    ///
    /// # Errors
    ///
    /// When the server does not accept connections.
    pub async fn create_database(&self) -> Result<String, ServerError> {
        client::create_database(self.handle.url()).await
    }
}

/// A private server that is yet to start, see [`MariaDbServer::builder`].
///
/// ```no_run
/// # use ekbatan_testkit::{MariaDbServer, ServerError};
/// # async fn example() -> Result<(), ServerError> {
/// let server = MariaDbServer::builder()
///     .durable()
///     .binlog()
///     .setting("default-time-zone", "+05:30")
///     .start()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "does nothing until it is started"]
pub struct MariaDbServerBuilder {
    settings: Parameters,
}

impl MariaDbServerBuilder {
    fn new() -> Self {
        Self { settings: Parameters::new(&[]) }
    }

    /// Makes the server write to disk before it acknowledges a commit, as it
    /// does in production. Off by default, because it costs time and killing a
    /// server does not lose what the operating system already has.
    pub fn durable(mut self) -> Self {
        self.settings.durable();
        self
    }

    /// Makes the server keep a binary log with global transaction identifiers,
    /// from which others can follow it. Off by default.
    pub fn binlog(mut self) -> Self {
        self.settings.binlog(&IDENTIFIERS);
        self
    }

    fn product(self) -> Result<MariaDb, ServerError> {
        let folder = SEARCH.find(|| {
            let mut places = installed_here("mariadb");
            places.extend(usual_places());
            places
        })?;
        Ok(MariaDb { folder, parameters: self.settings })
    }
}

/// How MariaDB is prepared, launched and recognised.
#[derive(Debug, Clone)]
struct MariaDb {
    folder: PathBuf,
    parameters: Parameters,
}

impl MariaDb {
    /// Where the server finds its messages and plugins.
    fn base(&self) -> &Path {
        base_of(&self.folder)
    }
}

impl Product for MariaDb {
    const NAME: &'static str = "mariadb";
    const SHARED_URL: &'static str = "EKBATAN_TEST_MARIADB_URL";
    const EXAMPLE_URL: &'static str = "mariadb://user@host:port/database";
    const SHUTDOWN: &'static str = "TERM";
    const END: &'static str = "KILL";

    fn preparation(&self, place: &Place) -> Command {
        let program = install_db(&self.folder).unwrap_or_else(|| "mariadb-install-db".into());
        let mut command = place.command(program);
        command
            .arg("--no-defaults")
            .arg(format!("--basedir={}", self.base().display()))
            .arg(format!("--datadir={}", place.data().display()))
            .arg("--auth-root-authentication-method=normal")
            // Neither names of hosts, which take time to look up, nor what nobody
            // needs. No `--user` for root: it would not only be that of the
            // server, but also get programs of the installation.
            .args(["--force", "--skip-name-resolve", "--skip-test-db"]);
        command
    }

    fn server(&self, place: &Place) -> Command {
        let mut command = place.command(self.folder.join("mariadbd"));
        self.parameters.pass_to(&mut command, place, self.base());
        command
    }

    fn url(port: u16) -> DatabaseUrl {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        DatabaseUrl::new("mariadb", Some(USER), address, "mysql")
    }

    fn port_of(url: &DatabaseUrl) -> Result<u16, ServerError> {
        client::port_of(url)
    }

    async fn data_folder(url: &DatabaseUrl) -> Option<PathBuf> {
        client::data_folder(url).await
    }
}

fn base_of(folder: &Path) -> &Path {
    folder.parent().unwrap_or(folder)
}

/// The script that prepares a new server. It belongs to the server, and systems
/// differ in which folder it is in.
fn install_db(folder: &Path) -> Option<PathBuf> {
    let base = base_of(folder);
    let places = [folder.to_owned(), base.join("bin"), base.join("scripts")];
    places.map(|place| place.join("mariadb-install-db")).into_iter().find(|file| file.is_file())
}

fn is_complete(folder: &Path) -> bool {
    folder.join("mariadbd").is_file() && install_db(folder).is_some()
}
