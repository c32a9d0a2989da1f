//! Private PostgreSQL servers.
//!
//! Each [`PostgresServer`] is a real server with its own folder and port. It accepts
//! connections from this machine only.
//!
//! Invariants: a server that `start` returned accepts connections. Dropping the handle
//! removes the server, its processes and its folder. If the test process ends in any
//! other way, `SIGKILL` included, they are removed a moment later.

mod builder;
mod product;
mod programs;
mod replica;

use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection};

use crate::front::front;
use crate::server::{Handle, fresh_name};

pub use crate::server::ServerError;
pub use builder::PostgresServerBuilder;
use product::PostgresProduct;

/// A private PostgreSQL server, removed when it is dropped.
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
/// `drop` blocks the thread for a moment, until the server and its folder are gone.
/// [`stop`](Self::stop) does the same without blocking.
pub struct PostgresServer {
    handle: Handle<PostgresProduct>,
}

front!(PostgresServer, PostgresServerBuilder, PostgresProduct, "EKBATAN_TEST_POSTGRES_URL");

impl PostgresServer {
    /// The URL of one of the server's databases.
    pub fn url(&self, database: &str) -> String {
        self.handle.url().clone().with_database(database).to_string()
    }

    /// Creates an empty database with a unique name and returns its URL.
    ///
    /// # Errors
    ///
    /// Fails if the server does not accept connections.
    pub async fn create_database(&self) -> Result<String, ServerError> {
        let name = fresh_name();
        // A fresh name needs no quoting.
        self.run(format!("CREATE DATABASE {name}")).await?;
        Ok(self.url(&name))
    }

    /// What the server has logged. The setting `log_statement` decides which statements it logs.
    ///
    /// # Errors
    ///
    /// Fails if the server was not started here.
    pub async fn log(&self) -> Result<String, ServerError> {
        self.handle.log().await
    }

    /// Runs a statement in the database `postgres`, which every server has.
    async fn run(&self, sql: String) -> Result<(), ServerError> {
        let mut connection = self.connect().await?;
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await?;
        Ok(connection.close().await?)
    }

    async fn connect(&self) -> Result<PgConnection, ServerError> {
        Ok(PgConnection::connect(&self.handle.url().to_string()).await?)
    }
}
