//! A commit under a lease succeeds only while the lease is held.

use std::sync::Arc;
use std::time::Duration;

use ekbatan::action::{AsFence, Fence};
use ekbatan::db::DbErrorKind;
use ekbatan::prelude::*;
use support::wallet::{Deposit, DepositMoney, Wallet, WalletError};
use support::{Dialect, InterruptedDeposit, PlainConnection, ScratchDatabase};
use tokio::sync::Barrier;
use tokio::time::Instant;

use crate::ledger::{Ledger, proxied};

on_every_database!(
    a_commit_under_a_held_lease_succeeds,
    a_later_lease_fences_off_an_earlier_one,
    a_later_lease_that_starts_during_perform_fences_off_the_commit,
    a_lease_that_expires_during_perform_cannot_commit,
    a_lease_that_ended_by_the_databases_clock_cannot_commit,
    waiting_to_execute_does_not_prolong_a_lease,
    a_commit_under_several_leases_needs_all_of_them,
    a_fold_drops_the_commits_that_lost_one_of_several_leases,
    a_key_that_not_every_database_stores_is_refused_by_name,
);

on_every_database! { on_sqlite_only: a_lease_behind_a_pointer_fences_by_all_its_fences }

fn lease(token: i64, lasts: Duration) -> Fence {
    Fence { key: "wallet:1".into(), token, remaining: lasts }
}

const LONG: Duration = Duration::from_secs(600);

fn deposit(wallet: Id<Wallet>) -> Deposit {
    Deposit { wallet, amount: Decimal::ONE }
}

fn assert_lost<T: std::fmt::Debug>(answer: Result<T, ExecuteError<WalletError>>) {
    match answer {
        Err(ExecuteError::FenceLost { key, .. }) => assert_eq!(key, "wallet:1"),
        other => panic!("{other:?}"),
    }
}

async fn a_commit_under_a_held_lease_succeeds(dialect: Dialect) {
    let ledger = Ledger::new(dialect).await;
    let id = ledger.open_wallets(1).await[0];
    for token in [1, 1, 2, 7] {
        ledger
            .executor
            .execute(&DepositMoney, deposit(id))
            .fenced_by(&lease(token, LONG))
            .await
            .unwrap();
    }
    ledger.assert_sound(4).await;
}

/// Runs a future in a task of its own: calls of the task that runs `perform` are refused.
async fn beside(work: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(work).await.unwrap();
}

async fn a_later_lease_fences_off_an_earlier_one(dialect: Dialect) {
    let ledger = Ledger::new(dialect).await;
    let id = ledger.open_wallets(1).await[0];
    ledger.executor.execute(&DepositMoney, deposit(id)).fenced_by(&lease(2, LONG)).await.unwrap();
    assert_lost(
        ledger.executor.execute(&DepositMoney, deposit(id)).fenced_by(&lease(1, LONG)).await,
    );
    ledger.assert_sound(1).await;
}

async fn a_later_lease_that_starts_during_perform_fences_off_the_commit(dialect: Dialect) {
    let ledger = Ledger::new(dialect).await;
    let ids = ledger.open_wallets(2).await;
    // The later holder writes another row, so no row version shows the conflict.
    let (executor, other) = (ledger.executor.clone(), ids[1]);
    let paused = InterruptedDeposit(move |_| {
        let executor = executor.clone();
        beside(async move {
            executor
                .execute(&DepositMoney, deposit(other))
                .fenced_by(&lease(2, LONG))
                .await
                .unwrap();
        })
    });
    assert_lost(ledger.executor.execute(&paused, deposit(ids[0])).fenced_by(&lease(1, LONG)).await);
    ledger.assert_sound(1).await;
}

async fn a_lease_that_expires_during_perform_cannot_commit(dialect: Dialect) {
    let ledger = Ledger::new(dialect).await;
    let id = ledger.open_wallets(1).await[0];
    let lasts = Duration::from_millis(50);
    let paused = InterruptedDeposit(move |_| tokio::time::sleep(lasts * 2));
    assert_lost(ledger.executor.execute(&paused, deposit(id)).fenced_by(&lease(1, lasts)).await);
    ledger.assert_sound(0).await;
}

