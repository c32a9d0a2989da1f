//! What a registration of handlers writes to the subscriptions of a shard.
//!
//! Invariants:
//! - A handler that has another name by now goes on where it was under the earlier one, also if it was retired
//!   meanwhile. No event gets a second delivery by the present name.
//! - A pause of an operator outlives every registration.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use ekbatan_core::__private::deliveries::{Subscription, SubscriptionState, Wanted};
use ekbatan_core::domain::{Changed, Id, Stored};
use uuid::Uuid;

use crate::handlers::handler_set::HandlerSet;
use crate::handlers::node_handler::Handler;
use crate::options::StartFrom;

/// What a registration writes.
#[derive(Default)]
pub(crate) struct SubscriptionChanges {
    pub(crate) new: Vec<Subscription>,
    pub(crate) changed: Vec<Changed<Subscription>>,
}

impl SubscriptionChanges {
    pub(crate) fn of(
        handlers: &HandlerSet,
        present: Vec<Stored<Subscription>>,
        next: i64,
        now: DateTime<Utc>,
    ) -> Self {
        let mut changes = Self::default();
        for handler in handlers.iter() {
            let beginning = Beginning::of(handler, &present, next, now);
            let mut earlier_names = BTreeSet::new();
            for event in &handler.events {
                let own = find(&present, handler.name, event);
                let earlier = find_earlier(&present, handler, event, own);
                changes.subscribe(handler, event, own, earlier.first().copied(), &beginning);
                for earlier in earlier {
                    let retire = |row: &mut Subscription| row.state = SubscriptionState::Retired;
                    changes.changed.push(earlier.clone().apply(retire));
                    if own.is_none_or(|row| !row.state.is_subscribed()) {
                        earlier_names.insert(earlier.handler.as_str());
                    }
                }
            }
            changes.note_unwanted(handler, &present);
            for earlier in earlier_names {
                changes.keep_retirements(handler.name, earlier, &present);
            }
        }
        changes
    }

    /// Lets a handler want an event. `own` is what is stored under its present name, `earlier` what it goes on
    /// with.
    fn subscribe(
        &mut self,
        handler: &Handler,
        event: &str,
        own: Option<&Stored<Subscription>>,
        earlier: Option<&Stored<Subscription>>,
        beginning: &Beginning,
    ) {
        let Some(own) = own else {
            let (since, since_date) = beginning.after(earlier);
            self.new.push(Subscription {
                id: Id::from_uuid(Uuid::now_v7()),
                handler: handler.name.to_owned(),
                event_type: event.to_owned(),
                since,
                since_date,
                state: beginning.state,
            });
            return;
        };
        match own.state {
            SubscriptionState::Active | SubscriptionState::Paused => {}
            // Its events have got deliveries all the time.
            SubscriptionState::Unwanted => {
                self.changed.push(own.clone().apply(|row| row.state = beginning.state));
            }
            // The events up to now had their deliveries under this name, and those since
            // have them under the present one. None may get a second one.
            SubscriptionState::Retired if earlier.is_none() => {
                tracing::error!(handler = %own.handler, event = %event, "the handler was renamed, and this process knows the earlier name only: it gets no events; the deployment is not complete, or the present name is missing in the aliases");
            }
            SubscriptionState::Retired | SubscriptionState::Withdrawn => {
                let (since, since_date) = beginning.after(earlier.or(Some(own)));
                self.changed.push(own.clone().apply(|row| {
                    (row.state, row.since) = (beginning.state, since);
                    row.since_date = since_date;
                }));
            }
        }
    }

    /// Lets a handler keep under its present name when it was retired under an earlier one: events from before
    /// then had their deliveries. It may have several earlier names, each with a time of its own.
    fn keep_retirements(&mut self, name: &str, earlier: &str, present: &[Stored<Subscription>]) {
        let text = Wanted::Retired.text();
        let is_of = |row: &Subscription, name: &str| row.handler == name && row.event_type == text;
        for retired in present.iter().filter(|row| is_of(row, earlier)) {
            let is_copy =
                |row: &Subscription| is_of(row, name) && row.since_date == retired.since_date;
            if !present.iter().any(|row| is_copy(row)) {
                self.new.push(Subscription {
                    id: Id::from_uuid(Uuid::now_v7()),
                    handler: name.to_owned(),
                    ..(**retired).clone()
                });
            }
        }
    }

