//! What a database is reached by, and how much of it is used.

mod data_source;
mod sharding;

pub use data_source::{DataSourceConfig, Durability, EkbatanConfig};
pub use sharding::{ShardGroupConfig, ShardMemberConfig, ShardingConfig, UnknownShard};
