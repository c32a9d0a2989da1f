//! RabbitMQ as a broker.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ekbatan_core::config::{ExposeSecret, RelayConfig};
use ekbatan_relay::{
    Broker, BrokerError, OutgoingMessage, PUBLISH_TIME, Receipt, RelaySender, RelayTerms,
    check_ack_timeout,
};
use tokio::time::Instant;

use crate::connection::RabbitMqConnection;
use crate::error::RabbitMqError;
use crate::settings::Settings;
use crate::wave::{self, Wave, WaveOutcome};

/// The time after which an answer is not waited for any more.
const ACK_TIMEOUT: Duration = Duration::from_secs(10);

/// The greatest message of RabbitMQ 4, unless it is configured otherwise. Earlier ones take more.
const MOST_BYTES: usize = 16 * 1024 * 1024;

/// An exchange of RabbitMQ.
///
/// - Messages are persistent and confirmed, and have the event's id as their `message-id`. Use durable
///   queues, better quorum queues.
/// - They are mandatory: a message that no queue gets is refused, and tried again. RabbitMQ confirms such a
///   message, too, and returns it; the return is what counts.
/// - A queue that is full and rejects (`overflow: reject-publish`) stops the relay until it has room.
/// - While there is no such exchange, or the user may not write to it, the relay waits, and no attempt of an event
///   is counted.
/// - A server that is short of memory or disk blocks the connection. Nothing is sent until that is over, and what
///   the server had got before comes once more.
/// - After a connection has ended, what its socket had taken may still reach the server, as a repetition.
/// - RabbitMQ recognises no repetitions, and cannot keep a node from sending that was frozen and comes
///   back: receivers recognise a repetition by the `message-id`.
/// - Of each model, a message is sent once the one before it is confirmed; those of different models are
///   sent together.
///
/// ```
/// # use ekbatan_relay::Relay;
/// # use ekbatan_relay_rabbitmq::RabbitMqBroker;
/// # fn relay() -> Result<Relay, Box<dyn std::error::Error>> {
/// let broker = RabbitMqBroker::new("amqp://127.0.0.1:5672/%2f").exchange("wallets");
/// let relay = Relay::new("wallets", broker).topic("wallet.{event}")?;
/// # Ok(relay) }
/// ```
pub struct RabbitMqBroker {
    settings: Settings,
    connection: Mutex<Option<Arc<RabbitMqConnection>>>,
    /// Held while a connection is opened, so that there is one at a time.
    opening: tokio::sync::Mutex<()>,
}

impl RabbitMqBroker {
    /// The server at `amqp://HOST:5672/VHOST`, or `amqps://..` for encryption. Connects when a node starts.
    /// Messages go to the default exchange, where the topic is the name of a queue.
    pub fn new(url: impl Into<String>) -> Self {
        let settings = Settings {
            url: url.into(),
            login: None,
            requires_tls: false,
            root_certificate: None,
            exchange: String::new(),
            most_bytes: MOST_BYTES,
            ack_timeout: ACK_TIMEOUT,
        };
        Self { settings, connection: Mutex::default(), opening: tokio::sync::Mutex::default() }
    }

    /// The server as a configuration says.
    pub fn configured(config: &RelayConfig) -> Self {
        let mut broker = Self::new(config.url.clone().unwrap_or_default());
        if let Some(exchange) = &config.exchange {
            broker = broker.exchange(exchange);
        }
        if let Some(user) = &config.username {
            let password = config.password.as_ref().map(ExposeSecret::expose_secret);
            broker = broker.login(user, password.unwrap_or_default());
        }
        if config.tls == Some(true) {
            broker = broker.require_tls();
        }
        if let Some(file) = &config.tls_root_cert {
            broker = broker.root_certificate(file);
        }
        match config.ack_timeout {
            Some(timeout) => broker.ack_timeout(timeout),
            None => broker,
        }
    }

    /// Sets the exchange that routes the messages by their topics. It must be there when a node starts.
    #[must_use]
    pub fn exchange(mut self, exchange: impl Into<String>) -> Self {
        self.settings.exchange = exchange.into();
        self
    }

    /// Logs in by a name and a password.
    #[must_use]
    pub fn login(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.settings.login = Some((user.into(), password.into()));
        self
    }

    /// Encrypts, whatever the scheme of the address is.
    #[must_use]
    pub fn require_tls(mut self) -> Self {
        self.settings.requires_tls = true;
        self
    }

