//! `ekbatan.relay`.

use std::time::Duration;

use ekbatan::config::{ExposeSecret, RelayBroker, RelayConfig, SaslMechanism};
use ekbatan::prelude::EkbatanConfig;

use super::{load, load_with, problems};

const NATS: &str = "name: a, broker: nats, url: 'nats://h', stream: s";

fn with(relays: &str) -> String {
    format!("ekbatan: {{configs: {{primary-config: {{url: 'sqlite:a'}}}}, relay: [{relays}]}}")
}

fn relays(relays: &str) -> Vec<RelayConfig> {
    load(&with(relays)).unwrap().relays
}

#[test]
fn without_further_keys_a_relay_has_the_documented_settings() {
    assert!(
        load("ekbatan: {configs: {primary-config: {url: 'sqlite:a'}}}").unwrap().relays.is_empty()
    );
    let read = relays("{name: a, broker: in-process}").remove(0);
    assert_eq!((&*read.name, read.broker), ("a", RelayBroker::InProcess));
    assert_eq!((read.batch, read.batches, read.longest_retry.as_secs()), (256, 2, 60));
    assert_eq!((read.ack_timeout, read.max_attempts, read.topic), (None, None, None));
    assert!(!read.dead_letters && !read.from_now_on && read.models.is_empty());
}

#[test]
fn every_key_is_read_in_every_spelling() {
    let keys = "name: wallets, broker: kafka, url: 'kafka://a:1,b:2', username: u, sasl: scram-sha-512, \
                password: '${SECRET}', tls: true, tlsRootCert: ca.pem, models: [Wallet, Order], \
                events: 'WalletOpened, WalletClosed', topic: 'a.{event}', batch: 10, batches: 3, \
                ackTimeout: 5s, longest-retry: 2m, max-attempts: 7, after-last-attempt: dead-letter, \
                start-from: now, aliases: [earlier]";
    let read = load_with(&with(&format!("{{{keys}}}")), [("SECRET", "s3cret")]).unwrap();
    let read = &read.relays[0];
    assert_eq!((read.broker, read.sasl), (RelayBroker::Kafka, Some(SaslMechanism::ScramSha512)));
    assert_eq!(read.password.as_ref().unwrap().expose_secret(), "s3cret");
    assert_eq!(read.models, ["Wallet", "Order"]);
    assert_eq!(read.events, ["WalletOpened", "WalletClosed"]);
    assert_eq!((read.batch, read.batches, read.max_attempts), (10, 3, Some(7)));
    assert_eq!(read.ack_timeout, Some(Duration::from_secs(5)));
    assert_eq!(read.longest_retry, Duration::from_secs(120));
    assert!(read.dead_letters && read.from_now_on && read.tls == Some(true));
    assert_eq!((read.aliases.len(), read.topic.as_deref()), (1, Some("a.{event}")));
    // A variable changes an entry.
    let variables =
        [("EKBATAN_RELAY_0_URL", "nats://other:4222"), ("EKBATAN_RELAY_0_EVENTS", "A,B")];
    let read = load_with(&with(&format!("{{{NATS}}}")), variables).unwrap();
    assert_eq!(read.relays[0].url.as_deref(), Some("nats://other:4222"));
    assert_eq!(read.relays[0].events, ["A", "B"]);
}

#[test]
fn an_address_may_name_several_servers_logins_and_encryption() {
    for relay in [
        "broker: nats, stream: s, url: 'nats://u:p@h:4222,tls://v:p%2Fw@[::1]:4222, i'",
        "broker: nats, stream: s, url: 'nats://token@h'",
        "broker: rabbitmq, url: 'amqp://u:p,w@h:5672/%2Fvhost?heartbeat=10'",
        "broker: kafka, url: 'kafka://h:9092,i:9092'",
        "broker: rabbitmq, url: 'amqp://h', tls: false",
        "broker: rabbitmq, url: 'amqp://h', tls-root-cert: ca.pem",
        "broker: nats, stream: s, url: 'tls://h', tls: true, tls-root-cert: ca.pem",
    ] {
        assert_eq!(relays(&format!("{{name: a, {relay}}}")).len(), 1, "{relay}");
    }
}

