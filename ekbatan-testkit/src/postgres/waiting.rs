//! Waiting for a cluster without blocking the runtime.
//!
//! What always holds: work that blocks is done on threads for that, and is seen
//! through to its end even if whoever waits for it gives up. Time is real time,
//! so that servers work in tests that pause tokio's clock.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use sqlx::Connection;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use tokio::task::spawn_blocking;

use super::ServerError;
use super::cluster::Cluster;

/// How long a server may take until it accepts connections. After a crash it
/// first repeats what it has lost.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often to try whether a server accepts connections.
const GLANCE: Duration = Duration::from_millis(10);

/// A cluster that one thread at a time works on.
pub(super) type SharedCluster = Arc<Mutex<Cluster>>;

/// Does blocking work on a cluster, which goes on if it is no longer waited for.
pub(super) async fn on_its_thread<T: Send + 'static>(
    cluster: &SharedCluster,
    work: impl FnOnce(&mut Cluster) -> Result<T, ServerError> + Send + 'static,
) -> Result<T, ServerError> {
    let cluster = Arc::clone(cluster);
    spawn_blocking(move || {
        // A panic elsewhere does not change what is known of the processes.
        work(&mut cluster.lock().unwrap_or_else(PoisonError::into_inner))
    })
    .await?
}

/// Waits until a launched server accepts connections.
pub(super) async fn accepts(
    cluster: &SharedCluster,
    options: &PgConnectOptions,
) -> Result<(), ServerError> {
    let data = on_its_thread(cluster, |cluster| Ok(cluster.data())).await?;
    tokio::select! {
        answered = first_answer(options, data) => answered,
        failed = failure(cluster) => failed,
    }
}

/// Tries to connect until it works.
async fn first_answer(options: &PgConnectOptions, data: PathBuf) -> Result<(), ServerError> {
    loop {
        // Another server may have got hold of the port, so it matters who answers.
        match data_directory(options).await {
            Ok(folder) if Path::new(&folder) == data => return Ok(()),
            Ok(_) | Err(_) => pause().await?,
        }
    }
}

async fn data_directory(options: &PgConnectOptions) -> Result<String, sqlx::Error> {
    let mut connection = PgConnection::connect_with(options).await?;
    let folder = sqlx::query_scalar("SHOW data_directory").fetch_one(&mut connection).await?;
    connection.close().await?;
    Ok(folder)
}

/// Waits until it is clear that the server will not accept connections.
async fn failure(cluster: &SharedCluster) -> Result<(), ServerError> {
    let start = Instant::now();
    loop {
        pause().await?;
        on_its_thread(cluster, move |cluster| {
            if !cluster.is_launched() {
                return Err(ServerError::Stopped);
            }
            if let Some(status) = cluster.ended()? {
                let log = cluster.end_of_log();
                return Err(ServerError::Ended { status, log });
            }
            let waited = start.elapsed();
            if waited > PATIENCE {
                let log = cluster.end_of_log();
                return Err(ServerError::Unresponsive { waited, log });
            }
            Ok(())
        })
        .await?;
    }
}

/// Waits in real time, also where tokio's clock is paused.
async fn pause() -> Result<(), ServerError> {
    Ok(spawn_blocking(|| thread::sleep(GLANCE)).await?)
}
