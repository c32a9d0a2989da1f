//! How a node runs.

use std::time::Duration;

use crate::error::StartError;

/// How a node runs.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) name: String,
    pub(crate) lease: Duration,
    pub(crate) shortest_poll: Duration,
    pub(crate) longest_poll: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            name: "ekbatan".to_owned(),
            lease: Duration::from_secs(15),
            shortest_poll: Duration::from_millis(2),
            longest_poll: Duration::from_millis(500),
        }
    }
}

impl Settings {
    /// Fails if a setting cannot work.
    pub(crate) fn check(&self) -> Result<(), StartError> {
        let Self { name, lease, shortest_poll, longest_poll } = self;
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
        if shortest_poll.is_zero() || longest_poll < shortest_poll {
            let why = format!(
                "{shortest_poll:?} to {longest_poll:?}; the shortest pause must be more than 0, and at most the longest"
            );
            return refuse("poll", why);
        }
        Ok(())
    }
}
