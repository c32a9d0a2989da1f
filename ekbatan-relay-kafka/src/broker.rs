//! Apache Kafka as a broker.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ekbatan_core::config::{ExposeSecret, RelayConfig, SaslMechanism};
use ekbatan_relay::{
    Broker, BrokerError, OutgoingMessage, PUBLISH_TIME, Receipt, RelaySender, RelayTerms,
    check_ack_timeout,
};
use tokio::time::Instant;

use crate::answers;
use crate::node_producer::{NodeProducer, Outcome};
use crate::settings::{KafkaLogin, Settings};

/// The time after which an answer is not waited for any more.
const ACK_TIMEOUT: Duration = Duration::from_secs(10);

/// The time after which the end of a transaction is not waited for any more: if the relay gave the batch up, the
/// receipts of earlier transactions would be lost, too.
const LONGEST_CALL: Duration =
    PUBLISH_TIME.saturating_mul(2).saturating_sub(Duration::from_secs(3));

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
    producers: Mutex<HashMap<RelaySender, Arc<NodeProducer>>>,
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
        Self { settings, producers: Mutex::default() }
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

    /// Sets how long an answer of the cluster is waited for, up to 30 s; 10 s unless set.
    #[must_use]
    pub fn ack_timeout(mut self, timeout: Duration) -> Self {
        self.settings.ack_timeout = timeout;
        self
    }

    /// Why a message cannot be sent, as far as that is known before.
    fn fault(&self, producer: &NodeProducer, message: &OutgoingMessage) -> Option<Receipt> {
        let (bytes, most) = (message.size(), self.settings.most_bytes);
        if bytes > most {
            let why = format!("the message has {bytes} bytes, and this relay sends {most}");
            return Some(Receipt::refused(why));
        }
        let topic = &message.topic;
        let is_missing = producer.missing_topics.has(topic);
        is_missing.then(|| Receipt::refused_for_now(format!("there is no topic `{topic}`")))
    }

    /// The messages of a model before the first one that cannot be sent, and the receipt of that one.
    fn sendable<'m>(
        &self,
        producer: &NodeProducer,
        of_model: &'m [OutgoingMessage],
    ) -> Sendable<'m> {
        let mut fault = None;
        let count = of_model.iter().take_while(|message| {
            fault = self.fault(producer, message);
            fault.is_none()
        });
        let count = count.count();
        Sendable {
            messages: of_model.iter().take(count).collect(),
            fault,
            of_model: of_model.len(),
        }
    }

    /// Sends the messages of one model. If one of them is refused, they are sent one after another up to
    /// that one.
    async fn send_model(
        &self,
        producer: &NodeProducer,
        of_model: &[OutgoingMessage],
        begun: Instant,
    ) -> Vec<Receipt> {
        let (until, end) = (begun + PUBLISH_TIME, begun + LONGEST_CALL);
        let sendable = self.sendable(producer, of_model);
        let mut receipts = Vec::with_capacity(of_model.len());
        let is_one = sendable.messages.len() == 1;
        match producer.send(&sendable.messages, end).await {
            Outcome::Committed => return sendable.accepted(),
            Outcome::Unknown(why) => return unavailable(why, of_model.len()),
            Outcome::Refused(error) if is_one => receipts.push(answers::receipt_of_record(&error)),
            Outcome::Refused(_) => {
                for message in sendable.messages {
                    // At least one, or the message that is refused is never found.
                    if Instant::now() >= until && !receipts.is_empty() {
                        break;
                    }
                    let receipt = match producer.send(&[message], end).await {
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
            }
        }
        receipts.resize(of_model.len(), Receipt::NotSent);
        receipts
    }

    /// Sends messages of several models in one transaction. If one of them is refused, the models are sent
    /// each by itself, so that only that one stops.
    async fn send(&self, producer: &NodeProducer, messages: &[OutgoingMessage]) -> Vec<Receipt> {
        let begun = Instant::now();
        let (until, end) = (begun + PUBLISH_TIME, begun + LONGEST_CALL);
        producer.missing_topics.look_again(messages).await;
        // Those of one model stand beside each other.
        let models = || messages.chunk_by(|one, next| one.is_of_same_model(next));
        let sendable: Vec<_> = models().map(|of_model| self.sendable(producer, of_model)).collect();
        let all: Vec<_> = sendable.iter().flat_map(|model| model.messages.clone()).collect();
        match producer.send(&all, end).await {
            Outcome::Committed => {
                return sendable.into_iter().flat_map(Sendable::accepted).collect();
            }
            Outcome::Unknown(why) => return unavailable(why, messages.len()),
            Outcome::Refused(error) if answers::is_missing_topic(&error) => {
                producer.missing_topics.look_for(messages).await;
            }
            Outcome::Refused(_) => {}
        }
        let mut receipts = Vec::with_capacity(messages.len());
        for of_model in models() {
            if Instant::now() >= until && !receipts.is_empty() {
                break;
            }
            receipts.extend(self.send_model(producer, of_model, begun).await);
        }
        receipts.resize(messages.len(), Receipt::NotSent);
        receipts
    }

    fn producer(&self, sender: RelaySender) -> Option<Arc<NodeProducer>> {
        self.producers().get(&sender).filter(|producer| producer.is_usable()).cloned()
    }

    fn producers(&self) -> MutexGuard<'_, HashMap<RelaySender, Arc<NodeProducer>>> {
        self.producers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The messages of a model that can be sent.
struct Sendable<'m> {
    messages: Vec<&'m OutgoingMessage>,
    /// The receipt of the message behind them.
    fault: Option<Receipt>,
    /// How many messages of the model there are.
    of_model: usize,
}

impl Sendable<'_> {
    /// The receipts of all messages of the model, if those that can be sent were accepted.
    fn accepted(self) -> Vec<Receipt> {
        let mut receipts = vec![Receipt::Accepted; self.messages.len()];
        receipts.extend(self.fault);
        receipts.resize(self.of_model, Receipt::NotSent);
        receipts
    }
}

