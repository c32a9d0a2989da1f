//! Waiting for a server without blocking the runtime.
//!
//! What always holds: work that blocks is done on threads for that, and is seen
//! through to its end even if whoever waits for it gives up. Time is real time,
//! so that servers work in tests that pause tokio's clock.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tokio::task::spawn_blocking;

use super::instance::Instance;
use super::{Product, ServerError};
use crate::database_url::DatabaseUrl;

/// How long a server may take until it accepts connections. After a crash it
/// first repeats what it has lost.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often to try whether a server accepts connections.
const GLANCE: Duration = Duration::from_millis(10);

/// A server that one thread at a time works on.
pub(super) type SharedInstance<P> = Arc<Mutex<Instance<P>>>;

/// Does blocking work on a server, which goes on if it is no longer waited for.
pub(super) async fn on_its_thread<P: Product, T: Send + 'static>(
    instance: &SharedInstance<P>,
    work: impl FnOnce(&mut Instance<P>) -> Result<T, ServerError> + Send + 'static,
) -> Result<T, ServerError> {
    let instance = Arc::clone(instance);
    spawn_blocking(move || {
        // A panic elsewhere does not change what is known of the processes.
        work(&mut instance.lock().unwrap_or_else(PoisonError::into_inner))
    })
    .await?
}

/// Waits until a launched server accepts connections.
pub(super) async fn accepts<P: Product>(
    instance: &SharedInstance<P>,
    url: &DatabaseUrl,
) -> Result<(), ServerError> {
    let data = on_its_thread(instance, |instance| Ok(instance.place().data())).await?;
    tokio::select! {
        answered = first_answer::<P>(url, data) => answered,
        failed = failure(instance) => failed,
    }
}

/// Asks until there is an answer.
async fn first_answer<P: Product>(url: &DatabaseUrl, data: PathBuf) -> Result<(), ServerError> {
    // Another server may have got hold of the port, so it matters who answers.
    while P::data_folder(url).await.as_ref() != Some(&data) {
        pause().await?;
    }
    Ok(())
}

/// Waits until it is clear that the server will not accept connections.
async fn failure<P: Product>(instance: &SharedInstance<P>) -> Result<(), ServerError> {
    let start = Instant::now();
    loop {
        pause().await?;
        on_its_thread(instance, move |instance| {
            if !instance.is_launched() {
                return Err(ServerError::Stopped);
            }
            if let Some(status) = instance.ended()? {
                let log = instance.end_of_log();
                return Err(ServerError::Ended { status, log });
            }
            let waited = start.elapsed();
            if waited > PATIENCE {
                let log = instance.end_of_log();
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
