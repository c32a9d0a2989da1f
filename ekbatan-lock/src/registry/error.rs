//! Errors of opening the locks of every shard, with the configuration to add.

use ekbatan_core::config::{ConfigError, LockProviderKind, LockSettings, ShardMemberConfig};
use ekbatan_core::domain::ShardIdentifier;

use crate::LockError;

/// Error returned when the locks of an application cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyedLocksError {
    /// The configuration is invalid. The error lists every mistake.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// No shard has a `lock-config`.
    #[error("no shard has a `lock-config`. {advice}")]
    #[non_exhaustive]
    NoLocks {
        /// The configuration to add.
        advice: String,
    },
    /// The locks of some shards cannot be used. Those of the others were closed again.
    #[error("{}", each(.0))]
    Shards(Vec<ShardLocksError>),
}

/// Error returned for shards whose locks cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[error("the locks of shard {} in {provider}{place}: {source}", list(.shards))]
pub struct ShardLocksError {
    /// The shards that name these locks.
    pub shards: Vec<ShardIdentifier>,
    /// The provider.
    pub provider: LockProviderKind,
    /// ` at ` and the address without its password; empty for in-process locks.
    place: String,
    /// The cause.
    pub source: LockError,
}

fn each(failures: &[ShardLocksError]) -> String {
    failures.iter().map(ShardLocksError::to_string).collect::<Vec<_>>().join("\n")
}

fn list(shards: &[ShardIdentifier]) -> String {
    shards.iter().map(ShardIdentifier::to_string).collect::<Vec<_>>().join(", ")
}

pub(super) fn failure(
    shards: &[ShardIdentifier],
    settings: &LockSettings,
    source: LockError,
) -> ShardLocksError {
    let place = match settings.provider {
        LockProviderKind::InProcess => String::new(),
        _ => format!(" at {}", settings.server.shown_url()),
    };
    ShardLocksError { shards: shards.to_vec(), provider: settings.provider, place, source }
}

/// The lines that are missing in a shard's configuration.
pub(super) fn advice(member: &ShardMemberConfig) -> String {
    let here = member.clone().with("lock-config", ekbatan_core::config::LockConfig::default());
    let provider = here.locks().map_or(LockProviderKind::InProcess, |locks| locks.provider);
    format!(
        "Add to its `configs`, beside `primary-config`:\n\n  \
           lock-config:\n    \
             provider: {provider}\n\n\
         This keeps the locks in the primary's own database; `url: redis://HOST:PORT` keeps them \
         in Redis, and `provider: in-process` within one process"
    )
}
