//! What private servers of every kind have in common.
//!
//! A [`Product`] says how one kind is prepared, launched and recognised; all the
//! rest is here. What always holds: a server that has been handed out accepts
//! connections; once its handle is dropped, the server, its processes and its
//! folder are gone; and if the test process ends in any other way, `SIGKILL`
//! included, they are gone a moment later.

mod account;
mod error;
mod front;
mod handle;
mod instance;
mod port;
mod processes;
mod programs;
mod reaper;
mod settings;
mod waiting;

use std::ffi::OsStr;
use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::Command;

use uuid::Uuid;

use crate::database_url::DatabaseUrl;

pub(crate) use account::Account;
pub use error::ServerError;
pub(crate) use front::front;
pub(crate) use handle::Handle;
pub(crate) use programs::{Search, installed_here, usual_places};
pub(crate) use settings::Settings;

/// What tells one kind of server from another.
pub(crate) trait Product: fmt::Debug + Send + Sized + 'static {
    /// Its name, as part of the names of folders.
    const NAME: &'static str;
    /// The environment variable that names a server to use as the shared one.
    const SHARED_URL: &'static str;
    /// An address that this variable could have.
    const EXAMPLE_URL: &'static str;
    /// The signal that ends the server in good order, without waiting for
    /// clients to leave.
    const SHUTDOWN: &'static str;
    /// The signal that ends the server at once, along with all its processes.
    const END: &'static str;

    /// Whom a server in `folder` runs as.
    fn account(folder: &Path) -> Result<Account, ServerError> {
        Account::ours(folder)
    }

    /// What has to run, to its end, before a new server is launched.
    fn preparation(&self, place: &Place) -> Command;

    /// What runs the server, and stays in the foreground.
    fn server(&self, place: &Place) -> Command;

    /// The address of a private server.
    fn url(port: u16) -> DatabaseUrl;

    /// The port of any server's address.
    fn port_of(url: &DatabaseUrl) -> Result<u16, ServerError>;

    /// The data folder of the server at `url`, as it says itself, if it accepts
    /// connections.
    fn data_folder(url: &DatabaseUrl) -> impl Future<Output = Option<PathBuf>> + Send;
}

/// Where a server runs, and as whom.
#[derive(Debug)]
pub(crate) struct Place {
    account: Account,
    folder: PathBuf,
    port: u16,
}

impl Place {
    /// The server's folder, which goes with it.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where the server keeps its data, as it would say itself.
    pub(crate) fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Whether the server runs as root, which some have to be told.
    #[cfg(feature = "mysql")]
    pub(crate) fn is_roots(&self) -> bool {
        matches!(self.account, Account::Root)
    }

    /// A program that runs as the server does.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        self.account.command(program)
    }
}

/// A name for a database that no other has, and that needs no quoting.
pub(crate) fn fresh_name() -> String {
    format!("test_{}", Uuid::now_v7().simple())
}
