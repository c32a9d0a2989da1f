//! The registry of databases, and the placement of rows on them.

mod databases;
mod error;
mod fencing;
mod migrations;
mod partial;
#[allow(clippy::module_inception)] // a file per type, named after the type
mod shard;
mod sharding;
mod shards;
mod slot;

pub use databases::{CheckError, ConnectError, Databases};
pub use error::ShardError;
pub(crate) use fencing::{Fencing, FencingError};
pub use migrations::ShardMigrations;
pub use partial::PartialCommit;
pub use shard::Shard;
pub(crate) use sharding::Place;
pub use sharding::Sharding;
pub(crate) use shards::{Shards, visit};
pub use slot::Slot;
