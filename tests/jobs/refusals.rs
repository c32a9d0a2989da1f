//! What a node refuses, and what it leaves as it is.

use std::time::Duration;

use ekbatan::jobs::{
    Job, JobNodeStartError, JobOptions, Misfire, RunContext, RunState, Schedule, ScheduleError,
};
use support::until;

use crate::scene::{REPORT, Report, Scene, Sweep, hourly, rarely};

on_every_database! {
    a_node_of_an_earlier_release_deletes_and_changes_nothing,
    a_change_of_the_schedule_is_stored_and_the_pause_stays,
    a_schedule_of_a_later_release_is_left_alone,
}

on_every_database! {
    on_sqlite_only:
    jobs_that_cannot_run_are_refused_at_the_start,
    a_job_that_cannot_be_stored_fails_the_start,
    a_hostile_expression_is_refused_in_bounded_time,
}

async fn a_node_of_an_earlier_release_deletes_and_changes_nothing(scene: &Scene) {
    let later = JobOptions::default().revision(2).keep(7);
    let node = scene.node().job_with(hourly(), Report::idle(), later).job(rarely(), Sweep::idle());
    node.start().await.unwrap().drain(Duration::MAX).await;
    let before = scene.operations().jobs().await.unwrap();
    // It knows one job only, with another schedule.
    let earlier = JobOptions::default().revision(1);
    let node = scene.node().job_with(rarely(), Report::idle(), earlier).start().await.unwrap();
    assert_eq!(scene.operations().jobs().await.unwrap(), before);
    node.drain(Duration::MAX).await;
    let kept = format!("FROM {}", scene.scratch.eventlog("jobs"));
    let kept = scene.scratch.select(&["kept"], &format!("{kept} WHERE name = '{REPORT}'")).await;
    assert_eq!(kept, [[Some("7".to_owned())]]);
}

async fn a_change_of_the_schedule_is_stored_and_the_pause_stays(scene: &Scene) {
    scene.store(Report::idle(), JobOptions::default()).await;
    scene.operations().pause(REPORT, "alice", "a test").await.unwrap();
    let node = scene.node().job(hourly(), Report::idle()).start().await.unwrap();
    node.drain(Duration::MAX).await;
    let job = scene.operations().job(REPORT).await.unwrap();
    assert_eq!((job.schedule.parse(), job.is_paused), (Ok(hourly()), true));
    assert!(job.next_slot.unwrap() > scene.now().await);
}

async fn a_schedule_of_a_later_release_is_left_alone(scene: &Scene) {
    let later = JobOptions::default().revision(9);
    scene.store(Report::idle(), later).await;
    let jobs = scene.scratch.eventlog("jobs");
    let unreadable = format!("UPDATE {jobs} SET schedule = 'at full moon' WHERE name = '{REPORT}'");
    scene.scratch.execute(&unreadable).await;
    scene.set_next_slot(REPORT, scene.now().await).await;
    let (job, other) = (Report::idle(), Sweep::idle());
    let node = scene.node().job(rarely(), job.clone()).job(rarely(), other.clone());
    let _node = node.start().await.unwrap();
    let operations = scene.operations();
    operations.run_now("sweep", "alice", "a test").await.unwrap();
    scene.until_in_state("sweep", RunState::Done, 1).await;
    operations.pause(REPORT, "alice", "a test").await.unwrap();
    assert!(operations.resume(REPORT, "alice", "a test").await.is_err());
    until("the other job is done", async || other.seen().len() == 1).await;
    assert_eq!(job.seen(), []);
}

struct Blank;

impl Job for Blank {
    const NAME: &'static str = "  ";
    type Error = std::convert::Infallible;

    async fn run(&self, _: &mut RunContext<'_>) -> Result<(), Self::Error> {
        Ok(())
    }
}

async fn jobs_that_cannot_run_are_refused_at_the_start(scene: &Scene) {
    let twice = scene.node().job(rarely(), Report::idle()).job(hourly(), Report::idle());
    assert!(matches!(twice.start().await.err(), Some(JobNodeStartError::NameTwice(REPORT))));
    let blank = scene.node().job(rarely(), Blank).start().await;
    assert!(matches!(blank.err(), Some(JobNodeStartError::Name(..))));
    let options = JobOptions::default;
    for (wrong, options) in [
        ("misfire", options().misfire(Misfire::CatchUp(0))),
        ("misfire", options().misfire(Misfire::Skip { grace: Duration::from_millis(99) })),
        ("deadline", options().deadline(Duration::ZERO)),
        ("at_least", options().at_least(Duration::MAX)),
        ("attempts", options().attempts(0)),
        ("keep", options().keep(0)),
    ] {
        let refused = scene.node().job_with(rarely(), Report::idle(), options).start().await;
        match refused.err().unwrap() {
            JobNodeStartError::Option { job: REPORT, option, .. } => assert_eq!(option, wrong),
            other => panic!("{other}"),
        }
    }
    for (wrong, builder) in [
        ("lease", scene.node().lease(Duration::from_millis(999))),
        ("poll", scene.node().poll(Duration::ZERO)),
        ("concurrency", scene.node().concurrency(0)),
        ("name", scene.node().name("x".repeat(256))),
    ] {
        match builder.start().await.err().unwrap() {
            JobNodeStartError::Setting { setting, .. } => assert_eq!(setting, wrong),
            other => panic!("{other}"),
        }
    }
    assert_eq!(scene.operations().jobs().await.unwrap(), [], "nothing of it is stored");
}

async fn a_job_that_cannot_be_stored_fails_the_start(scene: &Scene) {
    let jobs = scene.scratch.eventlog("jobs");
    scene.scratch.execute(&format!("ALTER TABLE {jobs} RENAME TO away")).await;
    let failed = scene.node().job(rarely(), Report::idle()).start().await.err();
    let why = failed.expect("the row of the job is not stored").to_string();
    assert!(why.contains("no table `eventlog_jobs`"), "{why}");
}

async fn a_hostile_expression_is_refused_in_bounded_time(_: &Scene) {
    let long = format!("{} * * * *", vec!["*/1"; 1_000_000].join(","));
    for (expression, is_long) in [
        (long.as_str(), true),
        ("0 0 31 2,4,6,9,11 *", false),
        ("* * * 30 2 * *", false),
        ("0-4294967295 * * * *", false),
        ("*/99999999999999999999 * * * *", false),
    ] {
        let expression = expression.to_owned();
        let parsing =
            tokio::task::spawn_blocking(move || Schedule::cron(&expression, "Europe/Berlin"));
        let refused = tokio::time::timeout(Duration::from_secs(120), parsing).await;
        let refused = refused.expect("the search ends").unwrap().unwrap_err();
        assert_eq!(matches!(refused, ScheduleError::TooLong(_)), is_long, "{refused}");
    }
}
