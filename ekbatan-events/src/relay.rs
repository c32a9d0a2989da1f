//! What a relay is to a node: it takes events undecoded and in batches, and sends them to where
//! other programs find them. `ekbatan-relay` has the relays to message brokers.

use std::collections::BTreeSet;
use std::error::Error;
use std::time::Duration;

use ekbatan_core::__private::deliveries::Wanted;
use ekbatan_core::domain::ShardIdentifier;
use uuid::Uuid;

use crate::{Delivered, HandlerOptions};

/// An event whose payload is JSON text, as it is stored.
pub type UndecodedEvent = Delivered<String>;

/// Sends events to where other programs find them. Nodes give it the events of each model in order,
/// several at a time. An event is done once it is acknowledged; until then it is sent again.
///
/// What operators do with handlers they do with relays, too, by the name of the relay.
pub trait EventRelay: Send + Sync + 'static {
    /// The stored name. It must never change, and no handler may have it.
    fn name(&self) -> &str;

    /// The events that it wants. It gets no others.
    fn selection(&self) -> EventSelection;

    /// How it is run. Of the [`HandlerOptions`], the order is always that of the models, no event is
    /// given up for its age, and `only` has no meaning. `concurrency` is how many batches are under way
    /// at a time, on each shard, each with other models; `timeout` is that of a batch.
    fn options(&self) -> HandlerOptions;

    /// How many events a batch has at most. At least 1.
    fn batch_size(&self) -> usize;

    /// Whether [`fence`](Self::fence) keeps a node from sending.
    fn fences(&self) -> bool {
        false
    }

    /// Called once before a node starts. An error keeps the node from starting.
    fn check(&self, terms: RelayTerms) -> impl Future<Output = Result<(), RelayError>> + Send;

    /// Called before a node claims events as this sender, and again after [`SentEvent::Unavailable`].
    /// While it fails, the node claims nothing for the relay, and calls it again after a pause.
    fn open(&self, sender: RelaySender) -> impl Future<Output = Result<(), RelayError>> + Send;

    /// Sends events. The answer has one entry for each, in the same order. Events of one model stand in
    /// their order. If one of them is not acknowledged, none of those behind it may be sent.
    ///
    /// The future may be dropped. Then nothing is known of any event, and all are sent again.
    fn send(
        &self,
        sender: RelaySender,
        events: &[UndecodedEvent],
    ) -> impl Future<Output = Vec<SentEvent>> + Send;

    /// Keeps another node, which is lost, from sending anything more. Until that succeeds, nobody gets
    /// the events that it had claimed.
    fn fence(&self, lost: RelaySender) -> impl Future<Output = Result<(), RelayError>> + Send {
        let _ = lost;
        async { Ok(()) }
    }
}

/// Why a relay cannot send.
pub type RelayError = Box<dyn Error + Send + Sync>;

/// The times within which an event may be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelayTerms {
    /// The time after which others take over from a node that is not heard of.
    pub lease: Duration,
    /// The longest pause before a broker is tried again that did not answer.
    pub longest_pause: Duration,
}

impl RelayTerms {
    /// The terms of a node with this lease.
    pub fn of_lease(lease: Duration) -> Self {
        Self { lease, longest_pause: LONGEST_PAUSE }
    }
}

/// The longest pause before a relay is opened again.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// A relay of a node on one shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct RelaySender {
    /// The stored name of the relay. Each relay of a node is a sender of its own.
    pub relay: &'static str,
    /// The shard that stores the events.
    pub shard: ShardIdentifier,
    /// The node's identity. It never comes again: a node that was lost joins under another one.
    pub node: Uuid,
}

impl RelaySender {
    /// A relay of a node on a shard.
    pub fn new(relay: &'static str, shard: ShardIdentifier, node: Uuid) -> Self {
        Self { relay, shard, node }
    }
}

/// What became of an event that was to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SentEvent {
    /// It is where it was to go.
    Acknowledged,
    /// It was refused, and is not there.
    Refused {
        /// The cause.
        why: String,
        /// Whether it may be accepted later. If not, it is given up at once.
        may_pass: bool,
    },
    /// No answer came, or nothing is accepted at present. The event may be there or not. It is sent
    /// again after a pause, and no attempt is counted.
    Unavailable {
        /// The cause.
        why: String,
    },
    /// It was not sent: because one before it was not acknowledged, for lack of time, or because the node
    /// is no longer known to be alive.
    NotSent,
}

/// Which events a relay wants: those of these models, and those with these names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EventSelection {
    wanted: BTreeSet<Wanted>,
}

impl EventSelection {
    /// All events, also those of models that are added later.
    pub fn all() -> Self {
        Self { wanted: BTreeSet::from([Wanted::All]) }
    }

    /// The events of these models, by their stored names.
    pub fn of_models<N: Into<String>>(models: impl IntoIterator<Item = N>) -> Self {
        Self { wanted: models.into_iter().map(|name| Wanted::Model(name.into())).collect() }
    }

    /// The events with these stored names.
    pub fn of_events<N: Into<String>>(events: impl IntoIterator<Item = N>) -> Self {
        Self { wanted: events.into_iter().map(|name| Wanted::Event(name.into())).collect() }
    }

    /// The events of both selections.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.wanted.extend(other.wanted);
        self
    }

    /// Whether it selects nothing.
    pub fn is_empty(&self) -> bool {
        self.wanted.is_empty()
    }

    /// Whether an event is selected.
    pub fn has(&self, event: &UndecodedEvent) -> bool {
        let Self { wanted } = self;
        wanted.contains(&Wanted::All)
            || wanted.contains(&Wanted::Model(event.model_type.clone()))
            || wanted.contains(&Wanted::Event(event.name.clone()))
    }

    /// As subscriptions are stored.
    pub(crate) fn texts(&self) -> Vec<String> {
        self.wanted.iter().map(Wanted::text).collect()
    }
}
