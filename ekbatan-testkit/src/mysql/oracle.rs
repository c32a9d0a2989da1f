//! MySQL, as Oracle makes it.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::client;
use super::parameters::{Parameters, USER, place_at};
use crate::database_url::DatabaseUrl;
use crate::server::{
    Handle, Place, Product, Search, ServerError, front, installed_here, usual_places,
};

const SEARCH: Search = Search {
    server: "MySQL",
    programs: "`mysqld` (one that is not MariaDB's)",
    install: "`scripts/install-servers`, or `apt-get install mysql-server-core-8.0` on Ubuntu",
    variable: "EKBATAN_MYSQL_BIN",
    example: "/opt/mysql/usr/sbin",
    is_complete,
};

/// Prepared with the same size as it is launched with, it does not have to be
/// made anew.
const REDO_LOG: (&str, &str) = ("innodb-redo-log-capacity", "64M");
const DEFAULTS: [(&str, &str); 3] = [REDO_LOG, ("mysqlx", "OFF"), ("secure-file-priv", "")];
const IDENTIFIERS: [(&str, &str); 2] = [("gtid-mode", "ON"), ("enforce-gtid-consistency", "ON")];

/// A MySQL server of one's own, gone when it is dropped.
///
/// ```no_run
/// # use ekbatan_testkit::{MySqlServer, ServerError};
/// # async fn example() -> Result<(), ServerError> {
/// let server = MySqlServer::start().await?;
/// let url = server.create_database().await?;
/// // … connect to `url`, write, and see what a crash leaves:
/// server.kill().await?;
/// server.restart().await?;
/// # Ok(())
/// # }
/// ```
///
/// It takes seconds to make one, so use [`shared`](Self::shared) where a test does
/// not kill it; restarting takes about one. Dropping it takes a moment, in which
/// the thread waits until server and folder are gone; [`stop`](Self::stop) waits
/// without blocking the thread.
pub struct MySqlServer {
    handle: Handle<MySql>,
}

front!(MySqlServer, MySqlServerBuilder, MySql, "EKBATAN_TEST_MYSQL_URL");

impl MySqlServer {
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

/// A private server that is yet to start, see [`MySqlServer::builder`].
///
/// ```no_run
/// # use ekbatan_testkit::{MySqlServer, ServerError};
/// # async fn example() -> Result<(), ServerError> {
/// let server = MySqlServer::builder()
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
pub struct MySqlServerBuilder {
    settings: Parameters,
}

impl MySqlServerBuilder {
    fn new() -> Self {
        Self { settings: Parameters::new(&DEFAULTS) }
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

    fn product(self) -> Result<MySql, ServerError> {
        let folder = SEARCH.find(|| {
            let mut places = installed_here("mysql");
            places.extend(usual_places());
            places
        })?;
        Ok(MySql { folder, parameters: self.settings })
    }
}

/// How MySQL is prepared, launched and recognised.
#[derive(Debug, Clone)]
struct MySql {
    folder: PathBuf,
    parameters: Parameters,
}

impl MySql {
    /// Where the server finds its messages and plugins.
    fn base(&self) -> &Path {
        self.folder.parent().unwrap_or(&self.folder)
    }

    fn mysqld(&self, place: &Place) -> Command {
        place.command(self.folder.join("mysqld"))
    }
}

impl Product for MySql {
    const NAME: &'static str = "mysql";
    const SHARED_URL: &'static str = "EKBATAN_TEST_MYSQL_URL";
    const EXAMPLE_URL: &'static str = "mysql://user@host:port/database";
    const SHUTDOWN: &'static str = "TERM";
    const END: &'static str = "KILL";

    fn preparation(&self, place: &Place) -> Command {
        let mut command = self.mysqld(place);
        place_at(&mut command, place, self.base());
        let (name, value) = REDO_LOG;
        command.args(["--initialize-insecure", &format!("--{name}={value}")]);
        command
    }

    fn server(&self, place: &Place) -> Command {
        let mut command = self.mysqld(place);
        self.parameters.pass_to(&mut command, place, self.base());
        command
    }

    fn url(port: u16) -> DatabaseUrl {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        DatabaseUrl::new("mysql", Some(USER), address, "mysql")
    }

    fn port_of(url: &DatabaseUrl) -> Result<u16, ServerError> {
        client::port_of(url)
    }

    async fn data_folder(url: &DatabaseUrl) -> Option<PathBuf> {
        client::data_folder(url).await
    }
}

fn is_complete(folder: &Path) -> bool {
    let program = folder.join("mysqld");
    if !program.is_file() {
        return false;
    }
    let output = Command::new(program).args(["--no-defaults", "--version"]).output();
    output.is_ok_and(|output| {
        output.status.success() && is_of_mysql(&String::from_utf8_lossy(&output.stdout))
    })
}

/// MariaDB brings a `mysqld` too, which only says by its version whose it is.
fn is_of_mysql(version: &str) -> bool {
    !version.contains("MariaDB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mysqld_of_mariadb_is_none() {
        assert!(is_of_mysql("mysqld  Ver 9.7.4-2 for Linux on x86_64 ((Debian))"));
        assert!(!is_of_mysql("mysqld  Ver 10.11.18-MariaDB-0+deb12u1 for debian-linux-gnu"));
        assert!(!is_complete(Path::new("/nowhere")));
    }
}
