//! The connection on which a backend learns of grants that are handed over to it.
//!
//! Invariants: a connection that is lost is opened again, and all waiting requests are repeated
//! then, because messages may have been missed. A connection on which the server does not answer
//! is given up. The task ends when its owner is dropped.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::address::PostgresAddress;
use super::error::failed;
use super::key_data;
use super::lease_waiters::{DeafOnDrop, LeaseWaiters};
use super::notify_connection::NotifyConnection;
use super::pool::ANSWER;
use crate::BackendError;

/// Minimum and maximum time to wait before connecting again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

pub(super) struct HandOverListener {
    task: JoinHandle<()>,
}

impl HandOverListener {
    pub(super) fn start(
        server: PostgresAddress,
        channel: String,
        waiters: Arc<LeaseWaiters>,
    ) -> Self {
        Self { task: tokio::spawn(listen(server, channel, waiters)) }
    }

    pub(super) fn stop(&self) {
        self.task.abort();
    }
}

impl Drop for HandOverListener {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn listen(server: PostgresAddress, channel: String, waiters: Arc<LeaseWaiters>) {
    let _deaf = DeafOnDrop(waiters.clone());
    let mut pause = PAUSE.0;
    loop {
        match subscribe(&server, &channel, &waiters).await {
            Ok((connection, direct)) => {
                pause = PAUSE.0;
                // A pooler may give the server's process to somebody else between two messages.
                waiters.set_listening(direct);
                let why = connection.ended().await;
                tracing::debug!(why, "the connection that listens for granted locks ended");
                waiters.set_listening(false);
            }
            Err(error) => {
                tracing::debug!(%error, "connecting to listen for granted locks failed; they are polled")
            }
        }
        tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
        pause = (pause * 2).min(PAUSE.1);
    }
}

/// The connection, and whether it reaches the server itself.
async fn subscribe(
    server: &PostgresAddress,
    channel: &str,
    waiters: &Arc<LeaseWaiters>,
) -> Result<(NotifyConnection, bool), BackendError> {
    let waiters = waiters.clone();
    let message = move |text: &str| waiters.message(text);
    let connection = NotifyConnection::connect(server, message).await?;
    let client = &connection.client;
    let subscribe = async {
        let direct = key_data::is_direct(client).await?;
        client.batch_execute(&format!("LISTEN {channel}")).await?;
        Ok(direct)
    };
    let subscribed = tokio::time::timeout(ANSWER, subscribe).await;
    let subscribed = subscribed
        .map_err(|_| BackendError::unavailable(format!("LISTEN: no answer within {ANSWER:?}")))?;
    let direct = subscribed.map_err(|error: tokio_postgres::Error| failed("LISTEN", &error))?;
    Ok((connection, direct))
}
