//! After a lock server lost its keys, two callers may hold one key. The fence lets only the later
//! holder commit.

use std::time::Duration;

use ekbatan::lock::{KeyedLockProvider, LockProvider, lock_key};
use ekbatan::prelude::*;
use ekbatan_lock_redis::RedisBackend;
use ekbatan_testkit::RedisServer;
use support::Dialect;
use support::wallet::{Deposit, DepositMoney};

use crate::ledger::Ledger;

on_every_database!(only_the_later_of_two_holders_commits);

const LONG: Duration = Duration::from_secs(600);

async fn only_the_later_of_two_holders_commits(dialect: Dialect) {
    let ledger = Ledger::new(dialect).await;
    let ids = ledger.open_wallets(2).await;
    let deposit = |n: usize| Deposit { wallet: ids[n], amount: Decimal::ONE };
    let redis = RedisServer::start().await.unwrap();
    let locks = async || {
        let backend = RedisBackend::connect(&redis.url(), RedisBackend::NAMESPACE).await;
        LockProvider::new(backend.unwrap(), "test")
    };
    let (one, other, key) = (locks().await, locks().await, lock_key!("wallet", 1));

    let earlier = one.acquire(&key, LONG).await.unwrap();
    let execution = ledger.executor.execute(&DepositMoney, deposit(0));
    execution.fenced_by(&earlier).await.unwrap();
    redis.kill().await.unwrap();
    redis.restart().await.unwrap();

    let later = other.acquire(&key, LONG).await.unwrap();
    assert!(earlier.is_held() && later.is_held(), "neither holder knows of the other");
    let execution = ledger.executor.execute(&DepositMoney, deposit(1));
    execution.fenced_by(&later).await.unwrap();
    // The later holder changed another row, so no row version shows the conflict.
    let execution = ledger.executor.execute(&DepositMoney, deposit(0));
    let refused = execution.fenced_by(&earlier).await;
    assert!(matches!(refused, Err(ExecuteError::FenceLost { .. })), "{refused:?}");
    ledger.assert_sound(2).await;
}
