//! Private Kafka servers.
//!
//! Each [`KafkaServer`] is a real cluster of one node with its own folder and ports. It accepts
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
    Handle, Product, ProgramSearch, ServerEnv, ServerError, Settings, data_at, installed_here,
    port_file, second_port,
};

const SEARCH: ProgramSearch = ProgramSearch {
    server: "Kafka",
    programs: "the archives of Kafka (`kafka_2.13-*.jar` and those that it needs)",
    install: "`scripts/install-servers kafka`, which needs Java and Maven",
    variable: "EKBATAN_KAFKA_BIN",
    example: "/opt/kafka/libs",
    is_complete: has_archive,
};

fn has_archive(folder: &Path) -> bool {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names = files.filter_map(|file| file.file_name().into_string().ok());
    names.any(|name| name.starts_with("kafka_2.13-") && name.ends_with(".jar"))
}

/// A small server that starts quickly, and that is there again soon after a kill.
const DEFAULTS: [(&str, &str); 17] = [
    ("process.roles", "broker,controller"),
    ("node.id", "1"),
    ("num.partitions", "1"),
    ("offsets.topic.num.partitions", "1"),
    ("offsets.topic.replication.factor", "1"),
    ("transaction.state.log.num.partitions", "1"),
    ("transaction.state.log.replication.factor", "1"),
    ("transaction.state.log.min.isr", "1"),
    ("share.coordinator.state.topic.num.partitions", "1"),
    ("share.coordinator.state.topic.replication.factor", "1"),
    ("share.coordinator.state.topic.min.isr", "1"),
    ("group.initial.rebalance.delay.ms", "0"),
    ("num.network.threads", "1"),
    ("num.io.threads", "2"),
    ("background.threads", "2"),
    // By default it takes 135 MB.
    ("log.cleaner.dedupe.buffer.size", "2097152"),
    // A restart after a kill waits for the end of the session.
    ("broker.session.timeout.ms", "1000"),
];

/// A private Kafka server, removed when it is dropped.
///
/// ```no_run
/// # use ekbatan_testkit::{KafkaServer, ServerError};
/// # async fn example() -> Result<(), ServerError> {
/// let server = KafkaServer::start().await?;
/// let address = server.address();
/// // … connect to `address`, and see what a crash leaves:
/// server.kill().await?;
/// server.restart().await?;
/// # Ok(())
/// # }
/// ```
///
/// Topics are made by themselves. Tests that share a server must use different ones.
///
/// `drop` blocks the thread for a moment, until the server and its folder are gone.
/// [`stop`](Self::stop) does the same without blocking.
pub struct KafkaServer {
    handle: Handle<KafkaProduct>,
}

front!(KafkaServer, KafkaServerBuilder, KafkaProduct, "EKBATAN_TEST_KAFKA_URL");

impl KafkaServer {
    /// The address of the server, `127.0.0.1:…`.
    pub fn address(&self) -> String {
        let url = self.handle.url().to_string();
        url.trim_start_matches("kafka://").trim_end_matches('/').to_owned()
    }

    /// The URL of the server, `kafka://127.0.0.1:…`.
    pub fn url(&self) -> String {
        format!("kafka://{}", self.address())
    }
}

/// Configures a private server before it starts, see [`KafkaServer::builder`]. Settings are those of
/// `server.properties`.
///
/// ```no_run
/// # use ekbatan_testkit::{KafkaServer, ServerError};
/// # async fn example() -> Result<(), ServerError> {
/// let server = KafkaServer::builder().setting("message.max.bytes", "65536").start().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `start`"]
pub struct KafkaServerBuilder {
    settings: Settings,
}

impl KafkaServerBuilder {
    fn new() -> Self {
        Self { settings: Settings::new(&DEFAULTS) }
    }

    fn product(self) -> Result<KafkaProduct, ServerError> {
        let folder = SEARCH.find(|| installed_here("kafka", "lib"))?;
        Ok(KafkaProduct { folder, settings: self.settings })
    }
}

/// How Kafka is prepared, started and recognised.
#[derive(Debug, Clone)]
struct KafkaProduct {
    folder: PathBuf,
    settings: Settings,
}

/// Formats the storage, if that was not done, and then becomes the server.
const START: &str = r#"
rm -f port-*
: >"$1"
printf '%s' "$2" >server.properties
java="java -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xmx256m"
if [ ! -e data/meta.properties ]; then
    $java -cp "$3/*" kafka.tools.StorageTool format -t ZWtiYXRhbi1lay10ZXN0cw -c server.properties || exit 1
fi
exec $java -cp "$3/*" kafka.Kafka server.properties
"#;

impl Product for KafkaProduct {
    const NAME: &'static str = "kafka";
    const SHARED_URL: &'static str = "EKBATAN_TEST_KAFKA_URL";
    const EXAMPLE_URL: &'static str = "kafka://host:port";
    const SHUTDOWN: &'static str = "TERM";
    const END: &'static str = "KILL";

    fn preparation(&self, env: &ServerEnv) -> Command {
        let mut command = env.command("mkdir");
        command.arg(env.data());
        command
    }

    fn server(&self, env: &ServerEnv) -> Command {
        let (port, folder) = (env.port(), env.folder());
        // The server ends if this port is not free.
        let controller = format!("127.0.0.1:{}", second_port(port, 0));
        let listeners = format!("PLAINTEXT://127.0.0.1:{port},CONTROLLER://{controller}");
        let (advertised, data) =
            (format!("PLAINTEXT://127.0.0.1:{port}"), env.data().display().to_string());
        let voters = format!("1@{controller}");
        let private = [
            ("listeners", listeners.as_str()),
            ("advertised.listeners", advertised.as_str()),
            ("controller.quorum.voters", voters.as_str()),
            ("controller.listener.names", "CONTROLLER"),
            ("log.dirs", data.as_str()),
            ("broker.heartbeat.interval.ms", "250"),
        ];
        let lines: String =
            self.settings.with(&private).map(|(name, value)| format!("{name}={value}\n")).collect();
        let mut command = env.command("sh");
        command.args(["-c", START, "start"]).arg(port_file(folder, port)).arg(lines);
        command.arg(&self.folder);
        command
    }

    fn url(port: u16) -> DatabaseUrl {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        DatabaseUrl::new("kafka", None, address, "")
    }

    fn port_of(url: &DatabaseUrl) -> Result<u16, ServerError> {
        Ok(url.port().unwrap_or(9092))
    }

    async fn data_folder(url: &DatabaseUrl) -> Option<PathBuf> {
        let port = url.port()?;
        answers(port).await.ok().filter(|answers| *answers)?;
        data_at(Self::NAME, port)
    }
}

/// Whether a server at this port answers which requests it knows.
async fn answers(port: u16) -> std::io::Result<bool> {
    // The size; ApiVersions (18) in version 0; the number 7 of the request; no client id.
    const REQUEST: &[u8] = &[0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 7, 0xff, 0xff];
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    stream.write_all(REQUEST).await?;
    let mut answer = [0; 10];
    stream.read_exact(&mut answer).await?;
    // The number of the request, and no error.
    Ok(answer[4..] == [0, 0, 0, 7, 0, 0])
}
