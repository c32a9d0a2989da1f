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
        RelayBroker::InProcess => {
            Ok(Relay::configured(config, within_process(config, in_process))?)
        }
        #[cfg(feature = "relay-nats")]
        RelayBroker::Nats => Ok(Relay::configured(config, NatsBroker::configured(config))?),
        #[cfg(feature = "relay-kafka")]
        RelayBroker::Kafka => Ok(Relay::configured(config, KafkaBroker::configured(config))?),
        #[cfg(feature = "relay-rabbitmq")]
        RelayBroker::RabbitMq => Ok(Relay::configured(config, RabbitMqBroker::configured(config))?),
        broker => Err(ConfiguredRelayError::not_compiled_in(&config.name, broker)),
    }
}

/// The broker of the process, as this relay sends to it.
fn within_process(config: &RelayConfig, broker: &InProcessBroker) -> InProcessBroker {
    match config.ack_timeout {
        Some(timeout) => broker.clone().ack_timeout(timeout),
        None => broker.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_relay_to_the_broker_of_the_process_has_its_own_ack_timeout() {
        let yaml = "ekbatan: {configs: {primary-config: {url: 'sqlite:a'}}, relay: [\
            {name: a, broker: in-process, ack-timeout: 7s}, {name: b, broker: in-process}]}";
        let config = EkbatanConfig::loader().yaml(yaml).load().unwrap();
        let broker = InProcessBroker::new();
        let told =
            config.relays.iter().map(|relay| format!("{:?}", within_process(relay, &broker)));
        let waits = |told: String, time: &str| assert!(told.contains(time), "{told}");
        told.zip(["ack_timeout: 7s", "ack_timeout: 30s"])
            .for_each(|(told, time)| waits(told, time));
    }
}
