//! Stands for the crates that do something alike where they are not compiled in: building them takes a minute.

use std::sync::Arc;

use ekbatan::prelude::{Decimal, Uuid};

use super::options::EventsMode;
use super::recorder::Recorder;
use crate::failure::Failure;

/// There is none.
#[derive(Clone)]
pub enum AlternativeWriter {}

/// There is none.
pub enum AlternativeWorker {}

impl AlternativeWriter {
    pub async fn open(mode: EventsMode, _: &str, _: u32) -> Result<Self, Failure> {
        Err(format!("--mode {} is not compiled in", mode.name()).into())
    }

    pub async fn deposit(&self, _: Uuid, _: Decimal) -> Result<(), Failure> {
        match *self {}
    }

    pub async fn start_handling(&self, _: Arc<Recorder>) -> Result<AlternativeWorker, Failure> {
        match *self {}
    }

    pub async fn close(self) {
        match self {}
    }
}

impl AlternativeWorker {
    pub async fn stop(self) -> Result<u64, Failure> {
        match self {}
    }
}
