//! Private HBase servers.
//!
//! Each [`HBaseServer`] is a real cluster in one process: a master, one region server and the
//! ZooKeeper that they need, with a folder and ports of its own. It accepts connections from this
//! machine only. Starting takes some ten seconds, so tests share servers where they can.
//!
//! Invariants: a server that `start` returned answers. Dropping the handle removes the
//! server and its folder. If the test process ends in any other way, `SIGKILL` included,
//! they are removed a moment later.

mod client;
mod message;
mod rows;
mod site;

use std::ffi::OsString;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

pub use self::rows::{HBaseCell, HBaseRows};

use self::message::bytes;
use crate::Proxy;
use crate::database_url::DatabaseUrl;
use crate::front::front;
use crate::server::{
    Handle, Product, ProgramSearch, ServerEnv, ServerError, Settings, free_port, installed_here,
};

const SEARCH: ProgramSearch = ProgramSearch {
    server: "HBase",
    programs: "the jars of HBase and all that it needs",
    install: "`scripts/install-servers hbase`",
    variable: "EKBATAN_HBASE_BIN",
    example: "/opt/hbase/lib",
    is_complete: |folder: &Path| {
        let mut jars = fs::read_dir(folder).into_iter().flatten().flatten();
        jars.any(|jar| jar.file_name().to_string_lossy().starts_with("hbase-server-"))
    },
};

/// Small, quick to start, and with the files of a crash as a file system would have them.
const DEFAULTS: [(&str, &str); 12] = [
    ("hbase.unsafe.stream.capability.enforce", "false"),
    ("hbase.wal.provider", "filesystem"),
    ("hbase.procedure.store.wal.use.hsync", "false"),
    ("hbase.master.info.port", "-1"),
    ("hbase.regionserver.info.port", "-1"),
    ("hbase.regionserver.handler.count", "10"),
    ("hbase.master.wait.on.regionservers.interval", "100"),
    ("hbase.master.wait.on.regionservers.timeout", "300"),
    ("zookeeper.session.timeout.localHBaseCluster", "4000"),
    ("hbase.zookeeper.property.tickTime", "500"),
    ("hbase.localcluster.assign.random.ports", "false"),
    ("hbase.assignment.dispatch.wait.msec", "10"),
];

/// A private HBase server, removed when it is dropped.
///
/// ```no_run
/// # use ekbatan_testkit::{HBaseServer, ServerError};
/// # async fn example() -> Result<(), ServerError> {
/// let server = HBaseServer::start().await?;
/// let url = server.url();
/// // … connect to `url`, and see what a crash leaves, which is all that was answered:
/// server.kill().await?;
/// server.restart().await?;
/// # Ok(())
/// # }
/// ```
///
/// Tests that share a server must use different rows.
///
/// `drop` blocks the thread for a moment, until the server and its folder are gone.
/// [`stop`](Self::stop) does the same without blocking.
pub struct HBaseServer {
    handle: Handle<HBaseProduct>,
}

front!(HBaseServer, HBaseServerBuilder, HBaseProduct, "EKBATAN_TEST_HBASE_URL");

impl HBaseServer {
    /// The URL of the server, `hbase://127.0.0.1:…`, with the port of its master.
    pub fn url(&self) -> String {
        self.handle.url().to_string().trim_end_matches('/').to_owned()
    }

    /// The port of the region server, which has the rows.
    ///
    /// # Errors
    ///
    /// [`NotOurs`](crate::ServerError::NotOurs) for a server that was not started here.
    pub async fn rows_port(&self) -> Result<u16, ServerError> {
        Ok(self.handle.product().await?.rows_port)
    }

    /// A proxy before the region server, and the URL with which a client of the locks uses it.
    ///
    /// # Errors
    ///
    /// [`NotOurs`](crate::ServerError::NotOurs) for a server that was not started here.
    pub async fn behind_proxy(&self) -> Result<(Proxy, String), ServerError> {
        let port = self.rows_port().await?;
        let proxy = Proxy::start((Ipv4Addr::LOCALHOST, port)).await.map_err(ServerError::NoPort)?;
        let url = format!("{}/?via={HOST}:{port}={}", self.url(), proxy.address());
        Ok((proxy, url))
    }

