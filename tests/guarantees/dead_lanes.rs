//! Lanes that die with their runtime while their commits are on the way.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use ekbatan::action::Outcome;
use ekbatan::prelude::*;
use support::{Dialect, PlainConnection, ScratchDatabase};
use tokio::runtime::Builder;
use tokio::sync::oneshot;

use crate::bounded;
use crate::lanes::{LOSING_ROUNDS, lose_commit};
use crate::ledger::{Ledger, proxied};
use crate::other_sessions::{Observer, lock_wallet};
use crate::runtimes::{connected_elsewhere, end};

on_every_database! {
    only postgres and mysql and mariadb:
    a_commit_in_flight_when_its_lane_dies_is_settled,
    an_outcome_is_asked_on_after_the_runtime_has_ended,
}

support::test_matrix! {
    #[tokio::test]
    |dialect| dialect;
    [on_postgres_only = support::Dialect::Postgres]
    [a_panic_ends_a_runtime_that_has_commits_on_the_way]
}

/// The lane waits for a locked row when its runtime ends. The lane that replaces it ends the old
/// session before it sends the commit again.
async fn a_commit_in_flight_when_its_lane_dies_is_settled(dialect: Dialect) {
    let scratch = ScratchDatabase::create(dialect).await;
    let (runtime, ledger, ids) = connected_elsewhere(scratch.config(), 1).await;
    let mut observer = Observer::connect(&scratch.url).await;
    let mut holder = PlainConnection::connect(&scratch.url).await;
    holder.execute("BEGIN").await;
    lock_wallet(&mut holder, ids[0]).await;
    let ending = async {
        let first = observer.wait_for_blocked().await;
        end(runtime).await;
        observer.wait_for_successor_of(&first).await;
        holder.execute("COMMIT").await;
    };
    let both = async { tokio::join!(ledger.deposit(ids[0]), ending) };
    let (deposited, ()) = bounded("a commit whose lane died", both).await;
    assert_eq!(deposited.unwrap().balance, Decimal::ONE);
    ledger.assert_sound(1).await;
}

/// The runtime ends after the callers heard "unknown", while the lane still asks what became of
/// their commit.
async fn an_outcome_is_asked_on_after_the_runtime_has_ended(dialect: Dialect) {
    let scratch = ScratchDatabase::create(dialect).await;
    let (through, proxy) = proxied(&scratch.url).await;
    let config = ScratchDatabase::config_of(&through)
        .commit_timeout(Duration::from_secs(1))
        .settle_timeout(Duration::from_millis(300));
    let ids = Ledger::open(&scratch.url).await.open_wallets(LOSING_ROUNDS).await;
    let (runtime, ledger, _) = connected_elsewhere(config, 0).await;
    let (action, gate) = lose_commit(&ledger, &scratch.url, &proxy, &ids).await;
    end(runtime).await;
    let early = tokio::time::timeout(Duration::from_secs(1), ledger.executor.outcome(action)).await;
    assert!(early.is_err(), "the commit may still happen: {early:?}");
    proxy.restore();
    let asking = ledger.executor.outcome(action);
    let outcome = bounded("the outcome", asking).await.unwrap();
    gate.open().await;
    ledger.assert_sound(usize::from(outcome == Outcome::Committed)).await;
}

/// The lanes live on the thread that panics, as in most tests. Each lane that is started in place of
/// another one is dropped at once.
async fn a_panic_ends_a_runtime_that_has_commits_on_the_way(dialect: Dialect) {
    let scratch = ScratchDatabase::create(dialect).await;
    let (config, url) = (scratch.config(), scratch.url.clone());
    let panicking = move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let ledger = Arc::new(Ledger::with_config(config).await);
            let id = ledger.open_wallets(1).await[0];
            let mut observer = Observer::connect(&url).await;
            let mut holder = PlainConnection::connect(&url).await;
            holder.execute("BEGIN").await;
            lock_wallet(&mut holder, id).await;
            let calling = ledger.clone();
            tokio::spawn(async move { calling.deposit(id).await });
            observer.wait_for_blocked().await;
            panic!("on purpose");
        })
    };
    let (report, reported) = oneshot::channel();
    // On a thread of its own: a runtime would wait for it.
    std::thread::spawn(move || report.send(catch_unwind(AssertUnwindSafe(panicking))));
    let panic = bounded("a panic", reported).await.unwrap().unwrap_err();
    assert_eq!(panic.downcast_ref(), Some(&"on purpose"));
}
