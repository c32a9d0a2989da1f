//! A connection and its channels.
//!
//! Invariant: a channel carries one wave of messages at a time. The server returns a message that nobody
//! can get before it confirms it, but the client hands the return to any confirmation of the channel. So
//! who has all confirmations of a wave has all of its returns.

use std::sync::{Mutex, PoisonError};

use lapin::options::{ConfirmSelectOptions, ExchangeDeclareOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties, ExchangeKind};

use crate::error::RabbitMqError;
use crate::settings::Settings;

/// A connection, until it is lost or a message was not answered.
pub(crate) struct RabbitMqConnection {
    connection: Connection,
    /// Those that no wave uses.
    channels: Mutex<Vec<Channel>>,
}

impl RabbitMqConnection {
    pub(crate) async fn connect(settings: &Settings) -> Result<Self, RabbitMqError> {
        // The client does not connect again by itself: what it then sent would be out of order.
        let properties = ConnectionProperties::default().with_connection_name("ekbatan".into());
        let (uri, tls) = (settings.uri()?, settings.tls()?);
        let connecting = async {
            let runtime = lapin::runtime::default_runtime()?;
            Connection::connect_uri_with_config(uri, properties, tls, runtime).await
        };
        let connection = match tokio::time::timeout(settings.ack_timeout, connecting).await {
            Ok(connection) => connection?,
            Err(_) => return Err(RabbitMqError::Silent(settings.ack_timeout)),
        };
        Ok(Self { connection, channels: Mutex::default() })
    }

    pub(crate) fn is_usable(&self) -> bool {
        self.connection.status().connected()
    }

    /// A channel for one wave.
    pub(crate) async fn channel(&self) -> Result<Channel, RabbitMqError> {
        let idle = self.channels().pop();
        if let Some(channel) = idle.filter(|channel| channel.status().connected()) {
            return Ok(channel);
        }
        let channel = self.connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(channel)
    }

    /// Gives a channel back, all of whose messages are confirmed.
    pub(crate) fn give_back(&self, channel: Channel) {
        self.channels().push(channel);
    }

    /// Fails if there is no such exchange.
    pub(crate) async fn check_exchange(&self, exchange: &str) -> Result<(), RabbitMqError> {
        let channel = self.channel().await?;
        if exchange.is_empty() {
            self.give_back(channel);
            return Ok(());
        }
        let options = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
        // Only the name counts.
        let declared = channel.exchange_declare(
            exchange.into(),
            ExchangeKind::Direct,
            options,
            FieldTable::default(),
        );
        let unusable = |source| RabbitMqError::Exchange { exchange: exchange.to_owned(), source };
        declared.await.map_err(unusable)?;
        self.give_back(channel);
        Ok(())
    }

    /// Ends the connection. Nothing that was handed over is sent afterwards.
    pub(crate) async fn end(&self) {
        self.channels().clear();
        // It may be lost already, and the server may not answer: the client ends it all the same.
        let closing = self.connection.close(200, "a message was not confirmed".into());
        let _ = tokio::time::timeout(std::time::Duration::from_secs(1), closing).await;
    }

    fn channels(&self) -> std::sync::MutexGuard<'_, Vec<Channel>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