    /// Notes what the handler does not want any more.
    ///
    /// A process that lacks only what was added last may be of an earlier release that starts once more. What
    /// it lacks stays wanted.
    fn note_unwanted(&mut self, handler: &Handler, present: &[Stored<Subscription>]) {
        let names = handler.names();
        // That a relay can be fenced says nothing of the events that it wants.
        let fence = Wanted::Fence.text();
        let of_handler =
            |row: &Subscription| names.contains(&row.handler) && row.event_type != fence;
        let is_own = |row: &Subscription| handler.events.contains(&row.event_type);
        let present = || present.iter().filter(|row| of_handler(row));
        let own = present().filter(|row| is_own(row)).map(|row| row.since);
        let new = self.new.iter().filter(|row| of_handler(row)).map(|row| row.since);
        let last_own = own.chain(new).max();
        let unwanted = present().filter(|row| {
            row.state.is_wanted() && !is_own(row) && last_own.is_some_and(|last| row.since <= last)
        });
        let note = |row: &mut Subscription| row.state = SubscriptionState::Unwanted;
        let unwanted: Vec<_> = unwanted.map(|row| row.clone().apply(note)).collect();
        self.changed.extend(unwanted);
    }
}

/// How new subscriptions of a handler begin.
struct Beginning {
    /// The generation of this registration.
    since: i64,
    /// From which date on the handler wants events, if its options say so.
    since_date: Option<DateTime<Utc>>,
    state: SubscriptionState,
}

impl Beginning {
    fn of(
        handler: &Handler,
        present: &[Stored<Subscription>],
        next: i64,
        now: DateTime<Utc>,
    ) -> Self {
        let since_date = match handler.options.start_from {
            StartFrom::Beginning => None,
            StartFrom::Now => Some(now),
        };
        let state = if is_paused(handler, present) {
            SubscriptionState::Paused
        } else {
            SubscriptionState::Active
        };
        Self { since: next, since_date, state }
    }

    /// The generation and the date with which a subscription begins that follows an earlier one.
    fn after(&self, earlier: Option<&Stored<Subscription>>) -> (i64, Option<DateTime<Utc>>) {
        match earlier {
            None => (self.since, self.since_date),
            // The events since it was withdrawn lack deliveries.
            Some(row) if is_withdrawn(row.state) => {
                (self.since, self.since_date.or(row.since_date))
            }
            Some(row) => (row.since, row.since_date),
        }
    }
}

/// What is stored under a name for an event.
fn find<'p>(
    present: &'p [Stored<Subscription>],
    name: &str,
    event: &str,
) -> Option<&'p Stored<Subscription>> {
    present.iter().find(|row| row.handler == name && row.event_type == event)
}

/// The subscriptions of a handler under its earlier names, the oldest first. The handler goes on with the first one:
/// events that have a delivery under that name get no other one. Mostly only one earlier name still gets deliveries.
/// A handler also goes on where an operator has retired it under an earlier name, unless it was retired under the
/// present one, too.
fn find_earlier<'p>(
    present: &'p [Stored<Subscription>],
    handler: &Handler,
    event: &str,
    own: Option<&Stored<Subscription>>,
) -> Vec<&'p Stored<Subscription>> {
    let by_alias = || handler.options.aliases.iter().filter_map(|name| find(present, name, event));
    let mut subscribed: Vec<_> = by_alias().filter(|row| row.state.is_subscribed()).collect();
    subscribed.sort_by_key(|row| row.since);
    let is_free = own.is_none_or(|row| row.state == SubscriptionState::Retired);
    if subscribed.is_empty() && is_free {
        subscribed.extend(by_alias().find(|row| is_withdrawn(row.state)));
    }
    subscribed
}

fn is_withdrawn(state: SubscriptionState) -> bool {
    state == SubscriptionState::Withdrawn
}

/// Whether an operator has paused the handler: under its present name, or under an earlier one if it is renamed
/// now.
fn is_paused(handler: &Handler, present: &[Stored<Subscription>]) -> bool {
    let any = |name: &str, fits: fn(SubscriptionState) -> bool| {
        present.iter().any(|row| row.handler == name && fits(row.state))
    };
    let paused = |name: &str| any(name, |state| state == SubscriptionState::Paused);
    if any(handler.name, SubscriptionState::is_subscribed) {
        return paused(handler.name);
    }
    handler.options.aliases.iter().any(|name| paused(name))
}
