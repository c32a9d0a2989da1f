//! Reads `ekbatan.relay`.

use super::section::Section;
use crate::config::relay_config::{RelayBroker, RelayConfig, SaslMechanism};

pub(super) fn relays(root: &mut Section) -> Vec<RelayConfig> {
    root.list("relay").unwrap_or_default().into_iter().map(relay).collect()
}

fn relay(mut section: Section) -> RelayConfig {
    // What is missing is listed already.
    let broker = section.word("broker").and_then(RelayBroker::named).unwrap_or_default();
    let mut config = RelayConfig::new(section.text("name").unwrap_or_default(), broker);
    config.url = section.text("url");
    config.username = section.text("username");
    config.password = section.text("password").map(Into::into);
    config.tls = section.flag("tls");
    config.tls_root_cert = section.text("tls-root-cert").map(Into::into);
    config.models = section.texts("models").unwrap_or_default();
    config.events = section.texts("events").unwrap_or_default();
    config.topic = section.text("topic");
    config.sasl = section.word("sasl").and_then(SaslMechanism::named);
    config.stream = section.text("stream");
    config.create_stream = section.texts("create-stream").unwrap_or_default();
    config.exchange = section.text("exchange");
    // The reader has checked that the counts are small.
    let mut count = |key: &str| section.count(key).and_then(|count| count.try_into().ok());
    config.batch = count("batch").unwrap_or(config.batch);
    config.batches = count("batches").unwrap_or(config.batches);
    config.max_attempts = section.count("max-attempts").and_then(|count| count.try_into().ok());
    config.ack_timeout = section.time("ack-timeout");
    config.longest_retry = section.time("longest-retry").unwrap_or(config.longest_retry);
    config.dead_letters = section.word("after-last-attempt") == Some("dead-letter");
    config.from_now_on = section.word("start-from") == Some("now");
    config.aliases = section.texts("aliases").unwrap_or_default();
    config
}
