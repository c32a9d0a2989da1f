//! The table of all keys: their names, the kinds of their values, their meaning.
//!
//! A key is declared here and nowhere else. The reader takes names and kinds from this table,
//! environment variables are matched against it, and the schema is printed from it.

use super::key::{AGE, BATCH, BATCHES, CLAIMED, ROWS, RUNS, SOME, TIME};
use super::key_path::{KeyPath, Step};
use super::relay_config::{RelayBroker, SaslMechanism};
use super::shown_address::shown;
use super::source_keys::{DATA_SOURCE, LOCK_SOURCE};
use super::spelling::{camel, kebab, nearest, same_key};

pub(super) use super::key::{Key, Kind};

/// The slots that the framework uses. An application may use any other name.
pub(super) const SLOTS: [(&str, &str); 3] = [
    ("primary-config", "The database that all writes use, and reads by default."),
    ("secondary-config", "A replica of the primary. Reads use it only when they ask for it."),
    (
        LOCKS,
        "Keyed locks: the server that stores them, by default the primary, and the connections to it.",
    ),
];

/// The slot of keyed locks. It has further keys.
pub(super) const LOCKS: &str = "lock-config";

/// The keys of a slot.
pub(super) fn of_slot(slot: &str) -> &'static [Key] {
    if same_key(slot, LOCKS) { LOCK_SOURCE } else { DATA_SOURCE }
}

