//! The settings of the retention, which deletes what nobody needs any more.

use std::time::Duration;

/// The keys of `ekbatan.events.retention`: for how long the framework's rows are kept. What has no
/// age is kept for ever.
///
/// ```
/// use std::time::Duration;
/// use ekbatan_core::config::{EkbatanConfig, EventsConfig};
///
/// let mut events = EventsConfig::default();
/// events.retention.events = Some(Duration::from_secs(30 * 24 * 60 * 60));
/// let config = EkbatanConfig::single("sqlite:wallet.db").events(events);
/// config.check()?;
/// # Ok::<_, ekbatan_core::config::ConfigError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetentionConfig {
    /// The age at which events go that every handler has handled.
    pub events: Option<Duration>,
    /// The age at which settled dead letters go.
    pub dead_letters: Option<Duration>,
    /// The age at which idempotency keys go.
    pub keys: Option<Duration>,
    /// The age at which handled messages go.
    pub inbox: Option<Duration>,
    /// How often a node deletes. Default 1 h.
    pub every: Duration,
    /// How many rows one transaction deletes at most. Default 1,000.
    pub rows_at_once: usize,
}

impl Default for RetentionConfig {
    fn default() -> Self {
        Self {
            events: None,
            dead_letters: None,
            keys: None,
            inbox: None,
            every: Duration::from_secs(60 * 60),
            rows_at_once: 1_000,
        }
    }
}
