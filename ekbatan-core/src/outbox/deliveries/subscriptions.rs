//! Which handlers want which events.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use ekbatan_macros::{Entity, State};

use super::{EventKind, NewDelivery, Wanted};
use crate::db::{StageError, Staged};
use crate::domain::Id;

/// One type of events that a handler wants.
#[derive(Debug, Clone, PartialEq, Entity)]
#[entity(table = "eventlog.subscriptions")]
pub struct Subscription {
    /// The identity.
    pub id: Id<Subscription>,
    /// The stored name of the handler.
    pub handler: String,
    /// The event's name, or the text of another [`Wanted`].
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
    /// Its events get deliveries, but the last release that says so does not want them: they are done
    /// without the handler. Processes of an earlier release may still handle them.
    Unwanted,
    /// Not any more: the handler has another name by now.
    Retired,
    /// Not any more: an operator has retired the handler. A node that registers it again wants the
    /// events since then.
    Withdrawn,
}

impl SubscriptionState {
    /// Whether events get deliveries.
    pub fn is_subscribed(self) -> bool {
        self.is_wanted() || self == Self::Unwanted
    }

    /// Whether the handler handles them, now or after a pause.
    pub fn is_wanted(self) -> bool {
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
    /// How often operators had changed states before these were read.
    states: i64,
    by_type: HashMap<String, Vec<Subscriber>>,
    /// Those that want the events of a model, or all events.
    wide: Vec<(Wanted, Subscriber)>,
    all: Vec<Subscriber>,
    paused: HashSet<Arc<str>>,
    fenced: HashSet<Arc<str>>,
    registered: Vec<HandlerWant>,
    /// By handler, when an operator has retired it, also if it has come back. A handler that goes on where
    /// several others were retired has several retirements.
    retired: HashMap<String, Vec<Retirement>>,
}

/// Since when a handler is retired.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Retirement {
    /// The generation that began with it.
    since: i64,
    since_date: Option<DateTime<Utc>>,
}

/// What a handler has wanted, and whether it still does.
#[derive(Debug, Clone)]
struct HandlerWant {
    handler: String,
    wanted: Wanted,
    state: SubscriptionState,
}

#[derive(Debug, Clone, PartialEq)]
struct Subscriber {
    handler: Arc<str>,
    since: i64,
    since_date: Option<DateTime<Utc>>,
    /// If it goes on where it was retired, the generation that began then: events of earlier ones had
    /// their deliveries.
    retired: Option<i64>,
}

impl Subscriber {
    /// Whether an event lacks its delivery that has the deliveries of a generation. An event of generation 0 has
    /// none at all, because its process knew no handlers.
    fn lacks(&self, generation: i64) -> bool {
        let had = self.retired.is_some_and(|retired| (1..retired).contains(&generation));
        generation < self.since && !had
    }
}

impl Subscriptions {
    /// The subscriptions up to a generation.
    pub fn new(generation: i64, rows: impl IntoIterator<Item = Subscription>) -> Self {
        let mut subscriptions = Self { generation, ..Self::default() };
        let (retired, rows): (Vec<_>, Vec<_>) = rows
            .into_iter()
            .filter(|row| row.since <= generation)
            .partition(|row| row.event_type == Wanted::Retired.text());
        for Subscription { handler, since, since_date, .. } in retired {
            let retired = subscriptions.retired.entry(handler).or_default();
            retired.push(Retirement { since, since_date });
        }
        for row in rows {
            let Subscription { handler, event_type, since, since_date, state, .. } = row;
            let wanted = Wanted::read(&event_type);
            // Also under an earlier name of a relay: a lost node may have claimed deliveries under it.
            if wanted == Wanted::Fence && state != SubscriptionState::Withdrawn {
                subscriptions.fenced.insert(handler.as_str().into());
            }
            subscriptions.registered.push(HandlerWant {
                handler: handler.clone(),
                wanted: wanted.clone(),
                state,
            });
            if !state.is_subscribed() {
                continue;
            }
            let mut retired = subscriptions.retired.get(&handler).into_iter().flatten();
            let retired = retired.find(|of| of.since_date == since_date).map(|of| of.since);
            let handler: Arc<str> = handler.into();
            if state == SubscriptionState::Paused {
                subscriptions.paused.insert(handler.clone());
            }
            let subscriber = Subscriber { handler, since, since_date, retired };
            match wanted {
                Wanted::Fence => continue,
                Wanted::Calls => {}
                Wanted::Event(name) => {
                    subscriptions.by_type.entry(name).or_default().push(subscriber.clone());
                }
                wide => subscriptions.wide.push((wide, subscriber.clone())),
            }
            subscriptions.all.push(subscriber);
        }
        subscriptions
    }

