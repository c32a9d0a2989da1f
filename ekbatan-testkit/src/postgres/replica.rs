//! Replicas of a server.

use std::thread;
use std::time::{Duration, Instant};

use sqlx::Connection;
use tokio::task::spawn_blocking;

use super::PostgresServer;
use crate::server::{Handle, ServerError};

/// Maximum time for a replica to pause.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How often to check whether it has paused.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

impl PostgresServer {
    /// Starts a read-only replica of this server by streaming replication, and waits until it
    /// accepts connections. It has all earlier commits and receives later ones a moment after
    /// this server. It has the settings of this server.
    ///
    /// The replica is a server with its own port. It can be killed and restarted, and it can
    /// outlive this one.
    ///
    /// ```no_run
    /// # use ekbatan_testkit::{PostgresServer, ServerError};
    /// # async fn example() -> Result<(), ServerError> {
    /// let primary = PostgresServer::start().await?;
    /// let replica = primary.start_replica().await?;
    /// replica.pause_replay().await?;
    /// // … the replica does not show what is committed on the primary now …
    /// replica.resume_replay().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ServerError::NotOurs`] for a server that was not started here. Other errors if this
    /// server is not running or the replica does not start.
    pub async fn start_replica(&self) -> Result<Self, ServerError> {
        let product = self.handle.product().await?.replica_of(self.port());
        Ok(Self { handle: Handle::start(|| Ok(product)).await? })
    }

    /// Pauses a replica: it still receives the commits of its primary, but does not show them.
    /// Returns when it has paused. Needs PostgreSQL 14 or later.
    ///
    /// # Errors
    ///
    /// Fails if the server is not a replica or does not accept connections.
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
            if waited > TIMEOUT {
                return Err(ServerError::StillReplaying { waited });
            }
            // In real time, even if tokio's clock is paused.
            spawn_blocking(|| thread::sleep(POLL_INTERVAL)).await?;
        }
        Ok(connection.close().await?)
    }

    /// Resumes a replica, starting with the commits that it received in the meantime.
    ///
    /// # Errors
    ///
    /// Fails if the server is not a replica or does not accept connections.
    pub async fn resume_replay(&self) -> Result<(), ServerError> {
        self.run("SELECT pg_wal_replay_resume()".to_owned()).await
    }
}
