//! A connection and its channels.
//!
//! Invariant: a channel carries one wave of messages at a time. The server returns a message that nobody
//! can get before it confirms it, but the client hands the return to any confirmation of the channel. So
//! who has all confirmations of a wave has all of its returns.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lapin::options::{ConfirmSelectOptions, ExchangeDeclareOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties, ExchangeKind};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::error::RabbitMqError;
use crate::settings::Settings;
use crate::socket::{self, ConnectionSocket, EndsSocket};

/// How long a server may take to answer that a connection is closed.
const LONGEST_CLOSE: Duration = Duration::from_secs(1);

/// A connection, until it is lost or a message was not answered.
pub(crate) struct RabbitMqConnection {
    connection: Connection,
    socket: Arc<ConnectionSocket>,
    /// Those that no wave uses.
    channels: Mutex<Vec<Channel>>,
    /// How many waves the relay has given up that the server has not confirmed yet.
    unconfirmed: Arc<watch::Sender<usize>>,
}

impl RabbitMqConnection {
    pub(crate) async fn connect(settings: &Settings) -> Result<Self, RabbitMqError> {
        // The client does not connect again by itself: what it then sent would be out of order.
        let properties = ConnectionProperties::default().with_connection_name("ekbatan".into());
        let (uri, tls) = (settings.uri()?, settings.tls()?);
        let socket = Arc::new(ConnectionSocket::default());
        // An attempt that is given up, or dropped, would go on otherwise.
        let ends_socket = EndsSocket(&socket);
        let connecting = socket::connect(uri, tls, properties, socket.clone());
        let connection = match tokio::time::timeout(settings.ack_timeout, connecting).await {
            Ok(connection) => connection?,
            Err(_) => return Err(RabbitMqError::Silent(settings.ack_timeout)),
        };
        std::mem::forget(ends_socket);
        Ok(Self { connection, socket, channels: Mutex::default(), unconfirmed: Arc::default() })
    }

    pub(crate) fn is_connected(&self) -> bool {
        // The client notices only a moment later that its socket has ended.
        !self.socket.has_ended() && self.connection.status().connected()
    }

    /// Whether the server reads nothing from the connection, because an alarm is in force. It says so
    /// after the first message.
    pub(crate) fn is_blocked(&self) -> bool {
        self.is_connected() && self.connection.status().blocked()
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
        let unusable = |source: lapin::Error| {
            if source.is_amqp_soft_error() {
                RabbitMqError::of_exchange(exchange, source)
            } else {
                RabbitMqError::Server(source)
            }
        };
        declared.await.map_err(unusable)?;
        self.give_back(channel);
        Ok(())
    }

    /// Takes note of a wave that was not confirmed in time, although the connection stays.
    pub(crate) fn confirms_later(
        &self,
        runtime: &Handle,
        confirmed: impl Future<Output = ()> + Send + 'static,
    ) {
        // It ends with the connection at the latest.
        runtime.spawn(UnconfirmedWave::new(&self.unconfirmed, &self.socket).until(confirmed));
    }

    /// Waits until the client has nothing more to send of the waves that were given up.
    pub(crate) async fn all_confirmed(&self) {
        // The sender is here.
        let _ = self.unconfirmed.subscribe().wait_for(|waves| *waves == 0).await;
    }

    /// Ends the connection. The client sends nothing more; what the socket had taken may still reach the server.
    pub(crate) async fn end(&self) {
        // The server may not answer, or not read.
        let _ends_socket = EndsSocket(&self.socket);
        self.channels().clear();
        let closing = self.connection.close(200, "a message was not confirmed".into());
        let _ = tokio::time::timeout(LONGEST_CLOSE, closing).await;
    }

    /// Ends the connection at once, without waiting for the server.
    pub(crate) fn end_now(&self) {
        self.channels().clear();
        self.socket.end();
    }

    fn channels(&self) -> std::sync::MutexGuard<'_, Vec<Channel>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RabbitMqConnection {
    fn drop(&mut self) {
        // The client closes other connections by itself. It keeps a blocked one, with what was handed over.
        if self.is_blocked() {
            self.socket.end();
        }
    }
}

/// A wave that the relay has given up and the server has not confirmed yet.
struct UnconfirmedWave {
    waves: Arc<watch::Sender<usize>>,
    socket: Arc<ConnectionSocket>,
    /// Whether it was confirmed, or its channel is over.
    has_ended: bool,
}

impl UnconfirmedWave {
    fn new(waves: &Arc<watch::Sender<usize>>, socket: &Arc<ConnectionSocket>) -> Self {
        waves.send_modify(|waves| *waves += 1);
        Self { waves: waves.clone(), socket: socket.clone(), has_ended: false }
    }

    async fn until(mut self, confirmed: impl Future<Output = ()>) {
        confirmed.await;
        self.has_ended = true;
    }
}

impl Drop for UnconfirmedWave {
    /// Ends the connection if nobody waits for the confirmation any more, because the runtime has ended.
    fn drop(&mut self) {
        if !self.has_ended {
            self.socket.end();
        }
        self.waves.send_modify(|waves| *waves -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unconfirmed_wave_ends_with_its_confirmation_or_its_runtime() {
        let (waves, socket) = (Arc::default(), Arc::default());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.spawn(UnconfirmedWave::new(&waves, &socket).until(std::future::pending()));
        runtime.block_on(UnconfirmedWave::new(&waves, &socket).until(std::future::ready(())));
        assert!(*waves.borrow() == 1 && !socket.has_ended());
        drop(runtime);
        assert!(*waves.borrow() == 0 && socket.has_ended());
    }
}
