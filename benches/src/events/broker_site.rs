//! A private broker, and the two ways to send events to it: a relay, and the client of the broker.

use std::sync::Arc;

use clap::ValueEnum;
use ekbatan::prelude::{Decimal, Uuid};
use ekbatan::relay::{
    Broker, BrokerError, InProcessBroker, NatsBroker, OutgoingMessage, Receipt, Relay, RelaySender,
    RelayTerms,
};
use ekbatan_testkit::NatsServer;
use serde::Deserialize;

use super::recorder::Recorder;
use crate::failure::Failure;

/// The name of the relay.
pub const RELAY: &str = "bench";

/// Where events go: the stream, the queue and the topic.
pub const TOPIC: &str = "bench";

/// The broker that events are sent to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BenchBroker {
    /// The broker of this process, with a consumer that acknowledges.
    InProcess,
    /// A private NATS server with a stream in files.
    Nats,
    /// A private RabbitMQ server with a durable queue.
    #[cfg(feature = "relay-rabbitmq")]
    Rabbitmq,
    /// A private Kafka server with a topic of one partition.
    #[cfg(feature = "relay-kafka")]
    Kafka,
}

impl BenchBroker {
    /// The name on the command line and in the results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::InProcess => "in-process",
            Self::Nats => "nats",
            #[cfg(feature = "relay-rabbitmq")]
            Self::Rabbitmq => "rabbitmq",
            #[cfg(feature = "relay-kafka")]
            Self::Kafka => "kafka",
        }
    }
}

/// A started broker.
pub enum BrokerSite {
    InProcess(InProcessBroker),
    Nats(NatsServer),
    #[cfg(feature = "relay-rabbitmq")]
    Rabbitmq(ekbatan_testkit::RabbitMqServer),
    #[cfg(feature = "relay-kafka")]
    Kafka(ekbatan_testkit::KafkaServer),
}

/// What sends by hand.
pub enum Publisher {
    InProcess(InProcessBroker),
    Nats(Box<async_nats::jetstream::Context>),
    #[cfg(feature = "relay-rabbitmq")]
    Rabbitmq {
        /// The channel lives as long as it.
        _connection: Box<lapin::Connection>,
        channel: Box<lapin::Channel>,
    },
    #[cfg(feature = "relay-kafka")]
    Kafka(Box<krafka::producer::Producer>),
}

/// An event that is sent by hand.
pub struct Outgoing {
    pub id: Uuid,
    pub key: String,
    pub payload: Vec<u8>,
}

impl BrokerSite {
    pub async fn start(broker: BenchBroker) -> Result<Self, Failure> {
        Ok(match broker {
            BenchBroker::InProcess => {
                let broker = InProcessBroker::new();
                let mut messages = broker.subscribe("consumer", [TOPIC]);
                tokio::spawn(async move {
                    while let Some(message) = messages.next().await {
                        message.ack();
                    }
                });
                Self::InProcess(broker)
            }
            BenchBroker::Nats => {
                let server = NatsServer::start().await?;
                let jetstream = jetstream(&server).await?;
                let config = async_nats::jetstream::stream::Config {
                    name: TOPIC.to_owned(),
                    subjects: vec![TOPIC.to_owned()],
                    ..Default::default()
                };
                jetstream.create_stream(config).await?;
                Self::Nats(server)
            }
            #[cfg(feature = "relay-rabbitmq")]
            BenchBroker::Rabbitmq => {
                let server = ekbatan_testkit::RabbitMqServer::start().await?;
                let connection = amqp(&server).await?;
                let options = lapin::options::QueueDeclareOptions::durable();
                let channel = connection.create_channel().await?;
                channel.queue_declare(TOPIC.into(), options, Default::default()).await?;
                Self::Rabbitmq(server)
            }
            #[cfg(feature = "relay-kafka")]
            BenchBroker::Kafka => {
                let server = ekbatan_testkit::KafkaServer::start().await?;
                let admin = krafka::Kafka::builder(server.address()).connect().await?.admin();
                let topic = krafka::admin::NewTopic::new(TOPIC, 1, 1)?;
                admin.create_topics([topic], Default::default()).await?;
                Self::Kafka(server)
            }
        })
    }

    /// A relay with the defaults, which notes what is acknowledged.
    pub fn relay(&self, recorder: Arc<Recorder>) -> Result<Relay, Failure> {
        let relay = match self {
            Self::InProcess(broker) => Relay::new(RELAY, Noting::new(broker.clone(), recorder)),
            Self::Nats(server) => {
                Relay::new(RELAY, Noting::new(NatsBroker::new(server.url(), TOPIC), recorder))
            }
            #[cfg(feature = "relay-rabbitmq")]
            Self::Rabbitmq(server) => {
                let broker = ekbatan::relay::RabbitMqBroker::new(server.url());
                Relay::new(RELAY, Noting::new(broker, recorder))
            }
            #[cfg(feature = "relay-kafka")]
            Self::Kafka(server) => {
                let broker = ekbatan::relay::KafkaBroker::new(server.url());
                Relay::new(RELAY, Noting::new(broker, recorder))
            }
        };
        Ok(relay.topic(TOPIC)?)
    }

