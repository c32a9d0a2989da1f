//! Shards on which windows cannot be opened or closed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ekbatan::domain::ShardIdentifier;
use ekbatan::jobs::windows::{NewWindow, Window, WindowState, Windows};
use ekbatan::jobs::{Job, JobNode, JobOperations, RunContext, Schedule};
use support::{Dialect, ScratchDatabase, until};

use crate::entries::{BatchEntries, CHUNK, Entries, SERIES};
use crate::scene::{NAME, Scene, never, nodes};

on_every_database! { a_shard_that_fails_holds_up_no_other_job }

mod policy {
    use super::*;

    on_every_database! {
        on_sqlite_only:
        windows_of_the_other_shards_are_closed_while_one_fails,
        windows_of_the_other_shards_are_opened_while_one_hangs,
    }
}

const SECOND: ShardIdentifier = shard(1);
const THIRD: ShardIdentifier = shard(2);

const fn shard(member: u32) -> ShardIdentifier {
    match ShardIdentifier::new(0, member) {
        Ok(shard) => shard,
        Err(_) => panic!("no such shard"),
    }
}

/// Another job of the same node.
struct Sweep(Arc<AtomicUsize>);

impl Job for Sweep {
    const NAME: &'static str = "sweep";
    type Error = std::convert::Infallible;

    async fn run(&self, _: &mut RunContext<'_>) -> Result<(), Self::Error> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

async fn a_shard_that_fails_holds_up_no_other_job(dialect: Dialect) {
    let broken = ScratchDatabase::create(Dialect::Sqlite).await;
    let scene = Scene::with_shards(dialect, [(SECOND, broken.config())]).await;
    broken.execute(&format!("DROP TABLE {}", broken.eventlog("windows"))).await;
    let every = || Schedule::every(Duration::from_millis(50)).unwrap();
    let node = JobNode::builder(&scene.executor).poll(Duration::from_millis(20)).concurrency(2);
    let swept = Arc::new(AtomicUsize::new(0));
    let node = Windows::new(Entries::default()).add_job(node, every());
    let node = node.job(every(), Sweep(swept.clone())).start().await.unwrap();
    until("the other job goes on", async || swept.load(Ordering::SeqCst) >= 10).await;
    node.drain(Duration::ZERO).await;
}

/// Neither the rows of a window nor anything of its chunks may be on another shard.
async fn windows_of_the_other_shards_are_closed_while_one_fails(dialect: Dialect) {
    let second = ScratchDatabase::create(Dialect::Sqlite).await;
    let broken = ScratchDatabase::create(Dialect::Sqlite).await;
    let shards = [(SECOND, second.config()), (THIRD, broken.config())];
    let scene = Scene::with_shards(dialect, shards).await;
    let mut windows = Vec::new();
    for n in 0..3 {
        for shard in [ShardIdentifier::DEFAULT, SECOND] {
            let window =
                scene.open_on(shard, &format!("bank {n}"), Duration::from_secs(3_600)).await;
            scene.add(window, CHUNK + 1).await;
            scene.cut_off(window).await;
            windows.push(window);
        }
    }
    let of_framework = ["windows", "idempotency_keys"].map(|table| broken.eventlog(table));
    for table in of_framework.iter().map(String::as_str).chain(["entries"]) {
        broken.execute(&format!("DROP TABLE {table}")).await;
    }
    let databases = Some(scene.databases.clone());
    let batch = BatchEntries { databases, ..BatchEntries::default() };
    let series = Entries { batch, ..Entries::default() };
    let nodes = nodes(&scene.executor, series).await;
    for window in windows {
        scene.until_state(window, WindowState::Closed).await;
        let window = scene.window(window).await;
        assert_eq!((window.chunks, window.batched), (2, CHUNK as i64 + 1));
    }
    nodes.jobs.drain(Duration::ZERO).await;
    nodes.node.drain(Duration::ZERO).await;
}

/// More windows of the shard that hangs than are opened at a time, and they come first.
async fn windows_of_the_other_shards_are_opened_while_one_hangs(dialect: Dialect) {
    let hanging = ScratchDatabase::create(Dialect::Sqlite).await;
    let config = hanging.config().connection_timeout(Duration::from_secs(600));
    let scene = Scene::with_shards(dialect, [(SECOND, config)]).await;
    let mut other = hanging.connect().await;
    // Commits wait for the lock of the file.
    other.execute("BEGIN IMMEDIATE").await;
    let cutoff = scene.now().await + chrono::TimeDelta::hours(1);
    let window = |n, shard| NewWindow::new(format!("bank {n}"), "17h00", cutoff).on(shard);
    let mut upcoming: Vec<_> = (0..20).map(|n| window(n, SECOND)).collect();
    upcoming.push(window(20, ShardIdentifier::DEFAULT));
    let windows = Windows::new(Entries { upcoming, ..Entries::default() });
    let node = JobNode::builder(&scene.executor).poll(Duration::from_millis(20));
    let jobs = windows.add_job(node, never()).start().await.unwrap();
    JobOperations::new(&scene.databases).run_now(NAME, "alice", "a test").await.unwrap();
    let opened = scene.databases.repository::<Window>();
    let last = Window::id_of(SERIES, "bank 20", "17h00");
    until("the last one is open", async || opened.exists(last).await.unwrap()).await;
    other.execute("ROLLBACK").await;
    until("all are open", async || opened.count().await.unwrap() == 21).await;
    jobs.drain(Duration::MAX).await;
}
