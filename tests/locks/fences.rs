//! Fences of leases in a database: those of two lock servers, and of servers whose tokens stood still.

use ekbatan::lock::{KeyedLockProvider, LockLevel};
use ekbatan::prelude::*;
use support::Dialect;
use support::wallet::{Deposit, DepositMoney, OpenWallet, Opening};

use crate::database::TestDatabase;
use crate::providers::{Kind, LONG, TestLocks};
use crate::sql::place::Place;

/// Tokens of one server say nothing about those of another, so one key may be held at both.
#[tokio::test]
async fn keys_of_one_name_at_two_servers_do_not_fence_each_other_off_on_redis() {
    let database = TestDatabase::start(Dialect::Sqlite).await;
    let executor = database.executor();
    let opening = Opening { owner: "alice".to_owned(), currency: "EUR".to_owned() };
    let wallet = executor.execute(&OpenWallet, opening).await.unwrap().id;
    // Two namespaces of one server have nothing in common.
    let [one, other] = [TestLocks::start(Kind::Redis).await, TestLocks::start(Kind::Redis).await];
    let (one, other) = (one.locks, other.locks.fenced_as("another server"));
    let deposit = || Deposit { wallet, amount: Decimal::ONE };
    for key in
        [LockLevel::Zone, LockLevel::Global].map(|it| lock_key!("wallet", wallet).at_level(it))
    {
        let earlier = one.acquire(&key, LONG).await.unwrap();
        // Both servers count each key from the clock, so one grant more makes the token greater.
        assert!(other.acquire(&key, LONG).await.unwrap().release().await);
        let later = other.acquire(&key, LONG).await.unwrap();
        assert!(later.token() > earlier.token());
        for lease in [&later, &earlier] {
            executor.execute(&DepositMoney, deposit()).fenced_by(lease).await.unwrap();
        }
    }
}

/// A service without interruptions opens no session for months, and only such a one sets the sequence.
#[tokio::test]
async fn a_session_that_is_open_for_a_month_grants_tokens_that_begin_fences_on_postgres() {
    let database = TestDatabase::start(Dialect::Sqlite).await;
    let executor = database.executor();
    let opening = Opening { owner: "alice".to_owned(), currency: "EUR".to_owned() };
    let wallet = executor.execute(&OpenWallet, opening).await.unwrap().id;
    let place = Place::shared(Kind::PostgresSession).await;
    let locks = place.process().await;
    let before = locks.acquire(&lock_key!("before"), LONG).await.unwrap();
    // 31 days, in which few keys were granted.
    let behind =
        "SELECT setval('eventlog.lock_tokens', last_value - 2678400000) FROM eventlog.lock_tokens";
    place.execute(behind).await;
    let (key, other) = (lock_key!("wallet", wallet), lock_key!("other"));
    let (lease, other) = tokio::join!(locks.acquire(&key, LONG), locks.acquire(&other, LONG));
    let (lease, other) = (lease.unwrap(), other.unwrap());
    assert!(lease.token() > before.token() && other.token() > before.token());
    assert_ne!(lease.token(), other.token());
    let deposit = Deposit { wallet, amount: Decimal::ONE };
    executor.execute(&DepositMoney, deposit).fenced_by(&lease).await.unwrap();
    for lease in [before, lease, other] {
        assert!(lease.release().await);
    }
}
