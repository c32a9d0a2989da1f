//! Private RabbitMQ servers.
//!
//! Each [`RabbitMqServer`] is a real server with its own folder, port and port mapper. It accepts
//! connections from this machine only.
//!
//! Invariants: a server that `start` returned answers. Dropping the handle removes the
//! server and its folder. If the test process ends in any other way, `SIGKILL` included,
//! they are removed a moment later.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::database_url::DatabaseUrl;
use crate::front::front;
use crate::server::{
    Handle, Product, ProgramSearch, ServerEnv, ServerError, Settings, data_at, port_file,
    second_port, usual_places,
};

const SEARCH: ProgramSearch = ProgramSearch {
    server: "RabbitMQ",
    programs: "`rabbitmq-server`",
    install: "`scripts/install-servers rabbitmq`, or `apt-get install rabbitmq-server` on Debian and Ubuntu",
    variable: "EKBATAN_RABBITMQ_BIN",
    example: "/usr/lib/rabbitmq/bin",
    is_complete: |folder: &Path| folder.join("rabbitmq-server").is_file(),
};

/// The program that talks to a running server.
const CONTROL: &str = "rabbitmqctl";

/// Where Debian has the server itself. What the search path has changes the user first.
const USUAL: &str = "/usr/lib/rabbitmq/bin";

/// What a client sends first, and how the answer of a server that is ready begins: with a frame of a
/// method on channel 0.
const GREETING: (&[u8], &[u8]) = (b"AMQP\x00\x00\x09\x01", &[1, 0, 0]);

/// A private RabbitMQ server, removed when it is dropped.
///
/// ```no_run
/// # use ekbatan_testkit::{RabbitMqServer, ServerError};
/// # async fn example() -> Result<(), ServerError> {
/// let server = RabbitMqServer::start().await?;
/// let url = server.url();
/// // … connect to `url` as guest, and see what a crash leaves:
/// server.kill().await?;
/// server.restart().await?;
/// # Ok(())
/// # }
/// ```
///
/// Tests that share a server must use different exchanges and queues.
///
/// `drop` blocks the thread for a moment, until the server and its folder are gone.
/// [`stop`](Self::stop) does the same without blocking.
pub struct RabbitMqServer {
    handle: Handle<RabbitMqProduct>,
}

front!(RabbitMqServer, RabbitMqServerBuilder, RabbitMqProduct, "EKBATAN_TEST_RABBITMQ_URL");

impl RabbitMqServer {
    /// The URL of the server, `amqp://127.0.0.1:…/%2f`.
    pub fn url(&self) -> String {
        self.handle.url().to_string()
    }