#[test]
fn what_cannot_work_is_refused_with_its_place() {
    let cases = [
        ("{broker: nats}", "relay[0].name", "is missing"),
        ("{name: a}", "relay[0].broker", "is missing"),
        ("{name: a, broker: nat, url: 'nats://h'}", "relay[0].broker", "did you mean `nats`?"),
        ("{name: a, broker: kafka}", "relay[0].url", "kafka needs an address, kafka://HOST:PORT"),
        (
            "{name: a, broker: nats, url: 'amqp://h', stream: s}",
            "relay[0].url",
            "is no address of nats; write nats://HOST:PORT or tls://HOST:PORT",
        ),
        (
            "{name: a, broker: in-process, url: 'nats://h'}",
            "relay[0].url",
            "has no meaning for in-process",
        ),
        (
            "{name: a, broker: nats, url: 'nats://h, i:nats', stream: s}",
            "relay[0].url",
            "has a port that is no number",
        ),
        (
            "{name: a, broker: nats, url: 'nats://h'}",
            "relay[0].stream",
            "is missing; name the stream",
        ),
        (
            "{name: a, broker: rabbitmq, url: 'amqp://h', stream: s}",
            "relay[0].stream",
            "has no meaning for rabbitmq",
        ),
        (
            "{name: a, broker: nats, url: 'nats://h', stream: s, exchange: x}",
            "relay[0].exchange",
            "has no meaning for nats",
        ),
        (
            "{name: a, broker: rabbitmq, url: 'amqp://h', sasl: plain}",
            "relay[0].sasl",
            "has no meaning for rabbitmq",
        ),
        (
            "{name: a, broker: kafka, url: 'kafka://h', sasl: scram-sha-512}",
            "relay[0].sasl",
            "is given without `username`, so no user logs in",
        ),
        (
            "{name: a, broker: rabbitmq, url: 'amqp://h', password: p}",
            "relay[0].password",
            "is given without `username`",
        ),
        (
            "{name: a, broker: rabbitmq, url: 'amqps://h', tls: false}",
            "relay[0].tls",
            "contradicts the address, which encrypts",
        ),
        (
            "{name: a, broker: nats, url: 'nats://h, tls://i', stream: s, tls: false}",
            "relay[0].tls",
            "contradicts the address, which encrypts",
        ),
        (
            "{name: a, broker: kafka, url: 'kafka://h', tls: false, tls-root-cert: ca.pem}",
            "relay[0].tls",
            "contradicts `tls-root-cert`, which encrypts; remove one of the two",
        ),
        (
            "{name: a, broker: in-process, topic: 'a.{mode}'}",
            "relay[0].topic",
            "has the place `{mode}`",
        ),
        ("{name: a, broker: in-process, batch: 0}", "relay[0].batch", "from 1 to 1000"),
        ("{name: a, broker: in-process, batches: 65}", "relay[0].batches", "from 1 to 64"),
        ("{name: a, broker: in-process, ack-timeout: 0s}", "relay[0].ack-timeout", "is no time"),
        (
            "{name: a, broker: kafka, url: 'kafka://a:1', ack-timeout: 60s}",
            "relay[0].ack-timeout",
            "at most 30s, because a batch is given up after a minute",
        ),
        (
            "{name: a, broker: in-process, ack-timeout: 45s}",
            "relay[0].ack-timeout",
            "at most 30s, because a batch is given up after a minute",
        ),
        (
            "{name: a, broker: in-process, longest-retry: 2d}",
            "relay[0].longest-retry",
            "at most 1d",
        ),
        ("{name: a, broker: in-process, max-attempts: 0}", "relay[0].max-attempts", "from 1 to"),
        ("{name: a, broker: in-process, models: []}", "relay[0].models", "has an empty entry"),
        ("{name: a, broker: in-process, events: 'A,,B'}", "relay[0].events", "has an empty entry"),
        ("{name: a, broker: in-process, models: 7}", "relay[0].models", "expected a list of texts"),
        ("{name: a, broker: in-process, mode: W}", "relay[0].mode", "did you mean `models`?"),
        (
            "{name: a, broker: in-process}, {name: a, broker: in-process}",
            "relay[1].name",
            "is the name of another relay",
        ),
        (
            "{name: a, broker: in-process}, {name: b, broker: in-process, aliases: a}",
            "relay[1].name",
            "is the name of another relay",
        ),
    ];
    for (relays, place, message) in cases {
        let found = problems(&with(relays));
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        let is_right = |problem: &String| problem.contains(place) && problem.contains(message);
        assert!(found.iter().any(is_right), "{relays}: {found:?}");
    }
    let twice = format!("{{{NATS}}}, {{{}}}", NATS.replace("name: a", "name: b"));
    let found = problems(&with(&twice));
    assert!(
        found.iter().any(|problem| problem.to_string().contains("belongs to the relay `a`, too"))
    );
}

#[test]
fn no_message_shows_a_password() {
    let relay = "{name: a, broker: kafka, url: 'amqp://user:s3cret@h', password: s3cret}";
    let found: Vec<String> = problems(&with(relay)).iter().map(ToString::to_string).collect();
    assert!(
        !found.is_empty() && found.iter().all(|problem| !problem.contains("s3cret")),
        "{found:?}"
    );
}

#[test]
fn what_cannot_work_is_refused_in_code_too() {
    let mut relay = RelayConfig::new("n".repeat(256), RelayBroker::Nats);
    relay.batch = 0;
    let error = EkbatanConfig::single("sqlite:a").relay(relay).check().unwrap_err().to_string();
    for part in ["has 256 bytes", "nats needs an address", "name the stream", "not from 1 to 1000"]
    {
        assert!(error.contains(part), "{part}: {error}");
    }
}
