//! Which windows are opened, and by whom.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use chrono::TimeDelta;
use ekbatan::config::{EkbatanConfig, UnknownShard};
use ekbatan::domain::ShardIdentifier;
use ekbatan::jobs::windows::{NewWindow, Window, WindowError, WindowState, Windows};
use ekbatan::jobs::{JobNode, JobOperations, RunState};
use ekbatan::prelude::*;
use support::{Dialect, until};

use crate::entries::{Entries, SERIES};
use crate::scene::{NAME, Scene, executor, jobs, never, nodes};

on_every_database! {
    the_job_opens_what_is_upcoming_once,
    a_window_that_is_there_keeps_its_cutoff,
    a_window_that_is_opened_after_its_cutoff_closes,
    a_window_that_the_job_opens_after_its_cutoff_closes,
    a_window_of_an_unknown_shard_closes_on_the_default_one,
    a_window_needs_names_that_can_be_stored,
}

mod policy {
    use super::*;

    on_every_database! {
        on_sqlite_only:
        a_run_that_cannot_open_what_is_upcoming_tries_again,
        a_window_that_cannot_be_opened_stops_no_other_one,
        a_key_whose_window_is_closed_opens_no_other_one,
    }
}

async fn the_job_opens_what_is_upcoming_once(dialect: Dialect) {
    let scene = Scene::start(dialect).await;
    let cutoff = scene.now().await + TimeDelta::hours(1);
    let upcoming: Vec<_> =
        (0..40).map(|n| NewWindow::new(format!("bank {n}"), "17h00", cutoff)).collect();
    let series = Entries { upcoming, ..Entries::default() };
    // One of them is there, and three processes open the others at the same time.
    scene.open("bank 7", Duration::from_secs(3_600)).await;
    let (other, third) =
        (scene.open_again(TimeDelta::zero()).await, scene.open_again(TimeDelta::zero()).await);
    let windows = Windows::new(series.clone());
    let (nodes, opened) = tokio::join!(
        async { (jobs(&scene.executor, series.clone()).await, jobs(&other, series.clone()).await) },
        windows.open_upcoming(&third),
    );
    opened.unwrap();
    let open = scene.databases.repository::<Window>();
    until("all are open", async || open.count().await.unwrap() == 40).await;
    nodes.0.drain(Duration::MAX).await;
    nodes.1.drain(Duration::MAX).await;
    for n in 0..40 {
        let id = Window::id_of(SERIES, &format!("bank {n}"), "17h00");
        let window = open.get(id).await.unwrap();
        assert_eq!((window.state, window.version()), (WindowState::Open, 1));
        assert_eq!(scene.events(id).await, ["WindowOpened"]);
    }
}

/// The next slot may be a day later.
async fn a_run_that_cannot_open_what_is_upcoming_tries_again(dialect: Dialect) {
    let scene = Scene::start(dialect).await;
    let cutoff = scene.now().await + TimeDelta::hours(1);
    let upcoming = vec![NewWindow::new("anna", "17h00", cutoff)];
    let unknown = Arc::new(AtomicUsize::new(1));
    let windows = Windows::new(Entries { upcoming, unknown, ..Entries::default() });
    let node = JobNode::builder(&scene.executor).poll(Duration::from_millis(20));
    let jobs = windows.add_job(node, never()).start().await.unwrap();
    let operations = JobOperations::new(&scene.databases);
    operations.run_now(NAME, "alice", "a test").await.unwrap();
    let opened = Window::id_of(SERIES, "anna", "17h00");
    let windows = scene.databases.repository::<Window>();
    until("it is open", async || windows.exists(opened).await.unwrap()).await;
    jobs.drain(Duration::MAX).await;
}

async fn a_window_that_cannot_be_opened_stops_no_other_one(dialect: Dialect) {
    let scene = Scene::start(dialect).await;
    let cutoff = scene.now().await + TimeDelta::hours(1);
    let upcoming = ["", "anna", "", "bert"].map(|name| NewWindow::new(name, "17h00", cutoff));
    let unknown = Arc::new(AtomicUsize::new(1));
    let upcoming = upcoming.to_vec();
    let windows = Windows::new(Entries { upcoming, unknown, ..Entries::default() });
    let error = windows.open_upcoming(&scene.executor).await.unwrap_err();
    assert!(error.to_string().contains("the calendar does not answer"), "{error}");
    let error = windows.open_upcoming(&scene.executor).await.unwrap_err();
    assert!(error.to_string().contains("the participant ``"), "{error}");
    assert_eq!(scene.databases.repository::<Window>().count().await.unwrap(), 2);
}

