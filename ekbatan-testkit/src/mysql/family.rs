//! What MySQL and MariaDB share: how a server is found, started and recognised.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::client;
use super::parameters::{Parameters, USER};
use crate::database_url::DatabaseUrl;
use crate::server::{Product, ProgramSearch, ServerEnv, ServerError, installed_here, usual_places};

/// The differences between MySQL and MariaDB.
pub(super) trait Brand: fmt::Debug + Clone + Send + Sync + 'static {
    /// The scheme of its URLs, also part of folder names.
    const NAME: &'static str;
    /// The environment variable with the URL of a server to share.
    const SHARED_URL: &'static str;
    /// An example for that variable.
    const EXAMPLE_URL: &'static str;
    /// How its programs are found.
    const SEARCH: ProgramSearch;
    /// The program of the server.
    const SERVER: &'static str;
    /// The default parameters that only this brand has.
    const DEFAULTS: &'static [(&'static str, &'static str)];
    /// The parameters that add global transaction identifiers to the binary log.
    const GTID: &'static [(&'static str, &'static str)];

    /// The command that prepares a new data folder.
    fn preparation(programs: &Path, env: &ServerEnv) -> Command;
}

/// An installed server and its parameters.
#[derive(Debug, Clone)]
pub(super) struct Installed<B> {
    programs: PathBuf,
    parameters: Parameters,
    brand: std::marker::PhantomData<B>,
}

impl<B: Brand> Installed<B> {
    pub(super) fn find(parameters: Parameters) -> Result<Self, ServerError> {
        let programs = B::SEARCH.find(|| {
            let mut places = installed_here(B::NAME, "usr/sbin");
            places.extend(usual_places());
            places
        })?;
        Ok(Self { programs, parameters, brand: std::marker::PhantomData })
    }
}

/// The folder in which the server finds its messages and plugins.
pub(super) fn base_of(programs: &Path) -> &Path {
    programs.parent().unwrap_or(programs)
}

impl<B: Brand> Product for Installed<B> {
    const NAME: &'static str = B::NAME;
    const SHARED_URL: &'static str = B::SHARED_URL;
    const EXAMPLE_URL: &'static str = B::EXAMPLE_URL;
    const SHUTDOWN: &'static str = "TERM";
    const END: &'static str = "KILL";

    fn preparation(&self, env: &ServerEnv) -> Command {
        B::preparation(&self.programs, env)
    }

    fn server(&self, env: &ServerEnv) -> Command {
        let mut command = env.command(self.programs.join(B::SERVER));
        self.parameters.pass_to(&mut command, env, base_of(&self.programs));
        command
    }

    fn url(port: u16) -> DatabaseUrl {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        DatabaseUrl::new(B::NAME, Some(USER), address, "mysql")
    }

    fn port_of(url: &DatabaseUrl) -> Result<u16, ServerError> {
        client::port_of(url)
    }

    async fn data_folder(url: &DatabaseUrl) -> Option<PathBuf> {
        client::data_folder(url).await
    }
}
