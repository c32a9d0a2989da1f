//! Why Kafka cannot be used.

use std::time::Duration;

/// Error returned when a relay cannot use Kafka.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KafkaError {
    /// The cluster refused a request, or is not there.
    #[error(transparent)]
    Cluster(#[from] krafka::KrafkaError),
    /// A setting cannot work.
    #[error("`{setting}` {why}")]
    #[non_exhaustive]
    Setting {
        /// The setting.
        setting: &'static str,
        /// What is wrong with it, and what would do.
        why: String,
    },
    /// The cluster does not answer.
    #[error("the cluster did not answer within {0:?}")]
    Silent(Duration),
}
