//! The steps of a window, one after another.

use std::time::Duration;

use ekbatan::domain::New;
use ekbatan::jobs::JobOperations;
use ekbatan::jobs::windows::WindowState;
use ekbatan::prelude::*;
use support::{Dialect, until};

use crate::entries::{CHUNK, Entries, Entry, EntryState, RefuseEntries, entry_of};
use crate::scene::{NAME, Scene, handlers, jobs, nodes};

on_every_database! {
    what_has_come_in_is_batched_in_chunks_and_the_rest_refused,
    a_window_without_rows_is_closed_without_a_chunk,
    a_window_does_not_close_before_its_cutoff,
    a_closed_window_stays_as_it_is_if_its_event_comes_again,
    what_is_found_late_is_refused,
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

async fn what_has_come_in_is_batched_in_chunks_and_the_rest_refused(dialect: Dialect) {
    let scene = Scene::start(dialect).await;
    let window = scene.open("anna", DAY).await;
    assert_eq!(scene.add(window, 2 * CHUNK + 5).await, 2 * CHUNK + 5);
    scene.cut_off(window).await;
    // Without handlers it begins to close, and that is all.
    let jobs = jobs(&scene.executor, Entries::default()).await;
    scene.until_state(window, WindowState::Closing).await;
    assert_eq!(scene.add(window, 3).await, 0);
    assert_eq!(scene.entries(window, EntryState::Pending).await, 2 * CHUNK + 5);
    jobs.drain(Duration::MAX).await;
    let nodes = nodes(&scene.executor, Entries::default()).await;
    scene.until_state(window, WindowState::Closed).await;
    assert_eq!(scene.add(window, 1).await, 0);
    nodes.drain().await;
    scene.assert_whole(window, 2 * CHUNK + 5, 4).await;
    assert_eq!(scene.batches(window).await.len(), 3);
    assert_eq!(scene.events(window).await, ["WindowOpened", "WindowClosing", "WindowClosed"]);
}

async fn a_window_without_rows_is_closed_without_a_chunk(dialect: Dialect) {
    let scene = Scene::start(dialect).await;
    let window = scene.open("anna", Duration::ZERO).await;
    let nodes = nodes(&scene.executor, Entries::default()).await;
    scene.until_state(window, WindowState::Closed).await;
    nodes.drain().await;
    scene.assert_whole(window, 0, 0).await;
    assert_eq!(scene.events(window).await, ["WindowOpened", "WindowClosing", "WindowClosed"]);
}

async fn a_window_does_not_close_before_its_cutoff(dialect: Dialect) {
    let scene = Scene::start(dialect).await;
    let (early, due) = (scene.open("anna", DAY).await, scene.open("bartek", Duration::ZERO).await);
    let nodes = nodes(&scene.executor, Entries::default()).await;
    scene.until_state(due, WindowState::Closed).await;
    // Nor if somebody asks for a run.
    let jobs = JobOperations::new(&scene.databases);
    let run = jobs.run_now(NAME, "alice", "a test").await.unwrap();
    until("the run has ended", async || {
        jobs.run(run).await.unwrap().unwrap().state == ekbatan::jobs::RunState::Done
    })
    .await;
    nodes.drain().await;
    assert_eq!(scene.window(early).await.state, WindowState::Open);
    assert_eq!(scene.add(early, 1).await, 1);
}

async fn a_closed_window_stays_as_it_is_if_its_event_comes_again(dialect: Dialect) {
    let scene = Scene::start(dialect).await;
    let window = scene.open("anna", DAY).await;
    scene.add(window, 3).await;
    scene.cut_off(window).await;
    let nodes = nodes(&scene.executor, Entries::default()).await;
    scene.until_state(window, WindowState::Closed).await;
    let operations = scene.operations();
    until("the event is handled", async || operations.pending(NAME).await.unwrap() == 0).await;
    let filter = ekbatan::events::DeliveryFilter::stored_events(NAME);
    let counted = operations.count(&filter).await.unwrap();
    assert_eq!(counted, 1, "that of the closing");
    operations.replay_all(&filter, counted, "alice", "a test").await.unwrap();
    until("it is handled again", async || operations.pending(NAME).await.unwrap() == 0).await;
    nodes.drain().await;
    scene.assert_whole(window, 3, 0).await;
    assert_eq!(scene.events(window).await.len(), 3);
}

/// Somebody adds a row without asking the window.
async fn what_is_found_late_is_refused(dialect: Dialect) {
    let scene = Scene::start(dialect).await;
    let window = scene.open("anna", Duration::ZERO).await;
    let late_check = Some(Duration::from_millis(1));
    let series = Entries { late_check, ..Entries::default() };
    // The check waits until the row is there.
    handlers(&scene.executor, series.clone()).await.drain(Duration::MAX).await;
    let operations = scene.operations();
    operations.pause(RefuseEntries::NAME, "alice", "a test").await.unwrap();
    let nodes = nodes(&scene.executor, series).await;
    scene.until_state(window, WindowState::Closed).await;
    let (id, state) = (entry_of(window), EntryState::Pending);
    let entry = Entry { id, window, amount: 1, batch: None, state };
    scene.databases.repository().add(New::new(entry, ())).await.unwrap();
    operations.resume(RefuseEntries::NAME, "alice", "the row is there").await.unwrap();
    until("it is refused", async || scene.entries(window, EntryState::Refused).await == 1).await;
    nodes.drain().await;
    scene.assert_whole(window, 0, 1).await;
}
