//! The settings of nodes that run jobs.

use std::time::Duration;

/// The keys of `ekbatan.jobs`: settings of the nodes that run jobs.
///
/// ```
/// use ekbatan_core::config::{EkbatanConfig, JobsConfig};
///
/// let mut jobs = JobsConfig::default();
/// jobs.concurrency = 4;
/// let config = EkbatanConfig::single("sqlite:wallet.db").jobs(jobs);
/// config.check()?;
/// # Ok::<_, ekbatan_core::config::ConfigError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobsConfig {
    /// A name of the nodes of this process, for logs. Default `ekbatan`.
    pub name: String,
    /// The time after which the runs of a node that is not heard of are begun on others. Default
    /// 15 s.
    pub lease: Duration,
    /// The longest pause between two looks at the jobs. Default 1 s.
    pub poll: Duration,
    /// How many runs a node has at a time. Default 64.
    pub concurrency: usize,
}

impl Default for JobsConfig {
    fn default() -> Self {
        Self {
            name: "ekbatan".to_owned(),
            lease: Duration::from_secs(15),
            poll: Duration::from_secs(1),
            concurrency: 64,
        }
    }
}
