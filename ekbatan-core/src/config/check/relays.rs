//! The rules for relays.

use std::time::Duration;

use super::events::{DAY, size};
use super::login;
use super::times::check_time;
use crate::config::address::{Parts, scheme};
use crate::config::findings::Findings;
use crate::config::key::{BATCH, BATCHES};
use crate::config::key_path::KeyPath;
use crate::config::relay_config::{RelayBroker, RelayConfig};
use crate::config::shown_address::shown;
use crate::config::topic::TopicTemplate;

/// How long an answer of a server is waited for. A relay gives a batch up after twice that time.
const LONGEST_ANSWER: Duration = Duration::from_secs(30);

/// The schemes of addresses that encrypt.
const ENCRYPTING: [&str; 2] = ["tls", "amqps"];

pub(super) fn check(relays: &[RelayConfig], at: &KeyPath, findings: &mut Findings) {
    for (position, relay) in relays.iter().enumerate() {
        let earlier = relays.get(..position).unwrap_or_default();
        let at = at.index(position);
        check_names(relay, earlier, &at, findings);
        check_address(relay, &at, findings);
        check_keys_of_brokers(relay, earlier, &at, findings);
        check_encryption(relay, &at, findings);
        if let Some(error) = relay.topic.as_ref().and_then(|of| TopicTemplate::parse(of).err()) {
            let topic = relay.topic.clone().unwrap_or_default();
            findings.add_value(&at.key("topic"), topic, error.why);
        }
        size("batch", relay.batch, BATCH, &at, findings);
        size("batches", relay.batches, BATCHES, &at, findings);
        let times =
            [("ack-timeout", relay.ack_timeout), ("longest-retry", Some(relay.longest_retry))];
        for (key, time) in times {
            if let Some(time) = time {
                check_time(key, time, DAY, &at, findings);
            }
        }
        if let Some(time) = relay.ack_timeout.filter(|time| *time > LONGEST_ANSWER) {
            let message = "is too long; at most 30s, because a batch is given up after a minute";
            let place = at.key("ack-timeout");
            if !findings.has(&place) {
                findings.add_time(&place, time, message);
            }
        }
        if relay.max_attempts == Some(0) {
            let message = "gives events up before they are sent; give at least 1";
            findings.add_value(&at.key("max-attempts"), 0, message);
        }
    }
}

fn check_names(
    relay: &RelayConfig,
    earlier: &[RelayConfig],
    at: &KeyPath,
    findings: &mut Findings,
) {
    let name = at.key("name");
    if relay.name.trim().is_empty() {
        if !findings.has(&name) {
            findings.add(&name, "is blank; give a name, which must never change");
        }
        return;
    }
    if relay.name.len() > 255 {
        findings.add(&name, format!("has {} bytes; use at most 255", relay.name.len()));
    }
    let names = |of: &RelayConfig| [vec![of.name.clone()], of.aliases.clone()].concat();
    let taken: Vec<String> = earlier.iter().flat_map(names).collect();
    if let Some(twice) = names(relay).into_iter().find(|name| taken.contains(name)) {
        findings.add_value(&name, twice, "is the name of another relay, too; each needs its own");
    }
}

fn check_address(relay: &RelayConfig, at: &KeyPath, findings: &mut Findings) {
    let (place, broker) = (at.key("url"), relay.broker);
    let schemes = broker.schemes();
    let Some(url) = &relay.url else {
        if !schemes.is_empty() && !findings.has(&place) && !findings.has(&at.key("broker")) {
            let message = format!("is missing; {broker} needs an address, {}", forms(schemes));
            findings.add(&place, message);
        }
        return;
    };
    if schemes.is_empty() {
        findings.add(&place, format!("has no meaning for {broker}; remove the key"));
    } else if !url.contains("://") || !schemes.contains(&scheme(url)) {
        let message = format!("is no address of {broker}; write {}", forms(schemes));
        findings.add_value(&place, shown(url), message);
    } else {
        let servers = servers(broker, url);
        let cut_off = servers.iter().find_map(|server| login::cut_off(&Parts::of(server)));
        if let Some(message) = cut_off {
            findings.add_value(&place, shown(url), message);
        }
    }
    if relay.password.is_some() && relay.username.is_none() {
        let message = "is given without `username`; give both, or both in the address";
        findings.add(&at.key("password"), message);
    }
}

