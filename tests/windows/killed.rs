//! A process that is killed while it closes a window. The test binary starts itself as that process.

use std::sync::Arc;
use std::time::Duration;

use ekbatan::jobs::windows::WindowState;
use ekbatan::prelude::*;
use futures_util::FutureExt;
use serde::{Deserialize, Serialize};
use support::worker_process::{WorkerProcess, order, report};
use support::{Dialect, ScratchDatabase, soak};

use crate::entries::{BatchEntries, CHUNK, Entries};
use crate::scene::{Scene, executor, handlers, jobs, nodes};

on_every_database! {
    a_window_whose_process_is_killed_at_any_step_is_closed_by_another,
    a_window_whose_processes_are_killed_at_any_time_is_closed_once,
}

/// The variables that hold the orders of the processes that are killed.
const STEPS: &str = "EKBATAN_TEST_KILLED_AT_A_STEP";
const TIMES: &str = "EKBATAN_TEST_KILLED_AT_A_TIME";

/// Where a process stands still until it is killed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
enum Step {
    /// The window closes, and nobody has passed the barrier.
    Begun,
    /// A chunk is to be batched; those before it are committed.
    Chunk(i64),
}

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    url: String,
    step: Step,
}

fn case(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Sqlite => "sqlite",
        Dialect::Postgres => "postgres",
        Dialect::MySql => "mysql",
        Dialect::MariaDb => "mariadb",
    }
}

async fn a_window_whose_process_is_killed_at_any_step_is_closed_by_another(dialect: Dialect) {
    if let Some(Order { url, step }) = order(STEPS) {
        return stand_still_at(&url, step).await;
    }
    let test = format!(
        "killed::{}::a_window_whose_process_is_killed_at_any_step_is_closed_by_another",
        case(dialect)
    );
    let scene = Scene::start(dialect).await;
    // The fourth chunk has no rows.
    let steps = [Step::Begun, Step::Chunk(0), Step::Chunk(1), Step::Chunk(3)];
    for (n, step) in steps.into_iter().enumerate() {
        let window = scene.open(&format!("bank {n}"), Duration::from_secs(3_600)).await;
        scene.add(window, 3 * CHUNK).await;
        scene.cut_off(window).await;
        let order = Order { url: scene.scratch.url.clone(), step };
        let mut process = WorkerProcess::<()>::start(&test, STEPS, &order, Some);
        process.receive().await;
        process.kill();
        let row = scene.window(window).await;
        let chunks = if let Step::Chunk(chunk) = step { chunk } else { 0 };
        assert_eq!((row.state, row.chunks), (WindowState::Closing, chunks));
        assert_eq!(scene.add(window, 1).await, 0);
        let nodes = nodes(&scene.executor, Entries::default()).await;
        scene.until_state(window, WindowState::Closed).await;
        nodes.drain().await;
        scene.assert_whole(window, 3 * CHUNK, 1).await;
    }
}

/// Entries whose batches report and stand still at a step. With `CHUNK` rows in each chunk but the last,
/// a chunk without rows comes last.
fn standing_still(at: Step) -> Entries {
    let before = move |_: &_, number: i64| {
        async move {
            if Step::Chunk(number) == at {
                report(&());
                std::future::pending::<()>().await;
            }
            Ok(None)
        }
        .boxed()
    };
    let before = Arc::new(before);
    let batch = BatchEntries { before, never_knows_the_last: true, ..BatchEntries::default() };
    Entries { batch, ..Entries::default() }
}

/// The process that is killed.
async fn stand_still_at(url: &str, step: Step) {
    let databases = Databases::connect(&ScratchDatabase::config_of(url).into()).await.unwrap();
    let executor = executor(&databases).await;
    let series = standing_still(step);
    let _jobs = jobs(&executor, series.clone()).await;
    let _node = match step {
        Step::Chunk(_) => Some(handlers(&executor, series).await),
        Step::Begun => None,
    };
    if step == Step::Begun {
        let windows = databases.repository::<ekbatan::jobs::windows::Window>();
        support::until("a window closes", async || {
            let closing = ekbatan::jobs::windows::Window::STATE.eq(WindowState::Closing);
            windows.count_where(closing).await.unwrap() > 0
        })
        .await;
        report(&());
    }
    std::future::pending::<()>().await;
}

async fn a_window_whose_processes_are_killed_at_any_time_is_closed_once(dialect: Dialect) {
    if let Some(url) = order::<String>(TIMES) {
        return run_until_killed(&url).await;
    }
    let test = format!(
        "killed::{}::a_window_whose_processes_are_killed_at_any_time_is_closed_once",
        case(dialect)
    );
    let scene = Scene::start(dialect).await;
    let mut random = support::seed::random();
    for round in 0..soak::rounds(1, 50) {
        let mut windows = Vec::new();
        for n in 0..4 {
            let window = scene.open(&format!("bank {round} {n}"), Duration::from_secs(3_600)).await;
            scene.add(window, 3 * CHUNK + 1).await;
            scene.cut_off(window).await;
            windows.push(window);
        }
        for _ in 0..3 {
            let mut process = WorkerProcess::<()>::start(&test, TIMES, &scene.scratch.url, Some);
            process.receive().await;
            tokio::time::sleep(Duration::from_millis(random.u64(0..400))).await;
            process.kill();
        }
        let nodes = nodes(&scene.executor, Entries::default()).await;
        for window in &windows {
            scene.until_state(*window, WindowState::Closed).await;
        }
        nodes.drain().await;
        for window in windows {
            scene.assert_whole(window, 3 * CHUNK + 1, 0).await;
        }
    }
}

/// The process that is killed.
async fn run_until_killed(url: &str) {
    let databases = Databases::connect(&ScratchDatabase::config_of(url).into()).await.unwrap();
    let executor = executor(&databases).await;
    let _nodes = nodes(&executor, Entries::default()).await;
    report(&());
    std::future::pending::<()>().await;
}
