//! The broker of this process, with a consumer that notes what it gets.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ekbatan::relay::{
    Broker, BrokerError, InProcessBroker, OutgoingMessage, Receipt, RelaySender, RelayTerms,
};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::{Address, Limits, Received, SharedBroker, Site};

/// A consumer that acknowledges what it gets, unless it is killed or full.
pub struct InProcessSite {
    broker: InProcessBroker,
    consumer: Arc<Consumer>,
    limits: Limits,
}

struct Consumer {
    received: Mutex<Vec<Received>>,
    is_killed: AtomicBool,
    room: AtomicUsize,
}

impl InProcessSite {
    pub fn start(limits: Limits) -> Self {
        let falls_silent = limits.dies || limits.messages.is_some();
        let ack_timeout = Duration::from_millis(if falls_silent { 300 } else { 30_000 });
        let broker = InProcessBroker::new().ack_timeout(ack_timeout);
        let mut messages = broker.subscribe("consumer", ["ekbatan.*"]);
        let consumer = Arc::new(Consumer {
            received: Mutex::default(),
            is_killed: AtomicBool::new(false),
            room: AtomicUsize::new(limits.messages.unwrap_or(usize::MAX)),
        });
        let noting = consumer.clone();
        tokio::spawn(async move {
            while let Some(message) = messages.next().await {
                let is_full = noting.room.load(Ordering::SeqCst) == 0;
                if noting.is_killed.load(Ordering::SeqCst) || is_full {
                    // Without an acknowledgement it comes again.
                    continue;
                }
                let headers = message.headers();
                let headers = headers.map(|(n, v)| (n.to_owned(), v.to_owned())).collect();
                let received = Received::new(message.topic.clone(), headers, &message.payload);
                // Before the test can see the message: it may make room as soon as it does.
                noting.room.fetch_sub(1, Ordering::SeqCst);
                noting.received.lock().unwrap().push(received);
                message.ack();
            }
        });
        Self { broker, consumer, limits }
    }
}

impl Site for InProcessSite {
    fn broker(&self) -> SharedBroker {
        match self.limits.bytes {
            Some(most) => SharedBroker::new(Limited { broker: self.broker.clone(), most }),
            None => SharedBroker::new(self.broker.clone()),
        }
    }

    fn received(&self) -> BoxFuture<'_, Vec<Received>> {
        let received = self.consumer.received.lock().unwrap().clone();
        async move { received }.boxed()
    }

    fn kill(&self) -> BoxFuture<'_, ()> {
        self.consumer.is_killed.store(true, Ordering::SeqCst);
        async {}.boxed()
    }

    fn restart(&self) -> BoxFuture<'_, ()> {
        self.consumer.is_killed.store(false, Ordering::SeqCst);
        async {}.boxed()
    }

    fn make_room(&self) -> BoxFuture<'_, ()> {
        self.consumer.room.store(usize::MAX, Ordering::SeqCst);
        async {}.boxed()
    }

    fn address(&self) -> Address {
        unreachable!("no other process can connect to it")
    }

    fn receive_nobodys_topic(&self) -> BoxFuture<'_, ()> {
        drop(self.broker.subscribe("consumer", [self.nobodys_topic()]));
        async {}.boxed()
    }
}

/// The broker of this process takes messages of any size.
struct Limited {
    broker: InProcessBroker,
    most: usize,
}

impl Broker for Limited {
    fn describe(&self) -> String {
        self.broker.describe()
    }

    async fn check(&self, terms: RelayTerms) -> Result<(), BrokerError> {
        self.broker.check(terms).await
    }

    async fn open(&self, sender: RelaySender) -> Result<(), BrokerError> {
        self.broker.open(sender).await
    }

    async fn publish(&self, sender: RelaySender, messages: Vec<OutgoingMessage>) -> Vec<Receipt> {
        let is_too_large = |message: &OutgoingMessage| message.payload.len() > self.most;
        let large: Vec<bool> = messages.iter().map(is_too_large).collect();
        let small = messages.into_iter().filter(|message| !is_too_large(message)).collect();
        let mut receipts = self.broker.publish(sender, small).await.into_iter();
        let receipt = |is_large| match is_large {
            true => Receipt::refused("too large"),
            false => receipts.next().unwrap(),
        };
        large.into_iter().map(receipt).collect()
    }
}
