//! A relay: which events go to which broker, under which topic and key.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use ekbatan_core::__private::deliveries::stream_of;
use ekbatan_core::config::{RelayConfig, TopicError, TopicTemplate};
use ekbatan_events::{
    EventRelay, EventSelection, HandlerOptions, RelayError, RelaySender, RelayTerms, SentEvent,
    UndecodedEvent,
};

use crate::OutgoingMessage;
use crate::broker::{AnyBroker, Broker, BrokerError, Receipt};
use crate::in_order::{self, TIMEOUT};

/// Changes the message of an event before it is sent.
type Prepare =
    dyn Fn(&UndecodedEvent, &mut OutgoingMessage) -> Result<(), BrokerError> + Send + Sync;

/// The pause before an event is sent again for the first time.
const FIRST_RETRY: Duration = Duration::from_secs(1);

/// Sends events to a broker. Give it to a node by
/// [`NodeBuilder::relay`](ekbatan_events::NodeBuilder::relay).
///
/// Every event is sent at least once, however often processes are killed: its delivery is deleted only
/// after the broker has acknowledged it. What is sent again has the same id. The events of one model
/// arrive in their order, apart from repetitions.
///
/// ```
/// # use ekbatan_core::action::ActionExecutor;
/// use ekbatan_events::{EventSelection, Node};
/// use ekbatan_relay::{InProcessBroker, Relay};
///
/// # async fn start(executor: &ActionExecutor) -> Result<Node, Box<dyn std::error::Error>> {
/// let broker = InProcessBroker::new();
/// let relay = Relay::new("wallets", broker)
///     .select(EventSelection::of_models(["Wallet"]))
///     .topic("wallets.{event}")?;
/// let node = Node::builder(executor).relay(relay).start().await?;
/// # Ok(node)
/// # }
/// ```
#[must_use = "a relay sends nothing until a node has it"]
pub struct Relay {
    name: String,
    broker: Arc<dyn AnyBroker>,
    selection: EventSelection,
    topic: TopicTemplate,
    prepare: Option<Box<Prepare>>,
    options: HandlerOptions,
    batch: usize,
}

impl Relay {
    /// A relay of all events. The name is stored: if it changes, all stored events are sent again, unless
    /// the earlier name is an [`alias`](Self::alias).
    pub fn new(name: impl Into<String>, broker: impl Broker) -> Self {
        Self::over(name.into(), Arc::new(broker))
    }

    /// A relay as a configuration says, to a broker that was opened as it says.
    pub fn configured(config: &RelayConfig, broker: impl Broker) -> Result<Self, TopicError> {
        let relay = Self::new(&config.name, broker).batch(config.batch).batches(config.batches);
        let longest = config.longest_retry;
        let mut relay = relay.retry(FIRST_RETRY.min(longest), longest);
        let selection = EventSelection::of_models(&config.models)
            .and(EventSelection::of_events(&config.events));
        if !selection.is_empty() {
            relay = relay.select(selection);
        }
        if let Some(topic) = &config.topic {
            relay = relay.topic(topic)?;
        }
        if let Some(attempts) = config.max_attempts {
            relay = relay.max_attempts(attempts);
        }
        if config.dead_letters {
            relay = relay.dead_letters();
        }
        if config.from_now_on {
            relay = relay.from_now_on();
        }
        Ok(config.aliases.iter().fold(relay, Self::alias))
    }

    fn over(name: String, broker: Arc<dyn AnyBroker>) -> Self {
        let options = HandlerOptions::default().concurrency(2).timeout(TIMEOUT).max_age(None);
        Self {
            name,
            broker,
            selection: EventSelection::all(),
            topic: TopicTemplate::default(),
            prepare: None,
            options,
            batch: 256,
        }
    }

    /// Sets the events that it sends; all unless set. Events that it does not select any more are done
    /// without being sent. Earlier events that it selects from now on are sent, too.
    pub fn select(mut self, selection: EventSelection) -> Self {
        self.selection = selection;
        self
    }

    /// Sets the topic; `ekbatan.{namespace}.model.{model}` unless set. `{namespace}`, `{model}` and
    /// `{event}` stand for those of the event. Brokers keep an order within a topic only, so `{event}`
    /// gives up the order between the events of a model.
    pub fn topic(mut self, topic: &str) -> Result<Self, TopicError> {
        self.topic = TopicTemplate::parse(topic)?;
        Ok(self)
    }

    /// Changes each message before it is sent: its topic, its key, its headers, its payload. The key is
    /// the model's id, and the payload that of the event, unless this changes them. It must do the same
    /// for an event each time. An event for which it fails is tried again like one that the broker
    /// refused.
    ///
    /// Only the events of one model are in order. A key for several models brings their messages
    /// together, not into an order.
    ///
    /// ```
    /// # use ekbatan_relay::{InProcessBroker, Relay};
    /// let relay = Relay::new("windows", InProcessBroker::new()).prepare(|event, message| {
    ///     message.key = format!("window-{}", event.model_id);
    ///     message.set_header("attempt", event.attempt.to_string());
    ///     Ok(())
    /// });
    /// ```
    pub fn prepare<F>(mut self, prepare: F) -> Self
    where
        F: Fn(&UndecodedEvent, &mut OutgoingMessage) -> Result<(), BrokerError>
            + Send
            + Sync
            + 'static,
    {
        self.prepare = Some(Box::new(prepare));
        self
    }

