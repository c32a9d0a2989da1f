//! A process that stands still while it closes a window, and goes on once another one has closed it. The
//! test binary starts itself as that process.

use std::sync::Arc;
use std::time::Duration;

use ekbatan::jobs::windows::WindowState;
use ekbatan::prelude::*;
use futures_util::FutureExt;
use support::worker_process::{WorkerProcess, order, report, requests};
use support::{Dialect, ScratchDatabase};
use tokio::sync::Mutex;

use crate::entries::{BatchEntries, CHUNK, Entries};
use crate::scene::{Scene, executor, nodes};

on_every_database! {
    a_process_that_goes_on_too_late_batches_nothing,
}

const ORDER: &str = "EKBATAN_TEST_FROZEN_CLOSER";

async fn a_process_that_goes_on_too_late_batches_nothing(dialect: Dialect) {
    if let Some(url) = order::<String>(ORDER) {
        return stand_still(&url).await;
    }
    let case = match dialect {
        Dialect::Sqlite => "sqlite",
        Dialect::Postgres => "postgres",
        Dialect::MySql => "mysql",
        Dialect::MariaDb => "mariadb",
    };
    let test = format!("frozen::{case}::a_process_that_goes_on_too_late_batches_nothing");
    let scene = Scene::start(dialect).await;
    let window = scene.open("anna", Duration::from_secs(3_600)).await;
    scene.add(window, 2 * CHUNK + 1).await;
    scene.cut_off(window).await;
    let mut process = WorkerProcess::<String>::start(&test, ORDER, &scene.scratch.url, Some);
    assert_eq!(process.receive().await, "chunk 1");
    process.freeze_between_writes(&scene.scratch.url).await;
    let nodes = nodes(&scene.executor, Entries::default()).await;
    scene.until_state(window, WindowState::Closed).await;
    process.thaw();
    process.send(&());
    let mut last = process.receive().await;
    // It may have lost its lease before, and begun the chunk again: then it waits once more.
    for _ in 0..10 {
        if last != "chunk 1" {
            break;
        }
        process.send(&());
        last = process.receive().await;
    }
    assert_eq!(last, "asked again");
    nodes.drain().await;
    scene.assert_whole(window, 2 * CHUNK + 1, 0).await;
}

/// Stands still in its second chunk until it is told to go on.
async fn stand_still(url: &str) {
    let databases = Databases::connect(&ScratchDatabase::config_of(url).into()).await.unwrap();
    let executor = executor(&databases).await;
    let requests = Arc::new(Mutex::new(requests::<()>()));
    let before = move |_: &_, number: i64| {
        let requests = requests.clone();
        async move {
            if number == 1 {
                report(&"chunk 1");
                requests.lock().await.recv().await;
            }
            Ok(None)
        }
        .boxed()
    };
    let batch = BatchEntries { before: Arc::new(before), ..BatchEntries::default() };
    let nodes = nodes(&executor, Entries { batch, ..Entries::default() }).await;
    // What it has begun ends, in whatever way.
    support::until("the window is closed", async || {
        let windows = databases.repository::<ekbatan::jobs::windows::Window>();
        let closed = ekbatan::jobs::windows::Window::STATE.eq(WindowState::Closed);
        windows.count_where(closed).await.unwrap() == 1
    })
    .await;
    nodes.drain().await;
    report(&"asked again");
    std::future::pending::<()>().await;
}