/// The clock of this process believes in the lease all the time.
async fn a_lease_that_ended_by_the_databases_clock_cannot_commit(dialect: Dialect) {
    let ledger = Ledger::new(dialect).await;
    let id = ledger.open_wallets(1).await[0];
    let fences = ledger.eventlog("lock_fences");
    let end = format!("UPDATE {fences} SET until = '2000-01-01 00:00:00'");
    let url = ledger.url().to_owned();
    let paused = InterruptedDeposit(move |_| {
        let (url, end) = (url.clone(), end.clone());
        async move {
            let mut other = PlainConnection::connect(&url).await;
            other.execute(&end).await;
            other.close().await;
        }
    });
    assert_lost(ledger.executor.execute(&paused, deposit(id)).fenced_by(&lease(1, LONG)).await);
    ledger.assert_sound(0).await;
}

async fn waiting_to_execute_does_not_prolong_a_lease(dialect: Dialect) {
    let ledger = Ledger::new(dialect).await;
    let id = ledger.open_wallets(1).await[0];
    let lasts = Duration::from_millis(50);
    let call = ledger.executor.execute(&DepositMoney, deposit(id)).fenced_by(&lease(1, lasts));
    tokio::time::sleep_until(Instant::now() + lasts * 2).await;
    assert_lost(call.await);
    ledger.assert_sound(0).await;
}

fn lease_on(key: &str, token: i64) -> Fence {
    Fence { key: key.to_owned(), token, remaining: LONG }
}

async fn a_commit_under_several_leases_needs_all_of_them(dialect: Dialect) {
    let ledger = Ledger::new(dialect).await;
    let ids = ledger.open_wallets(2).await;
    let mut committed = 0;
    for (round, fallen) in ["a", "b", "c"].into_iter().enumerate() {
        let token = 10 * (round as i64 + 1);
        let leases = ["c", "a", "b"].map(|key| lease_on(key, token));
        let call = ledger.executor.execute(&DepositMoney, deposit(ids[0]));
        leases.iter().fold(call, |call, lease| call.fenced_by(lease)).await.unwrap();
        let (executor, other) = (ledger.executor.clone(), ids[1]);
        let paused = InterruptedDeposit(move |_| {
            let (executor, later) = (executor.clone(), lease_on(fallen, token + 1));
            beside(async move {
                executor.execute(&DepositMoney, deposit(other)).fenced_by(&later).await.unwrap();
            })
        });
        let call = ledger.executor.execute(&paused, deposit(ids[0]));
        match leases.iter().fold(call, |call, lease| call.fenced_by(lease)).await {
            Err(ExecuteError::FenceLost { key, .. }) => assert_eq!(key, fallen),
            other => panic!("{other:?}"),
        }
        committed += 2;
    }
    ledger.assert_sound(committed).await;
}

/// A holder of several leases at once, as a writer under a read/write lock.
struct Holder([Fence; 2]);

impl AsFence for Holder {
    fn as_fence(&self) -> Fence {
        self.0[0].clone()
    }

    fn others(&self) -> Vec<&dyn AsFence> {
        vec![&self.0[1]]
    }
}

async fn a_lease_behind_a_pointer_fences_by_all_its_fences(dialect: Dialect) {
    let ledger = Ledger::new(dialect).await;
    let id = ledger.open_wallets(1).await[0];
    let deposit = || ledger.executor.execute(&DepositMoney, deposit(id));
    deposit().fenced_by(&lease_on("b", 2)).await.unwrap();
    let held: Box<dyn AsFence + Send + Sync> =
        Box::new(Holder(["a", "b"].map(|key| lease_on(key, 1))));
    for call in
        [deposit().fenced_by(&held), deposit().fenced_by(&*held), deposit().fenced_by(&&*held)]
    {
        match call.await {
            Err(ExecuteError::FenceLost { key, .. }) => assert_eq!(key, "b"),
            other => panic!("{other:?}"),
        }
    }
    ledger.assert_sound(1).await;
}

