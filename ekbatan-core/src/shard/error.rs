//! The errors of placement.

use std::error::Error as StdError;

use uuid::Uuid;

use crate::domain::{ShardIdentifier, list_shards};

/// The shard of a row could not be determined.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShardError {
    /// The shard is not configured.
    #[error(
        "shard {shard} is not configured; the shards are {}. Add it to the configuration, or set `unknown-shard: default-shard` if the default shard holds its rows",
        list_shards(known)
    )]
    Unknown {
        /// The shard.
        shard: ShardIdentifier,
        /// The configured shards.
        known: Vec<ShardIdentifier>,
    },
    /// Ids of this type carry a shard, but this id does not.
    #[error(
        "{model} {id} carries no shard: it is not a UUID of version 7; make ids by `ShardedId::new(shard)` or `ctx.new_sharded_id(shard)`"
    )]
    #[non_exhaustive]
    NoShardInId {
        /// The model.
        model: &'static str,
        /// The id.
        id: Uuid,
    },
    /// The rows are placed by their value, so an id alone does not determine the shard.
    #[error(
        "rows of {model} are placed by their value, so an id does not determine the shard; read by a condition, or give the sharding a lookup (`Sharding::with_lookup`)"
    )]
    #[non_exhaustive]
    NotById {
        /// The model.
        model: &'static str,
    },
    /// The application's lookup failed.
    #[error("the lookup of the shard of {model} {id} failed: {source}")]
    #[non_exhaustive]
    Lookup {
        /// The model.
        model: &'static str,
        /// The id.
        id: Uuid,
        /// The cause.
        source: Box<dyn StdError + Send + Sync>,
    },
    /// The value that places the row could not be read back.
    #[error("the shard of {model} {id} could not be determined from its value: {source}")]
    #[non_exhaustive]
    Placement {
        /// The model.
        model: &'static str,
        /// The id.
        id: Uuid,
        /// The cause.
        source: crate::domain::FieldError,
    },
}
