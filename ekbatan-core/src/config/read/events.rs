//! Reads `ekbatan.events`, or the section of the Java framework that means the same.

use super::section::Section;
use crate::config::events_config::EventsConfig;
use crate::config::findings::Findings;
use crate::config::retention_config::RetentionConfig;

/// Our section.
const OURS: &str = "events";
/// That of the Java framework.
const JAVAS: &str = "local-event-handler";

pub(super) fn events(root: &mut Section, findings: &mut Findings) -> EventsConfig {
    let (ours, javas) = (root.section(OURS), root.section(JAVAS));
    if ours.is_some() && javas.is_some() {
        let message = "is given together with `events`, which means the same; keep `events`";
        findings.add(&root.at.key(JAVAS), message);
    }
    let mut config = EventsConfig::default();
    if let Some(mut section) = ours {
        config.name = section.text("name").unwrap_or(config.name);
        config.handles = section.flag("handles").unwrap_or(config.handles);
        config.doorbell = section.flag("doorbell").unwrap_or(config.doorbell);
        let mut size = |key, of: &mut _| *of = count(&mut section, key).unwrap_or(*of);
        size("claimed-at-once", &mut config.claimed_at_once);
        size("swept-at-once", &mut config.swept_at_once);
        config.retention = section.section("retention").map(retention).unwrap_or_default();
        let mut time = |key, of: &mut _| *of = section.time(key).unwrap_or(*of);
        time("lease", &mut config.lease);
        time("shortest-poll", &mut config.shortest_poll);
        time("longest-poll", &mut config.longest_poll);
        time("gauges", &mut config.gauges);
        time("longest-retry", &mut config.longest_retry);
        time("max-age", &mut config.max_age);
    } else if let Some(mut section) = javas {
        let enabled = section.section("handling").and_then(|mut of| of.flag("enabled"));
        config.handles = enabled.unwrap_or(config.handles);
        let mut time = |key, of: &mut _| *of = section.time(key).unwrap_or(*of);
        time("handling-poll-delay", &mut config.longest_poll);
        time("handling-max-backoff-cap", &mut config.longest_retry);
        time("handling-retention-window", &mut config.max_age);
    }
    config
}

fn retention(mut section: Section) -> RetentionConfig {
    let default = RetentionConfig::default();
    RetentionConfig {
        events: section.time("events"),
        dead_letters: section.time("dead-letters"),
        keys: section.time("keys"),
        inbox: section.time("inbox"),
        every: section.time("every").unwrap_or(default.every),
        rows_at_once: count(&mut section, "rows-at-once").unwrap_or(default.rows_at_once),
    }
}

/// The reader has checked that the count is small.
fn count(section: &mut Section, key: &str) -> Option<usize> {
    section.count(key)?.try_into().ok()
}