async fn a_fold_drops_the_commits_that_lost_one_of_several_leases(dialect: Dialect) {
    const CALLS: usize = 8;
    let ledger = Ledger::new(dialect).await;
    let ids = ledger.open_wallets(CALLS).await;
    let other = ledger.open_wallets(1).await[0];
    // All calls commit at the same time, so that some of them are folded.
    let all_have_read = Arc::new(Barrier::new(CALLS));
    let mut tasks = tokio::task::JoinSet::new();
    for (n, id) in ids.into_iter().enumerate() {
        let (executor, all_have_read) = (ledger.executor.clone(), all_have_read.clone());
        tasks.spawn(async move {
            let (first, second) = (format!("first {n}"), format!("second {n}"));
            let (successor, later) = (executor.clone(), lease_on(&second, 2));
            let paused = InterruptedDeposit(move |_| {
                let (successor, later) = (successor.clone(), later.clone());
                let all_have_read = all_have_read.clone();
                beside(async move {
                    if n % 2 == 1 {
                        let call = successor.execute(&DepositMoney, deposit(other));
                        call.fenced_by(&later).await.unwrap();
                    }
                    all_have_read.wait().await;
                })
            });
            let call = executor.execute(&paused, deposit(id));
            let call = call.fenced_by(&lease_on(&first, 1)).fenced_by(&lease_on(&second, 1));
            match (n % 2, call.await) {
                (0, Ok(_)) => {}
                (1, Err(ExecuteError::FenceLost { key, .. })) => assert_eq!(key, second),
                (_, other) => panic!("{other:?}"),
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    ledger.assert_sound(CALLS / 2 + CALLS / 2).await;
}

mod on_a_slow_connection {
    use super::*;

    on_every_database! {
        only postgres and mysql and mariadb:
        the_time_to_send_does_not_prolong_a_lease,
    }

    /// The fence arrives late, and the database counts its time from the arrival.
    async fn the_time_to_send_does_not_prolong_a_lease(dialect: Dialect) {
        let (url, line) = proxied(&ScratchDatabase::create(dialect).await.url).await;
        let ledger = Ledger::open(&url).await;
        let id = ledger.open_wallets(1).await[0];
        let (line, lasts) = (Arc::new(line), Duration::from_secs(1));
        line.set_delay(Duration::from_millis(100));
        let until = Instant::now() + lasts;
        let paused = InterruptedDeposit(|_| {
            let line = line.clone();
            async move {
                line.set_delay(Duration::ZERO);
                tokio::time::sleep_until(until + Duration::from_millis(50)).await;
            }
        });
        assert_lost(
            ledger.executor.execute(&paused, deposit(id)).fenced_by(&lease(1, lasts)).await,
        );
        ledger.assert_sound(0).await;
    }
}

async fn a_key_that_not_every_database_stores_is_refused_by_name(dialect: Dialect) {
    let ledger = Ledger::new(dialect).await;
    let id = ledger.open_wallets(1).await[0];
    let longest = "ż".repeat(255);
    let deposit = |key: &str, token| {
        let lease = lease_on(key, token);
        ledger.executor.execute(&DepositMoney, deposit(id)).fenced_by(&lease)
    };
    deposit(&longest, 9).await.unwrap();
    let too_long = [format!("{longest} "), format!("{longest}ż")];
    for (key, why) in
        too_long.iter().map(|key| (&**key, "has 256 characters")).chain([("a\0b", "character 0")])
    {
        let refused = deposit(key, 5).await.unwrap_err().to_string();
        let fenced_off = ledger.databases.fence_off(key, 5).await.unwrap_err();
        assert_eq!(fenced_off.kind(), DbErrorKind::ValueOutOfRange);
        for error in [refused, fenced_off.to_string()] {
            let names = error.contains(&format!("the fence's key {key:?}"));
            assert!(names && error.contains(why), "{error}");
        }
    }
    // A space at the end is a part of the key.
    deposit("a", 9).await.unwrap();
    deposit("a ", 5).await.unwrap();
    ledger.assert_sound(3).await;
}