async fn a_window_that_is_there_keeps_its_cutoff(dialect: Dialect) {
    let scene = Scene::start(dialect).await;
    let windows = Windows::new(Entries::default());
    let cutoff = scene.now().await + TimeDelta::hours(1);
    let first = NewWindow::new("anna", "17h00", cutoff);
    let opened = windows.open(&scene.executor, first).await.unwrap();
    let second = NewWindow::new("anna", "17h00", cutoff + TimeDelta::hours(1));
    let found = windows.open(&scene.executor, second).await.unwrap();
    assert_eq!((found.cutoff, found.version()), (opened.cutoff, 1));
    assert_eq!(scene.window(opened.id).await.key, "17h00");
}

async fn a_window_that_is_opened_after_its_cutoff_closes(dialect: Dialect) {
    let scene = Scene::start(dialect).await;
    let cutoff = scene.now().await - TimeDelta::seconds(1);
    let windows = Windows::new(Entries::default());
    let late = NewWindow::new("anna", "17h00", cutoff);
    let opened = windows.open(&scene.executor, late).await.unwrap();
    assert_eq!(opened.state, WindowState::Closing);
    assert_eq!(scene.window(opened.id).await, *opened);
    assert_eq!(scene.events(opened.id).await, ["WindowOpened", "WindowClosing"]);
}

async fn a_window_that_the_job_opens_after_its_cutoff_closes(dialect: Dialect) {
    let scene = Scene::start(dialect).await;
    let cutoff = scene.now().await - TimeDelta::seconds(1);
    let upcoming = vec![NewWindow::new("anna", "17h00", cutoff)];
    let windows = Windows::new(Entries { upcoming, ..Entries::default() });
    let node = JobNode::builder(&scene.executor).poll(Duration::from_millis(20));
    let jobs = windows.add_job(node, never()).start().await.unwrap();
    let operations = JobOperations::new(&scene.databases);
    let run = operations.run_now(NAME, "alice", "a test").await.unwrap();
    until("the run has ended", async || {
        operations.run(run).await.unwrap().unwrap().state == RunState::Done
    })
    .await;
    jobs.drain(Duration::MAX).await;
    let opened = Window::id_of(SERIES, "anna", "17h00");
    assert_eq!(scene.window(opened).await.state, WindowState::Closing);
}

async fn a_window_of_an_unknown_shard_closes_on_the_default_one(dialect: Dialect) {
    let scene = Scene::start(dialect).await;
    let config = EkbatanConfig::from(scene.scratch.config());
    let lenient = config.unknown_shard(UnknownShard::DefaultShard);
    let executor = executor(&Databases::connect(&lenient).await.unwrap()).await;
    let cutoff = scene.now().await - TimeDelta::seconds(1);
    let late = NewWindow::new("anna", "17h00", cutoff).on(ShardIdentifier::new(7, 0).unwrap());
    let opened = Windows::new(Entries::default()).open(&executor, late).await.unwrap();
    assert_eq!(opened.state, WindowState::Closing);
    assert_eq!(scene.events(opened.id).await, ["WindowOpened", "WindowClosing"]);
}

/// Otherwise nobody would learn that a day has no window.
async fn a_key_whose_window_is_closed_opens_no_other_one(dialect: Dialect) {
    let scene = Scene::start(dialect).await;
    let window = scene.open("anna", Duration::from_secs(3_600)).await;
    scene.cut_off(window).await;
    let nodes = nodes(&scene.executor, Entries::default()).await;
    scene.until_state(window, WindowState::Closed).await;
    nodes.drain().await;
    let (windows, closed) = (Windows::new(Entries::default()), scene.window(window).await);
    let open =
        async |cutoff| windows.open(&scene.executor, NewWindow::new("anna", "17h00", cutoff)).await;
    let found = open(closed.cutoff).await.unwrap();
    assert_eq!((found.id, found.state), (window, WindowState::Closed));
    let tomorrow = closed.cutoff + TimeDelta::days(1);
    match open(tomorrow).await.unwrap_err() {
        ExecuteError::Domain(WindowError::KeyAgain { closing_date, cutoff, .. }) => {
            assert_eq!((Some(closing_date), cutoff), (closed.closing_date, tomorrow));
        }
        other => panic!("{other:?}"),
    }
}

async fn a_window_needs_names_that_can_be_stored(dialect: Dialect) {
    let scene = Scene::start(dialect).await;
    let windows = Windows::new(Entries::default());
    let cutoff = scene.now().await;
    for (participant, key, wrong) in [
        ("", "17h00", "participant"),
        (" ", "17h00", "participant"),
        ("anna", &*"x".repeat(256), "key"),
    ] {
        let new = NewWindow::new(participant, key, cutoff);
        match windows.open(&scene.executor, new).await.unwrap_err() {
            ExecuteError::Domain(WindowError::Name { what, .. }) => assert_eq!(what, wrong),
            other => panic!("{other:?}"),
        }
    }
    let longest = NewWindow::new("ä".repeat(127), "é".repeat(127), cutoff);
    windows.open(&scene.executor, longest).await.unwrap();
}
