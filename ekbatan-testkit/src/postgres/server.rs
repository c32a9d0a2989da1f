//! A running PostgreSQL server, as tests see it.
//!
//! What always holds: no call returns before what it asked for has come about,
//! and one that is given up halfway leaves a server that can be killed, restarted
//! and dropped like any other.

use std::env;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::sync::{Arc, Mutex};

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, Connection};
use tokio::sync::OnceCell;
use tokio::task::spawn_blocking;
use uuid::Uuid;

use super::ServerError;
use super::cluster::{Cluster, SUPERUSER};
use super::settings::{PostgresServerBuilder, Settings};
use super::waiting::{SharedCluster, accepts, on_its_thread};
use crate::database_url::DatabaseUrl;

/// A server to use instead of a private one, see [`PostgresServer::shared`].
const SHARED_URL: &str = "EKBATAN_TEST_POSTGRES_URL";
/// The database that every server has.
const MAINTENANCE: &str = "postgres";
/// On how many ports to try to start a server.
const LAUNCHES: usize = 5;

/// A PostgreSQL server of one's own, gone when it is dropped.
///
/// ```no_run
/// # use ekbatan_testkit::{PostgresServer, ServerError};
/// # async fn example() -> Result<(), ServerError> {
/// let server = PostgresServer::start().await?;
/// let url = server.create_database().await?;
/// // … connect to `url`, write, and see what a crash leaves:
/// server.kill().await?;
/// server.restart().await?;
/// # Ok(())
/// # }
/// ```
///
/// Dropping it takes a moment, in which the thread waits until server and folder
/// are gone; [`stop`](Self::stop) waits without blocking the thread.
pub struct PostgresServer {
    maintenance: DatabaseUrl,
    options: PgConnectOptions,
    /// None for a server that belongs to somebody else.
    cluster: Option<SharedCluster>,
}

impl PostgresServer {
    /// Starts a private server and waits until it accepts connections.
    ///
    /// # Errors
    ///
    /// When PostgreSQL is not installed, or the server does not start.
    pub async fn start() -> Result<Self, ServerError> {
        Self::builder().start().await
    }

    /// A private server with other settings than the usual.
    ///
    /// ```no_run
    /// # use ekbatan_testkit::{PostgresServer, ServerError};
    /// # async fn example() -> Result<(), ServerError> {
    /// let server = PostgresServer::builder()
    ///     .durable()
    ///     .setting("max_connections", "20")
    ///     .start()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder() -> PostgresServerBuilder {
        PostgresServerBuilder::new()
    }

    /// The server that all tests of this process share, started when the first
    /// of them asks for it. It may be used from any number of runtimes, and ends
    /// with the process.
    ///
    /// If the environment variable `EKBATAN_TEST_POSTGRES_URL` is set, it is the
    /// server at that address, whose role must be allowed to create databases.
    /// It can be neither killed nor restarted, and keeps the databases.
    ///
    /// # Errors
    ///
    /// When the server does not start. The next call tries again.
    pub async fn shared() -> Result<&'static Self, ServerError> {
        // Never dropped; ending the process ends the server.
        static SHARED: OnceCell<PostgresServer> = OnceCell::const_new();
        SHARED
            .get_or_try_init(|| async {
                let Some(url) = env::var_os(SHARED_URL).filter(|url| !url.is_empty()) else {
                    return Self::start().await;
                };
                let url = url.to_string_lossy();
                let given = url.parse().map_err(|_| ServerError::Url(url.into_owned()))?;
                Self::at(given, None)
            })
            .await
    }

    /// The address of one of the server's databases.
    pub fn url(&self, database: &str) -> String {
        self.maintenance.clone().with_database(database).to_string()
    }

    /// Creates an empty database with a name that no other has, and returns its
    /// address.
    ///
    /// # Errors
    ///
    /// When the server does not accept connections.
    pub async fn create_database(&self) -> Result<String, ServerError> {
        let name = format!("test_{}", Uuid::now_v7().simple());
        let mut connection = PgConnection::connect_with(&self.options).await?;
        // Nothing in the name needs quoting.
        sqlx::raw_sql(AssertSqlSafe(format!("CREATE DATABASE {name}")))
            .execute(&mut connection)
            .await?;
        connection.close().await?;
        Ok(self.url(&name))
    }

    /// The port on which the server listens.
    pub fn port(&self) -> u16 {
        self.options.get_port()
    }

    /// Ends all of the server's processes with `SIGKILL`, as a crash would, and
    /// returns when none is left. Nothing happens if it does not run.
    ///
    /// # Errors
    ///
    /// [`ServerError::NotOurs`] for a server that was not started here.
    pub async fn kill(&self) -> Result<(), ServerError> {
        on_its_thread(self.cluster()?, Cluster::kill).await
    }

    /// Starts the server again, on the same port and with the same data, and
    /// returns when it accepts connections. If it runs it is shut down in good
    /// order first.
    ///
    /// # Errors
    ///
    /// [`ServerError::NotOurs`] for a server that was not started here; others
    /// when the server does not start.
    pub async fn restart(&self) -> Result<(), ServerError> {
        let cluster = self.cluster()?;
        on_its_thread(cluster, |cluster| {
            cluster.shut_down()?;
            cluster.launch()
        })
        .await?;
        accepts(cluster, &self.options).await
    }

    /// Ends the server and removes its folder. Other than dropping it, this
    /// leaves the thread to other tasks meanwhile. A server that was not started
    /// here is left alone.
    ///
    /// # Errors
    ///
    /// When the runtime ends first; the server ends all the same.
    pub async fn stop(self) -> Result<(), ServerError> {
        Ok(spawn_blocking(move || drop(self)).await?)
    }

    pub(super) async fn start_with(settings: Settings) -> Result<Self, ServerError> {
        let cluster = spawn_blocking(|| Cluster::create(settings)).await??;
        let cluster = Arc::new(Mutex::new(cluster));
        let mut launches = LAUNCHES;
        loop {
            let port = on_its_thread(&cluster, |cluster| {
                cluster.launch()?;
                Ok(cluster.port())
            })
            .await?;
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            let url = DatabaseUrl::new("postgres", SUPERUSER, address, MAINTENANCE);
            let server = Self::at(url, Some(Arc::clone(&cluster)))?;
            let error = match accepts(&cluster, &server.options).await {
                Ok(()) => return Ok(server),
                Err(error) => error,
            };
            launches -= 1;
            let ended = launches > 0 && matches!(error, ServerError::Ended { .. });
            // Somebody else may have been quicker to use the port.
            if !ended || !on_its_thread(&cluster, Cluster::evade).await? {
                return Err(error);
            }
        }
    }

    fn at(maintenance: DatabaseUrl, cluster: Option<SharedCluster>) -> Result<Self, ServerError> {
        Ok(Self {
            options: PgConnectOptions::from_str(&maintenance.to_string())?,
            maintenance,
            cluster,
        })
    }

    fn cluster(&self) -> Result<&SharedCluster, ServerError> {
        self.cluster.as_ref().ok_or(ServerError::NotOurs)
    }
}

impl fmt::Debug for PostgresServer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Somebody else's address may contain a password.
        out.debug_struct("PostgresServer")
            .field("port", &self.port())
            .field("private", &self.cluster.is_some())
            .finish_non_exhaustive()
    }
}