    pub async fn publisher(&self) -> Result<Publisher, Failure> {
        Ok(match self {
            Self::InProcess(broker) => Publisher::InProcess(broker.clone()),
            Self::Nats(server) => Publisher::Nats(Box::new(jetstream(server).await?)),
            #[cfg(feature = "relay-rabbitmq")]
            Self::Rabbitmq(server) => {
                let connection = amqp(server).await?;
                let channel = connection.create_channel().await?;
                channel.confirm_select(Default::default()).await?;
                let (_connection, channel) = (Box::new(connection), Box::new(channel));
                Publisher::Rabbitmq { _connection, channel }
            }
            #[cfg(feature = "relay-kafka")]
            Self::Kafka(server) => {
                let kafka = krafka::Kafka::builder(server.address()).connect().await?;
                Publisher::Kafka(Box::new(kafka.producer().build().await?))
            }
        })
    }
}

async fn jetstream(server: &NatsServer) -> Result<async_nats::jetstream::Context, Failure> {
    Ok(async_nats::jetstream::new(async_nats::connect(server.url()).await?))
}

#[cfg(feature = "relay-rabbitmq")]
async fn amqp(server: &ekbatan_testkit::RabbitMqServer) -> Result<lapin::Connection, Failure> {
    Ok(lapin::Connection::connect(&server.url(), Default::default()).await?)
}

impl Publisher {
    /// Sends events in their order, all of them before the first answer, and waits for all answers.
    pub async fn publish(&self, events: Vec<Outgoing>) -> Result<(), Failure> {
        match self {
            Self::InProcess(broker) => {
                let message = |of: Outgoing| OutgoingMessage::new(of.id, TOPIC, of.key, of.payload);
                let messages = events.into_iter().map(message).collect();
                let shard = ekbatan::domain::ShardIdentifier::DEFAULT;
                let sender = RelaySender::new("by hand", shard, Uuid::nil());
                let receipts = broker.publish(sender, messages).await;
                if receipts.iter().any(|receipt| *receipt != Receipt::Accepted) {
                    return Err("the broker did not accept all messages".into());
                }
            }
            Self::Nats(jetstream) => {
                let mut acks = Vec::with_capacity(events.len());
                for event in events {
                    let message = async_nats::jetstream::message::PublishMessage::build()
                        .message_id(event.id.to_string())
                        .payload(event.payload.into());
                    acks.push(jetstream.send_publish(TOPIC, message).await?);
                }
                for ack in acks {
                    ack.await?;
                }
            }
            #[cfg(feature = "relay-rabbitmq")]
            Self::Rabbitmq { channel, .. } => {
                let options =
                    lapin::options::BasicPublishOptions { mandatory: true, ..Default::default() };
                let mut confirms = Vec::with_capacity(events.len());
                for event in events {
                    let properties = lapin::BasicProperties::default()
                        .with_delivery_mode(2)
                        .with_message_id(event.id.to_string().into());
                    let publishing = channel.basic_publish(
                        "".into(),
                        TOPIC.into(),
                        options,
                        &event.payload,
                        properties,
                    );
                    confirms.push(publishing.await?);
                }
                for confirm in confirms {
                    if !confirm.await?.is_ack() {
                        return Err("the broker did not accept all messages".into());
                    }
                }
            }
            #[cfg(feature = "relay-kafka")]
            Self::Kafka(producer) => {
                let mut handles = Vec::with_capacity(events.len());
                for event in events {
                    let record = krafka::Record::new(TOPIC, event.payload).key(event.key);
                    handles.push(producer.enqueue(record).await?);
                }
                for handle in handles {
                    let _offset = handle.await?;
                }
            }
        }
        Ok(())
    }
}

/// Notes each event that a broker has acknowledged.
struct Noting<B> {
    broker: B,
    recorder: Arc<Recorder>,
}

/// What the event of a deposit says.
#[derive(Deserialize)]
struct DepositedEvent {
    amount: Decimal,
    balance: Decimal,
}

impl<B> Noting<B> {
    fn new(broker: B, recorder: Arc<Recorder>) -> Self {
        Self { broker, recorder }
    }

    fn note(&self, (key, payload): (String, Vec<u8>)) -> Result<(), Failure> {
        let DepositedEvent { amount, balance } = serde_json::from_slice(&payload)?;
        self.recorder.handle(key.parse()?, amount, balance)
    }
}

impl<B: Broker> Broker for Noting<B> {
    fn describe(&self) -> String {
        self.broker.describe()
    }

    fn keeps_order_in_batch(&self) -> bool {
        self.broker.keeps_order_in_batch()
    }

    fn fences(&self) -> bool {
        self.broker.fences()
    }

    async fn check(&self, terms: RelayTerms) -> Result<(), BrokerError> {
        self.broker.check(terms).await
    }

    async fn open(&self, sender: RelaySender) -> Result<(), BrokerError> {
        self.broker.open(sender).await
    }

    async fn publish(&self, sender: RelaySender, messages: Vec<OutgoingMessage>) -> Vec<Receipt> {
        let sent = |message: &OutgoingMessage| (message.key.clone(), message.payload.clone());
        let sent: Vec<_> = messages.iter().map(sent).collect();
        let receipts = self.broker.publish(sender, messages).await;
        for (message, receipt) in sent.into_iter().zip(&receipts) {
            if *receipt == Receipt::Accepted
                && let Err(error) = self.note(message)
            {
                return vec![Receipt::refused(error); receipts.len()];
            }
        }
        receipts
    }

    async fn fence(&self, lost: RelaySender) -> Result<(), BrokerError> {
        self.broker.fence(lost).await
    }
}