    /// Encrypts, and trusts the certificates of a file.
    #[must_use]
    pub fn root_certificate(mut self, file: impl Into<PathBuf>) -> Self {
        self.settings.root_certificate = Some(file.into());
        self
    }

    /// Sets the greatest payload that is sent; 16 MiB unless set, as RabbitMQ 4 takes it. The server closes
    /// the channel of a greater one.
    #[must_use]
    pub fn most_bytes(mut self, bytes: usize) -> Self {
        self.settings.most_bytes = bytes;
        self
    }

    /// Sets how long an answer of the server is waited for; 10 s unless set.
    #[must_use]
    pub fn ack_timeout(mut self, timeout: Duration) -> Self {
        self.settings.ack_timeout = timeout;
        self
    }

    /// The connection, unless it is lost.
    fn present(&self) -> Option<Arc<RabbitMqConnection>> {
        self.state().clone().filter(|connection| connection.is_connected())
    }

    /// The connection; a new one if it is lost.
    async fn connection(&self) -> Result<Arc<RabbitMqConnection>, RabbitMqError> {
        if let Some(present) = self.present() {
            return Ok(present);
        }
        // While the server is silent, each call that opens a connection takes the whole time. They must not add up.
        let timeout = self.settings.ack_timeout;
        let Ok(_opening) = tokio::time::timeout(timeout, self.opening.lock()).await else {
            return Err(RabbitMqError::Silent(timeout));
        };
        // The other call may have opened it.
        if let Some(present) = self.present() {
            return Ok(present);
        }
        let lost = self.state().take();
        if let Some(lost) = lost {
            lost.end().await;
        }
        let new = Arc::new(RabbitMqConnection::connect(&self.settings).await?);
        *self.state() = Some(new.clone());
        Ok(new)
    }

    fn state(&self) -> MutexGuard<'_, Option<Arc<RabbitMqConnection>>> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn look(&self) -> Result<(), RabbitMqError> {
        let connection = self.connection().await?;
        if connection.is_blocked() {
            return Err(RabbitMqError::Blocked);
        }
        let timeout = self.settings.ack_timeout;
        let looking = async {
            connection.all_confirmed().await;
            connection.check_exchange(&self.settings.exchange).await
        };
        match tokio::time::timeout(timeout, looking).await {
            Ok(looked) => looked,
            Err(_) => {
                end_unless_blocked(&connection).await;
                Err(RabbitMqError::Silent(timeout))
            }
        }
    }

    /// Sends a wave on a channel of its own.
    async fn send(
        &self,
        connection: &Arc<RabbitMqConnection>,
        messages: &[OutgoingMessage],
    ) -> WaveOutcome {
        let Settings { exchange, ack_timeout, .. } = &self.settings;
        let until = Instant::now() + *ack_timeout;
        let why = match tokio::time::timeout_at(until, connection.channel()).await {
            Ok(Ok(channel)) => {
                let rest = until.saturating_duration_since(Instant::now());
                return Wave::new(connection.clone(), channel).send(exchange, messages, rest).await;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no channel within {ack_timeout:?}"),
        };
        end_unless_blocked(connection).await;
        WaveOutcome::Unavailable(why)
    }

    /// Sends messages of different models. If the server closes the channel because of one of them, each is
    /// sent by itself, so that it is known which one it was.
    async fn receipts(
        &self,
        connection: &Arc<RabbitMqConnection>,
        messages: &[OutgoingMessage],
    ) -> Vec<Receipt> {
        // What is sent must be known within the time of a call.
        let until = Instant::now() + PUBLISH_TIME.saturating_sub(self.settings.ack_timeout);
        match self.send(connection, messages).await {
            WaveOutcome::All(receipts) => receipts,
            WaveOutcome::Unavailable(why) => vec![Receipt::unavailable(why); messages.len()],
            WaveOutcome::Closed(error) if messages.len() == 1 => {
                vec![wave::receipt_of_close(&error)]
            }
            WaveOutcome::Closed(_) => {
                let mut receipts = Vec::with_capacity(messages.len());
                for message in messages {
                    // At least one, or the message that the server refuses is never found.
                    if Instant::now() >= until && !receipts.is_empty() {
                        break;
                    }
                    match self.send(connection, std::slice::from_ref(message)).await {
                        WaveOutcome::All(of_one) => receipts.extend(of_one),
                        WaveOutcome::Closed(error) => receipts.push(wave::receipt_of_close(&error)),
                        WaveOutcome::Unavailable(why) => {
                            receipts.push(Receipt::unavailable(why));
                            break;
                        }
                    }
                }
                receipts.resize(messages.len(), Receipt::NotSent);
                receipts
            }
        }
    }
}

