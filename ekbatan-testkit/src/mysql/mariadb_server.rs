//! MariaDB.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::family::{Brand, Installed, base_of};
use super::front::mysql_front;
use super::parameters::Parameters;
use crate::server::{Handle, ProgramSearch, ServerEnv};

/// A private MariaDB server, removed when it is dropped.
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
/// `drop` blocks the thread for a moment, until the server and its folder are gone.
/// [`stop`](Self::stop) does the same without blocking.
pub struct MariaDbServer {
    handle: Handle<Installed<MariaDbBrand>>,
}

/// Configures a private server before it starts, see [`MariaDbServer::builder`].
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
#[must_use = "a builder does nothing until `start`"]
pub struct MariaDbServerBuilder {
    settings: Parameters,
}

mysql_front!(MariaDbServer, MariaDbServerBuilder, MariaDbBrand, "EKBATAN_TEST_MARIADB_URL");

#[derive(Debug, Clone)]
struct MariaDbBrand;

impl Brand for MariaDbBrand {
    const NAME: &'static str = "mariadb";
    const SHARED_URL: &'static str = "EKBATAN_TEST_MARIADB_URL";
    const EXAMPLE_URL: &'static str = "mariadb://user@host:port/database";
    const SEARCH: ProgramSearch = ProgramSearch {
        server: "MariaDB",
        programs: "`mariadbd`, with `mariadb-install-db` in the same folder or in `../bin` or \
                   `../scripts`",
        install: "`scripts/install-servers`, or `apt-get install mariadb-server-core \
                  mariadb-client-core` on Debian and Ubuntu",
        variable: "EKBATAN_MARIADB_BIN",
        example: "/usr/sbin",
        is_complete,
    };
    const SERVER: &'static str = "mariadbd";
    const DEFAULTS: &'static [(&'static str, &'static str)] = &[];
    const GTID: &'static [(&'static str, &'static str)] = &[("gtid-strict-mode", "ON")];

    fn preparation(programs: &Path, env: &ServerEnv) -> Command {
        let program = install_db(programs).unwrap_or_else(|| "mariadb-install-db".into());
        let mut command = env.command(program);
        command
            .arg("--no-defaults")
            .arg(format!("--basedir={}", base_of(programs).display()))
            .arg(format!("--datadir={}", env.data().display()))
            .arg("--auth-root-authentication-method=normal")
            // No host names, which take time to look up, and no test database. No `--user` for
            // root: the script would also change the owner of installed programs.
            .args(["--force", "--skip-name-resolve", "--skip-test-db"]);
        command
    }
}

/// The script that prepares a data folder. Distributions install it in different folders.
fn install_db(programs: &Path) -> Option<PathBuf> {
    let base = base_of(programs);
    let places = [programs.to_owned(), base.join("bin"), base.join("scripts")];
    places.map(|place| place.join("mariadb-install-db")).into_iter().find(|file| file.is_file())
}

fn is_complete(folder: &Path) -> bool {
    folder.join("mariadbd").is_file() && install_db(folder).is_some()
}
