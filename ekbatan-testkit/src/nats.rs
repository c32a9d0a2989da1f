//! Private NATS servers with JetStream.
//!
//! Each [`NatsServer`] is a real server with its own folder and port. It accepts connections from this
//! machine only.
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
    Handle, Product, ProgramSearch, ServerEnv, ServerError, Settings, installed_here, usual_places,
};

const SEARCH: ProgramSearch = ProgramSearch {
    server: "NATS",
    programs: "`nats-server`",
    install: "`scripts/install-servers`, or `apt-get install nats-server` on Debian and Ubuntu",
    variable: "EKBATAN_NATS_BIN",
    example: "/usr/sbin",
    is_complete: |folder: &Path| folder.join("nats-server").is_file(),
};

/// A private NATS server, removed when it is dropped.
///
/// ```no_run
/// # use ekbatan_testkit::{NatsServer, ServerError};
/// # async fn example() -> Result<(), ServerError> {
/// let server = NatsServer::start().await?;
/// let url = server.url();
/// // … connect to `url`, and see what a crash leaves:
/// server.kill().await?;
/// server.restart().await?;
/// # Ok(())
/// # }
/// ```
///
/// Streams are kept in files, so they outlive a kill. Tests that share a server must use different
/// streams and subjects.
///
/// `drop` blocks the thread for a moment, until the server and its folder are gone.
/// [`stop`](Self::stop) does the same without blocking.
pub struct NatsServer {
    handle: Handle<NatsProduct>,
}

front!(NatsServer, NatsServerBuilder, NatsProduct, "EKBATAN_TEST_NATS_URL");

impl NatsServer {
    /// The URL of the server, `nats://127.0.0.1:…`.
    pub fn url(&self) -> String {
        self.handle.url().to_string().trim_end_matches('/').to_owned()
    }
}

/// Configures a private server before it starts, see [`NatsServer::builder`]. Settings are those of the
/// server's configuration file.
///
/// ```no_run
/// # use ekbatan_testkit::{NatsServer, ServerError};
/// # async fn example() -> Result<(), ServerError> {
/// let server = NatsServer::builder().setting("max_payload", "1024").start().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `start`"]
pub struct NatsServerBuilder {
    settings: Settings,
}

impl NatsServerBuilder {
    fn new() -> Self {
        Self { settings: Settings::new(&[]) }
    }

    fn product(self) -> Result<NatsProduct, ServerError> {
        let folder = SEARCH.find(|| {
            let mut places = installed_here("nats", "usr/sbin");
            places.extend(usual_places());
            places
        })?;
        Ok(NatsProduct { folder, settings: self.settings })
    }
}

/// How NATS is prepared, started and recognised.
#[derive(Debug, Clone)]
struct NatsProduct {
    folder: PathBuf,
    settings: Settings,
}

impl Product for NatsProduct {
    const NAME: &'static str = "nats";
    const SHARED_URL: &'static str = "EKBATAN_TEST_NATS_URL";
    const EXAMPLE_URL: &'static str = "nats://host:port";
    const SHUTDOWN: &'static str = "TERM";
    const END: &'static str = "KILL";

    fn preparation(&self, env: &ServerEnv) -> Command {
        let lines: String =
            self.settings.with(&[]).map(|(name, value)| format!("{name}: {value}\n")).collect();
        let mut command = env.command("sh");
        command
            .args(["-c", r#"mkdir "$1" && printf '%s' "$2" >"$3""#, "prepare"])
            .arg(env.data())
            .arg(lines)
            .arg(env.folder().join("conf"));
        command
    }

    fn server(&self, env: &ServerEnv) -> Command {
        let mut command = env.command(self.folder.join("nats-server"));
        command.args(["--addr", "127.0.0.1", "--port", &env.port().to_string()]);
        command.arg("--config").arg(env.folder().join("conf"));
        command.arg("--jetstream").arg("--store_dir").arg(env.data());
        // Its name says which server this is.
        command.arg("--name").arg(env.data());
        command
    }

    fn url(port: u16) -> DatabaseUrl {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        DatabaseUrl::new("nats", None, address, "")
    }

    fn port_of(url: &DatabaseUrl) -> Result<u16, ServerError> {
        Ok(url.port().unwrap_or(client::DEFAULT_PORT))
    }

    async fn data_folder(url: &DatabaseUrl) -> Option<PathBuf> {
        client::data_folder(url.port()?).await
    }
}