    /// Runs `rabbitmqctl` with these arguments, and returns what it prints.
    ///
    /// # Errors
    ///
    /// Fails if the program does, and for a server that was not started here.
    pub async fn control(&self, arguments: &[&str]) -> Result<String, ServerError> {
        let product = self.handle.product().await?;
        let port = self.port();
        let data = data_at(RabbitMqProduct::NAME, port);
        let folder = data.as_deref().and_then(Path::parent).unwrap_or(Path::new("/")).to_owned();
        let mut command = Command::new(product.folder.join(CONTROL));
        command.args(arguments).arg("--quiet").env("HOME", folder).envs(names(port));
        let output = tokio::task::spawn_blocking(move || command.output()).await?;
        let failed = |source| ServerError::Run { program: CONTROL.to_owned(), source };
        let output = output.map_err(failed)?;
        if !output.status.success() {
            let said = [output.stdout, output.stderr].concat();
            return Err(ServerError::Preparation {
                program: CONTROL.to_owned(),
                status: output.status,
                output: String::from_utf8_lossy(&said).into_owned(),
            });
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// What tells a server from others, for itself and for `rabbitmqctl`.
fn names(port: u16) -> [(&'static str, String); 3] {
    [
        ("RABBITMQ_NODENAME", format!("t{port}@localhost")),
        ("RABBITMQ_CONF_ENV_FILE", "/dev/null".to_owned()),
        ("ERL_EPMD_PORT", second_port(port, 1).to_string()),
    ]
}

/// Configures a private server before it starts, see [`RabbitMqServer::builder`]. Settings are those of
/// `rabbitmq.conf`.
///
/// ```no_run
/// # use ekbatan_testkit::{RabbitMqServer, ServerError};
/// # async fn example() -> Result<(), ServerError> {
/// let server = RabbitMqServer::builder().setting("max_message_size", "65536").start().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `start`"]
pub struct RabbitMqServerBuilder {
    settings: Settings,
}

impl RabbitMqServerBuilder {
    fn new() -> Self {
        Self { settings: Settings::new(&[("disk_free_limit.absolute", "50MB")]) }
    }

    fn product(self) -> Result<RabbitMqProduct, ServerError> {
        let folder = SEARCH.find(|| {
            let mut places = vec![PathBuf::from(USUAL)];
            places.extend(usual_places());
            places
        })?;
        Ok(RabbitMqProduct { folder, settings: self.settings })
    }
}

/// How RabbitMQ is prepared, started and recognised.
#[derive(Debug, Clone)]
struct RabbitMqProduct {
    folder: PathBuf,
    settings: Settings,
}

/// Starts a port mapper that ends with the server, and then becomes the server.
const START: &str = r#"
rm -f port-*
: >"$1"
printf '%s' "$2" >rabbitmq.conf
printf '[].' >enabled_plugins
setpriv --pdeathsig KILL epmd &
exec "$3"
"#;

impl Product for RabbitMqProduct {
    const NAME: &'static str = "rabbitmq";
    const SHARED_URL: &'static str = "EKBATAN_TEST_RABBITMQ_URL";
    const EXAMPLE_URL: &'static str = "amqp://host:port/%2f";
    const SHUTDOWN: &'static str = "TERM";
    const END: &'static str = "KILL";

    fn preparation(&self, env: &ServerEnv) -> Command {
        let mut command = env.command("mkdir");
        command.arg(env.data());
        command
    }

    fn server(&self, env: &ServerEnv) -> Command {
        let (port, folder) = (env.port(), env.folder());
        let address = format!("127.0.0.1:{port}");
        let private = [("listeners.tcp.default", address.as_str()), ("loopback_users", "none")];
        let lines: String = self
            .settings
            .with(&private)
            .map(|(name, value)| format!("{name} = {value}\n"))
            .collect();
        let mut command = env.command("sh");
        command.args(["-c", START, "start"]).arg(port_file(folder, port)).arg(lines);
        command.arg(self.folder.join("rabbitmq-server"));
        // The server ends if one of these ports is not free.
        let distribution = second_port(port, 0);
        command
            .envs(names(port))
            .env("HOME", folder)
            .env("RABBITMQ_MNESIA_BASE", env.data())
            .env("RABBITMQ_LOG_BASE", folder)
            .env("RABBITMQ_PID_FILE", folder.join("pid"))
            .env("RABBITMQ_CONFIG_FILE", folder.join("rabbitmq.conf"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", folder.join("enabled_plugins"))
            .env("RABBITMQ_DIST_PORT", distribution.to_string())
            .env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "+S 2:2 +sbwt none")
            .env("ERL_EPMD_ADDRESS", "127.0.0.1");
        command
    }

    fn url(port: u16) -> DatabaseUrl {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        DatabaseUrl::new("amqp", None, address, "%2f")
    }

    fn port_of(url: &DatabaseUrl) -> Result<u16, ServerError> {
        Ok(url.port().unwrap_or(5672))
    }

    async fn data_folder(url: &DatabaseUrl) -> Option<PathBuf> {
        let port = url.port()?;
        greets(port).await.ok().filter(|greets| *greets)?;
        data_at(Self::NAME, port)
    }
}

/// Whether a server at this port is ready for logins.
async fn greets(port: u16) -> std::io::Result<bool> {
    let (greeting, expected) = GREETING;
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    stream.write_all(greeting).await?;
    let mut answer = [0; 3];
    stream.read_exact(&mut answer).await?;
    Ok(answer == expected)
}
