//! How a node runs.

use std::time::Duration;

use ekbatan_core::config::JobsConfig;

use crate::error::JobNodeStartError;

/// The shortest lease.
pub(crate) const SHORTEST_LEASE: Duration = Duration::from_secs(1);

/// The longest lease, and the longest pause between two looks.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// How a node runs.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) name: String,
    pub(crate) lease: Duration,
    /// The longest pause between two looks at the jobs.
    pub(crate) poll: Duration,
    /// How many runs the node has at a time.
    pub(crate) concurrency: usize,
}

impl Settings {
    pub(crate) fn new(config: &JobsConfig) -> Self {
        Self {
            name: config.name.clone(),
            lease: config.lease,
            poll: config.poll,
            concurrency: config.concurrency,
        }
    }

    /// Fails if a setting cannot work.
    pub(crate) fn check(&self) -> Result<(), JobNodeStartError> {
        let Self { name, lease, poll, concurrency } = self;
        let refuse = |setting, why| Err(JobNodeStartError::Setting { setting, why });
        if name.len() > 255 {
            return refuse("name", format!("it has {} bytes; use at most 255", name.len()));
        }
        if !(SHORTEST_LEASE..=LONGEST).contains(lease) {
            return refuse("lease", format!("{lease:?}; use 1 s to {LONGEST:?}"));
        }
        if poll.is_zero() || *poll > LONGEST {
            return refuse("poll", format!("{poll:?}; use more than 0 s and at most {LONGEST:?}"));
        }
        if *concurrency == 0 {
            return refuse(
                "concurrency",
                "0 runs at a time run nothing; use at least 1".to_owned(),
            );
        }
        Ok(())
    }
}
