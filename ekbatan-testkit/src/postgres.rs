//! Private PostgreSQL servers.
//!
//! Each [`PostgresServer`] is a real server with a folder and a port of its own,
//! reachable from this machine only. What always holds: a server that has been
//! handed out accepts connections; once its handle is dropped, the server, its
//! processes and its folder are gone; and if the test process ends in any other
//! way, `SIGKILL` included, they are gone a moment later.

mod builder;
mod product;
mod programs;
mod replica;

use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection};

use crate::server::{Handle, fresh_name, front};

pub use crate::server::ServerError;
pub use builder::PostgresServerBuilder;
use product::Postgres;

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
    handle: Handle<Postgres>,
}

front!(PostgresServer, PostgresServerBuilder, Postgres, "EKBATAN_TEST_POSTGRES_URL");

impl PostgresServer {
    /// The address of one of the server's databases.
    pub fn url(&self, database: &str) -> String {
        self.handle.url().clone().with_database(database).to_string()
    }

    /// Creates an empty database with a name that no other has, and returns its
    /// address.
    ///
    /// # Errors
    ///
    /// When the server does not accept connections.
    pub async fn create_database(&self) -> Result<String, ServerError> {
        let name = fresh_name();
        // Nothing in the name needs quoting.
        self.run(format!("CREATE DATABASE {name}")).await?;
        Ok(self.url(&name))
    }

    /// Runs a statement in the database that every server has.
    async fn run(&self, sql: String) -> Result<(), ServerError> {
        let mut connection = self.connect().await?;
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await?;
        Ok(connection.close().await?)
    }

    async fn connect(&self) -> Result<PgConnection, ServerError> {
        Ok(PgConnection::connect(&self.handle.url().to_string()).await?)
    }
}
