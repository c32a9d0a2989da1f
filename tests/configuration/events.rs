//! `ekbatan.events`, and the section of the Java framework that means the same.

use std::time::Duration;

use ekbatan::config::{EventsConfig, RetentionConfig};
use ekbatan::events::Retention;
use ekbatan::prelude::EkbatanConfig;

use super::{load, load_with, problems};

fn with(rest: &str) -> String {
    format!("ekbatan: {{configs: {{primary-config: {{url: 'sqlite:a'}}}}, {rest}}}")
}

fn events(rest: &str) -> EventsConfig {
    load(&with(rest)).unwrap().events
}

#[test]
fn without_the_section_nodes_have_the_documented_settings() {
    let expected = events("namespace: a");
    assert_eq!(expected, EventsConfig::default());
    assert_eq!(expected, EkbatanConfig::single("sqlite:a").events);
    let seconds = Duration::from_secs;
    assert_eq!((&*expected.name, expected.handles, expected.lease), ("ekbatan", true, seconds(15)));
    assert!(expected.doorbell);
    assert_eq!(expected.shortest_poll, Duration::from_millis(2));
    assert_eq!(expected.longest_poll, Duration::from_millis(500));
    assert_eq!((expected.gauges, expected.longest_retry), (seconds(60), seconds(60)));
    assert_eq!(expected.max_age, seconds(7 * 24 * 60 * 60));
    assert_eq!((expected.claimed_at_once, expected.swept_at_once), (256, 2_000));
    let retention = &expected.retention;
    let ages = [retention.events, retention.dead_letters, retention.keys, retention.inbox];
    assert_eq!(ages, [None; 4]);
    assert_eq!((retention.every, retention.rows_at_once), (seconds(3_600), 1_000));
    assert_eq!((Retention::EVERY, Retention::AT_ONCE), (seconds(3_600), 1_000));
    assert_eq!(events("events: {}"), expected);
    assert_eq!(events("events: {retention: {}}"), expected);
}

#[test]
fn every_key_is_read_in_every_spelling() {
    let kebab = "events: {name: api, handles: false, doorbell: false, lease: 30s, shortest-poll: 5ms, \
                 longest-poll: PT1S, gauges: 10s, longest-retry: 5m, max-age: 3d}";
    let read = events(kebab);
    assert_eq!((&*read.name, read.handles, read.doorbell), ("api", false, false));
    let times = [read.lease, read.shortest_poll, read.longest_poll, read.gauges];
    assert_eq!(times.map(|time| time.as_millis()), [30_000, 5, 1_000, 10_000]);
    assert_eq!((read.longest_retry.as_secs(), read.max_age.as_secs()), (300, 3 * 24 * 60 * 60));
    let camel = kebab
        .replace("shortest-poll", "shortestPoll")
        .replace("longest-poll", "LONGEST_POLL")
        .replace("longest-retry", "longestRetry")
        .replace("max-age", "max_age");
    assert_eq!(events(&camel), read);
    let variables = [
        ("EKBATAN_EVENTS_HANDLES", "false"),
        ("EKBATAN_EVENTS_LONGEST_POLL", "1s"),
        ("NODE", "api"),
    ];
    let read = load_with(&with("events: {name: '${NODE}'}"), variables).unwrap().events;
    assert_eq!((&*read.name, read.handles, read.longest_poll.as_secs()), ("api", false, 1));
}

#[test]
fn sizes_and_ages_are_read_in_every_spelling() {
    let kebab = "events: {claimed-at-once: 64, swept-at-once: 100, retention: {events: 30d, \
                 dead-letters: 90d, keys: 7d, inbox: P14D, every: 10m, rows-at-once: 50}}";
    let read = events(kebab);
    assert_eq!((read.claimed_at_once, read.swept_at_once), (64, 100));
    let days = |age: Option<Duration>| age.unwrap().as_secs() / 86_400;
    let RetentionConfig { events: of_events, dead_letters, keys, inbox, .. } = read.retention;
    assert_eq!([of_events, dead_letters, keys, inbox].map(days), [30, 90, 7, 14]);
    assert_eq!((read.retention.every.as_secs(), read.retention.rows_at_once), (600, 50));
    let others = kebab
        .replace("claimed-at-once", "claimedAtOnce")
        .replace("swept-at-once", "SWEPT_AT_ONCE")
        .replace("rows-at-once", "rowsAtOnce")
        .replace("dead-letters", "dead_letters");
    assert_eq!(events(&others), read);
    let variables =
        [("EKBATAN_EVENTS_RETENTION_EVENTS", "30d"), ("EKBATAN_EVENTS_RETENTION_ROWSATONCE", "50")];
    let read = load_with(&with("events: {claimed-at-once: 64}"), variables).unwrap().events;
    assert_eq!((read.claimed_at_once, read.retention.rows_at_once), (64, 50));
    assert_eq!((days(read.retention.events), read.retention.keys), (30, None));
}

#[test]
fn the_section_of_the_java_framework_means_the_same() {
    let read = events(
        "local-event-handler: {handling-poll-delay: PT1S, handling-max-backoff-cap: PT5M, \
         handling-retention-window: P3D, handling: {enabled: false}}",
    );
    let same = "events: {longest-poll: 1s, longest-retry: 5m, max-age: 3d, handles: false}";
    assert_eq!(read, events(same));
    assert_eq!(events("localEventHandler: {handling: {enabled: true}}"), EventsConfig::default());
}

