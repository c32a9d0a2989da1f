//! NATS JetStream as a broker.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::context::{PublishAckFuture, PublishError};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::Info;
use ekbatan_core::config::{ExposeSecret, RelayConfig};
use ekbatan_relay::{
    Broker, BrokerError, OutgoingMessage, Receipt, RelaySender, RelayTerms, check_ack_timeout,
};
use futures_util::future::join_all;
use tokio::sync::Mutex;

use crate::connection::{NatsConnection, check_stream, horizon, warn_of_drops};
use crate::error::NatsError;
use crate::receipts::{self, Answer};
use crate::settings::{Login, Settings};

/// The time after which an answer is not waited for any more.
const ACK_TIMEOUT: Duration = Duration::from_secs(10);

/// A stream of NATS JetStream.
///
/// - A message has the event's id as its `Nats-Msg-Id`. The stream drops a repetition within its
///   duplicate window, and says so; that counts as acknowledged. A node does not start if the window is
///   shorter than the time within which a relay repeats a message: after a node died, or after a batch was
///   not answered. A message may be there twice if no node marks or sends it again within the window: because the
///   server, the database or all nodes are away for longer, because an operator pauses the relay meanwhile, or
///   because the messages of its model before it take long.
/// - NATS cannot keep a node from sending that was frozen and comes back. What it sends then are
///   repetitions, which the window drops as long as it lasts.
/// - Of each model, a message is sent once the one before it is acknowledged; those of different models
///   are sent together.
/// - A stream gets an event from one relay only: it would take the message of another one for a repetition.
///
/// ```
/// # use ekbatan_relay::Relay;
/// # use ekbatan_relay_nats::NatsBroker;
/// let broker = NatsBroker::new("nats://127.0.0.1:4222", "wallets").create_stream(["ekbatan.>"]);
/// let relay = Relay::new("wallets", broker);
/// ```
pub struct NatsBroker {
    settings: Settings,
    connection: Mutex<Option<Arc<NatsConnection>>>,
    terms: std::sync::Mutex<Option<RelayTerms>>,
}

impl NatsBroker {
    /// A stream of the server at `nats://HOST:PORT`, or `tls://HOST:PORT` for encryption. Several servers
    /// of a cluster are separated by commas. A login may stand before a host: `USER:PASSWORD@` or `TOKEN@`, with
    /// percent-escapes such as `%40`. Connects when a node starts.
    pub fn new(url: impl Into<String>, stream: impl Into<String>) -> Self {
        let settings = Settings {
            url: url.into(),
            login: None,
            root_certificate: None,
            requires_tls: false,
            stream: stream.into(),
            create: None,
            replicas: 1,
            ack_timeout: ACK_TIMEOUT,
        };
        Self { settings, connection: Mutex::default(), terms: std::sync::Mutex::default() }
    }