    /// The identity of the cluster.
    ///
    /// # Errors
    ///
    /// Fails if the server does not answer.
    pub async fn cluster(&self) -> Result<String, ServerError> {
        client::cluster(self.port()).await.map_err(ServerError::requesting("GetClusterId"))
    }

    /// Makes a table with the attributes of the table, and a column family `l` with those of the
    /// family. Returns before it is open.
    ///
    /// # Errors
    ///
    /// Fails if the server does not answer, or refuses the request.
    pub async fn create_table(
        &self,
        table: &str,
        of_table: &[(&str, &str)],
        of_family: &[(&str, &str)],
    ) -> Result<(), ServerError> {
        let attribute =
            |(name, value): &(&str, &str)| bytes(2, [bytes(1, name), bytes(2, value)].concat());
        let attributes = |all: &[(&str, &str)]| all.iter().flat_map(attribute).collect::<Vec<u8>>();
        let family = [bytes(1, "l"), attributes(of_family)].concat();
        let schema = [bytes(1, named(table)), attributes(of_table), bytes(3, family)].concat();
        self.master("CreateTable", &bytes(1, schema)).await
    }

    /// Disables or enables a table. Returns before it is.
    ///
    /// # Errors
    ///
    /// Fails if the server does not answer, or refuses the request.
    pub async fn enable_table(&self, table: &str, enable: bool) -> Result<(), ServerError> {
        let method = if enable { "EnableTable" } else { "DisableTable" };
        self.master(method, &bytes(1, named(table))).await
    }

    /// Removes a table that is disabled. Returns before it is gone.
    ///
    /// # Errors
    ///
    /// Fails if the server does not answer, or refuses the request.
    pub async fn delete_table(&self, table: &str) -> Result<(), ServerError> {
        self.master("DeleteTable", &bytes(1, named(table))).await
    }

    /// Moves the only region of a table to another region server. Returns when it is open there.
    ///
    /// # Errors
    ///
    /// Fails if the server does not answer, or refuses the request.
    pub async fn move_table(&self, table: &str) -> Result<(), ServerError> {
        let (rows, _) = self.region(table).await?;
        self.master("MoveRegion", &bytes(1, rows.encoded_region())).await
    }

    /// Has the only region of a table split at a row. Returns before it is.
    ///
    /// # Errors
    ///
    /// Fails if the server does not answer, or refuses the request.
    pub async fn split_table(&self, table: &str, at: &str) -> Result<(), ServerError> {
        let (_, region) = self.region(table).await?;
        self.master("SplitRegion", &[bytes(1, region), bytes(2, at)].concat()).await
    }

    /// The rows of a table with one region, to read and write by hand.
    ///
    /// # Errors
    ///
    /// Fails if there is no such table.
    pub async fn rows(&self, table: &str) -> Result<HBaseRows, ServerError> {
        let opened = HBaseRows::open(self.rows_port().await?, table).await;
        opened.map_err(finding(table))
    }

    /// The rows of a table with one region, and the name of the region.
    async fn region(&self, table: &str) -> Result<(HBaseRows, Vec<u8>), ServerError> {
        let meta = client::meta_port(self.port()).await.map_err(finding(table))?;
        HBaseRows::find(meta, table).await.map_err(finding(table))
    }

    async fn master(&self, method: &str, request: &[u8]) -> Result<(), ServerError> {
        client::master(self.port(), method, request)
            .await
            .map(drop)
            .map_err(ServerError::requesting(method))
    }
}

/// For `map_err` after a look for a table.
fn finding(table: &str) -> impl FnOnce(std::io::Error) -> ServerError {
    ServerError::requesting(format!("find the table {table}"))
}

/// The name of a table in the usual namespace.
fn named(table: &str) -> Vec<u8> {
    [bytes(1, "default"), bytes(2, table)].concat()
}

/// The name that the servers of the cluster have for each other.
const HOST: &str = "localhost";

/// Configures a private server before it starts, see [`HBaseServer::builder`].
///
/// ```no_run
/// # use ekbatan_testkit::{HBaseServer, ServerError};
/// # async fn example() -> Result<(), ServerError> {
/// let server = HBaseServer::builder().setting("hbase.regionserver.handler.count", "3").start().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `start`"]
pub struct HBaseServerBuilder {
    settings: Settings,
    region_servers: u16,
}

