//! Waiting for a server to start without blocking the runtime.
//!
//! Invariants: blocking work runs on threads for it, and runs to its end even if the
//! waiting future is dropped. Deadlines use real time, so that servers work in tests that
//! pause tokio's clock.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tokio::task::spawn_blocking;

use super::error::ServerError;
use super::instance::Instance;
use super::product::Product;
use crate::database_url::DatabaseUrl;

/// Maximum time until a server accepts connections. After a crash this includes its
/// recovery.
const TIMEOUT: Duration = Duration::from_secs(120);
/// How often to try to connect.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// An instance that one thread at a time works on.
pub(super) type SharedInstance<P> = Arc<Mutex<Instance<P>>>;

/// Runs blocking work on the instance. The work continues if the future is dropped.
pub(super) async fn run_blocking<P: Product, T: Send + 'static>(
    instance: &SharedInstance<P>,
    work: impl FnOnce(&mut Instance<P>) -> Result<T, ServerError> + Send + 'static,
) -> Result<T, ServerError> {
    let instance = Arc::clone(instance);
    spawn_blocking(move || {
        // A panic elsewhere leaves the recorded state of the processes valid.
        work(&mut instance.lock().unwrap_or_else(PoisonError::into_inner))
    })
    .await?
}

/// Waits until a launched server accepts connections.
pub(super) async fn wait_until_ready<P: Product>(
    instance: &SharedInstance<P>,
    url: &DatabaseUrl,
) -> Result<(), ServerError> {
    let data = run_blocking(instance, |instance| Ok(instance.env().data())).await?;
    tokio::select! {
        ready = first_answer::<P>(url, data) => ready,
        failed = failure(instance) => failed,
    }
}

/// Polls until the server answers.
async fn first_answer<P: Product>(url: &DatabaseUrl, data: PathBuf) -> Result<(), ServerError> {
    // Check who answers: another server may have taken the port.
    while P::data_folder(url).await.as_ref() != Some(&data) {
        pause().await?;
    }
    Ok(())
}

/// Waits until it is certain that the server will not accept connections.
async fn failure<P: Product>(instance: &SharedInstance<P>) -> Result<(), ServerError> {
    let start = Instant::now();
    loop {
        pause().await?;
        run_blocking(instance, move |instance| {
            if !instance.is_launched() {
                return Err(ServerError::Stopped);
            }
            if let Some(status) = instance.ended()? {
                let log = instance.end_of_log();
                return Err(ServerError::Ended { status, log });
            }
            let waited = start.elapsed();
            if waited > TIMEOUT {
                let log = instance.end_of_log();
                return Err(ServerError::Unresponsive { waited, log });
            }
            Ok(())
        })
        .await?;
    }
}

/// Sleeps in real time, even if tokio's clock is paused.
async fn pause() -> Result<(), ServerError> {
    Ok(spawn_blocking(|| thread::sleep(POLL_INTERVAL)).await?)
}
