//! The bounds of times.

use std::time::Duration;

use crate::config::findings::Findings;
use crate::config::key_path::KeyPath;

/// A time that is more than none and at most `longest`.
pub(super) fn check_time(
    key: &str,
    time: Duration,
    longest: Duration,
    at: &KeyPath,
    findings: &mut Findings,
) {
    if time.is_zero() {
        findings.add_time(&at.key(key), time, "is no time; give more than 0s");
    } else {
        check_longest(key, time, longest, at, findings);
    }
}

/// A time that is at most `longest`.
pub(super) fn check_longest(
    key: &str,
    time: Duration,
    longest: Duration,
    at: &KeyPath,
    findings: &mut Findings,
) {
    if time > longest {
        let message = format!("is too long; at most {}d", longest.as_secs() / 86_400);
        findings.add_time(&at.key(key), time, message);
    }
}
