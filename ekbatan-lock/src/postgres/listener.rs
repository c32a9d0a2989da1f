//! The connection of a backend that listens for released keys.
//!
//! Invariants: a connection that is lost is opened again, and all waiters are woken then,
//! because hints may have been missed. The task ends when its owner is dropped.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::address::PostgresAddress;
use super::error::failed;
use super::notify_connection::{CHANNEL, NotifyConnection};
use crate::BackendError;
use crate::key_hints::KeyHints;

/// Minimum and maximum time to wait before connecting again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

pub(super) struct ReleaseListener {
    task: JoinHandle<()>,
}

impl ReleaseListener {
    pub(super) fn start(server: PostgresAddress, hints: Arc<KeyHints>) -> Self {
        Self { task: tokio::spawn(listen(server, hints)) }
    }

    pub(super) fn stop(&self) {
        self.task.abort();
    }
}

impl Drop for ReleaseListener {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn listen(server: PostgresAddress, hints: Arc<KeyHints>) {
    let mut pause = PAUSE.0;
    loop {
        match subscribe(&server, &hints).await {
            Ok(wire) => {
                pause = PAUSE.0;
                hints.wake_all();
                let why = wire.ended().await;
                tracing::debug!(why, "the connection that listens for freed locks ended");
            }
            Err(error) => {
                tracing::debug!(%error, "connecting to listen for freed locks failed; they are polled")
            }
        }
        tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
        pause = (pause * 2).min(PAUSE.1);
    }
}

async fn subscribe(
    server: &PostgresAddress,
    hints: &Arc<KeyHints>,
) -> Result<NotifyConnection, BackendError> {
    let wire = NotifyConnection::connect(server, hints.clone()).await?;
    let listened = wire.client.batch_execute(&format!("LISTEN {CHANNEL}")).await;
    listened.map_err(|error| failed("LISTEN", &error))?;
    Ok(wire)
}
