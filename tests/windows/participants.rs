//! Each participant is handled by itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ekbatan::jobs::windows::{ChunkOutcome, WindowState};
use futures_util::FutureExt;
use support::{Dialect, until};
use tokio::sync::Notify;

use crate::entries::{BatchEntries, CHUNK, Entries};
use crate::scene::{NAME, Scene, nodes};

on_every_database! {
    one_that_always_fails_holds_up_no_other,
    one_that_hangs_holds_up_no_other,
    a_batch_that_never_ends_is_an_error_and_goes_on_once_it_is_mended,
}

mod policy {
    use super::*;

    on_every_database! { on_sqlite_only: a_last_chunk_without_rows_stages_nothing }
}

/// One whose first chunk is batched, and whose second one fails.
async fn one_that_always_fails_holds_up_no_other(dialect: Dialect) {
    let scene = Scene::start(dialect).await;
    let bad = scene.open("bad", Duration::ZERO).await;
    let mut others = Vec::new();
    for n in 0..20 {
        others.push(scene.open(&format!("bank {n}"), Duration::ZERO).await);
    }
    for window in others.iter().chain([&bad]) {
        scene.add(*window, CHUNK + 1).await;
    }
    let is_mended = Arc::new(AtomicBool::new(false));
    let batch = BatchEntries {
        before: {
            let is_mended = is_mended.clone();
            Arc::new(move |window, number| {
                let fails = window.participant == "bad" && number == 1;
                let fails = fails && !is_mended.load(Ordering::SeqCst);
                async move { if fails { Err("no connection to bad".to_owned()) } else { Ok(None) } }
                    .boxed()
            })
        },
        ..BatchEntries::default()
    };
    let nodes = nodes(&scene.executor, Entries { batch, ..Entries::default() }).await;
    for window in &others {
        scene.until_state(*window, WindowState::Closed).await;
    }
    let operations = scene.operations();
    until("operators see why", async || {
        let failing = operations.failing(10).await.unwrap();
        failing.iter().any(|of| {
            of.last_error.as_ref().is_some_and(|error| error.contains("no connection to bad"))
        })
    })
    .await;
    let row = scene.window(bad).await;
    assert_eq!((row.state, row.chunks), (WindowState::Closing, 1));
    is_mended.store(true, Ordering::SeqCst);
    scene.until_state(bad, WindowState::Closed).await;
    nodes.drain().await;
    for window in others.iter().chain([&bad]) {
        scene.assert_whole(*window, CHUNK + 1, 0).await;
    }
}

async fn one_that_hangs_holds_up_no_other(dialect: Dialect) {
    let scene = Scene::start(dialect).await;
    let hanging = scene.open("hangs", Duration::ZERO).await;
    scene.add(hanging, 1).await;
    let hangs = Arc::new(Notify::new());
    let batch = BatchEntries {
        before: {
            let hangs = hangs.clone();
            Arc::new(move |window, _| {
                let (hangs, is_it) = (hangs.clone(), window.participant == "hangs");
                async move {
                    if is_it {
                        hangs.notify_one();
                        std::future::pending::<()>().await;
                    }
                    Ok(None)
                }
                .boxed()
            })
        },
        ..BatchEntries::default()
    };
    let nodes = nodes(&scene.executor, Entries { batch, ..Entries::default() }).await;
    hangs.notified().await;
    // Its run goes on, and those of windows that come later, too.
    for n in 0..3 {
        let window = scene.open(&format!("bank {n}"), Duration::ZERO).await;
        scene.until_state(window, WindowState::Closed).await;
    }
    assert_eq!(scene.window(hanging).await.state, WindowState::Closing);
    nodes.jobs.drain(Duration::MAX).await;
    nodes.node.drain(Duration::ZERO).await;
}

async fn a_batch_that_never_ends_is_an_error_and_goes_on_once_it_is_mended(dialect: Dialect) {
    let scene = Scene::start(dialect).await;
    let window = scene.open("anna", Duration::ZERO).await;
    scene.add(window, 3).await;
    let batch = BatchEntries {
        before: Arc::new(|_, _| async { Ok(Some(ChunkOutcome::more(0))) }.boxed()),
        ..BatchEntries::default()
    };
    let nodes = nodes(&scene.executor, Entries { batch, ..Entries::default() }).await;
    let operations = scene.operations();
    until("operators see why", async || {
        let failing = operations.failing(10).await.unwrap();
        failing.iter().any(|of| {
            of.last_error.as_ref().is_some_and(|error| error.contains("ChunkOutcome::last"))
        })
    })
    .await;
    assert_eq!(operations.pending(NAME).await.unwrap(), 1);
    assert_eq!(scene.window(window).await.chunks, 0);
    nodes.drain().await;
    let mended = crate::scene::nodes(&scene.executor, Entries::default()).await;
    scene.until_state(window, WindowState::Closed).await;
    mended.drain().await;
    scene.assert_whole(window, 3, 0).await;
}

/// Nothing counts such a chunk, so what it stages would be committed by each run.
async fn a_last_chunk_without_rows_stages_nothing(dialect: Dialect) {
    let scene = Scene::start(dialect).await;
    let window = scene.open("anna", Duration::ZERO).await;
    let batch = BatchEntries { has_empty_batches: true, ..BatchEntries::default() };
    let nodes = nodes(&scene.executor, Entries { batch, ..Entries::default() }).await;
    let operations = scene.operations();
    until("operators see why", async || {
        let failing = operations.failing(10).await.unwrap();
        failing.iter().any(|of| {
            of.last_error
                .as_ref()
                .is_some_and(|error| error.contains("a handler of `WindowClosed`"))
        })
    })
    .await;
    assert_eq!(scene.window(window).await.state, WindowState::Closing);
    nodes.drain().await;
}
