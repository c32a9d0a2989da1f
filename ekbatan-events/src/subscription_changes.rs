//! What a registration of handlers writes to the subscriptions of a shard.

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
            for event in &handler.events {
                let of = |name: &str| {
                    present.iter().find(|row| row.handler == name && row.event_type == *event)
                };
                let active = |row: &&Stored<Subscription>| row.state.is_subscribed();
                // A handler that was renamed goes on where it was: events that have a delivery
                // under the earlier name get no other one.
                let earlier =
                    handler.options.aliases.iter().find_map(|name| of(name).filter(active));
                let (since, since_date, state) = match earlier {
                    Some(earlier) => {
                        (earlier.since, earlier.since_date, wanted_again(earlier.state))
                    }
                    None => (next, from, SubscriptionState::Active),
                };
                match of(handler.name) {
                    Some(row) if row.state == SubscriptionState::Unwanted => {
                        let again = |row: &mut Subscription| row.state = wanted_again(row.state);
                        changes.changed.push(row.clone().apply(again));
                    }
                    Some(row) if row.state.is_subscribed() => {}
                    Some(row) if row.state == SubscriptionState::Withdrawn && earlier.is_none() => {
                        let since_date = from.or(row.since_date);
                        changes.changed.push(row.clone().apply(|row| {
                            (row.state, row.since) = (SubscriptionState::Active, next);
                            row.since_date = since_date;
                        }));
                    }
                    // The events up to now had their deliveries under this name, and those since
                    // have them under the present one. None may get a second one.
                    Some(retired) if earlier.is_none() => {
                        tracing::error!(handler = %retired.handler, event = %event, "the handler was renamed, and this process knows the earlier name only: it gets no events; the deployment is not complete, or the present name is missing in the aliases");
                    }
                    Some(retired) => changes.changed.push(retired.clone().apply(|row| {
                        (row.state, row.since) = (state, since);
                        row.since_date = since_date;
                    })),
                    None => changes.new.push(Subscription {
                        id: Id::from_uuid(Uuid::now_v7()),
                        handler: handler.name.to_owned(),
                        event_type: event.clone(),
                        since,
                        since_date,
                        state,
                    }),
                }
                if let Some(earlier) = earlier {
                    let retire = |row: &mut Subscription| row.state = SubscriptionState::Retired;
                    changes.changed.push(earlier.clone().apply(retire));
                }
            }
            changes.note_unwanted(handler, &present);
        }
        changes
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

/// The state of a subscription that a process wants.
fn wanted_again(state: SubscriptionState) -> SubscriptionState {
    match state {
        SubscriptionState::Unwanted => SubscriptionState::Active,
        state => state,
    }
}
