//! Deliveries that were given up.

use chrono::{DateTime, Utc};
use ekbatan_core::domain::Id;
use ekbatan_macros::{Entity, State};
use uuid::Uuid;

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
    /// Who has settled it.
    pub settled_by: Option<String>,
    /// Why it was settled like this.
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