/// The key of this name, whatever its spelling.
pub(super) fn find(keys: &'static [Key], name: &str) -> Option<&'static Key> {
    keys.iter().find(|key| same_key(key.name, name))
}

const GROUP: Kind = Kind::Count { least: 0, most: 255 };
const MEMBER: Kind = Kind::Count { least: 0, most: 63 };

/// The keys below the root key `ekbatan`.
pub(super) static ROOT: &[Key] = &[
    Key::new(
        "namespace",
        Kind::Text,
        "The namespace of the application's actions: dot-separated words.",
    ),
    Key::new("sharding", Kind::Section(SHARDING), "The databases, if there are several."),
    Key::new("configs", Kind::Slots, "The database, if there is one; excludes `sharding`."),
    Key::new("events", Kind::Section(EVENTS), "Nodes, which handle events."),
    Key::new("jobs", Kind::Section(JOBS), "Nodes, which run jobs."),
    Key::new("relay", Kind::List(RELAY), "Relays, which send events to message brokers."),
    Key::new(
        "local-event-handler",
        Kind::Section(LOCAL_EVENT_HANDLER),
        "Nodes, in the words of the Java framework; use `events`.",
    ),
    Key::refused("spring", "this framework does not use Spring; remove the section"),
];

static EVENTS: &[Key] = &[
    Key::new("name", Kind::Text, "A name of the nodes of this process, for logs.").or("ekbatan"),
    Key::new(
        "handles",
        Kind::Flag,
        "Whether the nodes of this process handle events, or leave them to other processes.",
    )
    .or("true"),
    Key::new(
        "lease",
        TIME,
        "The time after which a node that is not heard of loses what it has claimed, at least 1s.",
    )
    .or("15s"),
    Key::new(
        "shortest-poll",
        TIME,
        "The pause between two looks for events while there are some.",
    )
    .or("2ms"),
    Key::new(
        "longest-poll",
        TIME,
        "The pause between two looks for events while there are none.",
    )
    .or("500ms"),
    Key::new(
        "doorbell",
        Kind::Flag,
        "Whether nodes tell those of other processes of new events at once, and hear of theirs: on PostgreSQL by a session that listens, on SQLite by a look whether the file has changed.",
    )
    .or("true"),
    Key::new("claimed-at-once", Kind::count(&CLAIMED), "How many new deliveries of one priority a look claims at most, and how many that wait; handlers share it, with at least 16 for each.").or("256"),
    Key::new(
        "swept-at-once",
        Kind::count(&ROWS),
        "Maximum number of events to which one poll gives the deliveries that they lack.",
    )
    .or("2000"),
    Key::new("gauges", TIME, "How often a node reports how far its handlers are.").or("60s"),
    Key::new(
        "longest-retry",
        TIME,
        "The longest pause before a failed event is tried again, for handlers without options of their own.",
    )
    .or("60s"),
    Key::new(
        "max-age",
        AGE,
        "The age at which an event is given up, for handlers without options of their own.",
    )
    .or("7d"),
    Key::new(
        "retention",
        Kind::Section(RETENTION),
        "For how long rows are kept that nobody needs any more. A node deletes them once an age is set.",
    ),
];

static RETENTION: &[Key] = &[
    Key::new(
        "events",
        AGE,
        "The age, at least 1h, at which events are deleted that every handler has handled. Without it they are kept.",
    ),
    Key::new(
        "dead-letters",
        AGE,
        "The age, at least 1h, at which settled dead letters are deleted. Without it they are kept.",
    ),
    Key::new(
        "keys",
        AGE,
        "The age, at least 1h, at which idempotency keys are deleted. Without it they are kept.",
    ),
    Key::new(
        "inbox",
        AGE,
        "The age, at least 1h, at which handled messages are deleted: more than the time within which a broker delivers again. Without it they are kept.",
    ),
    Key::new("every", TIME, "How often a node deletes, give or take a half by chance.").or("1h"),
    Key::new("rows-at-once", Kind::count(&ROWS), "How many rows one transaction deletes at most.")
        .or("1000"),
];

static JOBS: &[Key] = &[
    Key::new("name", Kind::Text, "A name of the nodes of this process, for logs.").or("ekbatan"),
    Key::new(
        "lease",
        TIME,
        "The time, at least 1s, after which the runs of a node that is not heard of are begun on others.",
    )
    .or("15s"),
    Key::new("poll", TIME, "The longest pause between two looks at the jobs.").or("1s"),
    Key::new("polling-interval", TIME, "As `poll`, in the words of the Java framework."),
    Key::new("concurrency", Kind::count(&RUNS), "How many runs a node has at a time.").or("64"),
    Key::refused(
        "heartbeat-interval",
        "a node renews its lease by itself; remove the key, `lease` says when others take over",
    ),
    Key::refused(
        "shutdown-max-wait",
        "the time is given to `JobNode::drain`; remove the key",
    ),
];

static RELAY: &[Key] = &[
    Key::new("name", Kind::Text, "The stored name of the relay, which must never change.").required(),
    Key::new(
        "broker",
        Kind::Word(&RelayBroker::NAMES),
        "The kind of broker. `in-process` needs no server; other processes get nothing from it.",
    )
    .required(),
    Key::new(
        "url",
        Kind::Address,
        "The address: nats://HOST:4222 or tls://.., amqp://HOST:5672/VHOST or amqps://.., kafka://HOST:9092. Several servers of NATS and Kafka are separated by commas.",
    ),
    Key::new("username", Kind::Text, "The user, if the address contains none.")
        .or("the address's"),
    Key::new("password", Kind::Secret, "The password, if the address contains none; may be empty.")
        .or("the address's"),
    Key::new(
        "tls",
        Kind::Flag,
        "`true` encrypts the connection, whatever the address says. `false` is refused if the address encrypts, and beside `tls-root-cert`.",
    )
    .or("by the address"),
    Key::new("tls-root-cert", Kind::Text, "A file of root certificates. One of them must have signed the server's certificate. If the file is given, the connection is encrypted."),
    Key::new("models", Kind::Texts, "The models whose events are sent, by their stored names. Default: all, unless `events` is given."),
    Key::new("events", Kind::Texts, "The events that are sent, by their stored names, beside those of `models`."),
    Key::new(
        "topic",
        Kind::Text,
        "Where events go: the topic of Kafka, the subject of NATS, the routing key of RabbitMQ. `{namespace}`, `{model}` and `{event}` stand for those of the event.",
    )
    .or("ekbatan.{namespace}.model.{model}"),
    Key::new(
        "sasl",
        Kind::Word(&SaslMechanism::NAMES),
        "Kafka: how the user logs in.",
    )
    .or("plain"),
    Key::new("stream", Kind::Text, "NATS: the stream that keeps the messages."),
    Key::new("create-stream", Kind::Texts, "NATS: the subjects with which the stream is created if it is not there."),
    Key::new("exchange", Kind::Text, "RabbitMQ: the exchange that routes the messages.").or("the default exchange, where the topic is the name of a queue"),
    Key::new("batch", Kind::count(&BATCH), "How many events a batch has at most.").or("256"),
    Key::new("batches", Kind::count(&BATCHES), "How many batches are under way at a time, on each shard.").or("2"),
    Key::new("ack-timeout", TIME, "How long an answer of the broker is waited for.").or("10s, or 30s for in-process"),
    Key::new("longest-retry", TIME, "The longest pause before an event is sent again that the broker refused.").or("60s"),
    Key::new("max-attempts", SOME, "After how many refusals an event is given up. Default: it is tried for ever, unless the broker can never accept it."),
    Key::new(
        "after-last-attempt",
        Kind::Word(&["park", "dead-letter"]),
        "What happens to an event that is given up: `park` stops its model until an operator decides, `dead-letter` lets later events of its model pass.",
    )
    .or("park"),
    Key::new(
        "start-from",
        Kind::Word(&["beginning", "now"]),
        "Whether a new relay sends the events that are stored already.",
    )
    .or("beginning"),
    Key::new("aliases", Kind::Texts, "Earlier names of the relay."),
];

/// The section of the Java framework that means the same as `events`.
static LOCAL_EVENT_HANDLER: &[Key] = &[
    Key::refused(
        "fanout-poll-delay",
        "commits deliver their events themselves; remove the key, `ekbatan.events.longest-poll` bounds how late others are found",
    ),
    Key::refused("fanout-batch-size", "commits deliver their events themselves; remove the key"),
    Key::new("handling-poll-delay", TIME, "As `longest-poll` of `events`.").or("500ms"),
    Key::refused(
        "handling-batch-size",
        "events are handled one by one; remove the key, and say how many at a time by `HandlerOptions::concurrency`",
    ),
    Key::new("handling-max-backoff-cap", TIME, "As `longest-retry` of `events`.").or("60s"),
    Key::new("handling-retention-window", AGE, "As `max-age` of `events`.").or("7d"),
    Key::new("handling", Kind::Section(HANDLING), "Whether this process handles events."),
];

static HANDLING: &[Key] =
    &[Key::new("enabled", Kind::Flag, "As `handles` of `events`.").or("true")];

static SHARDING: &[Key] = &[
    Key::new(
        "default-shard",
        Kind::Section(DEFAULT_SHARD),
        "The shard of all rows that name no shard.",
    )
    .required(),
    Key::new(
        "unknown-shard",
        Kind::Word(&["error", "default-shard"]),
        "What happens to an id whose shard is not configured: the call fails, or the default shard is used.",
    )
    .or("error"),
    Key::new("groups", Kind::List(GROUPS), "The shards, by group.").required(),
];

static DEFAULT_SHARD: &[Key] = &[
    Key::new("group", GROUP, "The group of the default shard, 0 to 255.").required(),
    Key::new("member", MEMBER, "The member of the default shard, 0 to 63.").required(),
];

static GROUPS: &[Key] = &[
    Key::new("group", GROUP, "The group's number, 0 to 255, as ids carry it.").required(),
    Key::new("name", Kind::Text, "A name of the group, for people.").required(),
    Key::new("members", Kind::List(MEMBERS), "The databases of the group.").required(),
];

static MEMBERS: &[Key] = &[
    Key::new("member", MEMBER, "The member's number, 0 to 63, as ids carry it.").required(),
    Key::new("name", Kind::Text, "A name of the member, for people."),
    Key::new("configs", Kind::Slots, "The databases of the member, by slot.").required(),
];

/// The kind of the value at a path in canonical spelling, if it contains other keys.
pub(super) fn kind_at(path: &KeyPath) -> Option<Kind> {
    path.0.iter().skip(1).try_fold(Kind::Section(ROOT), |kind, step| match (kind, step) {
        (Kind::Section(keys), Step::Key(name)) => find(keys, name)?.kind.container(),
        (Kind::Slots, Step::Key(name)) => Some(Kind::Section(of_slot(name))),
        (Kind::List(keys), Step::Index(_)) => Some(Kind::Section(keys)),
        _ => None,
    })
}

/// The canonical name of a slot. Names that are one name in camelCase are one slot: `reports-2-config` is
/// `reports2-config`.
pub(super) fn slot_name(name: &str) -> String {
    let known = SLOTS.iter().find(|(slot, _)| same_key(slot, name));
    known.map_or_else(|| kebab(&camel(name)), |(slot, _)| (*slot).to_owned())
}

/// The message for a shard that lists databases of its own, and not the one that it needs.
pub(super) fn missing_primary<'a>(mut slots: impl Iterator<Item = &'a str>) -> String {
    let mut message = String::from("is missing; every shard needs this database");
    let is_known = |slot: &str| SLOTS.iter().any(|(known, _)| same_key(known, slot));
    let meant = |slot: &&str| !is_known(slot) && nearest(slot, ["primary-config"]).is_some();
    if let Some(slot) = slots.find(meant) {
        message += &format!("; there is `{}`: did you mean `primary-config`?", shown(slot));
    }
    message
}

/// The names that may be used here.
pub(super) fn names(keys: &[Key]) -> impl Iterator<Item = &'static str> {
    keys.iter().filter(|key| !matches!(key.kind, Kind::Refused(_))).map(|key| key.name)
}

/// The message for an unknown key.
pub(super) fn unknown(name: &str, keys: &[Key]) -> String {
    let name = &shown(name);
    match nearest(name, names(keys)) {
        Some(near) => format!("there is no key `{name}`; did you mean `{near}`?"),
        None => {
            let known: Vec<&str> = names(keys).collect();
            format!("there is no key `{name}`; the keys here are {}", known.join(", "))
        }
    }
}
