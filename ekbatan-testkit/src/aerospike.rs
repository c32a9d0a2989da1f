//! Private Aerospike servers.
//!
//! Each [`AerospikeServer`] is a real cluster of one node with its own folder and ports, and one
//! namespace, `test`, in memory. It accepts connections from this machine only.
//!
//! Aerospike has no package in distributions. The environment variable `EKBATAN_AEROSPIKE_BIN` names
//! the folder of its program `asd`.
//!
//! Invariants: a server that `start` returned answers. Dropping the handle removes the
//! server and its folder. If the test process ends in any other way, `SIGKILL` included,
//! they are removed a moment later.

mod client;
mod config;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::database_url::DatabaseUrl;
use crate::front::front;
use crate::server::{
    Handle, Product, ProgramSearch, ServerEnv, ServerError, Settings, installed_here, usual_places,
};

const SEARCH: ProgramSearch = ProgramSearch {
    server: "Aerospike",
    programs: "`asd`",
    install: "from Aerospike's packages, or build it from its sources",
    variable: "EKBATAN_AEROSPIKE_BIN",
    example: "/usr/bin",
    is_complete: |folder: &Path| folder.join("asd").is_file(),
};

/// The namespace of every server.
const NAMESPACE: &str = "test";

/// The settings of the namespace. Without a period, records never expire.
const DEFAULTS: [(&str, &str); 3] =
    [("replication-factor", "1"), ("nsup-period", "1"), ("default-ttl", "0")];

/// A private Aerospike server, removed when it is dropped.
///
/// ```no_run
/// # use ekbatan_testkit::{AerospikeServer, ServerError};
/// # async fn example() -> Result<(), ServerError> {
/// let server = AerospikeServer::start().await?;
/// let url = server.url();
/// // … connect to `url`, and see what a crash leaves: nothing, because the data are in memory.
/// server.kill().await?;
/// server.restart().await?;
/// # Ok(())
/// # }
/// ```
///
/// Tests that share a server must use different sets.
///
/// `drop` blocks the thread for a moment, until the server and its folder are gone.
/// [`stop`](Self::stop) does the same without blocking.
pub struct AerospikeServer {
    handle: Handle<AerospikeProduct>,
}

front!(AerospikeServer, AerospikeServerBuilder, AerospikeProduct, "EKBATAN_TEST_AEROSPIKE_URL");

impl AerospikeServer {
    /// The URL of the server with its namespace, `aerospike://127.0.0.1:…/test`.
    pub fn url(&self) -> String {
        self.handle.url().to_string()
    }

    /// The answer to a request for information, such as `namespace/test`.
    ///
    /// # Errors
    ///
    /// Fails if the server does not answer.
    pub async fn info(&self, command: &str) -> Result<String, ServerError> {
        client::info(self.port(), command).await.map_err(ServerError::requesting(command))
    }
}

/// Configures a private server before it starts, see [`AerospikeServer::builder`]. The settings are
/// those of its namespace; `storage.evict-used-pct` is one of the storage of the namespace.
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `start`"]
pub struct AerospikeServerBuilder {
    settings: Settings,
}

impl AerospikeServerBuilder {
    fn new() -> Self {
        Self { settings: Settings::new(&DEFAULTS) }
    }

    fn product(self) -> Result<AerospikeProduct, ServerError> {
        let folder = SEARCH.find(|| {
            let mut places = installed_here("aerospike", "usr/sbin");
            places.extend(usual_places());
            places
        })?;
        Ok(AerospikeProduct { folder, settings: self.settings })
    }
}

/// How Aerospike is prepared, started and recognised.
#[derive(Debug, Clone)]
struct AerospikeProduct {
    folder: PathBuf,
    settings: Settings,
}

/// Writes the configuration: $1 the folder of the data, $2 the text, $3 the program, $4 the file.
const SERVER: &str = r#"printf '%s' "$2" >"$4" && exec "$3" --config-file "$4" --foreground"#;

impl Product for AerospikeProduct {
    const NAME: &'static str = "aerospike";
    const SHARED_URL: &'static str = "EKBATAN_TEST_AEROSPIKE_URL";
    const EXAMPLE_URL: &'static str = "aerospike://host:port/namespace";
    const SHUTDOWN: &'static str = "TERM";
    const END: &'static str = "KILL";

    fn preparation(&self, env: &ServerEnv) -> Command {
        let mut command = env.command("mkdir");
        command.args(["-p"]).arg(env.data().join("smd")).arg(env.data().join("lua"));
        command
    }

    fn server(&self, env: &ServerEnv) -> Command {
        let config = config::text(NAMESPACE, &env.data(), env.port(), &self.settings);
        let mut command = env.command("sh");
        command.args(["-c", SERVER, "ekbatan-aerospike"]).arg(env.data()).arg(config);
        command.arg(self.folder.join("asd")).arg(env.folder().join("aerospike.conf"));
        command
    }

    fn url(port: u16) -> DatabaseUrl {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        DatabaseUrl::new("aerospike", None, address, NAMESPACE)
    }

    fn port_of(url: &DatabaseUrl) -> Result<u16, ServerError> {
        Ok(url.port().unwrap_or(client::DEFAULT_PORT))
    }

    async fn data_folder(url: &DatabaseUrl) -> Option<PathBuf> {
        client::data_folder(url.port()?).await
    }
}