    /// Whether messages can have the topic. The words of an event are not known yet, and what prepares messages
    /// may change it.
    fn check_topic(&self) -> Result<(), BrokerError> {
        if self.prepare.is_some() {
            return Ok(());
        }
        self.broker.check_topic(&self.topic.fill("namespace", "model", "event"))
    }

    /// Sets how many events a batch has at most, 1 to 1,000; 256 unless set.
    pub fn batch(mut self, events: usize) -> Self {
        self.batch = events;
        self
    }

    /// Sets how many batches are under way at a time, on each shard; 2 unless set. Their models are
    /// different ones. A node holds 1,024 events of a shard at most, which are four full batches of 256.
    pub fn batches(mut self, batches: usize) -> Self {
        self.options.concurrency = batches;
        self
    }

    /// Sets the first and the longest pause before an event is sent again that the broker refused; 1 s and
    /// 60 s unless set. Later events of its model wait.
    pub fn retry(mut self, first: Duration, longest: Duration) -> Self {
        self.options = self.options.retry(first, longest);
        self
    }

    /// Gives an event up that the broker refused so often; never unless set. One that it can never accept,
    /// because it is too large, is given up at once.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.options = self.options.max_attempts(attempts);
        self
    }

    /// Moves events that are given up to the dead letters, so that later ones of their models are sent.
    /// Unless set, they are parked: they wait for an operator, and later ones of their models with them.
    pub fn dead_letters(mut self) -> Self {
        self.options = self.options.dead_letters();
        self
    }

    /// Skips the events that are stored before the relay is known to the database.
    pub fn from_now_on(mut self) -> Self {
        self.options = self.options.from_now_on();
        self
    }

    /// Adds an earlier name of the relay.
    pub fn alias(mut self, name: impl Into<String>) -> Self {
        self.options = self.options.alias(name);
        self
    }

    /// The message of an event; `Err` if the application's own code failed.
    fn message(&self, event: &UndecodedEvent) -> Result<OutgoingMessage, String> {
        let mut message = OutgoingMessage::of(
            event,
            self.topic.fill(&event.namespace, &event.model_type, &event.name),
        );
        if let Some(prepare) = &self.prepare {
            let prepared = catch_unwind(AssertUnwindSafe(|| prepare(event, &mut message)));
            let panicked = |panic: Box<dyn std::any::Any + Send>| {
                ekbatan_events::__private::failure::of_panic(&*panic)
            };
            let of_error =
                |error: BrokerError| ekbatan_events::__private::failure::of_error(&*error);
            prepared.map_err(panicked)?.map_err(of_error)?;
        }
        // These are what the relay itself relies on.
        (message.id, message.stream) = (event.id, stream_of(&event.model_id));
        Ok(message)
    }
}

impl EventRelay for Relay {
    fn name(&self) -> &str {
        &self.name
    }

    fn selection(&self) -> EventSelection {
        self.selection.clone()
    }

    fn options(&self) -> HandlerOptions {
        self.options.clone()
    }

    fn batch_size(&self) -> usize {
        self.batch
    }

    fn fences(&self) -> bool {
        self.broker.fences()
    }

    async fn check(&self, terms: RelayTerms) -> Result<(), RelayError> {
        let checked = match self.check_topic() {
            Ok(()) => self.broker.check(terms).await,
            wrong => wrong,
        };
        checked.map_err(|source| format!("{}: {}", self.broker.describe(), chain(&*source)).into())
    }

    async fn open(&self, sender: RelaySender) -> Result<(), RelayError> {
        self.broker.open(sender).await
    }

    async fn send(&self, sender: RelaySender, events: &[UndecodedEvent]) -> Vec<SentEvent> {
        // What cannot become a message ends here.
        let mut sent: Vec<SentEvent> = vec![SentEvent::NotSent; events.len()];
        let mut stopped = HashSet::new();
        let (mut places, mut messages) = (Vec::new(), Vec::new());
        for (place, (event, sent)) in events.iter().zip(&mut sent).enumerate() {
            let stream = stream_of(&event.model_id);
            if stopped.contains(&stream) {
                continue;
            }
            match self.message(event) {
                Ok(message) => {
                    places.push(place);
                    messages.push(message);
                }
                Err(why) => {
                    stopped.insert(stream);
                    *sent = SentEvent::Refused { why, may_pass: true };
                }
            }
        }
        if messages.is_empty() {
            return sent;
        }
        let receipts = in_order::publish(&*self.broker, sender, messages).await;
        for (place, receipt) in places.into_iter().zip(receipts) {
            if let Some(sent) = sent.get_mut(place) {
                *sent = outcome(receipt);
            }
        }
        sent
    }

    async fn fence(&self, lost: RelaySender) -> Result<(), RelayError> {
        self.broker.fence(lost).await
    }
}

fn outcome(receipt: Receipt) -> SentEvent {
    match receipt {
        Receipt::Accepted => SentEvent::Acknowledged,
        Receipt::Refused { why, may_pass } => SentEvent::Refused { why, may_pass },
        Receipt::Unavailable { why } => SentEvent::Unavailable { why },
        Receipt::NotSent => SentEvent::NotSent,
    }
}

fn chain(error: &(dyn std::error::Error + Send + Sync + 'static)) -> String {
    ekbatan_events::__private::failure::of_error(error)
}

impl std::fmt::Debug for Relay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Relay")
            .field("name", &self.name)
            .field("selection", &self.selection)
            .field("topic", &self.topic)
            .finish_non_exhaustive()
    }
}
