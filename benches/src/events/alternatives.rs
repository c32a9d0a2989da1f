//! What deposits and handles with crates that do something alike.

mod apalis;
mod graphile;

use std::sync::Arc;

use ekbatan::prelude::{Decimal, Uuid};

use super::options::EventsMode;
use super::recorder::Recorder;
use crate::failure::Failure;
use apalis::{ApalisWorker, ApalisWriter};
use graphile::{JobWorker, JobWriter};

/// What deposits.
#[derive(Clone)]
pub enum AlternativeWriter {
    Apalis(ApalisWriter),
    Graphile(JobWriter),
}

/// What handles.
pub enum AlternativeWorker {
    Apalis(ApalisWorker),
    Graphile(JobWorker),
}

impl AlternativeWriter {
    /// Prepares the database for the mode and connects to it.
    pub async fn open(mode: EventsMode, url: &str, tasks: u32) -> Result<Self, Failure> {
        Ok(match mode {
            EventsMode::Apalis => Self::Apalis(ApalisWriter::open(url, tasks).await?),
            _ => {
                let has_queues = mode == EventsMode::GraphileWorker;
                Self::Graphile(JobWriter::open(url, tasks, has_queues).await?)
            }
        })
    }

    pub async fn deposit(&self, wallet: Uuid, amount: Decimal) -> Result<(), Failure> {
        match self {
            Self::Apalis(writer) => writer.deposit(wallet, amount).await,
            Self::Graphile(writer) => writer.deposit(wallet, amount).await,
        }
    }

    /// Starts what handles.
    pub async fn start_handling(
        &self,
        recorder: Arc<Recorder>,
    ) -> Result<AlternativeWorker, Failure> {
        Ok(match self {
            Self::Apalis(writer) => {
                AlternativeWorker::Apalis(ApalisWorker::start(writer, recorder).await?)
            }
            Self::Graphile(writer) => {
                AlternativeWorker::Graphile(JobWorker::start(writer, recorder).await?)
            }
        })
    }

    pub async fn close(self) {
        match self {
            Self::Apalis(writer) => writer.close().await,
            Self::Graphile(writer) => writer.close().await,
        }
    }
}

impl AlternativeWorker {
    /// Stops, and counts what it leaves.
    pub async fn stop(self) -> Result<u64, Failure> {
        match self {
            Self::Apalis(worker) => worker.stop().await,
            Self::Graphile(worker) => worker.stop().await,
        }
    }
}
