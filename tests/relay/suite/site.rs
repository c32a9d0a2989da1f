//! A broker that a test owns: what it has received, and how it is killed and restarted.

mod in_process;
#[cfg(feature = "kafka")]
mod kafka;
mod nats;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;

use std::sync::Arc;

use ekbatan::relay::{Broker, BrokerError, OutgoingMessage, Receipt, RelaySender, RelayTerms};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use uuid::Uuid;

pub use in_process::InProcessSite;
pub use nats::NatsSite;
#[cfg(feature = "rabbitmq")]
pub use rabbitmq::{EXCHANGE, RabbitMqSite};

/// A message, as a receiver gets it.
#[derive(Debug, Clone, PartialEq)]
pub struct Received {
    pub id: Uuid,
    pub topic: String,
    pub key: String,
    pub version: i64,
    pub event: String,
    pub headers: Vec<(String, String)>,
    pub payload: Json,
}

impl Received {
    pub fn new(topic: String, headers: Vec<(String, String)>, payload: &[u8]) -> Self {
        let find =
            |name: &str| headers.iter().find(|(of, _)| of == name).map(|(_, value)| value.clone());
        Self {
            id: find("ekbatan-event-id").unwrap().parse().unwrap(),
            topic,
            key: find("ekbatan-model-id").unwrap(),
            version: find("ekbatan-model-version").unwrap().parse().unwrap(),
            event: find("ekbatan-event-type").unwrap(),
            payload: serde_json::from_slice(payload).unwrap(),
            headers,
        }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(of, _)| of == name).map(|(_, value)| value.as_str())
    }
}

/// What a test wants of its broker.
#[derive(Debug, Clone, Copy, Default)]
pub struct Limits {
    /// The greatest message.
    pub bytes: Option<usize>,
    /// How many messages it keeps before it takes no more.
    pub messages: Option<usize>,
    /// Whether the test kills it.
    pub dies: bool,
    /// Whether NATS lets nobody send to [the topic of nobody](Site::nobodys_topic).
    pub denies: bool,
}

/// A broker that a test owns.
pub trait Site: Send + Sync + 'static {
    /// A connection of its own, as each process has one.
    fn broker(&self) -> SharedBroker;

    /// What receivers have got, in the order of the broker.
    fn received(&self) -> BoxFuture<'_, Vec<Received>>;

    /// Ends the broker as a crash does.
    fn kill(&self) -> BoxFuture<'_, ()>;

    fn restart(&self) -> BoxFuture<'_, ()>;

    /// Lets a full broker take more.
    fn make_room(&self) -> BoxFuture<'_, ()>;

    /// Where another process connects to.
    fn address(&self) -> Address;

    /// A topic that somebody receives.
    fn topic(&self) -> String {
        "ekbatan.com.example.relay.model.Wallet".to_owned()
    }

    /// A topic that nobody receives.
    fn nobodys_topic(&self) -> String {
        "nobody.com.example".to_owned()
    }

    /// Lets messages of that topic be received from now on.
    fn receive_nobodys_topic(&self) -> BoxFuture<'_, ()>;
}

/// Where another process connects to.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Address {
    Nats(String),
    #[cfg(feature = "rabbitmq")]
    RabbitMq(String),
    #[cfg(feature = "kafka")]
    Kafka(String),
}

impl Address {
    pub fn connect(&self) -> SharedBroker {
        match self {
            Self::Nats(url) => nats::connect(url),
            #[cfg(feature = "rabbitmq")]
            Self::RabbitMq(url) => rabbitmq::broker(url),
            #[cfg(feature = "kafka")]
            Self::Kafka(url) => kafka::broker(url),
        }
    }
}

/// The brokers of this build.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    InProcess,
    Nats,
    #[cfg(feature = "rabbitmq")]
    RabbitMq,
    #[cfg(feature = "kafka")]
    Kafka,
}

impl Kind {
    /// Whether the broker keeps a message once that is sent twice.
    pub fn drops_repetitions(self) -> bool {
        matches!(self, Self::Nats)
    }

    /// Whether the broker refuses what a lost node sends.
    pub fn fences(self) -> bool {
        #[cfg(feature = "kafka")]
        if matches!(self, Self::Kafka) {
            return true;
        }
        false
    }

    pub async fn site(self, limits: Limits) -> Arc<dyn Site> {
        match self {
            Self::InProcess => Arc::new(InProcessSite::start(limits)),
            Self::Nats => Arc::new(NatsSite::start(limits).await),
            #[cfg(feature = "rabbitmq")]
            Self::RabbitMq => Arc::new(rabbitmq::RabbitMqSite::start(limits).await),
            #[cfg(feature = "kafka")]
            Self::Kafka => Arc::new(kafka::KafkaSite::start(limits).await),
        }
    }
}

/// A broker without its type.
#[derive(Clone)]
pub struct SharedBroker(Arc<dyn DynBroker>);

impl SharedBroker {
    pub fn new(broker: impl Broker) -> Self {
        Self(Arc::new(broker))
    }
}

trait DynBroker: Send + Sync {
    fn describe(&self) -> String;
    fn keeps_order_in_batch(&self) -> bool;
    fn fences(&self) -> bool;
    fn check(&self, terms: RelayTerms) -> BoxFuture<'_, Result<(), BrokerError>>;
    fn open(&self, sender: RelaySender) -> BoxFuture<'_, Result<(), BrokerError>>;
    fn publish(
        &self,
        sender: RelaySender,
        messages: Vec<OutgoingMessage>,
    ) -> BoxFuture<'_, Vec<Receipt>>;
    fn fence(&self, lost: RelaySender) -> BoxFuture<'_, Result<(), BrokerError>>;
}

impl<B: Broker> DynBroker for B {
    fn describe(&self) -> String {
        Broker::describe(self)
    }

    fn keeps_order_in_batch(&self) -> bool {
        Broker::keeps_order_in_batch(self)
    }

    fn fences(&self) -> bool {
        Broker::fences(self)
    }

    fn check(&self, terms: RelayTerms) -> BoxFuture<'_, Result<(), BrokerError>> {
        Broker::check(self, terms).boxed()
    }

    fn open(&self, sender: RelaySender) -> BoxFuture<'_, Result<(), BrokerError>> {
        Broker::open(self, sender).boxed()
    }

    fn publish(
        &self,
        sender: RelaySender,
        messages: Vec<OutgoingMessage>,
    ) -> BoxFuture<'_, Vec<Receipt>> {
        Broker::publish(self, sender, messages).boxed()
    }

    fn fence(&self, lost: RelaySender) -> BoxFuture<'_, Result<(), BrokerError>> {
        Broker::fence(self, lost).boxed()
    }
}

impl Broker for SharedBroker {
    fn describe(&self) -> String {
        self.0.describe()
    }

    fn keeps_order_in_batch(&self) -> bool {
        self.0.keeps_order_in_batch()
    }

    fn fences(&self) -> bool {
        self.0.fences()
    }

    async fn check(&self, terms: RelayTerms) -> Result<(), BrokerError> {
        self.0.check(terms).await
    }

    async fn open(&self, sender: RelaySender) -> Result<(), BrokerError> {
        self.0.open(sender).await
    }

    async fn publish(&self, sender: RelaySender, messages: Vec<OutgoingMessage>) -> Vec<Receipt> {
        self.0.publish(sender, messages).await
    }

    async fn fence(&self, lost: RelaySender) -> Result<(), BrokerError> {
        self.0.fence(lost).await
    }
}
