//! The commands about jobs, which are on the default shard.

use ekbatan::domain::State;
use ekbatan::jobs::{JobOperations, RunRecord};
use serde_json::json;

use crate::answer::{Answer, Row, time};
use crate::args::{Given, JobCommand};
use crate::failure::Failure;
use crate::target::Target;

pub async fn run(target: &Target, command: JobCommand) -> Result<Answer, Failure> {
    let jobs = target.jobs();
    match command {
        JobCommand::List => list(&jobs).await,
        JobCommand::History { job, most } => history(&jobs, &job, most.most).await,
        JobCommand::Pause { job, operator } => pause(&jobs, &job, &operator.given()?).await,
        JobCommand::Resume { job, operator } => resume(&jobs, &job, &operator.given()?).await,
        JobCommand::Run { job, operator } => run_now(&jobs, &job, &operator.given()?).await,
    }
}

async fn list(jobs: &JobOperations) -> Result<Answer, Failure> {
    let rows = jobs.jobs().await?.into_iter().map(|job| {
        Answer::row([
            ("job", job.name.into()),
            ("state", if job.is_paused { "paused" } else { "active" }.into()),
            ("schedule", job.schedule.into()),
            ("next_slot", time(job.next_slot)),
            ("last_started", time(job.last_started)),
            ("waiting", job.waiting.into()),
            ("running", job.running.into()),
            ("omitted", job.omitted.into()),
        ])
    });
    let columns =
        &["job", "state", "schedule", "next_slot", "last_started", "waiting", "running", "omitted"];
    Ok(Answer::List { columns, rows: rows.collect(), empty: "no job is known" })
}

async fn history(jobs: &JobOperations, job: &str, most: usize) -> Result<Answer, Failure> {
    let rows = jobs.history(job, most).await?.into_iter().map(record).collect();
    let columns =
        &["id", "kind", "state", "slot", "slots", "attempts", "started", "ended", "error"];
    Ok(Answer::List { columns, rows, empty: "the job has not run yet" })
}

fn record(run: RunRecord) -> Row {
    Answer::row([
        ("id", run.id.to_string().into()),
        ("kind", run.kind.as_str().to_lowercase().into()),
        ("state", run.state.as_str().to_lowercase().into()),
        ("slot", time(run.slot)),
        ("last_slot", time(run.last_slot)),
        ("slots", run.slots.into()),
        ("node", run.node.map(|node| node.to_string()).into()),
        ("attempts", run.attempts.into()),
        ("started", time(run.started)),
        ("ended", time(run.ended)),
        ("error", run.error.into()),
    ])
}

async fn pause(jobs: &JobOperations, job: &str, by: &Given) -> Result<Answer, Failure> {
    jobs.pause(job, &by.who, &by.why).await?;
    let sentence = format!("`{job}` is paused; a run that goes on goes on");
    Ok(Answer::Said { sentence, facts: json!({ "paused": job }) })
}

async fn resume(jobs: &JobOperations, job: &str, by: &Given) -> Result<Answer, Failure> {
    jobs.resume(job, &by.who, &by.why).await?;
    let sentence = format!("`{job}` goes on with its next slot");
    Ok(Answer::Said { sentence, facts: json!({ "resumed": job }) })
}

async fn run_now(jobs: &JobOperations, job: &str, by: &Given) -> Result<Answer, Failure> {
    let run = jobs.run_now(job, &by.who, &by.why).await?;
    let sentence = format!("`{job}` runs once more as soon as a node has looked; the run is {run}");
    Ok(Answer::Said { sentence, facts: json!({ "job": job, "run": run.to_string() }) })
}
