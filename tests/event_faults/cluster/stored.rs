//! Reads the history that shards store.

use ekbatan::chrono::NaiveDateTime;
use ekbatan::jobs::{JobOperations, RunState};
use ekbatan::prelude::*;
use support::{ScratchDatabase, TextRow};

use crate::history::calls::{CallEffected, Requested};
use crate::history::jobs::{Job, JobHistory, RunEffect, Slots};
use crate::history::{Effect, Event, History};
use crate::requests::{Manner, RequestState};
use crate::ticks::Tick;

/// More runs than there are.
const ALL_RUNS: usize = 100_000;

/// A row, for whoever looks into a failure.
pub fn shown(row: TextRow) -> String {
    let values: Vec<String> = row.into_iter().map(|value| value.unwrap_or_default()).collect();
    values.join(" | ")
}

fn text(value: &Option<String>) -> String {
    value.clone().expect("no null")
}

fn number(value: &Option<String>) -> i64 {
    value.as_ref().expect("no null").parse().unwrap()
}

fn one_of<S: State + Copy>(all: &[S], value: &Option<String>) -> S {
    let text = text(value);
    *all.iter().find(|one| one.as_str() == text).expect("a known text")
}

/// Adds what a shard stores to a history.
pub async fn read_shard(shard: &ScratchDatabase, history: &mut History) {
    let events = format!("FROM {} WHERE event_type IS NOT NULL", shard.eventlog("events"));
    let columns = ["id", "model_id", "model_version", "action_id", "payload"];
    for row in shard.select(&columns, &events).await {
        let payload: serde_json::Value = serde_json::from_str(&text(&row[4])).unwrap();
        history.events.push(Event {
            id: text(&row[0]),
            account: text(&row[1]),
            version: number(&row[2]),
            action: text(&row[3]),
            // The opening of an account enqueues nothing.
            calls: payload["calls"].as_u64().unwrap_or_default() as usize,
        });
    }
    for row in shard.select(&["handler", "event", "after_version"], "FROM entries").await {
        history.effects.push(Effect {
            handler: text(&row[0]),
            event: text(&row[1]),
            after: number(&row[2]),
        });
    }
    for row in shard.select(&["id", "version"], "FROM accounts").await {
        history.versions.insert(text(&row[0]), number(&row[1]));
    }
    let columns = ["id", "manner", "call_key", "maker", "maker_version", "place", "state"];
    for row in shard.select(&columns, "FROM requests").await {
        history.calls.requests.push(Requested {
            id: text(&row[0]),
            manner: one_of(&Manner::ALL, &row[1]),
            key: text(&row[2]),
            maker: text(&row[3]),
            maker_version: number(&row[4]),
            place: number(&row[5]),
            state: one_of(&RequestState::ALL, &row[6]),
        });
    }
    for row in shard.select(&["request", "position", "found"], "FROM call_effects").await {
        history.calls.effects.push(CallEffected {
            request: text(&row[0]),
            position: number(&row[1]),
            found: one_of(&RequestState::ALL, &row[2]),
        });
    }
}

/// The runs of jobs that have not ended, with their slots.
pub async fn runs_left(shard: &ScratchDatabase) -> Vec<(DateTime<Utc>, String)> {
    let states =
        [RunState::Waiting, RunState::Running].map(|state| format!("'{}'", state.as_str()));
    let runs =
        format!("FROM {} WHERE state IN ({})", shard.eventlog("job_runs"), states.join(", "));
    let rows = shard.select(&["slot", "id", "job", "state", "node", "attempt"], &runs).await;
    let with_slot = |row: TextRow| {
        let slot = text(&row[0]).replace('T', " ");
        let slot =
            NaiveDateTime::parse_from_str(slot.trim_end_matches('Z'), "%Y-%m-%d %H:%M:%S%.f");
        (slot.unwrap().and_utc(), format!("run {}", shown(row)))
    };
    rows.into_iter().map(with_slot).collect()
}

/// The slots of a job, and the effects of its runs.
pub async fn read_job(databases: &Databases, job: Job) -> JobHistory {
    let jobs = JobOperations::new(databases);
    let status = jobs.job(job.name).await.unwrap();
    let runs = jobs.history(job.name, ALL_RUNS).await.unwrap();
    let millis = |date: DateTime<Utc>| date.timestamp_millis();
    let slots = runs.into_iter().map(|run| Slots {
        run: run.id.to_string(),
        first: millis(run.slot),
        last: millis(run.last_slot),
        count: run.slots as i64,
        state: run.state,
        started: run.started.map(millis),
        ended: run.ended.map(millis),
    });
    let slots = slots.collect();
    let ticks = databases.repository::<Tick>().on_shard(&databases.default_shard());
    let ticks = ticks.find_where(Tick::JOB.eq(job.name)).await.unwrap();
    let effect = |tick: &Stored<Tick>| RunEffect {
        run: tick.run.clone(),
        slot: tick.slot,
        position: tick.position,
    };
    JobHistory {
        effects: ticks.iter().map(effect).collect(),
        slots,
        next_slot: millis(status.next_slot.expect("the jobs are always due again")),
        omitted: status.omitted as i64,
        job,
    }
}
