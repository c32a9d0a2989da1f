//! MySQL.

use std::path::Path;
use std::process::Command;

use super::family::{Brand, Installed, base_of};
use super::front::mysql_front;
use super::parameters::{Parameters, set_folders};
use crate::server::{Handle, ProgramSearch, ServerEnv};

/// A private MySQL server, removed when it is dropped.
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
/// A new server takes seconds to start, a restart about one second. Use
/// [`shared`](Self::shared) where a test does not kill the server.
///
/// `drop` blocks the thread for a moment, until the server and its folder are gone.
/// [`stop`](Self::stop) does the same without blocking.
pub struct MySqlServer {
    handle: Handle<Installed<MySqlBrand>>,
}

/// Configures a private server before it starts, see [`MySqlServer::builder`].
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
#[must_use = "a builder does nothing until `start`"]
pub struct MySqlServerBuilder {
    settings: Parameters,
}

mysql_front!(MySqlServer, MySqlServerBuilder, MySqlBrand, "EKBATAN_TEST_MYSQL_URL");

/// Preparation and launch use the same size; otherwise the server recreates its redo log at the
/// first start.
const REDO_LOG: (&str, &str) = ("innodb-redo-log-capacity", "64M");

/// Each server would reserve some of the kernel's requests for asynchronous input and output, of
/// which a machine with the usual limit has enough for 28 servers. The next one does not start.
const OWN_THREADS_FOR_FILES: (&str, &str) = ("innodb-use-native-aio", "OFF");

#[derive(Debug, Clone)]
struct MySqlBrand;

impl Brand for MySqlBrand {
    const NAME: &'static str = "mysql";
    const SHARED_URL: &'static str = "EKBATAN_TEST_MYSQL_URL";
    const EXAMPLE_URL: &'static str = "mysql://user@host:port/database";
    const SEARCH: ProgramSearch = ProgramSearch {
        server: "MySQL",
        programs: "`mysqld` (MySQL's, not MariaDB's)",
        install: "`scripts/install-servers`, or `apt-get install mysql-server-core-8.0` on Ubuntu",
        variable: "EKBATAN_MYSQL_BIN",
        example: "/opt/mysql/usr/sbin",
        is_complete,
    };
    const SERVER: &'static str = "mysqld";
    const DEFAULTS: &'static [(&'static str, &'static str)] =
        &[REDO_LOG, OWN_THREADS_FOR_FILES, ("mysqlx", "OFF"), ("secure-file-priv", "")];
    const GTID: &'static [(&'static str, &'static str)] =
        &[("gtid-mode", "ON"), ("enforce-gtid-consistency", "ON")];

    fn preparation(programs: &Path, env: &ServerEnv) -> Command {
        let mut command = env.command(programs.join(Self::SERVER));
        set_folders(&mut command, env, base_of(programs));
        command.arg("--initialize-insecure");
        for (name, value) in [REDO_LOG, OWN_THREADS_FOR_FILES] {
            command.arg(format!("--{name}={value}"));
        }
        command
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

/// MariaDB also installs a `mysqld`; only the version tells the two apart.
fn is_of_mysql(version: &str) -> bool {
    !version.contains("MariaDB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mysqld_of_mariadb_is_rejected() {
        assert!(is_of_mysql("mysqld  Ver 9.7.4-2 for Linux on x86_64 ((Debian))"));
        assert!(!is_of_mysql("mysqld  Ver 10.11.18-MariaDB-0+deb12u1 for debian-linux-gnu"));
        assert!(!is_complete(Path::new("/nowhere")));
    }
}
