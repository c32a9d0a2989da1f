//! The rules for nodes.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::times::check_time;
use crate::config::data_source::LONGEST_TIMEOUT;
use crate::config::events_config::EventsConfig;
use crate::config::findings::Findings;
use crate::config::key::{CLAIMED, LONGEST_AGE, ROWS};
use crate::config::key_path::KeyPath;
use crate::config::retention_config::RetentionConfig;

/// A shorter lease leaves no time to renew it.
pub(super) const LEAST_LEASE: Duration = Duration::from_secs(1);

/// The longest lease, and the longest pause.
pub(super) const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The least age of rows. Within it, lanes that lost a connection look rows up.
const LEAST_AGE: Duration = Duration::from_secs(60 * 60);

pub(super) fn check_name(name: &str, at: &KeyPath, findings: &mut Findings) {
    if name.trim().is_empty() {
        findings.add(&at.key("name"), "is blank; give a name, or remove the key");
    } else if name.len() > 255 {
        let message = format!("has {} bytes; use at most 255", name.len());
        findings.add(&at.key("name"), message);
    }
}

pub(super) fn check(config: &EventsConfig, at: &KeyPath, findings: &mut Findings) {
    let EventsConfig { name, lease, shortest_poll, longest_poll, gauges, .. } = config;
    check_name(name, at, findings);
    let times = [
        ("lease", lease, DAY),
        ("shortest-poll", shortest_poll, DAY),
        ("longest-poll", longest_poll, DAY),
        ("gauges", gauges, DAY),
        ("longest-retry", &config.longest_retry, LONGEST_TIMEOUT),
        ("max-age", &config.max_age, LONGEST_AGE),
    ];
    for (key, time, longest) in times {
        check_time(key, *time, longest, at, findings);
    }
    if *lease < LEAST_LEASE && !findings.has(&at.key("lease")) {
        let message = format!("is too short to be renewed in time; give at least {LEAST_LEASE:?}");
        findings.add_time(&at.key("lease"), *lease, message);
    }
    let (shortest, longest) = (at.key("shortest-poll"), at.key("longest-poll"));
    if longest_poll < shortest_poll && !findings.has(&shortest) && !findings.has(&longest) {
        let message = format!("is less than shortest-poll, which is {shortest_poll:?}");
        findings.add_time(&longest, *longest_poll, message);
    }
    size("claimed-at-once", config.claimed_at_once, CLAIMED, at, findings);
    size("swept-at-once", config.swept_at_once, ROWS, at, findings);
    check_retention(&config.retention, &at.key("retention"), findings);
}

fn check_retention(config: &RetentionConfig, at: &KeyPath, findings: &mut Findings) {
    let RetentionConfig { events, dead_letters, keys, inbox, every, rows_at_once } = config;
    let ages =
        [("events", events), ("dead-letters", dead_letters), ("keys", keys), ("inbox", inbox)];
    for (key, age) in ages {
        if let Some(age) = age.filter(|age| *age < LEAST_AGE) {
            let message = "is too short: within an hour rows are needed to find out what committed; \
                           give at least 1h, or remove the key to keep them";
            findings.add_time(&at.key(key), age, message);
        } else if let Some(age) = age {
            check_time(key, *age, LONGEST_AGE, at, findings);
        }
    }
    if ages.iter().all(|(_, age)| age.is_none()) && *config != RetentionConfig::default() {
        let message = "has no age, so nothing is deleted; give `events`, `dead-letters`, `keys` or \
                       `inbox` one, or remove the section";
        findings.add(at, message);
    }
    check_time("every", *every, LONGEST_TIMEOUT, at, findings);
    size("rows-at-once", *rows_at_once, ROWS, at, findings);
}

pub(super) fn size(
    key: &str,
    size: usize,
    range: RangeInclusive<usize>,
    at: &KeyPath,
    findings: &mut Findings,
) {
    if !range.contains(&size) && !findings.has(&at.key(key)) {
        let message = format!("is not from {} to {}", range.start(), range.end());
        findings.add_value(&at.key(key), size, message);
    }
}