/// Ends a connection on which an answer is missing. One that the server has blocked stays, see [`Wave`].
async fn end_unless_blocked(connection: &RabbitMqConnection) {
    if !connection.is_blocked() {
        connection.end().await;
    }
}

impl Broker for RabbitMqBroker {
    fn describe(&self) -> String {
        format!("RabbitMQ at {}", self.settings.shown())
    }

    async fn check(&self, _terms: RelayTerms) -> Result<(), BrokerError> {
        check_ack_timeout(self.settings.ack_timeout)?;
        let bytes = self.settings.exchange.len();
        if bytes > wave::LONGEST_NAME {
            return Err(RabbitMqError::ExchangeName { bytes, most: wave::LONGEST_NAME }.into());
        }
        Ok(self.look().await?)
    }

    async fn open(&self, _sender: RelaySender) -> Result<(), BrokerError> {
        Ok(self.look().await?)
    }

    async fn publish(&self, _sender: RelaySender, messages: Vec<OutgoingMessage>) -> Vec<Receipt> {
        // Another one is opened only by `open`: so nothing is sent while this relay counts as closed.
        let Some(connection) = self.present() else {
            return vec![Receipt::unavailable("the connection is lost"); messages.len()];
        };
        if connection.is_blocked() {
            return vec![Receipt::unavailable(RabbitMqError::Blocked); messages.len()];
        }
        let most = self.settings.most_bytes;
        let faults: Vec<Option<Receipt>> =
            messages.iter().map(|message| wave::fault(message, most)).collect();
        let mut fine = messages;
        let mut places = faults.iter();
        fine.retain(|_| places.next().is_some_and(Option::is_none));
        let mut sent = Vec::new();
        if !fine.is_empty() {
            sent = self.receipts(&connection, &fine).await;
        }
        let mut sent = sent.into_iter();
        let receipt = |fault: Option<Receipt>| {
            fault.unwrap_or_else(|| sent.next().unwrap_or(Receipt::NotSent))
        };
        faults.into_iter().map(receipt).collect()
    }
}

impl std::fmt::Debug for RabbitMqBroker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RabbitMqBroker")
            .field("server", &self.settings.shown())
            .field("exchange", &self.settings.exchange)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use ekbatan_core::domain::ShardIdentifier;
    use futures_util::FutureExt;
    use futures_util::future::join_all;
    use tokio::net::TcpListener;
    use uuid::Uuid;

    use super::*;

    /// A server that accepts connections and says nothing.
    async fn silent_server() -> (TcpListener, RabbitMqBroker) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, RabbitMqBroker::new(format!("amqp://{address}/%2f")))
    }

    fn sender() -> RelaySender {
        RelaySender::new("wallets", ShardIdentifier::DEFAULT, Uuid::nil())
    }

    #[tokio::test]
    async fn a_publication_does_not_wait_for_a_connection_that_is_opened() {
        let (_listener, broker) = silent_server().await;
        let mut opening = Box::pin(broker.open(sender()));
        assert!((&mut opening).now_or_never().is_none());
        let message = OutgoingMessage::new(Uuid::nil(), "topic", "key", "{}");
        let receipts = broker.publish(sender(), vec![message]).now_or_never();
        assert!(matches!(receipts.as_deref(), Some([Receipt::Unavailable { .. }])), "{receipts:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_server_keeps_nobody_waiting_for_the_attempts_of_all() {
        let (_listener, broker) = silent_server().await;
        let began = Instant::now();
        let opened = join_all((0..5).map(|_| broker.open(sender()))).await;
        let silent = |of: &Result<(), BrokerError>| {
            of.as_ref().is_err_and(|error| error.to_string().contains("did not answer within 10s"))
        };
        assert!(opened.iter().all(silent), "{opened:?}");
        // One waits for the attempt of another one, and then for its own.
        assert!(began.elapsed() < ACK_TIMEOUT * 3, "{:?}", began.elapsed());
    }
}
