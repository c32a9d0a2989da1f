//! The jobs of a node, without their types.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;

use crate::error::JobNodeStartError;
use crate::job::{Job, RunContext};
use crate::options::JobOptions;
use crate::schedule::Schedule;

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

#[async_trait]
trait AnyJob: Send + Sync {
    async fn run(&self, ctx: &mut RunContext<'_>) -> Result<(), BoxError>;
}

#[async_trait]
impl<J: Job> AnyJob for J {
    async fn run(&self, ctx: &mut RunContext<'_>) -> Result<(), BoxError> {
        Job::run(self, ctx).await.map_err(Into::into)
    }
}

/// A job, its schedule and its options.
pub(crate) struct KnownJob {
    pub(crate) name: &'static str,
    pub(crate) schedule: Schedule,
    pub(crate) options: JobOptions,
    inner: Box<dyn AnyJob>,
}

impl KnownJob {
    pub(crate) fn new<J: Job>(schedule: Schedule, job: J, options: JobOptions) -> Self {
        Self { name: J::NAME, schedule, options, inner: Box::new(job) }
    }

    pub(crate) async fn run(&self, ctx: &mut RunContext<'_>) -> Result<(), BoxError> {
        self.inner.run(ctx).await
    }
}

/// The jobs of a node, by their names.
#[derive(Clone)]
pub(crate) struct JobSet {
    jobs: HashMap<&'static str, Arc<KnownJob>>,
}

impl JobSet {
    /// Fails if options cannot work, or if two jobs have one name.
    pub(crate) fn new(jobs: Vec<KnownJob>) -> Result<Self, JobNodeStartError> {
        let mut set = HashMap::with_capacity(jobs.len());
        for job in jobs {
            let name = job.name;
            if name.trim().is_empty() || name.len() > 255 {
                return Err(JobNodeStartError::Name(name, name.len()));
            }
            if let Some((option, why)) = job.options.fault() {
                return Err(JobNodeStartError::Option { job: name, option, why });
            }
            if set.insert(name, Arc::new(job)).is_some() {
                return Err(JobNodeStartError::NameTwice(name));
            }
        }
        Ok(Self { jobs: set })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<KnownJob>> {
        self.jobs.values()
    }

    pub(crate) fn names(&self) -> Vec<&'static str> {
        self.jobs.keys().copied().collect()
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Arc<KnownJob>> {
        self.jobs.get(name)
    }
}
