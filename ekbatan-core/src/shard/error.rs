//! Why a row has no shard.

use std::error::Error as StdError;

use uuid::Uuid;

use crate::domain::{ShardIdentifier, list_shards};

/// A shard that is not to be found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShardError {
    /// The shard is not configured.
    #[error(
        "shard {shard} is not configured; there are {}. Add it to the configuration, or set `unknown-shard: default-shard` if the default shard holds its rows",
        list_shards(known)
    )]
    Unknown {
        /// The shard.
        shard: ShardIdentifier,
        /// Those that are configured.
        known: Vec<ShardIdentifier>,
    },
    /// The id is of a kind that carries a shard, but this one does not.
    #[error(
        "{model} {id} carries no shard: it is not a UUID of version 7; make ids by `ShardedId::new(shard)` or `ctx.new_sharded_id(shard)`"
    )]
    NoShardInId {
        /// The model.
        model: &'static str,
        /// The id.
        id: Uuid,
    },
    /// Rows are placed by their value, which an id alone does not tell.
    #[error(
        "rows of {model} are placed by their value, so that an id does not tell where its row is; read by a condition, or give the sharding a lookup (`Sharding::with_lookup`)"
    )]
    NotById {
        /// The model.
        model: &'static str,
    },
    /// The application's lookup failed.
    #[error("the lookup of the shard of {model} {id} failed: {source}")]
    Lookup {
        /// The model.
        model: &'static str,
        /// The id.
        id: Uuid,
        /// Why.
        source: Box<dyn StdError + Send + Sync>,
    },
    /// A value by which rows are placed could not be read back from the row.
    #[error("{model} {id}: where it is placed could not be told: {source}")]
    Placement {
        /// The model.
        model: &'static str,
        /// The id.
        id: Uuid,
        /// Why.
        source: crate::domain::FieldError,
    },
}
