//! The settings of relays, which send events to message brokers.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;

use super::shown_address::shown;
use super::spelling::names;

/// An entry of `ekbatan.relay`: one relay, and its broker.
///
/// ```
/// use ekbatan_core::config::{EkbatanConfig, RelayBroker, RelayConfig};
///
/// let mut relay = RelayConfig::new("wallets", RelayBroker::Nats);
/// relay.url = Some("nats://localhost:4222".to_owned());
/// relay.stream = Some("wallets".to_owned());
/// let config = EkbatanConfig::single("sqlite:wallet.db").relay(relay);
/// config.check()?;
/// # Ok::<_, ekbatan_core::config::ConfigError>(())
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct RelayConfig {
    /// The stored name.
    pub name: String,
    /// The kind of broker.
    pub broker: RelayBroker,
    /// The address; none for the broker of this process.
    pub url: Option<String>,
    /// The user, if the address contains none.
    pub username: Option<String>,
    /// The password, if the address contains none.
    pub password: Option<SecretString>,
    /// Whether the connection is encrypted. Default: as the address says. `false` is refused if the address
    /// encrypts, and beside [`tls_root_cert`](Self::tls_root_cert).
    pub tls: Option<bool>,
    /// A file of root certificates. If it is given, the connection is encrypted.
    pub tls_root_cert: Option<PathBuf>,
    /// The models whose events are sent. With `events` empty, too: all events.
    pub models: Vec<String>,
    /// The events that are sent.
    pub events: Vec<String>,
    /// Where events go. Default `ekbatan.{namespace}.model.{model}`.
    pub topic: Option<String>,
    /// Kafka: how the user logs in. Default [`SaslMechanism::Plain`].
    pub sasl: Option<SaslMechanism>,
    /// NATS: the stream.
    pub stream: Option<String>,
    /// NATS: the subjects with which the stream is created if it is not there.
    pub create_stream: Vec<String>,
    /// RabbitMQ: the exchange. Default: the default exchange.
    pub exchange: Option<String>,
    /// How many events a batch has at most. Default 256.
    pub batch: usize,
    /// How many batches are under way at a time, on each shard. Default 2.
    pub batches: usize,
    /// How long an answer of the broker is waited for. Default: that of the broker.
    pub ack_timeout: Option<Duration>,
    /// The longest pause before a refused event is sent again. Default 60 s.
    pub longest_retry: Duration,
    /// After how many refusals an event is given up. Default: never.
    pub max_attempts: Option<u32>,
    /// Whether an event that is given up moves to the dead letters. Default `false`: it is parked.
    pub dead_letters: bool,
    /// Whether a new relay skips the events that are stored already. Default `false`.
    pub from_now_on: bool,
    /// Earlier names.
    pub aliases: Vec<String>,
}

impl fmt::Debug for RelayConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RelayConfig")
            .field("name", &self.name)
            .field("broker", &self.broker)
            .field("url", &self.url.as_deref().map(shown))
            .field("username", &self.username)
            .field("password", &self.password)
            .field("tls", &self.tls)
            .field("tls_root_cert", &self.tls_root_cert)
            .field("models", &self.models)
            .field("events", &self.events)
            .field("topic", &self.topic)
            .field("sasl", &self.sasl)
            .field("stream", &self.stream)
            .field("create_stream", &self.create_stream)
            .field("exchange", &self.exchange)
            .field("batch", &self.batch)
            .field("batches", &self.batches)
            .field("ack_timeout", &self.ack_timeout)
            .field("longest_retry", &self.longest_retry)
            .field("max_attempts", &self.max_attempts)
            .field("dead_letters", &self.dead_letters)
            .field("from_now_on", &self.from_now_on)
            .field("aliases", &self.aliases)
            .finish()
    }
}

/// How a user logs in to Kafka.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SaslMechanism {
    /// `PLAIN`.
    Plain,
    /// `SCRAM-SHA-256`.
    ScramSha256,
    /// `SCRAM-SHA-512`.
    ScramSha512,
}

impl SaslMechanism {
    const ALL: [(&str, Self); 3] = [
        ("plain", Self::Plain),
        ("scram-sha-256", Self::ScramSha256),
        ("scram-sha-512", Self::ScramSha512),
    ];
    pub(super) const NAMES: [&str; Self::ALL.len()] = names(&Self::ALL);

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(known, _)| *known == name).map(|(_, mechanism)| mechanism)
    }
}

/// The kind of a broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum RelayBroker {
    /// The broker of this process.
    #[default]
    InProcess,
    /// NATS JetStream.
    Nats,
    /// RabbitMQ.
    RabbitMq,
    /// Apache Kafka.
    Kafka,
}

impl RelayConfig {
    /// A relay of all events, with every default.
    pub fn new(name: impl Into<String>, broker: RelayBroker) -> Self {
        Self {
            name: name.into(),
            broker,
            url: None,
            username: None,
            password: None,
            tls: None,
            tls_root_cert: None,
            models: Vec::new(),
            events: Vec::new(),
            topic: None,
            sasl: None,
            stream: None,
            create_stream: Vec::new(),
            exchange: None,
            batch: 256,
            batches: 2,
            ack_timeout: None,
            longest_retry: Duration::from_secs(60),
            max_attempts: None,
            dead_letters: false,
            from_now_on: false,
            aliases: Vec::new(),
        }
    }
}

impl RelayBroker {
    const ALL: [(&str, Self); 4] = [
        ("in-process", Self::InProcess),
        ("nats", Self::Nats),
        ("rabbitmq", Self::RabbitMq),
        ("kafka", Self::Kafka),
    ];
    pub(super) const NAMES: [&str; Self::ALL.len()] = names(&Self::ALL);

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(known, _)| *known == name).map(|(_, broker)| broker)
    }

    /// The name in configurations.
    pub fn name(self) -> &'static str {
        Self::ALL
            .into_iter()
            .find(|(_, broker)| *broker == self)
            .map_or("unnamed", |(name, _)| name)
    }

    /// The schemes of its addresses.
    pub(super) fn schemes(self) -> &'static [&'static str] {
        match self {
            Self::InProcess => &[],
            Self::Nats => &["nats", "tls"],
            Self::RabbitMq => &["amqp", "amqps"],
            Self::Kafka => &["kafka"],
        }
    }
}

impl fmt::Display for RelayBroker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
