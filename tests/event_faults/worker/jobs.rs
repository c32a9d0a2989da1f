//! The jobs of a worker.

use std::sync::Arc;
use std::time::Duration;

use ekbatan::jobs::{
    Job, JobNode, JobNodeBuilder, JobOptions, Misfire, Overlap, RunContext, Schedule,
};
use ekbatan::prelude::*;

use super::handlers::{Failure, Runs};
use super::{HeldRun, LEASE};
use crate::history::jobs as history;
use crate::ticks::{AddTick, Ticking};

/// Every slot is run, one after another.
const EVERY: u8 = 0;
/// Slots that become due during a run are skipped.
const SKIPPING: u8 = 1;
/// Runs overlap, and slots that no node finds in time are missed. The effect is a step.
const OVERLAPPING: u8 = 2;

/// The jobs of every worker.
pub fn jobs() -> [history::Job; 3] {
    [known::<EVERY>(), known::<SKIPPING>(), known::<OVERLAPPING>()]
}

fn known<const JOB: u8>() -> history::Job {
    let name = <AddTicks<JOB> as Job>::NAME;
    let (period, misfire, overlap) = match JOB {
        EVERY => (1_000, Misfire::CatchUp(1_000), Overlap::Queue),
        SKIPPING => (300, Misfire::Coalesce, Overlap::Skip),
        _ => (400, Misfire::Skip { grace: Duration::from_millis(100) }, Overlap::Allow),
    };
    history::Job { name, period, misfire, overlap, ends_with_effect: JOB != OVERLAPPING }
}

/// Starts a node that finds soon what others do, and that is taken for dead soon.
pub async fn start(executor: &ActionExecutor, name: &str, runs: &Arc<Runs>) -> JobNode {
    let node = JobNode::builder(executor).name(name).lease(LEASE);
    let node = node.poll(Duration::from_millis(200));
    let node = with_job::<EVERY>(node, runs);
    let node = with_job::<SKIPPING>(node, runs);
    with_job::<OVERLAPPING>(node, runs).start().await.unwrap()
}

fn with_job<const JOB: u8>(node: JobNodeBuilder, runs: &Arc<Runs>) -> JobNodeBuilder {
    let history::Job { period, misfire, overlap, .. } = known::<JOB>();
    let schedule = Schedule::every(Duration::from_millis(period.unsigned_abs())).unwrap();
    // The test reads all runs, and its faults fall upon some of them again and again.
    let options = JobOptions::default().keep(100_000).attempts(1_000);
    node.job_with(
        schedule,
        AddTicks::<JOB>(runs.clone()),
        options.misfire(misfire).overlap(overlap),
    )
}

/// Adds a tick for each run.
struct AddTicks<const JOB: u8>(Arc<Runs>);

impl<const JOB: u8> Job for AddTicks<JOB> {
    const NAME: &'static str = match JOB {
        EVERY => "ticks.every",
        SKIPPING => "ticks.skipping",
        _ => "ticks.overlapping",
    };
    type Error = Failure;

    async fn run(&self, ctx: &mut RunContext<'_>) -> Result<(), Failure> {
        let runs = &*self.0;
        runs.meet_fate().await?;
        if JOB != EVERY {
            // Longer than the time between two slots, now and then.
            tokio::time::sleep(Duration::from_millis(runs.random(400))).await;
        }
        let ticking = Ticking {
            job: Self::NAME.to_owned(),
            run: ctx.id().to_string(),
            slot: ctx.slot().timestamp_millis(),
        };
        runs.wait_if_held(HeldRun::Job { run: ctx.id().to_string() }).await;
        let add = AddTick { databases: ctx.executor().databases().clone() };
        if JOB == OVERLAPPING {
            ctx.step("tick", &add, ticking).await?;
        } else {
            ctx.finish(&add, ticking).await?;
        }
        runs.fail_afterwards()
    }
}