    /// Notes how often operators had changed states before these were read.
    #[must_use]
    pub fn with_states(mut self, states: i64) -> Self {
        self.states = states;
        self
    }

    /// The generation, and how often operators had changed states. Later ones are greater.
    pub fn versions(&self) -> (i64, i64) {
        (self.generation, self.states)
    }

    /// The number of the last registration.
    pub fn generation(&self) -> i64 {
        self.generation
    }

    /// Whether an operator has paused a handler.
    pub fn is_paused(&self, handler: &str) -> bool {
        self.paused.contains(handler)
    }

    /// The handlers whose claims are released only after their node has been kept from sending.
    pub fn fenced(&self) -> impl Iterator<Item = &str> {
        self.fenced.iter().map(|handler| &**handler)
    }

    /// Whether an operator has retired any handler, also if it has come back.
    pub(super) fn has_retired(&self) -> bool {
        !self.retired.is_empty()
    }

    /// Whether no handler wants anything.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether any handler wants events, and not only calls.
    pub(super) fn want_events(&self) -> bool {
        self.of_events().next().is_some()
    }

    /// The generation from which on a handler has all of its subscriptions; `None` if it has none.
    pub fn since(&self, handler: &str) -> Option<i64> {
        self.of(handler).map(|subscriber| subscriber.since).max()
    }

    /// Whether a handler had deliveries of these events, and the last release that says so does not want
    /// them any more. `names` are those of the handler. What is not known yet may be wanted.
    pub fn is_unwanted(&self, kind: EventKind<'_>, names: &[String]) -> bool {
        let of_handler = self.registered.iter().filter(|of| names.contains(&of.handler));
        let mut reasons = of_handler.filter(|of| of.wanted.has(kind)).peekable();
        reasons.peek().is_some() && reasons.all(|of| !of.state.is_wanted())
    }

    /// The generations in which subscriptions to events began, and the present one, in order.
    pub(super) fn beginnings(&self) -> Vec<i64> {
        let since = self.of_events().map(|of| of.since);
        let mut beginnings: Vec<i64> = since.chain([self.generation]).collect();
        beginnings.sort_unstable();
        beginnings.dedup();
        beginnings
    }

    /// From which date on the events of an earlier generation lack deliveries of subscriptions up
    /// to `until`; `Err` if they lack none.
    pub(super) fn missing(&self, generation: i64, until: i64) -> Result<Option<DateTime<Utc>>, ()> {
        let later = self.of_events().filter(|of| of.lacks(generation) && of.since <= until);
        later.map(|of| of.since_date).min().ok_or(())
    }

    /// The deliveries of an event that has those of an earlier generation.
    pub(crate) fn deliveries(
        &self,
        kind: EventKind<'_>,
        event: NewDelivery,
        generation: i64,
    ) -> impl Iterator<Item = Result<Staged, StageError>> {
        let handlers = self.handlers(kind, event.event_date, generation).into_iter();
        handlers.map(move |handler| event.stage(handler, None).map(|(row, _)| row))
    }

