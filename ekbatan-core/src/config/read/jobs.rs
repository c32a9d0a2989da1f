//! Reads `ekbatan.jobs`.

use super::section::Section;
use crate::config::findings::Findings;
use crate::config::jobs_config::JobsConfig;

/// Our key.
const POLL: &str = "poll";
/// That of the Java framework.
const POLLING_INTERVAL: &str = "polling-interval";

pub(super) fn jobs(root: &mut Section, findings: &mut Findings) -> JobsConfig {
    let mut config = JobsConfig::default();
    let Some(mut section) = root.section("jobs") else { return config };
    config.name = section.text("name").unwrap_or(config.name);
    config.lease = section.time("lease").unwrap_or(config.lease);
    let (ours, javas) = (section.time(POLL), section.time(POLLING_INTERVAL));
    if ours.is_some() && javas.is_some() {
        let message = "is given together with `poll`, which means the same; keep `poll`";
        findings.add(&section.at.key(POLLING_INTERVAL), message);
    }
    config.poll = ours.or(javas).unwrap_or(config.poll);
    // The reader has checked that the count is small.
    let concurrency = section.count("concurrency").and_then(|count| count.try_into().ok());
    config.concurrency = concurrency.unwrap_or(config.concurrency);
    config
}
