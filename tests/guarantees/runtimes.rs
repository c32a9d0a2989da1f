//! Databases that outlive the runtime in which they were connected: a setup that has a runtime of
//! its own, or tests that share one database between their runtimes.

use std::sync::Arc;

use ekbatan::config::DataSourceConfig;
use ekbatan::prelude::*;
use support::wallet::Wallet;
use support::{Dialect, ScratchDatabase};
use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinSet, spawn_blocking};

use crate::bounded;
use crate::ledger::Ledger;

on_every_database! {
    commits_go_on_after_the_runtime_of_connect_has_ended,
    calls_on_their_way_when_the_runtime_of_connect_ends_commit_once,
    what_is_queued_when_the_runtime_of_connect_ends_is_committed_by_close,
}

/// A ledger whose lanes and pools live in a runtime of their own.
pub async fn connected_elsewhere(
    config: DataSourceConfig,
    wallets: usize,
) -> (Runtime, Ledger, Vec<Id<Wallet>>) {
    let connecting = move || {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (ledger, ids) = runtime.block_on(async {
            let ledger = Ledger::with_config(config).await;
            let ids = ledger.open_wallets(wallets).await;
            (ledger, ids)
        });
        (runtime, ledger, ids)
    };
    // A runtime must be started and ended on a thread that may block.
    spawn_blocking(connecting).await.unwrap()
}

pub async fn end(runtime: Runtime) {
    spawn_blocking(move || drop(runtime)).await.unwrap();
}

async fn commits_go_on_after_the_runtime_of_connect_has_ended(dialect: Dialect) {
    let scratch = ScratchDatabase::create(dialect).await;
    let (runtime, ledger, ids) = connected_elsewhere(scratch.config(), 2).await;
    end(runtime).await;
    for _ in 0..3 {
        bounded("a commit without its runtime", ledger.deposit(ids[0])).await.unwrap();
    }
    bounded("reads without their runtime", ledger.assert_sound(3)).await;
    bounded("close", ledger.databases.close()).await;
}

/// In each round some calls wait, some are in flight, and some read while the runtime ends.
async fn calls_on_their_way_when_the_runtime_of_connect_ends_commit_once(dialect: Dialect) {
    const ROUNDS: usize = 5;
    const CALLS: usize = 40;
    for _ in 0..ROUNDS {
        let scratch = ScratchDatabase::create(dialect).await;
        let (runtime, ledger, ids) = connected_elsewhere(scratch.config(), 8).await;
        let ledger = Arc::new(ledger);
        let mut calls = JoinSet::new();
        for n in 0..CALLS {
            let (ledger, id) = (ledger.clone(), ids[n % ids.len()]);
            calls.spawn(async move { ledger.deposit(id).await });
        }
        let first = bounded("the first call", calls.join_next()).await.unwrap();
        first.unwrap().unwrap();
        end(runtime).await;
        for answer in bounded("the calls after the end", calls.join_all()).await {
            answer.unwrap();
        }
        ledger.assert_sound(CALLS).await;
    }
}

async fn what_is_queued_when_the_runtime_of_connect_ends_is_committed_by_close(dialect: Dialect) {
    let scratch = ScratchDatabase::create(dialect).await;
    let (runtime, ledger, ids) = connected_elsewhere(scratch.config(), 4).await;
    let ledger = Arc::new(ledger);
    end(runtime).await;
    let mut calls = JoinSet::new();
    for id in ids {
        let ledger = ledger.clone();
        calls.spawn(async move { ledger.deposit(id).await });
    }
    let first = bounded("the first call", calls.join_next()).await.unwrap();
    first.unwrap().unwrap();
    bounded("close", ledger.databases.close()).await;
    let answers = bounded("calls at a close", calls.join_all()).await;
    let committed = 1 + answers.iter().filter(|answer| answer.is_ok()).count();
    Ledger::open(&scratch.url).await.assert_sound(committed).await;
}