    /// The handlers that want an event that has the deliveries of an earlier generation. Each gets one
    /// delivery, also if it wants the event for several reasons.
    pub(crate) fn handlers(
        &self,
        kind: EventKind<'_>,
        date: DateTime<Utc>,
        generation: i64,
    ) -> Vec<&Arc<str>> {
        let by_name = self.by_type.get(kind.name).into_iter().flatten();
        let wide = self.wide.iter().filter(|(wanted, _)| wanted.has(kind)).map(|(_, of)| of);
        let in_time = |of: &&Subscriber| of.since_date.is_none_or(|since| date >= since);
        if self.wide.is_empty() {
            let wanting = by_name.filter(in_time).filter(|of| of.lacks(generation));
            return wanting.map(|of| &of.handler).collect();
        }
        let wanting: Vec<&Subscriber> = by_name.chain(wide).filter(in_time).collect();
        let had = |handler: &Arc<str>| {
            wanting.iter().any(|of| of.handler == *handler && !of.lacks(generation))
        };
        let mut handlers: Vec<&Arc<str>> = Vec::new();
        for Subscriber { handler, .. } in &wanting {
            if !had(handler) && !handlers.contains(&handler) {
                handlers.push(handler);
            }
        }
        handlers
    }

    fn of_events(&self) -> impl Iterator<Item = &Subscriber> {
        self.by_type.values().flatten().chain(self.wide.iter().map(|(_, of)| of))
    }

