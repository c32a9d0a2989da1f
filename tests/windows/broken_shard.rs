//! Shards on which windows cannot be opened or closed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ekbatan::domain::ShardIdentifier;
use ekbatan::jobs::windows::{WindowState, Windows};
use ekbatan::jobs::{Job, JobNode, RunContext, Schedule};
use support::{Dialect, ScratchDatabase, until};

use crate::entries::{BatchEntries, CHUNK, Entries};
use crate::scene::{Scene, nodes};

on_every_database! { a_shard_that_fails_holds_up_no_other_job }

mod policy {
    use super::*;

    on_every_database! {
        on_sqlite_only:
        windows_of_the_other_shards_are_closed_while_one_fails,
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
