//! One kind of server, such as PostgreSQL: how it is prepared, started and recognised.

use std::ffi::OsStr;
use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::account::Account;
use super::error::ServerError;
use crate::database_url::DatabaseUrl;

/// The differences between the kinds of servers.
pub(crate) trait Product: fmt::Debug + Send + Sized + 'static {
    /// The name, as part of folder names.
    const NAME: &'static str;
    /// The environment variable with the URL of a server to share.
    const SHARED_URL: &'static str;
    /// An example for that variable.
    const EXAMPLE_URL: &'static str;
    /// The signal for an orderly shutdown that does not wait for clients.
    const SHUTDOWN: &'static str;
    /// The signal that ends the server and all its processes at once.
    const END: &'static str;

    /// The account that runs a server in `folder`.
    fn account(folder: &Path) -> Result<Account, ServerError> {
        Account::current(folder)
    }

    /// The command that must finish before a new server starts.
    fn preparation(&self, env: &ServerEnv) -> Command;

    /// The command that runs the server in the foreground.
    fn server(&self, env: &ServerEnv) -> Command;

    /// The URL of a private server.
    fn url(port: u16) -> DatabaseUrl;

    /// The port of the URL of any server.
    fn port_of(url: &DatabaseUrl) -> Result<u16, ServerError>;

    /// The data folder that the server at `url` reports, if it accepts connections.
    fn data_folder(url: &DatabaseUrl) -> impl Future<Output = Option<PathBuf>> + Send;
}

/// The account, folder and port of a private server.
#[derive(Debug)]
pub(crate) struct ServerEnv {
    pub(super) account: Account,
    pub(super) folder: PathBuf,
    pub(super) port: u16,
}

impl ServerEnv {
    /// The server's folder, which is removed with the server.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The data folder, as the server reports it.
    pub(crate) fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Whether the server runs as root, which MySQL and MariaDB do only with `--user=root`.
    #[cfg(feature = "mysql")]
    pub(crate) fn runs_as_root(&self) -> bool {
        matches!(self.account, Account::Root)
    }

    /// A command that runs under the server's account.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        self.account.command(program)
    }
}
