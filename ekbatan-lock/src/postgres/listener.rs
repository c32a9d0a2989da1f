//! The one connection of a backend that hears of keys that were given back.
//!
//! What always holds: when it is lost it is made again, and whoever listens is told once, as
//! a hint may have been missed. It ends when its owner is dropped.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::address::Server;
use super::error::failed;
use super::hints::Hints;
use super::wire::{CHANNEL, Wire};
use crate::BackendError;

/// How long to wait before connecting again, at least and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

pub(super) struct Listener {
    task: JoinHandle<()>,
}

impl Listener {
    pub(super) fn start(server: Server, hints: Arc<Hints>) -> Self {
        Self { task: tokio::spawn(listen(server, hints)) }
    }

    pub(super) fn stop(&self) {
        self.task.abort();
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn listen(server: Server, hints: Arc<Hints>) {
    let mut pause = PAUSE.0;
    loop {
        match subscribe(&server, &hints).await {
            Ok(wire) => {
                pause = PAUSE.0;
                hints.tell_all();
                let why = wire.ended().await;
                tracing::debug!(why, "the connection that listens for freed locks ended");
            }
            Err(error) => {
                tracing::debug!(%error, "nobody listens for freed locks; they are polled")
            }
        }
        tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
        pause = (pause * 2).min(PAUSE.1);
    }
}

async fn subscribe(server: &Server, hints: &Arc<Hints>) -> Result<Wire, BackendError> {
    let wire = Wire::connect(server, hints.clone()).await?;
    let listened = wire.client.batch_execute(&format!("LISTEN {CHANNEL}")).await;
    listened.map_err(|error| failed("LISTEN", &error))?;
    Ok(wire)
}
