//! The statements that a server gets, by its log.

use std::time::Duration;

use ekbatan::jobs::{JobOperations, Schedule};
use ekbatan::prelude::*;
use ekbatan_testkit::PostgresServer;
use support::{ScratchDatabase, until};

use crate::scene::{REPORT, Report, executor, migrations, node, rarely};

/// A node that stands still in an open transaction would keep the row of a job locked, and every
/// other node would wait for it, with all jobs.
#[tokio::test(flavor = "multi_thread")]
async fn no_transaction_is_open_while_slots_are_decided_on_and_runs_start() {
    let server = PostgresServer::builder().setting("log_statement", "all").start().await.unwrap();
    let scratch = ScratchDatabase::at(&server.create_database().await.unwrap());
    let databases = Databases::connect(&scratch.config().into()).await.unwrap();
    databases.migrate(&migrations()).await.unwrap();
    let executor = executor(&databases).await;
    let before = server.log().await.unwrap().len();
    let job = Report::writing();
    let schedule = Schedule::every(Duration::from_millis(50)).unwrap();
    let node = node(&executor).job(schedule, job.clone()).start().await.unwrap();
    until("the job has run", async || job.seen().len() >= 3).await;
    let operations = JobOperations::new(&databases);
    operations.pause(REPORT, "alice", "a test").await.unwrap();
    operations.run_now(REPORT, "alice", "a test").await.unwrap();
    operations.resume(REPORT, "alice", "a test").await.unwrap();
    node.drain(Duration::MAX).await;
    let log = server.log().await.unwrap();
    let log = &log[before..];
    assert!(log.contains("job_runs"), "the log has the statements");
    assert!(log.contains("interventions"), "and those of the operator");
    let opens = |line: &&str| line.contains(": BEGIN") && !line.contains("COMMIT");
    let opened: Vec<&str> = log.lines().filter(opens).collect();
    assert!(opened.is_empty(), "{opened:#?}");
}

/// Its last action has ended the run.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_run_is_stored_once() {
    let server = PostgresServer::builder().setting("log_statement", "all").start().await.unwrap();
    let scratch = ScratchDatabase::at(&server.create_database().await.unwrap());
    let databases = Databases::connect(&scratch.config().into()).await.unwrap();
    databases.migrate(&migrations()).await.unwrap();
    let executor = executor(&databases).await;
    let job = Report::writing();
    let node = node(&executor).job(rarely(), job.clone()).start().await.unwrap();
    let before = server.log().await.unwrap().len();
    JobOperations::new(&databases).run_now(REPORT, "alice", "a test").await.unwrap();
    until("the job has run", async || job.seen().len() == 1).await;
    node.drain(Duration::MAX).await;
    let log = server.log().await.unwrap();
    let updates = log[before..].matches(r#"UPDATE "eventlog"."job_runs""#).count();
    assert_eq!(updates, 2, "the start and the end: {}", &log[before..]);
}
