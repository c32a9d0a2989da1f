//! Why a relay of a configuration cannot be made.

use ekbatan_core::config::{RelayBroker, TopicError};

/// Error returned when a relay of a configuration cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfiguredRelayError {
    /// Its topic has a place that no event has.
    #[error(transparent)]
    Topic(#[from] TopicError),
    /// The kind of broker is not compiled in.
    #[error(
        "the relay `{relay}` needs the broker `{broker}`, which is not compiled in; add the feature `relay-{broker}` of the crate `ekbatan`"
    )]
    #[non_exhaustive]
    NotCompiledIn {
        /// The relay.
        relay: String,
        /// The kind of broker.
        broker: RelayBroker,
    },
}

impl ConfiguredRelayError {
    /// The error of a relay whose broker is not compiled in.
    pub fn not_compiled_in(relay: impl Into<String>, broker: RelayBroker) -> Self {
        Self::NotCompiledIn { relay: relay.into(), broker }
    }
}
