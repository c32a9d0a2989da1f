//! Deliveries that were given up.

use chrono::{DateTime, Utc};
use ekbatan_core::__private::deliveries::{Delivery, EventPlace};
use ekbatan_core::domain::Id;
use ekbatan_macros::{Entity, State};
use uuid::Uuid;

use crate::intervention::Operator;

/// A delivery that was given up. The event stays in the outbox.
#[derive(Debug, Clone, PartialEq, Entity)]
#[entity(table = "eventlog.dead_letters")]
#[non_exhaustive]
pub struct DeadLetter {
    /// The identity.
    pub id: Id<DeadLetter>,
    /// The stored name of the handler.
    pub handler: String,
    /// The model's id.
    pub stream: Uuid,
    /// The version of the model after the change.
    pub model_version: i64,
    /// The position of the event within its action.
    pub event_index: i64,
    /// The event.
    pub event_id: Uuid,
    /// How many times the handler has failed.
    pub attempts: i64,
    /// Why the handler failed the last time, or why it was not run.
    pub error: String,
    /// When the delivery was given up.
    pub died: DateTime<Utc>,
    /// When somebody settled it.
    pub settled: Option<DateTime<Utc>>,
    /// The operator who settled it.
    pub settled_by: Option<String>,
    /// The operator's reason.
    pub settled_why: Option<String>,
    /// What became of it.
    pub state: DeadLetterState,
}

/// What became of a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, State)]
#[non_exhaustive]
pub enum DeadLetterState {
    /// Nothing yet.
    Dead,
    /// It was delivered again.
    Replayed,
    /// Somebody decided that it is not to be handled.
    Skipped,
}

impl DeadLetter {
    /// The letter of a delivery that is given up.
    pub(crate) fn of(
        delivery: &Delivery,
        error: String,
        attempts: i64,
        now: DateTime<Utc>,
    ) -> Self {
        Self {
            id: Id::from_uuid(Uuid::now_v7()),
            handler: delivery.handler.clone(),
            stream: delivery.stream,
            model_version: delivery.model_version,
            event_index: delivery.event_index,
            event_id: delivery.event_id,
            attempts,
            error,
            died: now,
            settled: None,
            settled_by: None,
            settled_why: None,
            state: DeadLetterState::Dead,
        }
    }

    /// The letter of a delivery that an operator does not want to be handled.
    pub(crate) fn skipped(delivery: &Delivery, operator: Operator<'_>, now: DateTime<Utc>) -> Self {
        let error = delivery.last_error.clone().unwrap_or_default();
        let mut letter = Self::of(delivery, error, delivery.attempts, now);
        letter.settle(DeadLetterState::Skipped, operator, now);
        letter
    }

    pub(crate) fn settle(
        &mut self,
        state: DeadLetterState,
        operator: Operator<'_>,
        now: DateTime<Utc>,
    ) {
        (self.state, self.settled) = (state, Some(now));
        self.settled_by = Some(operator.who.to_owned());
        self.settled_why = Some(operator.why.to_owned());
    }

    /// The place of its event.
    pub(crate) fn place(&self) -> EventPlace {
        EventPlace {
            stream: self.stream,
            model_version: self.model_version,
            event_index: self.event_index,
            event_id: self.event_id,
        }
    }

    /// A further delivery of the event.
    pub(crate) fn delivered_again(&self, now: DateTime<Utc>) -> Delivery {
        Delivery::once_more(&self.handler, self.place(), self.error.clone(), now)
    }
}
