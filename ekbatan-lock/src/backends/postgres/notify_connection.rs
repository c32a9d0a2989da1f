//! A long-lived connection that passes on notifications and reports how it ended.
//!
//! Invariants: [`NotifyConnection::ended`] resolves once the connection has ended. Dropping the
//! [`NotifyConnection`] closes the socket, also while the server owes an answer. Opening a
//! connection takes no longer than [`ANSWER`]: the driver's own limit ends when the server has
//! accepted the connection.

use std::future::poll_fn;

use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio_postgres::{AsyncMessage, Client};

use super::address::PostgresAddress;
use super::error::{describe, not_connected};
use super::pool::ANSWER;
use crate::BackendError;

pub(super) struct NotifyConnection {
    pub(super) client: Client,
    end: watch::Receiver<Option<String>>,
    driver: AbortHandle,
}

impl NotifyConnection {
    /// Connects. `notified` gets the text of each notification.
    pub(super) async fn connect(
        server: &PostgresAddress,
        notified: impl Fn(&str) + Send + 'static,
    ) -> Result<Self, BackendError> {
        let connected = tokio::time::timeout(ANSWER, server.connect()).await.map_err(|_| {
            let why = format!("no connection to the lock database within {ANSWER:?}");
            BackendError::unavailable(why)
        })?;
        let (client, mut connection) = connected.map_err(|error| not_connected(&error))?;
        let (ending, end) = watch::channel(None);
        let driver = tokio::spawn(async move {
            let why = loop {
                match poll_fn(|cx| connection.poll_message(cx)).await {
                    Some(Ok(AsyncMessage::Notification(notification))) => {
                        notified(notification.payload());
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

impl Drop for NotifyConnection {
    fn drop(&mut self) {
        self.cut();
    }
}
