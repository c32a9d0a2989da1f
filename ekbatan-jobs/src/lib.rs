//! Jobs that run by a schedule. Users add the facade crate `ekbatan`, whose module `jobs` is this
//! crate.
//!
//! A job and its slots are rows of the database. Of all nodes that know a job, one runs each slot. What
//! a run commits carries its mark: if another node has taken the run over, nothing of it is kept.
//!
//! The files from bottom to top: `span`, how a duration is written; `schedule`, when a job is due;
//! `misfire`, which of the slots that are due are run; `options`; `error`; `rows` and `store`, what is stored;
//! `plan`, what is to be done next; `job` and `job_set`, what an application writes; `job_run`, one run; `membership`, `settings`, `heart`, `worker` and `node`, the node; `operations`, what operators do; `windows`, rows that come in until a cutoff.
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations, missing_docs)]

mod error;
mod heart;
mod job;
mod job_run;
mod job_set;
mod membership;
mod misfire;
mod node;
mod operations;
mod options;
mod plan;
mod rows;
mod schedule;
mod settings;
mod span;
mod store;
pub mod windows;
mod worker;

pub use ekbatan_events::HandedBack;
pub use error::{JobNodeStartError, JobsError};
pub use job::{Job, RunContext};
pub use misfire::Misfire;
pub use node::{JobNode, JobNodeBuilder};
pub use operations::{JobOperations, JobStatus, RunRecord};
pub use options::{JobOptions, Overlap};
pub use rows::{RunKind, RunState};
pub use schedule::{Schedule, ScheduleError};
