//! Private etcd servers.
//!
//! Each [`EtcdServer`] is a real cluster of one member with its own folder and port. It accepts
//! connections from this machine only.
//!
//! Invariants: a server that `start` returned answers. Dropping the handle removes the
//! server and its folder. If the test process ends in any other way, `SIGKILL` included,
//! they are removed a moment later.

mod client;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::database_url::DatabaseUrl;
use crate::front::front;
use crate::server::{
    Handle, Product, ProgramSearch, ServerEnv, ServerError, Settings, installed_here, usual_places,
};

const SEARCH: ProgramSearch = ProgramSearch {
    server: "etcd",
    programs: "`etcd`",
    install: "`scripts/install-servers`, or `apt-get install etcd-server` on Debian and Ubuntu",
    variable: "EKBATAN_ETCD_BIN",
    example: "/usr/bin",
    is_complete: |folder: &Path| folder.join("etcd").is_file(),
};

/// The shortest lease of a server is one and a half of its election timeout, rounded up to
/// seconds. By default that would be two seconds.
const DEFAULTS: [(&str, &str); 2] = [("heartbeat-interval", "50"), ("election-timeout", "500")];

/// A private etcd server, removed when it is dropped.
///
/// ```no_run
/// # use ekbatan_testkit::{EtcdServer, ServerError};
/// # async fn example() -> Result<(), ServerError> {
/// let server = EtcdServer::start().await?;
/// let url = server.url();
/// // … connect to `url`, and see what a crash leaves, which is all that was answered:
/// server.kill().await?;
/// server.restart().await?;
/// # Ok(())
/// # }
/// ```
///
/// Tests that share a server must use different keys.
///
/// `drop` blocks the thread for a moment, until the server and its folder are gone.
/// [`stop`](Self::stop) does the same without blocking.
pub struct EtcdServer {
    handle: Handle<EtcdProduct>,
}

front!(EtcdServer, EtcdServerBuilder, EtcdProduct, "EKBATAN_TEST_ETCD_URL");

impl EtcdServer {
    /// The URL of the server, `etcd://127.0.0.1:…`.
    pub fn url(&self) -> String {
        self.handle.url().to_string().trim_end_matches('/').to_owned()
    }

    /// The names of the keys that begin like this, in order.
    ///
    /// # Errors
    ///
    /// Fails if the server does not answer.
    pub async fn keys(&self, prefix: &str) -> Result<Vec<String>, ServerError> {
        let answer = self.request("/v3/kv/range", &client::range(prefix)).await?;
        Ok(client::keys(&answer))
    }

    /// Writes a key, without a lease.
    ///
    /// # Errors
    ///
    /// Fails if the server does not answer, or answers with an error.
    pub async fn put(&self, key: &str, value: &str) -> Result<(), ServerError> {
        let path = "/v3/kv/put";
        let answer = self.request(path, &client::put(key, value)).await?;
        if answer.starts_with("HTTP/1.1 200 ") {
            return Ok(());
        }
        Err(ServerError::requesting(path)(io::Error::other(answer)))
    }

    /// Removes the keys that begin like this.
    ///
    /// # Errors
    ///
    /// Fails if the server does not answer.
    pub async fn delete(&self, prefix: &str) -> Result<(), ServerError> {
        self.request("/v3/kv/deleterange", &client::range(prefix)).await.map(drop)
    }

    /// Sends a request to the server's gateway for JSON, such as `/v3/auth/enable` with `{}`, and
    /// returns the answer, which may be an error of the server.
    ///
    /// # Errors
    ///
    /// Fails if the server does not answer.
    pub async fn request(&self, path: &str, json: &str) -> Result<String, ServerError> {
        client::http(self.port(), &format!("POST {path}"), json)
            .await
            .map_err(ServerError::requesting(path))
    }

    /// Kills the server if it runs, removes its data, and starts it again.
    ///
    /// # Errors
    ///
    /// Like [`kill`](Self::kill) and [`restart`](Self::restart), or if the data cannot be removed.
    pub async fn lose_data(&self) -> Result<(), ServerError> {
        self.kill().await?;
        self.handle.lose_data().await?;
        self.restart().await
    }
}

/// Configures a private server before it starts, see [`EtcdServer::builder`].
///
/// ```no_run
/// # use ekbatan_testkit::{EtcdServer, ServerError};
/// # async fn example() -> Result<(), ServerError> {
/// let server = EtcdServer::builder().setting("election-timeout", "1000").start().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `start`"]
pub struct EtcdServerBuilder {
    settings: Settings,
}

impl EtcdServerBuilder {
    fn new() -> Self {
        Self { settings: Settings::new(&DEFAULTS) }
    }

    fn product(self) -> Result<EtcdProduct, ServerError> {
        let folder = SEARCH.find(|| {
            let mut places = installed_here("etcd", "usr/sbin");
            places.extend(usual_places());
            places
        })?;
        Ok(EtcdProduct { folder, settings: self.settings })
    }
}

/// How etcd is prepared, started and recognised.
#[derive(Debug, Clone)]
struct EtcdProduct {
    folder: PathBuf,
    settings: Settings,
}

impl Product for EtcdProduct {
    const NAME: &'static str = "etcd";
    const SHARED_URL: &'static str = "EKBATAN_TEST_ETCD_URL";
    const EXAMPLE_URL: &'static str = "etcd://host:port";
    const SHUTDOWN: &'static str = "TERM";
    const END: &'static str = "KILL";

    fn preparation(&self, env: &ServerEnv) -> Command {
        // The server wants a folder that nobody else can read.
        let mut command = env.command("mkdir");
        command.args(["-m", "700"]).arg(env.data());
        command
    }

    fn server(&self, env: &ServerEnv) -> Command {
        let data = env.data().display().to_string();
        let clients = format!("http://{}", SocketAddr::from((Ipv4Addr::LOCALHOST, env.port())));
        // No other member connects to the only one, so any free port will do.
        let peers = "http://127.0.0.1:0";
        // Its name says which server this is, because nothing else of it names the folder.
        let cluster = format!("{data}={peers}");
        let private = [
            ("name", data.as_str()),
            ("data-dir", data.as_str()),
            ("listen-client-urls", clients.as_str()),
            ("advertise-client-urls", clients.as_str()),
            ("listen-peer-urls", peers),
            ("initial-advertise-peer-urls", peers),
            ("initial-cluster", cluster.as_str()),
        ];
        let mut command = env.command(self.folder.join("etcd"));
        for (name, value) in self.settings.with(&private) {
            command.arg(format!("--{name}={value}"));
        }
        command
    }

    fn url(port: u16) -> DatabaseUrl {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        DatabaseUrl::new("etcd", None, address, "")
    }

    fn port_of(url: &DatabaseUrl) -> Result<u16, ServerError> {
        Ok(url.port().unwrap_or(client::DEFAULT_PORT))
    }

    async fn data_folder(url: &DatabaseUrl) -> Option<PathBuf> {
        client::data_folder(url.port()?).await
    }
}
