//! How a node runs.

use std::ops::RangeInclusive;
use std::time::Duration;

use ekbatan_core::config::EventsConfig;

use crate::error::StartError;
use crate::retention::Retention;

/// How many deliveries a look may claim. With less, those of one model could be all that it finds.
const CLAIMED: RangeInclusive<usize> = 16..=1_000;

/// To how many events a look may give their deliveries.
const SWEPT: RangeInclusive<usize> = 1..=10_000;

/// The longest lease, and the longest pause between two looks for events.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// How a node runs.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) name: String,
    /// Whether the node claims events.
    pub(crate) handles: bool,
    pub(crate) lease: Duration,
    pub(crate) shortest_poll: Duration,
    pub(crate) longest_poll: Duration,
    /// Whether other processes are told of events at once, and this one is.
    pub(crate) doorbell: bool,
    /// How many new deliveries of one priority a look claims at most, and how many that wait.
    pub(crate) claimed_at_once: usize,
    /// To how many events without deliveries a look gives theirs at most.
    pub(crate) swept_at_once: usize,
    /// How often the node reports how far its handlers are.
    pub(crate) gauges: Duration,
    pub(crate) retention: Option<Retention>,
}

impl Settings {
    pub(crate) fn new(config: &EventsConfig) -> Self {
        Self {
            name: config.name.clone(),
            handles: config.handles,
            lease: config.lease,
            shortest_poll: config.shortest_poll,
            longest_poll: config.longest_poll,
            doorbell: config.doorbell,
            claimed_at_once: config.claimed_at_once,
            swept_at_once: config.swept_at_once,
            gauges: config.gauges,
            retention: Some(Retention::of(&config.retention)).filter(Retention::has_age),
        }
    }

    /// Fails if a setting cannot work.
    pub(crate) fn check(&self) -> Result<(), StartError> {
        let Self { name, lease, shortest_poll, longest_poll, gauges, retention, .. } = self;
        let refuse = |setting, why| Err(StartError::Setting { setting, why });
        if name.len() > 255 {
            return refuse("name", format!("it has {} bytes; use at most 255", name.len()));
        }
        if *lease < Duration::from_secs(1) {
            return refuse(
                "lease",
                format!("{lease:?} is too short to be renewed in time; use at least 1 s"),
            );
        }
        for (setting, time) in [("lease", lease), ("poll", longest_poll), ("gauges", gauges)] {
            if *time > LONGEST {
                return refuse(setting, format!("{time:?} is too long; use at most {LONGEST:?}"));
            }
        }
        for (setting, size, range) in [
            ("claimed_at_once", self.claimed_at_once, CLAIMED),
            ("swept_at_once", self.swept_at_once, SWEPT),
        ] {
            if !range.contains(&size) {
                let (least, most) = range.into_inner();
                return refuse(setting, format!("{size} is not from {least} to {most}"));
            }
        }
        if gauges.is_zero() {
            return refuse("gauges", "0 s leave no time between two reports".to_owned());
        }
        if shortest_poll.is_zero() || longest_poll < shortest_poll {
            let why = format!(
                "{shortest_poll:?} to {longest_poll:?}; the shortest pause must be more than 0, and at most the longest"
            );
            return refuse("poll", why);
        }
        if let Some(retention) = retention {
            retention.check().or_else(|error| refuse("retention", error.to_string()))?;
            if retention.every.is_some_and(|every| every.is_zero()) {
                return refuse("retention", "it is run every 0 s; use more".to_owned());
            }
        }
        Ok(())
    }
}
