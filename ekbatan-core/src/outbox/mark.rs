//! The mark: a row that a commit writes or checks beside those of its action. It says that the
//! caller may still do its work: handle a delivery, or run a job. If the row is not as it was read,
//! somebody else does that work by now, and nothing is committed.

use std::sync::Arc;

use super::deliveries::Delivery;
use crate::db::{
    Database, RowRef, StageError, Staged, StagedExpectation, stage_changed, stage_deleted,
    stage_expected,
};
use crate::domain::{Changed, Entity, FieldError, Stored};

/// A row that a commit writes or checks beside those of its action.
#[derive(Clone)]
pub struct Mark {
    pub(crate) database: Arc<Database>,
    pub(crate) row: MarkedRow,
    work: MarkedWork,
}

/// What a commit does with the row of its mark.
#[derive(Clone)]
pub(crate) enum MarkedRow {
    /// It writes the row, so that nobody else does the work any more.
    Written(Staged),
    /// It only checks the row, so that further commits can follow.
    Checked(StagedExpectation),
}

/// The work to which a mark belongs.
#[derive(Debug, Clone)]
pub(crate) enum MarkedWork {
    /// A delivery, by the name of its handler.
    Delivery(String),
    /// A run, by the name of its job.
    Run(String),
}

impl Mark {
    /// Marks a delivery as handled: its row is deleted.
    pub(crate) fn delivery(
        database: Arc<Database>,
        delivery: &Stored<Delivery>,
    ) -> Result<Self, FieldError> {
        let row = MarkedRow::Written(stage_deleted(delivery).map_err(misfit)?);
        let work = MarkedWork::Delivery(delivery.handler.clone());
        Ok(Self { database, row, work })
    }

    /// Checks that a run of a job is as it was read.
    pub(crate) fn run<T: Entity>(
        database: Arc<Database>,
        run: &Stored<T>,
        job: &str,
    ) -> Result<Self, FieldError> {
        let row = MarkedRow::Checked(stage_expected(run).map_err(misfit)?);
        Ok(Self { database, row, work: MarkedWork::Run(job.to_owned()) })
    }

    /// Changes the row of a run, which ends it.
    pub(crate) fn end_of_run<T: Entity>(
        database: Arc<Database>,
        run: Changed<T>,
        job: &str,
    ) -> Result<Self, FieldError> {
        // Runs have no dates of the framework.
        let (staged, ..) = stage_changed(run, chrono::DateTime::UNIX_EPOCH).map_err(misfit)?;
        let row = MarkedRow::Written(staged);
        Ok(Self { database, row, work: MarkedWork::Run(job.to_owned()) })
    }

    pub(crate) fn work(&self) -> &MarkedWork {
        &self.work
    }

    /// Whether the commit only checks the row.
    pub(crate) fn is_check(&self) -> bool {
        matches!(self.row, MarkedRow::Checked(_))
    }

    /// Whether one of the stale rows is that of the mark.
    pub(crate) fn is_among(&self, stale: &[RowRef]) -> bool {
        let (id, table) = match &self.row {
            MarkedRow::Written(row) => (row.id, row.table),
            MarkedRow::Checked(row) => (row.id, row.table),
        };
        stale.iter().any(|row| row.id == id && row.model == table.model)
    }
}

fn misfit(error: StageError) -> FieldError {
    match error {
        StageError::Field { source, .. } => source,
        _ => FieldError::new("the row of a mark cannot be staged"),
    }
}

impl std::fmt::Debug for Mark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mark").field("work", &self.work).finish_non_exhaustive()
    }
}
