//! Private Redis servers.
//!
//! Each [`RedisServer`] is a real server with a folder and a port of its own,
//! reachable from this machine only. What always holds: a server that has been
//! handed out answers; once its handle is dropped, the server and its folder are
//! gone; and if the test process ends in any other way, `SIGKILL` included, they
//! are gone a moment later.

mod client;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::database_url::DatabaseUrl;
use crate::server::{
    Handle, Place, Product, Search, ServerError, Settings, front, installed_here, usual_places,
};

const SEARCH: Search = Search {
    server: "Redis",
    programs: "`redis-server`",
    install: "`scripts/install-servers`, or `apt-get install redis-server` on Debian and Ubuntu",
    variable: "EKBATAN_REDIS_BIN",
    example: "/usr/bin",
    is_complete: |folder: &Path| folder.join("redis-server").is_file(),
};

/// Unless asked otherwise, a server keeps nothing.
const DEFAULTS: [(&str, &str); 2] = [("save", ""), ("appendonly", "no")];

/// A Redis server of one's own, gone when it is dropped.
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
/// It forgets everything when it is killed or restarted, unless its builder was
/// asked for `.setting("appendonly", "yes")`. Tests that share one have to use
/// keys of their own.
///
/// Dropping it takes a moment, in which the thread waits until server and folder
/// are gone; [`stop`](Self::stop) waits without blocking the thread.
pub struct RedisServer {
    handle: Handle<Redis>,
}

front!(RedisServer, RedisServerBuilder, Redis, "EKBATAN_TEST_REDIS_URL");

impl RedisServer {
    /// The address of the server, `redis://127.0.0.1:…/0`.
    pub fn url(&self) -> String {
        self.handle.url().to_string()
    }
}

/// A private server that is yet to start, see [`RedisServer::builder`].
///
/// ```no_run
/// # use ekbatan_testkit::{RedisServer, ServerError};
/// # async fn example() -> Result<(), ServerError> {
/// let server = RedisServer::builder().setting("appendonly", "yes").start().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "does nothing until it is started"]
pub struct RedisServerBuilder {
    settings: Settings,
}

impl RedisServerBuilder {
    fn new() -> Self {
        Self { settings: Settings::new(&DEFAULTS) }
    }

    fn product(self) -> Result<Redis, ServerError> {
        let folder = SEARCH.find(|| {
            let mut places = installed_here("redis");
            places.extend(usual_places());
            places
        })?;
        Ok(Redis { folder, settings: self.settings })
    }
}

/// How Redis is prepared, launched and recognised.
#[derive(Debug, Clone)]
struct Redis {
    folder: PathBuf,
    settings: Settings,
}

impl Product for Redis {
    const NAME: &'static str = "redis";
    const SHARED_URL: &'static str = "EKBATAN_TEST_REDIS_URL";
    const EXAMPLE_URL: &'static str = "redis://host:port/0";
    const SHUTDOWN: &'static str = "TERM";
    const END: &'static str = "KILL";

    fn preparation(&self, place: &Place) -> Command {
        // The server makes itself at home, but not the home.
        let mut command = place.command("mkdir");
        command.arg(place.data());
        command
    }

    fn server(&self, place: &Place) -> Command {
        let (data, port) = (place.data().display().to_string(), place.port().to_string());
        let private = [
            ("bind", "127.0.0.1"),
            ("port", port.as_str()),
            ("unixsocket", ""),
            ("dir", data.as_str()),
            ("daemonize", "no"),
            ("logfile", ""),
        ];
        let mut command = place.command(self.folder.join("redis-server"));
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
        Ok(url.port().unwrap_or(client::USUAL_PORT))
    }

    async fn data_folder(url: &DatabaseUrl) -> Option<PathBuf> {
        client::data_folder(url.port()?).await
    }
}
