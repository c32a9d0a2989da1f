//! Which handlers want which events.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use ekbatan_macros::{Entity, State};

use super::NewDelivery;
use crate::db::{StageError, Staged};
use crate::domain::Id;

/// One type of events that a handler wants.
#[derive(Debug, Clone, PartialEq, Entity)]
#[entity(table = "eventlog.subscriptions")]
pub struct Subscription {
    /// The identity, which follows from the handler and the type.
    pub id: Id<Subscription>,
    /// The stored name of the handler.
    pub handler: String,
    /// The event's name.
    pub event_type: String,
    /// The generation that began with this subscription.
    pub since: i64,
    /// The handler wants no events from before this date. `None`: it wants all events.
    pub since_date: Option<DateTime<Utc>>,
    /// Whether the handler wants the events.
    pub state: SubscriptionState,
}

/// Whether a handler wants events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, State)]
pub enum SubscriptionState {
    /// It does.
    Active,
    /// It does, but an operator wants no node to handle them for now.
    Paused,
    /// Not any more: the handler has another name by now.
    Retired,
    /// Not any more: an operator has retired the handler. A node that registers it again wants the
    /// events since then.
    Withdrawn,
}

impl SubscriptionState {
    /// Whether events get deliveries.
    pub fn is_subscribed(self) -> bool {
        matches!(self, Self::Active | Self::Paused)
    }
}

/// The subscriptions of one shard, as this process knows them.
///
/// Invariant: each registration of handlers begins a new generation. An event row that has the
/// number of a generation has the deliveries of all subscriptions up to it.
#[derive(Debug, Clone, Default)]
pub struct Subscriptions {
    generation: i64,
    by_type: HashMap<String, Vec<Subscriber>>,
    all: Vec<Subscriber>,
    paused: HashSet<Arc<str>>,
}

#[derive(Debug, Clone, PartialEq)]
struct Subscriber {
    handler: Arc<str>,
    since: i64,
    since_date: Option<DateTime<Utc>>,
}

impl Subscriptions {
    /// The subscriptions up to a generation.
    pub fn new(generation: i64, rows: impl IntoIterator<Item = Subscription>) -> Self {
        let mut subscriptions = Self { generation, ..Self::default() };
        for row in rows {
            if row.since > generation || !row.state.is_subscribed() {
                continue;
            }
            let Subscription { handler, event_type, since, since_date, state, .. } = row;
            let handler: Arc<str> = handler.into();
            if state == SubscriptionState::Paused {
                subscriptions.paused.insert(handler.clone());
            }
            let subscriber = Subscriber { handler, since, since_date };
            subscriptions.all.push(subscriber.clone());
            subscriptions.by_type.entry(event_type).or_default().push(subscriber);
        }
        subscriptions
    }

    /// The number of the last registration.
    pub fn generation(&self) -> i64 {
        self.generation
    }

    /// Whether an operator has paused a handler.
    pub fn is_paused(&self, handler: &str) -> bool {
        self.paused.contains(handler)
    }

    /// Whether no handler wants anything.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The generation from which on a handler has all of its subscriptions; `None` if it has none.
    pub fn since(&self, handler: &str) -> Option<i64> {
        self.of(handler).map(|subscriber| subscriber.since).max()
    }

    /// The generations in which subscriptions began, in order.
    pub(super) fn beginnings(&self) -> Vec<i64> {
        let mut beginnings: Vec<i64> = self.all.iter().map(|of| of.since).collect();
        beginnings.sort_unstable();
        beginnings.dedup();
        beginnings
    }

    /// From which date on the events of an earlier generation lack deliveries of subscriptions up
    /// to `until`; `Err` if they lack none.
    pub(super) fn missing(&self, generation: i64, until: i64) -> Result<Option<DateTime<Utc>>, ()> {
        let later = self.all.iter().filter(|of| of.since > generation && of.since <= until);
        later.map(|of| of.since_date).min().ok_or(())
    }

    /// The deliveries of an event that has those of an earlier generation.
    pub(crate) fn deliveries(
        &self,
        event_type: &str,
        event: NewDelivery,
        generation: i64,
    ) -> impl Iterator<Item = Result<Staged, StageError>> {
        let handlers = self.handlers(event_type, event.event_date, generation);
        handlers.map(move |handler| event.stage(handler, None).map(|(row, _)| row))
    }

    /// The handlers that want an event that has the deliveries of an earlier generation.
    pub(crate) fn handlers(
        &self,
        event_type: &str,
        date: DateTime<Utc>,
        generation: i64,
    ) -> impl Iterator<Item = &Arc<str>> {
        let subscribers = self.by_type.get(event_type).into_iter().flatten();
        let wanting = subscribers.filter(move |of| {
            of.since > generation && of.since_date.is_none_or(|since| date >= since)
        });
        wanting.map(|of| &of.handler)
    }

    fn of<'s>(&'s self, handler: &'s str) -> impl Iterator<Item = &'s Subscriber> {
        self.all.iter().filter(move |of| &*of.handler == handler)
    }
}
