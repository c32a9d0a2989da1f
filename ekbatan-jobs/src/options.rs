//! How a job runs.

use std::time::Duration;

use ekbatan_macros::State;

use crate::misfire::Misfire;
use crate::span;

/// What happens to a slot while an earlier run of the job goes on, on any node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, State)]
#[non_exhaustive]
pub enum Overlap {
    /// It is not run.
    #[default]
    Skip,
    /// It waits for the end of the run. [`Misfire`] decides if several wait then.
    Queue,
    /// It runs beside the others.
    Allow,
}

/// How a job runs. The options are stored with the job and hold on all nodes; see
/// [`revision`](Self::revision).
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "options change nothing until a job is added with them"]
pub struct JobOptions {
    pub(crate) misfire: Misfire,
    pub(crate) overlap: Overlap,
    pub(crate) at_least: Duration,
    pub(crate) deadline: Duration,
    pub(crate) attempts: u32,
    pub(crate) keep: u32,
    pub(crate) revision: u32,
}

impl Default for JobOptions {
    fn default() -> Self {
        Self {
            misfire: Misfire::default(),
            overlap: Overlap::default(),
            at_least: Duration::ZERO,
            deadline: Duration::from_secs(60 * 60),
            attempts: 3,
            keep: 100,
            revision: 0,
        }
    }
}

impl JobOptions {
    /// Sets what happens to slots that could not be run in time; [`Misfire::Coalesce`] unless set.
    pub fn misfire(mut self, misfire: Misfire) -> Self {
        self.misfire = misfire;
        self
    }

    /// Sets what happens to a slot while a run goes on; [`Overlap::Skip`] unless set.
    pub fn overlap(mut self, overlap: Overlap) -> Self {
        self.overlap = overlap;
        self
    }

    /// Sets the time between the starts of two runs, by the clock of the database; none unless set.
    /// What is due earlier waits, also if an operator asked for it.
    pub fn at_least(mut self, time: Duration) -> Self {
        self.at_least = time;
        self
    }

    /// Sets the longest time of a run; one hour unless set. A run that takes longer is cancelled, and
    /// has failed. If its node cannot cancel it, another node ends it, and it commits nothing more.
    pub fn deadline(mut self, longest: Duration) -> Self {
        self.deadline = longest;
        self
    }

    /// Sets how often a run is begun if its node is lost each time; 3 unless set.
    pub fn attempts(mut self, most: u32) -> Self {
        self.attempts = most;
        self
    }

    /// Sets how many rows of the history are kept, of runs that have ended and of slots that were not run;
    /// 100 unless set.
    pub fn keep(mut self, runs: u32) -> Self {
        self.keep = runs;
        self
    }

    /// Sets the revision of schedule and options; 0 unless set. A node that starts stores its
    /// schedule and options unless those that are stored have a higher revision. Raise it with each
    /// change, so that a node of an earlier release that starts once more does not bring the
    /// earlier schedule back.
    pub fn revision(mut self, revision: u32) -> Self {
        self.revision = revision;
        self
    }

    /// The option that cannot work, and why.
    pub(crate) fn fault(&self) -> Option<(&'static str, String)> {
        if let Some(why) = self.misfire.fault() {
            return Some(("misfire", why));
        }
        for (option, time) in [("at_least", self.at_least), ("deadline", self.deadline)] {
            if time > span::LONGEST {
                return Some((
                    option,
                    format!("{time:?} is too long; use at most a hundred years"),
                ));
            }
        }
        if self.deadline < Duration::from_millis(1) {
            return Some(("deadline", "0 s leave no time to run; use at least 1 ms".to_owned()));
        }
        if self.attempts == 0 {
            return Some(("attempts", "0 never begin a run; use at least 1".to_owned()));
        }
        (self.keep == 0 || self.keep > 100_000)
            .then(|| ("keep", format!("{} runs; use 1 to 100,000", self.keep)))
    }
}
