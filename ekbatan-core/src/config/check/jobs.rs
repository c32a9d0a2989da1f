//! The rules for nodes that run jobs.

use super::events::{DAY, LEAST_LEASE, check_name, size};
use super::times::check_time;
use crate::config::findings::Findings;
use crate::config::jobs_config::JobsConfig;
use crate::config::key::RUNS;
use crate::config::key_path::KeyPath;

pub(super) fn check(config: &JobsConfig, at: &KeyPath, findings: &mut Findings) {
    let JobsConfig { name, lease, poll, concurrency } = config;
    check_name(name, at, findings);
    for (key, time) in [("lease", lease), ("poll", poll)] {
        check_time(key, *time, DAY, at, findings);
    }
    if *lease < LEAST_LEASE && !findings.has(&at.key("lease")) {
        let message = format!("is too short to be renewed in time; give at least {LEAST_LEASE:?}");
        findings.add_time(&at.key("lease"), *lease, message);
    }
    size("concurrency", *concurrency, RUNS, at, findings);
}
