//! RabbitMQ: a private server with one queue.

use std::sync::Mutex;
use std::time::Duration;

use ekbatan::relay::RabbitMqBroker;
use ekbatan_testkit::RabbitMqServer;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use lapin::options::{
    BasicAckOptions, BasicGetOptions, ExchangeDeclareOptions, ExchangeDeleteOptions,
    QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ConnectionProperties, ExchangeKind};

use super::{Address, Limits, Received, SharedBroker, Site};

pub const EXCHANGE: &str = "events";
const QUEUE: &str = "receiver";
const FULL: &str = "full";

/// A private server with a queue that rejects what it has no room for.
pub struct RabbitMqSite {
    pub server: RabbitMqServer,
    /// What the receiver has taken from the queue.
    taken: Mutex<Vec<Received>>,
    /// Whether it leaves the messages in the queue.
    leaves: Mutex<bool>,
}

impl RabbitMqSite {
    pub async fn start(limits: Limits) -> Self {
        let mut builder = RabbitMqServer::builder();
        if let Some(bytes) = limits.bytes {
            builder = builder.setting("max_message_size", bytes.to_string());
        }
        let server = builder.start().await.unwrap();
        let leaves = Mutex::new(limits.messages.is_some());
        let site = Self { server, taken: Mutex::default(), leaves };
        let (_connection, channel) = site.channel().await;
        let mut arguments = FieldTable::default();
        if let Some(most) = limits.messages {
            arguments.insert("x-max-length".into(), AMQPValue::LongLongInt(most as i64));
            arguments.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
        }
        channel
            .queue_declare(QUEUE.into(), QueueDeclareOptions::durable(), arguments)
            .await
            .unwrap();
        site.declare_exchange().await;
        site
    }

    /// Declares the exchange, and binds the queue to it.
    pub async fn declare_exchange(&self) {
        let (_connection, channel) = self.channel().await;
        let durable = ExchangeDeclareOptions { durable: true, ..Default::default() };
        let arguments = FieldTable::default();
        channel
            .exchange_declare(EXCHANGE.into(), ExchangeKind::Topic, durable, arguments)
            .await
            .unwrap();
        bind(&channel, QUEUE, "ekbatan.#").await;
    }

    /// Deletes the exchange. The queue stays.
    pub async fn delete_exchange(&self) {
        let (_connection, channel) = self.channel().await;
        let options = ExchangeDeleteOptions::default();
        channel.exchange_delete(EXCHANGE.into(), options).await.unwrap();
    }

    /// Gives the topic of nobody a queue that has room for one message, and rejects others.
    pub async fn let_nobodys_topic_be_full(&self) {
        let (_connection, channel) = self.channel().await;
        let mut arguments = FieldTable::default();
        arguments.insert("x-max-length".into(), AMQPValue::LongLongInt(1));
        arguments.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
        let durable = QueueDeclareOptions::durable();
        channel.queue_declare(FULL.into(), durable, arguments).await.unwrap();
        bind(&channel, FULL, &self.nobodys_topic()).await;
    }

    /// Ends that queue, with its message.
    pub async fn end_full_queue(&self) {
        self.receive_nobodys_topic().await;
        let (_connection, channel) = self.channel().await;
        channel.queue_delete(FULL.into(), QueueDeleteOptions::default()).await.unwrap();
    }

    async fn channel(&self) -> (Connection, Channel) {
        let properties = ConnectionProperties::default();
        let connection = Connection::connect(&self.server.url(), properties).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        (connection, channel)
    }
}

async fn bind(channel: &Channel, queue: &str, topic: &str) {
    let options = QueueBindOptions::default();
    channel
        .queue_bind(queue.into(), EXCHANGE.into(), topic.into(), options, FieldTable::default())
        .await
        .unwrap();
}

impl Site for RabbitMqSite {
    fn broker(&self) -> SharedBroker {
        broker(&self.server.url())
    }

    fn received(&self) -> BoxFuture<'_, Vec<Received>> {
        async {
            let leaves = *self.leaves.lock().unwrap();
            let (connection, channel) = self.channel().await;
            let mut seen = Vec::new();
            let get = BasicGetOptions::default();
            while let Some(message) = channel.basic_get(QUEUE.into(), get).await.unwrap() {
                let delivery = message.delivery;
                let headers = delivery.properties.headers().clone().unwrap_or_default();
                let text = |value: &AMQPValue| match value {
                    AMQPValue::LongString(text) => text.to_string(),
                    other => panic!("{other:?}"),
                };
                let headers: Vec<_> =
                    headers.inner().iter().map(|(n, v)| (n.to_string(), text(v))).collect();
                let topic = delivery.routing_key.to_string();
                let received = Received::new(topic, headers, &delivery.data);
                let message_id = delivery.properties.message_id().clone().unwrap();
                assert_eq!(message_id.as_str(), received.id.to_string());
                assert_eq!(*delivery.properties.delivery_mode(), Some(2), "it is persistent");
                if leaves {
                    seen.push(received);
                } else {
                    delivery.ack(BasicAckOptions::default()).await.unwrap();
                    self.taken.lock().unwrap().push(received);
                }
            }
            // What was not acknowledged goes back to its place.
            connection.close(200, "done".into()).await.unwrap();
            let mut all = self.taken.lock().unwrap().clone();
            all.extend(seen);
            all
        }
        .boxed()
    }

    fn kill(&self) -> BoxFuture<'_, ()> {
        async { self.server.kill().await.unwrap() }.boxed()
    }

    fn restart(&self) -> BoxFuture<'_, ()> {
        async { self.server.restart().await.unwrap() }.boxed()
    }

    fn make_room(&self) -> BoxFuture<'_, ()> {
        *self.leaves.lock().unwrap() = false;
        async {}.boxed()
    }

    fn address(&self) -> Address {
        Address::RabbitMq(self.server.url())
    }

    fn receive_nobodys_topic(&self) -> BoxFuture<'_, ()> {
        async {
            let (_connection, channel) = self.channel().await;
            bind(&channel, QUEUE, &self.nobodys_topic()).await;
        }
        .boxed()
    }
}

pub fn broker(url: &str) -> SharedBroker {
    let broker = RabbitMqBroker::new(url).exchange(EXCHANGE);
    SharedBroker::new(broker.ack_timeout(Duration::from_secs(5)))
}
