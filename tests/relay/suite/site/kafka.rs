//! Kafka: a private server with one topic of one partition.

use std::time::Duration;

use ekbatan::relay::KafkaBroker;
use ekbatan_testkit::KafkaServer;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use krafka::Kafka;
use krafka::admin::{CreateTopicsOptions, NewTopic};
use krafka::consumer::{AutoOffsetReset, IsolationLevel};

use super::{Address, Limits, Received, SharedBroker, Site};

/// A private server with the topic of the wallets.
pub struct KafkaSite {
    server: KafkaServer,
}

impl KafkaSite {
    pub async fn start(limits: Limits) -> Self {
        let mut builder = KafkaServer::builder().setting("auto.create.topics.enable", "false");
        if let Some(bytes) = limits.bytes {
            // The headers take room, too. The client does not know of this limit.
            builder = builder.setting("message.max.bytes", (bytes + 1_500).to_string());
        }
        let site = Self { server: builder.start().await.unwrap() };
        site.create(&site.topic()).await;
        site
    }

    async fn connect(&self) -> Kafka {
        Kafka::builder(self.server.address()).connect().await.unwrap()
    }

    async fn create(&self, topic: &str) {
        let admin = self.connect().await.admin();
        let topic = NewTopic::new(topic, 1, 1).unwrap();
        let created = admin.create_topics([topic], CreateTopicsOptions::default()).await.unwrap();
        created.into_values().for_each(|created| created.unwrap());
    }

    /// The messages of committed transactions in a topic.
    async fn read(&self, topic: &str) -> Vec<Received> {
        let kafka = self.connect().await;
        let consumer = kafka
            .consumer_without_group()
            .isolation_level(IsolationLevel::ReadCommitted)
            .auto_offset_reset(AutoOffsetReset::Earliest)
            .build()
            .await
            .unwrap();
        consumer.assign(topic, vec![0]).await.unwrap();
        consumer.seek_to_beginning(topic, 0).await.unwrap();
        let (_, end) = consumer.fetch_watermarks(topic, 0).await.unwrap();
        let (mut received, mut empty) = (Vec::new(), 0);
        while consumer.position(topic, 0).await.is_none_or(|at| at < end) {
            let records = consumer.poll(Duration::from_millis(200)).await.unwrap();
            // What an open transaction has written cannot be read yet.
            empty = if records.is_empty() { empty + 1 } else { 0 };
            if empty == 10 {
                break;
            }
            for record in records {
                let headers: Vec<(String, String)> = record
                    .headers
                    .iter()
                    .map(|(name, value)| {
                        let value = value.as_deref().unwrap_or_default();
                        (name.to_string(), String::from_utf8(value.to_vec()).unwrap())
                    })
                    .collect();
                let payload = record.value.as_deref().unwrap();
                received.push(Received::new(topic.to_owned(), headers, payload));
            }
        }
        consumer.close().await.unwrap();
        received
    }
}

impl Site for KafkaSite {
    fn broker(&self) -> SharedBroker {
        broker(&self.server.url())
    }

    fn received(&self) -> BoxFuture<'_, Vec<Received>> {
        async {
            let mut received = self.read(&self.topic()).await;
            let admin = self.connect().await.admin();
            let topics = admin.list_topics(Default::default()).await.unwrap();
            if topics.contains(&self.nobodys_topic()) {
                received.extend(self.read(&self.nobodys_topic()).await);
            }
            received
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
        unreachable!("Kafka is never full")
    }

    fn address(&self) -> Address {
        Address::Kafka(self.server.url())
    }

    fn receive_nobodys_topic(&self) -> BoxFuture<'_, ()> {
        async { self.create(&self.nobodys_topic()).await }.boxed()
    }
}

pub fn broker(url: &str) -> SharedBroker {
    SharedBroker::new(KafkaBroker::new(url).ack_timeout(Duration::from_secs(5)))
}
