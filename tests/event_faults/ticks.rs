//! The effects of jobs.

use ekbatan::domain::New;
use ekbatan::prelude::*;
use ekbatan::repository::{Direction, PageRequest};
use serde::{Deserialize, Serialize};

use crate::accounts::EntryState;

/// The effect of one run of a job.
#[derive(Debug, Clone, PartialEq, Entity)]
#[entity(table = "ticks")]
pub struct Tick {
    pub id: Id<Tick>,
    pub job: String,
    pub run: String,
    /// In milliseconds since 1970.
    pub slot: i64,
    /// One more than the greatest position of the job that the run has found.
    pub position: i64,
    pub state: EntryState,
}

/// Adds a tick. Nothing but the mark of the run, or the key of the step, keeps it from being added
/// twice.
pub struct AddTick {
    pub databases: Databases,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Ticking {
    pub job: String,
    pub run: String,
    pub slot: i64,
}

impl Action for AddTick {
    const NAME: &'static str = "tick.add";
    type Params = Ticking;
    type Output = ();
    type Error = ReadError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        ticking: &Ticking,
    ) -> Result<(), ReadError> {
        let Ticking { job, run, slot } = ticking.clone();
        let last = PageRequest::first(1)
            .filter(Tick::JOB.eq(&*job))
            .order_by(Tick::POSITION, Direction::Descending);
        let ticks = ctx.repository::<Tick>().on_shard(&self.databases.default_shard());
        let last = ticks.page(last).await?;
        let position = last.rows.first().map_or(0, |tick| tick.position) + 1;
        let id = ctx.new_id();
        let tick = Tick { id, job, run, slot, position, state: EntryState::Posted };
        ctx.plan().add(New::new(tick, ()));
        Ok(())
    }
}
