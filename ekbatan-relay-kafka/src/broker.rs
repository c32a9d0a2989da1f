//! Apache Kafka as a broker.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ekbatan_core::config::{ExposeSecret, RelayConfig, SaslMechanism};
use ekbatan_relay::{Broker, BrokerError, OutgoingMessage, Receipt, RelaySender, RelayTerms};
use tokio::sync::Mutex;

use crate::answers;
use crate::error::KafkaError;
use crate::lane::{Lane, Outcome};
use crate::settings::{KafkaLogin, Settings};

/// The time after which an answer is not waited for any more.
const ACK_TIMEOUT: Duration = Duration::from_secs(10);

/// The greatest record batch that Kafka takes, unless a topic is configured otherwise, less what a batch
/// adds.
const MOST_BYTES: usize = 1_048_588 - 512;

/// A cluster of Apache Kafka.
///
/// - A batch of events is a transaction: either all of its messages can be read, or none. So consumers read
///   with `isolation.level=read_committed`; others may see messages of transactions that were aborted.
/// - The producer of a node is fenced before another node sends what it had claimed: whatever it sends
///   afterwards is refused by the cluster, however long it was frozen. Transactional ids are
///   `ekbatan.` with the relay, the shard and the identity of the node; they need the rights for that prefix.
/// - The message's key is the Kafka key, so the messages of a model are in one partition, in order.
/// - A record that is too large stops its model only: the others of its transaction are sent again without
///   it.
///
/// ```
/// # use ekbatan_relay::Relay;
/// # use ekbatan_relay_kafka::KafkaBroker;
/// let relay = Relay::new("wallets", KafkaBroker::new("kafka://a:9092,b:9092"));
/// ```
pub struct KafkaBroker {
    settings: Settings,
    lanes: Mutex<HashMap<RelaySender, Arc<Lane>>>,
}

impl KafkaBroker {
    /// The cluster at `kafka://HOST:9092`, or several servers of it, separated by commas. Connects when a
    /// node starts.
    pub fn new(url: impl AsRef<str>) -> Self {
        let settings = Settings {
            servers: Settings::servers(url.as_ref()),
            login: None,
            tls: false,
            root_certificate: None,
            most_bytes: MOST_BYTES,
            ack_timeout: ACK_TIMEOUT,
        };
        Self { settings, lanes: Mutex::default() }
    }

    /// The cluster as a configuration says.
    pub fn configured(config: &RelayConfig) -> Self {
        let mut broker = Self::new(config.url.clone().unwrap_or_default());
        if let Some(user) = &config.username {
            let password = config.password.as_ref().map(ExposeSecret::expose_secret);
            let login = match config.sasl {
                Some(SaslMechanism::ScramSha256) => KafkaLogin::ScramSha256,
                Some(SaslMechanism::ScramSha512) => KafkaLogin::ScramSha512,
                _ => KafkaLogin::Plain,
            };
            broker = broker.login(login, user, password.unwrap_or_default());
        }
        if config.tls == Some(true) {
            broker = broker.tls();
        }
        if let Some(file) = &config.tls_root_cert {
            broker = broker.root_certificate(file);
        }
        match config.ack_timeout {
            Some(timeout) => broker.ack_timeout(timeout),
            None => broker,
        }
    }

    /// Logs in by a name and a password.
    #[must_use]
    pub fn login(
        mut self,
        by: KafkaLogin,
        user: impl Into<String>,
        password: impl Into<String>,
    ) -> Self {
        self.settings.login = Some((by, user.into(), password.into()));
        self
    }