#[test]
fn what_cannot_work_is_refused_with_its_place() {
    let cases = [
        ("events: {lease: 500ms}", "ekbatan.events.lease", "\"500ms\": is too short to be renewed"),
        ("events: {lease: 2d}", "ekbatan.events.lease", "is too long; at most 1d"),
        ("events: {lease: 15}", "ekbatan.events.lease", "the unit is missing"),
        ("events: {gauges: 0s}", "ekbatan.events.gauges", "is no time; give more than 0s"),
        ("events: {max-age: 0s}", "ekbatan.events.max-age", "is no time; give more than 0s"),
        (
            "events: {shortest-poll: 1s}",
            "ekbatan.events.longest-poll",
            "is less than shortest-poll, which is 1s",
        ),
        ("events: {handles: 1}", "ekbatan.events.handles", "expected true or false"),
        ("events: {handles: maybe}", "ekbatan.events.handles", "expected true or false"),
        ("events: {leese: 1s}", "ekbatan.events.leese", "did you mean `lease`?"),
        ("events: {name: ' '}", "ekbatan.events.name", "is blank"),
        ("events: {doorbell: 1}", "ekbatan.events.doorbell", "expected true or false"),
        ("events: {claimed-at-once: 8}", "ekbatan.events.claimed-at-once", "from 16 to 1000"),
        ("events: {claimed-at-once: 1001}", "ekbatan.events.claimed-at-once", "from 16 to 1000"),
        ("events: {claimed-at-once: few}", "ekbatan.events.claimed-at-once", "from 16 to 1000"),
        ("events: {swept-at-once: 0}", "ekbatan.events.swept-at-once", "from 1 to 10000"),
        (
            "events: {retention: {events: 30m}}",
            "ekbatan.events.retention.events",
            "\"30m\": is too short: within an hour rows are needed to find out what committed; \
             give at least 1h, or remove the key to keep them",
        ),
        (
            "events: {retention: {keys: 40000d}}",
            "ekbatan.events.retention.keys",
            "is too long; at most 36500d",
        ),
        ("events: {retention: {inbox: 14}}", "ekbatan.events.retention.inbox", "unit is missing"),
        (
            "events: {retention: {dead-leters: 90d}}",
            "ekbatan.events.retention.dead-leters",
            "did you mean `dead-letters`?",
        ),
        (
            "events: {retention: {keys: 7d, every: 0s}}",
            "ekbatan.events.retention.every",
            "is no time; give more than 0s",
        ),
        (
            "events: {retention: {keys: 7d, rows-at-once: 20000}}",
            "ekbatan.events.retention.rows-at-once",
            "from 1 to 10000",
        ),
        (
            "events: {retention: {every: 1m}}",
            "ekbatan.events.retention",
            "has no age, so nothing is deleted; give `events`, `dead-letters`, `keys` or `inbox` one",
        ),
        ("events: {retention: 30d}", "ekbatan.events.retention", "expected"),
        (
            "events: {}, local-event-handler: {}",
            "ekbatan.local-event-handler",
            "is given together with `events`, which means the same; keep `events`",
        ),
    ];
    for (rest, path, words) in cases {
        let found = problems(&with(rest));
        assert_eq!(found.len(), 1, "{rest}\n{found:#?}");
        assert_eq!(found[0].path, path, "{found:#?}");
        assert!(found[0].to_string().contains(words), "{rest}\n{}", found[0]);
    }
    let mut events = EventsConfig::default();
    events.lease = Duration::from_millis(1);
    let error = EkbatanConfig::single("sqlite:a").events(events).check().unwrap_err();
    assert_eq!(error.problems()[0].path, "ekbatan.events.lease");
    let mut events = EventsConfig::default();
    (events.claimed_at_once, events.swept_at_once) = (0, 10_001);
    events.retention.keys = Some(Retention::LEAST - Duration::from_secs(1));
    events.retention.inbox = Some(Retention::LEAST);
    events.retention.rows_at_once = Retention::MOST_AT_ONCE + 1;
    let error = EkbatanConfig::single("sqlite:a").events(events).check().unwrap_err();
    let paths: Vec<&str> = error.problems().iter().map(|problem| &*problem.path).collect();
    let expected = ["claimed-at-once", "swept-at-once", "retention.keys", "retention.rows-at-once"];
    assert_eq!(paths, expected.map(|key| format!("ekbatan.events.{key}")));
}

#[test]
fn times_are_bounded_in_code_too() {
    let mut events = EventsConfig::default();
    (events.longest_retry, events.max_age) = (Duration::MAX, Duration::MAX);
    let ages = &mut events.retention;
    (ages.events, ages.dead_letters) = (Some(Duration::MAX), Some(Duration::MAX));
    (ages.keys, ages.inbox, ages.every) = (Some(Duration::MAX), Some(Duration::MAX), Duration::MAX);
    let error = EkbatanConfig::single("sqlite:a").events(events).check().unwrap_err();
    let found: Vec<(&str, &str)> =
        error.problems().iter().map(|problem| (&*problem.path, &*problem.message)).collect();
    let (age, time) = ("is too long; at most 36500d", "is too long; at most 24d");
    let expected = [
        ("ekbatan.events.longest-retry", time),
        ("ekbatan.events.max-age", age),
        ("ekbatan.events.retention.events", age),
        ("ekbatan.events.retention.dead-letters", age),
        ("ekbatan.events.retention.keys", age),
        ("ekbatan.events.retention.inbox", age),
        ("ekbatan.events.retention.every", time),
    ];
    assert_eq!(found, expected);
}
