//! Private Redis servers.
//!
//! Each [`RedisServer`] is a real server with its own folder and port. It accepts
//! connections from this machine only.
//!
//! Invariants: a server that `start` returned answers. Dropping the handle removes the
//! server and its folder. If the test process ends in any other way, `SIGKILL` included,
//! they are removed a moment later.

mod client;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::database_url::DatabaseUrl;
use crate::front::front;
use crate::server::{
    Handle, Product, ProgramSearch, ServerEnv, ServerError, Settings, installed_here, second_port,
    usual_places,
};

const SEARCH: ProgramSearch = ProgramSearch {
    server: "Redis",
    programs: "`redis-server`",
    install: "`scripts/install-servers`, or `apt-get install redis-server` on Debian and Ubuntu",
    variable: "EKBATAN_REDIS_BIN",
    example: "/usr/bin",
    is_complete: |folder: &Path| folder.join("redis-server").is_file(),
};

/// By default a server persists nothing.
const DEFAULTS: [(&str, &str); 2] = [("save", ""), ("appendonly", "no")];

/// A private Redis server, removed when it is dropped.
///
/// ```no_run
/// # use ekbatan_testkit::{RedisServer, ServerError};
/// # async fn example() -> Result<(), ServerError> {
/// let server = RedisServer::start().await?;
/// let url = server.url();
/// // … connect to `url`, and see what a crash leaves, which by default is nothing:
/// server.kill().await?;
/// server.restart().await?;
/// # Ok(())
/// # }
/// ```
///
/// A kill or restart loses all data, unless the builder sets `.setting("appendonly",
/// "yes")`. Tests that share a server must use different keys.
///
/// `drop` blocks the thread for a moment, until the server and its folder are gone.
/// [`stop`](Self::stop) does the same without blocking.
pub struct RedisServer {
    handle: Handle<RedisProduct>,
}

front!(RedisServer, RedisServerBuilder, RedisProduct, "EKBATAN_TEST_REDIS_URL");

impl RedisServer {
    /// The URL of the server, `redis://127.0.0.1:…/0`.
    pub fn url(&self) -> String {
        self.handle.url().to_string()
    }
}

/// Configures a private server before it starts, see [`RedisServer::builder`].
///
/// ```no_run
/// # use ekbatan_testkit::{RedisServer, ServerError};
/// # async fn example() -> Result<(), ServerError> {
/// let server = RedisServer::builder().setting("appendonly", "yes").start().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `start`"]
pub struct RedisServerBuilder {
    settings: Settings,
}

impl RedisServerBuilder {
    fn new() -> Self {
        Self { settings: Settings::new(&DEFAULTS) }
    }

    fn product(self) -> Result<RedisProduct, ServerError> {
        let folder = SEARCH.find(|| {
            let mut places = installed_here("redis", "usr/sbin");
            places.extend(usual_places());
            places
        })?;
        Ok(RedisProduct { folder, settings: self.settings })
    }
}

/// How Redis is prepared, started and recognised.
#[derive(Debug, Clone)]
struct RedisProduct {
    folder: PathBuf,
    settings: Settings,
}

impl Product for RedisProduct {
    const NAME: &'static str = "redis";
    const SHARED_URL: &'static str = "EKBATAN_TEST_REDIS_URL";
    const EXAMPLE_URL: &'static str = "redis://host:port/0";
    const SHUTDOWN: &'static str = "TERM";
    const END: &'static str = "KILL";

    fn preparation(&self, env: &ServerEnv) -> Command {
        // The server creates its files, but not its folder.
        let mut command = env.command("mkdir");
        command.arg(env.data());
        command
    }

    fn server(&self, env: &ServerEnv) -> Command {
        let (data, port) = (env.data().display().to_string(), env.port().to_string());
        let bus = second_port(env.port(), 0).to_string();
        let mut private = vec![
            ("bind", "127.0.0.1"),
            ("port", port.as_str()),
            ("unixsocket", ""),
            ("dir", data.as_str()),
            ("daemonize", "no"),
            ("logfile", ""),
        ];
        // By default the bus of a cluster listens 10,000 ports higher, where an outgoing connection
        // may have the port. Servers without a cluster may be too old to know the setting.
        if self.settings.has("cluster-enabled") {
            private.push(("cluster-port", bus.as_str()));
        }
        let mut command = env.command(self.folder.join("redis-server"));
        for (name, value) in self.settings.with(&private) {
            command.args([&format!("--{name}"), value]);
        }
        command
    }

    fn url(port: u16) -> DatabaseUrl {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        DatabaseUrl::new("redis", None, address, "0")
    }

    fn port_of(url: &DatabaseUrl) -> Result<u16, ServerError> {
        Ok(url.port().unwrap_or(client::DEFAULT_PORT))
    }

    async fn data_folder(url: &DatabaseUrl) -> Option<PathBuf> {
        client::data_folder(url.port()?).await
    }
}