    /// Encrypts.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.settings.tls = true;
        self
    }

    /// Encrypts, and trusts the certificates of a file.
    #[must_use]
    pub fn root_certificate(mut self, file: impl Into<PathBuf>) -> Self {
        self.settings.root_certificate = Some(file.into());
        self.tls()
    }

    /// Sets the greatest record that is sent; about 1 MiB unless set, as Kafka takes it.
    #[must_use]
    pub fn most_bytes(mut self, bytes: usize) -> Self {
        self.settings.most_bytes = bytes;
        self
    }

    /// Sets how long an answer of the cluster is waited for; 10 s unless set.
    #[must_use]
    pub fn ack_timeout(mut self, timeout: Duration) -> Self {
        self.settings.ack_timeout = timeout;
        self
    }

    async fn open_lane(&self, sender: RelaySender) -> Result<(), KafkaError> {
        let mut lanes = self.lanes.lock().await;
        if let Some(lane) = lanes.get(&sender) {
            if lane.is_fenced() {
                // Its id belongs to the node that has taken over. To take it back would fence that one.
                return Err(KafkaError::Fenced);
            }
            if lane.is_usable() {
                return Ok(());
            }
        }
        let lane = Lane::open(&self.settings, &transactional_id(sender)).await?;
        lanes.insert(sender, Arc::new(lane));
        // What a node was before, it never is again.
        lanes.retain(|of, _| {
            (of.relay, of.shard) != (sender.relay, sender.shard) || of.node == sender.node
        });
        Ok(())
    }

    /// Sends the messages of one model one after another, until one is refused.
    async fn send_singly(&self, lane: &Lane, messages: &[OutgoingMessage]) -> Vec<Receipt> {
        let mut receipts = Vec::with_capacity(messages.len());
        for message in messages {
            let sent = lane.send(std::slice::from_ref(message), self.settings.ack_timeout).await;
            let receipt = match sent {
                Outcome::Committed => Receipt::Accepted,
                Outcome::Refused(error) => answers::receipt_of_record(&error),
                Outcome::Unknown(why) => Receipt::unavailable(why),
            };
            let is_accepted = receipt == Receipt::Accepted;
            receipts.push(receipt);
            if !is_accepted {
                break;
            }
        }
        receipts.resize(messages.len(), Receipt::NotSent);
        receipts
    }

    /// Sends the messages of one model.
    async fn send_model(&self, lane: &Lane, messages: &[OutgoingMessage]) -> Vec<Receipt> {
        match lane.send(messages, self.settings.ack_timeout).await {
            Outcome::Committed => vec![Receipt::Accepted; messages.len()],
            Outcome::Unknown(why) => unavailable(why, messages.len()),
            Outcome::Refused(error) if messages.len() == 1 => {
                vec![answers::receipt_of_record(&error)]
            }
            Outcome::Refused(_) => self.send_singly(lane, messages).await,
        }
    }

    /// Sends messages of several models. If one of them is refused, the models are sent each by itself, so
    /// that only that one stops.
    async fn send(&self, lane: &Lane, messages: Vec<OutgoingMessage>) -> Vec<Receipt> {
        match lane.send(&messages, self.settings.ack_timeout).await {
            Outcome::Committed => return vec![Receipt::Accepted; messages.len()],
            Outcome::Unknown(why) => return unavailable(why, messages.len()),
            Outcome::Refused(_) => {}
        }
        let mut receipts = Vec::with_capacity(messages.len());
        // Those of one model stand beside each other.
        for of_model in messages.chunk_by(|one, next| one.is_of_same_model(next)) {
            receipts.extend(self.send_model(lane, of_model).await);
        }
        receipts
    }
}

impl Broker for KafkaBroker {
    fn describe(&self) -> String {
        format!("Kafka at {}", self.settings.servers)
    }

    fn keeps_order_in_batch(&self) -> bool {
        true
    }

    fn fences(&self) -> bool {
        true
    }

    async fn check(&self, _terms: RelayTerms) -> Result<(), BrokerError> {
        if self.settings.most_bytes == 0 {
            let why = "is 0, so nothing could be sent; give at least 1".to_owned();
            return Err(KafkaError::Setting { setting: "most_bytes", why }.into());
        }
        // The cluster answers to the login.
        let kafka = self.settings.connect().await?;
        drop(kafka);
        Ok(())
    }

    async fn open(&self, sender: RelaySender) -> Result<(), BrokerError> {
        Ok(self.open_lane(sender).await?)
    }

    async fn publish(&self, sender: RelaySender, messages: Vec<OutgoingMessage>) -> Vec<Receipt> {
        let lane = self.lanes.lock().await.get(&sender).cloned();
        let Some(lane) = lane.filter(|lane| lane.is_usable()) else {
            return unavailable("the producer is over".to_owned(), messages.len());
        };
        let most = self.settings.most_bytes;
        let (mut receipts, mut fine) = (vec![Receipt::NotSent; messages.len()], Vec::new());
        let mut stopped: Option<OutgoingMessage> = None;
        for (place, message) in messages.into_iter().enumerate() {
            if stopped.as_ref().is_some_and(|of| of.is_of_same_model(&message)) {
                continue;
            }
            if message.size() > most {
                let bytes = message.size();
                let why = format!("the message has {bytes} bytes, and this relay sends {most}");
                if let Some(receipt) = receipts.get_mut(place) {
                    *receipt = Receipt::refused(why);
                }
                stopped = Some(message);
            } else {
                fine.push((place, message));
            }
        }
        if fine.is_empty() {
            return receipts;
        }
        let (places, fine): (Vec<usize>, Vec<OutgoingMessage>) = fine.into_iter().unzip();
        for (place, sent) in places.into_iter().zip(self.send(&lane, fine).await) {
            if let Some(receipt) = receipts.get_mut(place) {
                *receipt = sent;
            }
        }
        receipts
    }

    async fn fence(&self, lost: RelaySender) -> Result<(), BrokerError> {
        let lane = Lane::open(&self.settings, &transactional_id(lost)).await?;
        lane.close().await;
        Ok(())
    }
}

fn unavailable(why: String, count: usize) -> Vec<Receipt> {
    vec![Receipt::unavailable(why); count]
}

/// The relays of a node may use one cluster, so each has an id of its own. The identity of a node is its own
/// on each shard, and never comes again.
fn transactional_id(sender: RelaySender) -> String {
    let RelaySender { relay, shard, node, .. } = sender;
    format!("ekbatan.{relay}.{}.{node}", shard.to_string().replace('/', "-"))
}