impl HBaseServerBuilder {
    fn new() -> Self {
        Self { settings: Settings::new(&DEFAULTS), region_servers: 1 }
    }

    /// Starts so many region servers in the one process. With more than one, each has a port that
    /// nobody knows before, so that there is no [`rows_port`](HBaseServer::rows_port).
    pub fn region_servers(mut self, region_servers: u16) -> Self {
        self.region_servers = region_servers;
        self
    }

    fn product(self) -> Result<HBaseProduct, ServerError> {
        let jars = SEARCH.find(|| installed_here("hbase", "lib"))?;
        let Self { settings, region_servers } = self;
        let rows_port = if region_servers == 1 { free_port()? } else { 0 };
        let zookeeper_port = free_port()?;
        Ok(HBaseProduct { jars, settings, rows_port, zookeeper_port, region_servers })
    }
}

/// How HBase is prepared, started and recognised.
#[derive(Debug, Clone)]
struct HBaseProduct {
    jars: PathBuf,
    settings: Settings,
    rows_port: u16,
    zookeeper_port: u16,
    region_servers: u16,
}

impl Product for HBaseProduct {
    const NAME: &'static str = "hbase";
    const SHARED_URL: &'static str = "EKBATAN_TEST_HBASE_URL";
    const EXAMPLE_URL: &'static str = "hbase://host:port";
    const SHUTDOWN: &'static str = "TERM";
    const END: &'static str = "KILL";

    fn preparation(&self, env: &ServerEnv) -> Command {
        let mut command = env.command("mkdir");
        command.arg(env.data()).arg(env.folder().join("conf"));
        command
    }

    fn server(&self, env: &ServerEnv) -> Command {
        let (data, conf) = (env.data(), env.folder().join("conf"));
        client::remember(env.port(), &data);
        let path = |name: &str| env.folder().join(name).display().to_string();
        let (port, rows_port) = (env.port().to_string(), self.rows_port.to_string());
        let zookeeper_port = self.zookeeper_port.to_string();
        let (root, tmp, zookeeper) =
            (format!("file://{}", data.display()), path("tmp"), path("zookeeper"));
        let private = [
            ("hbase.cluster.distributed", "false"),
            ("hbase.rootdir", root.as_str()),
            ("hbase.tmp.dir", tmp.as_str()),
            ("hbase.zookeeper.property.dataDir", zookeeper.as_str()),
            ("hbase.zookeeper.property.clientPort", zookeeper_port.as_str()),
            ("hbase.zookeeper.property.clientPortAddress", "127.0.0.1"),
            ("hbase.zookeeper.quorum", "127.0.0.1"),
            ("hbase.master.hostname", HOST),
            ("hbase.master.ipc.address", "127.0.0.1"),
            ("hbase.master.port", port.as_str()),
            ("hbase.regionserver.hostname", HOST),
            ("hbase.regionserver.ipc.address", "127.0.0.1"),
            ("hbase.regionserver.port", rows_port.as_str()),
        ];
        // A folder that cannot be written is reported by the server, which then has no settings.
        let _ = fs::write(conf.join("hbase-site.xml"), site::xml(self.settings.with(&private)));
        let _ = fs::write(conf.join("log4j.properties"), site::LOGGING);
        let mut classes = OsString::from(&conf);
        classes.push(":");
        classes.push(self.jars.join("*"));
        let mut command = env.command("java");
        command
            .args(["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"])
            .arg(format!("-Djava.io.tmpdir={}", env.folder().display()))
            .arg("-cp")
            .arg(classes)
            .arg("org.apache.hadoop.hbase.master.HMaster")
            .arg(format!("--localRegionServers={}", self.region_servers))
            .arg("start");
        command
    }

    fn url(port: u16) -> DatabaseUrl {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        DatabaseUrl::new("hbase", None, address, "")
    }

    fn port_of(url: &DatabaseUrl) -> Result<u16, ServerError> {
        Ok(url.port().unwrap_or(client::DEFAULT_PORT))
    }

    async fn data_folder(url: &DatabaseUrl) -> Option<PathBuf> {
        client::data_folder(url.port()?).await
    }
}
