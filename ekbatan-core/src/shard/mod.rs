//! The registry of databases, and the placement of rows on them.

mod databases;
mod error;
mod fencing;
mod homed_key;
mod migrations;
mod old_fences;
mod outbox_retention;
mod partial;
#[allow(clippy::module_inception)] // a file per type, named after the type
mod shard;
mod shard_retention;
mod sharding;
mod shards;
mod slot;

pub use databases::{CheckError, ConnectError, Databases};
pub use error::ShardError;
pub(crate) use fencing::{Fencing, FencingError};
pub(crate) use homed_key::{FoundCall, HomedKey, KeyHomes};
pub use migrations::ShardMigrations;
pub use outbox_retention::PruneError;
pub use partial::PartialCommit;
pub(crate) use partial::forget_parts;
pub use shard::Shard;
pub(crate) use sharding::Place;
pub use sharding::Sharding;
pub(crate) use shards::{Shards, visit};
pub use slot::Slot;