    /// A stream as a configuration says.
    pub fn configured(config: &RelayConfig) -> Self {
        let url = config.url.clone().unwrap_or_default();
        let mut broker = Self::new(url, config.stream.clone().unwrap_or_default());
        if !config.create_stream.is_empty() {
            broker = broker.create_stream(&config.create_stream);
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

    /// Creates the stream with these subjects if it is not there. A stream that is there stays as it is.
    #[must_use]
    pub fn create_stream<S: Into<String>>(mut self, subjects: impl IntoIterator<Item = S>) -> Self {
        self.settings.create = Some(subjects.into_iter().map(Into::into).collect());
        self
    }

    /// Sets how many servers keep a stream that is created; 1 unless set.
    #[must_use]
    pub fn replicas(mut self, servers: usize) -> Self {
        self.settings.replicas = servers;
        self
    }

    /// Logs in by a name and a password.
    #[must_use]
    pub fn login(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.settings.login =
            Some(Login::Password { user: user.into(), password: password.into() });
        self
    }

    /// Logs in by a file of credentials (`.creds`).
    #[must_use]
    pub fn credentials_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.settings.login = Some(Login::CredentialsFile(file.into()));
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

    /// Sets how long an answer of the server is waited for; 10 s unless set.
    #[must_use]
    pub fn ack_timeout(mut self, timeout: Duration) -> Self {
        self.settings.ack_timeout = timeout;
        self
    }

    /// The connection; a new one if there is none that can be used.
    async fn connection(&self) -> Result<Arc<NatsConnection>, NatsError> {
        let mut connection = self.connection.lock().await;
        if let Some(present) = connection.as_ref().filter(|connection| connection.is_usable()) {
            return Ok(present.clone());
        }
        *connection = None;
        let new = Arc::new(NatsConnection::connect(&self.settings).await?);
        *connection = Some(new.clone());
        Ok(new)
    }

    /// Whether the server answers and the stream will do.
    async fn look(&self, terms: RelayTerms) -> Result<Info, NatsError> {
        let needed = horizon(terms, self.settings.ack_timeout);
        let connection = self.connection().await?;
        let looking = connection.stream_or_new(&self.settings, needed);
        // Each of the few requests has a time limit of its own.
        let info = looking.await.inspect_err(|_| connection.end())?;
        check_stream(&info, needed)?;
        Ok(info)
    }

    async fn hand_over(
        &self,
        connection: &NatsConnection,
        message: &OutgoingMessage,
    ) -> HandedOver {
        let denials = connection.denials.of(&message.topic);
        let publication = publication(message, &self.settings.stream);
        let ack = connection.jetstream.send_publish(message.topic.clone(), publication).await;
        HandedOver { denials, ack }
    }

    async fn receipt(
        &self,
        connection: &NatsConnection,
        message: &OutgoingMessage,
        handed_over: HandedOver,
    ) -> Receipt {
        match handed_over.answer(connection, message).await {
            Answer::Is(receipt) => receipt,
            Answer::NoStream => self.no_stream(connection, message).await,
        }
    }

    /// What became of a message that no stream took.
    async fn no_stream(&self, connection: &NatsConnection, message: &OutgoingMessage) -> Receipt {
        let name = &self.settings.stream;
        let subjects = match connection.stream(name).await {
            Ok(info) => info.config.subjects,
            Err(error) => return Receipt::unavailable(error),
        };
        if !receipts::has_subject(&subjects, &message.topic) {
            return Receipt::refused_for_now(format!(
                "the stream `{name}` does not take the subject `{}`, and no other stream does",
                message.topic
            ));
        }
        // It had no leader for a moment. It has one now.
        let again = self.hand_over(connection, message).await;
        match again.answer(connection, message).await {
            Answer::Is(receipt) => receipt,
            Answer::NoStream => Receipt::refused_for_now(format!(
                "the stream `{name}` has the subject `{}`, but did not take the message",
                message.topic
            )),
        }
    }
}

/// A message that was handed to the client.
struct HandedOver {
    /// How often its subject had been denied before.
    denials: u64,
    ack: Result<PublishAckFuture, PublishError>,
}

impl HandedOver {
    async fn answer(self, connection: &NatsConnection, message: &OutgoingMessage) -> Answer {
        let acknowledged = async {
            match self.ack {
                Ok(ack) => ack.await,
                Err(error) => Err(error),
            }
        };
        tokio::select! {
            biased;
            acknowledged = acknowledged => match acknowledged {
                // A repetition is there, too.
                Ok(_) => Answer::Is(Receipt::Accepted),
                Err(error) => receipts::of_error(&error, message, connection.max_payload()),
            },
            () = connection.denials.more_than(self.denials, &message.topic) => {
                Answer::Is(Receipt::refused_for_now(format!(
                    "the user has no permission to send to the subject `{}`",
                    message.topic
                )))
            }
        }
    }
}

impl Broker for NatsBroker {
    fn describe(&self) -> String {
        format!("NATS at {}", self.settings.shown())
    }

    async fn check(&self, terms: RelayTerms) -> Result<(), BrokerError> {
        check_ack_timeout(self.settings.ack_timeout)?;
        *self.terms.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(terms);
        warn_of_drops(&self.look(terms).await?.config);
        Ok(())
    }

    fn check_topic(&self, topic: &str) -> Result<(), BrokerError> {
        receipts::fault_of_subject(topic).map_or(Ok(()), |why| Err(why.into()))
    }

    async fn open(&self, _sender: RelaySender) -> Result<(), BrokerError> {
        let terms = *self.terms.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match terms {
            Some(terms) => Ok(self.look(terms).await.map(drop)?),
            None => Ok(self.connection().await.map(drop)?),
        }
    }

    async fn publish(&self, _sender: RelaySender, messages: Vec<OutgoingMessage>) -> Vec<Receipt> {
        // Another one is opened only by `open`: so nothing is sent while this relay counts as closed.
        let Some(connection) =
            self.connection.lock().await.clone().filter(|connection| connection.is_usable())
        else {
            let lost = Receipt::unavailable("the connection is lost");
            return vec![lost; messages.len()];
        };
        // All at once: the client has room for so many messages without an answer. A batch that waited for
        // room before it took its answers would keep the room of others, and they its own.
        let receipts = messages.iter().map(async |message| {
            if let Some(why) = receipts::fault_of_subject(&message.topic) {
                return Receipt::refused(why);
            }
            let handed_over = self.hand_over(&connection, message).await;
            self.receipt(&connection, message, handed_over).await
        });
        let receipts = join_all(receipts).await;
        let is_lost = receipts.iter().any(|receipt| matches!(receipt, Receipt::Unavailable { .. }));
        if is_lost || connection.denials.are_many() {
            connection.end();
        }
        receipts
    }
}

fn publication(message: &OutgoingMessage, stream: &str) -> PublishMessage {
    let mut headers = async_nats::HeaderMap::new();
    for (name, value) in message.headers() {
        headers.insert(name, value);
    }
    // First the headers: the others are added to them.
    PublishMessage::build()
        .headers(headers)
        .message_id(message.id.to_string())
        .expected_stream(stream)
        .payload(message.payload.clone().into())
}

impl std::fmt::Debug for NatsBroker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NatsBroker")
            .field("servers", &self.settings.shown())
            .field("stream", &self.settings.stream)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_kept_by_so_many_servers_whichever_is_said_first() {
        let broker = || NatsBroker::new("nats://a", "s");
        for broker in [
            broker().replicas(3).create_stream(["a.>"]),
            broker().create_stream(["a.>"]).replicas(3),
            broker().replicas(3).create_stream(["b"]).create_stream(["a.>"]),
        ] {
            assert_eq!(broker.settings.create, Some(vec!["a.>".to_owned()]));
            assert_eq!(broker.settings.replicas, 3);
        }
    }
}
