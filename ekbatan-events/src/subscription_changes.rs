//! What a registration of handlers writes to the subscriptions of a shard.
//!
//! Invariants:
//! - A handler that has another name by now goes on where it was under the earlier one, also if it was retired
//!   meanwhile. No event gets a second delivery by the present name.
//! - A pause of an operator outlives every registration.

use chrono::{DateTime, Utc};
use ekbatan_core::__private::deliveries::{Subscription, SubscriptionState, Wanted};
use ekbatan_core::domain::{Changed, Id, Stored};
use uuid::Uuid;

use crate::handler_set::{Handler, HandlerSet};
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
            let from = match handler.options.start_from {
                StartFrom::Beginning => None,
                StartFrom::Now => Some(now),
            };
            let initial = if is_paused(handler, &present) {
                SubscriptionState::Paused
            } else {
                SubscriptionState::Active
            };
            let mut earlier_name = None;
            for event in &handler.events {
                let of = |name: &str| {
                    present.iter().find(|row| row.handler == name && row.event_type == *event)
                };
                let by_alias = |fits: fn(SubscriptionState) -> bool| {
                    let mut rows = handler.options.aliases.iter().filter_map(|name| of(name));
                    rows.find(|row| fits(row.state))
                };
                let own = of(handler.name);
                // A handler that was renamed goes on where it was: events that have a delivery
                // under the earlier name get no other one. So does one that an operator has retired under
                // that name, and not under the present one.
                let is_free = own.is_none_or(|row| row.state == SubscriptionState::Retired);
                let earlier = by_alias(SubscriptionState::is_subscribed)
                    .or_else(|| by_alias(is_withdrawn).filter(|_| is_free));
                let (since, since_date) = match earlier {
                    Some(row) if is_withdrawn(row.state) => (next, from.or(row.since_date)),
                    Some(row) => (row.since, row.since_date),
                    None => (next, from),
                };
                match own {
                    Some(row) if row.state == SubscriptionState::Unwanted => {
                        changes.changed.push(row.clone().apply(|row| row.state = initial));
                    }
                    Some(row) if row.state.is_subscribed() => {}
                    Some(row) if is_withdrawn(row.state) && earlier.is_none() => {
                        let since_date = from.or(row.since_date);
                        changes.changed.push(row.clone().apply(|row| {
                            (row.state, row.since) = (initial, next);
                            row.since_date = since_date;
                        }));
                    }
                    // The events up to now had their deliveries under this name, and those since
                    // have them under the present one. None may get a second one.
                    Some(retired) if earlier.is_none() => {
                        tracing::error!(handler = %retired.handler, event = %event, "the handler was renamed, and this process knows the earlier name only: it gets no events; the deployment is not complete, or the present name is missing in the aliases");
                    }
                    Some(retired) => {
                        changes.changed.push(retired.clone().apply(|row| {
                            (row.state, row.since) = (initial, since);
                            row.since_date = since_date;
                        }));
                    }
                    None => {
                        changes.new.push(Subscription {
                            id: Id::from_uuid(Uuid::now_v7()),
                            handler: handler.name.to_owned(),
                            event_type: event.clone(),
                            since,
                            since_date,
                            state: initial,
                        });
                    }
                }
                if let Some(earlier) = earlier {
                    let retire = |row: &mut Subscription| row.state = SubscriptionState::Retired;
                    changes.changed.push(earlier.clone().apply(retire));
                    if own.is_none_or(|row| !row.state.is_subscribed()) {
                        earlier_name = Some(earlier.handler.as_str());
                    }
                }
            }
            changes.note_unwanted(handler, &present);
            if let Some(earlier) = earlier_name {
                changes.keep_retirement(handler.name, earlier, &present);
            }
        }
        changes
    }

    /// Lets a handler keep under its present name when it was retired under an earlier one: events from before
    /// then had their deliveries.
    fn keep_retirement(&mut self, name: &str, earlier: &str, present: &[Stored<Subscription>]) {
        let text = Wanted::Retired.text();
        let of =
            |name: &str| present.iter().find(|row| row.handler == name && row.event_type == text);
        let Some(retired) = of(earlier) else { return };
        match of(name) {
            Some(own) if own.since >= retired.since => {}
            Some(own) => self.changed.push(own.clone().apply(|row| {
                (row.since, row.since_date) = (retired.since, retired.since_date);
            })),
            None => self.new.push(Subscription {
                id: Id::from_uuid(Uuid::now_v7()),
                handler: name.to_owned(),
                ..(**retired).clone()
            }),
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
