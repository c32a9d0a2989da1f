//! The rules for nodes that run jobs.

use std::ops::RangeInclusive;

use super::events::{DAY, LEAST_LEASE, check_name, size};
use crate::config::findings::Findings;
use crate::config::jobs_config::JobsConfig;
use crate::config::key_path::KeyPath;

/// How many runs a node may have at a time.
const CONCURRENCY: RangeInclusive<usize> = 1..=10_000;

pub(super) fn check(config: &JobsConfig, at: &KeyPath, findings: &mut Findings) {
    let JobsConfig { name, lease, poll, concurrency } = config;
    check_name(name, at, findings);
    for (key, time) in [("lease", lease), ("poll", poll)] {
        if time.is_zero() {
            findings.add_value(&at.key(key), format!("{time:?}"), "is no time; give more than 0s");
        } else if *time > DAY {
            findings.add_value(&at.key(key), format!("{time:?}"), "is too long; at most 1d");
        }
    }
    if *lease < LEAST_LEASE && !findings.has(&at.key("lease")) {
        let message = format!("is too short to be renewed in time; give at least {LEAST_LEASE:?}");
        findings.add_value(&at.key("lease"), format!("{lease:?}"), message);
    }
    size("concurrency", *concurrency, CONCURRENCY, at, findings);
}
