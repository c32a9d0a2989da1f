//! The row of a remote call: what is known of a call of another system.

use chrono::{DateTime, Utc};
use ekbatan_core::__private::deliveries::{Delivery, remote_call_id};
use ekbatan_core::domain::Id;
use ekbatan_macros::{Entity, State};
use uuid::Uuid;

/// A call of another system that a handler makes for an event.
#[derive(Debug, Clone, PartialEq, Entity)]
#[entity(table = "eventlog.remote_calls")]
#[non_exhaustive]
pub struct RemoteCall {
    /// The identity, and the key that the other system gets. It follows from the event, the handler and
    /// the name of the call.
    pub id: Id<RemoteCall>,
    /// The stored name of the handler, under which the first delivery was stored that sent a request.
    pub handler: String,
    /// The event.
    pub event_id: Uuid,
    /// The name of the call within the handler.
    pub name: String,
    /// The delivery that came to the call last.
    pub delivery: Uuid,
    /// Identifies the last request.
    pub request: Uuid,
    /// How many requests were sent.
    pub requests: i64,
    /// When the last request was sent.
    pub sent: DateTime<Utc>,
    /// What the other system answered, as JSON.
    pub outcome: Option<String>,
    /// Why the outcome is not known, or why the call did not happen.
    pub error: Option<String>,
    /// When it became known whether the call happened.
    pub settled: Option<DateTime<Utc>>,
    /// What is known.
    pub state: RemoteCallState,
}

/// What is known of a remote call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, State)]
#[non_exhaustive]
pub enum RemoteCallState {
    /// A request is under way, or was when its run ended.
    Sent,
    /// A request was sent, and whether the call happened is not known.
    InDoubt,
    /// The call happened. Its outcome is stored.
    Done,
    /// The call did not happen. The next run of the handler makes it.
    NotDone,
}

impl RemoteCall {
    /// The identity of the call of a handler for an event.
    pub(crate) fn id_of(event: Uuid, handler: &str, name: &str) -> Id<Self> {
        Id::from_uuid(remote_call_id(event, handler, name))
    }

    /// The call with its first request.
    pub(crate) fn first_sent(
        delivery: &Delivery,
        name: &str,
        request: Uuid,
        now: DateTime<Utc>,
    ) -> Self {
        let handler = delivery.handler.as_str();
        Self {
            id: Self::id_of(delivery.event_id, handler, name),
            handler: handler.to_owned(),
            event_id: delivery.event_id,
            name: name.to_owned(),
            delivery: delivery.id.uuid(),
            request,
            requests: 1,
            sent: now,
            outcome: None,
            error: None,
            settled: None,
            state: RemoteCallState::Sent,
        }
    }

    /// A further request is sent.
    pub(crate) fn send_again(&mut self, delivery: &Delivery, request: Uuid, now: DateTime<Utc>) {
        (self.delivery, self.request, self.sent) = (delivery.id.uuid(), request, now);
        self.requests += 1;
        (self.error, self.settled) = (None, None);
        self.state = RemoteCallState::Sent;
    }

    /// Another delivery of the event has come to the call, and does not know whether it happened.
    pub(crate) fn doubt_again(&mut self, delivery: &Delivery, why: String) {
        self.delivery = delivery.id.uuid();
        self.doubt(why);
    }

    /// Whether the last request had an effect is not known.
    pub(crate) fn doubt(&mut self, why: String) {
        (self.state, self.error) = (RemoteCallState::InDoubt, Some(why));
    }

    /// The call happened.
    pub(crate) fn happened(&mut self, outcome: String, now: DateTime<Utc>) {
        (self.state, self.outcome) = (RemoteCallState::Done, Some(outcome));
        (self.error, self.settled) = (None, Some(now));
    }

    /// The call did not happen.
    pub(crate) fn did_not_happen(&mut self, why: String, now: DateTime<Utc>) {
        (self.state, self.error) = (RemoteCallState::NotDone, Some(why));
        self.settled = Some(now);
    }

    /// Whether it is not known if the call happened. The request may be under way at this moment.
    pub(crate) fn is_unsettled(&self) -> bool {
        matches!(self.state, RemoteCallState::Sent | RemoteCallState::InDoubt)
    }
}
