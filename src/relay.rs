//! Relays: they send committed events to message brokers.

use ekbatan_core::config::{EkbatanConfig, RelayBroker, RelayConfig};
#[doc(no_inline)]
pub use ekbatan_events::{EventRelay, SentEvent};
#[doc(no_inline)]
pub use ekbatan_relay::*;
#[cfg(feature = "relay-kafka")]
#[doc(no_inline)]
pub use ekbatan_relay_kafka::{KafkaBroker, KafkaError, KafkaLogin};
#[cfg(feature = "relay-nats")]
#[doc(no_inline)]
pub use ekbatan_relay_nats::{NatsBroker, NatsError};
#[cfg(feature = "relay-rabbitmq")]
#[doc(no_inline)]
pub use ekbatan_relay_rabbitmq::{RabbitMqBroker, RabbitMqError};

/// The relays of a configuration, for
/// [`NodeBuilder::relays`](crate::events::NodeBuilder::relays). Those whose broker is `in-process` send to
/// `in_process`. The features of this crate decide which brokers can be opened.
///
/// ```
/// use ekbatan::prelude::*;
/// use ekbatan::relay::{InProcessBroker, relays};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let yaml = "ekbatan: {configs: {primary-config: {url: 'sqlite:a'}}, relay: [{name: a, broker: in-process}]}";
/// # let config = EkbatanConfig::loader().yaml(yaml).load()?;
/// let broker = InProcessBroker::new();
/// let relays = relays(&config, &broker)?;
/// # assert_eq!(relays.len(), 1);
/// # Ok(())
/// # }
/// ```
pub fn relays(
    config: &EkbatanConfig,
    in_process: &InProcessBroker,
) -> Result<Vec<Relay>, ConfiguredRelayError> {
    config.relays.iter().map(|relay| configured(relay, in_process)).collect()
}

fn configured(
    config: &RelayConfig,
    in_process: &InProcessBroker,
) -> Result<Relay, ConfiguredRelayError> {
    match config.broker {
        RelayBroker::InProcess => Ok(Relay::configured(config, in_process.clone())?),
        #[cfg(feature = "relay-nats")]
        RelayBroker::Nats => Ok(Relay::configured(config, NatsBroker::configured(config))?),
        #[cfg(feature = "relay-kafka")]
        RelayBroker::Kafka => Ok(Relay::configured(config, KafkaBroker::configured(config))?),
        #[cfg(feature = "relay-rabbitmq")]
        RelayBroker::RabbitMq => Ok(Relay::configured(config, RabbitMqBroker::configured(config))?),
        broker => Err(ConfiguredRelayError::not_compiled_in(&config.name, broker)),
    }
}
