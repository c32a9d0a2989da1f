//! The errors of nodes and operations.

use ekbatan_core::db::{DbError, DbErrorKind, TransactionError};
use ekbatan_core::domain::ShardIdentifier;
use ekbatan_core::repository::{ReadError, WriteError};

/// Error returned when the tables of events cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EventsError {
    /// A row cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A row cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The database failed.
    #[error(transparent)]
    Database(#[from] DbError),
    /// A transaction did not commit.
    #[error(transparent)]
    Transaction(Box<TransactionError<EventsError>>),
    /// There is no such delivery or dead letter, or it is in another state by now.
    #[error("there is no {what} {id} on shard {shard} that is {state}")]
    #[non_exhaustive]
    NotFound {
        /// What was looked for.
        what: &'static str,
        /// Its id.
        id: uuid::Uuid,
        /// The shard.
        shard: ShardIdentifier,
        /// The state in which it would have to be.
        state: &'static str,
    },
    /// What an operator gave cannot be used.
    #[error("`{what}` {why}")]
    #[non_exhaustive]
    Unfit {
        /// What was given.
        what: &'static str,
        /// What is wrong with it, and what would do.
        why: String,
    },
    /// The filter does not select what was counted. Nothing was changed on this shard.
    #[error(
        "shard {shard} has {found} {filter}, and {counted} were counted; nothing was changed on this shard: count again"
    )]
    #[non_exhaustive]
    Recount {
        /// The filter, in words.
        filter: String,
        /// How many were counted.
        counted: u64,
        /// How many there are.
        found: u64,
        /// The shard.
        shard: ShardIdentifier,
    },
    /// The filter selects more than can be done at once.
    #[error("shard {shard} has more than {most} {filter}; narrow the filter, as by its dates")]
    #[non_exhaustive]
    TooMany {
        /// The filter, in words.
        filter: String,
        /// The most.
        most: usize,
        /// The shard.
        shard: ShardIdentifier,
    },
    /// The shard knows no handler of this name.
    #[error("shard {shard} knows no handler `{handler}`; it knows {known}")]
    #[non_exhaustive]
    UnknownHandler {
        /// The name.
        handler: String,
        /// The shard.
        shard: ShardIdentifier,
        /// The handlers of the shard.
        known: String,
    },
    /// The shard has no handler of this name any more.
    #[error(
        "shard {shard} has no handler `{handler}` any more: it is retired, or has another name by now; the shard has {present}"
    )]
    #[non_exhaustive]
    FormerHandler {
        /// The name.
        handler: String,
        /// The shard.
        shard: ShardIdentifier,
        /// The present handlers of the shard.
        present: String,
    },
    /// An operator has retired the handler, so that no node would handle what is replayed.
    #[error(
        "the handler `{handler}` is retired on shard {shard}, and no node would handle what is replayed; start a node with it, then replay"
    )]
    #[non_exhaustive]
    RetiredHandler {
        /// The name.
        handler: String,
        /// The shard.
        shard: ShardIdentifier,
    },
    /// A remote call is settled, but the retry of its parked delivery failed.
    #[error(
        "the remote call {key} is settled, but its delivery {delivery} could not be retried: {source}; if it is still parked, retry it, as `ekbatan events retry {delivery}` does"
    )]
    #[non_exhaustive]
    NotRetried {
        /// The key of the remote call.
        key: uuid::Uuid,
        /// The delivery.
        delivery: uuid::Uuid,
        /// Why it could not be retried.
        source: Box<EventsError>,
    },
}

impl From<TransactionError<EventsError>> for EventsError {
    fn from(error: TransactionError<EventsError>) -> Self {
        match error {
            TransactionError::Inner(error) => error,
            other => EventsError::Transaction(Box::new(other)),
        }
    }
}

impl EventsError {
    /// The error of a transaction in which only the database fails.
    pub(crate) fn of_transaction(error: TransactionError<DbError>) -> Self {
        let same = match error {
            TransactionError::Inner(error) | TransactionError::Database(error) => {
                return EventsError::Database(error);
            }
            TransactionError::Nested => TransactionError::Nested,
            TransactionError::TimedOut(after) => TransactionError::TimedOut(after),
            TransactionError::CommitUnknown(error) => TransactionError::CommitUnknown(error),
            other => {
                let why = other.to_string();
                return EventsError::Database(DbError::new(DbErrorKind::Unavailable, why));
            }
        };
        EventsError::Transaction(Box::new(same))
    }

    /// Whether the row was no longer as it was read.
    pub(crate) fn is_stale(&self) -> bool {
        matches!(self, EventsError::Write(WriteError::Stale(_)))
    }

    /// Whether another transaction kept the row locked.
    pub(crate) fn is_locked(&self) -> bool {
        matches!(self, EventsError::Write(WriteError::Database(error)) if error.kind() == DbErrorKind::LockTimeout)
    }
}

/// Any error of the application.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Error returned when a node cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Two handlers, actions or relays have one name.
    #[error(
        "the name `{name}` belongs to {first} and to {second}; give each name and alias to one of them only"
    )]
    #[non_exhaustive]
    NameTwice {
        /// The name or alias.
        name: String,
        /// What has it: the handler or the action by its type, or the relay.
        first: String,
        /// What else has it.
        second: String,
    },
    /// An option of a handler cannot work.
    #[error("the handler `{handler}` has a wrong `{option}`: {why}")]
    #[non_exhaustive]
    Option {
        /// The handler.
        handler: &'static str,
        /// The option.
        option: &'static str,
        /// The value, and what would do.
        why: String,
    },
    /// A handler wants an event that its type does not have.
    #[error(
        "the handler `{handler}` wants the event `{event}`, which its type does not have; it has {known}"
    )]
    #[non_exhaustive]
    UnknownEvent {
        /// The handler.
        handler: &'static str,
        /// The event.
        event: String,
        /// The events of its type.
        known: String,
    },
    /// A setting of the node cannot work.
    #[error("a node has a wrong `{setting}`: {why}")]
    #[non_exhaustive]
    Setting {
        /// The setting.
        setting: &'static str,
        /// The value, and what would do.
        why: String,
    },
    /// A relay cannot work.
    #[error("the relay `{relay}` cannot start: {source}")]
    #[non_exhaustive]
    Relay {
        /// The relay.
        relay: &'static str,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A shard failed.
    #[error("shard {shard}: {source}")]
    #[non_exhaustive]
    Shard {
        /// The shard.
        shard: ShardIdentifier,
        /// The cause.
        source: EventsError,
    },
}
