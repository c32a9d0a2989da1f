//! The settings of nodes, which handle events.

use std::time::Duration;

use super::retention_config::RetentionConfig;

/// The keys of `ekbatan.events`: how nodes run, and how handlers do that have no options of their
/// own.
///
/// ```
/// use std::time::Duration;
/// use ekbatan_core::config::{EkbatanConfig, EventsConfig};
///
/// let mut events = EventsConfig::default();
/// events.lease = Duration::from_secs(30);
/// let config = EkbatanConfig::single("sqlite:wallet.db").events(events);
/// config.check()?;
/// # Ok::<_, ekbatan_core::config::ConfigError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventsConfig {
    /// A name of the nodes of this process, for logs. Default `ekbatan`.
    pub name: String,
    /// Whether the nodes of this process handle events. If not, their commits insert deliveries,
    /// which other processes handle. Default `true`.
    pub handles: bool,
    /// The time after which a node that is not heard of loses what it has claimed. Default 15 s.
    pub lease: Duration,
    /// The pause between two looks for events while there are some. Default 2 ms.
    pub shortest_poll: Duration,
    /// The pause between two looks for events while there are none. Default 500 ms.
    pub longest_poll: Duration,
    /// Whether nodes tell those of other processes of new events at once, and hear of theirs. Default
    /// `true`.
    pub doorbell: bool,
    /// How many new deliveries of one priority a look claims at most, and how many that wait. The handlers
    /// share it, with at least 16 for each. Default 256.
    pub claimed_at_once: usize,
    /// Maximum number of events to which one poll gives the deliveries that they lack. Default 2,000.
    pub swept_at_once: usize,
    /// How often a node reports how far its handlers are. Default 60 s.
    pub gauges: Duration,
    /// The longest pause before a failed event is tried again, for handlers without options of
    /// their own. Default 60 s.
    pub longest_retry: Duration,
    /// The age at which an event is given up, for handlers without options of their own. Default 7
    /// days.
    pub max_age: Duration,
    /// For how long rows are kept. A node deletes if an age is set. Default: everything is kept.
    pub retention: RetentionConfig,
}

impl Default for EventsConfig {
    fn default() -> Self {
        Self {
            name: "ekbatan".to_owned(),
            handles: true,
            lease: Duration::from_secs(15),
            shortest_poll: Duration::from_millis(2),
            longest_poll: Duration::from_millis(500),
            doorbell: true,
            claimed_at_once: 256,
            swept_at_once: 2_000,
            gauges: Duration::from_secs(60),
            longest_retry: Duration::from_secs(60),
            max_age: Duration::from_secs(7 * 24 * 60 * 60),
            retention: RetentionConfig::default(),
        }
    }
}
