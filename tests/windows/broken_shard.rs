//! A shard whose windows cannot be closed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ekbatan::config::{EkbatanConfig, ShardMemberConfig};
use ekbatan::domain::ShardIdentifier;
use ekbatan::jobs::windows::Windows;
use ekbatan::jobs::{Job, JobNode, RunContext, Schedule};
use ekbatan::prelude::*;
use support::{Dialect, ScratchDatabase, until};

use crate::entries::{Entries, migrations};
use crate::scene::executor;

on_every_database! { a_shard_that_fails_holds_up_no_other_job }

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
    let home = ScratchDatabase::create(dialect).await;
    let broken = ScratchDatabase::create(Dialect::Sqlite).await;
    let shard = ShardIdentifier::new(0, 1).unwrap();
    let config = EkbatanConfig::from(home.config());
    let config = config.shard(shard, ShardMemberConfig::new(0, broken.config()));
    let databases = Databases::connect(&config).await.unwrap();
    databases.migrate(&migrations()).await.unwrap();
    let executor = executor(&databases).await;
    broken.execute(&format!("DROP TABLE {}", broken.eventlog("windows"))).await;
    let every = || Schedule::every(Duration::from_millis(50)).unwrap();
    let node = JobNode::builder(&executor).poll(Duration::from_millis(20)).concurrency(2);
    let swept = Arc::new(AtomicUsize::new(0));
    let node = Windows::new(Entries::default()).add_job(node, every());
    let node = node.job(every(), Sweep(swept.clone())).start().await.unwrap();
    until("the other job goes on", async || swept.load(Ordering::SeqCst) >= 10).await;
    node.drain(Duration::ZERO).await;
}
