//! Servers that follow another one.

use std::thread;
use std::time::{Duration, Instant};

use sqlx::Connection;
use tokio::task::spawn_blocking;

use super::{PostgresServer, ServerError};
use crate::server::Handle;

/// How long a replica may take to stop following.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often to look whether it has.
const GLANCE: Duration = Duration::from_millis(5);

impl PostgresServer {
    /// Starts a second server that follows this one by streaming replication,
    /// and waits until it accepts connections. It has what was committed here
    /// before, gets what is committed from now on a moment after, and is
    /// read-only. Its settings are those of this server.
    ///
    /// It is a server like any other, with a port of its own; it may be killed and
    /// restarted, and outlive this one.
    ///
    /// ```no_run
    /// # use ekbatan_testkit::{PostgresServer, ServerError};
    /// # async fn example() -> Result<(), ServerError> {
    /// let primary = PostgresServer::start().await?;
    /// let replica = primary.start_replica().await?;
    /// replica.pause_replay().await?;
    /// // … what is written to the primary now, the replica does not show yet:
    /// replica.resume_replay().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ServerError::NotOurs`] for a server that was not started here; others
    /// when this server does not run or the replica does not start.
    pub async fn start_replica(&self) -> Result<Self, ServerError> {
        let product = self.handle.product().await?.replica_of(self.port());
        Ok(Self { handle: Handle::start(|| Ok(product)).await? })
    }

    /// Has a replica stop to show what its primary commits, and returns when it
    /// has stopped. It still receives it. Needs PostgreSQL 14 or later.
    ///
    /// # Errors
    ///
    /// When the server is no replica, or does not accept connections.
    pub async fn pause_replay(&self) -> Result<(), ServerError> {
        let mut connection = self.connect().await?;
        sqlx::raw_sql("SELECT pg_wal_replay_pause()").execute(&mut connection).await?;
        let start = Instant::now();
        loop {
            let state: String = sqlx::query_scalar("SELECT pg_get_wal_replay_pause_state()")
                .fetch_one(&mut connection)
                .await?;
            if state == "paused" {
                break;
            }
            let waited = start.elapsed();
            if waited > PATIENCE {
                return Err(ServerError::StillReplaying { waited });
            }
            // In real time, also where tokio's clock is paused.
            spawn_blocking(|| thread::sleep(GLANCE)).await?;
        }
        Ok(connection.close().await?)
    }

    /// Has a replica show again what its primary commits, beginning with what it
    /// has received in the meantime.
    ///
    /// # Errors
    ///
    /// When the server is no replica, or does not accept connections.
    pub async fn resume_replay(&self) -> Result<(), ServerError> {
        self.run("SELECT pg_wal_replay_resume()".to_owned()).await
    }
}
