//! What the databases are reached by, and how much of them is used.
//!
//! A configuration is loaded from YAML files, the environment and code, or made in code
//! alone; the same rules hold for both. Everything that is wrong is told at once, each with
//! its place, and no password is ever shown.
//!
//! Loading goes through these, one after the other: `yaml` reads texts, `environment` finds
//! the keys that variables mean, `layers` merges, `reader` holds the values against the
//! table in `keys`, `read_config` builds, `rules` judges.

mod address;
mod data_source;
mod duration;
mod ekbatan_config;
mod environment;
mod error;
mod interpolation;
mod jdbc;
mod key_path;
mod keys;
mod layers;
mod loader;
mod lock_rules;
mod locks;
mod read_config;
mod read_data_source;
mod reader;
mod rules;
mod schema;
mod sharding;
mod spelling;
mod yaml;

pub use address::Dialect;
pub use data_source::{DataSourceConfig, Durability, TlsMode};
pub use ekbatan_config::EkbatanConfig;
pub use error::{ConfigError, ConfigProblem, ConfigSource};
pub use loader::ConfigLoader;
pub use locks::{LockConfig, LockProviderKind, LockSettings, LockStrategy};
pub use schema::json_schema;
pub use secrecy::{ExposeSecret, SecretString};
pub use sharding::{ShardGroupConfig, ShardMemberConfig, ShardingConfig, UnknownShard};
