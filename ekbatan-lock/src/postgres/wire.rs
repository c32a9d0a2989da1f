//! A connection that lives long, of which one hears what it brings and how it ends.
//!
//! What always holds: [`Wire::ended`] answers once the connection is over, and it is over once
//! the wire is dropped.

use std::future::poll_fn;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio_postgres::{AsyncMessage, Client};

use super::address::Server;
use super::error::{failed, told};
use super::hints::Hints;
use crate::BackendError;

/// On which channel processes tell each other that a key was given back.
pub(super) const CHANNEL: &str = "ekbatan_lock";

pub(super) struct Wire {
    pub(super) client: Client,
    end: watch::Receiver<Option<String>>,
    driver: AbortHandle,
}

impl Wire {
    /// Connects. What the server sends on its own goes to `hints`.
    pub(super) async fn connect(server: &Server, hints: Arc<Hints>) -> Result<Self, BackendError> {
        let connected = server.connect().await;
        let (client, mut connection) =
            connected.map_err(|error| failed("no connection to the lock database", &error))?;
        let (ending, end) = watch::channel(None);
        let driver = tokio::spawn(async move {
            let why = loop {
                match poll_fn(|cx| connection.poll_message(cx)).await {
                    Some(Ok(AsyncMessage::Notification(told))) if told.channel() == CHANNEL => {
                        hints.tell(told.payload());
                    }
                    Some(Ok(_)) => {}
                    Some(Err(error)) => break told(&error),
                    None => break "the connection was closed".to_owned(),
                }
            };
            // The socket is closed before anybody is told.
            drop(connection);
            ending.send_replace(Some(why));
        });
        Ok(Self { client, end, driver: driver.abort_handle() })
    }

    /// How the connection ended, once it has.
    pub(super) async fn ended(&self) -> String {
        let mut end = self.end.clone();
        match end.wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or_default(),
            Err(_) => "the connection was given up".to_owned(),
        }
    }

    /// Closes the socket without a word, for a server that does not answer.
    pub(super) fn cut(&self) {
        self.driver.abort();
    }
}