    fn of<'s>(&'s self, handler: &'s str) -> impl Iterator<Item = &'s Subscriber> {
        self.all.iter().filter(move |of| &*of.handler == handler)
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    const DEPOSITED: EventKind<'_> = EventKind { model: "Wallet", name: "WalletDeposited" };

    fn wants(handler: &str, wanted: Wanted, since: i64) -> Subscription {
        Subscription {
            id: Id::from_uuid(Uuid::now_v7()),
            handler: handler.to_owned(),
            event_type: wanted.text(),
            since,
            since_date: None,
            state: SubscriptionState::Active,
        }
    }

    fn handlers(rows: Vec<Subscription>, kind: EventKind<'_>, generation: i64) -> Vec<String> {
        let subscriptions = Subscriptions::new(9, rows);
        let found = subscriptions.handlers(kind, Utc::now(), generation);
        found.into_iter().map(|handler| handler.to_string()).collect()
    }

    #[test]
    fn a_handler_gets_an_event_once_for_whatever_reasons() {
        let rows = vec![
            wants("all", Wanted::All, 1),
            wants("mixed", Wanted::Event("WalletDeposited".into()), 1),
            wants("mixed", Wanted::Model("Wallet".into()), 2),
            wants("other", Wanted::Model("Order".into()), 1),
            wants("all", Wanted::Fence, 3),
        ];
        assert_eq!(handlers(rows.clone(), DEPOSITED, 0), ["mixed", "all"]);
        // The event had its delivery for the first reason when the second one came.
        assert!(handlers(rows.clone(), DEPOSITED, 1).is_empty());
        let opened = EventKind { model: "Wallet", name: "WalletOpened" };
        assert_eq!(handlers(rows.clone(), opened, 1), ["mixed"]);
        let fenced = Subscriptions::new(9, rows);
        assert_eq!(fenced.fenced().collect::<Vec<_>>(), ["all"]);
        assert_eq!(fenced.since("all"), Some(1), "a fence wants no events");
    }

    #[test]
    fn a_relay_is_fenced_under_earlier_names_too_and_not_once_withdrawn() {
        let in_state = |handler, state| Subscription { state, ..wants(handler, Wanted::Fence, 1) };
        let rows = vec![
            in_state("later", SubscriptionState::Active),
            in_state("earlier", SubscriptionState::Retired),
            in_state("gone", SubscriptionState::Withdrawn),
        ];
        let subscriptions = Subscriptions::new(1, rows);
        let mut fenced: Vec<_> = subscriptions.fenced().collect();
        fenced.sort_unstable();
        assert_eq!(fenced, ["earlier", "later"]);
    }

    #[test]
    fn no_event_lacks_the_delivery_of_an_action() {
        let since_date = Some(Utc::now());
        let call = |since| Subscription { since_date, ..wants("transfer", Wanted::Calls, since) };
        let subscriptions = Subscriptions::new(9, [wants("ledger", Wanted::All, 3), call(5)]);
        let missing = |generation| subscriptions.missing(generation, 9);
        assert_eq!([2, 3, 4].map(missing), [Ok(None), Err(()), Err(())]);
        assert_eq!(subscriptions.beginnings(), [3, 9]);
        assert_eq!(subscriptions.since("transfer"), Some(5));
    }

    #[test]
    fn a_handler_that_comes_back_lacks_what_was_committed_while_it_was_retired() {
        let since_date = Some(Utc::now() - chrono::TimeDelta::hours(1));
        let deposited = || Wanted::Event("WalletDeposited".into());
        let returned = Subscription { since_date, ..wants("ledger", deposited(), 7) };
        let retired = Subscription {
            since_date,
            state: SubscriptionState::Withdrawn,
            ..wants("ledger", Wanted::Retired, 4)
        };
        let added = wants("ledger", Wanted::Model("Wallet".into()), 8);
        for generation in 0..9 {
            let lacks = !handlers(vec![returned.clone(), retired.clone()], DEPOSITED, generation)
                .is_empty();
            assert_eq!(lacks, matches!(generation, 0 | 4..=6), "{generation}");
            let lacks =
                !handlers(vec![added.clone(), retired.clone()], DEPOSITED, generation).is_empty();
            assert_eq!(lacks, generation < 8, "{generation}: it was not there to be retired");
        }
    }

    #[test]
    fn a_handler_that_goes_on_for_two_has_the_retirements_of_both() {
        let hour = |n| Some(Utc::now() - chrono::TimeDelta::hours(n));
        let (opened, deposited) = ("WalletOpened", "WalletDeposited");
        let mut rows = Vec::new();
        for (event, since, since_date) in [(opened, 4, hour(2)), (deposited, 6, hour(1))] {
            let went_on = wants("ledger", Wanted::Event(event.into()), 7);
            let state = SubscriptionState::Withdrawn;
            let retired = wants("ledger", Wanted::Retired, since);
            rows.push(Subscription { since_date, ..went_on });
            rows.push(Subscription { since_date, state, ..retired });
        }
        for generation in 0..9 {
            let lacks = |name| {
                let kind = EventKind { model: "Wallet", name };
                !handlers(rows.clone(), kind, generation).is_empty()
            };
            assert_eq!(lacks(opened), matches!(generation, 0 | 4..=6), "{generation}");
            assert_eq!(lacks(deposited), matches!(generation, 0 | 6), "{generation}");
        }
    }

    #[test]
    fn an_event_is_unwanted_if_no_present_reason_is_left() {
        let row = |handler, wanted, state| Subscription { state, ..wants(handler, wanted, 1) };
        let event = |name: &str| Wanted::Event(name.into());
        let of_model = Wanted::Model("Wallet".into());
        let subscriptions = Subscriptions::new(
            1,
            vec![
                row("ledger", event("Opened"), SubscriptionState::Active),
                row("ledger", event("Deposited"), SubscriptionState::Unwanted),
                row("ledger", event("Closed"), SubscriptionState::Unwanted),
                row("ledger.earlier", event("Closed"), SubscriptionState::Paused),
                row("ledger", event("Frozen"), SubscriptionState::Withdrawn),
                row("mail", event("Deposited"), SubscriptionState::Unwanted),
                row("mail", of_model, SubscriptionState::Active),
            ],
        );
        let names =
            |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let is_unwanted = |name, of: &[&str]| {
            subscriptions.is_unwanted(EventKind { model: "Wallet", name }, &names(of))
        };
        assert!(!is_unwanted("Opened", &["ledger"]));
        assert!(is_unwanted("Deposited", &["ledger"]));
        assert!(is_unwanted("Closed", &["ledger"]));
        assert!(!is_unwanted("Closed", &["ledger", "ledger.earlier"]));
        assert!(is_unwanted("Frozen", &["ledger"]), "an operator has retired it");
        assert!(!is_unwanted("Deposited", &["mail"]), "there is another reason");
        assert!(!is_unwanted("Thawed", &["ledger"]), "not known yet");
    }
}