/// The addresses in `url`. NATS takes several, with commas in between, and only the first one needs a
/// scheme. Elsewhere a comma may be a part of the login.
fn servers(broker: RelayBroker, url: &str) -> Vec<String> {
    if broker != RelayBroker::Nats {
        return vec![url.to_owned()];
    }
    let with_scheme = |server: &str| {
        if server.contains("://") { server.to_owned() } else { format!("nats://{server}") }
    };
    url.split(',').map(|server| with_scheme(server.trim())).collect()
}

fn forms(schemes: &[&str]) -> String {
    let forms: Vec<String> = schemes.iter().map(|scheme| format!("{scheme}://HOST:PORT")).collect();
    forms.join(" or ")
}

/// Keys that only one kind of broker has.
fn check_keys_of_brokers(
    relay: &RelayConfig,
    earlier: &[RelayConfig],
    at: &KeyPath,
    findings: &mut Findings,
) {
    let broker = relay.broker;
    let is_server = broker != RelayBroker::InProcess;
    let foreign = [
        ("stream", relay.stream.is_some(), broker == RelayBroker::Nats),
        ("create-stream", !relay.create_stream.is_empty(), broker == RelayBroker::Nats),
        ("sasl", relay.sasl.is_some(), broker == RelayBroker::Kafka),
        ("exchange", relay.exchange.is_some(), broker == RelayBroker::RabbitMq),
        ("username", relay.username.is_some(), is_server),
        ("password", relay.password.is_some(), is_server),
        ("tls", relay.tls.is_some(), is_server),
        ("tls-root-cert", relay.tls_root_cert.is_some(), is_server),
    ];
    for (key, is_given, has_meaning) in foreign {
        if is_given && !has_meaning && !findings.has(&at.key(key)) {
            findings.add(&at.key(key), format!("has no meaning for {broker}; remove the key"));
        }
    }
    if relay.sasl.is_some() && relay.username.is_none() {
        let message = "is given without `username`, so no user logs in; give `username` and `password`, or remove the key";
        findings.add(&at.key("sasl"), message);
    }
    let stream = at.key("stream");
    if broker != RelayBroker::Nats || findings.has(&stream) {
        return;
    }
    let Some(name) = &relay.stream else {
        findings.add(&stream, "is missing; name the stream of NATS that keeps the messages");
        return;
    };
    let is_same = |other: &&RelayConfig| other.stream == relay.stream && other.url == relay.url;
    if let Some(other) = earlier.iter().find(is_same) {
        let message = format!(
            "belongs to the relay `{}`, too: the stream would take an event of the second one for a repetition; give each relay its own",
            other.name
        );
        findings.add_value(&stream, name, message);
    }
}

/// `tls: false` must not stand beside what encrypts: the connection would be encrypted all the same.
fn check_encryption(relay: &RelayConfig, at: &KeyPath, findings: &mut Findings) {
    let tls = at.key("tls");
    if relay.tls != Some(false) || findings.has(&tls) {
        return;
    }
    let mut servers = relay.url.iter().flat_map(|url| servers(relay.broker, url));
    let message = if servers.any(|server| ENCRYPTING.contains(&scheme(&server))) {
        "contradicts the address, which encrypts; remove the key, or change the address"
    } else if relay.tls_root_cert.is_some() {
        "contradicts `tls-root-cert`, which encrypts; remove one of the two"
    } else {
        return;
    };
    findings.add_value(&tls, false, message);
}
