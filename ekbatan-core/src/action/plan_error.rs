//! What is wrong with a plan.

use uuid::Uuid;

use crate::db::{SchemaError, StageError, TableError, beginning};
use crate::domain::{FieldError, PayloadError};

/// Error returned when a plan cannot be committed because of a mistake in the action.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A row was staged twice.
    #[error("{model} {id} was staged twice; make all changes on one value and stage it once")]
    #[non_exhaustive]
    StagedTwice {
        /// The model.
        model: &'static str,
        /// The row.
        id: Uuid,
    },
    /// A change changed the row's id.
    #[error(
        "a change of {model} {id} changed its id; add a new one and delete the old one instead"
    )]
    #[non_exhaustive]
    IdChanged {
        /// The model.
        model: &'static str,
        /// The id with which it was read.
        id: Uuid,
    },
    /// A field cannot be stored.
    #[error("{model} {id}: {source}")]
    #[non_exhaustive]
    Field {
        /// The model.
        model: &'static str,
        /// The row.
        id: Uuid,
        /// The column and the cause.
        source: FieldError,
    },
    /// The parameters or an event do not serialize to a JSON object.
    #[error(transparent)]
    Payload(#[from] PayloadError),
    /// A key of enqueued calls is empty.
    #[error("a key of an enqueued call of `{action}` is empty; name what the calls share")]
    #[non_exhaustive]
    EmptyKey {
        /// The action.
        action: &'static str,
    },
    /// An enqueued call is due after the year 9999.
    #[error(
        "the enqueued call of `{action}` is due {due}; not every database stores dates after the year 9999"
    )]
    #[non_exhaustive]
    TooLate {
        /// The action.
        action: &'static str,
        /// The time.
        due: String,
    },
    /// The output does not serialize, is nested too deeply or holds a NaN, so it cannot be stored under
    /// the idempotency key.
    #[error("the output cannot be stored under the idempotency key: {0}")]
    Output(serde_json::Error),
    /// The idempotency key is empty or too long.
    #[error("the idempotency key `{0}` has {1} bytes; use 1 to 255 bytes")]
    Key(String, usize),
    /// The idempotency key holds the character 0, which not every database stores.
    #[error(
        "the idempotency key {0:?} holds the character 0, which not every database stores; remove it"
    )]
    KeyHoldsNul(String),
    /// The consumer or the id of a message is empty or too long.
    #[error("the {what} `{value}` of the message has {bytes} bytes; use 1 to 255 bytes")]
    #[non_exhaustive]
    Message {
        /// `consumer` or `id`.
        what: &'static str,
        /// The text.
        value: String,
        /// Its size.
        bytes: usize,
    },
    /// The consumer or the id of a message holds the character 0, which not every database stores.
    #[error(
        "the {what} {value:?} of the message holds the character 0, which not every database stores; remove it"
    )]
    #[non_exhaustive]
    MessageHoldsNul {
        /// `consumer` or `id`.
        what: &'static str,
        /// The text.
        value: String,
    },
    /// The principal or the reason of the call holds the character 0, which not every database stores.
    #[error(
        "the {what} {value:?} of the call holds the character 0, which not every database stores; remove it"
    )]
    #[non_exhaustive]
    HoldsNul {
        /// `principal` or `reason`.
        what: &'static str,
        /// The text.
        value: String,
    },
    /// The principal of the call is longer than its column.
    #[error("the principal {} has {length} characters; use at most 255", beginning(.principal))]
    #[non_exhaustive]
    PrincipalTooLong {
        /// The principal.
        principal: String,
        /// How many characters it has.
        length: usize,
    },
    /// The call has an idempotency key, and handles a message once.
    #[error(
        "the call has an idempotency key and a message; keep `.once(..)` for a message, or the key if a repeated call needs the output"
    )]
    KeyAndMessage,
    /// A table does not match the code.
    #[error(transparent)]
    Schema(#[from] SchemaError),
}

impl From<StageError> for PlanError {
    fn from(error: StageError) -> Self {
        match error {
            StageError::IdChanged { model, id } => PlanError::IdChanged { model, id },
            StageError::Field { model, id, source } => PlanError::Field { model, id, source },
            StageError::Table(TableError::Schema(error)) => PlanError::Schema(error),
            // Not reached: `ExecuteError::from` handles the errors of the database itself.
            StageError::Table(TableError::Database(error)) => PlanError::Field {
                model: "?",
                id: Uuid::nil(),
                source: FieldError::new(error.to_string()),
            },
        }
    }
}
