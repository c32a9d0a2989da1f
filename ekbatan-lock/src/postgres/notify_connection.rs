//! A long-lived connection that passes on notifications and reports how it ended.
//!
//! Invariants: [`NotifyConnection::ended`] resolves once the connection has ended. Dropping the
//! [`NotifyConnection`] ends the connection.

use std::future::poll_fn;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio_postgres::{AsyncMessage, Client};

use super::address::PostgresAddress;
use super::error::{describe, not_connected};
use crate::BackendError;
use crate::key_hints::KeyHints;

/// The channel on which processes notify each other of released keys.
pub(super) const CHANNEL: &str = "ekbatan_lock";

pub(super) struct NotifyConnection {
    pub(super) client: Client,
    end: watch::Receiver<Option<String>>,
    driver: AbortHandle,
}

impl NotifyConnection {
    /// Connects. Notifications wake the listeners in `hints`.
    pub(super) async fn connect(
        server: &PostgresAddress,
        hints: Arc<KeyHints>,
    ) -> Result<Self, BackendError> {
        let connected = server.connect().await;
        let (client, mut connection) = connected.map_err(|error| not_connected(&error))?;
        let (ending, end) = watch::channel(None);
        let driver = tokio::spawn(async move {
            let why = loop {
                match poll_fn(|cx| connection.poll_message(cx)).await {
                    Some(Ok(AsyncMessage::Notification(notification)))
                        if notification.channel() == CHANNEL =>
                    {
                        hints.wake(notification.payload());
                    }
                    Some(Ok(_)) => {}
                    Some(Err(error)) => break describe(&error),
                    None => break "the connection was closed".to_owned(),
                }
            };
            // Close the socket before reporting the end.
            drop(connection);
            ending.send_replace(Some(why));
        });
        Ok(Self { client, end, driver: driver.abort_handle() })
    }

    /// Resolves with the reason when the connection has ended.
    pub(super) async fn ended(&self) -> String {
        let mut end = self.end.clone();
        match end.wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or_default(),
            Err(_) => "the connection was dropped".to_owned(),
        }
    }

    /// Closes the socket without waiting for the server.
    pub(super) fn cut(&self) {
        self.driver.abort();
    }
}
