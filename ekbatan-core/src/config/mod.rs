//! The configuration: which databases exist, how they are reached and how much of each is used.
//!
//! A configuration comes from YAML files, the environment and code, or from code alone. Three
//! steps work on it:
//!
//! 1. `read`: files, variables and settings become an [`EkbatanConfig`]; every value must have
//!    the shape that `keys` declares for its key.
//! 2. `check`: the rules that go beyond one value. They hold for loaded configurations and for
//!    those made in code.
//! 3. `describe`: the JSON schema for editors, printed from `keys`.
//!
//! Invariants: all problems are reported together, each with its place; no message contains a
//! password.

mod address;
mod check;
mod data_source;
mod describe;
mod dialect;
mod ekbatan_config;
mod error;
mod events_config;
mod findings;
mod jobs_config;
mod key;
mod key_path;
mod keys;
mod lock_config;
mod lock_settings;
mod parameters;
mod read;
mod relay_config;
mod retention_config;
mod sharding;
mod shown_address;
mod source_keys;
mod spelling;
mod topic;

#[doc(hidden)]
pub use address::decoded;
pub(crate) use data_source::LONGEST_TIMEOUT;
pub use data_source::{DataSourceConfig, Durability, TlsMode};
pub use describe::json_schema;
pub use dialect::Dialect;
pub use ekbatan_config::EkbatanConfig;
pub use error::{AddressError, ConfigError, ConfigProblem, ConfigSource};
pub use events_config::EventsConfig;
pub use jobs_config::JobsConfig;
pub use lock_config::{LockConfig, LockProviderKind, LockStrategy};
pub use lock_settings::LockSettings;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) use parameters::certificate_files;
#[cfg(feature = "postgres")]
pub(crate) use parameters::{names_tls_mode, with_effect_only};
pub use read::ConfigLoader;
pub use relay_config::{RelayBroker, RelayConfig, SaslMechanism};
pub use retention_config::RetentionConfig;
pub use secrecy::{ExposeSecret, SecretString};
pub use sharding::{ShardGroupConfig, ShardMemberConfig, ShardingConfig, UnknownShard};
pub(crate) use spelling::same_key;
pub use topic::{TopicError, TopicTemplate};