impl Broker for KafkaBroker {
    fn describe(&self) -> String {
        format!("Kafka at {}", self.settings.shown())
    }

    fn keeps_order_in_batch(&self) -> bool {
        true
    }

    fn fences(&self) -> bool {
        true
    }

    async fn check(&self, _terms: RelayTerms) -> Result<(), BrokerError> {
        check_ack_timeout(self.settings.ack_timeout)?;
        self.settings.check()?;
        // The cluster answers to the login.
        let kafka = self.settings.connect().await?;
        drop(kafka);
        Ok(())
    }

    async fn open(&self, sender: RelaySender) -> Result<(), BrokerError> {
        if self.producer(sender).is_some() {
            return Ok(());
        }
        // If another node has taken the id over, this one takes it back. That does no harm: it sends
        // only what it claims from now on, and if it counts as lost, it is fenced again before others get that.
        let id = transactional_id(sender);
        let producer = Arc::new(NodeProducer::open(&self.settings, &id).await?);
        let mut producers = self.producers();
        producers.insert(sender, producer);
        // What a node was before, it never is again.
        producers.retain(|of, _| {
            (of.relay, of.shard) != (sender.relay, sender.shard) || of.node == sender.node
        });
        Ok(())
    }

    async fn publish(&self, sender: RelaySender, messages: Vec<OutgoingMessage>) -> Vec<Receipt> {
        match self.producer(sender) {
            Some(producer) => self.send(&producer, &messages).await,
            None => unavailable("the producer is over".to_owned(), messages.len()),
        }
    }

    async fn fence(&self, lost: RelaySender) -> Result<(), BrokerError> {
        let producer = NodeProducer::open(&self.settings, &transactional_id(lost)).await?;
        producer.close().await;
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

/// Without the address and the login, which may have passwords.
impl std::fmt::Debug for KafkaBroker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KafkaBroker").finish_non_exhaustive()
    }
}
